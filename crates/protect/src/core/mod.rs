//! The state machine of a protected device (PFS 5.1 and 5.2; design `protect.md`, *Device*). Pure: no I/O, no clock, no
//! threads. The engine's actors call `*_begin`, do the I/O, and call `*_end`; in between anything may happen.
//!
//! A version of a block lives in one of these places, newest first:
//!
//! | place | what is true |
//! |---|---|
//! | `staged` | accepted; in memory only |
//! | `committing` | in a frame of the log that may not be durable |
//! | `redos`, `hashes`, `trims` | its record is durable; the data device may have it or not |
//! | the map (not here) | settled: the data device has it durably |
//!
//! A block is written to the data device only after its record is durable, and one write of a block is in flight at
//! a time. A version leaves the log when it, or a newer one, is settled, or a newer Redo or Trim is durable.

mod commit;
mod home;
mod references;
mod retired;
mod settle;
mod source;
mod stage;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use wal::{Digest, Lsn, Piece};

pub(crate) use commit::{Batch, HashRun, Logged};
pub use home::Redos;
pub(crate) use home::{HomeJob, HomePage, Outcome, Place};
pub(crate) use settle::{Settled, Written};
pub(crate) use source::Source;
pub(crate) use stage::Stamp;

use references::References;
use retired::Retired;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = wal::PAGE_BYTES;

/// Counts what was accepted. A greater number is newer; versions of one block have different numbers.
pub(crate) type Seq = u64;

/// Bounds on what is held in memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Accepted and not yet durable in the log. Writers wait above it.
    pub staged_bytes: usize,
    /// Payload of one frame.
    pub frame_bytes: usize,
    /// Pages of durable Redo records that are kept, until the data device has them, to be read and homed without
    /// reading the log.
    pub cached_bytes: usize,
    /// Payload of unsettled Hash records, which only memory has.
    pub unsettled_bytes: usize,
    /// A flush logs at most so much of what is unsettled again instead of waiting for the data device.
    pub relogged_bytes: usize,
    /// Shortest run of blocks whose digests alone are logged.
    pub hash_run_blocks: u64,
    /// Trims that are not settled. Further ones wait.
    pub trims: usize,
    /// Most bytes that are read from the log and written to the data device in one piece of work.
    pub home_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            staged_bytes: 32 << 20,
            frame_bytes: 8 << 20,
            cached_bytes: 32 << 20,
            unsettled_bytes: 32 << 20,
            relogged_bytes: 4 << 20,
            hash_run_blocks: 64,
            trims: 64,
            home_bytes: 1 << 20,
        }
    }
}

/// Bytes of a frame's header for everything but content: its fixed fields, and the records of [`Limits::trims`].
const FRAME_OVERHEAD_BYTES: usize = 3072;
/// Bytes of a frame's header for a block: a record of its own, and a digest.
const BLOCK_OVERHEAD_BYTES: usize = 64;

impl Limits {
    /// Blocks of one piece of work for the data device.
    fn home_blocks(&self) -> usize {
        (self.home_bytes / BLOCK_BYTES).max(1)
    }

    /// With frames that the log accepts, header included. One block always fits into the shortest ring.
    pub(crate) fn within(self, max_frame_bytes: u64) -> Limits {
        let content = (max_frame_bytes as usize).saturating_sub(BLOCK_BYTES);
        let blocks = (content / (BLOCK_BYTES + BLOCK_OVERHEAD_BYTES)).max(1);
        debug_assert!(
            (FRAME_OVERHEAD_BYTES + blocks * BLOCK_OVERHEAD_BYTES).next_multiple_of(BLOCK_BYTES)
                + blocks * BLOCK_BYTES
                <= max_frame_bytes as usize
        );
        Limits {
            frame_bytes: self.frame_bytes.min(blocks * BLOCK_BYTES),
            ..self
        }
    }
}

/// An accepted version that no frame has.
#[derive(Clone, Debug)]
struct Staged {
    /// When the oldest version that this one replaced was accepted: a flush that waits for that one waits for this.
    first: Seq,
    seq: Seq,
    piece: Piece,
}

/// An accepted trim that no frame has.
#[derive(Clone, Debug)]
pub(crate) struct StagedTrim {
    first: Seq,
    seq: Seq,
    /// Blocks.
    pub range: Range<u64>,
}

/// The newest durable Redo of a block.
#[derive(Clone, Debug)]
struct Redo {
    seq: Seq,
    lsn: Lsn,
    payload: Lsn,
    digest: Digest,
    page: Option<Bytes>,
    /// How often the log had another page where this one is.
    wrong: u32,
}

/// The durable Hash of a block that is not settled.
#[derive(Clone, Debug)]
struct Hash {
    seq: Seq,
    lsn: Lsn,
    piece: Piece,
}

/// A durable Trim that is not settled.
#[derive(Clone, Debug)]
struct Trim {
    seq: Seq,
    lsn: Lsn,
    range: Range<u64>,
    home: Phase,
}

/// How far the write of a version to the data device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Waiting,
    InFlight,
    Written,
}

/// The write of a block to the data device.
#[derive(Clone, Copy, Debug)]
struct Home {
    seq: Seq,
    /// The data device has it; or nobody has it, so that nothing is left to write.
    written: bool,
    /// The log has lost its content before the data device had it.
    lost: bool,
}

/// The state of a device's blocks that are not settled.
pub(crate) struct Core {
    limits: Limits,
    next: Seq,
    staged: BTreeMap<u64, Staged>,
    staged_trims: Vec<StagedTrim>,
    /// What is staged, oldest first. `None` is a trim.
    order: BTreeMap<Seq, Option<u64>>,
    committing: Option<Arc<Batch>>,
    redos: BTreeMap<u64, Redo>,
    hashes: BTreeMap<u64, Hash>,
    trims: Vec<Trim>,
    homes: HashMap<u64, Home>,
    /// Writes to the data device that have not returned.
    in_flight: usize,
    /// By the position of the page in the log.
    redos_to_home: BTreeSet<(Lsn, u64)>,
    hashes_to_home: BTreeSet<u64>,
    /// Redo records with a page in memory, oldest first. Some are homed or superseded since.
    cached: VecDeque<(u64, Seq)>,
    cached_bytes: usize,
    /// Frames that recovery needs, and those of them with unsettled Hash records.
    live: References,
    live_hashes: References,
    /// Sequence numbers of unsettled Hash records: a flush waits for them.
    unsettled: BTreeSet<Seq>,
    /// End of the newest frame of which the core knows that it is durable.
    committed_end: Lsn,
    /// Where the log may still have what was settled.
    retired: Retired,
    /// Counts, for each class of blocks, whatever makes a read of the data device or a merge out of date.
    touched: Vec<u32>,
}

const TOUCH_CLASSES: usize = 4096;

impl Core {
    /// A core with nothing unsettled, for a log that ends at `end`.
    pub fn new(limits: Limits, end: Lsn) -> Core {
        Core {
            limits,
            next: 1,
            staged: BTreeMap::new(),
            staged_trims: Vec::new(),
            order: BTreeMap::new(),
            committing: None,
            redos: BTreeMap::new(),
            hashes: BTreeMap::new(),
            trims: Vec::new(),
            homes: HashMap::new(),
            in_flight: 0,
            redos_to_home: BTreeSet::new(),
            hashes_to_home: BTreeSet::new(),
            cached: VecDeque::new(),
            cached_bytes: 0,
            live: References::default(),
            live_hashes: References::default(),
            unsettled: BTreeSet::new(),
            committed_end: end,
            retired: Retired::default(),
            touched: vec![0; TOUCH_CLASSES],
        }
    }

    /// Adds a Redo that recovery found in the log.
    pub fn recover_redo(&mut self, block: u64, lsn: Lsn, payload: Lsn, digest: Digest) {
        let seq = self.take_seq();
        self.live.add(lsn);
        self.redos_to_home.insert((payload, block));
        self.redos.insert(
            block,
            Redo {
                seq,
                lsn,
                payload,
                digest,
                page: None,
                wrong: 0,
            },
        );
    }

    /// The number of the newest accepted write or trim.
    pub fn newest(&self) -> Seq {
        self.next - 1
    }

    /// The oldest frame that recovery needs. The log may reuse everything before it once the map is written.
    pub fn oldest(&self) -> Lsn {
        self.live.first().unwrap_or(self.committed_end)
    }

    /// Whether everything that was accepted up to `seq` survives a crash: it, or a newer version, is durable in
    /// the log with its payload, or settled.
    pub fn is_durable(&self, seq: Seq) -> bool {
        let staged = self
            .order
            .first_key_value()
            .is_some_and(|(first, _)| *first <= seq);
        let committing = self
            .committing
            .as_ref()
            .is_some_and(|batch| batch.first() <= seq);
        let unsettled = self.unsettled.first().is_some_and(|hash| *hash <= seq);
        !staged && !committing && !unsettled
    }

    /// Whether nothing is left that the data device does not have durably.
    pub fn is_settled(&self) -> bool {
        self.order.is_empty()
            && self.committing.is_none()
            && self.redos.is_empty()
            && self.hashes.is_empty()
            && self.trims.is_empty()
    }

    /// Counts for `status`.
    pub fn counts(&self) -> Counts {
        let committing = self
            .committing
            .as_ref()
            .map_or(0, |batch| batch.pages.len());
        Counts {
            staged_blocks: self.staged.len() + committing,
            redo_blocks: self.redos.len(),
            hash_blocks: self.hashes.len(),
            trims: self.trims.len() + self.staged_trims.len(),
        }
    }

    fn take_seq(&mut self) -> Seq {
        self.next += 1;
        self.next - 1
    }

    fn touch(&mut self, block: u64) {
        let class = &mut self.touched[class(block)];
        *class = class.wrapping_add(1);
    }

    fn touch_range(&mut self, range: &Range<u64>) {
        let end = range
            .end
            .min(range.start.saturating_add(TOUCH_CLASSES as u64));
        (range.start..end).for_each(|block| self.touch(block));
    }
}

/// Blocks and trims that are not settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accepted, in memory only.
    pub staged_blocks: usize,
    /// Durable in the log with their content.
    pub redo_blocks: usize,
    /// Durable in the log as a digest; their content may not be durable.
    pub hash_blocks: usize,
    /// Trims.
    pub trims: usize,
}

fn class(block: u64) -> usize {
    (block % TOUCH_CLASSES as u64) as usize
}

fn contains(range: &Range<u64>, block: u64) -> bool {
    range.start <= block && block < range.end
}
