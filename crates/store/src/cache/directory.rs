//! The directory of a disk cache: `bulla-cache` marks it and is locked while room is made; all other files are
//! segments ([`super::format`]).
//!
//! A cache removes files, and a user may name any directory. Therefore a directory with other content is
//! refused, and files with other names are neither counted nor removed. Files are opened so that a link is not
//! followed and a pipe does not block, and they are never mapped: another process may cut them.

use std::collections::HashMap;
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Error, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::OFlags;

use super::format::{HEADER_BYTES, MARK, Part, SegmentName};
use crate::StoreError;

/// Marks a directory as a cache. Created first.
const MARK_FILE: &str = "bulla-cache";
/// A new file system may contain this and counts as empty.
const LOST_AND_FOUND: &str = "lost+found";
/// Most segments that are listed. Others are not seen.
const MAX_SEGMENTS: usize = 1 << 16;
/// Neither blocks on a named pipe nor follows a symbolic link.
const CAREFUL: OFlags = OFlags::NONBLOCK.union(OFlags::NOFOLLOW);

/// A segment, as the directory lists it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listed {
    pub(super) name: SegmentName,
    /// Space that its files take on the disk, bytes.
    pub(super) disk_bytes: u64,
    /// Length of its file of records, bytes.
    pub(super) blocks_len: u64,
    /// Length of its file of keys, bytes.
    pub(super) keys_len: u64,
    /// Whether this user wrote it.
    pub(super) is_own: bool,
}

pub(super) struct Directory {
    root: PathBuf,
    place: String,
    /// Permissions of new files.
    mode: u32,
    /// Distinguishes the segments of this process from those that others begin at the same time.
    random: u64,
    begun: AtomicU64,
}

impl Directory {
    /// Opens the cache in `root`, creating it when missing.
    pub(super) fn open(root: &Path) -> Result<Directory, StoreError> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(root).map_err(failed(root))?;
        check_is_ours(root).map_err(failed(root))?;
        let metadata = fs::metadata(root).map_err(failed(root))?;
        let directory = Directory {
            root: root.to_owned(),
            place: format!("cache {}", root.display()),
            mode: file_mode(metadata.mode()),
            random: RandomState::new().build_hasher().finish(),
            begun: AtomicU64::new(0),
        };
        let mark = root.join(MARK_FILE);
        directory.make_mark().map_err(failed(&mark))?;
        // Report a directory that cannot be written now, and not at each block.
        let probe = root.join(format!("probe-{:016x}", directory.random));
        directory.create(&probe).map_err(failed(&probe))?;
        fs::remove_file(&probe).map_err(failed(&probe))?;
        Ok(directory)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// A new name for a segment of this process.
    pub(super) fn name(&self, number: u64) -> SegmentName {
        let begun = self.begun.fetch_add(1, Ordering::Relaxed);
        SegmentName {
            number: number.min(SegmentName::MAX_NUMBER),
            random: self.random.wrapping_add(begun),
        }
    }

    pub(super) fn path(&self, name: SegmentName, part: Part) -> PathBuf {
        self.root.join(name.file(part))
    }

    /// Opens a file of a segment for reading: a regular file that begins like one.
    pub(super) fn open_part(&self, name: SegmentName, part: Part) -> std::io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(CAREFUL.bits() as i32)
            .open(self.path(name, part))?;
        check_header(&file, part.header())?;
        Ok(file)
    }

    /// Makes the content of a segment durable, if it is still there.
    pub(super) fn sync(&self, name: SegmentName) -> std::io::Result<()> {
        for part in Part::BOTH {
            match self.open_part(name, part) {
                // Another process has removed it.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                file => file?.sync_data()?,
            }
        }
        Ok(())
    }

    /// Makes the names of the segments durable.
    pub(super) fn sync_names(&self) -> std::io::Result<()> {
        File::open(&self.root)?.sync_all()
    }

    /// Whether a segment has a file of records.
    pub(super) fn has(&self, name: SegmentName) -> bool {
        fs::symlink_metadata(self.path(name, Part::Blocks)).is_ok()
    }

    /// Begins both files of a segment and locks it. Fails when they exist.
    pub(super) fn begin(&self, name: SegmentName) -> std::io::Result<Writable> {
        let blocks = self.create(&self.path(name, Part::Blocks))?;
        let keys = self.create(&self.path(name, Part::Keys));
        let begun = keys.and_then(|keys| {
            try_lock(&blocks)?;
            blocks.write_all_at(Part::Blocks.header(), 0)?;
            keys.write_all_at(Part::Keys.header(), 0)?;
            Ok(keys)
        });
        match begun {
            Ok(keys) => Ok(Writable {
                name,
                blocks,
                keys,
                blocks_len: HEADER_BYTES as u64,
                keys_len: HEADER_BYTES as u64,
            }),
            Err(error) => {
                for part in Part::BOTH {
                    let _ = fs::remove_file(self.path(name, part));
                }
                Err(error)
            }
        }
    }

    /// Opens a segment of this user to write on, when no other process has it.
    pub(super) fn go_on(&self, name: SegmentName) -> std::io::Result<Writable> {
        let blocks = self.open_own(name, Part::Blocks)?;
        try_lock(&blocks)?;
        let keys = self.open_own(name, Part::Keys)?;
        // Another process may have removed it before it was locked.
        let (blocks_meta, keys_meta) = (blocks.metadata()?, keys.metadata()?);
        if blocks_meta.nlink() != 1 || keys_meta.nlink() != 1 {
            return Err(ErrorKind::NotFound.into());
        }
        let keys_bytes = keys_meta.len().saturating_sub(HEADER_BYTES as u64);
        let part = keys_bytes % super::format::KEY_BYTES as u64;
        Ok(Writable {
            name,
            blocks_len: blocks_meta.len(),
            // A part of a key, from a crash, is overwritten.
            keys_len: keys_meta.len() - part,
            blocks,
            keys,
        })
    }

    /// Opens for writing a file that this user made and that has no other name.
    fn open_own(&self, name: SegmentName, part: Part) -> std::io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(CAREFUL.bits() as i32)
            .open(self.path(name, part))?;
        check_header(&file, part.header())?;
        let metadata = file.metadata()?;
        if metadata.uid() == rustix::process::geteuid().as_raw() && metadata.nlink() == 1 {
            Ok(file)
        } else {
            Err(ErrorKind::PermissionDenied.into())
        }
    }

    /// Removes a segment, unless a process writes it. Its space is free at once, also when other processes have
    /// it open: they find it empty.
    pub(super) fn remove(&self, name: SegmentName) -> std::io::Result<()> {
        let locked = self.open_part(name, Part::Blocks);
        if let Ok(blocks) = &locked {
            try_lock(blocks)?;
        }
        let mut outcome = Ok(());
        // Keys first: without them nobody looks for the records.
        for part in [Part::Keys, Part::Blocks] {
            let own = self.open_own(name, part);
            match fs::remove_file(self.path(name, part)) {
                Ok(()) => {
                    // If this fails, the space is free when the last process closes the file.
                    let _ = own.map(|file| file.set_len(0));
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    /// Lists the segments, oldest first.
    pub(super) fn list(&self) -> std::io::Result<Vec<Listed>> {
        list(&self.root)
    }

    /// Takes the lock for making room; `None` when another process has it.
    pub(super) fn lock(&self) -> std::io::Result<Option<File>> {
        let mark = self.open_mark()?;
        match mark.try_lock() {
            Ok(()) => Ok(Some(mark)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Free space of the file system for unprivileged users, bytes.
    pub(super) fn free_bytes(&self) -> std::io::Result<u64> {
        let vfs = rustix::fs::statvfs(&self.root)?;
        Ok(vfs.f_bavail.saturating_mul(vfs.f_frsize))
    }

    fn open_mark(&self) -> std::io::Result<File> {
        open_mark(&self.root)
    }

    /// Makes the mark, or checks the one that is there.
    fn make_mark(&self) -> std::io::Result<()> {
        match self.create(&self.root.join(MARK_FILE)) {
            Ok(file) => {
                // On a full disk it stays empty, which is enough.
                let _ = file.write_all_at(MARK, 0);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => match self.open_mark() {
                // Another process may be about to write it, was killed before it did, or the disk was full.
                Ok(mark) if mark.metadata()?.len() == 0 => self.fill_mark(),
                Ok(mark) => check_header(&mark, MARK),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Writes an empty mark, if the disk has space.
    fn fill_mark(&self) -> std::io::Result<()> {
        let mark = OpenOptions::new()
            .write(true)
            .custom_flags(CAREFUL.bits() as i32)
            .open(self.root.join(MARK_FILE))?;
        let _ = mark.write_all_at(MARK, 0);
        Ok(())
    }

    /// Creates a file that must not exist.
    fn create(&self, path: &Path) -> std::io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        if self.mode != 0o600 {
            file.set_permissions(fs::Permissions::from_mode(self.mode))?;
        }
        Ok(file)
    }
}

/// Lists the segments in a directory, oldest first.
pub(super) fn list(root: &Path) -> std::io::Result<Vec<Listed>> {
    let mut segments: HashMap<SegmentName, Listed> = HashMap::new();
    for entry in fs::read_dir(root)? {
        let Ok(entry) = entry else { continue };
        let Some((name, part)) = SegmentName::parse(&entry.file_name()) else {
            continue;
        };
        // Another process may have removed the file. Links and pipes are none of the cache's.
        let metadata = entry.metadata().ok().filter(Metadata::is_file);
        let Some(metadata) = metadata else { continue };
        if segments.len() < MAX_SEGMENTS || segments.contains_key(&name) {
            let listed = segments.entry(name).or_insert_with(|| Listed::new(name));
            listed.add(part, &metadata);
        }
    }
    let mut segments: Vec<Listed> = segments.into_values().collect();
    segments.sort_unstable_by_key(|listed| listed.name);
    Ok(segments)
}

/// A segment that this process writes. The lock on its file of records says so to others.
#[derive(Debug)]
pub(super) struct Writable {
    pub(super) name: SegmentName,
    blocks: File,
    keys: File,
    pub(super) blocks_len: u64,
    pub(super) keys_len: u64,
}

impl Writable {
    /// Appends records, and then their keys. If that fails, the files are as long as before.
    pub(super) fn append(&mut self, records: &[u8], keys: &[u8]) -> std::io::Result<()> {
        let written = self
            .blocks
            .write_all_at(records, self.blocks_len)
            .and_then(|()| self.keys.write_all_at(keys, self.keys_len));
        if written.is_err() {
            // If this fails, the bytes lie between two records.
            let _ = self.blocks.set_len(self.blocks_len);
            let _ = self.keys.set_len(self.keys_len);
            return written;
        }
        self.blocks_len += records.len() as u64;
        self.keys_len += keys.len() as u64;
        Ok(())
    }
}

impl Listed {
    fn new(name: SegmentName) -> Listed {
        Listed {
            name,
            disk_bytes: 0,
            blocks_len: 0,
            keys_len: 0,
            is_own: true,
        }
    }

    fn add(&mut self, part: Part, metadata: &Metadata) {
        self.is_own &= metadata.uid() == rustix::process::geteuid().as_raw();
        let taken = metadata.blocks().saturating_mul(512);
        self.disk_bytes = self.disk_bytes.saturating_add(taken);
        match part {
            Part::Blocks => self.blocks_len = metadata.len(),
            Part::Keys => self.keys_len = metadata.len(),
        }
    }
}

/// Permissions of files in a cache directory with this mode. A group, or all users, that may write in the directory may
/// read the files of the cache: the directory was made to be shared. If they may only read it, they read no file.
fn file_mode(directory: u32) -> u32 {
    let shared = [(0o020, 0o040), (0o002, 0o004)];
    let readers = shared.iter().filter(|(write, _)| directory & write != 0);
    readers.fold(0o600, |mode, (_, read)| mode | read)
}

fn failed(path: &Path) -> impl FnOnce(Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { path, source }
}

fn open_mark(root: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(CAREFUL.bits() as i32)
        .open(root.join(MARK_FILE))?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(Error::new(ErrorKind::InvalidData, "not a regular file")),
    }
}

/// Checks that a directory may be used as a cache: it is one, or it is empty.
fn check_is_ours(root: &Path) -> std::io::Result<()> {
    let is_marked = || fs::symlink_metadata(root.join(MARK_FILE)).is_ok_and(|it| it.is_file());
    let is_empty = || -> std::io::Result<bool> {
        for entry in fs::read_dir(root)? {
            if entry?.file_name() != LOST_AND_FOUND {
                return Ok(false);
            }
        }
        Ok(true)
    };
    // Another process may be creating the same cache. It creates the mark before anything else.
    if is_empty()? || is_marked() {
        return Ok(());
    }
    let why = "the directory is not empty and is not a cache: name an empty one";
    Err(Error::new(ErrorKind::DirectoryNotEmpty, why))
}

/// Whether a regular file begins with this header.
fn check_header(file: &File, expected: &[u8; HEADER_BYTES]) -> std::io::Result<()> {
    let invalid = |why: &str| Err(Error::new(ErrorKind::InvalidData, why));
    if !file.metadata()?.is_file() {
        return invalid("not a regular file");
    }
    let mut header = [0; HEADER_BYTES];
    match file.read_exact_at(&mut header, 0) {
        Ok(()) if header == *expected => Ok(()),
        Ok(()) if header.starts_with(&expected[..8]) => {
            invalid("a cache of a later bulla: name another directory, or remove this one")
        }
        _ => invalid("not a file of a cache"),
    }
}

fn try_lock(file: &File) -> std::io::Result<()> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => ErrorKind::WouldBlock.into(),
        TryLockError::Error(error) => error,
    })
}

/// Reads a file of keys from `from` on, at most `most` bytes.
pub(super) fn read_keys(file: &File, from: u64, most: u64) -> std::io::Result<Vec<u8>> {
    use std::io::Seek;
    let mut file = file;
    file.seek(std::io::SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}
