//! Why a server cannot start.

use std::net::SocketAddr;

/// An error of the daemon itself; what single clients do wrong is logged and counted instead.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's words.
        #[source]
        source: std::io::Error,
    },
    /// Two repositories hold the same volume.
    #[error("{first} and {second} hold the same volume")]
    SameVolume {
        /// One repository.
        first: String,
        /// The other.
        second: String,
    },
    /// Nothing to serve.
    #[error("no repository to serve")]
    Nothing,
    /// A repository in which nothing has been published yet has no volume to serve.
    #[error("{place} has no published volume")]
    Unpublished {
        /// The repository.
        place: String,
    },
    /// The repository cannot be read.
    #[error(transparent)]
    Store(#[from] store::StoreError),
    /// The repository's head is not one.
    #[error("the head of {place} cannot be read: {why}")]
    Head {
        /// The repository.
        place: String,
        /// Which rule it breaks.
        why: trust::Reject,
    },
}
