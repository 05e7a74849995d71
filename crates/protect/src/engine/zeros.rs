//! Blocks that read as zeros whatever the data device has there. Without bulla the device shows what it has, so a scrub
//! looks for anything else, and has zeros written.

use std::io;
use std::ops::Range;

use bytes::Bytes;
use wal::Piece;

use super::Engine;
use crate::block::BlockError;
use crate::core::{BLOCK_BYTES, Source, Stamp};
use crate::map::Value;

/// A block of zeros of which the data device has something else, or cannot tell.
pub(crate) struct NotZero {
    pub block: u64,
    /// From before it was read.
    stamp: Stamp,
    /// It cannot be read.
    pub error: Option<io::Error>,
}

/// What became of an attempt to write zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Zeroed {
    Written,
    /// The block may have been written since it was read.
    Changed,
    /// There is no room for it yet.
    Wait,
    /// The device takes no writes.
    Refused,
}

impl Engine {
    /// The settled blocks of zeros in the range that are not zeros on the data device. Blocks whose values are unknown
    /// are left out: reading them tells that.
    pub(crate) fn not_zero(&self, range: Range<u64>) -> Vec<NotZero> {
        let stamps: Vec<Option<Stamp>> = {
            let core = self.core();
            let stamp = |block| match core.source(block) {
                Source::Settled => Some(core.stamp(block)),
                _ => None,
            };
            range.clone().map(stamp).collect()
        };
        // The values are read after the stamps: a settled block has its value in the map before it leaves the core.
        let Ok(values) = self.map.get_range(range.clone()) else {
            return Vec::new();
        };
        let zeros = range.zip(stamps).zip(values);
        let zeros = zeros.filter(|(_, value)| *value == Value::Zero);
        let zeros: Vec<(u64, Stamp)> = zeros
            .filter_map(|((block, stamp), _)| Some((block, stamp?)))
            .collect();
        let mut found = Vec::new();
        for run in zeros.chunk_by(|(one, _), (next, _)| one + 1 == *next) {
            let (Some((first, _)), Some((last, _))) = (run.first(), run.last()) else {
                continue;
            };
            let pages = self.read_data(*first..last + 1).ok();
            for (n, (block, stamp)) in run.iter().enumerate() {
                let page = pages
                    .as_ref()
                    .map(|pages| &pages[n * BLOCK_BYTES..][..BLOCK_BYTES]);
                if page.is_some_and(is_zero) {
                    continue;
                }
                // It may have changed on the way, or only its neighbour cannot be read.
                let error = match self.read_data(*block..block + 1) {
                    Ok(page) if is_zero(&page) => continue,
                    Ok(_) => None,
                    Err(error) => Some(error),
                };
                let (block, stamp) = (*block, *stamp);
                found.push(NotZero {
                    block,
                    stamp,
                    error,
                });
            }
        }
        found
    }

    /// Writes zeros, if the block is what it was when it was read. Else it must be looked at again: what the data device
    /// had may belong to a newer write.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`] if another host has taken the devices: what it wrote is no damage.
    pub(crate) fn write_zeros(&self, found: &NotZero) -> Result<Zeroed, BlockError> {
        let page = Bytes::from(vec![0; BLOCK_BYTES]);
        let digest = self.digests.digest(&page);
        if let Some(why) = self.lease().and_then(|lease| {
            drop(lease.look());
            lease.lost()
        }) {
            let why = why.to_string();
            return Err(BlockError::ReadOnly { why });
        }
        let mut core = self.core();
        if core.stamp(found.block) != found.stamp {
            return Ok(Zeroed::Changed);
        }
        if self.failure().is_some() {
            return Ok(Zeroed::Refused);
        }
        if !core.has_room(BLOCK_BYTES) {
            return Ok(Zeroed::Wait);
        }
        core.stage(found.block, Piece { digest, page });
        drop(core);
        let offset = found.block * BLOCK_BYTES as u64;
        self.watch.repaired_block(found.block, offset);
        Ok(Zeroed::Written)
    }
}

fn is_zero(page: &[u8]) -> bool {
    page.iter().all(|byte| *byte == 0)
}
