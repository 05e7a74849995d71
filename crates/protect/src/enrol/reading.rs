//! Reads a data device from a block to its end and digests it, with several threads. What they find comes in the
//! order of the device, and only a bounded part of it waits.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;

use wal::{Buffer, DigestKey};

use super::error::EnrolError;
use super::source::Source;
use crate::core::BLOCK_BYTES;
use crate::map::Value;
use crate::volume::Shape;

/// Blocks that one thread reads at once: those of a leaf of the map.
const CHUNK_BLOCKS: u64 = 256;
/// Chunks of one thread that wait or are in work.
const AHEAD: usize = 2;
const MAX_THREADS: usize = 64;

/// What to read.
pub(super) struct Reading<'a> {
    pub data: &'a dyn Source,
    pub digests: &'a DigestKey,
    pub shape: Shape,
    pub threads: usize,
}

/// Blocks and their values. Without values all are zero.
pub(super) struct Chunk {
    pub blocks: Range<u64>,
    pub values: Vec<Value>,
}

/// A thread and what goes to and from it.
struct Worker {
    to_do: SyncSender<Range<u64>>,
    done: Receiver<Result<Chunk, EnrolError>>,
}

impl Reading<'_> {
    /// Shows all chunks from the block `first` on to `take`, in order.
    pub(super) fn run(
        &self,
        first: u64,
        take: &mut dyn FnMut(Chunk) -> Result<(), EnrolError>,
    ) -> Result<(), EnrolError> {
        std::thread::scope(|scope| {
            let workers: Vec<Worker> = (0..self.threads.clamp(1, MAX_THREADS))
                .map(|_| self.worker(scope))
                .collect();
            // Chunks go around the threads, so results come in order. Holes are nobody's.
            let mut turns = workers.iter().cycle();
            let mut waiting: VecDeque<(Range<u64>, Option<&Worker>)> = VecDeque::new();
            let mut next = first;
            while next < self.shape.blocks() || !waiting.is_empty() {
                if next < self.shape.blocks() && waiting.len() < AHEAD * workers.len() {
                    let (blocks, is_hole) = self.next(next)?;
                    next = blocks.end;
                    let worker = if is_hole { None } else { turns.next() };
                    if let Some(worker) = worker {
                        worker
                            .to_do
                            .send(blocks.clone())
                            .map_err(|_| gone(blocks.start))?;
                    }
                    waiting.push_back((blocks, worker));
                    continue;
                }
                if let Some((blocks, worker)) = waiting.pop_front() {
                    take(match worker {
                        Some(worker) => worker.done.recv().map_err(|_| gone(blocks.start))??,
                        None => Chunk {
                            blocks,
                            values: Vec::new(),
                        },
                    })?;
                }
            }
            Ok(())
        })
    }

    /// The next chunk or hole from `block` on.
    fn next(&self, block: u64) -> Result<(Range<u64>, bool), EnrolError> {
        let offset = block * BLOCK_BYTES as u64;
        let data = self.data.data_after(offset);
        let data = data.map_err(EnrolError::data(offset))?;
        let all = self.shape.blocks();
        let data = data.map_or(all..all, |data| {
            data.start / BLOCK_BYTES as u64..data.end.div_ceil(BLOCK_BYTES as u64)
        });
        if data.start > block {
            return Ok((block..data.start.min(all), true));
        }
        let end = data.end.min((block / CHUNK_BLOCKS + 1) * CHUNK_BLOCKS);
        Ok((block..end.clamp(block + 1, all), false))
    }

    fn worker<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> Worker {
        let (to_do, chunks) = sync_channel::<Range<u64>>(AHEAD);
        let (tell, done) = sync_channel(AHEAD);
        scope.spawn(move || {
            for blocks in chunks {
                // Nobody listens any more after an error.
                if tell.send(self.digest(blocks)).is_err() {
                    return;
                }
            }
        });
        Worker { to_do, done }
    }

    /// Reads and digests a chunk. The last block of the device ends in zeros.
    fn digest(&self, blocks: Range<u64>) -> Result<Chunk, EnrolError> {
        let offset = blocks.start * BLOCK_BYTES as u64;
        let mut pages = Buffer::zeroed((blocks.end - blocks.start) as usize * BLOCK_BYTES);
        let real = pages.len().min((self.shape.bytes - offset) as usize);
        let bytes = pages.get_mut(..real).unwrap_or_default();
        if self.data.read(offset, bytes).is_err() {
            // Again, block by block: one bad moment is forgiven, and a bad block is named.
            for (offset, page) in (offset..)
                .step_by(BLOCK_BYTES)
                .zip(bytes.chunks_mut(BLOCK_BYTES))
            {
                let read = self.data.read(offset, page);
                read.map_err(EnrolError::data(offset))?;
            }
        }
        let values = pages
            .chunks_exact(BLOCK_BYTES)
            .map(|page| match is_zero(page) {
                true => Value::Zero,
                false => Value::Digest(self.digests.digest(page)),
            });
        Ok(Chunk {
            blocks,
            values: values.collect(),
        })
    }
}

fn is_zero(page: &[u8]) -> bool {
    let (words, rest) = page.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}

/// A thread ended without an answer, which only a panic in it does.
fn gone(block: u64) -> EnrolError {
    EnrolError::data(block * BLOCK_BYTES as u64)(std::io::Error::other("a reading thread ended"))
}
