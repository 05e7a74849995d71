//! What a collection asks of the storage: to look at blocks without using them, and to remove old ones in bounded steps.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use store::Writer;
use store::collect::Marks;
use store::names::FileId;
use store::writer::{Ages, MostSwept, Swept};
use trust::{Handle, Record};

use super::calls::{TRIES, record_of};
use super::error::Error;
use super::gather::verify;
use super::storage::{Storage, lock};
use crate::collect::book::Book;

impl Storage {
    /// From now on it is known when the blocks of the segments were used last. For the time before the first session.
    pub fn keep_ages(&self, book: Arc<Book>) {
        let _ = self.ages.set(book);
    }

    /// Begins to mark blocks of the segments.
    pub fn marks(&self) -> Marks {
        Marks::of(&self.repository)
    }

    /// Whether the temporary log has the block. The question does not count as a reference to it.
    pub fn has_temporary(&self, handle: &Handle) -> bool {
        lock(&self.window).contains(handle)
    }

    /// A block from the log or a segment. Reading it here is no reference, and does not renew its age.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Log`], [`Error::Store`].
    pub fn peek(&self, handle: &Handle) -> Result<Option<Record>, Error> {
        for _ in 0..TRIES {
            let found = lock(&self.window).peek(handle);
            let Some(position) = found else {
                break;
            };
            self.make_durable(&position)?;
            let length = position.length as usize;
            if let Some(bytes) = self.read_temporary(&position, position.offset, length)? {
                let record = record_of(*handle, bytes, &self.hasher);
                return record.map(Some).ok_or(Error::Damaged { handle: *handle });
            }
        }
        self.read_permanent(handle)
    }

    /// Whether a record is the block that its name says, however malformed.
    pub fn is_right(&self, record: &Record) -> bool {
        verify(&self.hasher, record).is_ok()
    }

    /// A step of a sweep: removes what is neither marked nor young from the first of these segments. Nothing moves to
    /// the segments meanwhile. `began`: the tick at which marking began.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Store`]: nothing is removed.
    pub fn sweep(
        &self,
        (marks, began): (&Marks, u32),
        segments: &mut VecDeque<FileId>,
        most: MostSwept,
        grace: Duration,
    ) -> Result<Swept, Error> {
        let Some(book) = self.ages.get() else {
            return Ok(Swept::default());
        };
        let mut held = lock(&self.writer);
        let writer = self.writing(&mut held)?;
        let swept = writer.sweep(marks, segments, &Judge { book, began }, most, grace);
        let is_usable = writer.is_usable();
        // Before this process has read what the step left, it would find removed blocks where they were.
        match self.repository.refresh() {
            Ok(_) => self.end_step(),
            Err(error) => {
                tracing::warn!(%error, "the index is not read after a sweep");
                *held = None;
            }
        }
        if !is_usable {
            *held = None;
        }
        Ok(swept?)
    }

    /// The writer of the segments. One that begins reads the newest index, so a step of a sweep has ended then.
    pub(super) fn writing<'a>(
        &self,
        held: &'a mut Option<Writer>,
    ) -> Result<&'a mut Writer, Error> {
        Ok(match held {
            Some(writer) => writer,
            none => {
                let writer = none.insert(Writer::begin(&self.repository)?);
                self.end_step();
                writer
            }
        })
    }

    fn end_step(&self) {
        if let Some(book) = self.ages.get() {
            book.with(|ages| ages.step_ended());
        }
    }

    /// Removes files whose grace is over.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn clear(&self) -> Result<(), Error> {
        let mut held = lock(&self.writer);
        // There is one writer at a time, and one that begins clears.
        *held = None;
        self.writing(&mut held).map(drop)
    }
}

/// The ages, for the store.
struct Judge<'a> {
    book: &'a Book,
    began: u32,
}

impl Ages for Judge<'_> {
    fn is_old(&self, segment: FileId, block: &Handle) -> bool {
        self.book.with(|ages| ages.is_old(segment, block))
    }

    fn condemn(&self, segment: FileId, block: &Handle) -> bool {
        self.book.condemn(segment, block, self.began)
    }
}
