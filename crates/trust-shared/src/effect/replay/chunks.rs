//! A list that grows without moving what it has. A long `Vec` is copied when it grows, and the allocator keeps the
//! memory of both copies.

/// Items in one piece of memory.
const CHUNK: usize = 1 << 12;

/// A list in pieces of equal length.
#[derive(Debug, Clone)]
pub(super) struct Chunks<T>(Vec<Vec<T>>);

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Chunks(Vec::new())
    }
}

impl<T: Copy> Chunks<T> {
    pub(super) fn len(&self) -> usize {
        let before = self.0.len().saturating_sub(1).saturating_mul(CHUNK);
        before.saturating_add(self.0.last().map_or(0, Vec::len))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn push(&mut self, item: T) {
        match self.0.last_mut() {
            Some(last) if last.len() < CHUNK => {
                if last.len() == last.capacity() {
                    // The first piece of a short list is short too.
                    let more = last.len().clamp(16, CHUNK).min(CHUNK - last.len());
                    last.reserve_exact(more);
                }
                last.push(item);
            }
            _ => {
                let room = if self.0.is_empty() { 16 } else { CHUNK };
                let mut chunk = Vec::with_capacity(room);
                chunk.push(item);
                self.0.push(chunk);
            }
        }
    }

    pub(super) fn get(&self, index: usize) -> Option<&T> {
        self.0.get(index / CHUNK)?.get(index % CHUNK)
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.0.get_mut(index / CHUNK)?.get_mut(index % CHUNK)
    }

    /// Sets an item, if the list has it.
    pub(super) fn set(&mut self, index: usize, item: T) {
        if let Some(place) = self.get_mut(index) {
            *place = item;
        }
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().flatten()
    }

    /// Drops all but the first items, and the memory of the others.
    pub(super) fn truncate(&mut self, len: usize) {
        self.0.truncate(len.div_ceil(CHUNK));
        if let Some(last) = self.0.last_mut() {
            let before = len.div_ceil(CHUNK).saturating_sub(1).saturating_mul(CHUNK);
            last.truncate(len.saturating_sub(before));
            last.shrink_to_fit();
        }
        self.0.shrink_to_fit();
    }

    /// As [`slice::partition_point`].
    pub(super) fn partition_point(&self, mut before: impl FnMut(&T) -> bool) -> usize {
        let pieces = self
            .0
            .partition_point(|chunk| chunk.last().is_some_and(&mut before));
        let within = self.0.get(pieces).map(Vec::as_slice).unwrap_or_default();
        let within = within.partition_point(before);
        // The last piece may be short.
        let all = pieces.saturating_mul(CHUNK).saturating_add(within);
        all.min(self.len())
    }

    /// As [`slice::binary_search_by_key`]: whether an item has the key.
    pub(super) fn has<K: Ord>(&self, key: &K, of: impl Fn(&T) -> K) -> bool {
        let at = self.partition_point(|item| of(item) < *key);
        self.get(at).is_some_and(|item| of(item) == *key)
    }

    /// Memory that the items have, bytes.
    #[cfg(test)]
    pub(super) fn capacity_bytes(&self) -> usize {
        let items: usize = self.0.iter().map(Vec::capacity).sum();
        items * size_of::<T>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_in_pieces_is_a_list() {
        for len in [0, 1, 15, 16, 17, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK] {
            let mut chunks = Chunks::default();
            (0..len).for_each(|item| chunks.push(item));
            assert_eq!((chunks.len(), chunks.is_empty()), (len, len == 0));
            assert!(chunks.capacity_bytes() <= (len.div_ceil(CHUNK) * CHUNK).max(16) * 8);
            for at in [0, 1, len / 2, len.saturating_sub(1), len, len + 1] {
                assert_eq!(chunks.get(at).copied(), (at < len).then_some(at));
                assert_eq!(chunks.partition_point(|item| *item < at), at.min(len));
                assert_eq!(chunks.has(&at, |item| *item), at < len);
            }
            chunks.iter_mut().for_each(|item| *item += 1);
            chunks.set(len, 7);
            chunks.truncate(len / 2);
            let left: Vec<usize> = (0..len).filter_map(|at| chunks.get(at).copied()).collect();
            assert_eq!(left, (1..=len / 2).collect::<Vec<usize>>());
            chunks.push(9);
            assert_eq!(chunks.get(len / 2), Some(&9));
            assert_eq!(chunks.len(), len / 2 + 1);
        }
    }
}
