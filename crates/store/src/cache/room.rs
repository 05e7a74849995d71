//! Room (in bytes) in the queue of blocks that wait to be written.
//!
//! A reader that is faster than the disk waits until there is room, so that its blocks are cached.
//! Each wait is short, and all waits together take a small part of the time that passes: a slow
//! disk does not slow readers by much, and a stuck disk stops none.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum allowance for waiting, for short bursts of fast readers.
const MOST_SAVED: Duration = Duration::from_secs(2);
/// The allowance grows by the time that passes, divided by this.
const SAVED_PART: u32 = 10;
/// Longest wait of a reader whose purpose is to fill the cache.
pub(super) const LONG_PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which a waiting reader looks for room.
const STEP: Duration = Duration::from_millis(1);

pub(super) struct Room {
    max_bytes: usize,
    patience: Duration,
    taken_bytes: AtomicUsize,
    allowance: Mutex<Allowance>,
    /// Whether readers wait as long as the disk needs.
    waits_long: AtomicBool,
}

/// How long all readers together may still wait.
struct Allowance {
    left: Duration,
    since: Instant,
}

impl Allowance {
    fn refill(&mut self) -> Duration {
        let now = Instant::now();
        let saved = now.duration_since(self.since) / SAVED_PART;
        self.since = now;
        self.left = (self.left + saved).min(MOST_SAVED);
        self.left
    }
}

impl Room {
    /// Room for `max_bytes`; a reader waits at most `patience` at a time.
    pub(super) fn new(max_bytes: usize, patience: Duration) -> Room {
        Room {
            max_bytes,
            patience,
            taken_bytes: AtomicUsize::new(0),
            allowance: Mutex::new(Allowance {
                left: MOST_SAVED,
                since: Instant::now(),
            }),
            waits_long: AtomicBool::new(false),
        }
    }

    /// From now on readers wait as long as the disk needs, within [`LONG_PATIENCE`].
    pub(super) fn wait_long(&self) {
        self.waits_long.store(true, Ordering::Relaxed);
    }

    /// Takes room, waiting for it if needed; false when there is none in time.
    pub(super) fn take(&self, bytes: usize) -> bool {
        if self.take_now(bytes) {
            return true;
        }
        let waits_long = self.waits_long.load(Ordering::Relaxed);
        let patience = match waits_long {
            true => LONG_PATIENCE,
            false => self.allow(|allowance| allowance.refill().min(self.patience)),
        };
        let since = Instant::now();
        let mut taken = false;
        while !taken && since.elapsed() + STEP <= patience {
            std::thread::sleep(STEP);
            taken = self.take_now(bytes);
        }
        let waited = since.elapsed();
        // After a wait without success nobody waits long again: the disk is stuck.
        if waits_long && !taken {
            self.waits_long.store(false, Ordering::Relaxed);
        }
        self.allow(|allowance| {
            // After a wait without success no reader waits for a while, because the disk may be stuck.
            let left = allowance.left.saturating_sub(waited);
            allowance.left = if taken { left } else { Duration::ZERO };
        });
        taken
    }

    fn allow<T>(&self, act: impl FnOnce(&mut Allowance) -> T) -> T {
        act(&mut self
            .allowance
            .lock()
            .unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes room if there is some now.
    pub(super) fn take_now(&self, bytes: usize) -> bool {
        let more = |taken: usize| {
            let taken = taken.saturating_add(bytes);
            (taken <= self.max_bytes).then_some(taken)
        };
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        self.taken_bytes.fetch_update(set, get, more).is_ok()
    }

    /// Waits until everything was given back, or for this time.
    pub(super) fn wait_until_free(&self, longest: Duration) {
        let began = Instant::now();
        while !self.is_free() && began.elapsed() < longest {
            std::thread::sleep(STEP);
        }
    }

    /// Whether everything was given back.
    pub(super) fn is_free(&self) -> bool {
        self.taken_bytes.load(Ordering::Relaxed) == 0
    }

    /// Gives room back.
    pub(super) fn give(&self, bytes: usize) {
        self.taken_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reader_waits_until_there_is_room() {
        let room = Room::new(100, Duration::from_secs(60));
        assert!(room.take(60));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| room.take(60));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished());
            room.give(60);
            assert!(waiting.join().unwrap());
        });
        assert!(!room.take_now(60));
        assert!(room.take(40));
    }

    #[test]
    fn stuck_disk_delays_readers_little() {
        let patience = Duration::from_millis(50);
        let room = Room::new(100, patience);
        assert!(room.take(100));
        let began = Instant::now();
        assert!(!room.take(1));
        assert!(began.elapsed() >= patience / 2);
        for _ in 0..10_000 {
            assert!(!room.take(1));
        }
        assert!(began.elapsed() < MOST_SAVED);
    }

    #[test]
    fn waiting_allowance_grows_with_time_up_to_its_maximum() {
        let saved = |passed: Duration, left: Duration| {
            let since = Instant::now().checked_sub(passed).unwrap();
            Allowance { left, since }.refill()
        };
        let ten = saved(Duration::from_secs(10), Duration::ZERO);
        assert!(ten >= Duration::from_secs(1) && ten < Duration::from_millis(1900));
        assert_eq!(saved(Duration::from_secs(60), Duration::ZERO), MOST_SAVED);
        assert_eq!(saved(Duration::from_secs(1), MOST_SAVED), MOST_SAVED);
    }

    #[test]
    fn slow_disk_uses_the_allowance_and_then_delays_little() {
        // A busy machine delays readers too: one undisturbed time suffices.
        let few = (0..10).any(|_| waits_little_beside_a_slow_disk());
        assert!(few, "a slow disk delays readers too much");
    }

    fn waits_little_beside_a_slow_disk() -> bool {
        let room = Room::new(100, Duration::from_millis(50));
        assert!(room.take(100));
        let saved = Duration::from_millis(300);
        room.allow(|allowance| allowance.left = saved);
        let (began, lasts) = (Instant::now(), Duration::from_millis(1500));
        std::thread::scope(|scope| {
            // One block is written every 10 ms, and the reader always has more.
            scope.spawn(|| {
                while began.elapsed() < lasts {
                    std::thread::sleep(Duration::from_millis(10));
                    room.give(1);
                }
            });
            let (mut kept, mut refused, mut waited) = (0, 0, Duration::ZERO);
            while began.elapsed() < lasts {
                let since = Instant::now();
                *(if room.take(1) {
                    &mut kept
                } else {
                    &mut refused
                }) += 1;
                waited += since.elapsed();
                std::thread::sleep(Duration::from_micros(100));
            }
            println!("waited {waited:?}, {refused} refused, {kept} kept");
            waited < saved + lasts / SAVED_PART * 3 && refused > kept && kept > 20
        })
    }
}
