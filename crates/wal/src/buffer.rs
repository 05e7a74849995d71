//! Memory that devices without a page cache accept: its address is a multiple of [`PAGE_BYTES`] (open(2), O_DIRECT).

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Bytes of a page: of a piece of payload, of a block of a protected device, of a page of a map.
pub const PAGE_BYTES: usize = 4096;
/// The same, as positions are computed.
pub(crate) const PAGE: u64 = PAGE_BYTES as u64;

/// Bytes in memory whose address is a multiple of [`PAGE_BYTES`].
pub struct Buffer {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Buffer {
    /// `bytes` zeros.
    pub fn zeroed(bytes: usize) -> Buffer {
        let memory = vec![0; bytes + PAGE_BYTES];
        let start = memory.as_ptr().align_offset(PAGE_BYTES);
        debug_assert!(start < PAGE_BYTES);
        Buffer {
            memory,
            start,
            bytes,
        }
    }

    /// A copy of `bytes`.
    pub fn copy(bytes: &[u8]) -> Buffer {
        let mut copy = Buffer::zeroed(bytes.len());
        copy.copy_from_slice(bytes);
        copy
    }

    /// Whether the address of `bytes` is a multiple of `align`, a power of two.
    pub fn is_aligned(bytes: &[u8], align: usize) -> bool {
        bytes.as_ptr().align_offset(align) == 0
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.bytes]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Buffer {
        Buffer::copy(self)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_aligned_wherever_the_allocator_puts_it() {
        for bytes in [0, 1, 511, 4096, 4097, 1 << 20] {
            let buffers: Vec<Buffer> = (0..7).map(|_| Buffer::zeroed(bytes)).collect();
            for buffer in &buffers {
                assert!(Buffer::is_aligned(buffer, PAGE_BYTES));
                assert_eq!(buffer.len(), bytes);
            }
        }
    }
}
