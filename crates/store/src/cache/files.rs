//! The files of a disk cache: `HH/HANDLE` holds the record of the block of that name (64 hexadecimal
//! digits, `HH` the first two), `new/PID.RANDOM.N` is being written, `lock` is held while room is made.
//!
//! A cache removes files, and a user may name any directory. So `new` is what tells a cache, a directory
//! with something else in it is refused, and what is not named as above is neither counted nor removed.

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

/// A file's time says when it was last used, to this precision.
const WORN_AFTER: Duration = Duration::from_secs(3600);
/// What a killed process left in `new` is removed after this.
const LEFTOVER_AFTER: Duration = Duration::from_secs(3600);
/// Made before anything else of a cache: what marks a directory as one.
const NEW: &str = "new";
const LOCK: &str = "lock";
/// What a new file system may have in it, and is empty all the same.
const LOST_AND_FOUND: &str = "lost+found";
/// Neither waits for a reader or writer that somebody planted, nor goes where a link leads.
const CAREFUL: OFlags = OFlags::NONBLOCK.union(OFlags::NOFOLLOW);

/// What a look into the cache found.
pub(super) enum Found {
    /// The block's frame, and whether its time of last use is to be brought up to date.
    Frame {
        /// As it was written, unless the disk lies.
        frame: Frame,
        /// Its time is old.
        worn: bool,
    },
    /// Something that is no record of this name.
    Damaged,
    /// No such block.
    Nothing,
    /// It would have to be waited for.
    NotNow,
}

/// One file of the cache, as a walk finds it.
pub(super) struct Entry {
    pub(super) path: PathBuf,
    pub(super) used: SystemTime,
    pub(super) bytes: u64,
}

pub(super) struct Files {
    root: PathBuf,
    place: String,
    /// Of this process alone: those of two containers may bear one number.
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
                let link = Error::new(ErrorKind::NotADirectory, "a link, and no part of a cache");
                return Err(failed(&part)(link));
            }
        }
        let files = Files {
            root: directory.to_owned(),
            place: format!("cache {}", directory.display()),
            random: RandomState::new().build_hasher().finish(),
            next: AtomicU64::new(0),
        };
        // A directory that cannot be written is told now and not at each block.
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

    /// Writes a block; false when it is there already.
    pub(super) fn write(&self, record: &Record) -> std::io::Result<bool> {
        let path = self.path(&record.handle);
        if path.try_exists()? {
            return Ok(false);
        }
        let mut bytes = bytes::BytesMut::with_capacity(record.len());
        record.put(&mut bytes);
        let temporary = self.temporary();
        // What could not be made is not ours to remove.
        let mut file = create(&temporary)?;
        let written = (|| {
            file.write_all(&bytes)?;
            fs::rename(&temporary, &path)
        })();
        if written.is_err() {
            // If it stays, it is in nobody's way for more than an hour.
            let _ = fs::remove_file(&temporary);
        }
        written.map(|()| true)
    }

    /// Notes that a block was used now.
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
            // Somebody's joke in the place of a block.
            _ => fs::remove_dir_all(&path),
        })
    }

    /// Calls `each` for every block there is, in no order, with one directory in memory.
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
                // What is gone by now was removed by another process.
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

    /// Removes what killed processes left half written.
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

    /// The right to make room, unless another process has it.
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

    /// Bytes that users without privileges can still write on this file system.
    pub(super) fn free_bytes(&self) -> std::io::Result<u64> {
        let vfs = rustix::fs::statvfs(&self.root)?;
        Ok(vfs.f_bavail.saturating_mul(vfs.f_frsize))
    }
}

fn failed(path: &Path) -> impl FnOnce(Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { path, source }
}

/// Whether a directory may be used as a cache: it is one, or nothing is in it.
fn check_is_ours(directory: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        // Another process may be making the same cache: whatever it made, it has made the mark before.
        if entry?.file_name() != LOST_AND_FOUND && !is_directory(&directory.join(NEW)) {
            let why = "the directory is not empty and is no cache: name an empty one";
            return Err(Error::new(ErrorKind::DirectoryNotEmpty, why));
        }
    }
    Ok(())
}

/// Whether a directory is there and not a link to one.
fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

/// Makes a file that was not there.
fn create(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Whether a file of the directory `part` is named as [`Files::path`] names blocks.
fn is_block_of(part: &str, name: &OsStr) -> bool {
    let name = name.as_bytes();
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.len() == 64 && name.starts_with(part.as_bytes()) && name.iter().all(is_digit)
}

/// Whether a file of `new` is named as [`Files::temporary`] names what is being written.
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
