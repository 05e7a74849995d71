//! Errors of the state directory. Each names the file, says what happened, and whether anything changed.

use std::fmt::Display;
use std::path::Path;
use std::time::Instant;

/// The state directory cannot be read or written.
///
/// Cheap to clone, because one failed round may have many waiters.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StateError {
    /// The system refused, or a file does not hold what it should.
    #[error("state directory: {path}: {cause}")]
    Failed {
        /// The file.
        path: String,
        /// The reason, in the system's words where it has one.
        cause: String,
    },
    /// Another process held the lock until the deadline. Nothing was changed.
    #[error(
        "state directory: {path}: still locked after {waited_ms} ms by {holder}; nothing was changed"
    )]
    Locked {
        /// The lock file.
        path: String,
        /// The process that holds the lock, if the system names it.
        holder: String,
        /// How long the caller waited, milliseconds.
        waited_ms: u64,
    },
    /// The disk, or the pool of threads that wait for disks, did not answer before the deadline.
    #[error(
        "state directory: {path}: no answer from the disk before the deadline; {}",
        if *.begun { "the change was begun and may still take effect" } else { "nothing was changed" }
    )]
    Stalled {
        /// The file.
        path: String,
        /// Whether the change was begun. If not, it never happens.
        begun: bool,
    },
}

impl StateError {
    /// Whether another process held the lock until the deadline.
    pub fn is_locked(&self) -> bool {
        matches!(self, StateError::Locked { .. })
    }

    /// The same error for a caller that has waited for the lock since `began`, several times.
    #[must_use]
    pub fn waiting_since(mut self, began: Instant) -> StateError {
        if let StateError::Locked { waited_ms, .. } = &mut self {
            *waited_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        }
        self
    }
}

pub(crate) fn failed(path: &Path, cause: impl Display) -> StateError {
    StateError::Failed {
        path: path.display().to_string(),
        cause: cause.to_string(),
    }
}

pub(crate) fn stalled(path: &Path, begun: bool) -> StateError {
    StateError::Stalled {
        path: path.display().to_string(),
        begun,
    }
}
