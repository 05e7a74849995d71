//! A scrub of an attached device: of the log's disk in steps, and of the blocks, those of zeros included.
//!
//! | part of the log's disk | what mends it |
//! |---|---|
//! | superblocks, key slots, interior pages of the map | the other copy, or memory |
//! | leaves of the map | memory, if it has the leaf |
//! | frames of the ring | nothing: everything they hold goes home, and the tail moves behind them |

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use wal::{Copied, CopyDefect, LogError, Lsn, Patrol, RingDefect, WrongPage};

use super::{Protected, Shared, add, chain, lock};
use crate::block::{Block, BlockError};
use crate::core::BLOCK_BYTES;
use crate::engine::{Admission, CLIENT, EngineError, NotZero, Zeroed};
use crate::map::{PageDefect, Repair};
use crate::records::Entry;
use crate::scrub::{Defect, Reads, Verify};

/// So long everything may take to go home, before a frame that is wrong counts as not repaired.
const PATIENCE: Duration = Duration::from_secs(60);
/// Checkpoints that are made because the map has a newer version of a page that is wrong.
const MOST_CHECKPOINTS: usize = 3;
/// So often a block of zeros is looked at that is written beside the scrub.
const MOST_LOOKS: usize = 100;

/// A part of the log's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A copy of a superblock.
    Superblock,
    /// A copy of the key slots.
    KeySlots,
    /// A copy of an interior page of the map, or a leaf of it.
    MapPage,
    /// The header of a frame of the ring.
    Frame,
    /// A page of content in the ring.
    Content,
}

/// Something on the log's disk that is not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDefect {
    /// What it is.
    pub part: Part,
    /// Where it lies on the log's disk, in bytes.
    pub offset: u64,
    /// Blocks of the data device that cannot be read because of it. Empty if it costs none.
    pub lost: Range<u64>,
    /// Whether it is right again, or not needed any more.
    pub is_repaired: bool,
}

/// A scrub of the log's disk.
pub struct LogScrub<'a> {
    device: &'a Protected,
    stage: Stage,
    patience: Duration,
}

enum Stage {
    Copies,
    /// From this leaf on.
    Map(u64),
    Ring(Patrol),
    End,
}

impl<'a> LogScrub<'a> {
    /// A scrub from the beginning. Nothing is checked of a device that takes no writes: it could not be repaired, and
    /// another host may write to the log.
    pub fn new(device: &'a Protected) -> LogScrub<'a> {
        let stage = match device.engine().failure() {
            Some(_) => Stage::End,
            None => Stage::Copies,
        };
        LogScrub {
            device,
            stage,
            patience: PATIENCE,
        }
    }

    /// So long a frame that is wrong is waited for, instead of a minute.
    #[must_use]
    pub fn patience(self, patience: Duration) -> LogScrub<'a> {
        LogScrub { patience, ..self }
    }

    /// Checks the next part, about `bytes` of it where it can be cut, and repairs what is wrong. Returns how many bytes
    /// were read, or nothing at the end.
    ///
    /// # Errors
    /// The device takes no more writes. A defect is not an error.
    pub fn step(
        &mut self,
        bytes: u64,
        tell: &mut dyn FnMut(LogDefect),
    ) -> Result<Option<u64>, BlockError> {
        let shared = &*self.device.shared;
        match &mut self.stage {
            Stage::Copies => {
                let log = shared.engine.log();
                let read = log.check_copies(&mut |defect| tell(defect.into()));
                self.stage = Stage::Map(0);
                read.map(Some).map_err(failed)
            }
            Stage::Map(from) => {
                let (read, next) = shared.check_map(*from, tell)?;
                self.stage = match next {
                    Some(next) => Stage::Map(next),
                    None => Stage::Ring(Patrol::new()),
                };
                Ok(Some(read))
            }
            Stage::Ring(patrol) => {
                let mut found = Vec::new();
                let log = shared.engine.log();
                let done = patrol.step(log, bytes, &mut |defect| found.push(defect));
                let done = done.map_err(failed)?;
                let is_over = match found.last() {
                    None => done.is_over,
                    Some(last) => {
                        let is_empty = shared.empty(last.frame, self.patience)?;
                        let told = found
                            .iter()
                            .map(|defect| self.device.outcome(defect, is_empty));
                        told.for_each(&mut *tell);
                        done.is_over && !is_empty
                    }
                };
                if is_over {
                    self.stage = Stage::End;
                }
                Ok(Some(done.bytes))
            }
            Stage::End => Ok(None),
        }
    }
}

impl Protected {
    /// What became of a frame or a page in it. `is_empty`: the tail is behind it.
    fn outcome(&self, defect: &RingDefect, is_empty: bool) -> LogDefect {
        let block = defect.page.as_ref().and_then(|page| self.block_of(page));
        let lost = block.filter(|block| is_empty && self.is_bad(*block));
        LogDefect {
            part: match &defect.page {
                None => Part::Frame,
                Some(_) => Part::Content,
            },
            offset: defect.offset,
            lost: lost.map_or(0..0, |block| block..block + 1),
            is_repaired: is_empty && lost.is_none(),
        }
    }

    /// The block whose content a page of a frame is.
    fn block_of(&self, page: &WrongPage) -> Option<u64> {
        let blocks = self.shared.engine.shape().blocks();
        match Entry::decode(page.kind, &page.body, page.pages, blocks) {
            Ok(Entry::Redo(range)) if page.client == CLIENT => {
                Some(range.start + page.number as u64)
            }
            _ => None,
        }
    }

    fn is_bad(&self, block: u64) -> bool {
        let offset = block * BLOCK_BYTES as u64;
        let bytes = (self.bytes() - offset).min(BLOCK_BYTES as u64) as usize;
        let mut page = wal::Buffer::zeroed(bytes);
        self.shared.engine.read(offset, &mut page).is_err()
    }
}

impl Shared {
    /// A step of the map. Returns the bytes that were read and where the next step begins.
    fn check_map(
        &self,
        from: u64,
        tell: &mut dyn FnMut(LogDefect),
    ) -> Result<(u64, Option<u64>), BlockError> {
        let mut superseded: Vec<PageDefect> = Vec::new();
        let mut told = BTreeSet::new();
        let mut read = 0;
        let mut checkpoints = 0;
        loop {
            self.refuse_if_taken()?;
            let mut refused = Ok(());
            let mut may_repair = || {
                refused = self.refuse_if_taken();
                refused.is_ok()
            };
            let checked = self.engine.map.check(from, &mut may_repair, &mut |defect| {
                if defect.repair == Repair::Superseded {
                    superseded.push(defect);
                } else if told.insert(defect.offset) {
                    tell(defect.into());
                }
            });
            refused?;
            read += checked.bytes;
            if checked.has_written {
                self.engine.log().sync().map_err(failed)?;
            }
            if checked.is_superseded && checkpoints < MOST_CHECKPOINTS {
                checkpoints += 1;
                self.checkpoint_by(|engine| engine.checkpoint())?;
                continue;
            }
            for defect in superseded {
                if told.insert(defect.offset) {
                    let is_repaired = !checked.is_superseded;
                    let defect = LogDefect::from(defect);
                    tell(LogDefect {
                        is_repaired,
                        ..defect
                    });
                }
            }
            return Ok((read, checked.next));
        }
    }

    /// Refuses if another host has taken the devices: what it wrote is no damage.
    fn refuse_if_taken(&self) -> Result<(), BlockError> {
        if let Some(lease) = self.engine.lease() {
            // What it finds is asked for next.
            drop(lease.look());
        }
        self.look_for_others();
        match self.engine.failure() {
            Some(why) => Err(BlockError::ReadOnly { why }),
            None => Ok(()),
        }
    }

    /// Lets everything go home, until the log does not need the frame at this position. False if that takes too long.
    fn empty(&self, frame: Lsn, patience: Duration) -> Result<bool, BlockError> {
        let until = Instant::now() + patience;
        let is_empty = loop {
            if self.engine.log().tail() > frame {
                break true;
            }
            if let Some(why) = self.engine.failure() {
                return Err(BlockError::ReadOnly { why });
            }
            if Instant::now() >= until {
                break false;
            }
            if self.engine.is_settled() {
                // The last frames may hold no content, and nothing else moves the tail behind them.
                self.checkpoint_by(|engine| engine.checkpoint_all())?;
            }
            let mut signals = lock(&self.signals);
            signals.drain = true;
            signals.settle_now = true;
            signals.checkpoint_now = true;
            self.to_home.notify_all();
            self.to_settle.notify_one();
            let seen = signals.progress;
            self.wait_for_progress(signals, seen);
        };
        let mut signals = lock(&self.signals);
        signals.drain = signals.detached;
        signals.checkpoint_now = false;
        Ok(is_empty)
    }

    /// Writes zeros where a block of zeros has something else. Nothing, if that was a newer write.
    pub(super) fn mend_zeros(&self, mut found: NotZero) -> Result<Option<Defect>, BlockError> {
        for _ in 0..MOST_LOOKS {
            // Writing there might end in a device that takes no writes at all.
            if let Some(error) = found.error {
                return Ok(Some(Defect::Unreadable(error)));
            }
            let outcome = Cell::new(Zeroed::Wait);
            self.admit(&self.writes, |engine| {
                outcome.set(engine.write_zeros(&found)?);
                Ok(match outcome.get() {
                    Zeroed::Wait => Admission::Wait,
                    _ => Admission::Accepted,
                })
            })?;
            if outcome.get() != Zeroed::Changed {
                let is_repaired = outcome.get() == Zeroed::Written;
                return Ok(Some(Defect::NotZero { is_repaired }));
            }
            match self.engine.not_zero(found.block..found.block + 1).pop() {
                Some(again) => found = again,
                None => return Ok(None),
            }
        }
        // Somebody writes to it all the time.
        Ok(None)
    }

    fn checkpoint_by(
        &self,
        checkpoint: impl Fn(&crate::engine::Engine) -> Result<(), EngineError>,
    ) -> Result<(), BlockError> {
        let turn = lock(&self.settling);
        if let Some(why) = self.engine.failure() {
            return Err(BlockError::ReadOnly { why });
        }
        checkpoint(&self.engine).map_err(|error| {
            let why = chain(&error);
            self.engine.fail(&why);
            BlockError::ReadOnly { why }
        })?;
        add(&self.traffic.checkpoints, 1);
        drop(turn);
        self.announce();
        Ok(())
    }
}

impl From<CopyDefect> for LogDefect {
    fn from(defect: CopyDefect) -> LogDefect {
        LogDefect {
            part: match defect.of {
                Copied::Superblock => Part::Superblock,
                Copied::KeySlots => Part::KeySlots,
            },
            offset: defect.offset,
            lost: 0..0,
            is_repaired: defect.is_mended,
        }
    }
}

impl From<PageDefect> for LogDefect {
    fn from(defect: PageDefect) -> LogDefect {
        LogDefect {
            part: Part::MapPage,
            offset: defect.offset,
            lost: match defect.repair {
                Repair::Lost => defect.blocks,
                _ => 0..0,
            },
            is_repaired: defect.repair == Repair::Mended,
        }
    }
}

fn failed(error: LogError) -> BlockError {
    match error {
        LogError::Io { source, .. } => BlockError::Io {
            device: "the log's device",
            source: std::io::Error::new(source.kind(), source.to_string()),
        },
        error => BlockError::ReadOnly { why: chain(&error) },
    }
}

/// Checks the blocks of an attached device, and writes zeros where blocks of zeros are not zeros.
pub struct Blocks<'a>(pub &'a Protected);

impl Verify for Blocks<'_> {
    fn blocks(&self) -> u64 {
        Reads(self.0).blocks()
    }

    fn verify(
        &self,
        blocks: Range<u64>,
        found: &mut dyn FnMut(u64, Defect),
    ) -> Result<u64, BlockError> {
        let mut right = Reads(self.0).verify(blocks.clone(), found)?;
        for one in self.0.shared.engine.not_zero(blocks) {
            let block = one.block;
            if let Some(defect) = self.0.shared.mend_zeros(one)? {
                right = right.saturating_sub(1);
                found(block, defect);
            }
        }
        Ok(right)
    }
}
