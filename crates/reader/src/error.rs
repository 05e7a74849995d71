//! What a reader can be told. Every variant says what and where; [`ReadError::class`] gives the
//! product-wide name from which exit codes, errno and metrics follow.

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
    /// The publisher signed something that breaks the rules of the trees.
    #[error("the published volume is malformed: {0}")]
    Malformed(Reject),
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
}

impl ReadError {
    /// The product-wide name of the error, where it has one.
    pub fn class(&self) -> Option<Class> {
        match self {
            ReadError::Unavailable { .. } => Some(Class::Unavailable),
            ReadError::Integrity { .. } | ReadError::Malformed(_) => Some(Class::Integrity),
            ReadError::NotCached | ReadError::NotFound { .. } | ReadError::WrongKind { .. } => None,
        }
    }
}
