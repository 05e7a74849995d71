//! The file system under a repository, as a trait: every call that a repository makes, and
//! [`Local`], the implementation on the real file system. With the trait, a simulator (crate `sim`)
//! can lose, tear and reorder unsynced writes, and run out of space at any write.
//!
//! Names are relative to the repository's directory, with `/` between parts. Symbolic links in them are never
//! followed: a link that is planted in a repository must not lead to another file. Files are not memory
//! mapped: truncating a mapped file would kill the daemon.

mod files;
mod local;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) use files::write_aside;
pub use files::{damaged, io_error, read_file, read_whole, replace_file};
pub use local::Local;

/// The writer's lock; dropping it releases it.
pub type Lock = Box<dyn Send + Sync>;

/// A directory with files, as a repository uses it.
pub trait Disk: Send + Sync + 'static {
    /// The directory's name for logs and errors.
    fn place(&self) -> &str;

    /// The path of a file, for errors.
    fn path(&self, name: &str) -> PathBuf;

    /// Creates an empty file for writing. If the name is taken, by a file or a link, that name is removed
    /// first, and its content or target stays as it is.
    ///
    /// # Errors
    /// The system's.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a regular file for reading. Anything else (a link, a pipe, a device) is an error and never
    /// blocks.
    ///
    /// # Errors
    /// The system's; `InvalidData` for anything but a regular file.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Renames within one directory, replacing the target in one step.
    ///
    /// # Errors
    /// The system's.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Creates a directory and its parents durably; an existing one is fine.
    ///
    /// # Errors
    /// The system's.
    fn make_dir(&self, name: &str) -> io::Result<()>;

    /// Makes the names in a directory durable (`""` is the repository's directory).
    ///
    /// # Errors
    /// The system's.
    fn sync_dir(&self, name: &str) -> io::Result<()>;

    /// Lists the names in a directory, in any order, without those that are not UTF-8: no file of a
    /// repository has such a name.
    ///
    /// # Errors
    /// The system's.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;

    /// How large the file system is, and how much is free.
    ///
    /// # Errors
    /// The system's; `Unsupported` where there is no such thing.
    fn space(&self) -> io::Result<Space> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Takes an exclusive lock on this file without waiting; `None` when another holds it.
    ///
    /// # Errors
    /// The system's.
    fn lock(&self, name: &str) -> io::Result<Option<Lock>>;
}

/// The file system that a directory lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Its bytes.
    pub total_bytes: u64,
    /// Those that this program may still write.
    pub free_bytes: u64,
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Its length, bytes.
    ///
    /// # Errors
    /// The system's.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Reads until `buf` is full or the file ends; returns the number of bytes read.
    ///
    /// # Errors
    /// The system's.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Like [`DiskFile::read_at`], without waiting for a device: `None` when the page cache does not
    /// hold all of it, or when the file system cannot tell.
    ///
    /// # Errors
    /// The system's.
    fn read_at_if_cached(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>>;

    /// Writes all `bytes` at `offset`.
    ///
    /// # Errors
    /// The system's; a part may have been written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes content and length durable (not the name: that is [`Disk::sync_dir`]).
    ///
    /// # Errors
    /// The system's.
    fn sync(&self) -> io::Result<()>;
}

/// Whether a read may wait for a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// It may wait.
    Wait,
    /// It returns without a result instead.
    Never,
}
