//! Real hashes and signatures for the product's machines: SHA-256 trees, Ed25519. Bytes are laid out for this test
//! alone.

use std::sync::Arc;

use share::prefixes::{Recent, Rfc6962};
use share::rules::All;
use share::scheme::{Leaf as LeafOf, Notary, Scheme, Signer};
use trust::history::leaf_hash;
use trust::key::{PublicKey, SecretKey};
use trust::shared::form::{Heading as HeadingOf, Point as PointOf};

use crate::tally::Add;
use crate::wide::Wide;

pub type Hash = [u8; 32];
pub type Point = PointOf<Hash>;
pub type Heading = HeadingOf<Hash, [u8; 16]>;
pub type Leaf = LeafOf<Real>;

/// Devices. The orderer's key comes after theirs.
pub const DEVICES: u8 = 3;

/// One device's secrets, or the orderer's.
#[derive(Clone, Debug)]
pub struct Real {
    me: u8,
    key: SecretKey,
    keys: Arc<[PublicKey]>,
    /// Where randomness comes from.
    seed: u64,
    drawn: u64,
}

#[derive(Debug)]
pub struct Entry {
    pub device: u8,
    pub heading: Heading,
    pub ops: Vec<Add>,
    signature: [u8; 64],
    hash: Hash,
}

#[derive(Clone, Debug, Hash)]
pub struct Attest {
    device: u8,
    seen: Point,
    signature: [u8; 64],
}

#[derive(Clone, Debug, Hash)]
pub struct Note {
    point: Point,
    signature: [u8; 64],
}

impl Real {
    pub fn new(me: u8, seed: u64) -> Real {
        let key = |number: u8| SecretKey::from_seed(&[number + 1; 32]);
        let keys = (0..=DEVICES).map(|number| key(number).public());
        Real {
            me,
            key: key(me),
            keys: keys.collect(),
            seed,
            drawn: 0,
        }
    }

    /// The same device after a restart: what it draws it never drew before.
    pub fn again(&self) -> Real {
        self.clone()
    }

    fn draw<const N: usize>(&mut self) -> [u8; N] {
        self.drawn += 1;
        std::array::from_fn(|at| {
            let mut wide = Wide::default();
            std::hash::Hash::hash(&(self.seed, self.me, self.drawn, at), &mut wide);
            wide.finish128() as u8
        })
    }

    fn verify(&self, device: u8, message: &[u8], signature: &[u8; 64]) -> bool {
        let key = self.keys.get(usize::from(device));
        key.is_some_and(|key| key.verify(message, signature))
    }
}

impl Real {
    pub fn noted_point(note: &Note) -> Point {
        note.point
    }

    pub fn leaf_id(leaf: &Leaf) -> Hash {
        Self::leaf_hash(leaf)
    }
}

impl Entry {
    /// The same with another signature.
    pub fn forged(entry: &Entry) -> Arc<Entry> {
        let mut signature = entry.signature;
        signature[40] ^= 1;
        let bytes = entry_bytes(entry.device, &entry.heading, &entry.ops);
        Arc::new(Entry {
            device: entry.device,
            heading: entry.heading,
            ops: entry.ops.clone(),
            signature,
            hash: leaf_hash(&[bytes.as_slice(), &signature].concat()),
        })
    }
}

impl Attest {
    /// The same with another signature.
    pub fn forged(&self) -> Attest {
        let mut forged = self.clone();
        forged.signature[40] ^= 1;
        forged
    }
}

fn point_bytes(domain: &[u8], device: u8, point: Point) -> Vec<u8> {
    let size = point.size.to_be_bytes();
    [domain, &[device], size.as_slice(), &point.root].concat()
}

fn entry_bytes(device: u8, heading: &Heading, ops: &[Add]) -> Vec<u8> {
    let mut bytes = point_bytes(b"entry", device, heading.seen);
    bytes.extend_from_slice(&heading.incarnation);
    bytes.extend_from_slice(&heading.n.to_be_bytes());
    bytes.extend_from_slice(&heading.previous);
    bytes.extend_from_slice(&heading.kept.to_be_bytes());
    bytes.extend_from_slice(&[u8::from(heading.resume), u8::from(heading.alone)]);
    for op in ops {
        bytes.push(op.counter);
        bytes.extend_from_slice(&op.from.to_be_bytes());
    }
    bytes
}

impl Scheme for Real {
    type Device = u8;
    type Hash = Hash;
    type Incarnation = [u8; 16];
    type Entry = Arc<Entry>;
    type Mark = Hash;
    type Marks = Arc<[Hash]>;
    type Attest = Attest;
    type Note = Note;
    type Log = Recent;
    type Rules = All;

    fn rules(&self) -> All {
        All
    }

    fn author(entry: &Arc<Entry>) -> u8 {
        entry.device
    }

    fn heading(entry: &Arc<Entry>) -> Heading {
        entry.heading
    }

    fn id(entry: &Arc<Entry>) -> Hash {
        entry.hash
    }

    fn has_mark(marks: &Arc<[Hash]>, mark: &Hash) -> bool {
        marks.contains(mark)
    }

    fn attested(attest: &Attest) -> (u8, Point) {
        (attest.device, attest.seen)
    }

    fn noted(note: &Note) -> Point {
        note.point
    }

    fn entry_is_signed(&self, entry: &Arc<Entry>) -> bool {
        let bytes = entry_bytes(entry.device, &entry.heading, &entry.ops);
        entry.device < DEVICES && self.verify(entry.device, &bytes, &entry.signature)
    }

    fn attest_is_signed(&self, attest: &Attest) -> bool {
        let bytes = point_bytes(b"attest", attest.device, attest.seen);
        self.verify(attest.device, &bytes, &attest.signature)
    }

    fn note_is_signed(&self, note: &Note) -> bool {
        let bytes = point_bytes(b"note", DEVICES, note.point);
        self.verify(DEVICES, &bytes, &note.signature)
    }
}

impl Rfc6962 for Real {
    fn leaf_hash(leaf: &Leaf) -> Hash {
        match leaf {
            Leaf::Entry(entry) => entry.hash,
            Leaf::Marks(marks) => leaf_hash(&marks.concat()),
        }
    }
}

impl Signer for Real {
    type Op = Add;

    fn me(&self) -> u8 {
        self.me
    }

    fn sign(&self, heading: Heading, ops: Vec<Add>) -> Arc<Entry> {
        let bytes = entry_bytes(self.me, &heading, &ops);
        let signature = self.key.sign(&bytes);
        Arc::new(Entry {
            device: self.me,
            heading,
            ops,
            signature,
            hash: leaf_hash(&[bytes.as_slice(), &signature].concat()),
        })
    }

    fn attest(&self, seen: Point) -> Attest {
        Attest {
            device: self.me,
            seen,
            signature: self.key.sign(&point_bytes(b"attest", self.me, seen)),
        }
    }

    fn no_entry(&self) -> Hash {
        [0; 32]
    }

    fn incarnation(&mut self) -> [u8; 16] {
        self.draw()
    }

    fn mark(&mut self) -> Hash {
        self.draw()
    }
}

impl Notary for Real {
    fn note(&mut self, point: Point) -> Note {
        Note {
            point,
            signature: self.key.sign(&point_bytes(b"note", DEVICES, point)),
        }
    }

    fn marks(&self, marks: &[Hash]) -> Arc<[Hash]> {
        Arc::from(marks)
    }
}
