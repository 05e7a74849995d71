//! A log that is open: appends in memory and reads. Commits are in `durable`, checkpoints in `checkpoint`.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::buffer::{Buffer, PAGE, PAGE_BYTES};
use crate::device::Device;
use crate::durable::Durable;
use crate::error::{AppendError, LogError};
use crate::frame::Draft;
use crate::key::Digest;
use crate::machine::{Appended, Pressure};
use crate::position::{Lsn, Mark};
use crate::record::{Client, Record};
use crate::ring::read_payload;
use crate::shared::{Shared, lock};

/// Pages that are not further apart than this are read at once, with what lies between them.
const NEAR_BYTES: u64 = 8 << 10;
/// At most so many, so that a read has at most 2 MiB.
const NEAR_PAGES: usize = 256;

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
        state.machine.append(draft, records, reserved)
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

    /// The position before which a client needs nothing. It never goes back.
    pub fn oldest(&self, client: Client) -> Option<Lsn> {
        self.shared.state().machine.oldest(client)
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
    /// Pages of payload at these positions, in ascending order, with these digests. Pages that lie near each other are
    /// read at once. `visit` gets the number and the bytes of each; no bytes, if the ring holds another page.
    ///
    /// # Errors
    /// [`LogError::Released`] or [`LogError::Io`], for the first page that cannot be had.
    pub fn read_pages(
        &self,
        pages: &[(Lsn, Digest)],
        visit: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LogError> {
        let near = |(one, _): &(Lsn, Digest), (next, _): &(Lsn, Digest)| {
            *one < *next && next.0 - one.0 <= NEAR_BYTES
        };
        let mut number = 0;
        let mut buffer = Buffer::zeroed(0);
        for group in pages
            .chunk_by(near)
            .flat_map(|group| group.chunks(NEAR_PAGES))
        {
            let is_read = self.read_group(group, &mut buffer);
            for (lsn, digest) in group {
                let at = (lsn.0 - group[0].0.0) as usize;
                let page = buffer.get(at..at + PAGE_BYTES).filter(|_| is_read);
                match page.filter(|page| self.shared.keys.digests.digest(page) == *digest) {
                    Some(page) => visit(number, Some(page)),
                    None => match self.read(*lsn, *digest) {
                        Ok(page) => visit(number, Some(&page)),
                        Err(LogError::Integrity { .. }) => visit(number, None),
                        Err(error) => return Err(error),
                    },
                }
                number += 1;
            }
        }
        Ok(())
    }

    /// Reads from the first page of the group to the last. False if that is not possible: each is then read alone.
    fn read_group(&self, group: &[(Lsn, Digest)], buffer: &mut Buffer) -> bool {
        let shared = &*self.shared;
        let (Some((first, _)), Some((last, _))) = (group.first(), group.last()) else {
            return false;
        };
        let bytes = last.0 - first.0 + PAGE;
        let is_stored = {
            let machine = &shared.state().machine;
            let holds = machine.holds(*first) && machine.holds(*last);
            holds && machine.pending_page(*last).is_none()
        };
        if group.len() == 1 || !is_stored || bytes > shared.layout.rest_of_lap(*first) {
            return false;
        }
        if (buffer.len() as u64) < bytes {
            *buffer = Buffer::zeroed(bytes as usize);
        }
        let into = &mut buffer[..bytes as usize];
        shared
            .device
            .read(shared.layout.offset(*first), into)
            .is_ok()
    }

    /// Pages of payload as they lie on the device, from `lsn` on: for a client that verifies them by hashes of its own.
    /// They are pages of one frame, which is durable.
    ///
    /// # Errors
    /// [`LogError::Released`], also if the space was released while it was read; [`LogError::Io`].
    pub fn read_unverified(&self, lsn: Lsn, into: &mut [u8]) -> Result<(), LogError> {
        let shared = &*self.shared;
        let bytes = into.len() as u64;
        let is_stored = {
            let machine = &shared.state().machine;
            let end = lsn.0.checked_add(bytes);
            machine.holds(lsn) && end.is_some_and(|end| end <= machine.durable().lsn.0)
        };
        if !is_stored || bytes > shared.layout.rest_of_lap(lsn) {
            return Err(LogError::Released { lsn });
        }
        let offset = shared.layout.offset(lsn);
        let read = shared.device.read(offset, into);
        read.map_err(|e| LogError::io("read", offset, e))?;
        match shared.state().machine.holds(lsn) {
            true => Ok(()),
            false => Err(LogError::Released { lsn }),
        }
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
