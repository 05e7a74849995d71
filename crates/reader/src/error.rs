//! Errors of the verified reader. Each variant says what failed and where; [`ReadError::class`]
//! gives the product-wide name, from which exit codes, errno and metrics follow.

use trust::Reject;
use trust::error::Class;

/// An error of the verified reader.
///
/// Cheap to clone, because one failed fetch may have many waiters.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// Not in memory, and the caller did not allow waiting ([`Fetch::Cached`](crate::Fetch::Cached)).
    /// The caller asks again with a deadline; people never see this.
    #[error("not in memory")]
    NotCached,
    /// No replica gave a block in time.
    #[error("{what} is not available: {cause}")]
    Unavailable {
        /// What was wanted.
        what: String,
        /// What each replica said.
        cause: String,
        /// The replicas that answered that they do not have it.
        denied: Vec<String>,
    },
    /// A replica gave a block that is not the signed one, and no other replica gave the right one.
    #[error("{place} gave a wrong answer for {what}: {why}")]
    Integrity {
        /// The replica that gave it.
        place: String,
        /// What was wanted.
        what: String,
        /// Which check failed.
        why: Reject,
    },
    /// What the publisher signed, or how every replica serves it, is of a later bulla.
    #[error("{what} needs a newer bulla: {cause}")]
    Unsupported {
        /// What was wanted, or which structure.
        what: String,
        /// What this build does not know.
        cause: String,
    },
    /// The publisher signed something that breaks the rules of the trees.
    #[error("the published volume is malformed: {0}")]
    Malformed(Reject),
    /// The tree proves that there is no such name.
    #[error("{path}: not in the volume")]
    NotFound {
        /// The path asked for.
        path: String,
    },
    /// The path exists, but is of another kind.
    #[error("{path}: {why}")]
    WrongKind {
        /// The path asked for.
        path: String,
        /// What it is or is not.
        why: &'static str,
    },
}

impl ReadError {
    /// A block that matches its handle breaks a rule, or is of a later bulla.
    pub fn of_signed(why: Reject) -> ReadError {
        match why {
            Reject::Unsupported { what, why } => ReadError::Unsupported {
                what: what.to_owned(),
                cause: why,
            },
            why => ReadError::Malformed(why),
        }
    }

    /// A tree refers to a block of one kind as one of another.
    pub(crate) fn other_kind() -> ReadError {
        let (what, why) = ("tree", "it refers to a block of another kind");
        ReadError::Malformed(Reject::BadTree { what, why })
    }

    pub(crate) fn wrong_kind(why: &'static str) -> ReadError {
        ReadError::WrongKind {
            path: String::new(),
            why,
        }
    }

    /// Nobody answered, and nobody is shown to be wrong.
    pub fn is_outage(&self) -> bool {
        matches!(self, ReadError::Unavailable { .. })
    }

    /// The product-wide name of the error, if it has one.
    pub fn class(&self) -> Option<Class> {
        match self {
            ReadError::Unavailable { .. } => Some(Class::Unavailable),
            ReadError::Unsupported { .. } => Some(Class::Unsupported),
            ReadError::Integrity { .. } | ReadError::Malformed(_) => Some(Class::Integrity),
            ReadError::NotCached | ReadError::NotFound { .. } | ReadError::WrongKind { .. } => None,
        }
    }
}
