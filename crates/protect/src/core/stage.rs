//! Accepting writes and trims.

use std::ops::Range;

use wal::Piece;

use super::{BLOCK_BYTES, Core, Staged, StagedTrim};

/// A point in the history of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp(u32);

impl Core {
    /// Whether another `bytes` may be staged. One request always may, so that a large one does not wait for ever.
    pub fn has_room(&self, bytes: usize) -> bool {
        let committing = self
            .committing
            .as_ref()
            .map_or(0, |batch| batch.pages.len());
        let held = (self.staged.len() + committing) * BLOCK_BYTES;
        held == 0 || held + bytes <= self.limits.staged_bytes
    }

    /// Whether a frame can be filled with what is staged.
    pub fn is_frame_staged(&self) -> bool {
        self.staged.len() * BLOCK_BYTES >= self.limits.frame_bytes
    }

    /// Whether another trim may be staged.
    pub fn has_room_for_trim(&self) -> bool {
        let committing = self
            .committing
            .as_ref()
            .map_or(0, |batch| batch.trims.len());
        self.staged_trims.len() + committing + self.trims.len() < self.limits.trims
    }

    /// Accepts a whole block.
    pub fn stage(&mut self, block: u64, piece: Piece) {
        let seq = self.take_seq();
        self.touch(block);
        match self.staged.get_mut(&block) {
            Some(staged) => {
                staged.seq = seq;
                staged.piece = piece;
            }
            None => {
                let first = seq;
                self.order.insert(first, Some(block));
                self.staged.insert(block, Staged { first, seq, piece });
            }
        }
    }

    /// Changes whenever the block may have changed: taken before a block is read, compared after.
    pub fn stamp(&self, block: u64) -> Stamp {
        Stamp(self.touched[super::class(block)])
    }

    /// Accepts a trim of whole blocks. Staged versions in the range are dropped; a flush that waits for them waits
    /// for the trim instead.
    pub fn stage_trim(&mut self, range: Range<u64>) {
        let seq = self.take_seq();
        self.touch_range(&range);
        let mut first = seq;
        let dropped: Vec<u64> = self
            .staged
            .range(range.clone())
            .map(|(block, _)| *block)
            .collect();
        for block in dropped {
            if let Some(staged) = self.staged.remove(&block) {
                self.order.remove(&staged.first);
                first = first.min(staged.first);
            }
        }
        self.order.insert(first, None);
        self.staged_trims.push(StagedTrim { first, seq, range });
    }
}
