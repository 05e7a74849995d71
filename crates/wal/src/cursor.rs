//! A client's records in the order of the log, after it was opened.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::chain::{Chain, Found};
use crate::device::Device;
use crate::error::LogError;
use crate::frame;
use crate::key::Digest;
use crate::position::{Lsn, Mark};
use crate::record::Client;
use crate::ring::RingReader;

/// Records of at most so many bytes are kept while a log is opened.
const MAX_KEPT_BYTES: usize = 64 << 20;
/// What a kept frame costs beside its records.
const FRAME_COST_BYTES: usize = size_of::<Found>();
/// Bytes that are read ahead where pages of payload are skipped.
const AHEAD_BYTES: usize = 128 << 10;

/// A record that was found in the log.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Where the record's frame begins.
    pub frame: Lsn,
    /// Where the frame ends.
    pub frame_end: Lsn,
    /// Position of the record's first page; the others follow.
    pub payload: Lsn,
    /// What the client calls it.
    pub kind: u8,
    /// The record's body.
    pub body: Bytes,
    /// The digest of each page.
    pub digests: Vec<Digest>,
}

/// The records of the first frames of the log, so that a cursor need not read the ring again.
pub(crate) struct Kept {
    frames: Vec<Found>,
    bytes: usize,
    full: bool,
    /// The end of the last frame whose records are kept.
    until: Mark,
}

impl Kept {
    /// Keeps nothing yet of a log that begins at `tail`.
    pub fn new(tail: Mark) -> Kept {
        Kept {
            frames: Vec::new(),
            bytes: 0,
            full: false,
            until: tail,
        }
    }

    /// Keeps the next frame, if there is room.
    pub fn push(&mut self, frame: Found) {
        self.bytes += frame.records.len() + FRAME_COST_BYTES;
        self.full |= self.bytes > MAX_KEPT_BYTES;
        if self.full {
            return;
        }
        self.until = frame.mark;
        if !frame.records.is_empty() {
            self.frames.push(frame);
        }
    }
}

/// Iterator over a client's records. It ends after an error.
pub struct Cursor<'a> {
    chain: Chain<'a>,
    kept: std::slice::Iter<'a, Found>,
    reader: RingReader<'a>,
    client: Client,
    oldest: Lsn,
    at: Mark,
    end: Mark,
    entries: VecDeque<Entry>,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(
        device: &'a dyn Device,
        chain: Chain<'a>,
        kept: &'a Kept,
        client: Client,
        oldest: Lsn,
        end: Mark,
    ) -> Cursor<'a> {
        Cursor {
            reader: RingReader::new(device, chain.layout, AHEAD_BYTES),
            chain,
            kept: kept.frames.iter(),
            client,
            oldest,
            at: kept.until,
            end,
            entries: VecDeque::new(),
        }
    }

    /// Takes the records of the next frame. `false`: there is none.
    fn advance(&mut self) -> Result<bool, LogError> {
        if let Some(frame) = self.kept.next() {
            self.take(frame);
            return Ok(true);
        }
        self.at = self.chain.beyond(&self.at);
        if self.at.is_same_frame(&self.end) {
            return Ok(false);
        }
        // The end is where it was when the log was opened. If it is not, the device has changed its mind.
        let next = self.chain.next(&mut self.reader, &self.at)?;
        let frame = next.ok_or(LogError::Integrity {
            lsn: self.at.lsn,
            why: "a frame that was there is gone",
        })?;
        self.at = frame.mark;
        self.take(&frame);
        Ok(true)
    }

    fn take(&mut self, found: &Found) {
        if found.lsn < self.oldest {
            return;
        }
        let records = frame::records(&found.records, found.payload);
        let own = records.filter(|(_, record)| record.client == self.client);
        self.entries.extend(own.map(|(payload, record)| Entry {
            frame: found.lsn,
            frame_end: found.mark.lsn,
            payload,
            kind: record.kind,
            body: Bytes::copy_from_slice(record.body),
            digests: record.digests().collect(),
        }));
    }
}

impl Iterator for Cursor<'_> {
    type Item = Result<Entry, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.entries.pop_front() {
                return Some(Ok(entry));
            }
            match self.advance() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    self.at = self.end;
                    return Some(Err(error));
                }
            }
        }
    }
}
