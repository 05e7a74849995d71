//! From the temporary log to the segments, and large batches straight into them: one commit of the repository for both.
//! Then the log's space is free, unless the orderer needs its entries.

use store::Writer;
use trust::Record;
use wal::Lsn;

use super::calls::record_of;
use super::error::Error;
use super::gather::Direct;
use super::record::{BLOCKS, ENTRIES};
use super::storage::{Progress, Storage, lock};
use super::window::{Most, Moving};
use crate::collect::book::Untouched;

/// How much moves in one commit of the repository.
const MOST: Most = Most {
    bytes: 32 << 20,
    blocks: 1 << 16,
};

/// What [`Storage::advance`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moved {
    /// Blocks that went from the temporary log to the segments.
    pub moved: u64,
    /// Blocks that were dropped.
    pub dropped: u64,
    /// Blocks that went straight to the segments.
    pub direct: u64,
    /// Bytes written to segments and their index.
    pub written_bytes: u64,
}

impl Moved {
    /// Whether nothing was done.
    pub fn is_nothing(&self) -> bool {
        *self == Moved::default()
    }
}

impl Storage {
    /// Whether [`Storage::advance`] has something to do.
    pub fn has_work_for_segments(&self) -> bool {
        self.has_direct() || self.is_ripe()
    }

    /// Whether blocks wait to go straight to the segments.
    pub fn has_direct(&self) -> bool {
        !lock(&self.direct).items.is_empty()
    }

    /// Whether blocks leave the temporary log now.
    pub fn is_ripe(&self) -> bool {
        lock(&self.window).is_ripe(self.now(), self.is_pressed())
    }

    /// Whether more than half of the log is used: then blocks move before their time.
    pub fn is_pressed(&self) -> bool {
        let pressure = self.log.pressure();
        pressure.used > pressure.ring_bytes / 2
    }

    /// Drops and moves what is due, stores what goes straight to the segments, and frees the log's space. At most 32 MiB of the log at once.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Store`]: nothing has moved, the clients of the others are told, and the next call tries
    /// again. [`Error::Log`]: the log has failed.
    pub fn advance(&self) -> Result<Moved, Error> {
        let mut writer = lock(&self.writer);
        let mut direct: Vec<Direct> = std::mem::take(&mut *lock(&self.direct)).items.into();
        let pressed = self.is_pressed();
        let leaving = lock(&self.window).leaving(self.now(), pressed, MOST);
        let mut moved = Moved {
            dropped: leaving.dropped,
            ..Moved::default()
        };
        let written = self.write(&mut writer, &leaving.moves, &mut direct, &mut moved);
        if written.is_err() {
            *writer = None;
        }
        let freed = match &written {
            Ok(()) => self.free(leaving.until),
            Err(_) => Ok(()),
        };
        for batch in direct {
            match &written {
                Ok(()) => self.stored(batch),
                Err(error) => batch.job.finish(Err(error.clone())),
            }
        }
        written?;
        freed.map(|()| moved)
    }

    /// Everything before `until` is in the segments or dropped.
    fn free(&self, until: u64) -> Result<(), Error> {
        let Some(oldest) = lock(&self.window).left(until) else {
            return Ok(());
        };
        self.log.checkpoint(BLOCKS, oldest, &[])?;
        self.release_without_entries(oldest)
    }

    /// Writes blocks to segments, and makes them durable.
    fn write(
        &self,
        writer: &mut Option<Writer>,
        moves: &[Moving],
        direct: &mut [Direct],
        moved: &mut Moved,
    ) -> Result<(), Error> {
        if moves.is_empty() && direct.is_empty() {
            return Ok(());
        }
        let writer = self.writing(writer)?;
        let mut appended = false;
        for block in direct.iter_mut().flat_map(|batch| &mut batch.blocks) {
            block.is_new = self.put(writer, &block.record)?;
            appended |= block.is_new;
            moved.direct += 1;
        }
        for group in moves.chunk_by(|a, b| a.position.payload == b.position.payload) {
            appended |= self.move_group(writer, group)?;
        }
        moved.moved = moves.len() as u64;
        if appended {
            let committed = writer.checkpoint()?;
            moved.written_bytes = committed.segment_bytes + committed.index_bytes;
        }
        Ok(())
    }

    /// Appends a block to the segments, unless it is there: then it is young again. Returns whether it did.
    fn put(&self, writer: &mut Writer, record: &Record) -> Result<bool, Error> {
        let is_new = writer.append(record)?;
        if let Some(ages) = self.ages.get().filter(|_| !is_new) {
            match ages.renew(&record.handle) {
                Ok(_) | Err(Untouched::Stopped) => {}
                Err(why @ Untouched::Unkept) => return Err(why.into()),
            }
        }
        Ok(is_new)
    }

    /// Appends blocks of one record of the log to the segment, with one read. Returns whether there were new ones.
    fn move_group(&self, writer: &mut Writer, group: &[Moving]) -> Result<bool, Error> {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            return Ok(false);
        };
        // When space is needed, the newest blocks move too.
        self.make_durable(&last.position)?;
        let from = first.position.offset;
        let bytes = (last.position.offset - from) as usize + last.position.length as usize;
        let Some(pages) = self.read_temporary(&first.position, from, bytes)? else {
            return Err(Error::Log(wal::LogError::Released {
                lsn: first.position.payload,
            }));
        };
        let mut appended = false;
        for block in group {
            let at = (block.position.offset - from) as usize;
            let frame = pages.slice(at..at + block.position.length as usize);
            match record_of(block.handle, frame, &self.hasher) {
                Some(record) => appended |= self.put(writer, &record)?,
                // A damaged block must not take the place of a good copy that a client may still store.
                None => {
                    tracing::error!(handle = %block.handle, "a block is damaged in the temporary log, and lost")
                }
            }
        }
        Ok(appended)
    }

    /// The blocks of a batch that went straight to the segments are durable: what is left of it waits for the log.
    fn stored(&self, batch: Direct) {
        let mut job = batch.job;
        let stored = batch
            .blocks
            .iter()
            .map(|block| (block.number, block.is_new));
        job.stored.extend(stored);
        if job.blocks.is_empty() && job.entries.is_empty() {
            let durable = self.log.durable();
            job.finish(Ok(durable));
        } else if let Err((error, done)) = self.wait_for_log(job) {
            done(Err(error));
        }
    }

    /// Tells every batch that waits for the segments why it is not stored.
    pub(super) fn refuse_direct(&self, why: &Error) {
        for batch in std::mem::take(&mut *lock(&self.direct)).items {
            batch.job.finish(Err(why.clone()));
        }
    }

    /// Moves everything that the log holds, as far as rules allow. For an orderly stop and for tests.
    ///
    /// # Errors
    /// As [`Storage::advance`].
    pub fn settle(&self) -> Result<Moved, Error> {
        let mut all = Moved::default();
        while self.has_work_for_segments() {
            let moved = self.advance()?;
            all.moved += moved.moved;
            all.dropped += moved.dropped;
            all.direct += moved.direct;
            all.written_bytes += moved.written_bytes;
            if self.commit() == Progress::Full {
                break;
            }
        }
        Ok(all)
    }
}

impl Storage {
    /// The orderer needs no entry before `oldest`, the end of a durable frame, and keeps `cookie` for its next start.
    ///
    /// # Errors
    /// [`Error::Log`], also for a position that is not durable.
    pub fn release_entries(&self, oldest: Lsn, cookie: &[u8]) -> Result<(), Error> {
        let mut entries = lock(&self.entries);
        // The log may have gone on without entries.
        let oldest = oldest.max(entries.released);
        self.log.checkpoint(ENTRIES, oldest, cookie)?;
        entries.released = oldest;
        cookie.clone_into(&mut entries.cookie);
        entries.oldest = match entries.end <= oldest {
            true => None,
            false => entries.oldest.map(|_| oldest),
        };
        drop(entries);
        self.release_without_blocks()
    }

    /// If the log holds no blocks, it need not keep anything for them. Without this, entries alone would fill it.
    fn release_without_blocks(&self) -> Result<(), Error> {
        // Nobody else moves the blocks' oldest position.
        let _turn = lock(&self.writer);
        let durable = {
            let window = lock(&self.window);
            // Blocks that come now are in a frame that begins later.
            window.is_empty().then(|| self.log.durable().lsn)
        };
        match durable {
            Some(durable) => Ok(self.log.checkpoint(BLOCKS, durable, &[])?),
            None => Ok(()),
        }
    }

    /// What the orderer left by [`Storage::release_entries`].
    pub fn entries_cookie(&self) -> Vec<u8> {
        lock(&self.entries).cookie.clone()
    }

    /// The blocks need nothing before `oldest`. If there are no entries either, the log need not keep anything for
    /// them: up to what is durable, so that this is seldom necessary.
    pub(super) fn release_without_entries(&self, oldest: Lsn) -> Result<(), Error> {
        let mut entries = lock(&self.entries);
        if entries.oldest.is_some() || entries.released >= oldest {
            return Ok(());
        }
        // Entries that come now are in a frame that begins later.
        let durable = self.log.durable().lsn;
        self.log.checkpoint(ENTRIES, durable, &entries.cookie)?;
        entries.released = durable;
        Ok(())
    }
}
