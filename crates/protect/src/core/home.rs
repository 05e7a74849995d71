//! Durable versions go to their place on the data device: home.

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;
use wal::{Digest, Lsn};

use super::{BLOCK_BYTES, Core, Home, Phase, Seq};

/// Which Redo records go home. Hash records and Trims go in any case: the log cannot forget them before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Redos {
    /// None.
    None,
    /// Those with a page in memory: they cost no read of the log, and no second check.
    Cached,
    /// All, the oldest in the log first, which frees room.
    All,
}

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
    /// The next work for the data device: trims first, then what only memory has, then those `redos`.
    pub fn home_begin(&mut self, redos: Redos) -> Option<HomeJob> {
        let job = self.next_job(redos)?;
        self.in_flight += 1;
        Some(job)
    }

    /// Whether nothing is on its way to the data device or must go there; nor those `redos`.
    pub fn is_home_idle(&self, redos: Redos) -> bool {
        self.in_flight == 0 && !self.has_home_work(redos)
    }

    /// Whether something waits to go to the data device; `redos` count too.
    pub fn has_home_work(&self, redos: Redos) -> bool {
        let waiting = |trim: &super::Trim| trim.home == Phase::Waiting;
        !self.hashes_to_home.is_empty()
            || self.trims.iter().any(waiting)
            || match redos {
                Redos::None => false,
                Redos::Cached => !self.cached.is_empty(),
                Redos::All => !self.redos_to_home.is_empty(),
            }
    }

    fn next_job(&mut self, redos: Redos) -> Option<HomeJob> {
        if let Some(job) = self.zero_job() {
            return Some(job);
        }
        if let Some(job) = self.hash_job() {
            return Some(job);
        }
        match redos {
            Redos::None => None,
            Redos::Cached => self.cached_job(),
            Redos::All => self.redo_job(),
        }
    }

    /// The most bytes of one piece of work.
    pub fn home_bytes(&self) -> usize {
        self.limits.home_blocks() * BLOCK_BYTES
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

    /// Whether so much of what goes home is in memory that the next frame's pages would not all be kept there.
    pub fn is_cache_full(&self) -> bool {
        !self.cached.is_empty()
            && self.cached_bytes + self.limits.frame_bytes > self.limits.cached_bytes
    }

    pub(super) fn add_cached(&mut self, block: u64, seq: Seq) {
        self.cached.push_back((block, seq));
        if self.cached.len() * BLOCK_BYTES > 2 * self.limits.cached_bytes {
            let mut cached = std::mem::take(&mut self.cached);
            let mut kept = BTreeSet::new();
            cached.retain(|(block, seq)| self.is_cached(*block, *seq) && kept.insert(*block));
            self.cached = cached;
        }
    }

    /// Whether this version waits to go home and is in memory.
    fn is_cached(&self, block: u64, seq: Seq) -> bool {
        self.redos.get(&block).is_some_and(|redo| {
            redo.seq == seq
                && redo.page.is_some()
                && self.redos_to_home.contains(&(redo.payload, block))
        })
    }

    /// The oldest pages in memory.
    fn cached_job(&mut self) -> Option<HomeJob> {
        let mut blocks = BTreeSet::new();
        for _ in 0..self.cached.len() {
            let Some((block, seq)) = self.cached.pop_front() else {
                break;
            };
            match (self.is_cached(block, seq), self.may_home(block)) {
                (true, true) => {
                    blocks.insert(block);
                }
                (true, false) => self.cached.push_back((block, seq)),
                (false, _) => {}
            }
            if blocks.len() == self.limits.home_blocks() {
                break;
            }
        }
        self.write_job(blocks.into_iter().collect())
    }

    /// The oldest pages of the log: they are read from it in large pieces, and each job frees space.
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
            self.forget_page(block);
            return lost;
        }
        self.homes.remove(&block);
        if self.hashes.contains_key(&block) {
            self.hashes_to_home.insert(block);
        } else if let Some(redo) = self.redos.get(&block) {
            let (seq, has_page) = (redo.seq, redo.page.is_some());
            self.redos_to_home.insert((redo.payload, block));
            if has_page {
                self.add_cached(block, seq);
            }
        }
        false
    }

    /// The data device has the newest durable version of the block. If it must be read before it is settled, the log
    /// has it.
    fn forget_page(&mut self, block: u64) {
        let redo = self.redos.get_mut(&block);
        if redo.is_some_and(|redo| redo.page.take().is_some()) {
            self.cached_bytes -= BLOCK_BYTES;
        }
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
