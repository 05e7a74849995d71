//! Leaves go from the temporary log to files, and from memory. Then the temporary log need not keep them.

use std::ops::Range;

use trust::encode::{Decoder, Encoder};
use trust::history::Frontier;

use super::record::StoredLeaf;
use super::{Core, HostError};
use crate::blocks::storage::lock;

impl Core {
    /// Whether leaves are to move: there are many, they are old, or the temporary log needs their space.
    pub(super) fn must_move(&self) -> bool {
        let (bytes, since) = {
            let tail = lock(&self.tail);
            (tail.bytes(), tail.since())
        };
        let Some(since) = since else {
            return false;
        };
        let age = since.elapsed();
        bytes >= self.options.move_bytes
            || age >= self.options.move_after
            || self.blocks.storage().is_pressed()
    }

    /// Moves all leaves that are durable in the temporary log to a file.
    ///
    /// # Errors
    /// [`HostError::Disk`]: nothing has moved, and the next call tries again. [`HostError::Blocks`]: the temporary log
    /// has failed.
    pub(super) fn move_leaves(&self) -> Result<(), HostError> {
        let Some((leaves, lsn)) = lock(&self.tail).whole() else {
            return Ok(());
        };
        let mut trail = lock(&self.trail).clone();
        let before = trail.frontier.clone();
        let (mut roots, mut stored) = (Vec::new(), Vec::with_capacity(leaves.len()));
        for (leaf, bytes) in leaves {
            roots.extend(trail.push(&leaf));
            stored.push(bytes);
        }
        self.leaves.append(&stored, &before, &roots)?;
        let cookie = Released::of(&trail.frontier, self.epoch).encode();
        let end = trail.frontier.size();
        let snapshot = trail.write(&*self.place.disk, self.volume, self.epoch);
        *lock(&self.trail) = trail;
        lock(&self.tail).drop_until(end);
        self.blocks.storage().release_entries(lsn, &cookie)?;
        self.blocks.look_at_space();
        // Without it the next start takes longer.
        Ok(snapshot?)
    }

    /// Leaves at these positions, which are durable, if all are in memory and no more than so many leaves and bytes.
    pub(super) fn newest(
        &self,
        range: Range<u64>,
        (most, most_bytes): (usize, usize),
    ) -> Option<Vec<StoredLeaf>> {
        let wanted = range.end.saturating_sub(range.start);
        if wanted == 0 {
            return Some(Vec::new());
        }
        let tail = lock(&self.tail);
        let leaves = tail.get(range).filter(|_| wanted <= most as u64)?;
        let leaves: Vec<StoredLeaf> = leaves.cloned().collect();
        let bytes: usize = leaves.iter().map(StoredLeaf::bytes).sum();
        (leaves.len() as u64 == wanted && bytes <= most_bytes).then_some(leaves)
    }

    /// Leaves at these positions, which are durable.
    pub(super) fn read(&self, range: Range<u64>) -> Result<Vec<StoredLeaf>, HostError> {
        let (split, newer) = {
            let tail = lock(&self.tail);
            let split = tail.first().clamp(range.start, range.end.max(range.start));
            let newer: Vec<StoredLeaf> = match tail.get(split..range.end) {
                Some(leaves) => leaves.cloned().collect(),
                None => Vec::new(),
            };
            (split, newer)
        };
        let mut leaves = self.leaves.read(range.start..split)?;
        leaves.extend(newer);
        Ok(leaves)
    }
}

/// What the temporary log remembers of the files of leaves: how many leaves they have at least, the root of so many,
/// and of which epoch of the log they are. Its records of leaves are of that epoch too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Released {
    pub size: u64,
    pub root: [u8; 32],
    pub epoch: u64,
}

impl Released {
    pub fn of(frontier: &Frontier, epoch: u64) -> Released {
        Released {
            size: frontier.size(),
            root: frontier.root(),
            epoch,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.varint(self.size).raw(&self.root);
        if self.epoch > 0 {
            out.varint(self.epoch);
        }
        out.finish()
    }

    /// Reads the cookie of the temporary log. None: no leaves have moved, or it is of a later form.
    pub fn decode(cookie: &[u8]) -> Option<Released> {
        let mut d = Decoder::new(cookie, "cookie");
        let (size, root) = (d.varint().ok()?, d.array().ok()?);
        let epoch = match d.remaining() {
            0 => 0,
            _ => d.varint().ok()?,
        };
        d.finish().ok()?;
        Some(Released { size, root, epoch })
    }
}
