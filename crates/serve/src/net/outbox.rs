//! Gathers answers for one vectored write: bodies stay where they are, headers and other small
//! parts share one buffer.

use std::io::IoSlice;
use std::ops::Range;

use bytes::{BufMut, Bytes};
use wire::frame::Header;
use wire::refusal::{ErrorCode, put_error};

/// Parts of one `writev`.
const MAX_SLICES: usize = 64;

/// Bytes that wait to be written.
#[derive(Default)]
pub(crate) struct Outbox {
    small: Vec<u8>,
    parts: Vec<Part>,
    /// First part that is not fully written, and how much of it is written.
    next: usize,
    done_bytes: usize,
    left_bytes: usize,
}

enum Part {
    Small(Range<usize>),
    Region(Bytes),
}

impl Outbox {
    /// Bytes not yet written.
    pub(crate) fn left_bytes(&self) -> usize {
        self.left_bytes
    }

    /// Appends raw bytes.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.write_small(|out| out.put_slice(bytes));
    }

    /// Appends a message.
    pub(crate) fn message(&mut self, kind: u8, id: u32, body: Bytes) {
        let body_bytes = body.len();
        self.write_small(|out| Header::new(kind, id, body_bytes).put(out));
        if body_bytes > 0 {
            self.left_bytes += body_bytes;
            self.parts.push(Part::Region(body));
        }
    }

    /// Appends an ERROR.
    pub(crate) fn error(&mut self, id: u32, code: ErrorCode, text: &str) {
        self.write_small(|out| put_error(out, id, code, text));
    }

    fn write_small(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        let from = self.small.len();
        put(&mut self.small);
        let to = self.small.len();
        self.left_bytes += to - from;
        match self.parts.last_mut() {
            Some(Part::Small(range)) => range.end = to,
            _ => self.parts.push(Part::Small(from..to)),
        }
    }

    /// Calls `write` with the next parts.
    pub(crate) fn with_slices<T>(&self, write: impl FnOnce(&[IoSlice<'_>]) -> T) -> T {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let mut used = 0;
        let rest = self.parts.iter().skip(self.next);
        for (slot, part) in slices.iter_mut().zip(rest) {
            let bytes = match part {
                Part::Small(range) => self.small.get(range.clone()).unwrap_or_default(),
                Part::Region(bytes) => bytes,
            };
            let skip = if used == 0 { self.done_bytes } else { 0 };
            *slot = IoSlice::new(bytes.get(skip..).unwrap_or_default());
            used += 1;
        }
        write(slices.get(..used).unwrap_or_default())
    }

    /// Removes bytes that were written.
    pub(crate) fn advance(&mut self, mut bytes: usize) {
        self.left_bytes = self.left_bytes.saturating_sub(bytes);
        if self.left_bytes == 0 {
            return self.clear();
        }
        while let Some(part) = self.parts.get_mut(self.next) {
            let len = match part {
                Part::Small(range) => range.len(),
                Part::Region(region) => region.len(),
            };
            let left = len.saturating_sub(self.done_bytes);
            if bytes < left {
                self.done_bytes += bytes;
                return;
            }
            bytes -= left;
            *part = Part::Small(0..0);
            self.done_bytes = 0;
            self.next += 1;
        }
    }

    /// Removes everything; an idle connection keeps no buffer.
    fn clear(&mut self) {
        self.parts.clear();
        self.small.clear();
        if self.small.capacity() > 4096 {
            self.small = Vec::new();
        }
        if self.parts.capacity() > 64 {
            self.parts = Vec::new();
        }
        self.next = 0;
        self.done_bytes = 0;
        self.left_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_keep_their_order_whatever_is_written_at_once() {
        let regions: Vec<Bytes> = (1..100u8)
            .map(|n| Bytes::from(vec![n; usize::from(n)]))
            .collect();
        for step in [1, 7, 64, 1000, 1 << 20] {
            let mut outbox = Outbox::default();
            outbox.raw(b"hello");
            for region in &regions {
                outbox.message(0x82, 9, region.clone());
            }
            outbox.message(0x83, 9, Bytes::new());
            outbox.error(4, ErrorCode::BUSY, "no");
            let total = outbox.left_bytes();
            let mut got = Vec::new();
            while outbox.left_bytes() > 0 {
                let n = outbox.with_slices(|slices| {
                    let all: Vec<u8> = slices.iter().flat_map(|s| s.to_vec()).collect();
                    let n = all.len().min(step);
                    assert!(n > 0);
                    got.extend_from_slice(&all[..n]);
                    n
                });
                outbox.advance(n);
            }
            assert_eq!(got.len(), total);
            let mut expected = b"hello".to_vec();
            for region in &regions {
                let header = Header {
                    kind: 0x82,
                    id: 9,
                    body_bytes: region.len(),
                };
                header.put(&mut expected);
                expected.extend_from_slice(region);
            }
            assert_eq!(got[..expected.len()], expected);
            assert!(outbox.parts.is_empty());
        }
    }
}
