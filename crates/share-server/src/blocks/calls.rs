//! CSTORE, RETRIEVE and DECREF, and reading blocks where they lie.

use std::ops::ControlFlow;

use bytes::Bytes;
use trust::{Frame, Handle, Hasher, Record};
use wal::{Buffer, LogError, Lsn, PAGE_BYTES};

use super::Session;
use super::error::Error;
use super::gather::verify;
use super::index::Position;
use super::quota::Used;
use super::storage::{PAGE, Storage, lock};
use crate::collect::ages::Touched;

/// How often a read follows a block that moves at the same time.
pub(super) const TRIES: usize = 3;

impl Storage {
    /// CSTORE: whether the server has the block, durably. The session counts as a holder then, and the block's age
    /// begins anew.
    ///
    /// # Errors
    /// [`Error::NoSession`], [`Error::Log`], [`Error::Store`].
    pub fn cstore(&self, session: Session, handle: &Handle) -> Result<bool, Error> {
        let found = lock(&self.window).cstore(self.now(), session, handle)?;
        match found {
            Some(position) => self.make_durable(&position).map(|()| true),
            None => self
                .use_permanent(handle, || {
                    Ok(self.repository.contains(handle)?.then_some(()))
                })
                .map(|found| found.is_some()),
        }
    }

    /// RETRIEVE: the block as it was stored. The session counts as a holder then. A block that is given out is durable.
    ///
    /// # Errors
    /// [`Error::NoSession`], [`Error::Damaged`], [`Error::Log`], [`Error::Store`].
    pub fn retrieve(&self, session: Session, handle: &Handle) -> Result<Option<Record>, Error> {
        for _ in 0..TRIES {
            let found = lock(&self.window).retrieve(self.now(), session, handle)?;
            let Some(position) = found else {
                return self.use_permanent(handle, || self.read_permanent(handle));
            };
            self.make_durable(&position)?;
            if let Some(bytes) =
                self.read_temporary(&position, position.offset, position.length as usize)?
            {
                let record = record_of(*handle, bytes, &self.hasher);
                return record.map(Some).ok_or(Error::Damaged { handle: *handle });
            }
        }
        self.use_permanent(handle, || self.read_permanent(handle))
    }

    /// Looks a block of the segments up; if it is there, it is young from now on. A block that is being removed is not
    /// there.
    fn use_permanent<T>(
        &self,
        handle: &Handle,
        look: impl Fn() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let Some(ages) = self.ages.get() else {
            return look();
        };
        loop {
            let steps = ages.with(|ages| ages.steps());
            let Some(found) = look()? else {
                return Ok(None);
            };
            match ages.touch(handle, steps)? {
                Touched::Known | Touched::New(_) => return Ok(Some(found)),
                Touched::Gone => return Ok(None),
                Touched::Again => {}
            }
        }
    }

    /// DECREF: whether the block will be dropped unless somebody asks for it. It has no effect on blocks that another
    /// session refers to, and on those that are older than the window.
    ///
    /// # Errors
    /// [`Error::NoSession`].
    pub fn decref(&self, session: Session, handle: &Handle) -> Result<bool, Error> {
        lock(&self.window).decref(self.now(), session, handle)
    }

    /// What the device of this session has used of its quota.
    ///
    /// # Errors
    /// [`Error::NoSession`].
    pub fn used(&self, session: Session) -> Result<Used, Error> {
        lock(&self.window).used(session, self.day())
    }

    pub(super) fn make_durable(&self, position: &Position) -> Result<(), Error> {
        if self.log.durable().lsn < position.frame_end {
            self.log.flush(position.frame_end).wait()?;
        }
        Ok(())
    }

    pub(super) fn read_permanent(&self, handle: &Handle) -> Result<Option<Record>, Error> {
        let mut found = None;
        self.repository
            .read_blocking(&[*handle], 0, &mut |region| {
                found = Some(region.bytes);
                ControlFlow::Break(())
            })?;
        let Some(mut bytes) = found else {
            return Ok(None);
        };
        match Record::take(&mut bytes) {
            Ok(Some(record)) => Ok(Some(record)),
            _ => Err(Error::Damaged { handle: *handle }),
        }
    }

    /// Bytes of a group's pages, as they are on the device; nothing if the log has released them.
    pub(super) fn read_temporary(
        &self,
        position: &Position,
        offset: u32,
        bytes: usize,
    ) -> Result<Option<Bytes>, Error> {
        let skip = u64::from(offset) % PAGE;
        let first = Lsn(position.payload.0 + u64::from(offset) - skip);
        let pages = (skip as usize + bytes).next_multiple_of(PAGE_BYTES);
        let mut buffer = Buffer::zeroed(pages);
        match self.log.read_unverified(first, &mut buffer) {
            Ok(()) => {
                let skip = skip as usize;
                Ok(Some(Bytes::from_owner(buffer).slice(skip..skip + bytes)))
            }
            Err(LogError::Released { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The block that these bytes are, if they are.
pub(super) fn record_of(handle: Handle, bytes: Bytes, hasher: &Hasher) -> Option<Record> {
    let frame = Frame::parse(bytes).ok()?;
    let record = Record { handle, frame };
    verify(hasher, &record).ok().map(|()| record)
}
