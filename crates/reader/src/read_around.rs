//! How much read-around to ask for: as much as has lately been of use.
//!
//! A directory's small files lie behind its node, so one answer can bring them all. A reader who
//! looks up one name wants none of them, and one who only lists names (`find`) would download the
//! tree that way. So each answer keeps a tally of the bytes that came unasked and of those that were
//! wanted afterwards: a reader asks for little until the tallies say that more was wanted, for a
//! directory of small files at once from then on, and while they say that little was wanted, only
//! every sixteenth request asks at all.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Response that are looked back on.
const RECENT: usize = 8;
/// Fewer answers than this say nothing.
const TELLING: usize = 2;
/// Less than one in so many bytes wanted is little.
const WORTHWHILE: u64 = 8;
/// Asked for while it is worthwhile: a directory of small files in one answer, bytes.
const MOST_BYTES: usize = 256 << 10;
/// Asked for before anything is known, bytes.
const FIRST_BYTES: usize = 8 << 10;
/// While little is wanted, one request in so many asks.
const PROBE_EVERY: u64 = 16;
/// And asks for at most this, bytes.
const PROBE_BYTES: usize = 64 << 10;

/// What a request is for, and so what may be wanted next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Nothing that lies near.
    Nothing,
    /// What lies behind: a directory's small files behind its node, a small file's neighbours.
    Near,
    /// A little of that: the array nodes of a directory's files lie behind its node.
    Next,
}

/// What the tallies say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Worth {
    Unknown,
    Much,
    Little,
}

/// What one answer brought unasked, and how much of it was wanted later.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    brought_bytes: AtomicU64,
    wanted_bytes: AtomicU64,
}

impl Usage {
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
pub(crate) struct ReadAroundPolicy {
    recent: Mutex<VecDeque<Arc<Usage>>>,
    skipped: AtomicU64,
}

impl ReadAroundPolicy {
    /// The budget of a request, bytes.
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

    /// A tally for an answer; kept once it has brought something.
    pub(crate) fn keep(&self, tally: Arc<Usage>) {
        if tally.brought_bytes.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == RECENT {
            recent.pop_front();
        }
        recent.push_back(tally);
    }

    /// Whether what came unasked was wanted.
    pub(crate) fn worth(&self) -> Worth {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        // The newest answer has had no time to be of use.
        let judged = recent.len().saturating_sub(1);
        let sum = |of: fn(&Usage) -> &AtomicU64| -> u64 {
            let tallies = recent.iter().take(judged);
            tallies.map(|t| of(t).load(Ordering::Relaxed)).sum()
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

    fn answer(around: &ReadAroundPolicy, brought: u64, wanted: u64) {
        let tally = Arc::new(Usage::default());
        tally.brought(brought);
        tally.wanted(wanted);
        around.keep(tally);
    }

    #[test]
    fn asks_less_when_nothing_is_wanted_and_more_when_something_is_again() {
        let around = ReadAroundPolicy::default();
        assert_eq!(around.budget(Expect::Near), FIRST_BYTES);
        for _ in 0..RECENT {
            answer(&around, 100_000, 0);
        }
        assert_eq!(around.budget(Expect::Next), 0);
        let asked: usize = (0..160).map(|_| around.budget(Expect::Near)).sum();
        assert_eq!(asked, 10 * PROBE_BYTES);
        for _ in 0..3 {
            answer(&around, 60_000, 50_000);
        }
        assert_eq!(around.budget(Expect::Near), MOST_BYTES);
        assert_eq!(around.budget(Expect::Next), FIRST_BYTES);
        assert_eq!(around.budget(Expect::Nothing), 0);
    }
}
