//! Arithmetic of the volume's append-only log: RFC 6962 with SHA-256, so that existing log tools and
//! witnesses understand it.
//!
//! A leaf is a statement's bytes without signatures. Policies and root records are leaves, in the order in
//! which they were made; the genesis policy is the first. A [`LogPoint`] is a size with its root hash. A
//! [`Frontier`] is the part of a log that is needed to append to it.

pub mod prefix;
pub mod proof;
pub mod signed_note;
pub mod tiles;

use sha2::{Digest, Sha256};

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;

/// Longest proof that a log of 2⁶⁴ leaves can need, hashes.
pub const MAX_PROOF_HASHES: usize = 130;

/// A log at some size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LogPoint {
    /// Number of the log. A policy that drops published records begins the next epoch.
    pub epoch: u64,
    /// Number of leaves.
    pub size: u64,
    /// Their Merkle tree hash (RFC 6962, 2.1).
    pub root: [u8; 32],
}

impl LogPoint {
    /// Appends the 48 bytes.
    pub fn encode(&self, out: &mut Encoder) {
        out.u64(self.epoch).u64(self.size).raw(&self.root);
    }

    /// Reads the 48 bytes.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when they are fewer.
    pub fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        Ok(LogPoint {
            epoch: d.u64()?,
            size: d.u64()?,
            root: d.array()?,
        })
    }
}

/// Hash of a leaf: SHA-256(0 ‖ leaf).
pub fn leaf_hash(leaf: &[u8]) -> [u8; 32] {
    Sha256::new()
        .chain_update([0])
        .chain_update(leaf)
        .finalize()
        .into()
}

/// Hash of an interior node: SHA-256(1 ‖ left ‖ right).
pub fn node_hash(left: &[u8; 32], right: &[u8; 32]) -> [u8; 32] {
    Sha256::new()
        .chain_update([1])
        .chain_update(left)
        .chain_update(right)
        .finalize()
        .into()
}

/// The compact range [0, size): the roots of the perfect subtrees of a log, largest first; as many
/// as `size` has one bits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frontier {
    size: u64,
    subtrees: Vec<[u8; 32]>,
}

impl Frontier {
    /// The empty log.
    pub fn new() -> Self {
        Frontier::default()
    }

    /// The log of `size` leaves with these perfect subtrees, one for each one bit of `size`.
    pub(crate) fn of(size: u64, subtrees: Vec<[u8; 32]>) -> Self {
        Frontier { size, subtrees }
    }

    /// Number of leaves.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The perfect subtrees, oldest first: index of the first leaf, number of leaves, root.
    pub fn subtrees(&self) -> impl DoubleEndedIterator<Item = (u64, u64, [u8; 32])> {
        let mut start = 0u64;
        let mut out = Vec::with_capacity(self.subtrees.len());
        let mut left = self.size;
        for root in &self.subtrees {
            let leaves = left.checked_ilog2().map_or(0, |bit| 1u64 << bit);
            out.push((start, leaves, *root));
            start = start.saturating_add(leaves);
            left = left.saturating_sub(leaves);
        }
        out.into_iter()
    }

    /// Appends a leaf (its bytes, not its hash).
    ///
    /// # Errors
    /// [`Reject::Malformed`] when the log would have more than 2⁶⁴ − 1 leaves.
    pub fn push(&mut self, leaf: &[u8]) -> Result<(), Reject> {
        self.push_hash(leaf_hash(leaf))
    }

    /// Appends a leaf by its hash.
    ///
    /// # Errors
    /// As [`Frontier::push`].
    pub fn push_hash(&mut self, leaf_hash: [u8; 32]) -> Result<(), Reject> {
        let Some(size) = self.size.checked_add(1) else {
            return Err(Reject::Malformed {
                what: "log",
                why: "full",
            });
        };
        let mut hash = leaf_hash;
        for _ in 0..self.size.trailing_ones() {
            if let Some(left) = self.subtrees.pop() {
                hash = node_hash(&left, &hash);
            }
        }
        self.subtrees.push(hash);
        self.size = size;
        Ok(())
    }

    /// The log's root hash; that of the empty log is SHA-256 of nothing.
    pub fn root(&self) -> [u8; 32] {
        let mut rest = self.subtrees.iter().rev();
        let Some(last) = rest.next() else {
            return Sha256::digest(b"").into();
        };
        rest.fold(*last, |right, left| node_hash(left, &right))
    }

    /// The log as a root record names it.
    pub fn point(&self, epoch: u64) -> LogPoint {
        LogPoint {
            epoch,
            size: self.size,
            root: self.root(),
        }
    }

    /// Appends size and hashes.
    pub fn encode(&self, out: &mut Encoder) {
        out.varint(self.size);
        for hash in &self.subtrees {
            out.raw(hash);
        }
    }

    /// Reads size and hashes; the size gives the number of hashes.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when they are fewer.
    pub fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        let size = d.varint()?;
        let mut subtrees = Vec::new();
        for _ in 0..size.count_ones() {
            subtrees.push(d.array()?);
        }
        Ok(Frontier { size, subtrees })
    }
}

/// Verifies that `leaf` is at `index` in the log of `size` leaves with this root (RFC 6962, 2.1.1;
/// the algorithm of RFC 9162, 2.1.3.2).
///
/// # Errors
/// [`Reject::BadHistory`] when the proof does not show it.
pub fn verify_inclusion(
    leaf: &[u8],
    index: u64,
    size: u64,
    root: &[u8; 32],
    proof: &[[u8; 32]],
) -> Result<(), Reject> {
    let bad = Reject::BadHistory("inclusion proof does not lead to the root");
    if index >= size {
        return Err(bad);
    }
    let (mut node, mut last) = (index, size - 1);
    let mut hash = leaf_hash(leaf);
    for sibling in proof {
        if last == 0 {
            return Err(bad);
        }
        if node & 1 == 1 || node == last {
            hash = node_hash(sibling, &hash);
            while node & 1 == 0 && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            hash = node_hash(&hash, sibling);
        }
        node >>= 1;
        last >>= 1;
    }
    if last != 0 || hash != *root {
        return Err(bad);
    }
    Ok(())
}

/// Verifies that the log at `new` begins with the log at `old` (RFC 6962, 2.1.2; the algorithm of
/// RFC 9162, 2.1.4.2). Every log begins with the empty one.
///
/// [`Reject::BadHistory`] when the proof does not show it; [`Reject::Fork`] when no proof could: equal sizes
/// with different roots, or a new log that is shorter.
pub fn verify_consistency(
    old: &LogPoint,
    new: &LogPoint,
    proof: &[[u8; 32]],
) -> Result<(), Reject> {
    let bad = Reject::BadHistory("consistency proof does not lead to both roots");
    if old.epoch != new.epoch {
        return Err(bad);
    }
    if old.size > new.size {
        return Err(Reject::Fork("the log became shorter"));
    }
    if old.size == new.size && old.root != new.root {
        return Err(Reject::Fork("two logs of one size"));
    }
    if old.size == new.size || old.size == 0 {
        return if proof.is_empty() { Ok(()) } else { Err(bad) };
    }
    // A perfect old tree is its own first node. The proof does not repeat it.
    let (first, path) = match old.size.is_power_of_two() {
        true => (&old.root, proof),
        false => proof.split_first().ok_or(bad.clone())?,
    };
    let climbed = climb(old.size, new.size, *first, path);
    let (from_old, from_new) = climbed.ok_or(bad.clone())?;
    if from_old != old.root {
        return Err(bad);
    }
    if from_new != new.root {
        return Err(bad);
    }
    Ok(())
}

/// Both roots as computed from the nodes of a proof, for 0 < old size < new size.
pub(crate) fn climb(
    old_size: u64,
    new_size: u64,
    first: [u8; 32],
    path: &[[u8; 32]],
) -> Option<([u8; 32], [u8; 32])> {
    let (mut node, mut last) = (old_size.checked_sub(1)?, new_size.checked_sub(1)?);
    while node & 1 == 1 {
        node >>= 1;
        last >>= 1;
    }
    let (mut from_old, mut from_new) = (first, first);
    for sibling in path {
        if last == 0 {
            return None;
        }
        if node & 1 == 1 || node == last {
            from_old = node_hash(sibling, &from_old);
            from_new = node_hash(sibling, &from_new);
            while node & 1 == 0 && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            from_new = node_hash(&from_new, sibling);
        }
        node >>= 1;
        last >>= 1;
    }
    (last == 0).then_some((from_old, from_new))
}
