//! Memory for requests, aligned for devices without a page cache and used again: the kernel would clear new memory for
//! each request, page by page. Relies on `wal::Buffer` for the alignment.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use wal::{Buffer, PAGE_BYTES};

/// Sizes are [`PAGE_BYTES`] times a power of two; the largest is 16 MiB.
const CLASSES: usize = 13;

/// Buffers that are not in use.
#[derive(Debug)]
pub struct Buffers {
    free: [Mutex<Vec<Buffer>>; CLASSES],
    kept_bytes: AtomicU64,
    keep_bytes: u64,
}

impl Buffers {
    /// Keeps at most `keep_bytes` for later.
    pub fn new(keep_bytes: u64) -> Arc<Buffers> {
        Arc::new(Buffers {
            free: Default::default(),
            kept_bytes: AtomicU64::new(0),
            keep_bytes,
        })
    }

    /// `bytes` of memory with any content.
    pub fn lend(self: &Arc<Buffers>, bytes: usize) -> Lent {
        let pages = bytes.div_ceil(PAGE_BYTES).max(1).next_power_of_two();
        let class = pages.trailing_zeros() as usize;
        let kept = self.free.get(class).and_then(|free| {
            let mut free = free.lock().unwrap_or_else(PoisonError::into_inner);
            free.pop()
        });
        let buffer = kept.map_or_else(
            || Buffer::zeroed(pages * PAGE_BYTES),
            |buffer| {
                let size = buffer.len() as u64;
                self.kept_bytes.fetch_sub(size, Ordering::Relaxed);
                buffer
            },
        );
        Lent {
            buffer: Some(buffer),
            bytes,
            home: self.clone(),
        }
    }

    fn take_back(&self, buffer: Buffer) {
        let size = buffer.len() as u64;
        let class = (buffer.len() / PAGE_BYTES).trailing_zeros() as usize;
        let Some(free) = self.free.get(class) else {
            return;
        };
        if self.kept_bytes.fetch_add(size, Ordering::Relaxed) + size > self.keep_bytes {
            self.kept_bytes.fetch_sub(size, Ordering::Relaxed);
            return;
        }
        let mut free = free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(buffer);
    }
}

/// Memory that goes back when it is dropped.
#[derive(Debug)]
pub struct Lent {
    /// There until the drop.
    buffer: Option<Buffer>,
    bytes: usize,
    home: Arc<Buffers>,
}

impl Deref for Lent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let whole = self.buffer.as_deref().unwrap_or_default();
        whole.get(..self.bytes).unwrap_or_default()
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut [u8] {
        let whole = self.buffer.as_deref_mut().unwrap_or_default();
        whole.get_mut(..self.bytes).unwrap_or_default()
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.home.take_back(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_used_again() {
        let buffers = Buffers::new(1 << 20);
        for bytes in [1, 512, 4096, 4097, 12 << 10, 256 << 10] {
            let mut lent = buffers.lend(bytes);
            assert_eq!(lent.len(), bytes);
            assert!(Buffer::is_aligned(&lent, PAGE_BYTES));
            lent.fill(7);
            let place = lent.as_ptr();
            drop(lent);
            assert_eq!(buffers.lend(bytes).as_ptr(), place);
        }
    }

    #[test]
    fn memory_beyond_the_limit_is_given_back_to_the_system() {
        let buffers = Buffers::new(16 << 10);
        let lent: Vec<Lent> = (0..100).map(|_| buffers.lend(4096)).collect();
        drop(lent);
        assert_eq!(buffers.kept_bytes.load(Ordering::Relaxed), 16 << 10);
        drop(buffers.lend(64 << 20));
        assert_eq!(buffers.kept_bytes.load(Ordering::Relaxed), 16 << 10);
    }
}
