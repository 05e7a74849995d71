//! Reads: from memory, from the log, or from the data device, verified (PFS 4.2).

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wal::{Buffer, Digest, Piece};

use super::{DATA, Engine, LOG};
use crate::block::BlockError;
use crate::core::{BLOCK_BYTES, Source, Stamp};
use crate::map::{MapError, Value};

/// Most blocks of one read of the data device.
const STEP_BLOCKS: u64 = 256;
/// How often a block that keeps changing is read before its reader gets an error. Each time a newer write of it
/// was accepted, so this takes a writer that is faster than the data device.
const CHANGES: usize = 1000;

static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

impl Engine {
    /// Fills `into` from `offset`, both whole sectors.
    ///
    /// # Errors
    /// [`BlockError::Integrity`] for a block that is nowhere as it was written, [`BlockError::Io`],
    /// [`BlockError::Range`]. [`BlockError::ReadOnly`] for a block that is not as it was written here, because another
    /// host has taken the devices.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
        self.check_range(offset, into.len() as u64)?;
        let end = offset + into.len() as u64;
        let block_bytes = BLOCK_BYTES as u64;
        self.read_blocks(
            offset / block_bytes..end.div_ceil(block_bytes),
            &mut |block, page| {
                let start = block * block_bytes;
                let (from, to) = (offset.max(start), end.min(start + block_bytes));
                let (from_in, to_in) = ((from - offset) as usize, (to - offset) as usize);
                let page = &page[(from - start) as usize..(to - start) as usize];
                into[from_in..to_in].copy_from_slice(page);
            },
        )
    }

    /// As [`read`](Engine::read), if all of it is in memory. False: `into` may have any content.
    ///
    /// # Errors
    /// [`BlockError::Range`].
    pub fn read_memory(&self, offset: u64, into: &mut [u8]) -> Result<bool, BlockError> {
        self.check_range(offset, into.len() as u64)?;
        let core = self.core();
        let mut at = offset;
        let mut rest = into;
        while !rest.is_empty() {
            let inside = (at % BLOCK_BYTES as u64) as usize;
            let (part, after) = rest.split_at_mut(rest.len().min(BLOCK_BYTES - inside));
            match core.source(at / BLOCK_BYTES as u64) {
                Source::Page(page) => part.copy_from_slice(&page[inside..inside + part.len()]),
                Source::Zero => part.fill(0),
                Source::Log(..) | Source::Settled => return Ok(false),
            }
            at += part.len() as u64;
            rest = after;
        }
        Ok(true)
    }

    /// The content of a block and the stamp of the time before it was read.
    pub(super) fn read_stamped(&self, block: u64) -> Result<(Stamp, Buffer), BlockError> {
        let stamp = self.core().stamp(block);
        let mut content = Buffer::zeroed(BLOCK_BYTES);
        self.read_blocks(block..block + 1, &mut |_, page| {
            content.copy_from_slice(page)
        })?;
        Ok((stamp, content))
    }

    /// Shows each block of the range to `visit`, in order. The last block of the device ends in zeros.
    fn read_blocks(
        &self,
        range: Range<u64>,
        visit: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), BlockError> {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start + STEP_BLOCKS);
            self.read_step(start..end, visit)?;
            start = end;
        }
        Ok(())
    }

    fn read_step(
        &self,
        range: Range<u64>,
        visit: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), BlockError> {
        let sources: Vec<Source> = {
            let core = self.core();
            range.clone().map(|block| core.source(block)).collect()
        };
        let mut run = range.start..range.start;
        for (block, source) in range.zip(&sources) {
            if matches!(source, Source::Settled) {
                run.end = block + 1;
                continue;
            }
            self.read_settled(run, visit)?;
            run = block + 1..block + 1;
            match source {
                Source::Page(page) => visit(block, page),
                Source::Zero => visit(block, &ZEROS),
                Source::Log(lsn, digest) => match self.log.read(*lsn, *digest) {
                    Ok(page) => visit(block, &page),
                    Err(_) => visit(block, &self.read_again(block)?),
                },
                Source::Settled => {}
            }
        }
        self.read_settled(run, visit)
    }

    /// Reads blocks whose newest version is settled.
    fn read_settled(
        &self,
        run: Range<u64>,
        visit: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), BlockError> {
        if run.is_empty() {
            return Ok(());
        }
        let (values, pages) = match self.map.get_range_at_once(run.clone()) {
            Some(values) if values.iter().all(|value| *value == Value::Zero) => {
                run.for_each(|block| visit(block, &ZEROS));
                return Ok(());
            }
            Some(values) => (Ok(values), self.read_data(run.clone())),
            None => self.read_both(&run),
        };
        let Ok(values) = values else {
            // Each block for itself: only some depend on what cannot be read.
            for block in run {
                visit(block, &self.read_again(block)?);
            }
            return Ok(());
        };
        for (n, (block, value)) in run.zip(values).enumerate() {
            let page = pages
                .as_ref()
                .ok()
                .map(|pages| &pages[n * BLOCK_BYTES..][..BLOCK_BYTES]);
            match (value, page) {
                (Value::Zero, _) => visit(block, &ZEROS),
                (Value::Digest(digest), Some(page)) if self.digests.digest(page) == digest => {
                    visit(block, page);
                }
                _ => visit(block, &self.read_again(block)?),
            }
        }
        Ok(())
    }

    /// Reads pages of the map and the data device at once, if no other reader does and another thread has time: with
    /// many readers the devices are busy anyway.
    fn read_both(&self, run: &Range<u64>) -> (Result<Vec<Value>, MapError>, io::Result<Buffer>) {
        let (send, values) = std::sync::mpsc::sync_channel(1);
        let (map, wanted) = (Arc::clone(&self.map), run.clone());
        let read_map = Box::new(move || {
            // Nobody waits any more if the reader has panicked.
            let _ = send.send(map.get_range(wanted));
        });
        let readers = Readers::enter(&self.map_readers);
        let beside = self.beside.get().filter(|_| readers.is_alone());
        let is_beside = beside.is_some_and(|beside| beside.run(read_map));
        let pages = self.read_data(run.clone());
        let values = values.recv().ok().filter(|_| is_beside);
        (
            values.unwrap_or_else(|| self.map.get_range(run.clone())),
            pages,
        )
    }

    /// Reads a block whose first read failed. It counts as bad if it is wrong twice, without a newer write of it in
    /// between: beside a write the data device may have any mixture.
    fn read_again(&self, block: u64) -> Result<Buffer, BlockError> {
        let mut wrong = None;
        for _ in 0..CHANGES {
            let (source, stamp) = {
                let core = self.core();
                (core.source(block), core.stamp(block))
            };
            let error = match self.read_source(block, source) {
                Ok(page) => return Ok(page),
                Err(error) => error,
            };
            if self.core().stamp(block) != stamp {
                wrong = None;
                continue;
            }
            match wrong.replace(error) {
                None => continue,
                Some(_) => break,
            }
        }
        // A host that has taken the devices writes to them: what it wrote is no damage.
        if let Some(why) = self.lease().and_then(|lease| {
            let _ = lease.look();
            lease.lost()
        }) {
            let why = why.to_string();
            return Err(BlockError::ReadOnly { why });
        }
        if let Some(page) = self.repair(block) {
            return Ok(page);
        }
        let error = wrong.unwrap_or_else(|| self.bad(block));
        match &error {
            BlockError::Integrity { block, offset } => self.watch.bad_block(*block, *offset),
            BlockError::Io { device, source } => self.watch.device_failed(device, source),
            _ => {}
        }
        Err(error)
    }

    /// A settled block that the data device lost, if the ring still has it; it is written again.
    fn repair(&self, block: u64) -> Option<Buffer> {
        let (payload, stamp) = {
            let core = self.core();
            let is_settled = matches!(core.source(block), Source::Settled);
            (
                core.retired(block).filter(|_| is_settled)?,
                core.stamp(block),
            )
        };
        let Ok(Value::Digest(digest)) = self.map.get(block) else {
            return None;
        };
        let page = self.log.read_released(payload, digest)?;
        self.watch.repaired_block(block, block * BLOCK_BYTES as u64);
        let copy = Buffer::copy(&page);
        let mut core = self.core();
        if core.stamp(block) == stamp && self.failure().is_none() {
            core.stage(block, Piece { digest, page });
        }
        Some(copy)
    }

    fn read_source(&self, block: u64, source: Source) -> Result<Buffer, BlockError> {
        match source {
            Source::Page(page) => Ok(Buffer::copy(&page)),
            Source::Zero => Ok(Buffer::zeroed(BLOCK_BYTES)),
            Source::Log(lsn, digest) => match self.log.read(lsn, digest) {
                Ok(page) => Ok(Buffer::copy(&page)),
                Err(wal::LogError::Io { source, .. }) => Err(BlockError::Io {
                    device: LOG,
                    source: io_error(&source),
                }),
                // It may be written home, and not settled yet.
                Err(_) => self.read_digest(block, digest).map_err(|_| self.bad(block)),
            },
            Source::Settled => {
                match self
                    .map
                    .get(block)
                    .map_err(|error| map_error(block, error))?
                {
                    Value::Zero => Ok(Buffer::zeroed(BLOCK_BYTES)),
                    Value::Digest(digest) => self.read_digest(block, digest),
                    Value::Bad | Value::Unseen => Err(self.bad(block)),
                }
            }
        }
    }

    /// The data device's content of a block, if it is the one with this digest.
    pub(super) fn read_digest(&self, block: u64, digest: Digest) -> Result<Buffer, BlockError> {
        let read = self.read_data(block..block + 1);
        let page = read.map_err(|source| BlockError::Io {
            device: DATA,
            source,
        })?;
        if self.digests.digest(&page) == digest {
            Ok(page)
        } else {
            Err(self.bad(block))
        }
    }

    /// What the data device has, unverified. Blocks beyond its end are zeros.
    pub(crate) fn read_data(&self, run: Range<u64>) -> io::Result<Buffer> {
        let offset = run.start * BLOCK_BYTES as u64;
        let mut pages = Buffer::zeroed((run.end - run.start) as usize * BLOCK_BYTES);
        let real = pages.len().min((self.shape.bytes - offset) as usize);
        self.data.read(offset, &mut pages[..real])?;
        Ok(pages)
    }

    fn bad(&self, block: u64) -> BlockError {
        let offset = block * BLOCK_BYTES as u64;
        BlockError::Integrity { block, offset }
    }

    pub(super) fn check_range(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        let sector = u64::from(self.shape.sector_bytes);
        let is_inside = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.shape.bytes);
        if is_inside && offset.is_multiple_of(sector) && bytes.is_multiple_of(sector) {
            return Ok(());
        }
        Err(BlockError::Range { offset, bytes })
    }
}

/// A reader whose pages of the map are not in memory.
struct Readers<'a> {
    all: &'a AtomicUsize,
    before: usize,
}

impl Readers<'_> {
    fn enter(all: &AtomicUsize) -> Readers<'_> {
        let before = all.fetch_add(1, Ordering::Relaxed);
        Readers { all, before }
    }

    fn is_alone(&self) -> bool {
        self.before == 0
    }
}

impl Drop for Readers<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
    }
}

fn map_error(block: u64, error: MapError) -> BlockError {
    match error {
        MapError::Io { source, .. } => BlockError::Io {
            device: LOG,
            source,
        },
        _ => BlockError::Integrity {
            block,
            offset: block * BLOCK_BYTES as u64,
        },
    }
}

/// A copy of an error that others share.
fn io_error(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}
