//! The chain of frames from the tail to the end of the log, and what destroyed frames leave behind
//! (design: end of log).

use crate::buffer::{PAGE, PAGE_BYTES};
use crate::error::LogError;
use crate::frame::{Fixed, FrameKey, Header, records};
use crate::key::DigestKey;
use crate::layout::Layout;
use crate::position::{Lsn, Mark};
use crate::ring::RingReader;

/// Follows the chain.
#[derive(Clone, Copy)]
pub(crate) struct Chain<'a> {
    pub key: &'a FrameKey,
    pub digests: &'a DigestKey,
    pub layout: &'a Layout,
}

/// A frame of the chain.
#[derive(Debug)]
pub(crate) struct Found {
    pub lsn: Lsn,
    /// Its end and tag.
    pub mark: Mark,
    /// Position of its first page.
    pub payload: Lsn,
    /// Its records, encoded.
    pub records: Box<[u8]>,
}

impl Chain<'_> {
    /// The frame after `previous`; `None` if there is no such frame. With `pages` the frame's pages must match their
    /// digests.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn next(
        &self,
        reader: &mut RingReader<'_>,
        previous: &Mark,
        pages: bool,
    ) -> Result<Option<Found>, LogError> {
        let first = reader.get(previous.lsn, PAGE_BYTES)?;
        let Some(fixed) = Fixed::decode(first, self.key.volume()) else {
            return Ok(None);
        };
        if !self.follows(&fixed, previous) {
            return Ok(None);
        }
        let bytes = reader.get(previous.lsn, fixed.header_bytes())?;
        let Some(header) = Header::open(bytes, self.key) else {
            return Ok(None);
        };
        let found = Found {
            lsn: fixed.lsn,
            mark: header.mark(),
            payload: fixed.payload(),
            records: header.encoded().into(),
        };
        if pages && !self.pages_match(reader, &found)? {
            return Ok(None);
        }
        Ok(Some(found))
    }

    fn pages_match(&self, reader: &mut RingReader<'_>, found: &Found) -> Result<bool, LogError> {
        let records = records(&found.records, found.payload);
        let digests = records.flat_map(|(_, record)| record.digests());
        let mut at = found.payload;
        for digest in digests {
            if self.digests.digest(reader.get(at, PAGE_BYTES)?) != digest {
                return Ok(false);
            }
            at.0 += PAGE;
        }
        Ok(true)
    }

    fn follows(&self, fixed: &Fixed, previous: &Mark) -> bool {
        let rest = self.layout.rest_of_lap(fixed.lsn);
        fixed.lsn == previous.lsn
            && fixed.previous == previous.tag
            && fixed.epoch >= previous.epoch
            && fixed.stable <= fixed.lsn
            && (fixed.bytes == rest || !fixed.padding && fixed.bytes < rest)
    }

    /// Looks beyond the end for an authentic frame that was made when more than `end` was durable: then a durable
    /// frame at `end` was destroyed. Frames of epochs up to `cut_epoch` were given up.
    ///
    /// # Errors
    /// [`LogError::Integrity`], or [`LogError::Io`] unless `skip_errors`.
    pub fn refuse_destroyed(
        &self,
        reader: &mut RingReader<'_>,
        end: Lsn,
        cut_epoch: u64,
        skip_errors: bool,
    ) -> Result<(), LogError> {
        let range = 2 * self.layout.window_bytes() + self.layout.max_frame_bytes();
        let last = end.0 + range.min(self.layout.ring_bytes);
        let mut at = end;
        while at.0 < last {
            match self.proves_loss(reader, at, end, cut_epoch) {
                Err(error) if !skip_errors => return Err(error),
                Ok(true) => {
                    return Err(LogError::Integrity {
                        lsn: end,
                        why: "a frame that was durable is destroyed",
                    });
                }
                _ => at.0 += PAGE,
            }
        }
        Ok(())
    }

    /// Whether an authentic frame at this position, of any lap, says that more than `end` was durable.
    fn proves_loss(
        &self,
        reader: &mut RingReader<'_>,
        at: Lsn,
        end: Lsn,
        cut_epoch: u64,
    ) -> Result<bool, LogError> {
        let Some(fixed) = Fixed::decode(reader.get(at, PAGE_BYTES)?, self.key.volume()) else {
            return Ok(false);
        };
        let here = self.layout.offset(fixed.lsn) == self.layout.offset(at)
            && fixed.header_bytes() as u64 <= self.layout.rest_of_lap(at);
        if !here || fixed.stable <= end || fixed.epoch <= cut_epoch {
            return Ok(false);
        }
        let bytes = reader.get(at, fixed.header_bytes())?;
        Ok(Header::open(bytes, self.key).is_some())
    }
}
