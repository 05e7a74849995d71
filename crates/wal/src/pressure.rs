//! How full the log is. Clients look, or wait until it is fuller than they like; the log never calls a client.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::machine::Pressure;
use crate::shared::Shared;

/// Waits until the log is fuller than a limit, has failed or was closed. Dropping it changes nothing.
pub struct PressureAbove {
    shared: Arc<Shared>,
    used: u64,
}

impl PressureAbove {
    pub(crate) fn new(shared: Arc<Shared>, used: u64) -> PressureAbove {
        PressureAbove { shared, used }
    }

    /// Waits on this thread, at most for `longest`, and returns the pressure then.
    pub fn wait(self, longest: Duration) -> Pressure {
        let deadline = Instant::now() + longest;
        let mut state = self.shared.state();
        while !state.is_above(self.used) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state.watchers += 1;
            let woken = self.shared.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
            state.watchers -= 1;
        }
        state.machine.pressure()
    }
}

impl Future for PressureAbove {
    type Output = Pressure;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Pressure> {
        let mut state = self.shared.state();
        if state.is_above(self.used) {
            return Poll::Ready(state.machine.pressure());
        }
        let (used, waker) = (self.used, context.waker());
        let known = |(at, by): &(u64, Waker)| *at == used && by.will_wake(waker);
        if !state.pressure_wakers.iter().any(known) {
            state.pressure_wakers.push((used, waker.clone()));
        }
        Poll::Pending
    }
}
