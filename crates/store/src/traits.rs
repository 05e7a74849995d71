//! The traits of this crate, on one page: [`BlockStore`] (where blocks are read), [`BlockSink`] (where
//! blocks are put), [`Replica`] (a store with a head) and [`Objects`] (the files of a repository).
//! Everything else here implements or wraps them.

use bytes::Bytes;
pub use futures_util::future::BoxFuture;
use trust::{Frame, Handle, Record};

use crate::error::StoreError;
use crate::object::ObjectName;

/// Blocks by handle, from a place that is not trusted.
pub trait BlockStore: Send + Sync + 'static {
    /// The place's name for logs, evidence and errors (`/srv/repo`, `bulla://host:port`).
    fn place(&self) -> &str;

    /// Asks for many blocks in one request.
    ///
    /// Returns the records that the place has, in any order, each once. A handle without a record was
    /// denied, which does not prove that the block is absent. `around` is the number of bytes of
    /// neighbouring records that the place may add (read-around, 0 for none); they come after the
    /// wanted records.
    ///
    /// # Errors
    /// [`StoreError`] when the place did not answer, or gave an invalid answer. There is no time-out
    /// here: the caller holds the deadline and drops the future.
    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>>;

    /// The same for a caller that knows how long the wanted blocks are together, at most: `most_bytes` of plaintext. A
    /// place that reserves memory for its answers reserves less then, so more of them can be under way. What is longer is
    /// given all the same: the bound is a hint.
    ///
    /// # Errors
    /// As [`BlockStore::get_many`].
    fn get_within<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
        _most_bytes: u64,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        self.get_many(want, around)
    }

    /// Gets what the place needs to find many blocks, at most `most_bytes` of it: somebody is going to read a whole tree.
    /// Nothing waits for it. An error is not told; whoever asks for blocks gets it.
    fn prepare(&self, _most_bytes: u64) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Returns the block if that needs no wait for a network, a disk or a runtime.
    fn try_cached(&self, _handle: &Handle) -> Option<Frame> {
        None
    }

    /// When something came from the place for the last time, on whatever connection; `None` if that is not known. A
    /// place from which nothing comes may be mute.
    fn heard(&self) -> Option<std::time::Instant> {
        None
    }

    /// Whether the blocks are on this machine, so that caching them on disk gains nothing.
    fn is_local(&self) -> bool {
        false
    }
}

/// A place where blocks are put: a block server, a device's own place in a shared volume.
///
/// Asynchronous and batched, because a sink may be behind a network; callers pipeline by having
/// several calls under way.
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

/// A store that also has a head: a repository or a mirror of one.
pub trait Replica: BlockStore {
    /// The head of the volume as this place has it: policy chain, root record and timestamp
    /// (`trust::head`). Not verified.
    ///
    /// # Errors
    /// As [`BlockStore::get_many`]; [`StoreError::NoVolume`] when the place serves another volume.
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>>;

    /// The head, for a caller who will read `path` (names with `/` between them) next. A remote place
    /// may send blocks on that path along with the head; [`BlockStore::try_cached`] and
    /// [`BlockStore::get_many`] then return them. `path` is only a hint.
    ///
    /// # Errors
    /// As [`Replica::head`].
    fn head_toward<'a>(&'a self, _path: &'a [u8]) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        self.head()
    }

    /// The files of the repository, if this place gives access to them.
    fn objects(&self) -> Option<&dyn Objects> {
        None
    }
}

/// The files of a repository, local or remote. They let a caller fetch a range of a segment instead
/// of asking for each block. Their content is a hint until a hash proves it.
pub trait Objects: Send + Sync {
    /// Reads at most `len_bytes` of an object from `offset` on: fewer at its end, `None` when there
    /// is no such object. The head ([`ObjectName::Head`]) is consistent when it is read from 0 with
    /// [`crate::head::MAX_HEAD_BYTES`] in one call; every other object is immutable.
    ///
    /// # Errors
    /// As [`BlockStore::get_many`]; [`StoreError::BadAnswer`] when more bytes come than were asked
    /// for.
    fn range(
        &self,
        name: ObjectName,
        offset: u64,
        len_bytes: usize,
    ) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>>;
}

/// Maximum number of bytes that one [`Objects::range`] returns.
pub const MAX_RANGE_BYTES: usize = 4 << 20;
