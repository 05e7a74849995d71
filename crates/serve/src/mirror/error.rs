//! Errors of starting a mirror.

use crate::net::ListenError;

/// Why a mirror cannot start. Errors of a single client are counted and logged instead.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Two repositories hold the same volume.
    #[error("{first} and {second} hold the same volume")]
    SameVolume {
        /// One repository.
        first: String,
        /// The other.
        second: String,
    },
    /// There is no repository to serve.
    #[error("no repository to serve")]
    Nothing,
    /// Nothing has been published in a repository yet, so it has no volume.
    #[error("{place} has no published volume")]
    Unpublished {
        /// The repository.
        place: String,
    },
    /// The repository cannot be read.
    #[error(transparent)]
    Store(#[from] store::StoreError),
    /// The repository's head cannot be decoded.
    #[error("the head of {place} cannot be read: {why}")]
    Head {
        /// The repository.
        place: String,
        /// Which rule it breaks.
        why: trust::Reject,
    },
}
