//! Durable versions go to their place on the data device: home.

use std::ops::Range;

use bytes::Bytes;
use log::{Digest, Lsn};

use super::{BLOCK_BYTES, Core, Home, Phase, Seq};

/// One piece of work for the data device.
#[derive(Clone, Debug)]
pub(crate) enum HomeJob {
    /// Content of blocks, in the order of the device.
    Write(Vec<HomePage>),
    /// Zeros.
    Zero {
        /// The trim.
        seq: Seq,
        /// Blocks.
        range: Range<u64>,
    },
}

/// A block that is written home.
#[derive(Clone, Debug)]
pub(crate) struct HomePage {
    pub block: u64,
    pub place: Place,
    seq: Seq,
}

/// Where the content of a version is.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// In memory.
    Page(Bytes),
    /// In the log.
    Log(Lsn, Digest),
}

/// What became of the write of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The data device has it.
    Written,
    /// Not written. It is tried again.
    Failed,
    /// The log has another page where its content should be, and the data device does not have it either.
    Wrong,
}

/// A block whose page is wrong in the log so often is lost. What changes a page on its way may go away before.
pub(super) const MOST_WRONG: u32 = 10;

impl Core {
    /// The next work for the data device: trims first, then what only memory has, then, if `redos`, what the log has
    /// too. The oldest in the log goes first: pages are read from the log in large pieces, and each job frees space.
    pub fn home_begin(&mut self, redos: bool) -> Option<HomeJob> {
        let job = self.next_job(redos)?;
        self.in_flight += 1;
        Some(job)
    }

    /// Whether nothing is on its way to the data device or must go there; with `redos`, nor what the log has too.
    pub fn is_home_idle(&self, redos: bool) -> bool {
        self.in_flight == 0 && !self.has_home_work(redos)
    }

    /// Whether something waits to go to the data device; with `redos`, also of what the log has too.
    pub fn has_home_work(&self, redos: bool) -> bool {
        let waiting = |trim: &super::Trim| trim.home == Phase::Waiting;
        !self.hashes_to_home.is_empty()
            || self.trims.iter().any(waiting)
            || redos && !self.redos_to_home.is_empty()
    }

    fn next_job(&mut self, redos: bool) -> Option<HomeJob> {
        if let Some(job) = self.zero_job() {
            return Some(job);
        }
        if let Some(job) = self.hash_job() {
            return Some(job);
        }
        if redos { self.redo_job() } else { None }
    }

    /// Bytes of Redo records that wait to be homed.
    pub fn redos_to_home(&self) -> usize {
        self.redos_to_home.len() * BLOCK_BYTES
    }

    /// One write of a block is in flight at a time, and an older trim of it is settled first.
    fn may_home(&self, block: u64) -> bool {
        self.homes.get(&block).is_none_or(|home| home.written)
            && !self
                .trims
                .iter()
                .any(|trim| super::contains(&trim.range, block))
    }

    fn zero_job(&mut self) -> Option<HomeJob> {
        let is_free = |range: &Range<u64>| {
            let mut homes = self.homes.iter();
            !homes.any(|(block, home)| !home.written && super::contains(range, *block))
        };
        let waiting = |trim: &&super::Trim| trim.home == Phase::Waiting && is_free(&trim.range);
        let seq = self.trims.iter().find(waiting)?.seq;
        let trim = self.trims.iter_mut().find(|trim| trim.seq == seq)?;
        trim.home = Phase::InFlight;
        Some(HomeJob::Zero {
            seq,
            range: trim.range.clone(),
        })
    }

    /// Blocks that follow each other.
    fn hash_job(&mut self) -> Option<HomeJob> {
        let mut waiting = self.hashes_to_home.iter().copied();
        let start = waiting.find(|block| self.may_home(*block))?;
        let run = (start..).take_while(|block| self.hashes_to_home.contains(block));
        let blocks: Vec<u64> = run
            .take_while(|block| self.may_home(*block))
            .take(self.limits.home_blocks())
            .collect();
        self.write_job(blocks)
    }

    /// The oldest pages of the log.
    fn redo_job(&mut self) -> Option<HomeJob> {
        let waiting = self.redos_to_home.iter().map(|(_, block)| *block);
        let mut blocks: Vec<u64> = waiting
            .filter(|block| self.may_home(*block))
            .take(self.limits.home_blocks())
            .collect();
        blocks.sort_unstable();
        self.write_job(blocks)
    }

    fn write_job(&mut self, blocks: Vec<u64>) -> Option<HomeJob> {
        let mut pages = Vec::with_capacity(blocks.len());
        for block in blocks {
            let Some((seq, place)) = self.newest_durable(block) else {
                continue;
            };
            self.hashes_to_home.remove(&block);
            self.leave_redos_to_home(block);
            let (written, lost) = (false, false);
            self.homes.insert(block, Home { seq, written, lost });
            pages.push(HomePage { block, place, seq });
        }
        (!pages.is_empty()).then_some(HomeJob::Write(pages))
    }

    pub(super) fn leave_redos_to_home(&mut self, block: u64) {
        if let Some(redo) = self.redos.get(&block) {
            self.redos_to_home.remove(&(redo.payload, block));
        }
    }

    fn newest_durable(&self, block: u64) -> Option<(Seq, Place)> {
        if let Some(hash) = self.hashes.get(&block) {
            return Some((hash.seq, Place::Page(hash.piece.page.clone())));
        }
        let redo = self.redos.get(&block)?;
        let place = match &redo.page {
            Some(page) => Place::Page(page.clone()),
            None => Place::Log(redo.payload, redo.digest),
        };
        Some((redo.seq, place))
    }

    /// The work has returned; `outcome` says for each block what became of it. Returns the blocks that are lost now.
    pub fn home_end(&mut self, job: &HomeJob, outcome: impl Fn(u64) -> Outcome) -> Vec<u64> {
        self.in_flight -= 1;
        match job {
            HomeJob::Zero { seq, range } => {
                let written = outcome(range.start) == Outcome::Written;
                if let Some(trim) = self.trims.iter_mut().find(|trim| trim.seq == *seq) {
                    trim.home = match written {
                        true => Phase::Written,
                        false => Phase::Waiting,
                    };
                }
                Vec::new()
            }
            HomeJob::Write(pages) => {
                let ended = pages
                    .iter()
                    .filter(|page| self.block_ended(page.block, page.seq, outcome(page.block)));
                ended.map(|page| page.block).collect()
            }
        }
    }

    /// True: its content is lost.
    fn block_ended(&mut self, block: u64, seq: Seq, outcome: Outcome) -> bool {
        let is_newest = self.newest_durable(block).map(|(newest, _)| newest == seq);
        let lost = outcome == Outcome::Wrong && is_newest == Some(true) && self.is_lost(block);
        if (lost || outcome == Outcome::Written) && is_newest == Some(true) {
            let written = true;
            self.homes.insert(block, Home { seq, written, lost });
            return lost;
        }
        self.homes.remove(&block);
        if self.hashes.contains_key(&block) {
            self.hashes_to_home.insert(block);
        } else if let Some(redo) = self.redos.get(&block) {
            self.redos_to_home.insert((redo.payload, block));
        }
        false
    }

    /// The log had another page where the block's newest content should be. True: so often that it is lost.
    fn is_lost(&mut self, block: u64) -> bool {
        let redo = self.redos.get_mut(&block);
        redo.is_some_and(|redo| {
            redo.wrong += 1;
            redo.wrong >= MOST_WRONG
        })
    }
}
