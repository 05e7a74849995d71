//! Why a directory could not be mounted or unmounted; each variant says what to do where that is
//! not plain.

use std::io;
use std::path::PathBuf;

/// An error of mounting or unmounting. What a mounted file system meets becomes an errno and a log
/// line instead.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The directory to mount on is not there or is not a directory.
    #[error("{}: {source}", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// The system's words.
        #[source]
        source: io::Error,
    },
    /// A mount whose server is gone lies on the directory.
    #[error("{}: a dead mount lies here; clear it with `bulla umount`", directory.display())]
    Stale {
        /// The directory.
        directory: PathBuf,
    },
    /// A bulla volume is mounted there already.
    #[error("{}: a bulla volume is mounted here already", directory.display())]
    Busy {
        /// The directory.
        directory: PathBuf,
    },
    /// The kernel or the mount helper refused.
    #[error("{}: cannot mount: {source}", directory.display())]
    Refused {
        /// The directory.
        directory: PathBuf,
        /// The system's words.
        #[source]
        source: io::Error,
    },
    /// Mounted, and it does not answer.
    #[error("{}: mounted, and it does not answer: {source}", directory.display())]
    Silent {
        /// The directory.
        directory: PathBuf,
        /// The system's words.
        #[source]
        source: io::Error,
    },
    /// There is no bulla mount on the directory.
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
        /// The system's words.
        cause: String,
    },
    /// The threads that serve the mount ended by an error.
    #[error("{}: the mount ended: {source}", directory.display())]
    Ended {
        /// The directory.
        directory: PathBuf,
        /// The system's words.
        #[source]
        source: io::Error,
    },
}
