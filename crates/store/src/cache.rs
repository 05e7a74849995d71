//! Cache of frames on the reader's own disk. It is asked before any mirror, and it is not trusted either.
//!
//! Blocks lie in segments, files of some MiB that one process writes and all processes read
//! (docs/decisions/0068). Each process has a table in memory of where the blocks are, made from the
//! keys beside each segment. Nothing is synced unless a caller asks for it ([`DiskCache::sync`]), and nothing has a
//! checksum: a block that a crash tore, that is damaged or that somebody changed fails its hash, is forgotten, and is fetched and
//! written again. Security does not depend on the cache, and it may be deleted at any time.
//!
//! One thread writes, behind a bounded queue. A reader that is faster than the disk waits for a short
//! time (`room`); a block for which there is no room then is not cached. The thread keeps the quota
//! and the required free space by removing the oldest segments (`writer`).
//!
//! | module | what lives there |
//! |---|---|
//! | [`mod@format`] | the bytes: headers, names, keys |
//! | `directory` | the files, opened with care |
//! | `index` | where the blocks are, in memory |
//! | `segments` | reading |
//! | `writer` | writing, and making room |
//! | `room` | who waits for the disk, and how long |

mod directory;
pub mod format;
mod index;
mod room;
mod segments;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use trust::{Frame, Handle, Record};

use crate::blocking::Blocking;
use crate::disk::Patience;
use crate::{BlockStore, BoxFuture, StoreError};
use directory::Directory;
use format::{HEADER_BYTES, KEY_BYTES, SegmentName};
use index::Place;
use room::Room;
use segments::{Found, Segments};
use writer::Writer;

/// Maximum number and total length of blocks that wait to be written.
const MAX_QUEUED: usize = 4096;
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Each block counts for at least this many bytes in the queue, so that one counter keeps both limits.
const LEAST_QUEUED_BYTES: usize = MAX_QUEUED_BYTES / MAX_QUEUED;
/// Maximum time for which a reader waits for room in the queue.
const ROOM_PATIENCE: Duration = Duration::from_millis(50);
/// A block that is not found is looked for in what other processes wrote, once in this time.
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// The index takes in one block for each of these bytes of the quota, within these bounds.
const BYTES_A_BLOCK: u64 = 1 << 10;
const MAX_BLOCKS: std::ops::RangeInclusive<u64> = (1 << 16)..=(7 << 19);
/// Maximum time for which dropping the cache waits until the queue is written.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Limits of a [`DiskCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLimits {
    /// Disk space that all files together may take, bytes.
    pub quota_bytes: u64,
    /// Space of the file system that must stay free for others, bytes.
    pub keep_free_bytes: u64,
}

impl Default for CacheLimits {
    fn default() -> Self {
        CacheLimits {
            quota_bytes: 10 << 30,
            keep_free_bytes: 1 << 30,
        }
    }
}

/// Counters of the cache, for metrics and status.
#[derive(Debug, Default)]
pub struct Counters {
    /// Blocks found.
    pub hits: AtomicU64,
    /// Blocks not found.
    pub misses: AtomicU64,
    /// Blocks written.
    pub written: AtomicU64,
    /// Blocks not written: the queue, the quota or the disk was full, or the disk failed.
    pub refused: AtomicU64,
    /// Damaged blocks that were found and forgotten.
    pub damaged: AtomicU64,
    /// Blocks removed to make room.
    pub evicted: AtomicU64,
    /// Of those, blocks that this process had written.
    pub lost: AtomicU64,
}

/// Work for the writing thread.
enum Task {
    Put(Record),
    /// A block of this segment is damaged.
    Damaged(SegmentName),
    /// What was put before is to be durable. The answer says whether it is.
    Sync(SyncSender<std::io::Result<u64>>),
}

struct Shared {
    segments: Segments,
    limits: CacheLimits,
    counters: Counters,
    room: Room,
    used_bytes: AtomicU64,
    full: AtomicBool,
    /// Segments below this number will be removed soon.
    old_below: AtomicU64,
    /// When the segments of all processes were looked at last; `None` before the first time.
    refreshed: Mutex<Option<Instant>>,
    is_loaded: Condvar,
}

impl Shared {
    fn place(&self) -> &str {
        self.segments.directory.place()
    }

    fn is_old(&self, segment: SegmentName) -> bool {
        segment.number < self.old_below.load(Ordering::Relaxed)
    }

    fn refreshed(&self) -> MutexGuard<'_, Option<Instant>> {
        self.refreshed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The index knows the segments now.
    fn loaded(&self) {
        *self.refreshed() = Some(Instant::now());
        self.is_loaded.notify_all();
    }

    /// Looks at what other processes wrote, if the last look was some time ago. Gives whether it did.
    fn refresh(&self) -> bool {
        let mut last = self.refreshed();
        if last.is_some_and(|last| last.elapsed() < REFRESH_EVERY) {
            return false;
        }
        *last = Some(Instant::now());
        // Other readers do not wait for this one.
        drop(last);
        self.segments.refresh().is_ok()
    }

    /// Waits until the index knows the segments.
    fn wait_until_loaded(&self) -> MutexGuard<'_, Option<Instant>> {
        let waiting = self
            .is_loaded
            .wait_while(self.refreshed(), |last| last.is_none());
        waiting.unwrap_or_else(PoisonError::into_inner)
    }
}

fn queued_bytes(frame: &Frame) -> usize {
    frame.as_bytes().len().max(LEAST_QUEUED_BYTES)
}

/// What the directory of a cache holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Disk space that its blocks and their keys take, bytes.
    pub bytes: u64,
    /// Keys of blocks. A block that was written twice has two.
    pub blocks: u64,
}

impl Held {
    /// Looks at the lengths of the files, and opens none. A directory that does not exist holds nothing. Blocks.
    ///
    /// # Errors
    /// The system's.
    pub fn of(directory: &Path) -> std::io::Result<Held> {
        let listed = match directory::list(directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Held::default());
            }
            listed => listed?,
        };
        let keys = |keys_len: u64| keys_len.saturating_sub(HEADER_BYTES as u64) / KEY_BYTES as u64;
        Ok(Held {
            bytes: listed.iter().map(|it| it.disk_bytes).sum(),
            blocks: listed.iter().map(|it| keys(it.keys_len)).sum(),
        })
    }
}

/// A directory of cached blocks.
pub struct DiskCache {
    shared: Arc<Shared>,
    queue: Option<SyncSender<Task>>,
    ended: Mutex<Receiver<()>>,
}

impl std::fmt::Debug for DiskCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("DiskCache")
            .field(&self.shared.place())
            .finish()
    }
}

impl DiskCache {
    /// Opens the cache in `directory`, creating it when missing. Several volumes can share a cache:
    /// handles of different volumes differ. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the directory cannot be created or written.
    pub fn open(directory: &Path, limits: CacheLimits) -> Result<Arc<DiskCache>, StoreError> {
        let most_blocks = limits.quota_bytes / BYTES_A_BLOCK;
        let most_blocks = most_blocks.clamp(*MAX_BLOCKS.start(), *MAX_BLOCKS.end());
        let shared = Arc::new(Shared {
            segments: Segments::new(Directory::open(directory)?, most_blocks as usize),
            limits,
            counters: Counters::default(),
            room: Room::new(MAX_QUEUED_BYTES, ROOM_PATIENCE),
            used_bytes: AtomicU64::new(0),
            full: AtomicBool::new(false),
            old_below: AtomicU64::new(0),
            refreshed: Mutex::new(None),
            is_loaded: Condvar::new(),
        });
        let (queue, tasks) = sync_channel(MAX_QUEUED);
        let (end, ended) = sync_channel(1);
        let writer = Writer::new(shared.clone());
        std::thread::Builder::new()
            .name("disk-cache".to_owned())
            .spawn(move || {
                writer.run(&tasks);
                drop(end);
            })
            .map_err(|source| StoreError::Io {
                path: directory.to_owned(),
                source,
            })?;
        Ok(Arc::new(DiskCache {
            shared,
            queue: Some(queue),
            ended: Mutex::new(ended),
        }))
    }

    /// Its counters.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        self.shared.segments.directory.root()
    }

    /// Its limits.
    pub fn limits(&self) -> CacheLimits {
        self.shared.limits
    }

    /// Disk space that the blocks of all processes take, as last counted, bytes.
    pub fn used_bytes(&self) -> u64 {
        self.shared.used_bytes.load(Ordering::Relaxed)
    }

    /// Whether no block is written because the disk has too little space.
    pub fn is_full(&self) -> bool {
        self.shared.full.load(Ordering::Relaxed)
    }

    /// From now on [`DiskCache::put`] waits as long as the disk needs, up to a minute for a block: for a caller
    /// whose purpose is to fill the cache.
    pub fn wait_for_the_disk(&self) {
        self.shared.room.wait_long();
    }

    /// Waits until all blocks that were put are written or refused, up to a minute.
    pub fn finish_writing(&self) {
        self.shared.room.wait_until_free(room::LONG_PATIENCE);
    }

    /// Makes what was put so far durable, and waits for that until `until`. For a caller to whom the blocks are more than a
    /// cache: without this a power cut may lose them. Gives how many segments were synced: those that this process may have
    /// written.
    ///
    /// # Errors
    /// The system's; [`std::io::ErrorKind::TimedOut`] when the disk does not answer.
    pub fn sync(&self, until: Instant) -> std::io::Result<u64> {
        let (answer, synced) = sync_channel(1);
        let ended = || std::io::Error::other("the thread of the cache has ended");
        let queue = self.queue.as_ref().ok_or_else(ended)?;
        let mut task = Task::Sync(answer);
        loop {
            match queue.try_send(task) {
                Ok(()) => break,
                Err(TrySendError::Disconnected(_)) => return Err(ended()),
                Err(TrySendError::Full(_)) if Instant::now() >= until => {
                    return Err(std::io::ErrorKind::TimedOut.into());
                }
                Err(TrySendError::Full(back)) => task = back,
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        match synced.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(synced) => synced,
            Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
        }
    }

    /// Caches a verified block, unless the cache has it. Waits for room in the queue for at most 50 ms, and for at
    /// most a tenth of the time that passes; without room the block is not cached.
    pub fn put(&self, handle: Handle, frame: &Frame) {
        let place = self.shared.segments.find(&handle);
        if place.is_some_and(|place| !self.shared.is_old(place.segment)) {
            return;
        }
        if !self.shared.room.take(queued_bytes(frame)) {
            self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.queue(handle, frame);
    }

    /// Notes that a block of the cache was used and is right. It is written again if it would be removed soon and
    /// the disk is not busy.
    pub fn used(&self, handle: Handle, frame: &Frame) {
        if self.shared.old_below.load(Ordering::Relaxed) == 0 {
            return;
        }
        let place = self.shared.segments.find(&handle);
        if place.is_some_and(|place| self.shared.is_old(place.segment))
            && self.shared.room.take_now(queued_bytes(frame))
        {
            self.queue(handle, frame);
        }
    }

    /// Hands a block, for which room was taken, to the thread.
    fn queue(&self, handle: Handle, frame: &Frame) {
        let bytes = queued_bytes(frame);
        // A frame may share the memory of a whole answer: copy it, so that the queue does not keep
        // that alive.
        let own = if frame.as_bytes().is_unique() {
            Ok(frame.clone())
        } else {
            Frame::parse(Bytes::copy_from_slice(frame.as_bytes()))
        };
        let sent = own.is_ok_and(|frame| self.send(Task::Put(Record { handle, frame })));
        if !sent {
            self.shared.room.give(bytes);
            self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Forgets a block that failed its check, so that it is fetched and written again.
    pub fn remove_damaged(&self, handle: &Handle) {
        match self.shared.segments.find(handle) {
            Some(place) => self.forget_damaged(handle, place),
            None => drop(self.shared.counters.damaged.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn forget_damaged(&self, handle: &Handle, place: Place) {
        self.shared.counters.damaged.fetch_add(1, Ordering::Relaxed);
        self.shared.segments.remove(handle, place);
        self.send(Task::Damaged(place.segment));
    }

    fn send(&self, task: Task) -> bool {
        self.queue
            .as_ref()
            .is_some_and(|queue| queue.try_send(task).is_ok())
    }

    /// Returns a block if the page cache has it. Never waits for the disk.
    pub fn try_cached(&self, handle: &Handle) -> Option<Frame> {
        self.get(handle, Patience::Never)
    }

    fn get(&self, handle: &Handle, patience: Patience) -> Option<Frame> {
        let counters = &self.shared.counters;
        if patience == Patience::Wait {
            drop(self.shared.wait_until_loaded());
        }
        let mut found = self.shared.segments.read(handle, patience);
        if patience == Patience::Wait && matches!(found, Found::Nothing) && self.shared.refresh() {
            found = self.shared.segments.read(handle, patience);
        }
        match found {
            Found::Frame(frame) => {
                counters.hits.fetch_add(1, Ordering::Relaxed);
                Some(frame)
            }
            Found::Damaged(place) => {
                self.forget_damaged(handle, place);
                None
            }
            Found::Nothing if patience == Patience::Wait => {
                counters.misses.fetch_add(1, Ordering::Relaxed);
                None
            }
            Found::Nothing | Found::NotNow => None,
        }
    }

    /// Gives `take` each block of `want` that the cache has, once, in the order in which they lie on the disk, and
    /// before it reads the next one: what `take` hashes is still in the processor's cache. Waits for the disk.
    pub fn read_each(&self, want: &[Handle], mut take: impl FnMut(Handle, Frame)) {
        drop(self.shared.wait_until_loaded());
        let mut asked = HashSet::new();
        let want = want.iter().filter(|handle| asked.insert(**handle));
        let mut want: Vec<(Option<Place>, Handle)> = want
            .map(|handle| (self.shared.segments.find(handle), *handle))
            .collect();
        want.sort_by_key(|(place, _)| place.map(|place| (place.segment, place.offset)));
        let places: Vec<Place> = want.iter().filter_map(|(place, _)| *place).collect();
        self.shared.segments.announce(&places);
        for (_, handle) in want {
            if let Some(frame) = self.get(&handle, Patience::Wait) {
                take(handle, frame);
            }
        }
    }

    /// The blocks of `want` that the cache has, each once. Waits for the disk.
    fn get_all(&self, want: &[Handle]) -> Vec<Record> {
        let mut found = Vec::new();
        self.read_each(want, |handle, frame| found.push(Record { handle, frame }));
        found
    }
}

impl Drop for DiskCache {
    /// Waits until the queue is written, unless the disk is stuck.
    fn drop(&mut self) {
        self.queue = None;
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        // The channel closes when the thread ends.
        let _ = ended.recv_timeout(LAST_WAIT);
    }
}

/// A shared [`DiskCache`] as a [`BlockStore`].
#[derive(Debug, Clone)]
pub struct CacheStore(pub Arc<DiskCache>);

impl BlockStore for CacheStore {
    fn place(&self) -> &str {
        self.0.shared.place()
    }

    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        _around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        let (cache, want) = (self.0.clone(), want.to_vec());
        Box::pin(async move {
            let read = move || Ok(cache.get_all(&want));
            Blocking::Pool.run(self.place(), read).await
        })
    }

    fn try_cached(&self, handle: &Handle) -> Option<Frame> {
        self.0.try_cached(handle)
    }

    fn is_local(&self) -> bool {
        true
    }
}
