//! How long an answer of one mirror is expected to take, from those that came.
//!
//! An answer takes a time of its own and a time for each block. Both are smoothed over the last
//! answers, and how far answers were off is remembered, so that what is *slow* follows from what
//! this mirror does and not from a constant.

use std::collections::VecDeque;
use std::time::Duration;

/// Weight of the newest answer in a smoothed time.
const WEIGHT: f64 = 0.2;
/// Requests for at most so many blocks tell the time of an answer itself.
const FEW: usize = 2;
/// How far answers were off is remembered for so many.
const RECENT: usize = 64;
/// With fewer, what is slow is not known.
const TELLING: usize = 8;
/// Slow, as long as it is not known what is slow.
const SLOW_AT_FIRST: Duration = Duration::from_millis(300);
/// Nothing is slow before this: below it the machine itself is what varies.
const SLOW_AT_LEAST: Duration = Duration::from_millis(5);
/// Slow is what takes longer than nineteen of twenty, and a little more.
const MARGIN: f64 = 1.25;
/// An answer is overdue after so many times the expected time, and this much more.
const OVERDUE_FACTOR: f64 = 4.0;
const OVERDUE_MORE: Duration = Duration::from_millis(50);
/// What a denial costs the reader, who must ask elsewhere, seconds.
const DENIAL_COST_S: f64 = 0.05;

/// Of one mirror.
#[derive(Debug, Default)]
pub(super) struct Score {
    /// Time of a small answer, seconds.
    answer_s: Option<f64>,
    /// Time of each further block, seconds.
    block_s: f64,
    /// Share of requests of which something was denied.
    denied: f64,
    /// Time taken over time expected, of the last answers.
    ratios: VecDeque<f64>,
}

fn smooth(old: f64, new: f64) -> f64 {
    old + WEIGHT * (new - old)
}

impl Score {
    /// An answer to a request for `blocks` came after `elapsed`.
    pub(super) fn answered(&mut self, blocks: usize, elapsed: Duration) {
        let elapsed_s = elapsed.as_secs_f64();
        if let Some(expected_s) = self.expected_s(blocks) {
            if self.ratios.len() == RECENT {
                self.ratios.pop_front();
            }
            self.ratios.push_back(elapsed_s / expected_s.max(1e-6));
        }
        match self.answer_s {
            None => self.answer_s = Some(elapsed_s),
            Some(old) if blocks <= FEW => self.answer_s = Some(smooth(old, elapsed_s)),
            Some(old) => {
                let each_s = (elapsed_s - old).max(0.0) / (blocks - 1) as f64;
                self.block_s = smooth(self.block_s, each_s);
            }
        }
    }

    /// Whether something was denied of the last request.
    pub(super) fn denied(&mut self, denied: bool) {
        self.denied = smooth(self.denied, if denied { 1.0 } else { 0.0 });
    }

    /// It has what it lacked.
    pub(super) fn forget_denials(&mut self) {
        self.denied = 0.0;
    }

    /// The time of a small answer, if one came.
    pub(super) fn latency(&self) -> Option<Duration> {
        self.answer_s.map(Duration::from_secs_f64)
    }

    /// What this mirror costs who asks it: unknown ones nothing, so that they become known.
    pub(super) fn expected_wait(&self) -> Duration {
        let answer_s = self.answer_s.unwrap_or(0.0) + self.block_s;
        Duration::from_secs_f64(answer_s + DENIAL_COST_S * self.denied)
    }

    fn expected_s(&self, blocks: usize) -> Option<f64> {
        let more = blocks.saturating_sub(1) as f64;
        self.answer_s.map(|answer_s| answer_s + more * self.block_s)
    }

    /// After how long an answer for `blocks` is slow: when nineteen of twenty had come.
    pub(super) fn patience(&self, blocks: usize) -> Duration {
        let Some(expected_s) = self.expected_s(blocks) else {
            return SLOW_AT_FIRST;
        };
        let expected = Duration::from_secs_f64(expected_s);
        if self.ratios.len() < TELLING {
            return expected.saturating_mul(2).max(SLOW_AT_FIRST);
        }
        let mut ratios: Vec<f64> = self.ratios.iter().copied().collect();
        ratios.sort_by(f64::total_cmp);
        let p95 = ratios.get(ratios.len() * 95 / 100).copied().unwrap_or(2.0);
        expected
            .mul_f64(p95.clamp(1.0, 100.0) * MARGIN)
            .max(SLOW_AT_LEAST)
    }

    /// After how long the silence is the mirror's fault.
    pub(super) fn overdue_after(&self, blocks: usize) -> Duration {
        let expected = self.expected_s(blocks);
        let expected = expected.map_or(SLOW_AT_FIRST, Duration::from_secs_f64);
        (expected.mul_f64(OVERDUE_FACTOR) + OVERDUE_MORE).max(self.patience(blocks))
    }
}
