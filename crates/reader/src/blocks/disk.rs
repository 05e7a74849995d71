//! How long a fetch waits for the reader's own disk: a disk that is stuck must not cost the time in which
//! mirrors would answer, nor one more blocked thread for every read.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use store::StoreError;
use trust::Record;

/// What is asked for at once: a disk that is merely slow gives so many in the time of one look.
pub(super) const LOOK_BLOCKS: usize = 32;
/// The longest wait for one look: a slow disk is better than none, where no mirror can be reached.
const LONGEST_LOOK: Duration = Duration::from_secs(5);

/// A look at the disk.
pub(super) type Look = Pin<Box<dyn Future<Output = Result<Vec<Record>, StoreError>> + Send>>;

/// Whether the disk answers.
#[derive(Default)]
pub(super) struct DiskBreaker {
    is_stuck: AtomicBool,
    /// The look that did not end in time.
    stuck: Mutex<Option<Look>>,
}

/// How long a look may take of what is left of a read.
fn patience(left: Duration) -> Duration {
    (left / 4).min(LONGEST_LOOK)
}

impl DiskBreaker {
    /// Whether the disk may be asked: not while a look is stuck, which another would be stuck behind.
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

    /// What a look finds, if that is in time.
    pub(super) async fn wait(
        &self,
        mut look: Look,
        deadline: Instant,
    ) -> Option<Result<Vec<Record>, StoreError>> {
        let left = deadline.saturating_duration_since(Instant::now());
        if let Ok(found) = tokio::time::timeout(patience(left), &mut look).await {
            return Some(found);
        }
        *self.stuck() = Some(look);
        if !self.is_stuck.swap(true, Ordering::Relaxed) {
            tracing::warn!("the disk of the cache does not answer and is left alone until it does");
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
    fn a_look_takes_a_part_of_what_is_left() {
        assert_eq!(patience(Duration::ZERO), Duration::ZERO);
        assert_eq!(
            patience(Duration::from_millis(400)),
            Duration::from_millis(100)
        );
        assert_eq!(patience(Duration::from_secs(3600)), LONGEST_LOOK);
    }

    #[tokio::test]
    async fn a_stuck_disk_is_asked_again_when_it_has_answered_and_not_before() {
        let answering = DiskBreaker::default();
        let soon = || Instant::now() + Duration::from_millis(400);
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let look = Box::pin(async move {
            ended.await.ok();
            Ok(Vec::new())
        });
        assert!(answering.may_ask());
        assert!(answering.wait(look, soon()).await.is_none());
        assert!(!answering.may_ask());
        assert!(!answering.may_ask(), "it has not ended");
        end.send(()).unwrap();
        assert!(answering.may_ask());
        let look = Box::pin(async { Ok(Vec::new()) });
        assert!(answering.wait(look, soon()).await.is_some());
        assert!(answering.may_ask());
    }
}
