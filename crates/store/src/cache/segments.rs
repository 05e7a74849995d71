//! The segments of a disk cache, open for reading: finds a block by the index and reads its record.
//!
//! Other processes add segments, write on them and remove them. [`Segments::refresh`] reads what is new.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, IoSliceMut};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::io::{Errno, ReadWriteFlags};
use trust::{Frame, Handle, Record};

use super::directory::{Directory, Listed, read_keys};
use super::format::{HEADER_BYTES, KEY_BYTES, MAX_KEYS, Part, SegmentName, keys};
use super::index::{Index, Place};
use crate::disk::Patience;

/// Files of records that are open at a time.
const MAX_OPEN: usize = 128;
/// Keys that are taken in while readers wait.
const KEYS_AT_ONCE: usize = 4096;

/// Result of reading a block from the cache.
#[derive(Debug)]
pub(super) enum Found {
    /// The block's frame, not verified.
    Frame(Frame),
    /// The record of this handle is not where its key says.
    Damaged(Place),
    /// No such block.
    Nothing,
    /// Reading it would wait for the disk.
    NotNow,
}

pub(super) struct Segments {
    pub(super) directory: Directory,
    index: RwLock<Index>,
    open: Mutex<OpenFiles>,
}

/// Open files of records, by the segment. The least recently used one is closed first.
#[derive(Default)]
struct OpenFiles {
    files: HashMap<SegmentName, (Arc<File>, u64)>,
    uses: u64,
}

impl Segments {
    pub(super) fn new(directory: Directory, most_blocks: usize) -> Segments {
        Segments {
            directory,
            index: RwLock::new(Index::new(most_blocks)),
            open: Mutex::default(),
        }
    }

    pub(super) fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn find(&self, handle: &Handle) -> Option<Place> {
        self.index().find(handle)
    }

    pub(super) fn read(&self, handle: &Handle, patience: Patience) -> Found {
        let Some(place) = self.find(handle) else {
            return Found::Nothing;
        };
        let file = match self.file(place.segment) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.forget(place.segment);
                return Found::Nothing;
            }
            Err(error) if error.kind() == ErrorKind::InvalidData => return Found::Damaged(place),
            // No more files can be opened, or the permissions were changed.
            Err(_) => return Found::Nothing,
        };
        let bytes = match patience {
            Patience::Wait => read_record(&file, place),
            Patience::Never => match read_now(&file, place) {
                Some(bytes) => Ok(bytes),
                None => return Found::NotNow,
            },
        };
        match bytes.map(|bytes| take(bytes, handle)) {
            Ok(Some(frame)) => Found::Frame(frame),
            _ if was_removed(&file) => {
                self.forget(place.segment);
                Found::Nothing
            }
            _ => Found::Damaged(place),
        }
    }

    /// Tells the kernel which records will be read, so that it reads them from the disk together.
    pub(super) fn announce(&self, places: &[Place]) {
        let mut rest = places;
        while let Some((first, others)) = rest.split_first() {
            let mut end = first.end();
            let follows = |place: &&Place| {
                let near = place.segment == first.segment && u64::from(place.offset) <= end + NEAR;
                if near {
                    end = end.max(place.end());
                }
                near
            };
            let together = others.iter().take_while(follows).count();
            rest = others.get(together..).unwrap_or_default();
            if let Ok(file) = self.file(first.segment)
                && together > 0
            {
                let from = u64::from(first.offset);
                let len = std::num::NonZeroU64::new(end - from);
                // A hint: without it the records are read one by one.
                let _ = rustix::fs::fadvise(&file, from, len, rustix::fs::Advice::WillNeed);
            }
        }
    }

    /// Removes a block from the index, if it is still there.
    pub(super) fn remove(&self, handle: &Handle, place: Place) {
        self.change().remove(handle, place);
    }

    /// Forgets a segment that is gone. Gives the number of blocks that it had.
    pub(super) fn forget(&self, name: SegmentName) -> usize {
        self.opened().files.remove(&name);
        self.change().forget(name)
    }

    /// Reads the keys that were written since the last call, and forgets segments that are gone. Gives what the
    /// directory lists.
    pub(super) fn refresh(&self) -> std::io::Result<Vec<Listed>> {
        let listed = self.directory.list()?;
        let there: std::collections::HashSet<SegmentName> =
            listed.iter().map(|listed| listed.name).collect();
        let gone: Vec<SegmentName> = {
            let index = self.index();
            index
                .segments()
                .filter(|name| !there.contains(name))
                .collect()
        };
        for name in gone {
            // It may have been begun after the directory was listed.
            if !self.directory.has(name) {
                self.forget(name);
            }
        }
        // The newest first: if there are more blocks than the index takes in, the oldest are left out.
        for listed in listed.iter().rev() {
            self.read_new_keys(listed);
        }
        self.change().purge();
        Ok(listed)
    }

    /// Reads the keys of a segment that were written since the last call.
    pub(super) fn read_new_keys(&self, listed: &Listed) {
        let most = (HEADER_BYTES + MAX_KEYS * KEY_BYTES) as u64;
        let known = self.index().keys_read(listed.name);
        let from = known
            .unwrap_or(HEADER_BYTES as u64)
            .max(HEADER_BYTES as u64);
        let until = listed.keys_len.min(most);
        // Keys without records would hide copies in earlier segments.
        if until < from.saturating_add(KEY_BYTES as u64) || listed.blocks_len == 0 {
            return;
        }
        // If this fails, its blocks are not found, and the segment grows old.
        let Ok(file) = self.directory.open_part(listed.name, Part::Keys) else {
            return;
        };
        let Ok(bytes) = read_keys(&file, from, until - from) else {
            return;
        };
        let whole = bytes.len() - bytes.len() % KEY_BYTES;
        for part in bytes.chunks(KEYS_AT_ONCE * KEY_BYTES) {
            let mut index = self.change();
            let slot = index.slot(listed.name, listed.is_own);
            for key in keys(part) {
                index.insert(slot, &key);
            }
            index.read_until(slot, from + whole as u64);
        }
    }

    fn file(&self, name: SegmentName) -> std::io::Result<Arc<File>> {
        if let Some(file) = self.opened().get(name) {
            return Ok(file);
        }
        let file = Arc::new(self.directory.open_part(name, Part::Blocks)?);
        self.opened().put(name, file.clone());
        Ok(file)
    }

    fn opened(&self) -> std::sync::MutexGuard<'_, OpenFiles> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records with a smaller gap than this are read from the disk together.
const NEAR: u64 = 64 << 10;

impl Place {
    fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.len)
    }
}

impl OpenFiles {
    fn get(&mut self, name: SegmentName) -> Option<Arc<File>> {
        self.uses += 1;
        let (file, used) = self.files.get_mut(&name)?;
        *used = self.uses;
        Some(file.clone())
    }

    fn put(&mut self, name: SegmentName, file: Arc<File>) {
        if self.files.len() >= MAX_OPEN {
            let oldest = self.files.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(name) = oldest.map(|(name, _)| *name) {
                self.files.remove(&name);
            }
        }
        self.files.insert(name, (file, self.uses));
    }
}

/// The frame of the record that `bytes` are, if it is of this handle.
fn take(bytes: Vec<u8>, handle: &Handle) -> Option<Frame> {
    let mut rest = Bytes::from(bytes);
    match Record::take(&mut rest) {
        Ok(Some(record)) if record.handle == *handle && rest.is_empty() => Some(record.frame),
        _ => None,
    }
}

/// Reads the record.
///
/// # Errors
/// The system's; [`ErrorKind::UnexpectedEof`] when the file ends before. Its key is wrong then, even if the record is
/// whole: the next one that is appended would follow it.
fn read_record(file: &File, place: Place) -> std::io::Result<Vec<u8>> {
    let len = place.len as usize;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let at = u64::from(place.offset) + bytes.len() as u64;
        match rustix::io::pread(file, spare_capacity(&mut bytes), at) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    // An allocation may have more room than was asked for.
    bytes.truncate(len);
    Ok(bytes)
}

/// Reads the record if the page cache has it. If not, the kernel begins to read all of it from the disk, while the
/// caller goes to a thread that may wait: so the read asks for the whole record, and not for one byte first. It also
/// begins at the first byte: records are mostly read in the order in which they lie there, and the kernel reads ahead
/// for those who read so.
fn read_now(file: &File, place: Place) -> Option<Vec<u8>> {
    thread_local! {
        /// Memory of the last try that failed.
        static KEPT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    let len = place.len as usize;
    let mut bytes = KEPT.take();
    // A block may stay in memory for long, so it gets no more than it needs.
    if bytes.capacity() < len || bytes.capacity() > len.saturating_mul(2) {
        bytes = Vec::with_capacity(len);
    }
    bytes.resize(len, 0);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let offset = u64::from(place.offset);
    let read = rustix::io::preadv2(file, &mut slices, offset, ReadWriteFlags::NOWAIT);
    if read == Ok(len) {
        return Some(bytes);
    }
    KEPT.set(bytes);
    None
}

/// Whether a file was removed since it was opened, which makes it empty.
fn was_removed(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|it| it.nlink() == 0)
}
