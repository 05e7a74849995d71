//! The wall clock. [`Clock`] gives the time: the system's, or one that a test sets. [`SteadyClock`] is a
//! `Clock` that never runs backwards; readers judge expiry by it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Gives the time, in unix seconds. The default is the system's clock.
#[derive(Debug, Clone, Default)]
pub struct Clock(Source);

#[derive(Debug, Clone, Default)]
enum Source {
    #[default]
    System,
    Manual(ManualClock),
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Clock {
        Clock::default()
    }

    /// A clock that always shows `seconds`.
    pub fn fixed(seconds: u64) -> Clock {
        ManualClock::at(seconds).clock()
    }

    /// The time, unix seconds.
    pub fn now(&self) -> u64 {
        self.wall_ms() / 1000
    }

    fn wall_ms(&self) -> u64 {
        match &self.0 {
            Source::System => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH);
                since.map_or(0, millis)
            }
            Source::Manual(manual) => manual.0.wall_ms.load(Ordering::Relaxed),
        }
    }

    fn stopwatch(&self) -> Stopwatch {
        match &self.0 {
            Source::System => Stopwatch::System(Instant::now()),
            Source::Manual(manual) => Stopwatch::Manual {
                began_ms: manual.0.elapsed_ms.load(Ordering::Relaxed),
                clock: manual.clone(),
            },
        }
    }
}

/// A clock that only moves when it is told to: for tests, and for callers that get the time from elsewhere.
/// Clones show the same time.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<ManualTime>);

#[derive(Debug)]
struct ManualTime {
    wall_ms: AtomicU64,
    /// Time that has passed, milliseconds. Setting the wall clock does not change it.
    elapsed_ms: AtomicU64,
}

impl ManualClock {
    /// A clock that shows `seconds` (unix seconds).
    pub fn at(seconds: u64) -> ManualClock {
        ManualClock(Arc::new(ManualTime {
            wall_ms: AtomicU64::new(seconds.saturating_mul(1000)),
            elapsed_ms: AtomicU64::new(0),
        }))
    }

    /// The clock to inject.
    pub fn clock(&self) -> Clock {
        Clock(Source::Manual(self.clone()))
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        self.0.wall_ms.fetch_add(millis(by), Ordering::Relaxed);
        self.0.elapsed_ms.fetch_add(millis(by), Ordering::Relaxed);
    }

    /// Sets the wall clock, also backwards, as an administrator can. No time passes.
    pub fn set(&self, seconds: u64) {
        let wall_ms = seconds.saturating_mul(1000);
        self.0.wall_ms.store(wall_ms, Ordering::Relaxed);
    }
}

/// Measures how much time has passed, independent of the wall clock.
#[derive(Debug)]
enum Stopwatch {
    System(Instant),
    Manual { clock: ManualClock, began_ms: u64 },
}

impl Stopwatch {
    fn elapsed_ms(&self) -> u64 {
        match self {
            Stopwatch::System(began) => millis(began.elapsed()),
            Stopwatch::Manual { clock, began_ms } => {
                let now_ms = clock.0.elapsed_ms.load(Ordering::Relaxed);
                now_ms.saturating_sub(*began_ms)
            }
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A [`Clock`] that never runs backwards while the process runs, and never shows a time before the
/// newest statement that was verified. Setting the wall clock back does not prolong a statement.
#[derive(Debug)]
pub struct SteadyClock {
    clock: Clock,
    stopwatch: Stopwatch,
    /// The time at which the stopwatch began, unix milliseconds; only ever raised. In whole seconds
    /// the sum could run ahead of the wall clock by one second.
    began_ms: AtomicU64,
    /// The latest time given to [`SteadyClock::advance_to`], unix seconds. The sum may be a
    /// millisecond short of it.
    told_seconds: AtomicU64,
}

impl SteadyClock {
    /// Begins at the time that `clock` shows.
    pub fn start(clock: Clock) -> SteadyClock {
        SteadyClock {
            stopwatch: clock.stopwatch(),
            began_ms: AtomicU64::new((clock.wall_ms() / 1000).saturating_mul(1000)),
            told_seconds: AtomicU64::new(0),
            clock,
        }
    }

    /// Moves the clock forward to `seconds` (unix seconds) if it shows less, and counts on from there.
    pub fn advance_to(&self, seconds: u64) {
        // One more, because what has elapsed is rounded down.
        let elapsed_ms = self.stopwatch.elapsed_ms().saturating_add(1);
        let began_ms = seconds.saturating_mul(1000).saturating_sub(elapsed_ms);
        self.began_ms.fetch_max(began_ms, Ordering::Relaxed);
        self.told_seconds.fetch_max(seconds, Ordering::Relaxed);
    }

    /// The time of the wall clock, unix seconds. It may run backwards, and statements do not move it.
    pub fn wall(&self) -> u64 {
        self.clock.now()
    }

    /// The time, unix seconds.
    pub fn now(&self) -> u64 {
        let began_ms = self.began_ms.load(Ordering::Relaxed);
        let counted = began_ms.saturating_add(self.stopwatch.elapsed_ms()) / 1000;
        let told = self.told_seconds.load(Ordering::Relaxed);
        self.wall().max(counted).max(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    #[test]
    fn advanced_clock_does_not_run_ahead_of_the_wall_clock() {
        let manual = ManualClock::at(NOW);
        let steady = SteadyClock::start(manual.clock());
        for _ in 0..100 {
            steady.advance_to(manual.clock().now());
            assert!(steady.now() <= manual.clock().now());
            manual.advance(Duration::from_millis(37));
        }
        let system = SteadyClock::start(Clock::system());
        system.advance_to(Clock::system().now());
        assert!(system.now() <= Clock::system().now());
    }

    #[test]
    fn advanced_clock_shows_the_new_time_at_once() {
        let steady = SteadyClock::start(Clock::fixed(NOW));
        steady.advance_to(NOW + 1000);
        assert_eq!(steady.now(), NOW + 1000);
    }

    #[test]
    fn wall_clock_that_is_set_back_does_not_stop_the_steady_clock() {
        let manual = ManualClock::at(NOW);
        let steady = SteadyClock::start(manual.clock());
        manual.set(NOW - 5000);
        assert_eq!(steady.now(), NOW);
        manual.advance(Duration::from_secs(10));
        assert_eq!(steady.now(), NOW + 10);
        manual.set(NOW + 100);
        assert_eq!(steady.now(), NOW + 100);
    }
}
