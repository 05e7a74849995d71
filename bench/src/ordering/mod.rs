//! A shared volume for figures 21 and 25, its devices and what they write.
//!
//! `race` lets devices write for themselves. `drive` sends rounds that are signed ahead: a server orders what one
//! thread gives it in that order, so the log is known before it exists, as long as nothing else is in it. An entry names
//! a prefix of the log that has its author's previous entry.

pub mod drive;
pub mod race;

use std::sync::Arc;

use anyhow::{Context, Result};
use ordering::engine::Request;
use ordering::roster::{OpsCodec, Product};
use ordering::scheme::{DeviceScheme, Scheme};
use ordering::signed::{Entry, Signed as Keys, Source};
use share_server::host::Host;
use trust::device::{DeviceKey, Incarnation};
use trust::history::Frontier;
use trust::inode::{Content, FileContent, Inode, Time};
use trust::key::SecretKey;
use trust::roles::{Roles, Threshold};
use trust::statement::Signed;
use trust::statement::policy::Genesis;
use trust::volume_id::VolumeId;
use trust_shared::change::Change;
use trust_shared::decision::Decision;
use trust_shared::entry::{Heading, Prefix};
use trust_shared::genesis::{self, Founder, SharedRoles, Silence};
use trust_shared::guard::Guard;
use trust_shared::ops::Op;
use trust_shared::principal::{Device as Number, FileId, INumber, Principal};

const USER: [u8; 32] = [6; 32];
/// Devices that one entry admits; more decisions of one author would not wait.
const ADMITTED_AT_ONCE: usize = 200;

/// What the devices send in one round trip, in the order of the log: the number of the device, and its entry.
pub type Round = Vec<(usize, Request<Product>)>;

struct NoSource;

impl Source for NoSource {
    fn draw(&self) -> [u8; 32] {
        [0; 32]
    }
}

fn key(number: u32) -> SecretKey {
    SecretKey::from_seed(blake3::hash(&number.to_le_bytes()).as_bytes())
}

/// The orderer's key.
pub fn orderer() -> SecretKey {
    key(u32::MAX)
}

fn owner() -> SecretKey {
    key(u32::MAX - 1)
}

/// The key of a device.
pub fn device(number: usize) -> DeviceKey {
    DeviceKey::from(&key(number as u32).public())
}

/// The genesis policy of the volume.
pub fn genesis_policy() -> Result<(VolumeId, Signed)> {
    let roles = Roles::single(owner().public());
    let genesis = Genesis::new("bench", [1; 32], [2; 32], roles)?;
    let shared = SharedRoles {
        orderer: orderer().public(),
        checkpointers: Threshold::none(),
        silence: Silence::Strict,
        patience_ms: 5000,
        founder: Some(Founder {
            user: USER,
            name: "bench".to_owned(),
            device: key(0).public(),
        }),
    };
    let statement = genesis::genesis(&genesis, &shared);
    let volume = VolumeId::from_bytes(statement.hash());
    Ok((volume, statement.sign(&[&owner()])))
}

/// Makes the directory of a server.
pub fn create(dir: &std::path::Path, ring_bytes: u64) -> Result<()> {
    let (_, genesis) = genesis_policy()?;
    Host::create(dir, &genesis, &orderer().public(), ring_bytes)?;
    Ok(())
}

/// One device's side of its entries.
struct Author {
    keys: Product,
    incarnation: Incarnation,
    n: u64,
    previous: [u8; 32],
    count: u64,
}

/// All devices, and the log as it will be.
pub struct Devices {
    authors: Vec<Author>,
    log: Frontier,
}

impl Devices {
    /// So many devices and an empty log.
    pub fn new(count: usize) -> Result<Devices> {
        Devices::after(count, Frontier::new(), 0)
    }

    /// So many devices after a log. `run` tells the runs of their engines apart.
    pub fn after(count: usize, log: Frontier, run: u64) -> Result<Devices> {
        let (volume, _) = genesis_policy()?;
        let author = |number: usize| {
            let (orderer, key) = (orderer().public(), key(number as u32));
            let keys: Keys<OpsCodec> = Keys::new(volume, 0, orderer, key, Arc::new(NoSource));
            let mut incarnation = [0; 16];
            incarnation[..8].copy_from_slice(&run.to_le_bytes());
            Author {
                keys,
                incarnation: Incarnation::from_bytes(incarnation),
                n: 0,
                previous: [0; 32],
                count: 0,
            }
        };
        Ok(Devices {
            authors: (0..count).map(author).collect(),
            log,
        })
    }

    /// Number of devices.
    pub fn count(&self) -> usize {
        self.authors.len()
    }

    /// The log as it will be.
    pub fn log(&self) -> &Frontier {
        &self.log
    }

    fn seen(&self) -> Prefix {
        Prefix {
            size: self.log.size(),
            root: self.log.root(),
        }
    }

    /// Goes on after a log that has these leaves more.
    pub fn extend<'a>(&mut self, leaves: impl IntoIterator<Item = &'a [u8]>) -> Result<()> {
        leaves
            .into_iter()
            .try_for_each(|leaf| Ok(self.log.push(leaf)?))
    }

    /// Everything until all devices may write: the first one admits the others, and each of them resumes.
    pub fn beginning(&mut self) -> Result<Vec<Round>> {
        let mut rounds = vec![self.resume(0..1)?];
        let others: Vec<usize> = (1..self.count()).collect();
        for some in others.chunks(ADMITTED_AT_ONCE) {
            let ops = some.iter().map(|number| admit(*number)).collect();
            rounds.push(self.round(vec![(0, ops)])?);
            let ops = vec![self.write(0)?];
            rounds.push(self.round(vec![(0, ops)])?);
        }
        if self.count() > 1 {
            rounds.push(self.resume(1..self.count())?);
        }
        Ok(rounds)
    }

    /// These devices begin a new run.
    pub fn resume(&mut self, numbers: std::ops::Range<usize>) -> Result<Round> {
        let seen = self.seen();
        let mut round = Round::new();
        for number in numbers {
            let author = self.authors.get_mut(number).context("no such device")?;
            let entry = author.sign(seen, None)?;
            self.push(number, entry, &mut round)?;
        }
        Ok(round)
    }

    /// One entry of each device, which closes a file of 100 bytes.
    pub fn writes(&mut self) -> Result<Round> {
        let ops = (0..self.count()).map(|number| Ok((number, vec![self.write(number)?])));
        let ops = ops.collect::<Result<_>>()?;
        self.round(ops)
    }

    fn round(&mut self, ops: Vec<(usize, Vec<Op>)>) -> Result<Round> {
        let seen = self.seen();
        let mut round = Round::new();
        for (number, ops) in ops {
            let author = self.authors.get_mut(number).context("no such device")?;
            let entry = author.sign(seen, Some(ops))?;
            self.push(number, entry, &mut round)?;
        }
        Ok(round)
    }

    fn push(&mut self, number: usize, entry: Entry, round: &mut Round) -> Result<()> {
        self.log.push(entry.signed().bytes())?;
        round.push((number, Request::Entry(entry)));
        Ok(())
    }

    fn write(&mut self, number: usize) -> Result<Op> {
        let author = self.authors.get_mut(number).context("no such device")?;
        Ok(write(number, author))
    }
}

/// An op that closes a file of 100 bytes.
fn write(number: usize, author: &mut Author) -> Op {
    author.count += 1;
    let count = author.count;
    let file = FileId {
        principal: Principal::from_bytes(USER),
        number: INumber {
            device: Number(number as u32),
            counter: 1 + count % 1000,
        },
    };
    let noise: Vec<u8> = (0..100).map(|byte| byte ^ count as u8).collect();
    let content = Content::Regular(FileContent::Inline(noise.into()));
    let mtime = Time {
        seconds: 1_800_000_000 + count as i64,
        nanos: 5,
    };
    let inode = Arc::new(Inode::new(0o644, mtime, content));
    let guards = vec![Guard::HashIs { file, is: None }];
    Op::new(guards, vec![Change::Set { file, inode }])
}

impl Author {
    /// An entry with these ops, or a Resume.
    fn sign(&mut self, seen: Prefix, ops: Option<Vec<Op>>) -> Result<Entry> {
        let resume = ops.is_none();
        let heading = Heading {
            incarnation: self.incarnation,
            n: if resume { 0 } else { self.n },
            previous: if resume { [0; 32] } else { self.previous },
            seen,
            kept: seen.size,
            resume,
            alone: true,
        };
        let entry = self.keys.sign(heading, ops.unwrap_or_default());
        let entry = entry.context("an entry has no encoding")?;
        self.n = heading.n + 1;
        self.previous = Product::id(&entry);
        Ok(entry)
    }
}

fn admit(number: usize) -> Op {
    let decision = Decision::AdmitDevice {
        device: Number(number as u32),
        key: key(number as u32).public(),
        user: Principal::from_bytes(USER),
    };
    Op::new(Vec::new(), vec![Change::Decide(decision)])
}
