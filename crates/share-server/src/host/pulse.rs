//! Heartbeats: a device that was sent nothing for some time is sent the newest note. Each device may wish for a pause of
//! its own.

use std::time::{Duration, Instant};

/// When a device is due.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pulse {
    pause: Duration,
    due: Instant,
}

impl Pulse {
    /// A device is sent something now, and each time after this pause.
    pub fn new(pause: Duration, now: Instant) -> Pulse {
        let due = now.checked_add(pause).unwrap_or(now);
        Pulse { pause, due }
    }

    /// When the device is due.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// The device was sent something.
    pub fn sent(&mut self, now: Instant) {
        *self = Pulse::new(self.pause, now);
    }
}
