//! Read-around: how many bytes of neighbouring blocks to request with a block.
//!
//! A directory's small files lie behind its node in a store, so one answer can bring them all. A
//! reader that looks up one name wants none of them, and one that only lists names (`find`) would
//! download the tree that way. So each answer keeps a record of the bytes that came unasked and of
//! those that readers wanted later. [`ReadAroundPolicy`] requests little until these records show
//! use, then enough for a directory of small files. While they show little use, only every sixteenth
//! request asks for neighbours. Pure: no I/O, no clock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Answers whose records of use are kept.
const RECENT: usize = 8;
/// Fewer records than this do not decide anything.
const TELLING: usize = 2;
/// Read-around is worthwhile when at least one in this many bytes is wanted.
const WORTHWHILE: u64 = 8;
/// Requested while it is worthwhile: a directory of small files in one answer, bytes.
const MOST_BYTES: usize = 256 << 10;
/// Requested before anything is known, bytes.
const FIRST_BYTES: usize = 8 << 10;
/// While little is wanted, one request in this many asks for neighbours.
const PROBE_EVERY: u64 = 16;
/// What such a request asks for, bytes.
const PROBE_BYTES: usize = 64 << 10;

/// What the caller expects to want next, after the block that it requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Nothing that lies near the block.
    Nothing,
    /// The blocks behind it: a directory's small files behind its node, a small file's neighbours.
    Near,
    /// A few of the blocks behind it: the array nodes of a directory's files.
    Next,
}

/// Whether read-around has been of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Worth {
    Unknown,
    Much,
    Little,
}

/// The record of use of one answer: bytes that came unasked, and those of them that were wanted.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    brought_bytes: AtomicU64,
    wanted_bytes: AtomicU64,
}

impl Usage {
    /// Counts bytes that came unasked and were verified.
    pub(crate) fn brought(&self, bytes: u64) {
        self.brought_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes of those that a reader wanted, once for each block.
    pub(crate) fn wanted(&self, bytes: u64) {
        self.wanted_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Decides how much read-around a request asks for, from the records of the last answers.
#[derive(Debug, Default)]
pub(crate) struct ReadAroundPolicy {
    recent: Mutex<VecDeque<Arc<Usage>>>,
    skipped: AtomicU64,
}

impl ReadAroundPolicy {
    /// How much read-around a request asks for, bytes.
    pub(crate) fn budget(&self, expect: Expect) -> usize {
        match (expect, self.worth()) {
            (Expect::Nothing, _) => 0,
            (Expect::Near, Worth::Much) => MOST_BYTES,
            (Expect::Near, Worth::Unknown) | (Expect::Next, Worth::Much | Worth::Unknown) => {
                FIRST_BYTES
            }
            (Expect::Next, Worth::Little) => 0,
            (Expect::Near, Worth::Little) => {
                match self.skipped.fetch_add(1, Ordering::Relaxed) % PROBE_EVERY {
                    0 => PROBE_BYTES,
                    _ => 0,
                }
            }
        }
    }

    /// Keeps the record of an answer, if the answer brought anything.
    pub(crate) fn keep(&self, usage: Arc<Usage>) {
        if usage.brought_bytes.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == RECENT {
            recent.pop_front();
        }
        recent.push_back(usage);
    }

    /// Whether the bytes that came unasked were wanted.
    pub(crate) fn worth(&self) -> Worth {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        // The newest answer has had no time to be of use.
        let judged = recent.len().saturating_sub(1);
        let sum = |of: fn(&Usage) -> &AtomicU64| -> u64 {
            let records = recent.iter().take(judged);
            records.map(|t| of(t).load(Ordering::Relaxed)).sum()
        };
        let wanted = sum(|t| &t.wanted_bytes).saturating_mul(WORTHWHILE);
        if wanted >= sum(|t| &t.brought_bytes) && judged > 0 {
            Worth::Much
        } else if judged < TELLING {
            Worth::Unknown
        } else {
            Worth::Little
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(policy: &ReadAroundPolicy, brought: u64, wanted: u64) {
        let usage = Arc::new(Usage::default());
        usage.brought(brought);
        usage.wanted(wanted);
        policy.keep(usage);
    }

    #[test]
    fn budget_falls_when_nothing_is_wanted_and_rises_again() {
        let policy = ReadAroundPolicy::default();
        assert_eq!(policy.budget(Expect::Near), FIRST_BYTES);
        for _ in 0..RECENT {
            answer(&policy, 100_000, 0);
        }
        assert_eq!(policy.budget(Expect::Next), 0);
        let asked: usize = (0..160).map(|_| policy.budget(Expect::Near)).sum();
        assert_eq!(asked, 10 * PROBE_BYTES);
        for _ in 0..3 {
            answer(&policy, 60_000, 50_000);
        }
        assert_eq!(policy.budget(Expect::Near), MOST_BYTES);
        assert_eq!(policy.budget(Expect::Next), FIRST_BYTES);
        assert_eq!(policy.budget(Expect::Nothing), 0);
    }
}
