//! How long this device has known which prefix of the log: a lock that was renewed before it for the last time has run out.

use std::collections::VecDeque;
use std::time::Duration;

/// A holder that has renewed nothing for this time has lost its locks to who wants them.
pub const LAPSES: Duration = Duration::from_secs(30);
/// A holder renews its locks after this time.
pub const RENEWS: Duration = Duration::from_secs(10);

/// Prefixes are noted at most so often, milliseconds.
const APART_MS: u64 = 1000;

/// Sizes of prefixes, and when this device knew them, by a clock of the caller that does not run backwards, milliseconds.
#[derive(Debug, Default)]
pub struct Known {
    notes: VecDeque<(u64, u64)>,
}

impl Known {
    /// The device knows a prefix of this size now.
    pub fn note(&mut self, now_ms: u64, size: u64) {
        let is_early = |(at, _): &(u64, u64)| now_ms < at.saturating_add(APART_MS);
        if !self.notes.back().is_some_and(is_early) {
            self.notes.push_back((now_ms, size));
        }
        // One that is old enough is kept, the newest of them.
        while self.notes.get(1).is_some_and(|(at, _)| old(*at, now_ms)) {
            self.notes.pop_front();
        }
    }

    /// Size of the prefix that the device has known for the time to live of locks.
    pub fn lapsed(&self, now_ms: u64) -> u64 {
        let old = self.notes.iter().filter(|(at, _)| old(*at, now_ms));
        old.map(|(_, size)| *size).max().unwrap_or(0)
    }
}

fn old(at_ms: u64, now_ms: u64) -> bool {
    u128::from(now_ms.saturating_sub(at_ms)) >= LAPSES.as_millis()
}
