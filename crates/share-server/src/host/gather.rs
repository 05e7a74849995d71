//! When a commit waits for more entries. Each commit costs a sync, a signature, and a delivery to every device, so a
//! server with many busy devices orders more entries in all when it waits a moment, and a server with one device when it
//! does not.
//!
//! It counts entries and their authors in periods. Half of the authors, or as many entries as a wait brings, are worth
//! waiting for, whichever is less. Entries that come one by one wait for nothing.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use trust::device::DeviceKey;

/// How long entries and authors are counted.
const PERIOD: Duration = Duration::from_millis(10);
/// Authors that are counted.
const MOST_AUTHORS: usize = 256;

/// See the head of this file.
#[derive(Debug)]
pub struct Gather {
    /// The longest wait after a commit.
    longest: Duration,
    since: Instant,
    now: Count,
    /// The period before.
    before: Count,
    /// When the last commit was done.
    done: Instant,
    /// A commit waits since then, and somebody knows.
    waits: bool,
}

#[derive(Debug, Default)]
struct Count {
    entries: u32,
    authors: HashSet<DeviceKey>,
}

impl Gather {
    /// Nothing was counted yet.
    pub fn new(longest: Duration, now: Instant) -> Gather {
        Gather {
            longest,
            since: now,
            now: Count::default(),
            before: Count::default(),
            done: now,
            waits: false,
        }
    }

    /// An entry has come.
    pub fn entry(&mut self, author: DeviceKey, now: Instant) {
        self.turn(now);
        self.now.entries = self.now.entries.saturating_add(1);
        if self.now.authors.len() < MOST_AUTHORS {
            self.now.authors.insert(author);
        }
    }

    /// A commit is done.
    pub fn done(&mut self, now: Instant) {
        self.done = now;
        self.waits = false;
    }

    /// Whether this is the first wait since a commit was done. The thread that keeps deadlines is told of it once.
    pub fn is_new_wait(&mut self) -> bool {
        !std::mem::replace(&mut self.waits, true)
    }

    /// Until when a commit waits that has so many entries now. None: it begins.
    pub fn until(&mut self, waiting: usize, now: Instant) -> Option<Instant> {
        let until = self.done + self.longest;
        if now >= until {
            return None;
        }
        self.turn(now);
        (waiting < self.worth()).then_some(until)
    }

    /// Begins a new period when it is time.
    fn turn(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.since);
        if age < PERIOD {
            return;
        }
        let mut old = std::mem::take(&mut self.now);
        if age >= 2 * PERIOD {
            old = Count::default();
        }
        self.before = old;
        self.since = now;
    }

    /// Entries that are worth waiting for.
    fn worth(&self) -> usize {
        let brought =
            self.before.entries as f64 * self.longest.as_secs_f64() / PERIOD.as_secs_f64();
        (brought as usize).min(self.before.authors.len() / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_millis(1);

    /// So many devices that send an entry every so often, for two periods: what a commit with one entry waits for.
    fn after(devices: u8, every: Duration) -> (Gather, Instant) {
        let start = Instant::now();
        let mut gather = Gather::new(LONGEST, start);
        let mut now = start;
        while now < start + 2 * PERIOD {
            for number in 0..devices {
                gather.entry(DeviceKey::from_bytes([number; 32]), now);
            }
            now += every;
        }
        gather.done(now);
        (gather, now)
    }

    #[test]
    fn commit_waits_for_half_of_many_busy_devices_and_not_for_long() {
        let (mut gather, now) = after(8, Duration::from_millis(1));
        assert_eq!(gather.until(3, now), Some(now + LONGEST));
        assert_eq!(gather.until(4, now), None);
        assert_eq!(gather.until(1, now + LONGEST), None);
        // They have stopped.
        let later = now + 10 * PERIOD;
        gather.done(later);
        gather.entry(DeviceKey::from_bytes([1; 32]), later);
        assert_eq!(gather.until(1, later), None);
    }

    #[test]
    fn commit_waits_for_nobody_when_entries_come_one_by_one() {
        let (mut one, now) = after(1, Duration::from_micros(100));
        assert_eq!(one.until(1, now), None);
        let (mut slow, now) = after(4, Duration::from_millis(5));
        assert_eq!(slow.until(1, now), None);
        let mut never = Gather::new(Duration::ZERO, now);
        for number in 0..100 {
            never.entry(DeviceKey::from_bytes([number; 32]), now);
        }
        assert_eq!(never.until(1, now), None);
    }
}
