//! Files of this machine in which the bytes lie that programs wrote and no log has yet: each at its own offset, so that
//! memory is bounded whatever programs write.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use share::outbox::Flight;
use share::writeback::{self, Effect, Kinds, Local, Moved, Overlay};
use tokio::sync::oneshot;

use super::failure::Failure;
use super::loss::Loss;
use crate::fuse::Error;

/// Bytes that are copied at a time.
const COPY_BYTES: u64 = 1 << 20;

/// A mount keeps local bytes in a [`Spool`].
#[derive(Debug)]
pub struct Spooled;

impl Kinds for Spooled {
    type Bytes = Arc<Spool>;
    type Blocks = Flight;
    type Waiter = oneshot::Sender<Result<(), Loss>>;
    type Loss = Loss;
}

/// A file that the kernel knows, or that is open or changed.
pub type Node = writeback::Node<Spooled>;
/// The files that the kernel knows.
pub type Nodes = writeback::Nodes<Spooled>;
/// Effects of the state machine of a file.
pub type Effects = Vec<Effect<Spooled>>;

/// Where local bytes lie.
#[derive(Debug)]
pub struct Spools {
    directory: Option<PathBuf>,
    next: AtomicU64,
}

impl Spools {
    /// In this directory, which is made if it is not there. Files that an earlier process left are removed: what they hold
    /// was never acknowledged.
    ///
    /// # Errors
    /// The system's.
    pub fn in_directory(directory: PathBuf) -> io::Result<Spools> {
        std::fs::create_dir_all(&directory)?;
        for entry in std::fs::read_dir(&directory)? {
            std::fs::remove_file(entry?.path())?;
        }
        Ok(Spools {
            directory: Some(directory),
            next: AtomicU64::new(0),
        })
    }

    /// Nowhere, for a mount that only reads. What a mount beside it keeps is left alone.
    pub fn nowhere() -> Spools {
        Spools {
            directory: None,
            next: AtomicU64::new(0),
        }
    }

    /// A place for local bytes.
    ///
    /// # Errors
    /// The system's.
    pub fn make(&self) -> io::Result<Spool> {
        let directory = self.directory.as_ref();
        let directory = directory.ok_or(io::ErrorKind::ReadOnlyFilesystem)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(number.to_string());
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        Ok(Spool { file, path })
    }
}

/// Local bytes of one file. Dropping it removes them.
#[derive(Debug)]
pub struct Spool {
    file: File,
    path: PathBuf,
}

impl Spool {
    /// Fills a buffer from an offset on.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    /// Copies local bytes of another spool to the offsets at which they are after a rebase.
    pub fn copy(&self, from: &Spool, overlay: &Overlay, moved: &Moved) -> io::Result<()> {
        let mut buffer = vec![0; COPY_BYTES as usize];
        for range in overlay.local() {
            // A range may meet the appended bytes, which move.
            let stays = range.start..range.end.min(moved.from.start);
            let moves = range.start.max(moved.from.start)..range.end;
            let to = |at: u64| moved.to.saturating_add(at.saturating_sub(moved.from.start));
            for (range, is_moved) in [(stays, false), (moves, true)] {
                let mut at = range.start;
                while at < range.end {
                    let bytes = COPY_BYTES.min(range.end - at);
                    let buffer = &mut buffer[..bytes as usize];
                    from.read(at, buffer)?;
                    self.write(if is_moved { to(at) } else { at }, buffer)?;
                    at += bytes;
                }
            }
        }
        Ok(())
    }

    /// Gives the file another name, under which it stays.
    pub fn keep_as(&self, path: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, path)
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        // It is gone if it was kept. If it cannot be removed, the next start does it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A program writes at an offset, or at the end. Gives the offset.
///
/// # Errors
/// EFBIG, [`Failure::Local`].
pub fn write(
    local: &mut Local<Arc<Spool>>,
    offset: Option<u64>,
    data: &[u8],
) -> Result<u64, Failure> {
    let at = offset.unwrap_or(local.overlay.len());
    let end = at.checked_add(data.len() as u64);
    let end = end.filter(|end| *end <= i64::MAX as u64);
    let end = end.ok_or(Error::FileTooLarge)?;
    local.bytes.write(at, data).map_err(Failure::Local)?;
    match offset {
        Some(_) => local.overlay.write(at..end),
        None => {
            local.overlay.append(data.len() as u64);
        }
    }
    Ok(at)
}
