//! The disk under a repository, as a trait: every call that the repository makes of a file system,
//! and [`Local`], the real one. The trait exists so that a simulator (crate `sim`) can lose, tear and
//! reorder what was not synced, and run out of space at any write (design `quality.md`, crashes).
//!
//! Names are relative to the repository's directory, with `/` between parts. There is no memory
//! mapping: a file that somebody truncates would kill a daemon that has it mapped.

mod files;
mod local;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) use files::{damaged, io_error, read_whole, replace_file, write_aside};
pub use local::Local;

/// Held while a repository is written; dropping it releases the lock.
pub type Lock = Box<dyn Send + Sync>;

/// A directory with files, as a repository uses it.
pub trait Disk: Send + Sync + 'static {
    /// The directory's name for people.
    fn place(&self) -> &str;

    /// Where a file lies, for errors.
    fn path(&self, name: &str) -> PathBuf;

    /// Makes an empty file, replacing one of that name, for writing.
    ///
    /// # Errors
    /// The system's.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a regular file for reading; anything else (a pipe, a device) is an error, not a wait.
    ///
    /// # Errors
    /// The system's; `InvalidData` for what is not a regular file.
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

    /// Makes a directory and those above it, durably; one that exists is fine.
    ///
    /// # Errors
    /// The system's.
    fn make_dir(&self, name: &str) -> io::Result<()>;

    /// Makes the names in a directory durable (`""` is the repository itself).
    ///
    /// # Errors
    /// The system's.
    fn sync_dir(&self, name: &str) -> io::Result<()>;

    /// Names in a directory, in any order; a name that is not UTF-8 is not ours and left out.
    ///
    /// # Errors
    /// The system's.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;

    /// Takes the exclusive lock that this file stands for, without waiting; `None` when it is held.
    ///
    /// # Errors
    /// The system's.
    fn lock(&self, name: &str) -> io::Result<Option<Lock>>;
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Its length, bytes.
    ///
    /// # Errors
    /// The system's.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Reads until `buf` is full or the file ends; gives the number of bytes read.
    ///
    /// # Errors
    /// The system's.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// The same without waiting for a device: `None` when the page cache does not have it all, or
    /// when the file system cannot tell.
    ///
    /// # Errors
    /// The system's.
    fn read_at_if_cached(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>>;

    /// Writes all of `bytes` at `offset`.
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
    /// It may.
    Wait,
    /// It gives up instead.
    Never,
}
