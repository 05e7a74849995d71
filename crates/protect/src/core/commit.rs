//! What is staged goes into a frame of the log.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use wal::{Lsn, Piece};

use super::{BLOCK_BYTES, Core, Hash, Phase, Redo, Seq, Staged, StagedTrim, Trim};

/// Blocks whose digests alone are logged.
pub(crate) type HashRun = Range<u64>;

/// What one frame makes durable.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(super) trims: Vec<StagedTrim>,
    pub(super) pages: BTreeMap<u64, Staged>,
    /// Unsettled versions whose content is logged because a flush waits for them.
    relogged: BTreeMap<u64, (Seq, Piece)>,
    /// Runs that may be logged as digests if the map says Zero for all of their blocks.
    candidates: Vec<HashRun>,
}

/// Where a record of the batch lies.
#[derive(Clone, Debug)]
pub(crate) enum Logged {
    /// The content of consecutive blocks, from `payload`.
    Redo {
        /// Blocks.
        range: Range<u64>,
        /// The first page.
        payload: Lsn,
    },
    /// Digests of consecutive blocks.
    Hash(HashRun),
    /// The trim of the batch that is next in order.
    Trim,
}

impl Batch {
    /// The oldest version that this batch makes durable.
    pub(super) fn first(&self) -> Seq {
        let pages = self.pages.values().map(|staged| staged.first);
        let trims = self.trims.iter().map(|trim| trim.first);
        pages.chain(trims).min().unwrap_or(Seq::MAX)
    }

    /// Runs that may be logged as digests.
    pub fn candidates(&self) -> &[HashRun] {
        &self.candidates
    }

    /// Trims, which come before all other records of the frame.
    pub fn trims(&self) -> impl Iterator<Item = &Range<u64>> {
        self.trims.iter().map(|trim| &trim.range)
    }

    /// All blocks with content, in order.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &Piece)> {
        let relogged = self
            .relogged
            .iter()
            .map(|(block, (_, piece))| (*block, piece));
        let staged = self
            .pages
            .iter()
            .map(|(block, staged)| (*block, &staged.piece));
        let mut all: Vec<(u64, &Piece)> = staged.chain(relogged).collect();
        all.sort_unstable_by_key(|(block, _)| *block);
        all.into_iter()
    }

    fn version(&self, block: u64) -> Option<(Seq, &Piece)> {
        match self.pages.get(&block) {
            Some(staged) => Some((staged.seq, &staged.piece)),
            None => self.relogged.get(&block).map(|(seq, piece)| (*seq, piece)),
        }
    }
}

impl Core {
    /// Whether so much is unsettled that another frame of digests has no place: what could be logged as digests would
    /// be logged with its content, and written twice. A commit that nobody waits for waits for the data device instead.
    pub fn must_settle_first(&self) -> bool {
        let held = self.hashes.len() * BLOCK_BYTES;
        held > 0 && held + self.limits.frame_bytes > self.limits.unsettled_bytes
    }

    /// Takes what is staged, oldest first, up to the size of a frame. With `flush` it also takes unsettled
    /// versions up to that number, if they are few enough to log their content. `None` if there is nothing to do.
    pub fn commit_begin(&mut self, flush: Option<Seq>) -> Option<Arc<Batch>> {
        assert!(self.committing.is_none(), "one frame at a time");
        let mut batch = Batch::default();
        let unsettled = flush.map_or_else(Vec::new, |seq| self.to_relog(seq));
        let room = self.limits.frame_bytes - unsettled.len() * BLOCK_BYTES;
        self.take_staged(&mut batch, room);
        for block in unsettled {
            let trimmed = batch.trims().any(|trim| super::contains(trim, block));
            if let Some(hash) = self.hashes.get(&block)
                && !trimmed
                && !batch.pages.contains_key(&block)
            {
                batch.relogged.insert(block, (hash.seq, hash.piece.clone()));
            }
        }
        if batch.pages.is_empty() && batch.trims.is_empty() && batch.relogged.is_empty() {
            return None;
        }
        batch.candidates = self.candidates(&batch, flush.is_some());
        let batch = Arc::new(batch);
        self.committing = Some(Arc::clone(&batch));
        Some(batch)
    }

    /// Blocks with unsettled Hash records that a flush of `seq` waits for, if they are few.
    fn to_relog(&self, seq: Seq) -> Vec<u64> {
        let most = self.limits.relogged_bytes.min(self.limits.frame_bytes / 2) / BLOCK_BYTES;
        if self.unsettled.range(..=seq).take(most + 1).count() > most {
            return Vec::new();
        }
        let awaited = self.hashes.iter().filter(|(_, hash)| hash.seq <= seq);
        awaited.map(|(block, _)| *block).collect()
    }

    fn take_staged(&mut self, batch: &mut Batch, room: usize) {
        while batch.pages.len() * BLOCK_BYTES + BLOCK_BYTES <= room {
            let Some((first, block)) = self.order.pop_first() else {
                return;
            };
            match block {
                Some(block) => {
                    if let Some(staged) = self.staged.remove(&block) {
                        batch.pages.insert(block, staged);
                    }
                }
                None => {
                    let at = self
                        .staged_trims
                        .iter()
                        .position(|trim| trim.first == first);
                    batch
                        .trims
                        .extend(at.map(|at| self.staged_trims.remove(at)));
                }
            }
        }
    }

    /// Runs of blocks without a newer value than the map's. A block has at most one unsettled Hash.
    fn candidates(&self, batch: &Batch, flushing: bool) -> Vec<HashRun> {
        let is_plain = |block: u64| {
            !self.redos.contains_key(&block)
                && !self.hashes.contains_key(&block)
                && !self
                    .trims
                    .iter()
                    .any(|trim| super::contains(&trim.range, block))
                && !batch.trims().any(|trim| super::contains(trim, block))
        };
        let mut runs: Vec<HashRun> = Vec::new();
        for block in batch.pages.keys().copied().filter(|block| is_plain(*block)) {
            match runs.last_mut() {
                Some(run) if run.end == block => run.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
        runs.retain(|run| run.end - run.start >= self.limits.hash_run_blocks);
        let blocks: u64 = runs.iter().map(|run| run.end - run.start).sum();
        let bytes = blocks as usize * BLOCK_BYTES;
        let held = self.hashes.len() * BLOCK_BYTES;
        let is_cheaper_as_redo = flushing && bytes <= self.limits.relogged_bytes;
        if is_cheaper_as_redo || held + bytes > self.limits.unsettled_bytes {
            return Vec::new();
        }
        runs
    }

    /// The frame could not be appended: its content is staged again, unless something newer is. What is newer is
    /// then waited for by the flushes that waited for the older.
    pub fn commit_abort(&mut self, batch: &Batch) {
        self.committing = None;
        for (block, taken) in &batch.pages {
            let newer = |trim: &&mut StagedTrim| super::contains(&trim.range, *block);
            if let Some(trim) = self.staged_trims.iter_mut().find(newer) {
                // A frame has trims before pages, so an older page must not come into the frame of the trim.
                self.order.remove(&trim.first);
                trim.first = trim.first.min(taken.first);
                self.order.insert(trim.first, None);
                continue;
            }
            match self.staged.get_mut(block) {
                Some(newer) => {
                    self.order.remove(&newer.first);
                    newer.first = taken.first;
                }
                None => {
                    self.staged.insert(*block, taken.clone());
                }
            }
            self.order.insert(taken.first, Some(*block));
        }
        for trim in &batch.trims {
            self.order.insert(trim.first, None);
            self.staged_trims.push(trim.clone());
        }
    }

    /// The frame at `lsn`, which ends at `end`, is durable.
    pub fn commit_end(&mut self, batch: &Batch, logged: &[Logged], lsn: Lsn, end: Lsn) {
        self.committing = None;
        let mut trims = batch.trims.iter();
        for record in logged {
            match record {
                Logged::Trim => {
                    if let Some(trim) = trims.next() {
                        self.trim_is_durable(trim, lsn);
                    }
                }
                Logged::Hash(run) => {
                    for block in run.clone() {
                        self.hash_is_durable(block, batch, lsn);
                    }
                }
                Logged::Redo { range, payload } => {
                    for (block, at) in range.clone().zip((payload.0..).step_by(BLOCK_BYTES)) {
                        self.redo_is_durable(block, batch, lsn, Lsn(at));
                    }
                }
            }
        }
        self.committed_end = end;
    }

    fn redo_is_durable(&mut self, block: u64, batch: &Batch, lsn: Lsn, payload: Lsn) {
        let Some((seq, piece)) = batch.version(block) else {
            return;
        };
        if batch.relogged.contains_key(&block)
            && self.hashes.get(&block).is_none_or(|hash| hash.seq != seq)
        {
            // It was settled while its content was logged again.
            return;
        }
        self.drop_redo(block);
        self.drop_hash(block);
        let is_home = self.homes.get(&block).is_some_and(|home| home.seq == seq);
        let keep = !is_home && self.cached_bytes + BLOCK_BYTES <= self.limits.cached_bytes;
        if keep {
            self.cached_bytes += BLOCK_BYTES;
        }
        self.live.add(lsn);
        self.redos.insert(
            block,
            Redo {
                seq,
                lsn,
                payload,
                digest: piece.digest,
                page: keep.then(|| piece.page.clone()),
                wrong: 0,
            },
        );
        if !is_home {
            self.redos_to_home.insert((payload, block));
        }
        if keep {
            self.add_cached(block, seq);
        }
    }

    fn hash_is_durable(&mut self, block: u64, batch: &Batch, lsn: Lsn) {
        let Some((seq, piece)) = batch.version(block) else {
            return;
        };
        debug_assert!(!self.hashes.contains_key(&block), "one unsettled Hash");
        self.live.add(lsn);
        self.live_hashes.add(lsn);
        self.unsettled.insert(seq);
        let piece = piece.clone();
        self.hashes.insert(block, Hash { seq, lsn, piece });
        self.hashes_to_home.insert(block);
        // An older Redo stays in the log until the Hash is settled, but is not homed any more.
        self.leave_redos_to_home(block);
    }

    fn trim_is_durable(&mut self, trim: &StagedTrim, lsn: Lsn) {
        let redos: Vec<u64> = self
            .redos
            .range(trim.range.clone())
            .map(|(block, _)| *block)
            .collect();
        redos.into_iter().for_each(|block| self.drop_redo(block));
        let hashes: Vec<u64> = self
            .hashes
            .range(trim.range.clone())
            .map(|(block, _)| *block)
            .collect();
        hashes.into_iter().for_each(|block| self.drop_hash(block));
        self.homes
            .retain(|block, home| !home.written || !super::contains(&trim.range, *block));
        self.live.add(lsn);
        self.trims.push(Trim {
            seq: trim.seq,
            lsn,
            range: trim.range.clone(),
            home: Phase::Waiting,
        });
    }

    pub(super) fn drop_redo(&mut self, block: u64) {
        if let Some(redo) = self.redos.remove(&block) {
            self.redos_to_home.remove(&(redo.payload, block));
            self.live.remove(redo.lsn);
            if redo.page.is_some() {
                self.cached_bytes -= BLOCK_BYTES;
            }
        }
    }

    pub(super) fn drop_hash(&mut self, block: u64) {
        if let Some(hash) = self.hashes.remove(&block) {
            self.live.remove(hash.lsn);
            self.live_hashes.remove(hash.lsn);
            self.unsettled.remove(&hash.seq);
        }
        self.hashes_to_home.remove(&block);
    }
}
