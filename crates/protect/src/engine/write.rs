//! Writes and trims: accepted in memory, all of a request or nothing.

use std::ops::Range;

use bytes::Bytes;
use wal::Piece;

use super::Engine;
use crate::block::BlockError;
use crate::core::{BLOCK_BYTES, Stamp};

/// Trims of fewer blocks are written as zeros: a trim costs a sync of the data device, a few blocks cost less.
const SMALL_TRIM_BLOCKS: u64 = 16;
/// How often a partial write is made again because its block has changed.
const CHANGES: usize = 1000;

/// Whether a request was accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// It was. The next read sees it; a flush makes it durable.
    Accepted,
    /// Too much is not durable or not settled yet. The caller waits and tries again.
    Wait,
}

/// A block of a request: whole, or merged from what it was at a time.
struct Part {
    block: u64,
    piece: Piece,
    merged: Option<Stamp>,
}

impl Engine {
    /// Writes whole sectors at `offset`: all of them or nothing. At most a MiB or so at once.
    ///
    /// # Errors
    /// [`BlockError::ReadOnly`], [`BlockError::Range`]; those of reads, if the request is not whole blocks.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<Admission, BlockError> {
        self.check_range(offset, from.len() as u64)?;
        self.refuse_if_failed()?;
        if !self.core().has_room(from.len()) {
            return Ok(Admission::Wait);
        }
        self.accept(&[(offset, from)], 0..0)
    }

    /// Accepts some bytes at their offsets, and zeros for some whole blocks: all or nothing.
    fn accept(&self, writes: &[(u64, &[u8])], trim: Range<u64>) -> Result<Admission, BlockError> {
        let bytes: usize = writes.iter().map(|(_, from)| from.len()).sum();
        for _ in 0..CHANGES {
            let mut parts = Vec::with_capacity(bytes / BLOCK_BYTES + 2);
            for (offset, from) in writes {
                self.cut(*offset, from, &mut parts)?;
            }
            let mut core = self.core();
            if bytes > 0 && !core.has_room(bytes) || !trim.is_empty() && !core.has_room_for_trim() {
                return Ok(Admission::Wait);
            }
            let merged = parts
                .iter()
                .filter_map(|part| Some((part.block, part.merged?)));
            if merged
                .into_iter()
                .any(|(block, stamp)| core.stamp(block) != stamp)
            {
                continue;
            }
            for part in parts {
                core.stage(part.block, part.piece);
            }
            if !trim.is_empty() {
                core.stage_trim(trim);
            }
            return Ok(Admission::Accepted);
        }
        Err(BlockError::Io {
            device: super::DATA,
            source: std::io::ErrorKind::ResourceBusy.into(),
        })
    }

    /// Cuts bytes into blocks. Blocks that they do not cover whole are read and merged.
    fn cut(&self, offset: u64, from: &[u8], parts: &mut Vec<Part>) -> Result<(), BlockError> {
        let mut done = 0;
        while done < from.len() {
            let at = offset + done as u64;
            let block = at / BLOCK_BYTES as u64;
            let inside = (at % BLOCK_BYTES as u64) as usize;
            let bytes = (BLOCK_BYTES - inside).min(from.len() - done);
            let new = &from[done..done + bytes];
            parts.push(self.part(block, inside, new)?);
            done += bytes;
        }
        Ok(())
    }

    fn part(&self, block: u64, inside: usize, new: &[u8]) -> Result<Part, BlockError> {
        let is_whole = inside == 0 && new.len() == self.real_bytes(block);
        let (page, merged) = if new.len() == BLOCK_BYTES {
            (Bytes::copy_from_slice(new), None)
        } else if is_whole {
            let mut page = vec![0; BLOCK_BYTES];
            page[..new.len()].copy_from_slice(new);
            (page.into(), None)
        } else {
            let (stamp, mut page) = self.read_stamped(block)?;
            page[inside..inside + new.len()].copy_from_slice(new);
            (Bytes::copy_from_slice(&page), Some(stamp))
        };
        let digest = self.digests.digest(&page);
        Ok(Part {
            block,
            piece: Piece { digest, page },
            merged,
        })
    }

    /// Makes whole sectors read as zeros: all of them or none.
    ///
    /// # Errors
    /// As [`write`](Engine::write).
    pub fn zero(&self, offset: u64, bytes: u64) -> Result<Admission, BlockError> {
        self.check_range(offset, bytes)?;
        self.refuse_if_failed()?;
        let whole = self.whole_blocks(offset, bytes);
        if whole.end.saturating_sub(whole.start) < SMALL_TRIM_BLOCKS {
            return self.write(offset, &vec![0; bytes as usize]);
        }
        let inner = whole.start * BLOCK_BYTES as u64;
        let outer = (whole.end * BLOCK_BYTES as u64).min(self.shape.bytes);
        let (head, tail) = ((inner - offset) as usize, (offset + bytes - outer) as usize);
        {
            // Before the edges are read: a trim that waits asks again and again.
            let core = self.core();
            if !core.has_room_for_trim() || head + tail > 0 && !core.has_room(head + tail) {
                return Ok(Admission::Wait);
            }
        }
        let zeros = [0; BLOCK_BYTES];
        let edges = [(offset, &zeros[..head]), (outer, &zeros[..tail])];
        self.accept(&edges, whole)
    }

    /// The blocks that lie in the range whole. A short last block is whole if the range reaches the end.
    fn whole_blocks(&self, offset: u64, bytes: u64) -> Range<u64> {
        let block_bytes = BLOCK_BYTES as u64;
        let end = offset + bytes;
        let last = if end == self.shape.bytes {
            end.div_ceil(block_bytes)
        } else {
            end / block_bytes
        };
        offset.div_ceil(block_bytes)..last
    }
}
