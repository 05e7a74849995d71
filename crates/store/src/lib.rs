//! Where blocks lie, all of it untrusted.
//!
//! A [`BlockStore`] answers handles with records; nothing that it says is believed before
//! `trust::Hasher::check` has agreed. A [`Replica`] also has a head. The repository on disk, the
//! remote client (crate `wire`), memory and later caches and mirrors are all of these two traits, and
//! pass one conformance suite.

use bytes::Bytes;
pub use futures_util::future::BoxFuture;
use trust::{Frame, Handle, Record};

pub mod error;

pub use error::StoreError;

/// Blocks by handle, from somewhere that may lie.
pub trait BlockStore: Send + Sync + 'static {
    /// The place's name for people: logs, evidence, errors (`/srv/repo`, `bulla://host:port`).
    fn place(&self) -> &str;

    /// Asks for many blocks in one go.
    ///
    /// Gives back the records that the place has, in any order; a handle without a record was
    /// denied, which proves nothing. `around` is how many bytes of neighbouring records the place
    /// may add unasked (read-around, 0 for none): they come after the wanted ones.
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
}

/// A store that also says what its newest statement is: a repository or a mirror of one.
pub trait Replica: BlockStore {
    /// The head: policy chain, root record, timestamp (`trust::head`), as this place tells it.
    ///
    /// # Errors
    /// As [`BlockStore::get_many`]; [`StoreError::NoVolume`] when the place serves another volume.
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>>;
}
