//! Whether a data device is the one that a log protects. Clones of one image are alike nearly everywhere, and what one
//! log has for its own device would destroy the file system on another. So blocks are compared before anything is
//! written: those that every file system keeps, settled ones all over the device, and ones that wait in the log.
//!
//! A settled block is what the map says. A block that waits in the log has what the map says, a version that the log
//! has, or what a write that was under way has left: sectors of such a version, in a few blocks. Zeros are accepted
//! there, because a trim may have been under way. A block with a Hash in the log proves nothing here
//! ([`crate::replay`]).

use std::collections::BTreeSet;

use log::{Buffer, Recovery};

use crate::core::BLOCK_BYTES;
use crate::error::AttachError;
use crate::map::{MapError, Value};
use crate::recovery::Reading;
use crate::replay::{Replay, Version};

/// Where file systems keep what says which one it is: ext4 and xfs in block 0, btrfs at 64 KiB and 64 MiB, copies of
/// ext4 in the second group. The last block of the device is looked at too.
const KEPT: [u64; 4] = [0, 16, 16384, 32768];
/// Leaves of the map with settled blocks that are compared.
const LEAVES: u64 = 64;
/// Settled blocks that are compared, in all and of a leaf.
const MOST_SETTLED: u64 = 256;
const MOST_OF_A_LEAF: u64 = 16;
/// Blocks that wait in the log and are compared.
const MOST_WAITING: usize = 1024;
/// Blocks of a leaf of the map.
const LEAF: u64 = 256;
/// Blocks that a power cut may leave half written. A disk that was written meanwhile shares sectors too.
const MOST_TORN: usize = 32;
/// Bytes that a disk writes at once or not at all, at least.
const SECTOR_BYTES: usize = 512;

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
pub(crate) fn compare(
    reading: &Reading<'_>,
    replay: &Replay,
    recovery: &Recovery,
) -> Result<Likeness, AttachError> {
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
    let mut torn = 0;
    for (block, versions) in waiting(&replay.versions()) {
        count(match state(reading, recovery, block, versions)? {
            State::Whole => true,
            State::Torn => {
                torn += 1;
                torn <= MOST_TORN
            }
            State::Wrong => false,
        });
    }
    Ok(likeness)
}

/// Settled blocks that are not zero, all over the device.
fn sample<'a>(
    reading: &'a Reading<'_>,
    replay: &'a Replay,
) -> impl Iterator<Item = (u64, log::Digest)> + 'a {
    let blocks = reading.map.blocks();
    let leaves = blocks.div_ceil(LEAF);
    let step = leaves.div_ceil(LEAVES).max(1);
    // Few leaves, or leaves that are mostly zero, must still tell another device.
    let each = (MOST_SETTLED / leaves.div_ceil(step).max(1)).min(MOST_OF_A_LEAF) as usize;
    let leaves = (0..leaves).step_by(step as usize);
    leaves.flat_map(move |leaf| {
        let range = leaf * LEAF..blocks.min((leaf + 1) * LEAF);
        let values = reading.map.get_range(range.clone());
        let values = range.zip(values.unwrap_or_default());
        let settled = values.filter_map(|(block, value)| match value {
            Value::Digest(digest) if !replay.concerns(block) => Some((block, digest)),
            _ => None,
        });
        settled.take(each)
    })
}

/// Blocks that wait in the log, evenly spread, with all their versions there.
fn waiting(versions: &[Version]) -> impl Iterator<Item = (u64, &[Version])> {
    let blocks: Vec<&[Version]> = versions.chunk_by(|a, b| a.block == b.block).collect();
    let step = blocks.len().div_ceil(MOST_WAITING).max(1);
    let blocks = blocks.into_iter().step_by(step);
    blocks.filter_map(|versions| Some((versions.first()?.block, versions)))
}

/// What the device has of a block that waits in the log.
enum State {
    /// A content that it may have.
    Whole,
    /// Sectors of a version.
    Torn,
    /// Nothing that the log explains.
    Wrong,
}

fn state(
    reading: &Reading<'_>,
    recovery: &Recovery,
    block: u64,
    versions: &[Version],
) -> Result<State, AttachError> {
    let Some(page) = reading.page(block) else {
        return Ok(State::Wrong);
    };
    let digest = reading.digests.digest(&page);
    let has = |value| matches!(value, Value::Digest(mapped) if mapped == digest);
    let mut digests = versions.iter().map(|version| version.digest);
    if is_zero(&page) || digests.any(|of| of == digest) || has(reading.mapped(block)?) {
        return Ok(State::Whole);
    }
    let has_sectors_of = |version: &Version| {
        let of = recovery.read(version.payload, version.digest);
        // A page that the log has lost explains nothing.
        of.is_ok_and(|of| share_a_sector(&page, &of))
    };
    Ok(match versions.iter().any(has_sectors_of) {
        true => State::Torn,
        false => State::Wrong,
    })
}

fn share_a_sector(one: &[u8], other: &[u8]) -> bool {
    let sectors = |page| <[u8]>::chunks(page, SECTOR_BYTES);
    let mut pairs = sectors(one).zip(sectors(other));
    pairs.any(|(one, other)| one == other)
}

fn is_zero(page: &Buffer) -> bool {
    page[..BLOCK_BYTES].iter().all(|byte| *byte == 0)
}
