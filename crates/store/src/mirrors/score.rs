//! Expected time of an answer of one mirror, from its earlier answers.
//!
//! An answer takes a fixed time and a time for each block. Both are smoothed over the last answers.
//! The ratios of real to expected times are remembered, so that *slow* depends on this mirror and
//! not on a constant.

use std::collections::VecDeque;
use std::time::Duration;

/// Weight of the newest answer in a smoothed time.
const WEIGHT: f64 = 0.2;
/// Requests for at most this many blocks measure the fixed time of an answer.
const FEW: usize = 2;
/// Number of ratios that are remembered.
const RECENT: usize = 64;
/// Number of ratios that are needed to know what is slow.
const TELLING: usize = 8;
/// What is slow until that is known.
const SLOW_AT_FIRST: Duration = Duration::from_millis(300);
/// Nothing faster than this is slow: below it the local machine causes the variation.
const SLOW_AT_LEAST: Duration = Duration::from_millis(5);
/// Slow is longer than the 95th percentile times this.
const MARGIN: f64 = 1.25;
/// An answer is overdue after the expected time times this factor, plus [`OVERDUE_MORE`].
const OVERDUE_FACTOR: f64 = 4.0;
const OVERDUE_MORE: Duration = Duration::from_millis(50);
/// Estimated cost of a denial, because the reader must ask another mirror, seconds.
const DENIAL_COST_S: f64 = 0.05;

/// Score of one mirror.
#[derive(Debug, Default)]
pub(super) struct Score {
    /// Time of a small answer, seconds.
    answer_s: Option<f64>,
    /// Time of each further block, seconds.
    block_s: f64,
    /// Smoothed share of requests in which a block was denied.
    denied: f64,
    /// Real time divided by expected time, of the last answers.
    ratios: VecDeque<f64>,
}

fn smooth(old: f64, new: f64) -> f64 {
    old + WEIGHT * (new - old)
}

impl Score {
    /// Records an answer for `blocks` that came after `elapsed`.
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

    /// Records whether a block of the last request was denied.
    pub(super) fn denied(&mut self, denied: bool) {
        self.denied = smooth(self.denied, if denied { 1.0 } else { 0.0 });
    }

    /// Forgets denials: the mirror has caught up.
    pub(super) fn forget_denials(&mut self) {
        self.denied = 0.0;
    }

    /// Expected time of a small answer, if one came.
    pub(super) fn latency(&self) -> Option<Duration> {
        self.answer_s.map(Duration::from_secs_f64)
    }

    /// Expected cost of asking this mirror. An unknown mirror costs nothing, so that it gets asked.
    pub(super) fn expected_wait(&self) -> Duration {
        let answer_s = self.answer_s.unwrap_or(0.0) + self.block_s;
        Duration::from_secs_f64(answer_s + DENIAL_COST_S * self.denied)
    }

    fn expected_s(&self, blocks: usize) -> Option<f64> {
        let more = blocks.saturating_sub(1) as f64;
        self.answer_s.map(|answer_s| answer_s + more * self.block_s)
    }

    /// After which time an answer for `blocks` is slow.
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

    /// After which time a missing answer counts as a stall.
    pub(super) fn overdue_after(&self, blocks: usize) -> Duration {
        let expected = self.expected_s(blocks);
        let expected = expected.map_or(SLOW_AT_FIRST, Duration::from_secs_f64);
        (expected.mul_f64(OVERDUE_FACTOR) + OVERDUE_MORE).max(self.patience(blocks))
    }
}
