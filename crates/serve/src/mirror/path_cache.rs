//! Caches the records on paths that readers ask for often: a path in the cache costs one look-up in a table.
//!
//! Bounded in bytes, paths included: a client that always asks for new paths displaces only paths that were
//! asked for once. An entry belongs to the head under which it was found.

use std::sync::Arc;

use quick_cache::sync::Cache;
use quick_cache::{Equivalent, Weighter};

use crate::mirror::path_records::PathRecords;

/// Memory of an entry beside its records and its path, bytes.
const ENTRY_BYTES: usize = 192;
/// Least size of a cache, bytes: the longest entry must fit in with others.
const LEAST_BYTES: usize = 1 << 20;

/// The number of the bundle, and the path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key(u64, Box<[u8]>);

#[derive(Hash)]
struct Asked<'a>(u64, &'a [u8]);

impl Equivalent<Key> for Asked<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.0 == key.0 && self.1 == &*key.1
    }
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Key, Arc<PathRecords>> for ByBytes {
    fn weight(&self, key: &Key, records: &Arc<PathRecords>) -> u64 {
        (records.weight_bytes() + key.1.len() + ENTRY_BYTES) as u64
    }
}

/// The cache; without a table when it may hold nothing.
pub(crate) struct PathCache(Option<Cache<Key, Arc<PathRecords>, ByBytes>>);

impl PathCache {
    pub(crate) fn new(cache_bytes: usize) -> PathCache {
        if cache_bytes < LEAST_BYTES {
            return PathCache(None);
        }
        let options = quick_cache::OptionsBuilder::new()
            .estimated_items_capacity(cache_bytes >> 12)
            .weight_capacity(cache_bytes as u64)
            .shards((cache_bytes >> 20).clamp(1, 16))
            .build();
        PathCache(options.ok().map(|options| {
            Cache::with_options(options, ByBytes, Default::default(), Default::default())
        }))
    }

    /// The records on `path` under a bundle, if the cache has them.
    pub(crate) fn get(&self, bundle: u64, path: &[u8]) -> Option<Arc<PathRecords>> {
        self.0.as_ref()?.get(&Asked(bundle, path))
    }

    /// Keeps the records on a path.
    pub(crate) fn keep(&self, bundle: u64, path: &[u8], records: &Arc<PathRecords>) {
        if let Some(cache) = &self.0 {
            cache.insert(Key(bundle, path.into()), Arc::clone(records));
        }
    }

    /// Bytes in the cache.
    #[cfg(test)]
    fn kept_bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, Cache::weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_bounded_for_ever_new_paths() {
        let cache = PathCache::new(1 << 20);
        let records = Arc::new(PathRecords::default());
        for n in 0..100_000u32 {
            let mut path = vec![b'x'; 4000];
            path.extend_from_slice(&n.to_le_bytes());
            cache.keep(1, &path, &records);
        }
        let kept = cache.kept_bytes();
        assert!((1 << 18..=1 << 20).contains(&kept), "{kept} bytes");
    }

    #[test]
    fn entry_belongs_to_one_bundle_and_one_path() {
        let cache = PathCache::new(1 << 20);
        cache.keep(1, b"a/b", &Arc::new(PathRecords::default()));
        assert!(cache.get(1, b"a/b").is_some());
        assert!(cache.get(2, b"a/b").is_none());
        assert!(cache.get(1, b"a").is_none());
        let none = PathCache::new(0);
        none.keep(1, b"a", &Arc::new(PathRecords::default()));
        assert!(none.get(1, b"a").is_none());
    }
}
