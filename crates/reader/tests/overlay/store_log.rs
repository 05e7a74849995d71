//! A store in memory that remembers which blocks it was asked for.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use reader::{Blocks, Fetch};
use store::memory::MemoryStore;
use store::mirrors::Mirrors;
use store::{BlockStore, BoxFuture, Replica, StoreError};
use trust::{Handle, Hasher, Record};

pub struct StoreLog {
    inner: MemoryStore,
    asked: Mutex<HashSet<Handle>>,
}

impl StoreLog {
    pub fn new() -> Arc<StoreLog> {
        Arc::new(StoreLog {
            inner: MemoryStore::new("store"),
            asked: Mutex::default(),
        })
    }

    pub fn insert(&self, record: Record) {
        self.inner.insert(record);
    }

    pub fn was_asked(&self, handle: &Handle) -> bool {
        self.asked.lock().unwrap().contains(handle)
    }

    pub fn asked(&self) -> HashSet<Handle> {
        self.asked.lock().unwrap().clone()
    }
}

/// It has no `try_cached`, so that a block that is not in the reader's memory costs a request.
impl BlockStore for StoreLog {
    fn place(&self) -> &str {
        self.inner.place()
    }

    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        self.asked.lock().unwrap().extend(want);
        self.inner.get_many(want, around)
    }
}

impl Replica for StoreLog {
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        self.inner.head()
    }
}

pub fn hasher() -> Hasher {
    Hasher::new(&[7; 32])
}

/// Blocks over `store`, with a cache of `cache_bytes` and an overlay of `overlay_bytes`.
pub fn blocks(store: &Arc<StoreLog>, cache_bytes: u64, overlay_bytes: u64) -> Blocks {
    let mirrors = Arc::new(Mirrors::new(vec![store.clone()]));
    Blocks::new(hasher(), mirrors, cache_bytes, None).with_overlay(overlay_bytes)
}

pub fn soon() -> Fetch {
    Fetch::Until(Instant::now() + Duration::from_secs(10))
}
