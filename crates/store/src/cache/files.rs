//! The files of a disk cache: `HH/HANDLE` holds the record of the block of that name (64 hexadecimal
//! digits, `HH` the first two), `new/PID.N` is being written, `lock` is held while room is made.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;
use trust::record::MAX_RECORD_BYTES;
use trust::{Frame, Handle, Record};

use crate::{Patience, StoreError};

/// A file's time says when it was last used, to this precision.
const WORN_AFTER: Duration = Duration::from_secs(3600);
/// What a killed process left in `new` is removed after this.
const LEFTOVER_AFTER: Duration = Duration::from_secs(3600);
const NEW: &str = "new";
const LOCK: &str = "lock";

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
    next: AtomicU64,
}

impl Files {
    pub(super) fn open(directory: &Path) -> Result<Files, StoreError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::Io { path, source }
        };
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        let parts = (0..=255u8).map(|byte| directory.join(format!("{byte:02x}")));
        for part in parts.chain([directory.join(NEW)]) {
            builder.create(&part).map_err(failed(&part))?;
        }
        let files = Files {
            root: directory.to_owned(),
            place: format!("cache {}", directory.display()),
            next: AtomicU64::new(0),
        };
        // A directory that cannot be written is told now and not at each block.
        let probe = files.temporary();
        File::create(&probe).map_err(failed(&probe))?;
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
        let name = format!("{}.{number}", std::process::id());
        self.root.join(NEW).join(name)
    }

    pub(super) fn read(&self, handle: &Handle, patience: Patience) -> Found {
        let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits() as i32)
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
        let written = (|| {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&temporary)?;
            file.write_all(&bytes)?;
            fs::rename(&temporary, &path)
        })();
        if written.is_err() {
            // If it was made at all, it is in nobody's way for more than an hour.
            let _ = fs::remove_file(&temporary);
        }
        written.map(|()| true)
    }

    /// Notes that a block was used now.
    pub(super) fn touch(&self, handle: &Handle) -> std::io::Result<()> {
        let file = OpenOptions::new()
            .write(true)
            .custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32)
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
            let Ok(entries) = fs::read_dir(self.root.join(format!("{byte:02x}"))) else {
                continue;
            };
            for entry in entries.flatten() {
                // What is gone by now was removed by another process.
                let Ok(metadata) = entry.metadata() else {
                    continue;
                };
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
            let age = entry.metadata().and_then(|m| m.modified());
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

fn read_whole(file: File, len: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(len);
    file.take(len as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn disk_bytes(metadata: &fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    metadata.blocks().saturating_mul(512)
}
