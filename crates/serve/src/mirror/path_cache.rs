//! The ways that readers take again and again, ready in memory: a look-up of a name that others have
//! looked up costs one look into a table.
//!
//! Bounded in bytes, paths included, so that whoever asks for ever new paths displaces what nobody
//! asks for twice and takes nothing else. A way belongs to the head under which it was found.

use std::sync::Arc;

use quick_cache::sync::Cache;
use quick_cache::{Equivalent, Weighter};

use crate::mirror::bundle::PathRecords;

/// What a way takes beside its records and its path.
const ENTRY_BYTES: usize = 192;
/// Least room in which ways are kept at all, bytes: the longest must fit in with others.
const LEAST_BYTES: usize = 1 << 20;

/// The number of the landing, and the path.
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
    fn weight(&self, key: &Key, way: &Arc<PathRecords>) -> u64 {
        (way.weight_bytes() + key.1.len() + ENTRY_BYTES) as u64
    }
}

/// The table; without one when it may hold nothing.
pub(crate) struct PathCache(Option<Cache<Key, Arc<PathRecords>, ByBytes>>);

impl PathCache {
    pub(crate) fn new(ways_bytes: usize) -> PathCache {
        if ways_bytes < LEAST_BYTES {
            return PathCache(None);
        }
        let options = quick_cache::OptionsBuilder::new()
            .estimated_items_capacity(ways_bytes >> 12)
            .weight_capacity(ways_bytes as u64)
            .shards((ways_bytes >> 20).clamp(1, 16))
            .build();
        PathCache(options.ok().map(|options| {
            Cache::with_options(options, ByBytes, Default::default(), Default::default())
        }))
    }

    /// The way to `path` under a landing, if it was found lately.
    pub(crate) fn get(&self, landing: u64, path: &[u8]) -> Option<Arc<PathRecords>> {
        self.0.as_ref()?.get(&Asked(landing, path))
    }

    /// Keeps a way.
    pub(crate) fn keep(&self, landing: u64, path: &[u8], way: &Arc<PathRecords>) {
        if let Some(cache) = &self.0 {
            cache.insert(Key(landing, path.into()), Arc::clone(way));
        }
    }

    /// What is kept, bytes.
    #[cfg(test)]
    fn kept_bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, Cache::weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ever_new_paths_take_no_more_than_was_granted() {
        let ways = PathCache::new(1 << 20);
        let way = Arc::new(PathRecords::default());
        for n in 0..100_000u32 {
            let mut path = vec![b'x'; 4000];
            path.extend_from_slice(&n.to_le_bytes());
            ways.keep(1, &path, &way);
        }
        let kept = ways.kept_bytes();
        assert!((1 << 18..=1 << 20).contains(&kept), "{kept} bytes");
    }

    #[test]
    fn a_way_belongs_to_one_landing_and_one_path() {
        let ways = PathCache::new(1 << 20);
        ways.keep(1, b"a/b", &Arc::new(PathRecords::default()));
        assert!(ways.get(1, b"a/b").is_some());
        assert!(ways.get(2, b"a/b").is_none());
        assert!(ways.get(1, b"a").is_none());
        let none = PathCache::new(0);
        none.keep(1, b"a", &Arc::new(PathRecords::default()));
        assert!(none.get(1, b"a").is_none());
    }
}
