//! The error type of this crate. No variant is proof of an attack by itself: the crates that verify
//! blocks and statements decide that.

use std::path::PathBuf;

use trust::{Handle, Reject};

/// An error of a store; each variant names the place or the file.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The place gave no answer: it was not reachable, broke off, or was too slow.
    #[error("{place} does not answer: {cause}")]
    Unavailable {
        /// The place's name.
        place: String,
        /// What happened.
        cause: String,
    },
    /// The place answers, but not as a replica: it is another service, lets nobody in, or has lost files. To ask again
    /// does not help.
    #[error("{place} does not answer: {cause}")]
    Unusable {
        /// The place's name.
        place: String,
        /// What happened.
        cause: String,
    },
    /// The answer breaks a rule that every honest place keeps.
    #[error("{place} gave an invalid answer: {why}")]
    BadAnswer {
        /// The place's name.
        place: String,
        /// Which rule it broke.
        why: Reject,
    },
    /// The place speaks a later protocol, or keeps a later format. It is not to blame.
    #[error("{place} needs a newer bulla: {why}")]
    Unsupported {
        /// The place's name.
        place: String,
        /// What this build does not know.
        why: String,
    },
    /// The place does not have this volume.
    #[error("{place} does not have this volume")]
    NoVolume {
        /// The place's name.
        place: String,
    },
    /// The place does not have a block that it should have.
    #[error("{place} does not have block {handle}")]
    NoBlock {
        /// The place's name.
        place: String,
        /// The block.
        handle: Handle,
    },
    /// The record that the place has under a handle is not that block.
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
        /// The system's message, or which quota was reached.
        cause: String,
    },
    /// There is no repository here.
    #[error("{} is not a bulla repository", path.display())]
    NoRepository {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The repository has a format that this build does not know.
    #[error("{} needs a newer bulla: its format is {found}", path.display())]
    Format {
        /// The repository.
        path: PathBuf,
        /// What its format file says.
        found: String,
    },
    /// Another process holds the writer's lock.
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
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl StoreError {
    /// Whether the place may answer when it is asked again: this is an outage.
    pub fn may_pass(&self) -> bool {
        matches!(self, StoreError::Unavailable { .. })
    }
}
