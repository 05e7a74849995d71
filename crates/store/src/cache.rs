//! Cache of frames on the reader's own disk. It is asked before any mirror, and it is not trusted either.
//!
//! Each block has one file, named by its handle and holding its record, so that all processes of a
//! machine can share the directory without coordination. Files appear by rename and never change.
//! Nothing is synced: a file that a crash tore fails its check, is removed when it is read, and is
//! fetched again. Security does not depend on the cache, and it may be deleted at any time.
//!
//! One thread writes, behind a bounded queue. A reader that is faster than the disk waits for a short
//! time (`room`); a block for which there is no room then is not cached. The thread keeps the quota
//! and the required free space by removing the least recently used blocks (`evictor`).

mod evictor;
mod files;
mod room;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use trust::{Frame, Handle, Record};

use crate::blocking::Blocking;
use crate::disk::Patience;
use crate::{BlockStore, BoxFuture, StoreError};
use evictor::Evictor;
use files::{Files, Found};
use room::Room;

/// Maximum number and total length of blocks that wait to be written.
const MAX_QUEUED: usize = 4096;
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Each block counts for at least this many bytes in the queue, so that one counter keeps both limits.
const LEAST_QUEUED_BYTES: usize = MAX_QUEUED_BYTES / MAX_QUEUED;
/// Maximum time for which a reader waits for room in the queue.
const ROOM_PATIENCE: Duration = Duration::from_millis(50);
/// Maximum time for which dropping the cache waits until the queue is written.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Limits of a [`DiskCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLimits {
    /// Disk space that all blocks together may take, bytes.
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
    /// Damaged files that were removed.
    pub damaged: AtomicU64,
    /// Blocks removed to make room.
    pub evicted: AtomicU64,
}

/// Work for the writing thread.
enum Task {
    Put(Record),
    Used(Handle),
    Remove(Handle),
}

struct Shared {
    files: Files,
    limits: CacheLimits,
    counters: Counters,
    room: Room,
    used_bytes: AtomicU64,
    full: AtomicBool,
}

fn queued_bytes(frame: &Frame) -> usize {
    frame.as_bytes().len().max(LEAST_QUEUED_BYTES)
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
            .field(&self.shared.files.place())
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
        let shared = Arc::new(Shared {
            files: Files::open(directory)?,
            limits,
            counters: Counters::default(),
            room: Room::new(MAX_QUEUED_BYTES, ROOM_PATIENCE),
            used_bytes: AtomicU64::new(0),
            full: AtomicBool::new(false),
        });
        let (queue, tasks) = sync_channel(MAX_QUEUED);
        let (end, ended) = sync_channel(1);
        let evictor = Evictor::new(shared.clone());
        std::thread::Builder::new()
            .name("disk-cache".to_owned())
            .spawn(move || {
                evictor.run(&tasks);
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
        self.shared.files.root()
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

    /// Caches a verified block. Waits for room in the queue for at most 50 ms, and for at most a tenth
    /// of the time that passes; without room the block is not cached.
    pub fn put(&self, handle: Handle, frame: &Frame) {
        if !self.shared.room.take(queued_bytes(frame)) {
            self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // A frame may share the memory of a whole answer: copy it, so that the queue does not keep
        // that alive.
        let frame = if frame.as_bytes().is_unique() {
            frame.clone()
        } else {
            match Frame::parse(Bytes::copy_from_slice(frame.as_bytes())) {
                Ok(frame) => frame,
                Err(_) => return self.shared.room.give(queued_bytes(frame)),
            }
        };
        if !self.send(Task::Put(Record {
            handle,
            frame: frame.clone(),
        })) {
            self.shared.room.give(queued_bytes(&frame));
            self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes a block that failed its check.
    pub fn remove_damaged(&self, handle: &Handle) {
        self.shared.counters.damaged.fetch_add(1, Ordering::Relaxed);
        self.send(Task::Remove(*handle));
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
        match self.shared.files.read(handle, patience) {
            Found::Frame { frame, worn } => {
                counters.hits.fetch_add(1, Ordering::Relaxed);
                if worn {
                    self.send(Task::Used(*handle));
                }
                Some(frame)
            }
            Found::Damaged => {
                self.remove_damaged(handle);
                None
            }
            Found::Nothing if patience == Patience::Wait => {
                counters.misses.fetch_add(1, Ordering::Relaxed);
                None
            }
            Found::Nothing | Found::NotNow => None,
        }
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
        self.0.shared.files.place()
    }

    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        _around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        let (cache, want) = (self.0.clone(), want.to_vec());
        Box::pin(async move {
            let read = move || {
                let (mut found, mut asked) = (Vec::new(), HashSet::new());
                for handle in want {
                    if asked.insert(handle)
                        && let Some(frame) = cache.get(&handle, Patience::Wait)
                    {
                        found.push(Record { handle, frame });
                    }
                }
                Ok(found)
            };
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
