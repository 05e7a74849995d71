//! The product's hashes, signatures and formats for its machines, with keys and randomness by number.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use ordering::scheme::Leaf as LeafOf;
use ordering::signed::{Codec, Entry, Marks, Signed, Source};
use trust::device::DeviceKey;
use trust::key::SecretKey;
use trust::volume_id::VolumeId;
use trust_shared::attest::SignedAttest;
use trust_shared::entry::SignedEntry;
use trust_shared::mark::{MarkTree, Nonce};

use crate::tally::Add;
use crate::wide::Wide;

pub type Real = Signed<Adds>;
pub type Leaf = LeafOf<Real>;

/// Devices. The orderer's key comes after theirs.
pub const DEVICES: u8 = 3;

/// Additions, nine bytes each.
#[derive(Clone, Debug)]
pub struct Adds;

impl Codec for Adds {
    type Op = Add;

    fn encode(ops: Vec<Add>) -> Option<(Bytes, Bytes)> {
        let outline = ops.iter().flat_map(|op| {
            let from = op.from.to_be_bytes();
            std::iter::once(op.counter).chain(from)
        });
        Some((outline.collect(), Bytes::new()))
    }
}

/// The additions of an entry.
pub fn ops(entry: &Entry) -> Vec<Add> {
    let Some(ops) = entry.signed().entry().ops() else {
        return Vec::new();
    };
    let all = ops.outline.chunks(9).map(|op| Add {
        counter: op[0],
        from: u64::from_be_bytes(op[1..].try_into().expect("nine bytes")),
    });
    all.collect()
}

struct Seed(u64, AtomicU64);

impl Source for Seed {
    fn draw(&self) -> [u8; 32] {
        let drawn = self.1.fetch_add(1, Ordering::Relaxed);
        std::array::from_fn(|at| {
            let mut wide = Wide::default();
            std::hash::Hash::hash(&(self.0, drawn, at), &mut wide);
            wide.finish128() as u8
        })
    }
}

fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&[number + 1; 32])
}

/// The secrets of a device, or of the orderer.
pub fn real(number: u8, seed: u64) -> Real {
    let source = Seed(seed << 8 | u64::from(number), AtomicU64::new(0));
    let volume = VolumeId::from_bytes([9; 32]);
    Signed::new(
        volume,
        1,
        key(DEVICES).public(),
        key(number),
        Arc::new(source),
    )
}

pub fn device(number: u8) -> DeviceKey {
    static KEYS: OnceLock<Vec<DeviceKey>> = OnceLock::new();
    let keys = KEYS.get_or_init(|| {
        let keys = (0..=DEVICES).map(|number| DeviceKey::from(&key(number).public()));
        keys.collect()
    });
    keys[usize::from(number)]
}

fn flipped(bytes: &Bytes) -> Bytes {
    let mut bytes = bytes.to_vec();
    let at = bytes.len() - 20;
    bytes[at] ^= 1;
    bytes.into()
}

/// An entry with another signature.
pub fn forged(entry: &Entry) -> Entry {
    let bytes = flipped(entry.signed().bytes());
    Entry::new(SignedEntry::decode(bytes).expect("a signature may be any bytes"))
}

/// An Attest with another signature.
pub fn forged_attest(attest: &SignedAttest) -> SignedAttest {
    SignedAttest::decode(flipped(attest.bytes())).expect("a signature may be any bytes")
}

/// The leaf of a group commit with one mark.
pub fn marks(number: u8) -> Leaf {
    let tree = MarkTree::new(vec![nonce(number)]).expect("one mark");
    Leaf::Marks(Marks::new(tree.marks(), Vec::new()))
}

pub fn nonce(number: u8) -> Nonce {
    Nonce::from_bytes([number; 32])
}
