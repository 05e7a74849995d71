//! Why a call to a server failed. [`super::link`] finds out, and [`super::RemoteStore`] makes an error of it.

use trust::Reject;

use crate::refusal::{ErrorCode, Refusal};

/// Why a call failed.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// The connection ended; a new one may help at once.
    Closed(String),
    /// The server takes too long.
    Stalled(String),
    /// The server sent something that no honest server sends.
    Bad(Reject),
    /// The server refused this request.
    Refused(Refusal),
    /// The answer is longer than the memory that was reserved for it, but not longer than an honest one can be.
    Longer,
}

impl Failure {
    /// Whether the server is of a later bulla.
    pub(super) fn is_unsupported(&self) -> bool {
        match self {
            Failure::Bad(why) => matches!(why, Reject::Unsupported { .. }),
            Failure::Refused(refusal) => refusal.code == ErrorCode::UNSUPPORTED,
            Failure::Closed(_) | Failure::Stalled(_) | Failure::Longer => false,
        }
    }
}
