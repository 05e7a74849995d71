//! Work and rest of a collection, and the time that is counted meanwhile. Without input or output: a [`Watch`] tells the
//! time and rests.
//!
//! One collection has one pace, whoever works for it: a rest would count as work by a second one.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Work between two rests.
const SHIFT: Duration = Duration::from_millis(5);

/// Tells the time, and rests.
pub(super) trait Watch {
    /// Now.
    fn now(&self) -> Instant;

    /// Rests. False: the server stops.
    fn rest(&self, how_long: Duration) -> bool;

    /// Time goes on for the ages of blocks.
    fn count_time(&self);
}

/// The server stops.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stopped;

/// See the head of this file.
pub(super) struct Pace<'a> {
    watch: &'a dyn Watch,
    /// A rest takes so many times as long as the work before it.
    rests: u32,
    /// How long it rests at most before time is counted.
    pause: Duration,
    /// Work began.
    shift: Cell<Instant>,
    counted: Cell<Instant>,
}

impl<'a> Pace<'a> {
    pub fn new(watch: &'a dyn Watch, rests: u32, pause: Duration) -> Pace<'a> {
        let now = watch.now();
        Pace {
            watch,
            rests,
            pause,
            shift: Cell::new(now),
            counted: Cell::new(now),
        }
    }

    /// Rests if it is time: in parts, with time counted between them.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn breathe(&self) -> Result<(), Stopped> {
        let worked = since(self.watch.now(), &self.shift);
        if worked < SHIFT {
            return Ok(());
        }
        let mut left = worked.saturating_mul(self.rests);
        loop {
            let part = left.min(self.pause);
            if !self.watch.rest(part) {
                return Err(Stopped);
            }
            if since(self.watch.now(), &self.counted) >= self.pause {
                self.watch.count_time();
                self.counted.set(self.watch.now());
            }
            left = left.saturating_sub(part);
            if left.is_zero() {
                break;
            }
        }
        self.shift.set(self.watch.now());
        Ok(())
    }
}

fn since(now: Instant, then: &Cell<Instant>) -> Duration {
    now.saturating_duration_since(then.get())
}
