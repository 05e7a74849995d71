//! For the tests of this module: keys, a volume, entries, and decoders given every cut and every flipped bit.

use bytes::Bytes;

use super::entry::{Content, Entry, Ops, Prefix, SignedEntry, body_hash};
use super::evidence::Included;
use super::genesis::{self, Founder, Policies, SharedRoles, Silence};
use super::note::{Note, SignedNote};
use trust::device::{DeviceKey, Incarnation};
use trust::error::Reject;
use trust::history::leaf_hash;
use trust::history::proof::Roots;
use trust::key::SecretKey;
use trust::statement::Signed;
use trust::statement::policy::{Genesis, Roles, Successor, Threshold};
use trust::volume_id::VolumeId;

pub const VOLUME: VolumeId = VolumeId::from_bytes([7; 32]);

pub fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&[number; 32])
}

pub fn device(number: u8) -> DeviceKey {
    DeviceKey::from(&key(number).public())
}

/// The `n`th entry of a device in an incarnation: a Resume for 0.
pub fn entry(number: u8, incarnation: u8, n: u64) -> Entry {
    let ops = Ops {
        n,
        previous: [n as u8; 32],
        outline: Bytes::from_static(b"outline"),
        body_hash: body_hash(b"body"),
    };
    Entry {
        epoch: 0,
        device: device(number),
        incarnation: Incarnation::from_bytes([incarnation; 16]),
        seen: Prefix {
            size: 300,
            root: [9; 32],
        },
        kept: 290,
        content: match n {
            0 => Content::Resume,
            _ => Content::Ops(ops),
        },
    }
}

pub fn signed(number: u8, entry: &Entry) -> SignedEntry {
    entry.sign(VOLUME, &key(number)).unwrap()
}

/// Shortened and prolonged bytes are refused.
pub fn refuses_cuts(bytes: &[u8], decode: impl Fn(&[u8]) -> Result<(), Reject>) {
    assert_eq!(decode(bytes), Ok(()));
    for cut in 0..bytes.len() {
        assert!(decode(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    let longer = [bytes, &[0]].concat();
    assert!(decode(&longer).is_err(), "a byte more");
}

/// With any bit flipped the bytes are refused.
pub fn refuses_flips(bytes: &[u8], accept: impl Fn(&[u8]) -> Result<(), Reject>) {
    assert_eq!(accept(bytes), Ok(()));
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1 << bit;
            assert!(accept(&flipped).is_err(), "bit {bit} of byte {at}");
        }
    }
}

/// The genesis policy of a shared volume: owner 1, orderer 2, checkpointers 4 and 5 (both), founder's device 3.
pub fn genesis_policy() -> (VolumeId, Signed) {
    let roles = Roles::single(key(1).public());
    let genesis = Genesis::new("seed", [1; 32], [2; 32], roles).unwrap();
    let statement = genesis::genesis(&genesis, &shared_roles(2));
    let volume = VolumeId::from_bytes(statement.hash());
    (volume, statement.sign(&[&key(1)]))
}

pub fn shared_roles(orderer: u8) -> SharedRoles {
    let checkpointers = vec![key(4).public(), key(5).public()];
    SharedRoles {
        orderer: key(orderer).public(),
        checkpointers: Threshold::new(2, checkpointers).unwrap(),
        silence: Silence::Strict,
        patience_ms: 5000,
        founder: Some(Founder {
            user: [6; 32],
            name: "ada".to_owned(),
            device: key(3).public(),
        }),
    }
}

/// A policy after `before`; it begins an epoch if `start` is given.
pub fn next_policy(before: &Policies, start: Option<Prefix>) -> Successor {
    let newest = before.chain().newest();
    let epoch = newest.log_epoch();
    Successor {
        number: newest.number() + 1,
        previous: before.chain().newest_hash(),
        not_after: u64::MAX,
        log_epoch: epoch + u64::from(start.is_some()),
        roles: newest.roles().clone(),
        last: match start {
            Some(start) => Some(genesis::standing(epoch, &start)),
            None => newest.last().cloned(),
        },
        lower: false,
        revoked: None,
        refused: Vec::new(),
    }
}

pub fn signed_policy(volume: VolumeId, successor: &Successor, orderer: u8) -> Signed {
    let roles = SharedRoles {
        founder: None,
        ..shared_roles(orderer)
    };
    genesis::successor(volume, successor, &roles).sign(&[&key(1)])
}

/// A log of at most 255 leaves, with its prefixes and proofs.
#[derive(Clone, Default)]
pub struct Log {
    pub leaves: Vec<Bytes>,
    roots: Roots,
}

impl Log {
    pub fn push(&mut self, leaf: impl Into<Bytes>) -> &mut Self {
        let leaf = leaf.into();
        assert_eq!(self.roots.push(leaf_hash(&leaf)), None);
        self.leaves.push(leaf);
        self
    }

    pub fn prefix(&self, size: u64) -> Prefix {
        let root = self.roots.root_at(size, |_| None).unwrap();
        Prefix { size, root }
    }

    pub fn whole(&self) -> Prefix {
        self.prefix(self.roots.size())
    }

    pub fn note(&self, volume: VolumeId, epoch: u64, orderer: u8) -> SignedNote {
        self.note_at(volume, epoch, orderer, self.roots.size())
    }

    pub fn note_at(&self, volume: VolumeId, epoch: u64, orderer: u8, size: u64) -> SignedNote {
        let log = self.prefix(size).in_epoch(epoch);
        let time_ms = 1_800_000_000_000;
        Note { log, time_ms }.sign(volume, &key(orderer))
    }

    pub fn included(&self, index: u64) -> Included {
        let size = self.roots.size();
        Included {
            index,
            leaf: self.leaves[index as usize].clone(),
            path: self.roots.inclusion(index, size, |_| None).unwrap(),
        }
    }

    pub fn proof(&self, prefix: u64) -> Vec<[u8; 32]> {
        let size = self.roots.size();
        self.roots.prefix(prefix, size, |_| None).unwrap()
    }
}
