//! Errors of mounting and unmounting a directory. A variant says what to do if that is not obvious.

use std::io;
use std::path::PathBuf;

/// An error of mounting or unmounting. Errors of requests become an errno and a log line instead
/// ([`crate::fuse::Error`]).
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The directory to mount on does not exist or is not a directory.
    #[error("{}: {source}", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The directory has a mount whose server process has ended.
    #[error("{}: the mount here is dead; clear it with `bulla umount`", directory.display())]
    Stale {
        /// The directory.
        directory: PathBuf,
    },
    /// A bulla volume is already mounted there.
    #[error("{}: a bulla volume is already mounted here", directory.display())]
    Busy {
        /// The directory.
        directory: PathBuf,
    },
    /// The kernel or the mount helper refused.
    #[error("{}: cannot mount: {source}", directory.display())]
    Refused {
        /// The directory.
        directory: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Mounted, but its root cannot be read.
    #[error("{}: mounted, but it does not answer: {source}", directory.display())]
    Silent {
        /// The directory.
        directory: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// No bulla volume is mounted on the directory.
    #[error("{}: no bulla volume is mounted here", directory.display())]
    NotMounted {
        /// The directory.
        directory: PathBuf,
    },
    /// The kernel or the mount helper refused to unmount.
    #[error("{}: cannot unmount: {cause}", directory.display())]
    Unmount {
        /// The directory.
        directory: PathBuf,
        /// The system's error.
        cause: String,
    },
    /// Unmounted, but requests that had arrived are not done.
    #[error("{}: {requests} requests are not done", directory.display())]
    Unanswered {
        /// The directory.
        directory: PathBuf,
        /// How many.
        requests: usize,
    },
    /// This device has mounted the volume already.
    #[error("the volume `{name}` is already mounted by another process of this user")]
    InUse {
        /// Its name on this machine.
        name: String,
    },
    /// What this machine keeps of a shared volume cannot be used.
    #[error("{}: {source}", directory.display())]
    Home {
        /// The home.
        directory: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The volume does not answer, or refuses.
    #[error(transparent)]
    Volume(#[from] bulla::Error),
    /// The threads that served the mount ended with an error.
    #[error("{}: the mount ended: {source}", directory.display())]
    Ended {
        /// The directory.
        directory: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}
