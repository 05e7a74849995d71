//! The engine of a protected device: the state machine (`core`), the log, the map and the data device. No threads of its
//! own: each actor is three calls, *begin* (under the lock), *run* (the I/O), *end* (under the lock), which `device`
//! calls from threads and the tests' explorer calls in any order.
//!
//! | actor | what it does |
//! |---|---|
//! | commit | what is staged becomes durable in the log |
//! | home | what is durable in the log is written to the data device |
//! | settle | the data device is synced; the map gets what that made durable |
//! | checkpoint | the map is written back, and the log's tail moves |
//!
//! There is one commit, one settle and one checkpoint at a time, and a checkpoint is not beside a settle.

mod checkpoint;
mod commit;
mod home;
mod read;
mod settle;
mod write;
mod zeros;

use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use wal::{Buffer, Client, Device, DigestKey, Lease, Log, LogError, Lsn};

use crate::anchor::{AnchorError, Anchoring};
use crate::beside::Beside;
use crate::block::BlockError;
use crate::core::{BLOCK_BYTES, Core, Counts, Seq};
use crate::hosts::Held;
use crate::map::{Map, MapError};
use crate::volume::Shape;

pub use commit::{Commit, Committed};
pub use home::{Homed, Homing};
pub use settle::{SettledDone, Settling};
pub use write::Admission;
pub(crate) use zeros::{NotZero, Zeroed};

/// The client of the log that is a protected device.
pub(crate) const CLIENT: Client = Client(1);

/// The name of the data device in messages.
const DATA: &str = "the data device";
/// The name of the log's device in messages.
const LOG: &str = "the log's device";

/// A protected device that is attached. See the head of this file.
pub struct Engine {
    pub(crate) core: Mutex<Core>,
    pub(crate) log: Log,
    pub(crate) map: Arc<Map>,
    data: Arc<dyn Device>,
    shape: Shape,
    digests: DigestKey,
    anchor: Option<Anchoring>,
    failure: Mutex<Option<String>>,
    watch: Arc<dyn Watch>,
    held: Option<Held>,
    beside: OnceLock<Beside>,
    /// Readers that wait for pages of the map.
    map_readers: AtomicUsize,
    /// Memory for what goes home, one piece for each work under way.
    spare: Mutex<Vec<Buffer>>,
}

/// Told what an operator must know.
pub trait Watch: Send + Sync {
    /// Block `block` is not what was written to it, and the log does not have it. A read of it failed.
    fn bad_block(&self, block: u64, offset: u64);
    /// Block `block` was not what was written to it. It is written again: the log had it, or it is a block of zeros.
    fn repaired_block(&self, block: u64, offset: u64);
    /// A page of the map is not what was written, so nobody knows what these blocks should be, but for those with a newer
    /// version in the log. Reads of them fail until they are written.
    fn lost_blocks(&self, blocks: Range<u64>);
    /// A device failed; reads and writes may go on.
    fn device_failed(&self, device: &'static str, error: &io::Error);
    /// Nothing more is written.
    fn became_read_only(&self, why: &str);
}

/// Parts of an engine that recovery has made.
pub(crate) struct Parts {
    pub core: Core,
    pub log: Log,
    pub map: Map,
    pub data: Arc<dyn Device>,
    pub shape: Shape,
    pub digests: DigestKey,
    pub anchor: Option<Anchoring>,
    pub watch: Arc<dyn Watch>,
    pub held: Option<Held>,
}

impl Engine {
    pub(crate) fn new(parts: Parts) -> Engine {
        Engine {
            core: Mutex::new(parts.core),
            log: parts.log,
            map: Arc::new(parts.map),
            data: parts.data,
            shape: parts.shape,
            digests: parts.digests,
            anchor: parts.anchor,
            failure: Mutex::new(None),
            watch: parts.watch,
            held: parts.held,
            beside: OnceLock::new(),
            map_readers: AtomicUsize::new(0),
            spare: Mutex::default(),
        }
    }

    /// From now on pages of the map are read by `beside` while the data device is read.
    pub(crate) fn read_map_beside(&self, beside: Beside) {
        let _ = self.beside.set(beside);
    }

    /// Length and sectors of the device.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// What is not settled.
    pub fn counts(&self) -> Counts {
        self.core().counts()
    }

    /// The log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// The newest write that was accepted: a flush makes everything up to it durable.
    pub fn newest(&self) -> Seq {
        self.core().newest()
    }

    /// Whether everything that was accepted up to `seq` is durable.
    pub fn is_durable(&self, seq: Seq) -> bool {
        self.core().is_durable(seq)
    }

    /// Whether the data device has everything durably.
    pub fn is_settled(&self) -> bool {
        self.core().is_settled()
    }

    /// The oldest frame that recovery needs.
    pub fn oldest(&self) -> Lsn {
        self.core().oldest()
    }

    /// Whether a frame can be filled with what is staged.
    pub fn is_frame_staged(&self) -> bool {
        self.core().is_frame_staged()
    }

    /// Whether another trim must wait for the ones before it.
    pub fn are_trims_many(&self) -> bool {
        !self.core().has_room_for_trim()
    }

    /// Tells the operator that the data device failed.
    pub fn tell_device_failed(&self, error: &io::Error) {
        self.watch.device_failed(DATA, error);
    }

    /// The anchor, if there is one.
    pub fn anchoring(&self) -> Option<&Anchoring> {
        self.anchor.as_ref()
    }

    /// Tells the anchor what the log has durably. Called before a flush is answered.
    ///
    /// # Errors
    /// The anchor failed.
    pub fn anchor(&self) -> Result<(), EngineError> {
        match &self.anchor {
            Some(anchor) => Ok(anchor.record(self.log.durable())?),
            None => Ok(()),
        }
    }

    /// Moves the anchor to what the log has durably, even if it may lag.
    ///
    /// # Errors
    /// The anchor failed.
    pub fn anchor_now(&self) -> Result<(), EngineError> {
        self.anchor()?;
        match &self.anchor {
            Some(anchor) => Ok(anchor.flush()?),
            None => Ok(()),
        }
    }

    /// The claim that keeps other hosts away, if there is one.
    pub fn lease(&self) -> Option<&Arc<Lease>> {
        self.held.as_ref().map(Held::lease)
    }

    /// Why the device takes no more writes, if so.
    pub fn failure(&self) -> Option<String> {
        lock(&self.failure).clone()
    }

    /// Gives the claim back. Nothing may be written any more. If this fails, the next host only waits for nothing.
    pub(crate) fn give_back(&self) {
        if let Some(held) = &self.held {
            held.give_back();
        }
    }

    /// From now on nothing is written. What is in memory can still be read.
    pub fn fail(&self, why: &dyn std::fmt::Display) {
        if self.failure().is_some() {
            return;
        }
        // Another host may be the reason. Its claim says which one.
        let taken = self.lease().and_then(|lease| {
            drop(lease.look());
            lease.lost()
        });
        let mut failure = lock(&self.failure);
        if failure.is_none() {
            let why = taken.map_or_else(|| why.to_string(), |taken| taken.to_string());
            self.watch.became_read_only(&why);
            *failure = Some(why);
        }
    }

    fn refuse_if_failed(&self) -> Result<(), BlockError> {
        match self.failure() {
            Some(why) => Err(BlockError::ReadOnly { why }),
            None => Ok(()),
        }
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    /// Bytes of a block that the data device has: less than a block at its end.
    fn real_bytes(&self, block: u64) -> usize {
        let left = self.shape.bytes - block * BLOCK_BYTES as u64;
        left.min(BLOCK_BYTES as u64) as usize
    }
}

/// Why an actor could not finish.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The log refused or failed.
    #[error("the log")]
    Log(#[from] LogError),
    /// The log has no room until a checkpoint has moved its tail.
    #[error("the log is full")]
    Full,
    /// The map cannot be read or written.
    #[error("the map")]
    Map(#[from] MapError),
    /// The data device failed.
    #[error("the data device cannot be {action}")]
    Data {
        /// `written` or `synced`.
        action: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The anchor cannot be moved.
    #[error("the anchor")]
    Anchor(#[from] AnchorError),
}

impl From<wal::AppendError> for EngineError {
    fn from(error: wal::AppendError) -> EngineError {
        match error {
            wal::AppendError::Full { .. } | wal::AppendError::Unsynced { .. } => EngineError::Full,
            wal::AppendError::Invalid { why } => EngineError::Log(LogError::Invalid { why }),
            wal::AppendError::Log(error) => EngineError::Log(error),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
