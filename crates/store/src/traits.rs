//! The traits of this crate, on one page: [`BlockStore`] (where blocks are read), [`BlockSink`] (where
//! blocks are put), [`Replica`] (a store with a head) and [`Objects`] (the files of a repository).
//! Everything else here implements or wraps them.

use bytes::Bytes;
pub use futures_util::future::BoxFuture;
use trust::{Frame, Handle, Record};

use crate::error::StoreError;
use crate::object::ObjectName;

/// Blocks by handle, from somewhere that may lie.
pub trait BlockStore: Send + Sync + 'static {
    /// The place's name for people: logs, evidence, errors (`/srv/repo`, `bulla://host:port`).
    fn place(&self) -> &str;

    /// Asks for many blocks in one go.
    ///
    /// Gives back the records that the place has, in any order; a handle without a record was
    /// denied, which proves nothing. `around` is how many bytes of neighbouring records the place
    /// may add unasked (read-around, 0 for none): they come after the wanted ones. A handle asked for
    /// twice is answered once.
    ///
    /// # Errors
    /// [`StoreError`] when the place did not answer, or answered with something that is no answer.
    /// There is no time-out here: the caller holds the deadline and drops the future.
    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>>;

    /// A block that can be had without waiting for a network or a runtime, if there is one.
    fn try_cached(&self, _handle: &Handle) -> Option<Frame> {
        None
    }

    /// Whether its blocks lie on this machine, so that keeping copies of them is of no use.
    fn is_local(&self) -> bool {
        false
    }
}

/// A place where blocks are put: a repository, a block server, a bucket.
///
/// Asynchronous and batched, because a sink may be behind a network; callers pipeline by having
/// several calls under way. A synchronous program makes its sink with
/// [`Blocking::Inline`](crate::blocking::Blocking) and drives it by [`wait`](crate::blocking::wait).
///
/// **What is promised when.**
/// - When `put` returns `Ok`, the sink has *accepted* the records. They may be in memory only, and
///   readers of the place may not see them yet.
/// - When `flush` returns `Ok`, every record whose `put`, and every block whose `touch`, had returned
///   `Ok` before `flush` was called is *durable*: it survives any crash of the place, and a
///   [`BlockStore`] that is opened on the place afterwards gives it out. This is the only promise of
///   durability; a sink may keep it earlier.
/// - A `flush` never succeeds over a loss. A sink that has lost an accepted record (the disk failed,
///   the connection broke) answers every further `flush` with an error. The caller then opens a new
///   sink and puts again what was not flushed.
/// - A call that fails or whose future is dropped promises nothing about its own records, which may
///   be there or not, and takes back nothing that was promised about others.
///
/// **Names.** A put is idempotent by handle: the first record of a handle stays, a later one is
/// dropped. A sink need not check that a frame is the block that its handle names; readers always do.
/// A sink that takes records from parties that do not trust one another must check, or one party can
/// occupy the names of another's blocks with garbage.
///
/// **Retention.** A place may collect blocks that nothing refers to. A block that was put or touched
/// is safe from collection for as long as the place says, counted from that call: a repository never
/// collects while a writer is open. References to it must be stored before that ends.
///
/// There is no time-out here: the caller holds the deadline and drops the future.
pub trait BlockSink: Send + Sync + 'static {
    /// Puts records, in the order in which they should lie.
    ///
    /// # Errors
    /// [`StoreError::Full`] when the place has no room for them; any other [`StoreError`] when it
    /// failed, was not reached, or refused a record.
    fn put<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Asks for blocks to be kept, as if their records were put now, and gives back the handles that
    /// the place does not have, each once: their records have to be put. Whether the records that it
    /// has are whole is not checked.
    ///
    /// # Errors
    /// As [`BlockSink::put`].
    fn touch<'a>(&'a self, handles: &'a [Handle])
    -> BoxFuture<'a, Result<Vec<Handle>, StoreError>>;

    /// Makes durable what was accepted before this call.
    ///
    /// # Errors
    /// As [`BlockSink::put`]; nothing that was put or touched since the last successful `flush` may
    /// be relied upon then.
    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>>;
}

/// A store that also says what its newest statement is: a repository or a mirror of one.
pub trait Replica: BlockStore {
    /// The head: policy chain, root record, timestamp (`trust::head`), as this place tells it.
    ///
    /// # Errors
    /// As [`BlockStore::get_many`]; [`StoreError::NoVolume`] when the place serves another volume.
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>>;

    /// The head, asked for by somebody who is going to read `path` (names with `/` between them)
    /// next: a place that answers from afar may let blocks on that way come with it, which
    /// [`BlockStore::try_cached`] and [`BlockStore::get_many`] then give out. Only a hint.
    ///
    /// # Errors
    /// As [`Replica::head`].
    fn head_toward<'a>(&'a self, _path: &'a [u8]) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        self.head()
    }

    /// The files behind it, where this is a repository that shows them.
    fn objects(&self) -> Option<&dyn Objects> {
        None
    }
}

/// The files of a repository, in place or over a network: what lies together can be had together,
/// without a question for each block. What they say is a hint; only a hash makes it more.
pub trait Objects: Send + Sync {
    /// At most `len_bytes` of an object from `offset` on: fewer at its end, `None` when there is no
    /// such object (any more). The head ([`ObjectName::Head`]) comes whole, as of one moment, when
    /// it is asked for from 0 with [`crate::head::MAX_HEAD_BYTES`]; every other object never changes.
    ///
    /// # Errors
    /// As [`BlockStore::get_many`]; [`StoreError::BadAnswer`] for more bytes than asked.
    fn range(
        &self,
        name: ObjectName,
        offset: u64,
        len_bytes: usize,
    ) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>>;
}

/// Most bytes that one [`Objects::range`] gives.
pub const MAX_RANGE_BYTES: usize = 4 << 20;
