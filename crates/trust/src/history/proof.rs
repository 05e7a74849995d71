//! Proofs about a log, made from the roots of its perfect subtrees: that a leaf is in it, and which root a prefix of
//! it has.
//!
//! The proof of a prefix is the consistency proof of RFC 6962 with its first node always written out. So it can show
//! that a prefix has *another* root than somebody signed: the nodes lead to the log's root, which fixes all of them.

use bytes::Bytes;

use crate::error::Reject;
use crate::history::tiles::{TILE_HASHES, TileName, fold, subtree_root};
use crate::history::{Frontier, LogPoint, climb, node_hash};

/// Binary levels of a block of leaves.
const BLOCK_HEIGHT: u32 = TILE_HASHES.ilog2();

/// The root of the first `size` leaves of the log `of`, as `proof` shows it.
///
/// # Errors
/// [`Reject::BadHistory`] when the proof does not lead to the root of `of`, or the log is shorter.
pub fn prefix_root(size: u64, of: &LogPoint, proof: &[[u8; 32]]) -> Result<[u8; 32], Reject> {
    let bad = Reject::BadHistory("proof of a prefix does not lead to the root");
    if size == 0 || size >= of.size {
        if !proof.is_empty() || size > of.size {
            return Err(bad);
        }
        return Ok(match size {
            0 => Frontier::new().root(),
            _ => of.root,
        });
    }
    let (first, path) = proof.split_first().ok_or(bad.clone())?;
    let (prefix, all) = climb(size, of.size, *first, path).ok_or(bad.clone())?;
    if all != of.root {
        return Err(bad);
    }
    Ok(prefix)
}

/// The consistency proof of RFC 6962, 2.1.2: that the log at `new` begins with its first `old` leaves. It is made of the
/// log's tiles, and is `None` when one that it needs is missing or is not a part of that log.
pub fn consistency(
    old: u64,
    new: &LogPoint,
    tile: impl Fn(TileName) -> Option<Bytes>,
) -> Option<Vec<[u8; 32]>> {
    let subtree = |first, height| subtree_root(first, height, new.size, &tile);
    let mut proof = prefix_proof(old, new.size, &subtree)?;
    prefix_root(old, new, &proof).ok()?;
    // A perfect old tree is its own first node. The proof does not repeat it.
    if old.is_power_of_two() && !proof.is_empty() {
        proof.remove(0);
    }
    Some(proof)
}

/// The proof for [`prefix_root`] of the first `prefix` of `size` leaves, from the roots of perfect subtrees: each is asked
/// for by its first leaf and its height.
fn prefix_proof(
    prefix: u64,
    size: u64,
    subtree: &impl Fn(u64, u32) -> Option<[u8; 32]>,
) -> Option<Vec<[u8; 32]>> {
    if prefix == 0 || prefix >= size {
        return (prefix <= size).then(Vec::new);
    }
    let (mut low, mut high) = (0, size);
    let mut proof = Vec::new();
    while high != prefix {
        let middle = split(low, high)?;
        if prefix <= middle {
            proof.push(range(middle, high, subtree)?);
            high = middle;
        } else {
            proof.push(range(low, middle, subtree)?);
            low = middle;
        }
    }
    proof.push(range(low, high, subtree)?);
    proof.reverse();
    Some(proof)
}

/// The root over the leaves from `low` up to `high`, as [`prefix_proof`] asks for it.
fn range(low: u64, high: u64, subtree: &impl Fn(u64, u32) -> Option<[u8; 32]>) -> Option<[u8; 32]> {
    let mut subtrees = Vec::new();
    let mut at = low;
    while at < high {
        let height = (high - at).ilog2();
        subtrees.push(subtree(at, height)?);
        at = at.checked_add(1u64.checked_shl(height)?)?;
    }
    let mut subtrees = subtrees.into_iter().rev();
    let last = subtrees.next()?;
    Some(subtrees.fold(last, |right, left| node_hash(&left, &right)))
}

/// Roots of all full blocks of 256 leaves, and the hashes of the leaves after them: 32 bytes for each 256 leaves.
#[derive(Debug, Clone, Default)]
pub struct Roots {
    /// The log before the blocks, of whose leaves nothing is known. Its size is that of some blocks.
    before: Frontier,
    blocks: Vec<[u8; 32]>,
    last: Vec<[u8; 32]>,
}

impl Roots {
    /// The empty log.
    pub fn new() -> Roots {
        Roots::default()
    }

    /// Goes on after a log of full blocks. Proofs about its leaves and prefixes cannot be made, others can. `None`: it
    /// does not end with a full block.
    pub fn after(before: Frontier) -> Option<Roots> {
        let whole = before.size().is_multiple_of(TILE_HASHES as u64);
        whole.then(|| Roots {
            before,
            ..Roots::default()
        })
    }

    /// Appends the hash of a leaf. When a block is full its hashes are given back: a proof that goes into the block
    /// needs them again.
    pub fn push(&mut self, leaf_hash: [u8; 32]) -> Option<Vec<[u8; 32]>> {
        self.last.push(leaf_hash);
        if self.last.len() < TILE_HASHES {
            return None;
        }
        self.blocks.push(fold(&self.last));
        Some(std::mem::take(&mut self.last))
    }

    /// Number of leaves.
    pub fn size(&self) -> u64 {
        let full = (self.blocks.len() as u64).saturating_mul(TILE_HASHES as u64);
        let after = full.saturating_add(self.last.len() as u64);
        self.before.size().saturating_add(after)
    }

    /// The place of a block among those that are known.
    fn place(&self, block: u64) -> Option<usize> {
        let known = block.checked_sub(self.before.size() >> BLOCK_HEIGHT)?;
        usize::try_from(known).ok()
    }

    /// The root of the first `size` leaves. `hashes` gives the leaf hashes of a full block; it is asked for one block
    /// at most. `None` when the log is shorter, or the block is not given.
    pub fn root_at(
        &self,
        size: u64,
        hashes: impl Fn(u64) -> Option<Vec<[u8; 32]>>,
    ) -> Option<[u8; 32]> {
        if size == 0 {
            return Some(Frontier::new().root());
        }
        self.range(0, size, &hashes)
    }

    /// The proof that a leaf is in the log of `size` leaves (RFC 6962, 2.1.1).
    pub fn inclusion(
        &self,
        leaf: u64,
        size: u64,
        hashes: impl Fn(u64) -> Option<Vec<[u8; 32]>>,
    ) -> Option<Vec<[u8; 32]>> {
        let (mut low, mut high) = (0, size);
        let mut proof = Vec::new();
        if leaf >= size {
            return None;
        }
        while high.checked_sub(low)? > 1 {
            let middle = split(low, high)?;
            if leaf < middle {
                proof.push(self.range(middle, high, &hashes)?);
                high = middle;
            } else {
                proof.push(self.range(low, middle, &hashes)?);
                low = middle;
            }
        }
        proof.reverse();
        Some(proof)
    }

    /// The proof for [`prefix_root`] of the first `prefix` of `size` leaves.
    pub fn prefix(
        &self,
        prefix: u64,
        size: u64,
        hashes: impl Fn(u64) -> Option<Vec<[u8; 32]>>,
    ) -> Option<Vec<[u8; 32]>> {
        prefix_proof(prefix, size, &|first, height| {
            self.subtree(first, height, &hashes)
        })
    }

    /// The root over the leaves from `low` up to `high`, which begin at a multiple of a power of two that they do not
    /// exceed.
    fn range(
        &self,
        low: u64,
        high: u64,
        hashes: &impl Fn(u64) -> Option<Vec<[u8; 32]>>,
    ) -> Option<[u8; 32]> {
        range(low, high, &|first, height| {
            self.subtree(first, height, hashes)
        })
    }

    /// The root of a perfect subtree.
    fn subtree(
        &self,
        first: u64,
        height: u32,
        hashes: &impl Fn(u64) -> Option<Vec<[u8; 32]>>,
    ) -> Option<[u8; 32]> {
        if first < self.before.size() {
            return self.early(first, height, hashes);
        }
        let block = first >> BLOCK_HEIGHT;
        let at = self.place(block)?;
        if let Some(above) = height.checked_sub(BLOCK_HEIGHT) {
            let end = at.checked_add(1usize.checked_shl(above)?)?;
            return self.blocks.get(at..end).map(fold);
        }
        let supplied;
        let leaves = match at.cmp(&self.blocks.len()) {
            std::cmp::Ordering::Less => {
                supplied = hashes(block)?;
                supplied.as_slice()
            }
            std::cmp::Ordering::Equal => self.last.as_slice(),
            std::cmp::Ordering::Greater => return None,
        };
        let start = (first % TILE_HASHES as u64) as usize;
        leaves.get(start..start.checked_add(1 << height)?).map(fold)
    }
}

impl Roots {
    /// The root of a perfect subtree that begins before the blocks: one of the log before, or two halves.
    fn early(
        &self,
        first: u64,
        height: u32,
        hashes: &impl Fn(u64) -> Option<Vec<[u8; 32]>>,
    ) -> Option<[u8; 32]> {
        let leaves = 1u64.checked_shl(height)?;
        if first.checked_add(leaves)? <= self.before.size() {
            let mut known = self.before.subtrees();
            let found = known.find(|(at, count, _)| (*at, *count) == (first, leaves));
            return found.map(|(.., root)| root);
        }
        let half = height.checked_sub(1)?;
        let middle = first.checked_add(1u64.checked_shl(half)?)?;
        let left = self.subtree(first, half, hashes)?;
        Some(node_hash(&left, &self.subtree(middle, half, hashes)?))
    }
}

/// Where RFC 6962 splits the leaves from `low` up to `high`: after the largest power of two that is less than all.
fn split(low: u64, high: u64) -> Option<u64> {
    let leaves = high.checked_sub(low)?;
    let half = 1u64.checked_shl(leaves.checked_sub(1)?.checked_ilog2()?)?;
    low.checked_add(half)
}

#[cfg(test)]
mod tests;
