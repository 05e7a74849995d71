//! Room in the queue of blocks that wait to be written, bytes.
//!
//! A reader who is faster than the disk waits until some is given back, so that what was read is kept; but
//! only briefly, and for a while not at all after that was in vain: a disk that is stuck stops no reader.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long nobody waits again after somebody did in vain.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Room {
    max_bytes: usize,
    patience: Duration,
    taken_bytes: AtomicUsize,
    began: Instant,
    /// Until when nobody waits, milliseconds since it began.
    hasty_until_ms: AtomicU64,
}

impl Room {
    /// Room for so many bytes, for which a reader waits so long.
    pub(super) fn new(max_bytes: usize, patience: Duration) -> Room {
        Room {
            max_bytes,
            patience,
            taken_bytes: AtomicUsize::new(0),
            began: Instant::now(),
            hasty_until_ms: AtomicU64::new(0),
        }
    }

    /// Takes room if there is some in time.
    pub(super) fn take(&self, bytes: usize) -> bool {
        if self.take_now(bytes) {
            return true;
        }
        let hasty_until = Duration::from_millis(self.hasty_until_ms.load(Ordering::Relaxed));
        if self.began.elapsed() < hasty_until {
            return false;
        }
        let since = Instant::now();
        while since.elapsed() < self.patience {
            std::thread::sleep(Duration::from_millis(1));
            if self.take_now(bytes) {
                return true;
            }
        }
        let until = (self.began.elapsed() + PAUSE).as_millis();
        let until = u64::try_from(until).unwrap_or(u64::MAX);
        self.hasty_until_ms.fetch_max(until, Ordering::Relaxed);
        false
    }

    fn take_now(&self, bytes: usize) -> bool {
        let more = |taken: usize| {
            let taken = taken.saturating_add(bytes);
            (taken <= self.max_bytes).then_some(taken)
        };
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        self.taken_bytes.fetch_update(set, get, more).is_ok()
    }

    /// Gives back what was taken.
    pub(super) fn give(&self, bytes: usize) {
        self.taken_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_no_room_waits_until_some_is_given_back() {
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
    fn one_waits_in_vain_and_the_others_go_on() {
        let patience = Duration::from_millis(50);
        let room = Room::new(100, patience);
        assert!(room.take(100));
        let began = Instant::now();
        for _ in 0..1000 {
            assert!(!room.take(1));
        }
        assert!(began.elapsed() >= patience);
        assert!(began.elapsed() < PAUSE);
    }
}
