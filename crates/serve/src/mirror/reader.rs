//! The interface of a mirror to a repository: reads that never wait, and reads that may wait for a disk.
//! (`store::BlockStore` hides the difference, and gives records one by one; a mirror sends whole regions as
//! they lie on disk.)

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use store::StoreError;
use store::disk::DiskFile;
use trust::Handle;
use wire::ObjectName;

/// Takes regions of whole records; may end the read early.
pub type Regions<'a> = dyn FnMut(Bytes) -> ControlFlow<()> + 'a;

/// An open file, and its length in bytes.
pub type OpenObject = (Arc<dyn DiskFile>, u64);

/// A repository as a mirror sees it. All methods are called from many threads.
///
/// A *region* is whole records back to back, as `trust::Record` writes them, of at most
/// [`wire::frame::MAX_ANSWER_BYTES`]. Answers hold each wanted record at most once and, unasked, records of at
/// most `around` bytes in all.
pub trait RepositoryReader: Send + Sync + 'static {
    /// The repository's name for logs.
    fn place(&self) -> &str;

    /// The newest head known, without waiting; empty when nothing has been published.
    fn head(&self) -> Bytes;

    /// Reads without waiting for a device, a few MiB at most; `None` when that is not possible.
    ///
    /// # Errors
    /// [`StoreError`] when the repository is damaged or the system fails.
    fn read_if_cached(
        &self,
        want: &[Handle],
        around: usize,
    ) -> Result<Option<Vec<Bytes>>, StoreError>;

    /// Reads, waiting as long as it takes: wanted records first, in any order.
    ///
    /// # Errors
    /// As [`RepositoryReader::read_if_cached`].
    fn read_blocking(
        &self,
        want: &[Handle],
        around: usize,
        sink: &mut Regions<'_>,
    ) -> Result<(), StoreError>;

    /// Reads a part of an immutable object, waiting as long as it takes; short at its end, `None`
    /// when there is no such object.
    ///
    /// # Errors
    /// As [`RepositoryReader::read_if_cached`].
    fn read_range(
        &self,
        object: ObjectName,
        offset: u64,
        len_bytes: usize,
    ) -> Result<Option<Bytes>, StoreError>;

    /// Opens an immutable object; `None` when there is no such object, or when objects are not
    /// files here.
    ///
    /// # Errors
    /// As [`RepositoryReader::read_if_cached`].
    fn open_object(&self, _object: ObjectName) -> Result<Option<OpenObject>, StoreError> {
        Ok(None)
    }

    /// Looks for a new head, waiting as long as it takes; true when there is one.
    ///
    /// # Errors
    /// As [`RepositoryReader::read_if_cached`]; the old head stays in use.
    fn refresh(&self) -> Result<bool, StoreError>;
}
