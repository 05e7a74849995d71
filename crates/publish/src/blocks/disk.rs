//! How long a fetch waits for the reader's own disk: a disk that is stuck must not cost the time in which
//! mirrors would answer, nor one more blocked thread for every read.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use store::StoreError;
use trust::Record;

/// What is asked for at once: a disk that is merely slow gives so many in the time of one look.
pub(super) const LOOK_BLOCKS: usize = 32;
/// The longest wait for one look.
const LONGEST_LOOK: Duration = Duration::from_secs(1);
/// A disk that did not answer is not asked again for so long.
const PAUSE: Duration = Duration::from_secs(10);

/// A look at the disk.
pub(super) type Look = Pin<Box<dyn Future<Output = Result<Vec<Record>, StoreError>> + Send>>;

/// Whether the disk answers.
pub(super) struct Answering {
    opened: Instant,
    /// Not asked before this, milliseconds since `opened`; 0 while it answers.
    paused_until_ms: AtomicU64,
    /// The look that did not end in time.
    stuck: Mutex<Option<Look>>,
    pause: Duration,
}

impl Default for Answering {
    fn default() -> Self {
        Answering {
            opened: Instant::now(),
            paused_until_ms: AtomicU64::new(0),
            stuck: Mutex::new(None),
            pause: PAUSE,
        }
    }
}

/// How long a look may take of what is left of a read.
fn patience(left: Duration) -> Duration {
    (left / 4).min(LONGEST_LOOK)
}

impl Answering {
    /// Whether the disk may be asked.
    pub(super) fn may_ask(&self) -> bool {
        let until = self.paused_until_ms.load(Ordering::Relaxed);
        if until == 0 {
            return true;
        }
        if self.now_ms() < until {
            return false;
        }
        let mut stuck = self.stuck();
        if let Some(look) = stuck.as_mut()
            && look.now_or_never().is_none()
        {
            // Another would be stuck behind it.
            self.pause();
            return false;
        }
        *stuck = None;
        self.paused_until_ms.store(0, Ordering::Relaxed);
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
        if self.paused_until_ms.load(Ordering::Relaxed) == 0 {
            tracing::warn!("the disk of the cache does not answer and is left alone for a while");
        }
        *self.stuck() = Some(look);
        self.pause();
        None
    }

    fn stuck(&self) -> MutexGuard<'_, Option<Look>> {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pause(&self) {
        let until = self.now_ms() + self.pause.as_millis() as u64;
        self.paused_until_ms.store(until.max(1), Ordering::Relaxed);
    }

    fn now_ms(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64
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
        let answering = Answering {
            pause: Duration::from_millis(50),
            ..Answering::default()
        };
        let soon = || Instant::now() + Duration::from_millis(400);
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let look = Box::pin(async move {
            ended.await.ok();
            Ok(Vec::new())
        });
        assert!(answering.may_ask());
        assert!(answering.wait(look, soon()).await.is_none());
        assert!(!answering.may_ask());
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert!(!answering.may_ask(), "the first look has not ended");
        end.send(()).unwrap();
        assert!(!answering.may_ask(), "the pause has not ended");
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert!(answering.may_ask());
        let look = Box::pin(async { Ok(Vec::new()) });
        assert!(answering.wait(look, soon()).await.is_some());
    }
}
