//! What a reader can be told. Every variant says what and where; [`ReadError::class`] gives the
//! product-wide name from which exit codes, errno and metrics follow.

use store::StoreError;
use trust::Reject;
use trust::error::Class;

/// An error of the verified reader.
///
/// Cheap to clone, because one failed fetch may have many waiters.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// Not in memory; ask again with leave to wait. Never shown to people.
    #[error("not in memory")]
    NotCached,
    /// No place gave a believable block in time.
    #[error("{what} cannot be had: {cause}")]
    Unavailable {
        /// What was wanted.
        what: String,
        /// What each place said.
        cause: String,
    },
    /// A place gave something else than what was signed, and no other place gave the right thing.
    #[error("{place} gave a wrong answer for {what}: {why}")]
    Integrity {
        /// The place that lied.
        place: String,
        /// What was wanted.
        what: String,
        /// Which check failed.
        why: Reject,
    },
    /// The head that a place tells is refused.
    #[error("the statement that {place} serves is refused: {why}")]
    Statement {
        /// The place.
        place: String,
        /// Which rule it breaks.
        why: Reject,
    },
    /// The publisher signed something that breaks the rules of the trees.
    #[error("the published volume is malformed: {0}")]
    Malformed(Reject),
    /// The adopted statement's time has passed and nothing newer can be had.
    #[error("the volume's statement expired at {until} (unix seconds) and nothing newer was found")]
    Expired {
        /// End of validity, unix seconds.
        until: u64,
    },
    /// Proved not to be there.
    #[error("{path}: not in the volume")]
    NotFound {
        /// The path asked for.
        path: String,
    },
    /// The path is there, but of another kind.
    #[error("{path}: {why}")]
    WrongKind {
        /// The path asked for.
        path: String,
        /// What it is or is not.
        why: &'static str,
    },
    /// SOURCE or LOCATION is not written as it must be.
    #[error("{text}: {why}")]
    BadSource {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// A place that is no place of this volume.
    #[error("{0}")]
    Place(String),
    /// The state directory cannot be read or written.
    #[error("state directory: {path}: {cause}")]
    State {
        /// The file.
        path: String,
        /// The system's words.
        cause: String,
    },
}

impl ReadError {
    /// The product-wide name of the error, where it has one.
    pub fn class(&self) -> Option<Class> {
        match self {
            ReadError::Unavailable { .. } => Some(Class::Unavailable),
            ReadError::Integrity { .. } | ReadError::Malformed(_) => Some(Class::Integrity),
            ReadError::Statement { why, .. } => Some(why.class()),
            ReadError::Expired { .. } => Some(Class::Expired),
            ReadError::NotCached
            | ReadError::NotFound { .. }
            | ReadError::WrongKind { .. }
            | ReadError::BadSource { .. }
            | ReadError::Place(_)
            | ReadError::State { .. } => None,
        }
    }

    /// A store's error about `what`.
    pub(crate) fn from_store(what: impl Into<String>, error: &StoreError) -> ReadError {
        match error {
            StoreError::BadAnswer { place, why } => ReadError::Integrity {
                place: place.clone(),
                what: what.into(),
                why: why.clone(),
            },
            StoreError::NoVolume { .. }
            | StoreError::NoRepository { .. }
            | StoreError::Format { .. } => ReadError::Place(error.to_string()),
            _ => ReadError::Unavailable {
                what: what.into(),
                cause: error.to_string(),
            },
        }
    }
}

/// Evidence beats outage: fork, rollback, integrity, expired, unavailable.
pub(crate) fn gravest(errors: Vec<ReadError>) -> ReadError {
    errors
        .into_iter()
        .max_by_key(|e| e.class().map_or(0, rank))
        .unwrap_or(ReadError::Unavailable {
            what: "the head".to_owned(),
            cause: "no place to ask".to_owned(),
        })
}

fn rank(class: Class) -> u8 {
    match class {
        Class::Unavailable => 1,
        Class::Expired => 2,
        Class::Integrity => 3,
        Class::Rollback => 4,
        Class::Fork => 5,
    }
}

/// Whether a refused head is merely old.
pub(crate) fn is_old(why: &Reject) -> bool {
    matches!(why, Reject::Rollback { .. } | Reject::Expired { .. })
}

/// Whether a refused head is evidence against somebody, to be kept: a fork always; a rollback where no
/// place told anything better, for whoever lags beside others that do not attacks nobody.
pub(crate) fn is_evidence(why: &Reject, nobody_better: bool) -> bool {
    match why.class() {
        Class::Fork => true,
        Class::Rollback => nobody_better,
        _ => false,
    }
}

/// Whether the publisher, not a place, is to blame.
pub(crate) fn is_fork(error: &ReadError) -> bool {
    matches!(
        error,
        ReadError::Statement {
            why: Reject::Fork(_),
            ..
        }
    )
}
