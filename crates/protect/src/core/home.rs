//! Durable versions go to their place on the data device: home.

use std::ops::Range;

use bytes::Bytes;
use log::{Digest, Lsn};

use super::{BLOCK_BYTES, Core, Home, Phase, Seq};

/// One write to the data device.
#[derive(Clone, Debug)]
pub(crate) enum HomeJob {
    /// Content of consecutive blocks from the first on.
    Write {
        /// Block where the write begins.
        start: u64,
        /// For each block the version and where its content is.
        pages: Vec<(Seq, Place)>,
    },
    /// Zeros.
    Zero {
        /// The trim.
        seq: Seq,
        /// Blocks.
        range: Range<u64>,
    },
}

/// Where the content of a version is.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// In memory.
    Page(Bytes),
    /// In the log.
    Log(Lsn, Digest),
}

impl Core {
    /// The next write to the data device: trims first, then what only memory has, then, if `redos`, what the log has
    /// too, in the order of the device.
    pub fn home_begin(&mut self, redos: bool) -> Option<HomeJob> {
        let job = self.next_job(redos)?;
        self.in_flight += 1;
        Some(job)
    }

    /// Whether nothing is on its way to the data device or must go there; with `redos`, nor what the log has too.
    pub fn is_home_idle(&self, redos: bool) -> bool {
        self.in_flight == 0
            && self.hashes_to_home.is_empty()
            && !self.trims.iter().any(|trim| trim.home == Phase::Waiting)
            && (!redos || self.redos_to_home.is_empty())
    }

    fn next_job(&mut self, redos: bool) -> Option<HomeJob> {
        if let Some(job) = self.zero_job() {
            return Some(job);
        }
        let first = self
            .hashes_to_home
            .iter()
            .copied()
            .find(|block| self.may_home(*block));
        if let Some(start) = first {
            return Some(self.write_job(start));
        }
        if !redos {
            return None;
        }
        let after = self.redos_to_home.range(self.cursor..).copied();
        let around = after.chain(self.redos_to_home.range(..self.cursor).copied());
        let start = around.into_iter().find(|block| self.may_home(*block))?;
        let job = self.write_job(start);
        if let HomeJob::Write { pages, .. } = &job {
            self.cursor = start + pages.len() as u64;
        }
        Some(job)
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

    fn write_job(&mut self, start: u64) -> HomeJob {
        let mut pages = Vec::new();
        let mut block = start;
        while pages.len() * BLOCK_BYTES < self.limits.home_bytes {
            let waits = self.hashes_to_home.contains(&block) || self.redos_to_home.contains(&block);
            if !waits || !self.may_home(block) {
                break;
            }
            let Some((seq, place)) = self.newest_durable(block) else {
                break;
            };
            self.hashes_to_home.remove(&block);
            self.redos_to_home.remove(&block);
            let written = false;
            self.homes.insert(block, Home { seq, written });
            pages.push((seq, place));
            block += 1;
        }
        HomeJob::Write { start, pages }
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

    /// The write has returned. A failed one is tried again.
    pub fn home_end(&mut self, job: &HomeJob, succeeded: bool) {
        self.in_flight -= 1;
        match job {
            HomeJob::Zero { seq, .. } => {
                if let Some(trim) = self.trims.iter_mut().find(|trim| trim.seq == *seq) {
                    trim.home = if succeeded {
                        Phase::Written
                    } else {
                        Phase::Waiting
                    };
                }
            }
            HomeJob::Write { start, pages } => {
                for (block, (seq, _)) in (*start..).zip(pages) {
                    self.block_written(block, *seq, succeeded);
                }
            }
        }
    }

    fn block_written(&mut self, block: u64, seq: Seq, succeeded: bool) {
        let is_newest = self.newest_durable(block).map(|(newest, _)| newest == seq);
        if succeeded && is_newest == Some(true) {
            let written = true;
            self.homes.insert(block, Home { seq, written });
            return;
        }
        self.homes.remove(&block);
        if self.hashes.contains_key(&block) {
            self.hashes_to_home.insert(block);
        } else if self.redos.contains_key(&block) {
            self.redos_to_home.insert(block);
        }
    }
}
