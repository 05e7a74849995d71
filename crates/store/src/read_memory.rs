//! Memory for reads from files. That of long reads is used again: new memory would be filled with zeros first, and
//! the kernel would give its pages one by one, and both take longer than the read from the page cache.
//!
//! What is kept is bounded for the whole process. It may hold bytes of earlier reads, of any repository; only what a
//! read has filled is given out.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};

/// Length of each piece of memory that is kept, bytes.
pub(crate) const KEPT_BYTES: usize = 1 << 20;
/// Pieces of memory that are kept while nobody uses them.
const MOST_KEPT: usize = 8;

static FREE: Mutex<Vec<Box<[u8]>>> = Mutex::new(Vec::new());

fn free() -> MutexGuard<'static, Vec<Box<[u8]>>> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory to read into.
pub(crate) struct ReadMemory(Memory);

enum Memory {
    Own(BytesMut),
    Kept(Kept),
}

/// Memory that is kept for later reads when it is dropped.
struct Kept {
    memory: Box<[u8]>,
    len: usize,
}

impl ReadMemory {
    /// Memory of this length. What it holds is not defined.
    pub(crate) fn of(len: usize) -> ReadMemory {
        // Shorter reads would hold more than twice the memory that they fill.
        if len <= KEPT_BYTES / 2 || len > KEPT_BYTES {
            return ReadMemory(Memory::Own(BytesMut::zeroed(len)));
        }
        let kept = free().pop();
        let memory = kept.unwrap_or_else(|| vec![0; KEPT_BYTES].into_boxed_slice());
        ReadMemory(Memory::Kept(Kept { memory, len }))
    }

    /// Shortens it.
    pub(crate) fn truncate(&mut self, len: usize) {
        match &mut self.0 {
            Memory::Own(own) => own.truncate(len),
            Memory::Kept(kept) => kept.len = kept.len.min(len),
        }
    }

    /// The bytes, to be shared.
    pub(crate) fn freeze(self) -> Bytes {
        match self.0 {
            Memory::Own(own) => own.freeze(),
            Memory::Kept(kept) => Bytes::from_owner(kept),
        }
    }
}

impl Deref for ReadMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Own(own) => own,
            Memory::Kept(kept) => kept.as_ref(),
        }
    }
}

impl DerefMut for ReadMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Own(own) => own,
            Memory::Kept(Kept { memory, len }) => memory.get_mut(..*len).unwrap_or_default(),
        }
    }
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        self.memory.get(..self.len).unwrap_or_default()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        let mut free = free();
        if free.len() < MOST_KEPT {
            free.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_the_length_asked_for_and_shows_only_what_is_left_of_it() {
        for len in [
            0,
            1,
            4096,
            KEPT_BYTES / 2,
            KEPT_BYTES / 2 + 1,
            KEPT_BYTES,
            KEPT_BYTES + 1,
        ] {
            let mut memory = ReadMemory::of(len);
            assert_eq!(memory.len(), len);
            memory.fill(7);
            memory.truncate(len / 3);
            assert_eq!(memory.len(), len / 3);
            assert_eq!(memory.freeze(), vec![7; len / 3]);
        }
    }

    #[test]
    fn bytes_stay_while_they_are_shared_and_idle_memory_is_bounded() {
        let read = |n: u8| {
            let mut memory = ReadMemory::of(KEPT_BYTES);
            memory.fill(n);
            memory.freeze()
        };
        let all: Vec<Bytes> = (0..3 * MOST_KEPT as u8).map(read).collect();
        let parts: Vec<Bytes> = all.iter().map(|bytes| bytes.slice(7..1007)).collect();
        drop(all);
        // These would overwrite memory that was given back too early.
        let others: Vec<Bytes> = (100..110).map(read).collect();
        for (n, part) in (0u8..).zip(&parts) {
            assert_eq!(*part, vec![n; 1000]);
        }
        drop((parts, others));
        assert!(free().len() <= MOST_KEPT);
    }
}
