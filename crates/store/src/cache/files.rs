//! The files of a disk cache: `HH/HANDLE` holds the record of a block (64 hexadecimal digits, `HH` the
//! first two), `new/PID.RANDOM.N` is being written, `lock` is locked while room is made.
//!
//! A cache removes files, and a user may name any directory. Therefore the directory `new` marks a
//! cache, a directory with anything else in it is refused, and files with other names are neither
//! counted nor removed.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Error, ErrorKind, IoSliceMut, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;
use trust::record::MAX_RECORD_BYTES;
use trust::{Frame, Handle, Record};

use crate::StoreError;
use crate::disk::Patience;

/// A file's modification time gives its last use with this precision.
const WORN_AFTER: Duration = Duration::from_secs(3600);
/// Files that a killed process left in `new` are removed after this time.
const LEFTOVER_AFTER: Duration = Duration::from_secs(3600);
/// Created first; marks a directory as a cache.
const NEW: &str = "new";
const LOCK: &str = "lock";
/// A new file system may contain this and counts as empty.
const LOST_AND_FOUND: &str = "lost+found";
/// Neither blocks on a named pipe nor follows a symbolic link.
const CAREFUL: OFlags = OFlags::NONBLOCK.union(OFlags::NOFOLLOW);

/// Result of reading a block from the cache.
pub(super) enum Found {
    /// The block's frame.
    Frame {
        /// The frame, not verified.
        frame: Frame,
        /// Whether its time of last use must be updated.
        worn: bool,
    },
    /// The file is not the record of this handle.
    Damaged,
    /// No such block.
    Nothing,
    /// Reading it would wait for the disk.
    NotNow,
}

/// A file of the cache.
pub(super) struct Entry {
    pub(super) path: PathBuf,
    pub(super) used: SystemTime,
    pub(super) bytes: u64,
}

pub(super) struct Files {
    root: PathBuf,
    place: String,
    /// Distinguishes processes of two containers that have the same process id.
    random: u64,
    next: AtomicU64,
}

impl Files {
    pub(super) fn open(directory: &Path) -> Result<Files, StoreError> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(directory).map_err(failed(directory))?;
        check_is_ours(directory).map_err(failed(directory))?;
        let parts = (0..=255u8).map(|byte| directory.join(format!("{byte:02x}")));
        for part in [directory.join(NEW)].into_iter().chain(parts) {
            builder.create(&part).map_err(failed(&part))?;
            if !is_directory(&part) {
                let link = Error::new(
                    ErrorKind::NotADirectory,
                    "a link, not a directory of a cache",
                );
                return Err(failed(&part)(link));
            }
        }
        let files = Files {
            root: directory.to_owned(),
            place: format!("cache {}", directory.display()),
            random: RandomState::new().build_hasher().finish(),
            next: AtomicU64::new(0),
        };
        // Report a directory that cannot be written now, and not at each block.
        let probe = files.temporary();
        create(&probe).map_err(failed(&probe))?;
        fs::remove_file(&probe).map_err(failed(&probe))?;
        Ok(files)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn path(&self, handle: &Handle) -> PathBuf {
        let mut name = String::with_capacity(64);
        for byte in handle.as_bytes() {
            name.push_str(&format!("{byte:02x}"));
        }
        let part = name.get(..2).unwrap_or_default();
        self.root.join(part).join(&name)
    }

    fn temporary(&self) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}.{:016x}.{number}", std::process::id(), self.random);
        self.root.join(NEW).join(name)
    }

    pub(super) fn read(&self, handle: &Handle, patience: Patience) -> Found {
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(CAREFUL.bits() as i32)
            .open(self.path(handle));
        let file = match opened {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Found::Nothing,
            Err(_) => return Found::Damaged,
        };
        let Ok(metadata) = file.metadata() else {
            return Found::Nothing;
        };
        let len = metadata.len() as usize;
        if !metadata.is_file() || len == 0 || len > MAX_RECORD_BYTES {
            return Found::Damaged;
        }
        let bytes = match patience {
            Patience::Wait => read_whole(file, len),
            Patience::Never => {
                let mut bytes = vec![0; len];
                let mut slices = [IoSliceMut::new(&mut bytes)];
                match rustix::io::preadv2(&file, &mut slices, 0, ReadWriteFlags::NOWAIT) {
                    Ok(read) if read == len => Ok(bytes),
                    _ => return Found::NotNow,
                }
            }
        };
        let Ok(bytes) = bytes else {
            return Found::Damaged;
        };
        let mut rest = Bytes::from(bytes);
        match Record::take(&mut rest) {
            Ok(Some(record)) if record.handle == *handle && rest.is_empty() => {
                let age = metadata.modified().ok().and_then(|m| m.elapsed().ok());
                Found::Frame {
                    frame: record.frame,
                    worn: age.is_some_and(|age| age > WORN_AFTER),
                }
            }
            _ => Found::Damaged,
        }
    }

    /// Writes a block; returns false when it is there already.
    pub(super) fn write(&self, record: &Record) -> std::io::Result<bool> {
        let path = self.path(&record.handle);
        if path.try_exists()? {
            return Ok(false);
        }
        let mut bytes = bytes::BytesMut::with_capacity(record.len());
        record.put(&mut bytes);
        let temporary = self.temporary();
        // If this fails, the file belongs to another process and is not removed.
        let mut file = create(&temporary)?;
        let written = (|| {
            file.write_all(&bytes)?;
            fs::rename(&temporary, &path)
        })();
        if written.is_err() {
            // If this fails, clear_leftovers removes the file after an hour.
            let _ = fs::remove_file(&temporary);
        }
        written.map(|()| true)
    }

    /// Sets the time of last use to now.
    pub(super) fn touch(&self, handle: &Handle) -> std::io::Result<()> {
        let file = OpenOptions::new()
            .write(true)
            .custom_flags(CAREFUL.bits() as i32)
            .open(self.path(handle))?;
        file.set_modified(SystemTime::now())
    }

    pub(super) fn remove(&self, handle: &Handle) -> std::io::Result<()> {
        let path = self.path(handle);
        fs::remove_file(&path).or_else(|e| match e.kind() {
            ErrorKind::NotFound => Ok(()),
            // A directory instead of a file.
            _ => fs::remove_dir_all(&path),
        })
    }

    /// Calls `each` for every block, in any order, with one directory listing in memory at a time.
    pub(super) fn walk(&self, mut each: impl FnMut(Entry)) {
        for byte in 0..=255u8 {
            let part = format!("{byte:02x}");
            let directory = self.root.join(&part);
            if !is_directory(&directory) {
                continue;
            }
            let Ok(entries) = fs::read_dir(directory) else {
                continue;
            };
            for entry in entries.flatten() {
                // Another process may have removed the file.
                let Ok(metadata) = entry.metadata() else {
                    continue;
                };
                if !metadata.is_file() || !is_block_of(&part, &entry.file_name()) {
                    continue;
                }
                each(Entry {
                    path: entry.path(),
                    used: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                    bytes: disk_bytes(&metadata),
                });
            }
        }
    }

    /// Removes partial files that killed processes left.
    pub(super) fn clear_leftovers(&self) {
        let Ok(entries) = fs::read_dir(self.root.join(NEW)) else {
            return;
        };
        for entry in entries.flatten() {
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if !metadata.is_file() || !is_temporary(&entry.file_name()) {
                continue;
            }
            let age = metadata.modified();
            let age = age.ok().and_then(|time| time.elapsed().ok());
            if age.is_some_and(|age| age > LEFTOVER_AFTER) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Takes the lock for making room; `None` when another process has it.
    pub(super) fn lock(&self) -> std::io::Result<Option<File>> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(CAREFUL.bits() as i32)
            .open(self.root.join(LOCK))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(e),
        }
    }

    /// Free space of the file system for unprivileged users, bytes.
    pub(super) fn free_bytes(&self) -> std::io::Result<u64> {
        let vfs = rustix::fs::statvfs(&self.root)?;
        Ok(vfs.f_bavail.saturating_mul(vfs.f_frsize))
    }
}

fn failed(path: &Path) -> impl FnOnce(Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { path, source }
}

/// Checks that a directory may be used as a cache: it is one, or it is empty.
fn check_is_ours(directory: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        // Another process may be creating the same cache; it creates `new` before anything else.
        if entry?.file_name() != LOST_AND_FOUND && !is_directory(&directory.join(NEW)) {
            let why = "the directory is not empty and is not a cache: name an empty one";
            return Err(Error::new(ErrorKind::DirectoryNotEmpty, why));
        }
    }
    Ok(())
}

/// Whether `path` is a directory, and not a link to one.
fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

/// Creates a file that must not exist.
fn create(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Whether `name` is a name that [`Files::path`] gives to a block in the directory `part`.
fn is_block_of(part: &str, name: &OsStr) -> bool {
    let name = name.as_bytes();
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.len() == 64 && name.starts_with(part.as_bytes()) && name.iter().all(is_digit)
}

/// Whether `name` is a name that [`Files::temporary`] gives.
fn is_temporary(name: &OsStr) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_random = |text: &str| text.len() == 16 && u64::from_str_radix(text, 16).is_ok();
    let mut parts = name.to_str().unwrap_or_default().split('.');
    let (process, random, number) = (parts.next(), parts.next(), parts.next());
    process.is_some_and(is_number)
        && random.is_some_and(is_random)
        && number.is_some_and(is_number)
        && parts.next().is_none()
}

fn read_whole(file: File, len: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(len);
    file.take(len as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn disk_bytes(metadata: &fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    metadata.blocks().saturating_mul(512)
}

#[cfg(test)]
mod tests;
