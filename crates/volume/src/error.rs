//! Errors of finding, following and reading a volume. Every variant says what failed and where;
//! [`VolumeError::class`] gives the product-wide name from which exit codes, errno and metrics follow.

use reader::ReadError;
use state::StateError;
use store::StoreError;
use trust::Reject;
use trust::calendar::rfc3339;
use trust::error::Class;

/// An error of finding, following or reading a volume.
///
/// Cheap to clone, because one failed fetch may have many waiters.
#[derive(Debug, Clone, thiserror::Error)]
pub enum VolumeError {
    /// A block or a path cannot be fetched, or does not match what was signed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The head of a replica is refused.
    #[error("the statement that {place} serves is refused: {why}")]
    Statement {
        /// The replica.
        place: String,
        /// The rule that the statement breaks.
        why: Reject,
    },
    /// The adopted statement has expired and nothing newer was found.
    #[error("this version of the volume expired at {}, and nothing newer was found", rfc3339(*until))]
    Expired {
        /// End of validity, unix seconds.
        until: u64,
    },
    /// The replica does not hold this volume.
    #[error("{0}")]
    Place(String),
    /// The state directory cannot be read or written.
    #[error(transparent)]
    State(#[from] StateError),
}

impl VolumeError {
    /// The product-wide name of the error, if it has one.
    pub fn class(&self) -> Option<Class> {
        match self {
            VolumeError::Read(error) => error.class(),
            VolumeError::Statement { why, .. } => Some(why.class()),
            VolumeError::Expired { .. } => Some(Class::Expired),
            VolumeError::Place(_) | VolumeError::State(_) => None,
        }
    }

    /// A store's error about `what`.
    pub fn from_store(what: impl Into<String>, error: &StoreError) -> VolumeError {
        match error {
            StoreError::BadAnswer { place, why } => ReadError::Integrity {
                place: place.clone(),
                what: what.into(),
                why: why.clone(),
            }
            .into(),
            StoreError::Unsupported { .. } | StoreError::Format { .. } => ReadError::Unsupported {
                what: what.into(),
                cause: error.to_string(),
            }
            .into(),
            StoreError::NoVolume { .. } | StoreError::NoRepository { .. } => {
                VolumeError::Place(error.to_string())
            }
            _ => VolumeError::unavailable(what, error.to_string()),
        }
    }

    /// No replica answered about `what`.
    pub fn unavailable(what: impl Into<String>, cause: impl Into<String>) -> VolumeError {
        let (what, cause) = (what.into(), cause.into());
        let denied = Vec::new();
        ReadError::Unavailable {
            what,
            cause,
            denied,
        }
        .into()
    }
}

/// The error to report when every replica failed: evidence beats outage (fork, rollback, integrity, expired,
/// unsupported, unavailable).
pub fn gravest(errors: Vec<VolumeError>) -> VolumeError {
    errors
        .into_iter()
        .max_by_key(VolumeError::class)
        .unwrap_or_else(|| VolumeError::unavailable("the head", "there is no replica to ask"))
}

/// Whether a refused head is only old.
pub fn is_old(why: &Reject) -> bool {
    matches!(
        why,
        Reject::Rollback { .. } | Reject::Expired { .. } | Reject::Superseded(_)
    )
}

/// Whether a refused head is evidence to be kept. A fork always is. A rollback is evidence only if no
/// replica sent anything better: one that lags while others do not is no attack.
pub fn is_evidence(why: &Reject, nobody_better: bool) -> bool {
    if matches!(why, Reject::StrayPolicy(_)) {
        return true;
    }
    match why.class() {
        Class::Fork => !why.is_unsettled_fork(),
        Class::Rollback => nobody_better,
        _ => false,
    }
}

/// Whether the publisher, and not a replica, is to blame.
pub fn is_fork(error: &VolumeError) -> bool {
    matches!(
        error,
        VolumeError::Statement {
            why: Reject::Fork(_),
            ..
        }
    )
}
