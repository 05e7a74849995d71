//! Frames on the reader's own disk: asked before any mirror, believed as little.
//!
//! One file a block, named by its handle and holding its record, so that every process of the
//! machine may share the directory without a word to the others. Files appear by rename and are
//! never changed; nothing is synced: what a crash tears does not bear its name any more, is removed
//! when it is read, and fetched again. The cache is never needed for security and may be deleted at
//! any time.
//!
//! Writing is done by one thread behind a bounded queue. A reader who is faster than the disk waits for it
//! a little ([`room`]): what does not fit then is not kept. The quota and the space that must stay
//! free are held by removing what was not used for longest ([`tending`]). Design: `publish.md`, *Client*.

mod files;
mod room;
mod tending;
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
use files::{Files, Found};
use room::Room;
use tending::Tending;

/// Blocks that wait to be written at most: so many, and so many bytes.
const MAX_QUEUED: usize = 4096;
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// What a block counts for in the queue at least, bytes: so both bounds are one.
const LEAST_QUEUED_BYTES: usize = MAX_QUEUED_BYTES / MAX_QUEUED;
/// How long a reader waits for room in the queue.
const ROOM_PATIENCE: Duration = Duration::from_millis(50);
/// How long the last user waits for what is queued to be written.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// How much a [`DiskCache`] may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLimits {
    /// Bytes of the disk that all blocks together may take.
    pub quota_bytes: u64,
    /// Bytes of the file system that must stay free for others.
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

/// What the cache did; for metrics and people.
#[derive(Debug, Default)]
pub struct Counters {
    /// Blocks given out.
    pub hits: AtomicU64,
    /// Blocks asked for and not there.
    pub misses: AtomicU64,
    /// Blocks written.
    pub written: AtomicU64,
    /// Blocks not written: no room in the queue, the quota or on the disk, or the disk failed.
    pub refused: AtomicU64,
    /// Files that were not what their names say, and are gone.
    pub damaged: AtomicU64,
    /// Blocks removed to make room.
    pub evicted: AtomicU64,
}

/// What is to be done behind the reader's back.
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

/// A directory of blocks that were fetched before.
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
    /// Opens the cache in `directory`, which is made when missing. Blocks of several volumes may
    /// lie in one: handles of different volumes differ.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the directory cannot be made or written.
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
        let tending = Tending::new(shared.clone());
        std::thread::Builder::new()
            .name("disk-cache".to_owned())
            .spawn(move || {
                tending.run(&tasks);
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

    /// What it did so far.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Where it lies.
    pub fn directory(&self) -> &Path {
        self.shared.files.root()
    }

    /// How much it may take.
    pub fn limits(&self) -> CacheLimits {
        self.shared.limits
    }

    /// Bytes that the blocks take, of all processes, as last counted.
    pub fn used_bytes(&self) -> u64 {
        self.shared.used_bytes.load(Ordering::Relaxed)
    }

    /// Whether nothing more is kept because the disk has too little space.
    pub fn is_full(&self) -> bool {
        self.shared.full.load(Ordering::Relaxed)
    }

    /// Keeps a block that was checked. Waits for the disk 50 ms at most, and in all a tenth of the time;
    /// when there is no room then, it is not kept.
    pub fn put(&self, handle: Handle, frame: &Frame) {
        if !self.shared.room.take(queued_bytes(frame)) {
            self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // A frame may share the memory of a whole answer, which the queue must not keep alive.
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

    /// Removes a block that did not bear its name.
    pub fn remove_damaged(&self, handle: &Handle) {
        self.shared.counters.damaged.fetch_add(1, Ordering::Relaxed);
        self.send(Task::Remove(*handle));
    }

    fn send(&self, task: Task) -> bool {
        self.queue
            .as_ref()
            .is_some_and(|queue| queue.try_send(task).is_ok())
    }

    /// A block, if the page cache has it: never waits for the disk.
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
    /// What is queued is still written, as long as the disk is not stuck.
    fn drop(&mut self) {
        self.queue = None;
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        // An error is what tells that the thread has ended.
        let _ = ended.recv_timeout(LAST_WAIT);
    }
}

/// The same for use behind an `Arc`, as a store.
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
