//! A device that verifies what it is sent, as far as these tests need: the notes, and that leaves lead to them.

use std::time::Duration;

use bytes::Bytes;
use ordering::roster::OpsCodec;
use ordering::signed::Codec;
use trust::device::{DeviceKey, Incarnation};
use trust::history::{Frontier, leaf_hash};
use trust::key::SecretKey;
use trust_shared::attest::{Attest, SignedAttest};
use trust_shared::calls::decide;
use trust_shared::decision::Decision;
use trust_shared::entry::{Content, Entry, Ops, Prefix, SignedEntry, body_hash};
use trust_shared::mark::Nonce;
use trust_shared::note::SignedNote;
use trust_shared::ops::Op;
use trust_shared::principal::{self, Principal};
use wire::shared::link::{Deliveries, Link, LinkError, LinkOptions};
use wire::shared::{Delivery, SentLeaf, ServerAddress};

use super::volume::{USER, orderer, policy};

pub fn link_options() -> LinkOptions {
    LinkOptions {
        answer_timeout: Duration::from_secs(60),
        ..LinkOptions::default()
    }
}

pub async fn connect(
    to: &ServerAddress,
    device: Option<&SecretKey>,
) -> Result<(Link, Deliveries), LinkError> {
    let (volume, _) = policy();
    Link::connect(to, volume, &orderer().public(), device, &link_options()).await
}

/// Waits at most a minute.
pub async fn soon<T>(call: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(Duration::from_secs(60), call).await;
    done.expect("nothing comes")
}

pub struct Device {
    pub key: SecretKey,
    pub link: Link,
    pub pushes: Deliveries,
    pub log: Frontier,
    pub note: Option<SignedNote>,
    /// Leaf hash of its last entry, and the number of its next.
    last: ([u8; 32], u64),
    incarnation: Incarnation,
}

impl Device {
    /// Connects and opens a session.
    pub async fn start(to: &ServerAddress, key: SecretKey) -> Device {
        let (link, pushes) = connect(to, Some(&key)).await.unwrap();
        link.open(None).unwrap();
        let incarnation = Incarnation::from_bytes(sim::random::noise(7, 16).try_into().unwrap());
        Device {
            key,
            link,
            pushes,
            log: Frontier::new(),
            note: None,
            last: ([0; 32], 0),
            incarnation,
        }
    }

    /// Connects again, and goes on after the newest note.
    pub async fn reconnect(&mut self, to: &ServerAddress) {
        let (link, pushes) = connect(to, Some(&self.key)).await.unwrap();
        link.open(self.note.as_ref()).unwrap();
        (self.link, self.pushes) = (link, pushes);
    }

    pub fn device(&self) -> DeviceKey {
        DeviceKey::from(&self.key.public())
    }

    /// The next delivery, verified.
    pub async fn take(&mut self) -> Delivery {
        let delivery = soon(self.pushes.next()).await.unwrap();
        let (volume, _) = policy();
        delivery.note.verify(volume, &orderer().public()).unwrap();
        assert_eq!(delivery.from, self.log.size());
        for leaf in &delivery.leaves {
            let hash = match leaf {
                SentLeaf::Entry { entry, .. } => entry.hash(),
                SentLeaf::Marks { marks, .. } => leaf_hash(&marks.encode()),
            };
            self.log.push_hash(hash).unwrap();
        }
        let log = &delivery.note.note().log;
        assert_eq!((log.size, log.root), (self.log.size(), self.log.root()));
        self.note = Some(delivery.note);
        delivery
    }

    /// Takes deliveries until one is as wanted.
    pub async fn until(&mut self, mut wanted: impl FnMut(&Delivery) -> bool) -> Delivery {
        loop {
            let delivery = self.take().await;
            if wanted(&delivery) {
                return delivery;
            }
        }
    }

    pub fn prefix(&self) -> Prefix {
        Prefix {
            size: self.log.size(),
            root: self.log.root(),
        }
    }

    fn sign(&mut self, content: Content) -> SignedEntry {
        let seen = self.prefix();
        let entry = Entry {
            epoch: 0,
            device: self.device(),
            incarnation: self.incarnation,
            seen,
            kept: seen.size,
            content,
        };
        let (volume, _) = policy();
        let signed = entry.sign(volume, &self.key).unwrap();
        self.last = (signed.hash(), self.last.1 + 1);
        signed
    }

    /// The first entry of a new incarnation.
    pub fn resume(&mut self) -> SignedEntry {
        self.last.1 = 0;
        self.sign(Content::Resume)
    }

    /// An entry with these operations, and its body.
    pub fn entry(&mut self, ops: Vec<Op>) -> (SignedEntry, Bytes) {
        let (outline, body) = OpsCodec::encode(ops).unwrap();
        let (previous, n) = self.last;
        let ops = Ops {
            n,
            previous,
            outline,
            body_hash: body_hash(&body),
        };
        (self.sign(Content::Ops(ops)), body)
    }

    /// Sends an entry and waits until it is in the log.
    pub async fn order(&mut self, entry: &SignedEntry, body: Option<&[u8]>) -> Delivery {
        self.link.entry(entry, body).unwrap();
        let hash = entry.hash();
        self.until(|delivery| has(delivery, hash)).await
    }

    pub async fn write(&mut self, ops: Vec<Op>) -> Delivery {
        let (entry, body) = self.entry(ops);
        self.order(&entry, Some(&body)).await
    }

    pub async fn begin(&mut self) {
        let resume = self.resume();
        self.order(&resume, None).await;
    }

    /// Admits devices as the founder's, numbers from 1 on, and makes that take effect.
    pub async fn admit(&mut self, keys: &[SecretKey]) {
        let user = Principal::from_bytes(USER);
        let numbered: Vec<_> = (1u32..).zip(keys).collect();
        // At most 256 decisions of a device wait for its next entry.
        for some in numbered.chunks(200) {
            let admit = |(number, key): &(u32, &SecretKey)| {
                decide(Decision::AdmitDevice {
                    device: principal::Device(*number),
                    key: key.public(),
                    user,
                })
            };
            self.write(some.iter().map(admit).collect()).await;
        }
        self.write(Vec::new()).await;
    }

    pub fn attest(&self) -> SignedAttest {
        let attest = Attest {
            epoch: 0,
            device: self.device(),
            seen: self.prefix(),
        };
        attest.sign(policy().0, &self.key).unwrap()
    }

    /// Puts a mark into the log and waits for its proof.
    pub async fn mark(&mut self, seed: u8) {
        let nonce = Nonce::from_bytes([seed; 32]);
        self.link.mark(&nonce).unwrap();
        self.until(|delivery| {
            let marks = delivery.leaves.iter().filter_map(|leaf| match leaf {
                SentLeaf::Marks { marks, proofs } => Some((marks, proofs)),
                SentLeaf::Entry { .. } => None,
            });
            let proved = marks.flat_map(|(marks, proofs)| {
                proofs
                    .iter()
                    .map(move |(nonce, proof)| (marks, nonce, proof))
            });
            let mut proved = proved;
            proved.any(|(marks, of, proof)| *of == nonce && marks.contain(of, proof))
        })
        .await;
    }
}

/// Whether a delivery has the entry with this hash.
pub fn has(delivery: &Delivery, hash: [u8; 32]) -> bool {
    delivery.leaves.iter().any(|leaf| match leaf {
        SentLeaf::Entry { entry, .. } => entry.hash() == hash,
        SentLeaf::Marks { .. } => false,
    })
}
