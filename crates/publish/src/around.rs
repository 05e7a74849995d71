//! How much read-around to ask for: as much as has lately been of use.
//!
//! A directory's small files lie behind its node, so one answer can bring them all; a reader who
//! only lists names (`find`) would download the tree that way. So each answer keeps a tally of the
//! bytes that came unasked and of those that were wanted afterwards, and when the last few tallies
//! say that little was wanted, only every sixteenth request asks, for less.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Answers that are looked back on.
const RECENT: usize = 8;
/// Less than one in so many bytes wanted is little.
const WORTHWHILE: u64 = 8;
/// While little is wanted, one request in so many asks.
const PROBE_EVERY: u64 = 16;
/// And asks for at most this, bytes.
const PROBE_BYTES: usize = 64 << 10;

/// What one answer brought unasked, and how much of it was wanted later.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    brought_bytes: AtomicU64,
    wanted_bytes: AtomicU64,
}

impl Tally {
    /// Bytes that came unasked and proved true.
    pub(crate) fn brought(&self, bytes: u64) {
        self.brought_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of those that somebody wanted, counted once.
    pub(crate) fn wanted(&self, bytes: u64) {
        self.wanted_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The tallies of the last answers.
#[derive(Debug, Default)]
pub(crate) struct Around {
    recent: Mutex<VecDeque<Arc<Tally>>>,
    skipped: AtomicU64,
}

impl Around {
    /// The budget for a request that could use `most` bytes.
    pub(crate) fn budget(&self, most: usize) -> usize {
        if most == 0 || self.is_worthwhile() {
            return most;
        }
        match self.skipped.fetch_add(1, Ordering::Relaxed) % PROBE_EVERY {
            0 => most.min(PROBE_BYTES),
            _ => 0,
        }
    }

    /// A tally for an answer; kept once it has brought something.
    pub(crate) fn keep(&self, tally: Arc<Tally>) {
        if tally.brought_bytes.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == RECENT {
            recent.pop_front();
        }
        recent.push_back(tally);
    }

    fn is_worthwhile(&self) -> bool {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        // The newest answer has had no time to be of use.
        let judged = recent.len().saturating_sub(1);
        if judged < RECENT / 2 {
            return true;
        }
        let sum = |of: fn(&Tally) -> &AtomicU64| -> u64 {
            recent
                .iter()
                .take(judged)
                .map(|t| of(t).load(Ordering::Relaxed))
                .sum()
        };
        sum(|t| &t.wanted_bytes).saturating_mul(WORTHWHILE) >= sum(|t| &t.brought_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(around: &Around, brought: u64, wanted: u64) {
        let tally = Arc::new(Tally::default());
        tally.brought(brought);
        tally.wanted(wanted);
        around.keep(tally);
    }

    #[test]
    fn asks_less_when_nothing_is_wanted_and_more_when_something_is_again() {
        let around = Around::default();
        for _ in 0..RECENT {
            answer(&around, 100_000, 0);
        }
        let asked: usize = (0..160).map(|_| around.budget(256 << 10)).sum();
        assert_eq!(asked, 10 * PROBE_BYTES);
        for _ in 0..3 {
            answer(&around, 60_000, 50_000);
        }
        assert_eq!(around.budget(256 << 10), 256 << 10);
        assert_eq!(around.budget(0), 0);
    }
}
