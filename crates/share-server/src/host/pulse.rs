//! Heartbeats: a device that was sent nothing for some time is sent the newest note. Each device may wish for a pause of
//! its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::session::Bell;
use super::{Core, State};
use crate::blocks::storage::lock;

/// The devices are looked at so often at most, because each look is at all of them.
const LOOK_EVERY: Duration = Duration::from_millis(50);

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

impl Core {
    /// Wakes the sessions of devices that are due. Gives when the next one will be. It is called often, and mostly none
    /// is.
    pub(super) fn beat(&self, now: Instant) -> Instant {
        let (bells, next) = {
            let mut state = lock(&self.state);
            if now < state.beat_at {
                return state.beat_at;
            }
            let bells = state.beat(now, self.options.heartbeat);
            (bells, state.beat_at)
        };
        bells.iter().for_each(|bell| bell.ring());
        next
    }
}

impl State {
    fn beat(&mut self, now: Instant, idle: Duration) -> Vec<Arc<Bell>> {
        let mut next = now.checked_add(idle).unwrap_or(now);
        let mut bells = Vec::new();
        for (device, slot) in &mut self.slots {
            if slot.pulse.due <= now {
                slot.pulse.sent(now);
                self.orderer.beat_to(*device);
                bells.push(Arc::clone(&slot.bell));
            }
            next = next.min(slot.pulse.due);
        }
        let soonest = now.checked_add(LOOK_EVERY).unwrap_or(now);
        self.beat_at = next.max(soonest);
        bells
    }
}
