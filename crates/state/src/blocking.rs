//! Runs work on tokio's pool of blocking threads until a deadline. Work that has not begun by then never
//! runs, and the caller returns. Work that has begun gets some seconds more. If the disk does not answer by
//! then, the caller returns an error that says so, and the work runs to its end.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use crate::error::{StateError, stalled};

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const ABANDONED: u8 = 2;

/// Decides once whether work begins or is abandoned, whichever comes first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claim(Arc<AtomicU8>);

impl Claim {
    /// Called by the work before its first change. `false` means that the caller has left: change nothing.
    #[must_use]
    pub(crate) fn begin(&self) -> bool {
        self.move_to(BEGUN)
    }

    /// Called by the caller when it leaves. `false` means that the work has begun.
    pub(crate) fn abandon(&self) -> bool {
        self.move_to(ABANDONED)
    }

    fn move_to(&self, next: u8) -> bool {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.0
            .compare_exchange(WAITING, next, order.0, order.1)
            .is_ok()
    }
}

/// Abandons the work when the caller's future is dropped.
pub(crate) struct AbandonOnDrop(pub Claim);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// Time that work which has begun may take beyond the deadline. A write takes milliseconds on a disk that
/// answers, and seconds on a busy one. An error about a write that succeeds a moment later would only
/// mislead.
const BEGUN_PATIENCE: Duration = Duration::from_secs(10);

/// Runs `work` on the pool of blocking threads, until `deadline`, or [`BEGUN_PATIENCE`] later if it was
/// begun by then. `work` asks `claim` before it changes anything.
///
/// # Errors
/// [`StateError::Stalled`] when `work` has not returned by then.
///
/// # Panics
/// Outside a tokio runtime, and when `work` panics.
pub(crate) async fn run<T: Send + 'static>(
    claim: &Claim,
    path: &Path,
    deadline: Instant,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StateError> {
    let mut task = tokio::task::spawn_blocking(work);
    let mut ended = tokio::time::timeout_at(deadline.into(), &mut task).await;
    if ended.is_err() {
        if claim.abandon() {
            return Err(stalled(path, false));
        }
        ended = tokio::time::timeout(BEGUN_PATIENCE, task).await;
    }
    match ended {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime shuts down.
            Err(_) => Err(stalled(path, !claim.abandon())),
        },
        Err(_) => Err(stalled(path, true)),
    }
}
