//! Where blocks lie, all of it untrusted.
//!
//! A [`BlockStore`] answers handles with records; nothing that it says is believed before
//! `trust::Hasher::check` has agreed. A [`Replica`] also has a head. The repository on disk, the
//! remote client (crate `wire`), memory and later caches and mirrors are all of these two traits, and
//! pass one conformance suite. The map of the crate:
//!
//! | module | what lives there |
//! |---|---|
//! | [`repository`], [`read`] | a repository open for reading: index view, batched reads, read-around |
//! | [`gather`] | many wanted records as few reads, without I/O |
//! | [`writer`] | the one who appends and commits; what a crash left is cleared here |
//! | [`collect`] | what no kept version reaches gives its room back |
//! | [`rebuild`] | an index made anew from the segments |
//! | [`names`], [`format`], [`head`], [`segment`], [`index`] | the files of a repository |
//! | [`object`] | the same files as others may ask for them |
//! | [`notes`] | small files for whoever looks after it |
//! | [`disk`] | the file system under it, as a trait |
//! | [`memory`] | a replica in memory |
//! | [`late`] | a repository that may not be there yet |
//! | [`cache`] | blocks that were fetched before, on the reader's disk |
//! | [`mirrors`] | several replicas as one place to ask |
//! | `conformance` | what every replica must do (feature `conformance`) |

use std::path::PathBuf;

use bytes::Bytes;
pub use futures_util::future::BoxFuture;
use trust::{Frame, Handle, Record};

pub mod cache;
pub mod collect;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod disk;
pub mod error;
pub mod format;
pub mod gather;
pub mod head;
pub mod index;
pub mod late;
pub mod log;
pub mod memory;
pub mod mirrors;
pub mod names;
pub mod notes;
pub mod object;
pub mod read;
pub mod rebuild;
pub mod repository;
pub mod segment;
pub mod writer;

pub use error::StoreError;
pub use memory::MemoryStore;
pub use repository::Repository;
pub use writer::Writer;

use disk::Disk;
use object::ObjectName;

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
    /// it is asked for from 0 with [`head::MAX_HEAD_BYTES`]; every other object never changes.
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

/// Whether a read may wait for a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// It may.
    Wait,
    /// It gives up instead.
    Never,
}

fn io_error(disk: &dyn Disk, name: &str, source: std::io::Error) -> StoreError {
    let path: PathBuf = disk.path(name);
    StoreError::Io { path, source }
}

fn damaged(disk: &dyn Disk, name: &str, why: &str) -> StoreError {
    StoreError::Damaged {
        path: disk.path(name),
        why: why.to_owned(),
    }
}

/// Reads a small file whole; one longer than `max_bytes` is damaged.
fn read_whole(disk: &dyn Disk, name: &str, max_bytes: usize) -> Result<Vec<u8>, StoreError> {
    let fail = |e| io_error(disk, name, e);
    let file = disk.open(name).map_err(fail)?;
    let len = file.len_bytes().map_err(fail)?;
    if len > max_bytes as u64 {
        return Err(damaged(disk, name, "longer than such a file can be"));
    }
    let mut bytes = vec![0; len as usize];
    let read = file.read_at(&mut bytes, 0).map_err(fail)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Puts a file in the place of `name` in one durable step: after a crash it is the old or the new.
fn replace_file(
    disk: &dyn Disk,
    name: &str,
    temporary: &str,
    dir: &str,
    bytes: &[u8],
) -> Result<(), StoreError> {
    write_aside(disk, name, temporary, bytes)?;
    disk.sync_dir(dir).map_err(|e| io_error(disk, dir, e))
}

/// The same without the last step: the name is durable once the caller has synced the directory.
fn write_aside(
    disk: &dyn Disk,
    name: &str,
    temporary: &str,
    bytes: &[u8],
) -> Result<(), StoreError> {
    let write = || {
        let file = disk.create(temporary)?;
        file.write_at(bytes, 0)?;
        file.sync()
    };
    write().map_err(|e| io_error(disk, temporary, e))?;
    disk.rename(temporary, name)
        .map_err(|e| io_error(disk, name, e))
}
