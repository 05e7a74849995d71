//! A log that is open: appends in memory and reads. Commits are in `durable`, checkpoints in `checkpoint`.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::buffer::{PAGE, PAGE_BYTES};
use crate::device::Device;
use crate::durable::Durable;
use crate::error::{AppendError, LogError};
use crate::frame::Draft;
use crate::key::Digest;
use crate::machine::{Appended, Pressure};
use crate::position::{Lsn, Mark};
use crate::pressure::PressureAbove;
use crate::record::{Client, Record};
use crate::ring::read_payload;
use crate::shared::{Shared, lock};

/// A log that is open for writing.
pub struct Log {
    pub(crate) shared: Arc<Shared>,
}

impl Log {
    /// Appends records of one or several clients as one frame: after a crash all of them are there or none. Works
    /// in memory only; [`Log::flush`] makes the frame durable.
    ///
    /// # Errors
    /// [`AppendError`]: nothing was appended.
    pub fn append(&self, records: &[(Client, Record)]) -> Result<Appended, AppendError> {
        self.append_with(records, false)
    }

    /// Like [`Log::append`], and may use the space that `append` leaves: 33 MiB, or five sixteenths of a shorter ring.
    /// For the records that a checkpoint needs.
    ///
    /// # Errors
    /// [`AppendError`]: nothing was appended.
    pub fn append_reserved(&self, records: &[(Client, Record)]) -> Result<Appended, AppendError> {
        self.append_with(records, true)
    }

    fn append_with(
        &self,
        records: &[(Client, Record)],
        reserved: bool,
    ) -> Result<Appended, AppendError> {
        let draft = Draft::new(records)?;
        let mut state = self.shared.state();
        let appended = state.machine.append(draft, records, reserved)?;
        self.shared.wake_watchers(&mut state);
        Ok(appended)
    }

    /// A commit of everything up to `lsn`, the end of a frame. Nothing happens before it is waited for.
    pub fn flush(&self, lsn: Lsn) -> Durable {
        Durable::new(Arc::clone(&self.shared), lsn)
    }

    /// The end of the last frame that is durable.
    pub fn durable(&self) -> Mark {
        self.shared.state().machine.durable()
    }

    /// Where the next frame begins.
    pub fn end(&self) -> Lsn {
        self.shared.state().machine.end()
    }

    /// Where the log begins.
    pub fn tail(&self) -> Lsn {
        self.shared.state().machine.tail()
    }

    /// Bytes that [`Log::append`] still takes.
    pub fn free(&self) -> u64 {
        self.shared.state().machine.free(false)
    }

    /// Bytes of the ring.
    pub fn ring_bytes(&self) -> u64 {
        self.shared.layout.ring_bytes
    }

    /// Bytes of the longest frame: 9 MiB, or an eighth of a shorter ring.
    pub fn max_frame_bytes(&self) -> u64 {
        self.shared.layout.max_frame_bytes()
    }

    /// How full the ring is, and which client could free space.
    pub fn pressure(&self) -> Pressure {
        self.shared.state().machine.pressure()
    }

    /// Waits for more than `used` bytes between the tail and the end.
    pub fn pressure_above(&self, used: u64) -> PressureAbove {
        PressureAbove::new(Arc::clone(&self.shared), used)
    }

    /// How often the log has been opened, this time included.
    pub fn epoch(&self) -> u64 {
        lock(&self.shared.superblock).epoch
    }

    /// A client's own region of the device.
    pub fn area(&self, client: Client) -> Range<u64> {
        self.shared.layout.area(client)
    }

    /// The log's device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.shared.device
    }

    /// The page of payload with this digest: from memory while it is not durable, then from the ring, until a
    /// checkpoint releases it.
    ///
    /// # Errors
    /// [`LogError::Released`], [`LogError::Integrity`] if the ring holds another page, [`LogError::Io`].
    pub fn read(&self, lsn: Lsn, digest: Digest) -> Result<Bytes, LogError> {
        let shared = &*self.shared;
        {
            let state = shared.state();
            if !state.machine.holds(lsn) {
                return Err(LogError::Released { lsn });
            }
            if let Some(page) = state.machine.pending_page(lsn) {
                return Ok(page);
            }
        }
        let digests = &shared.keys.digests;
        match read_payload(&*shared.device, &shared.layout, digests, lsn, digest) {
            Ok(page) => Ok(Bytes::from_owner(page)),
            // The space may have been released and used again since.
            Err(_) if !shared.state().machine.holds(lsn) => Err(LogError::Released { lsn }),
            Err(error) => Err(error),
        }
    }
}

impl Log {
    /// Pages of payload that follow each other from `lsn` on, with these digests. One read of the device where that is
    /// possible, else as [`Log::read`] for each.
    ///
    /// # Errors
    /// As [`Log::read`], for the first page that cannot be had.
    pub fn read_run(&self, lsn: Lsn, digests: &[Digest], into: &mut [u8]) -> Result<(), LogError> {
        let shared = &*self.shared;
        let last = Lsn(lsn.0 + into.len().saturating_sub(PAGE_BYTES) as u64);
        let is_whole = {
            let machine = &shared.state().machine;
            machine.holds(lsn) && machine.holds(last) && machine.pending_page(last).is_none()
        };
        let fits = into.len() as u64 <= shared.layout.rest_of_lap(lsn);
        if is_whole && fits && shared.device.read(shared.layout.offset(lsn), into).is_ok() {
            let pages = into.chunks_exact(PAGE_BYTES);
            let mut pages = pages.zip(digests);
            if pages.all(|(page, digest)| shared.keys.digests.digest(page) == *digest) {
                return Ok(());
            }
        }
        let positions = (lsn.0..).step_by(PAGE_BYTES).map(Lsn);
        for ((page, digest), lsn) in into
            .chunks_exact_mut(PAGE_BYTES)
            .zip(digests)
            .zip(positions)
        {
            page.copy_from_slice(&self.read(lsn, *digest)?);
        }
        Ok(())
    }

    /// The page of payload with this digest, if the ring still has it, although a checkpoint may have released it: to
    /// repair what a client stored elsewhere. Nothing is promised.
    pub fn read_released(&self, lsn: Lsn, digest: Digest) -> Option<Bytes> {
        let shared = &*self.shared;
        let end = shared.state().machine.end();
        let is_in_ring = lsn < end && end.0 - lsn.0 <= shared.layout.ring_bytes;
        if !is_in_ring || !lsn.0.is_multiple_of(PAGE) {
            return None;
        }
        let digests = &shared.keys.digests;
        let page = read_payload(&*shared.device, &shared.layout, digests, lsn, digest);
        page.ok().map(Bytes::from_owner)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state();
            state.stopped = true;
            self.shared.announce(&mut state);
            self.shared.work.notify_all();
        }
        let thread = lock(&self.shared.committer).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
