//! The chain of frames from the tail to the end of the log, and what destroyed frames leave behind
//! (design: end of log).

use crate::buffer::{PAGE, PAGE_BYTES};
use crate::device::Device;
use crate::error::LogError;
use crate::frame::{Fixed, FrameKey, Header, records};
use crate::key::DigestKey;
use crate::layout::Layout;
use crate::position::{Lsn, Mark};
use crate::ring::RingReader;
use crate::superblock::Gap;

/// Follows the chain.
#[derive(Clone, Copy)]
pub(crate) struct Chain<'a> {
    pub key: &'a FrameKey,
    pub digests: &'a DigestKey,
    pub layout: &'a Layout,
    pub gaps: &'a [Gap],
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

/// How far the log is known to have been durable, and where a proof of more may lie.
pub(crate) struct Evidence<'a> {
    pub device: &'a dyn Device,
    /// Everything before this position was durable once.
    pub known: Lsn,
    /// A user gave up the frames of epochs up to this one. They prove nothing.
    pub cut_epoch: u64,
    /// Positions that cannot be read are passed over.
    pub skip_errors: bool,
}

/// Bytes that are read ahead where a proof is looked for.
const PROOF_AHEAD_BYTES: usize = 256 << 10;

impl Chain<'_> {
    /// Where the log goes on after this frame.
    pub fn beyond(&self, end: &Mark) -> Mark {
        let gap = self.gaps.iter().find(|gap| gap.at.is_same_frame(end));
        Mark {
            lsn: gap.map_or(end.lsn, |gap| gap.to),
            ..*end
        }
    }

    /// The frame after `previous`; `None` if there is no such frame. Its pages may be anything. A header that does not
    /// fit is read once more, in case it was changed on the way: it would look like the end of the log.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn next(
        &self,
        reader: &mut RingReader<'_>,
        previous: &Mark,
    ) -> Result<Option<Found>, LogError> {
        let previous = &self.beyond(previous);
        if let Some(found) = self.read_next(reader, previous)? {
            return Ok(Some(found));
        }
        reader.forget();
        self.read_next(reader, previous)
    }

    fn read_next(
        &self,
        reader: &mut RingReader<'_>,
        previous: &Mark,
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
        Ok(Some(Found {
            lsn: fixed.lsn,
            mark: header.mark(),
            payload: fixed.payload(),
            records: header.encoded().into(),
        }))
    }

    /// The frame's pages that do not match their digests.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn wrong_pages(
        &self,
        reader: &mut RingReader<'_>,
        found: &Found,
    ) -> Result<Vec<Lsn>, LogError> {
        let records = records(&found.records, found.payload);
        let digests = records.flat_map(|(_, record)| record.digests());
        let mut wrong = Vec::new();
        let mut at = found.payload;
        for digest in digests {
            if self.digests.digest(reader.get(at, PAGE_BYTES)?) != digest
                && !reader.has_after_all(at, digest, self.digests)?
            {
                wrong.push(at);
            }
            at.0 += PAGE;
        }
        Ok(wrong)
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
    /// frame at `end` was destroyed.
    ///
    /// # Errors
    /// [`LogError::Integrity`], or [`LogError::Io`] unless errors are passed over.
    pub fn refuse_destroyed(
        &self,
        reader: &mut RingReader<'_>,
        end: Lsn,
        evidence: &Evidence<'_>,
    ) -> Result<(), LogError> {
        if self.find_proof(reader, end, end, evidence)?.is_some() {
            return Err(LogError::Integrity {
                lsn: end,
                why: "a frame that was durable is destroyed",
            });
        }
        Ok(())
    }

    /// Whether the frame was durable once: a witness remembers it, or an authentic frame says so. One that was not may
    /// be torn by a crash.
    ///
    /// # Errors
    /// [`LogError::Io`] unless errors are passed over.
    pub fn was_durable(
        &self,
        frame: &Found,
        evidence: &mut Evidence<'_>,
    ) -> Result<bool, LogError> {
        let end = frame.mark.lsn;
        if end <= evidence.known {
            return Ok(true);
        }
        let mut reader = RingReader::new(evidence.device, self.layout, PROOF_AHEAD_BYTES);
        let proof = self.find_proof(&mut reader, frame.lsn, Lsn(end.0 - 1), evidence)?;
        evidence.known = proof.unwrap_or(evidence.known);
        Ok(proof.is_some())
    }

    /// Looks from `from` on for an authentic frame that was made when more than `before` was durable. Returns how much.
    fn find_proof(
        &self,
        reader: &mut RingReader<'_>,
        from: Lsn,
        before: Lsn,
        evidence: &Evidence<'_>,
    ) -> Result<Option<Lsn>, LogError> {
        let range = 2 * self.layout.window_bytes() + self.layout.max_frame_bytes();
        let last = from.0 + range.min(self.layout.ring_bytes);
        let mut at = from;
        while at.0 < last {
            match self.proves(reader, at, before, evidence.cut_epoch) {
                Err(error) if !evidence.skip_errors => return Err(error),
                Ok(Some(stable)) => return Ok(Some(stable)),
                _ => at.0 += PAGE,
            }
        }
        Ok(None)
    }

    /// How much was durable, if an authentic frame at this position, of any lap, says that it was more than `before`.
    fn proves(
        &self,
        reader: &mut RingReader<'_>,
        at: Lsn,
        before: Lsn,
        cut_epoch: u64,
    ) -> Result<Option<Lsn>, LogError> {
        let Some(fixed) = Fixed::decode(reader.get(at, PAGE_BYTES)?, self.key.volume()) else {
            return Ok(None);
        };
        let here = self.layout.offset(fixed.lsn) == self.layout.offset(at)
            && fixed.header_bytes() as u64 <= self.layout.rest_of_lap(at);
        if !here || fixed.stable <= before || fixed.epoch <= cut_epoch {
            return Ok(None);
        }
        let bytes = reader.get(at, fixed.header_bytes())?;
        Ok(Header::open(bytes, self.key).map(|header| header.fixed.stable))
    }
}
