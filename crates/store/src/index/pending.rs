//! The index entries of a commit in progress, in memory: at most 60 bytes a block.
//!
//! Entries are kept in chunks of fixed size (a growing vector would double its memory), and a hash
//! table of 4-byte positions finds them. Its hash has a random seed, because an attacker who chooses
//! file content can choose bits of handles.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use trust::Handle;

use super::Location;
use crate::names::FileId;

const CHUNK_ENTRIES: usize = 1 << 16;

#[derive(Clone, Copy)]
struct Entry {
    handle: Handle,
    segment: u32,
    offset: u32,
    len: u32,
}

/// Index entries of the blocks that were appended since the last commit.
#[derive(Default)]
pub struct Pending {
    chunks: Vec<Vec<Entry>>,
    positions: HashTable<u32>,
    seed: RandomState,
    segments: Vec<FileId>,
}

impl Pending {
    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.positions.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// The segments that hold them.
    pub fn segments(&self) -> &[FileId] {
        &self.segments
    }

    /// Whether it has an entry for this block.
    pub fn contains(&self, handle: &Handle) -> bool {
        let hash = self.seed.hash_one(handle);
        self.positions
            .find(hash, |p| {
                entry(&self.chunks, *p).is_some_and(|e| e.handle == *handle)
            })
            .is_some()
    }

    /// Adds a block that has no entry yet. Returns false, adding nothing, when it is full.
    pub fn insert(&mut self, handle: Handle, at: Location) -> bool {
        let Ok(position) = u32::try_from(self.len()) else {
            return false;
        };
        if self.segments.last() != Some(&at.segment) {
            self.segments.push(at.segment);
        }
        if self.chunks.last().is_none_or(|c| c.len() == CHUNK_ENTRIES) {
            // The first chunk grows on demand: most commits are small.
            let capacity = if self.chunks.is_empty() {
                0
            } else {
                CHUNK_ENTRIES
            };
            self.chunks.push(Vec::with_capacity(capacity));
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(Entry {
                handle,
                segment: self.segments.len() as u32 - 1,
                offset: at.offset,
                len: at.len,
            });
        }
        let (chunks, seed) = (&self.chunks, &self.seed);
        let rehash = |p: &u32| entry(chunks, *p).map_or(0, |e| seed.hash_one(e.handle));
        self.positions
            .insert_unique(seed.hash_one(handle), position, rehash);
        true
    }

    /// The blocks from the `from`-th on, with record lengths, in order of insertion.
    pub fn since(&self, from: usize) -> impl Iterator<Item = (Handle, u32)> {
        (from..self.len()).filter_map(|p| entry(&self.chunks, p as u32).map(|e| (e.handle, e.len)))
    }

    /// All blocks in order of their handles. Each chunk is sorted in place, where it fits the
    /// processor's caches, and then the chunks are merged. Sorting a list of positions would miss the
    /// caches at every comparison.
    pub fn into_sorted(self) -> impl Iterator<Item = (Handle, Location)> {
        let Pending {
            mut chunks,
            positions,
            segments,
            ..
        } = self;
        drop(positions);
        for chunk in &mut chunks {
            chunk.sort_unstable_by_key(|e| e.handle);
        }
        let mut chunks: Vec<_> = chunks.into_iter().map(Vec::into_iter).collect();
        let mut least: BinaryHeap<Reverse<(Handle, usize)>> = chunks
            .iter()
            .enumerate()
            .filter_map(|(i, c)| c.as_slice().first().map(|e| Reverse((e.handle, i))))
            .collect();
        std::iter::from_fn(move || {
            let mut top = least.peek_mut()?;
            let number = top.0.1;
            let entry = chunks.get_mut(number)?.next()?;
            match chunks.get(number).and_then(|c| c.as_slice().first()) {
                Some(next) => top.0.0 = next.handle,
                None => {
                    PeekMut::pop(top);
                }
            }
            let at = Location {
                segment: *segments.get(entry.segment as usize)?,
                offset: entry.offset,
                len: entry.len,
            };
            Some((entry.handle, at))
        })
    }
}

fn entry(chunks: &[Vec<Entry>], position: u32) -> Option<&Entry> {
    let position = position as usize;
    chunks
        .get(position / CHUNK_ENTRIES)?
        .get(position % CHUNK_ENTRIES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_several_chunks_come_out_sorted_with_their_locations() {
        let handle = |n: u32| Handle::from_bytes(*blake3::hash(&n.to_le_bytes()).as_bytes());
        let at = |n: u32| Location {
            segment: FileId([(n / 50_000) as u8; 16]),
            offset: n,
            len: n % 1000,
        };
        let count = 2 * CHUNK_ENTRIES as u32 + 17;
        let mut pending = Pending::default();
        for n in 0..count {
            assert!(!pending.contains(&handle(n)));
            assert!(pending.insert(handle(n), at(n)));
        }
        assert!((0..count).all(|n| pending.contains(&handle(n))));
        assert_eq!(
            (pending.len(), pending.segments().len()),
            (count as usize, 3)
        );
        let since: Vec<_> = pending.since(count as usize - 3).collect();
        assert_eq!(since[0], (handle(count - 3), at(count - 3).len));
        assert_eq!(since.len(), 3);
        let mut expected: Vec<_> = (0..count).map(|n| (handle(n), at(n))).collect();
        expected.sort_unstable();
        assert!(pending.into_sorted().eq(expected));
    }
}
