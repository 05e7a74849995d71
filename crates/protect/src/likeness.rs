//! Whether a data device is the one that a log protects. Clones of one image are alike nearly everywhere, and what one
//! log has for its own device would destroy the file system on another. So blocks are compared before anything is
//! written: those that every file system keeps, and settled ones all over the device.
//!
//! A block that waits in the log proves nothing. The device may have any version of it: one that went home and was
//! overwritten in the log before it was settled is neither in the map nor, after a checkpoint, in the log.

use std::collections::BTreeSet;

use wal::Buffer;

use crate::core::BLOCK_BYTES;
use crate::error::AttachError;
use crate::map::{MapError, Value};
use crate::reading::Reading;
use crate::replay::Replay;

/// Where file systems keep what says which one it is: ext4 and xfs in block 0, btrfs at 64 KiB and 64 MiB, copies of
/// ext4 in the second group. The last block of the device is looked at too.
const KEPT: [u64; 4] = [0, 16, 16384, 32768];
/// Leaves of the map with settled blocks that are compared.
const LEAVES: u64 = 128;
/// Settled blocks that are compared.
const MOST_SETTLED: u64 = 512;
/// Blocks of a leaf of the map.
const LEAF: u64 = 256;
/// From so many blocks on, a comparison tells something.
const TELLING: usize = 8;
/// So many wrong blocks are those of a disk that changes some; or one in [`FEW_OF`].
const FEW: usize = 2;
const FEW_OF: usize = 50;

/// What a comparison found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Likeness {
    /// Blocks that were compared.
    pub compared: usize,
    /// Those that the log does not explain.
    pub wrong: usize,
}

impl Likeness {
    /// Whether nothing of the device is what the log says.
    pub fn is_none(self) -> bool {
        self.compared >= TELLING && self.wrong == self.compared
    }

    /// Whether more is wrong than a failing disk explains.
    pub fn is_doubtful(self) -> bool {
        self.compared >= TELLING && self.wrong > FEW.max(self.compared / FEW_OF)
    }
}

/// Compares blocks of the data device with what the log says. Nothing is written.
///
/// # Errors
/// The map cannot be read.
pub(crate) fn compare(reading: &Reading<'_>, replay: &Replay) -> Result<Likeness, AttachError> {
    let blocks = reading.map.blocks();
    let mut likeness = Likeness::default();
    let mut count = |is_right: bool| {
        likeness.compared += 1;
        likeness.wrong += usize::from(!is_right);
    };
    let mut settled = BTreeSet::new();
    let kept = KEPT.into_iter().chain([blocks - 1]);
    for block in kept.filter(|block| *block < blocks && !replay.concerns(*block)) {
        let is_right = match reading.map.get(block) {
            Ok(Value::Digest(digest)) => reading.digest(block) == Some(digest),
            Ok(Value::Zero) => reading.page(block).is_some_and(|page| is_zero(&page)),
            // A page that cannot be verified is found when its blocks are read.
            Ok(Value::Bad | Value::Unseen) | Err(MapError::Page { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        if settled.insert(block) {
            count(is_right);
        }
    }
    for (block, digest) in sample(reading, replay) {
        if settled.insert(block) {
            count(reading.digest(block) == Some(digest));
        }
    }
    Ok(likeness)
}

/// Settled blocks that are not zero, evenly spread in leaves all over the device.
fn sample<'a>(
    reading: &'a Reading<'_>,
    replay: &'a Replay,
) -> impl Iterator<Item = (u64, wal::Digest)> + 'a {
    let blocks = reading.map.blocks();
    let leaves = blocks.div_ceil(LEAF);
    let step = leaves.div_ceil(LEAVES).max(1);
    // Of few leaves, more blocks each.
    let each = (MOST_SETTLED / leaves.div_ceil(step).max(1)) as usize;
    let leaves = (0..leaves).step_by(step as usize);
    leaves.flat_map(move |leaf| {
        let range = leaf * LEAF..blocks.min((leaf + 1) * LEAF);
        let values = reading.map.get_range(range.clone());
        let values = range.zip(values.unwrap_or_default());
        let settled = values.filter_map(|(block, value)| match value {
            Value::Digest(digest) if !replay.concerns(block) => Some((block, digest)),
            _ => None,
        });
        let settled: Vec<_> = settled.collect();
        let step = settled.len().div_ceil(each).max(1);
        settled.into_iter().step_by(step)
    })
}

fn is_zero(page: &Buffer) -> bool {
    page[..BLOCK_BYTES].iter().all(|byte| *byte == 0)
}
