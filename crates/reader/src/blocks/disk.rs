//! A circuit breaker for the disk cache. A disk that does not answer must not use up the time in
//! which mirrors would answer, nor block one more thread for each read.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::oneshot;

/// Blocks of one look-up: few enough for a slow disk to read them in the time of one look-up.
pub(super) const LOOK_BLOCKS: usize = 32;
/// The longest wait for one look-up. Long, because a slow disk is better than none when no mirror
/// can be reached.
const LONGEST_LOOK: Duration = Duration::from_secs(5);

/// A look-up in the disk cache, which has sent what it found when it ends.
type Look = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Keeps whether the disk answers.
#[derive(Default)]
pub(super) struct DiskBreaker {
    is_stuck: AtomicBool,
    /// The look-up that did not end in time.
    stuck: Mutex<Option<Look>>,
}

/// How long a look-up may take when a read has `left` until its deadline.
fn patience(left: Duration) -> Duration {
    (left / 4).min(LONGEST_LOOK)
}

impl DiskBreaker {
    /// Whether the disk may be asked. False while a look-up is stuck, because the next one would be
    /// stuck behind it.
    pub(super) fn may_ask(&self) -> bool {
        if !self.is_stuck.load(Ordering::Relaxed) {
            return true;
        }
        let mut stuck = self.stuck();
        if let Some(look) = stuck.as_mut()
            && look.now_or_never().is_none()
        {
            return false;
        }
        *stuck = None;
        self.is_stuck.store(false, Ordering::Relaxed);
        true
    }

    /// What a look-up finds; `None` when it does not end in time.
    pub(super) async fn wait<T: Send + 'static>(
        &self,
        look: impl Future<Output = T> + Send + 'static,
        deadline: Instant,
    ) -> Option<T> {
        let (send, found) = oneshot::channel();
        let mut look: Look = Box::pin(async move {
            // A reader who waits no more wants nothing.
            let _ = send.send(look.await);
        });
        let left = deadline.saturating_duration_since(Instant::now());
        if tokio::time::timeout(patience(left), &mut look)
            .await
            .is_ok()
        {
            return found.await.ok();
        }
        *self.stuck() = Some(look);
        if !self.is_stuck.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the disk of the cache does not answer; reads go to the mirrors until it does"
            );
        }
        None
    }

    fn stuck(&self) -> MutexGuard<'_, Option<Look>> {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn look_up_takes_a_part_of_the_time_left() {
        assert_eq!(patience(Duration::ZERO), Duration::ZERO);
        assert_eq!(
            patience(Duration::from_millis(400)),
            Duration::from_millis(100)
        );
        assert_eq!(patience(Duration::from_secs(3600)), LONGEST_LOOK);
    }

    #[tokio::test]
    async fn stuck_disk_is_asked_again_only_after_it_has_answered() {
        let breaker = DiskBreaker::default();
        let soon = || Instant::now() + Duration::from_millis(400);
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let look = async move { ended.await.ok() };
        assert!(breaker.may_ask());
        assert!(breaker.wait(look, soon()).await.is_none());
        assert!(!breaker.may_ask());
        assert!(!breaker.may_ask(), "it has not ended");
        end.send(()).unwrap();
        assert!(breaker.may_ask());
        assert_eq!(breaker.wait(async { 7 }, soon()).await, Some(7));
        assert!(breaker.may_ask());
    }
}
