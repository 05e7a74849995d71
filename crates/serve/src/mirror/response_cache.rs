//! Caches answers that are asked for often: no index look-up, no read, no copy.
//!
//! An entry is the answer to a request for one handle with its read-around, by volume, handle and
//! read-around: a segment never changes, so an entry never expires. A request for one volume never gets the
//! bytes of another.

use std::sync::Arc;

use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use trust::Handle;

/// Longest answer in the cache, bytes: a longer one costs more to send than to read.
const MAX_ANSWER_BYTES: usize = 256 << 10;
/// Memory of an entry beside its bytes.
const ENTRY_BYTES: usize = 192;

/// A request: the number of the volume in this process, the handle, the read-around.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    volume: u32,
    around_bytes: u32,
    handle: Handle,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Key, Arc<[Bytes]>> for ByBytes {
    fn weight(&self, _: &Key, answer: &Arc<[Bytes]>) -> u64 {
        let bytes: usize = answer.iter().map(|r| r.len() + size_of::<Bytes>()).sum();
        (bytes + ENTRY_BYTES) as u64
    }
}

/// The cache; without a table when it may hold nothing.
pub(crate) struct ResponseCache(Option<Cache<Key, Arc<[Bytes]>, ByBytes>>);

impl ResponseCache {
    pub(crate) fn new(cache_bytes: usize) -> ResponseCache {
        if cache_bytes < 4 * MAX_ANSWER_BYTES {
            return ResponseCache(None);
        }
        // The largest answer must fit into a shard, or it would never be kept.
        let shards = (cache_bytes >> 23).clamp(1, 16);
        let options = quick_cache::OptionsBuilder::new()
            .estimated_items_capacity((cache_bytes >> 13).max(64))
            .weight_capacity(cache_bytes as u64)
            .shards(shards)
            .build();
        ResponseCache(options.ok().map(|options| {
            Cache::with_options(options, ByBytes, Default::default(), Default::default())
        }))
    }

    /// The answer to a request for one handle.
    pub(crate) fn get(
        &self,
        volume: u32,
        handle: &Handle,
        around_bytes: usize,
    ) -> Option<Arc<[Bytes]>> {
        self.0.as_ref()?.get(&Key {
            volume,
            around_bytes: around_bytes as u32,
            handle: *handle,
        })
    }

    /// Keeps the answer to a request for one handle, unless it is empty or too long.
    pub(crate) fn keep(
        &self,
        volume: u32,
        handle: &Handle,
        around_bytes: usize,
        regions: &[Bytes],
    ) {
        let Some(cache) = &self.0 else { return };
        let total: usize = regions.iter().map(Bytes::len).sum();
        if total == 0 || total > MAX_ANSWER_BYTES {
            return;
        }
        let key = Key {
            volume,
            around_bytes: around_bytes as u32,
            handle: *handle,
        };
        cache.insert(key, regions.into());
    }
}
