//! Wall clock that never runs backwards. Used to judge expiry.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Wall-clock time that no one can turn back while this process runs, nor behind what a judgement
/// knew before it began.
#[derive(Debug)]
pub struct Clock {
    began: Instant,
    /// What time it was when the clock began, unix milliseconds; only ever raised. In whole seconds
    /// the count could run ahead of the wall clock by one.
    at_least_ms: AtomicU64,
    /// The latest time that it was told, unix seconds: the count may be a millisecond short of it.
    told_seconds: AtomicU64,
}

impl Clock {
    /// A clock that begins at the system's time.
    pub fn start() -> Clock {
        Clock {
            began: Instant::now(),
            at_least_ms: AtomicU64::new(wall_seconds().saturating_mul(1000)),
            told_seconds: AtomicU64::new(0),
        }
    }

    /// It is this late now, unix seconds: time counts on from here, also where the wall clock was set
    /// back. Otherwise a statement would hold as much longer as the clock is behind.
    pub fn advance_to(&self, seconds: u64) {
        // One more, because what has elapsed is rounded down.
        let elapsed_ms = self.elapsed_ms().saturating_add(1);
        let began = seconds.saturating_mul(1000).saturating_sub(elapsed_ms);
        self.at_least_ms.fetch_max(began, Ordering::Relaxed);
        self.told_seconds.fetch_max(seconds, Ordering::Relaxed);
    }

    /// The time, unix seconds.
    pub fn now(&self) -> u64 {
        let counted_ms = self.at_least_ms.load(Ordering::Relaxed);
        let counted = counted_ms.saturating_add(self.elapsed_ms()) / 1000;
        let told = self.told_seconds.load(Ordering::Relaxed);
        wall_seconds().max(counted).max(told)
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// What the system's clock says, unix seconds.
pub fn wall_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clock_that_is_told_the_time_does_not_run_ahead_of_it() {
        let clock = Clock::start();
        for _ in 0..60 {
            clock.advance_to(wall_seconds());
            let now = clock.now();
            assert!(now <= wall_seconds(), "{now}");
            std::thread::sleep(Duration::from_millis(37));
        }
    }

    #[test]
    fn it_is_at_once_as_late_as_a_clock_was_told() {
        let clock = Clock::start();
        let later = wall_seconds() + 1000;
        clock.advance_to(later);
        assert!(clock.now() >= later);
    }
}
