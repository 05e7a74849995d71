//! Content that this device wrote, on its own disk: after a fork the server of the log that stands may not have it
//! (decision 0087).
//!
//! It lies in the directory `own` of the home, in the format of the disk cache, which several processes may write at once.
//! The newest [`QUOTA_BYTES`] are kept, whoever has attested them. Entries are attested in their order, so what is
//! given up first is what others have had for the longest time. Nothing here is trusted: each block is hashed.
//!
//! A process makes what it has kept durable when it ends. Until then the server has it, so it is lost only if the power is
//! cut here and the server lies or forks.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use store::BlockStore;
use store::cache::{CacheLimits, CacheStore, DiskCache, Held};
use tokio::task::spawn_blocking;
use trust::{Frame, Handle, Hasher, Record};

use super::ClientError;
use crate::home::Home;

/// The directory in the home.
const OWN: &str = "own";
/// Disk space that it may take, bytes.
const QUOTA_BYTES: u64 = 1 << 30;
/// Space that stays free for others, bytes.
const KEEP_FREE_BYTES: u64 = 256 << 20;

/// How much content a device keeps of what it wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Blocks.
    pub blocks: u64,
    /// Disk space that they take, bytes.
    pub bytes: u64,
    /// Disk space that they may take, bytes. The oldest give way then.
    pub limit_bytes: u64,
}

impl Kept {
    /// What the device of this home keeps. Blocks.
    ///
    /// # Errors
    /// [`ClientError::Home`] when the directory cannot be listed.
    pub fn of(home: &Home) -> Result<Kept, ClientError> {
        let directory = home.directory().join(OWN);
        let failed = |error| ClientError::Home(format!("{}: {error}", directory.display()));
        let held = Held::of(&directory).map_err(failed)?;
        Ok(Kept {
            blocks: held.blocks,
            bytes: held.bytes,
            limit_bytes: QUOTA_BYTES,
        })
    }
}

/// Content that this device wrote. Opened when it is needed.
pub(super) struct Own {
    directory: PathBuf,
    hasher: Hasher,
    opened: Mutex<Option<Arc<DiskCache>>>,
    /// Something was kept that a power cut may lose.
    unsynced: AtomicBool,
}

impl Own {
    /// That of the home in this directory.
    pub(super) fn of(home: PathBuf, hasher: Hasher) -> Arc<Own> {
        Arc::new(Own {
            directory: home.join(OWN),
            hasher,
            opened: Mutex::default(),
            unsynced: AtomicBool::new(false),
        })
    }

    /// None: this device has written nothing yet, and nothing is to be made; or the directory cannot be used. Blocks.
    fn open(&self, make: bool) -> Option<Arc<DiskCache>> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if opened.is_none() && (make || self.directory.exists()) {
            let limits = CacheLimits {
                quota_bytes: QUOTA_BYTES,
                keep_free_bytes: KEEP_FREE_BYTES,
            };
            match DiskCache::open(&self.directory, limits) {
                Ok(cache) => {
                    cache.wait_for_the_disk();
                    // Waits until it is known what is there, so that it is not written twice.
                    cache.read_each(&[], |_, _| ());
                    *opened = Some(cache);
                }
                Err(error) => {
                    tracing::warn!(%error, "this device does not keep what it writes itself");
                }
            }
        }
        opened.clone()
    }

    /// Keeps blocks. The end of the process does not lose them afterwards.
    pub(super) async fn keep(self: &Arc<Self>, records: &[Record]) {
        let (own, records) = (Arc::clone(self), records.to_vec());
        let keeping = move || {
            if let Some(cache) = own.open(true) {
                for record in &records {
                    cache.put(record.handle, &record.frame);
                }
                cache.finish_writing();
                own.unsynced.store(true, Ordering::Relaxed);
            }
        };
        if let Err(error) = spawn_blocking(keeping).await {
            tracing::warn!(%error, "this device does not keep what it writes itself");
        }
    }

    /// Makes what was kept durable, until `deadline`. A power cut does not lose it afterwards.
    pub(super) async fn sync(self: &Arc<Self>, deadline: Instant) {
        if !self.unsynced.swap(false, Ordering::Relaxed) {
            return;
        }
        let own = Arc::clone(self);
        let syncing = move || own.open(false).map_or(Ok(0), |cache| cache.sync(deadline));
        match spawn_blocking(syncing)
            .await
            .unwrap_or_else(|e| Err(e.into()))
        {
            Ok(segments) => tracing::debug!(segments, "what this device wrote is durable here"),
            Err(error) => {
                tracing::warn!(%error, "a power cut may lose what this device keeps of what it wrote");
            }
        }
    }

    /// Those of these blocks that are here and whole.
    pub(super) async fn get(self: &Arc<Self>, want: &[Handle]) -> Vec<Record> {
        let own = Arc::clone(self);
        let Ok(Some(cache)) = spawn_blocking(move || own.open(false)).await else {
            return Vec::new();
        };
        let store = CacheStore(Arc::clone(&cache));
        let mut found = store.get_many(want, 0).await.unwrap_or_default();
        found.retain(|record| {
            let is_whole = is_whole(&self.hasher, record);
            if !is_whole {
                cache.remove_damaged(&record.handle);
            }
            is_whole
        });
        found
    }

    /// A block that needs no wait for the disk.
    pub(super) fn try_cached(&self, handle: &Handle) -> Option<Frame> {
        let opened = self.opened.try_lock().ok()?;
        opened.as_ref()?.try_cached(handle)
    }
}

/// Whether a record is the block that its handle names.
pub(super) fn is_whole(hasher: &Hasher, Record { handle, frame }: &Record) -> bool {
    let plain = frame.unpack();
    plain.is_ok_and(|plain| hasher.name(frame.kind(), &plain) == *handle)
}

/// Those that were not found.
pub(super) fn without(want: &[Handle], found: &[Record]) -> Vec<Handle> {
    let is_found = |handle: &&Handle| found.iter().any(|record| record.handle == **handle);
    want.iter().filter(|it| !is_found(it)).copied().collect()
}
