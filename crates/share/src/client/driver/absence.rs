//! How long the device had no connection. The server keeps blocks that a device has stored for a while only, so what calls
//! name that wait since then may be gone ([decision 0113](../../../../../docs/decisions/0113-one-flight.md)).

use std::time::{Duration, Instant, SystemTime};

/// Watches connections.
#[derive(Debug)]
pub(super) struct Absence {
    /// Longer ones are too long.
    long: Duration,
    lost: Option<(Instant, SystemTime)>,
}

impl Absence {
    pub(super) fn new(long: Duration) -> Absence {
        Absence { long, lost: None }
    }

    /// There is no connection now. The first time counts.
    pub(super) fn begin(&mut self, now: (Instant, SystemTime)) {
        self.lost.get_or_insert(now);
    }

    /// There is one again. Gives whether that took too long. A machine that sleeps stops the one clock, and somebody may
    /// set the other one.
    pub(super) fn end(&mut self, now: (Instant, SystemTime)) -> bool {
        let Some(lost) = self.lost.take() else {
            return false;
        };
        let here = now.0.saturating_duration_since(lost.0);
        let wall = now.1.duration_since(lost.1).unwrap_or_default();
        here.max(wall) >= self.long
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_clock_tells_that_a_device_was_away_for_long() {
        let hour = Duration::from_secs(3600);
        let begin = (Instant::now(), SystemTime::now());
        let away = |here: Duration, wall: Option<Duration>| {
            let mut absence = Absence::new(12 * hour);
            assert!(!absence.end(begin), "it was never lost");
            absence.begin(begin);
            absence.begin((begin.0 + here, begin.1));
            let wall = wall.map_or(begin.1 - hour, |wall| begin.1 + wall);
            let is_long = absence.end((begin.0 + here, wall));
            assert!(!absence.end((begin.0 + 99 * hour, begin.1)), "it ended");
            is_long
        };
        assert!(!away(11 * hour, Some(11 * hour)));
        assert!(away(12 * hour, Some(hour)));
        assert!(away(hour, Some(12 * hour)), "the machine slept");
        assert!(away(12 * hour, None), "the clock was set back");
    }
}
