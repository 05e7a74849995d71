//! The commit actor: what is staged becomes durable in the log, in frames.

use std::ops::Range;
use std::sync::Arc;

use wal::{Lsn, Record};

use super::{CLIENT, Engine, EngineError};
use crate::core::{Batch, HashRun, Logged, Seq};
use crate::map::Value;
use crate::records::{Entry, MAX_RUN};

/// A frame that is to be written.
pub struct Commit {
    batch: Arc<Batch>,
}

/// A frame that is durable.
pub struct Committed {
    batch: Arc<Batch>,
    logged: Vec<Logged>,
    start: Lsn,
    end: Lsn,
}

impl Engine {
    /// Whether a commit that nobody waits for should wait until something is settled.
    pub fn must_settle_first(&self) -> bool {
        self.core().must_settle_first()
    }

    /// Takes what goes into the next frame. `flush`: a flush waits for everything up to this number. `None` if there is
    /// nothing to do. The caller runs and ends or aborts it before it begins another one.
    pub fn commit_begin(&self, flush: Option<Seq>) -> Option<Commit> {
        let batch = self.core().commit_begin(flush)?;
        Some(Commit { batch })
    }

    /// Writes the frame and waits until it is durable.
    ///
    /// # Errors
    /// [`EngineError::Full`]: nothing was written; abort, and checkpoint. Other errors are final.
    pub fn commit_run(&self, commit: &Commit) -> Result<Committed, EngineError> {
        let batch = &commit.batch;
        let runs = self.zero_runs(batch);
        let mut records = Vec::new();
        let mut logged = Vec::new();
        for trim in batch.trims() {
            records.push((CLIENT, Entry::Trim(trim.clone()).record(Vec::new())));
            logged.push(Logged::Trim);
        }
        write_runs(batch, &runs, &mut records, &mut logged);
        let appended = self.log.append(&records)?;
        for (record, at) in logged.iter_mut().zip(&appended.payloads) {
            if let Logged::Redo { payload, .. } = record {
                *payload = *at;
            }
        }
        self.log.flush(appended.end).wait()?;
        Ok(Committed {
            batch: Arc::clone(batch),
            logged,
            start: appended.start,
            end: appended.end,
        })
    }

    /// The frame is durable: flushes that waited for it can be answered, once the anchor is moved.
    pub fn commit_end(&self, done: &Committed) {
        self.core()
            .commit_end(&done.batch, &done.logged, done.start, done.end);
    }

    /// The frame was not written: its content is staged again.
    pub fn commit_abort(&self, commit: &Commit) {
        self.core().commit_abort(&commit.batch);
    }

    /// Of the runs that may be logged as digests those that the map says are zeros: whatever a crash makes of the
    /// write to the data device, zeros are right as long as the new content was not made durable (*hash-safe*).
    fn zero_runs(&self, batch: &Batch) -> Vec<HashRun> {
        let is_zero = |run: &HashRun| match self.map.get_range(run.clone()) {
            Ok(values) => values.iter().all(|value| *value == Value::Zero),
            // Logging the content needs no map.
            Err(_) => false,
        };
        let candidates = batch.candidates().iter();
        candidates.filter(|run| is_zero(run)).cloned().collect()
    }
}

/// Records for the content of the batch, in the order of blocks. Positions of payloads are not known yet.
fn write_runs(
    batch: &Batch,
    hash_runs: &[HashRun],
    records: &mut Vec<(wal::Client, Record)>,
    logged: &mut Vec<Logged>,
) {
    let is_hash = |block: u64| hash_runs.iter().any(|run| run.contains(&block));
    let pages: Vec<_> = batch.pages().collect();
    let mut rest = pages.as_slice();
    while let Some((start, _)) = rest.first() {
        let by_digest = is_hash(*start);
        let fits = |(n, (block, _)): (usize, &(u64, _))| {
            (n as u64) < MAX_RUN && *block == start + n as u64 && is_hash(*block) == by_digest
        };
        let count = rest
            .iter()
            .enumerate()
            .take_while(|page| fits((page.0, page.1)))
            .count();
        let (run, after) = rest.split_at(count);
        rest = after;
        let range: Range<u64> = *start..start + count as u64;
        if by_digest {
            let digests = run.iter().map(|(_, piece)| piece.digest).collect();
            records.push((CLIENT, Entry::Hash(*start, digests).record(Vec::new())));
            logged.push(Logged::Hash(range));
        } else {
            let payload = run.iter().map(|(_, piece)| (*piece).clone()).collect();
            records.push((CLIENT, Entry::Redo(range.clone()).record(payload)));
            let payload = Lsn(0);
            logged.push(Logged::Redo { range, payload });
        }
    }
}
