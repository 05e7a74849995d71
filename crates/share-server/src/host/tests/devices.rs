//! Devices of a volume: each signs entries and verifies what it is sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trust::device::{DeviceKey, Incarnation};
use trust::history::{Frontier, leaf_hash};
use trust::key::SecretKey;
use trust_shared::change::Change;
use trust_shared::decision::Decision;
use trust_shared::entry::Prefix;
use trust_shared::form::Heading;
use trust_shared::genesis::Policies;
use trust_shared::mark::Nonce;
use trust_shared::note::SignedNote;
use trust_shared::ops::Op;
use trust_shared::principal::{Device as Number, FileId, INumber, Principal};

use super::super::{Core, Delivery, HostError, Session};
use super::world::{genesis_policy, key, orderer};
use ordering::engine::Request;
use ordering::roster::Product;
use ordering::scheme::{DeviceScheme, Scheme};
use ordering::signed::{Entry, Signed, Source};

struct NoSource;

impl Source for NoSource {
    fn draw(&self) -> [u8; 32] {
        [0; 32]
    }
}

/// A device, and the log as it was sent to it.
pub struct Device {
    pub session: Session,
    /// How often it was woken.
    pub woken: Arc<AtomicU64>,
    scheme: Product,
    log: Frontier,
    pub note: Option<SignedNote>,
    /// Every leaf that it was sent.
    pub leaves: Vec<Vec<u8>>,
    incarnation: Incarnation,
    n: u64,
    previous: [u8; 32],
    file: u64,
}

impl Device {
    /// Connects, and opens a session with nothing.
    pub fn connect(core: &Arc<Core>, number: u8) -> Result<Device, HostError> {
        let woken = Arc::new(AtomicU64::new(0));
        let count = woken.clone();
        let key = key(number);
        let me = DeviceKey::from(&key.public());
        let wake = Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let session = Session::begin(core, me, wake)?;
        Device::of(session, woken, key)
    }

    pub fn of(
        session: Session,
        woken: Arc<AtomicU64>,
        key: SecretKey,
    ) -> Result<Device, HostError> {
        let (volume, _) = genesis_policy();
        let public = orderer().public();
        let scheme = Signed::new(volume, 0, public, key, Arc::new(NoSource));
        session.receive(&Request::Open(None))?;
        Ok(Device {
            session,
            woken,
            scheme,
            log: Frontier::new(),
            note: None,
            leaves: Vec::new(),
            incarnation: Incarnation::from_bytes([0; 16]),
            n: 0,
            previous: [0; 32],
            file: 0,
        })
    }

    /// Signs and expects notes as in the newest epoch of these policies.
    pub fn follow(&mut self, number: u8, policies: &Policies) {
        self.scheme = Signed::of(policies, key(number), Arc::new(NoSource));
    }

    /// The log that it was sent.
    pub fn seen(&self) -> Prefix {
        Prefix {
            size: self.log.size(),
            root: self.log.root(),
        }
    }

    /// Takes everything that it is sent, and verifies that the notes name what came.
    pub fn draw(&mut self) -> Result<Vec<Delivery>, HostError> {
        let mut all = Vec::new();
        while let Some(delivery) = self.session.draw()? {
            assert_eq!(delivery.from, self.log.size(), "leaves follow each other");
            for leaf in &delivery.leaves {
                self.log.push_hash(leaf_hash(&leaf.leaf)).unwrap();
                self.leaves.push(leaf.leaf.to_vec());
            }
            assert_eq!(delivery.note.note().prefix(), self.seen());
            assert!(self.scheme.note_is_signed(&delivery.note));
            self.note = Some(delivery.note);
            all.push(delivery);
        }
        Ok(all)
    }

    /// Begins a new incarnation.
    pub fn resume(&mut self, incarnation: u8) -> Request<Product> {
        self.incarnation = Incarnation::from_bytes([incarnation; 16]);
        self.n = 0;
        let entry = self.sign(true, Vec::new());
        self.n = 1;
        Request::Entry(entry)
    }

    /// An entry with these ops.
    pub fn entry(&mut self, ops: Vec<Op>) -> Request<Product> {
        let entry = self.sign(false, ops);
        self.n += 1;
        Request::Entry(entry)
    }

    /// What a copy of this device signs with.
    pub fn copy(&self) -> Copied {
        Copied {
            scheme: self.scheme.clone(),
            heading: self.heading(false),
        }
    }

    /// An entry that changes a file: its body is short.
    pub fn change(&mut self) -> Request<Product> {
        self.file += 1;
        let ops = vec![lock(self.file)];
        self.entry(ops)
    }

    fn heading(&self, resume: bool) -> Heading<[u8; 32], Incarnation> {
        Heading {
            incarnation: self.incarnation,
            n: self.n,
            previous: if resume { [0; 32] } else { self.previous },
            seen: self.seen(),
            kept: self.seen().size,
            resume,
            alone: true,
        }
    }

    fn sign(&mut self, resume: bool, ops: Vec<Op>) -> Entry {
        let entry = self.scheme.sign(self.heading(resume), ops).unwrap();
        self.previous = Product::id(&entry);
        entry
    }

    pub fn attest(&self) -> Request<Product> {
        Request::Attest(self.scheme.attest(self.seen()).unwrap())
    }
}

/// A copy of a device as it was.
pub struct Copied {
    scheme: Product,
    heading: Heading<[u8; 32], Incarnation>,
}

impl Copied {
    /// The device's next entry, with these ops.
    pub fn entry(&self, ops: Vec<Op>) -> Request<Product> {
        Request::Entry(self.scheme.sign(self.heading, ops).unwrap())
    }
}

pub fn file(number: u64) -> FileId {
    FileId {
        principal: Principal::from_bytes([6; 32]),
        number: INumber {
            device: Number(0),
            counter: number,
        },
    }
}

/// An op that takes the lock of a file.
pub fn lock(number: u64) -> Op {
    let file = file(number);
    Op::new(Vec::new(), vec![Change::Lock { file }])
}

/// An op that admits a device.
pub fn admit(number: u8) -> Op {
    let decision = Decision::AdmitDevice {
        device: Number(number.into()),
        key: key(number).public(),
        user: Principal::from_bytes([6; 32]),
    };
    Op::new(Vec::new(), vec![Change::Decide(decision)])
}

/// An op that removes a device.
pub fn remove(number: u8) -> Op {
    let decision = Decision::RemoveDevice {
        device: Number(number.into()),
    };
    Op::new(Vec::new(), vec![Change::Decide(decision)])
}

pub fn nonce(number: u64) -> Nonce {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    Nonce::from_bytes(bytes)
}
