//! The traits of this crate, on one page: [`BlockStore`] (blocks by handle), [`Replica`] (a store with
//! a head) and [`Objects`] (the files of a repository). Everything else here implements or wraps them.

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
