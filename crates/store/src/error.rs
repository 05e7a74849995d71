//! What can go wrong with a place that holds blocks. None of it is proof of an attack by itself:
//! that is for whoever checks the blocks to say.

use std::path::PathBuf;

use trust::{Handle, Reject};

/// An error of a store; each variant says where.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No answer: not reachable, broken off, too slow.
    #[error("{place} does not answer: {cause}")]
    Unavailable {
        /// The place's name.
        place: String,
        /// What happened.
        cause: String,
    },
    /// An answer that no honest place gives.
    #[error("{place} answered with something that is no answer: {why}")]
    BadAnswer {
        /// The place's name.
        place: String,
        /// Which rule it broke.
        why: Reject,
    },
    /// The place does not have this volume.
    #[error("{place} does not have this volume")]
    NoVolume {
        /// The place's name.
        place: String,
    },
    /// The place denies a block that it should have.
    #[error("{place} does not have block {handle}")]
    NoBlock {
        /// The place's name.
        place: String,
        /// The block.
        handle: Handle,
    },
    /// The place has something else under a block's name.
    #[error("{place} holds a damaged block {handle}: {why}")]
    WrongBlock {
        /// The place's name.
        place: String,
        /// The block.
        handle: Handle,
        /// Which check failed.
        why: Reject,
    },
    /// The place has no room for more blocks.
    #[error("{place} is full: {cause}")]
    Full {
        /// The place's name.
        place: String,
        /// The system's words, or which quota.
        cause: String,
    },
    /// There is no repository here.
    #[error("{} is not a bulla repository", path.display())]
    NoRepository {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A repository of a format that this build does not know.
    #[error("{} has format {found}, which this bulla does not know", path.display())]
    Format {
        /// The repository.
        path: PathBuf,
        /// What its format file says.
        found: String,
    },
    /// Another process is writing.
    #[error("{} is locked by another process", path.display())]
    Locked {
        /// The repository.
        path: PathBuf,
    },
    /// A file of the repository is damaged.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which rule it breaks.
        why: String,
    },
    /// The system said no.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        #[source]
        source: std::io::Error,
    },
}
