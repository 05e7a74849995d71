//! The errors of the log. Each names what the caller can do about it.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::key::VolumeId;
use crate::position::{Lsn, Mark};

/// Why a log cannot be opened, read or written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LogError {
    /// The device holds no log.
    #[error("the device holds no log")]
    NotALog,
    /// The key opens another volume.
    #[error("the key does not open volume {volume}")]
    WrongKey {
        /// The volume that the device names.
        volume: VolumeId,
    },
    /// The log belongs to another volume.
    #[error("the log belongs to volume {found}, not to volume {expected}")]
    OtherVolume {
        /// The volume that the caller expects.
        expected: VolumeId,
        /// The volume on the device.
        found: VolumeId,
    },
    /// The device is shorter than when it was formatted.
    #[error("the device has {found} bytes, but the log on it needs {expected}")]
    Truncated {
        /// Bytes that the log needs.
        expected: u64,
        /// Bytes that the device has.
        found: u64,
    },
    /// A later version of bulla wrote the log.
    #[error("the log needs a newer bulla: {why}")]
    Unsupported {
        /// What this version does not know.
        why: String,
    },
    /// The log does not contain a frame that it once contained: somebody put back an older state or cut the end.
    #[error("the log was put back: it ends at {end} and does not pass through the {witness} at {}", mark.lsn)]
    Rollback {
        /// Where the mark of the frame was kept.
        witness: Witness,
        /// The mark of the frame.
        mark: Mark,
        /// Where the log ends.
        end: Lsn,
    },
    /// The anchor is older than everything in the log, so nothing can be proved with it: the log was opened without
    /// it, somebody put back the anchor, or it belongs to another log.
    #[error("the anchor at {} is older than the log, which begins at {tail}", mark.lsn)]
    StaleAnchor {
        /// The anchor.
        mark: Mark,
        /// Where the log begins.
        tail: Lsn,
    },
    /// Something that was durable was destroyed or replaced.
    #[error("the log is damaged at {lsn}: {why}")]
    Integrity {
        /// Where.
        lsn: Lsn,
        /// What was found.
        why: &'static str,
    },
    /// No superblock is whole, although the key is right.
    #[error("the log's superblocks are damaged: {why}")]
    Superblock {
        /// What was found.
        why: &'static str,
    },
    /// The device failed.
    #[error("cannot {action} at offset {offset} of the log's device")]
    Io {
        /// What the log tried to do.
        action: &'static str,
        /// Offset on the device in bytes.
        offset: u64,
        /// The system's error.
        #[source]
        source: Arc<io::Error>,
    },
    /// Another process or host opened the log since.
    #[error("another process or host has opened the log")]
    Foreign,
    /// Another host, or another process of this one, uses the log.
    #[error("{by} uses the log")]
    Claimed {
        /// Who.
        by: Owner,
    },
    /// A write or sync failed earlier. Nothing is accepted any more; what was durable before still is.
    #[error("the log accepts nothing more: {cause}")]
    Failed {
        /// The first failure.
        cause: Arc<str>,
    },
    /// The position was released by a checkpoint, or nothing was appended there yet.
    #[error("{lsn} is not in the log")]
    Released {
        /// The position.
        lsn: Lsn,
    },
    /// A parameter is outside its bounds.
    #[error("{why}")]
    Invalid {
        /// Which bound.
        why: &'static str,
    },
    /// The log has no room for a frame, although the reserve may be used.
    #[error("the log is full: a frame needs {needed} bytes, {free} are free")]
    Full {
        /// Bytes of the frame, with the padding before it.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The system has no randomness.
    #[error("the system has no randomness")]
    Random,
}

/// The host and the process that use a log, as their claim names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The name of the host.
    pub host: String,
    /// The number of the process there. 0: not known.
    pub pid: u64,
    /// Since when, in seconds since 1970.
    pub since: u64,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {} (process {})", self.host, self.pid)
    }
}

/// Who remembers a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Witness {
    /// The log's own superblock.
    Superblock,
    /// A mark that is kept elsewhere.
    Anchor,
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Witness::Superblock => "superblock's mark",
            Witness::Anchor => "anchor",
        })
    }
}

impl LogError {
    pub(crate) fn io(action: &'static str, offset: u64, source: io::Error) -> LogError {
        LogError::Io {
            action,
            offset,
            source: Arc::new(source),
        }
    }
}

/// Why a frame was not appended. Nothing of it was.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// The ring is full. Clients must checkpoint, see [`Log::pressure`](crate::Log::pressure).
    #[error("the log is full: a frame needs {needed} bytes, {free} are free")]
    Full {
        /// Bytes of the frame, with the padding before it.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// Too much is not durable yet. Flush, then append again.
    #[error("{unsynced} bytes of the log are not durable yet; the frame needs {needed} more")]
    Unsynced {
        /// Bytes of the frame, with the padding before it.
        needed: u64,
        /// Bytes that were appended and are not durable.
        unsynced: u64,
    },
    /// A record or the frame breaks a limit.
    #[error("{why}")]
    Invalid {
        /// Which limit.
        why: &'static str,
    },
    /// The log has failed or is used elsewhere.
    #[error(transparent)]
    Log(#[from] LogError),
}
