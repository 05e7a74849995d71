//! Whether a file system has room for more. A few blocks can describe a tree that is larger than any disk, so whoever
//! writes one stops before the disk is full.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

/// What must stay free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// Files, where the file system has a limit of them.
    pub files: u64,
}

impl Default for Room {
    /// 64 MiB and 1,024 files.
    fn default() -> Room {
        Room {
            bytes: 64 << 20,
            files: 1024,
        }
    }
}

impl Room {
    /// Whether `more` bytes and one more file leave enough free in the file system of `fd`.
    ///
    /// # Errors
    /// The system's.
    pub fn is_left(&self, fd: BorrowedFd<'_>, more: u64) -> Result<bool, Errno> {
        let there = rustix::fs::fstatvfs(fd)?;
        // Some file systems of user space do not say what they have.
        if there.f_blocks == 0 {
            return Ok(true);
        }
        let free_bytes = there.f_bavail.saturating_mul(there.f_frsize);
        let few_files = there.f_files > 0 && there.f_favail < self.files;
        Ok(free_bytes >= self.bytes.saturating_add(more) && !few_files)
    }
}
