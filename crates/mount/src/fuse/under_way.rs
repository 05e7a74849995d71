//! Requests that were read and not answered yet, so that FUSE_INTERRUPT finds the one that it names.
//!
//! The kernel sends FUSE_INTERRUPT once for a request, when its caller gets the first signal. Another thread may read
//! it before the request itself is noted here; then it is answered EAGAIN and comes again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The requests, by the kernel's numbers.
#[derive(Debug, Default)]
pub struct UnderWay {
    requests: Mutex<HashMap<u64, State>>,
}

#[derive(Debug)]
enum State {
    /// A thread works on it.
    Handled,
    /// A thread works on it, and its caller has a signal.
    Interrupted,
    /// It waits, and is told of a signal.
    Waits(Arc<Notify>),
}

impl UnderWay {
    /// Notes a request that was read.
    pub fn begin(&self, unique: u64) {
        self.lock().insert(unique, State::Handled);
    }

    /// The request waits from now on. The returned `Notify` fires when the caller has a signal, or had one before.
    pub fn wait(&self, unique: u64) -> Arc<Notify> {
        let notify = Arc::new(Notify::new());
        let before = self.lock().insert(unique, State::Waits(notify.clone()));
        if matches!(before, Some(State::Interrupted)) {
            notify.notify_one();
        }
        notify
    }

    /// The caller of a request has a signal. `false` if the request is not known (yet).
    pub fn interrupt(&self, unique: u64) -> bool {
        match self.lock().get_mut(&unique) {
            Some(State::Waits(notify)) => notify.notify_one(),
            Some(state) => *state = State::Interrupted,
            None => return false,
        }
        true
    }

    /// The request is answered.
    pub fn end(&self, unique: u64) {
        self.lock().remove(&unique);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, State>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::time::Duration;

    async fn is_told(notify: &Notify) -> bool {
        let told = tokio::time::timeout(Duration::from_millis(20), notify.notified());
        told.await.is_ok()
    }

    #[tokio::test]
    async fn signal_before_and_after_the_wait_begins_is_told_to_its_request() {
        let under_way = UnderWay::default();
        for unique in [2, 4, 6] {
            under_way.begin(unique);
        }
        assert!(under_way.interrupt(2));
        let (before, after, never) = (under_way.wait(2), under_way.wait(4), under_way.wait(6));
        assert!(is_told(&before).await);
        assert!(!is_told(&after).await);
        assert!(under_way.interrupt(4));
        assert!(is_told(&after).await);
        assert!(!is_told(&never).await);
    }

    #[test]
    fn request_that_is_answered_or_was_not_read_is_not_known() {
        let under_way = UnderWay::default();
        assert!(!under_way.interrupt(2));
        under_way.begin(2);
        assert!(under_way.interrupt(2));
        under_way.end(2);
        assert!(!under_way.interrupt(2));
    }
}
