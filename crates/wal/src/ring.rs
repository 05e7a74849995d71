//! Sequential reading of the ring in large pieces, with bounded memory.

use std::collections::VecDeque;

use crate::buffer::{Buffer, PAGE, PAGE_BYTES};
use crate::device::Device;
use crate::error::LogError;
use crate::frame::MAX_HEADER_BYTES;
use crate::key::{Digest, DigestKey};
use crate::layout::Layout;
use crate::position::{Lsn, Mark};

const TRIES: usize = 3;

/// Reads ahead of what is asked for, up to the ring's end.
pub(crate) struct RingReader<'a> {
    device: &'a dyn Device,
    layout: &'a Layout,
    ahead: usize,
    buffer: Buffer,
    start: Lsn,
    filled: usize,
    /// Nothing is read ahead before this position: there is a page that cannot be read.
    cautious: Lsn,
}

impl<'a> RingReader<'a> {
    /// `ahead`: bytes to read beyond what is asked for, whole pages.
    pub fn new(device: &'a dyn Device, layout: &'a Layout, ahead: usize) -> RingReader<'a> {
        RingReader {
            device,
            layout,
            ahead,
            buffer: Buffer::zeroed(MAX_HEADER_BYTES as usize + ahead),
            start: Lsn(0),
            filled: 0,
            cautious: Lsn(0),
        }
    }

    /// `bytes` of the ring from `lsn`: whole pages, at most [`MAX_HEADER_BYTES`], within one lap.
    ///
    /// # Errors
    /// [`LogError::Io`] after some tries. Only an error within the range that was asked for is reported.
    pub fn get(&mut self, lsn: Lsn, bytes: usize) -> Result<&[u8], LogError> {
        debug_assert!(bytes as u64 <= MAX_HEADER_BYTES.min(self.layout.rest_of_lap(lsn)));
        let skip = lsn.0.wrapping_sub(self.start.0);
        if lsn < self.start || skip > self.filled as u64 {
            (self.start, self.filled) = (lsn, 0);
        } else if self.filled as u64 - skip < bytes as u64 {
            self.buffer.copy_within(skip as usize..self.filled, 0);
            (self.start, self.filled) = (lsn, self.filled - skip as usize);
        }
        let at = (lsn.0 - self.start.0) as usize;
        if self.filled < at + bytes {
            self.fill(bytes)?;
        }
        Ok(&self.buffer[at..at + bytes])
    }

    /// Whether the page has this digest when it is read once more: it may have changed on the way.
    ///
    /// # Errors
    /// [`LogError::Io`]
    pub fn has_after_all(
        &self,
        lsn: Lsn,
        digest: Digest,
        digests: &DigestKey,
    ) -> Result<bool, LogError> {
        let mut page = Buffer::zeroed(PAGE_BYTES);
        read_page(self.device, self.layout.offset(lsn), &mut page)?;
        Ok(digests.digest(&page) == digest)
    }

    /// Reads anew from now on what was read before.
    pub fn forget(&mut self) {
        self.filled = 0;
    }

    /// Fills the buffer from `start`: at least `needed` bytes, more if the device allows.
    fn fill(&mut self, needed: usize) -> Result<(), LogError> {
        let rest = self.layout.rest_of_lap(self.start);
        let ahead = if self.start < self.cautious {
            0
        } else {
            self.ahead
        };
        let want = ((needed + ahead) as u64).min(rest) as usize;
        let offset = self.layout.offset(self.start);
        let missing = &mut self.buffer[self.filled..want];
        if self
            .device
            .read(offset + self.filled as u64, missing)
            .is_ok()
        {
            self.filled = want;
            return Ok(());
        }
        self.cautious = Lsn(self.start.0 + want as u64).max(self.cautious);
        while self.filled < needed {
            let page = &mut self.buffer[self.filled..self.filled + PAGE_BYTES];
            read_page(self.device, offset + self.filled as u64, page)?;
            self.filled += PAGE_BYTES;
        }
        Ok(())
    }
}

/// Reads a page, in several tries.
pub(crate) fn read_page(device: &dyn Device, offset: u64, page: &mut [u8]) -> Result<(), LogError> {
    let mut tries = 1;
    loop {
        match device.read(offset, page) {
            Ok(()) => return Ok(()),
            Err(e) if tries == TRIES => return Err(LogError::io("read", offset, e)),
            Err(_) => tries += 1,
        }
    }
}

/// Reads and verifies a page of payload. A mismatch is read once more, in case it happened on the way.
pub(crate) fn read_payload(
    device: &dyn Device,
    layout: &Layout,
    digests: &DigestKey,
    lsn: Lsn,
    digest: Digest,
) -> Result<Buffer, LogError> {
    let mut page = Buffer::zeroed(PAGE_BYTES);
    for _ in 0..2 {
        read_page(device, layout.offset(lsn), &mut page)?;
        if digests.digest(&page) == digest {
            return Ok(page);
        }
    }
    Err(LogError::Integrity {
        lsn,
        why: "a page does not match its digest",
    })
}

/// Frame boundaries that a tail can be set to. Only some are kept, so that their number is bounded.
#[derive(Debug)]
pub(crate) struct Boundaries {
    step: u64,
    first: Mark,
    marks: VecDeque<Mark>,
}

impl Boundaries {
    /// `tail`: where the log begins.
    pub fn new(tail: Mark, ring_bytes: u64) -> Boundaries {
        Boundaries {
            step: (ring_bytes / 4096).max(PAGE),
            first: tail,
            marks: [tail].into(),
        }
    }

    /// Where the log begins.
    pub fn first(&self) -> Mark {
        self.first
    }

    /// Notes the end of a frame.
    pub fn push(&mut self, mark: Mark) {
        let last = self.marks.back().map_or(0, |last| last.lsn.0);
        if self.marks.is_empty() || mark.lsn.0 >= last + self.step {
            self.marks.push_back(mark);
        }
    }

    /// The last known boundary that is not after `oldest`.
    pub fn before(&self, oldest: Lsn) -> Option<Mark> {
        let after = self.marks.partition_point(|mark| mark.lsn <= oldest);
        after
            .checked_sub(1)
            .and_then(|n| self.marks.get(n))
            .copied()
    }

    /// Forgets boundaries before `tail`.
    pub fn release(&mut self, tail: Mark) {
        while self.marks.front().is_some_and(|mark| mark.lsn <= tail.lsn) {
            self.marks.pop_front();
        }
        self.marks.push_front(tail);
        self.first = tail;
    }
}
