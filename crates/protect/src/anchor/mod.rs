//! Anchors: where the newest mark of a log is kept, out of reach of whoever stores the devices.
//!
//! A device that is put back to an earlier state is consistent in itself. Only something that was not put back with it
//! can tell: the mark that an anchor holds. The log is refused at attach when it does not pass through that mark. An
//! anchor only moves forward. Today there is the file ([`FileAnchor`]); a counter of a TPM would be another one.
//!
//! | module | what lives there |
//! |---|---|
//! | `file` | the anchor in a local file |
//! | `keeping` | when a running device moves its anchor: at each flush, or at most so much later |
//! | `conformance` | what every anchor must do (feature `conformance`) |

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod file;
mod keeping;

use std::io;
use std::path::PathBuf;

use wal::Mark;

pub use file::FileAnchor;
pub use keeping::{AnchorMode, Anchoring};

/// Keeps the newest mark of one log. Exists once the log is formatted: an anchor without a mark proves nothing.
pub trait Anchor: Send + Sync {
    /// The mark that it holds.
    ///
    /// # Errors
    /// It cannot be read.
    fn mark(&self) -> Result<Mark, AnchorError>;

    /// Moves to `mark`, durably when it returns. The mark that it holds already is no movement.
    ///
    /// # Errors
    /// [`AnchorError::Backwards`], or it cannot be written; then it holds the old mark or the new one.
    fn advance(&self, mark: Mark) -> Result<(), AnchorError>;
}

/// Why an anchor cannot be read or moved.
#[derive(Debug, thiserror::Error)]
pub enum AnchorError {
    /// The system refused.
    #[error("the anchor {} cannot be {doing}", path.display())]
    Io {
        /// The anchor's file.
        path: PathBuf,
        /// `read` or `written`.
        doing: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file is no anchor, or damaged.
    #[error("{} is not an anchor: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Which rule it breaks.
        why: &'static str,
    },
    /// The anchor of another volume.
    #[error("{} is the anchor of volume {volume}, which is another one", path.display())]
    OtherVolume {
        /// The file.
        path: PathBuf,
        /// The volume that it belongs to.
        volume: wal::VolumeId,
    },
    /// Other users could set the anchor back.
    #[error("the anchor {} may be written by others (mode {mode:04o})", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Another process uses it.
    #[error("the anchor {} is in use by another process", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// A new anchor never replaces a file.
    #[error("{} exists already", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The mark is not after the one that the anchor holds.
    #[error(
        "the anchor holds epoch {} position {}, and epoch {} position {} does not follow it",
        held.epoch, held.lsn, offered.epoch, offered.lsn
    )]
    Backwards {
        /// What it holds.
        held: Mark,
        /// What it should have moved to.
        offered: Mark,
    },
}

/// Whether `next` is `held` itself or can follow it in the history of one log: neither epoch nor position goes back, and
/// a later epoch begins behind the same frame or further on.
pub fn follows(held: &Mark, next: &Mark) -> bool {
    next.epoch >= held.epoch && (next.lsn > held.lsn || next.is_same_frame(held))
}
