//! Why the block server refuses or fails. Nothing that was acknowledged before is lost by any of these.

use std::sync::Arc;
use std::time::Duration;

use store::StoreError;
use trust::{Handle, Reject};
use wal::LogError;

use crate::collect::book::Untouched;

/// Why a call is not carried out. Each error can be given to several clients that waited for the same write.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The block is not the one that its handle names, or its frame is not well formed.
    #[error("block {handle} is refused: {why}")]
    WrongBlock {
        /// The handle that the client gave.
        handle: Handle,
        /// Which check failed.
        why: Reject,
    },
    /// The device has stored as much as it may.
    #[error("the quota of this device is reached: {needed} bytes are needed, {left} are left {of}")]
    Quota {
        /// Bytes of the new blocks.
        needed: u64,
        /// Bytes that the device may still store.
        left: u64,
        /// Of what.
        of: Limit,
    },
    /// The session does not exist, or was closed.
    #[error("the session is closed")]
    NoSession,
    /// The server knows as many devices or sessions as it can.
    #[error("the server has too many devices")]
    TooManyDevices,
    /// One call has more than the server takes at once.
    #[error("one call has {bytes} bytes, more than {most}")]
    TooLarge {
        /// Bytes of the call.
        bytes: u64,
        /// The most that one call may have.
        most: u64,
    },
    /// There is no room. It is worth trying again when there is.
    #[error("the block server has no room: {cause}")]
    Full {
        /// The limit that was reached, or the error of the storage.
        cause: Arc<str>,
    },
    /// The bytes on the server's disk are not the block any more.
    #[error("block {handle} is damaged on the server's disk")]
    Damaged {
        /// The block.
        handle: Handle,
    },
    /// The temporary log failed. This server accepts nothing more; one that is opened anew goes on.
    #[error("the temporary log failed: {0}")]
    Log(#[from] LogError),
    /// The permanent store failed. The next call tries again.
    #[error("the permanent store failed: {0}")]
    Store(Arc<StoreError>),
    /// There was no answer in time. What was sent may be stored or not.
    #[error("the block server did not answer in {} s", after.as_secs())]
    Late {
        /// How long the caller waited.
        after: Duration,
    },
    /// The server stops.
    #[error("the block server is stopping")]
    Stopped,
}

/// What a quota limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Bytes in the temporary log.
    Temporary,
    /// Bytes stored in a day.
    Daily,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Limit::Temporary => "in the temporary log",
            Limit::Daily => "today",
        })
    }
}

impl From<Untouched> for Error {
    fn from(why: Untouched) -> Error {
        match why {
            Untouched::Stopped => Error::Stopped,
            Untouched::Unkept => Error::Full {
                cause: why.to_string().into(),
            },
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Error {
        match error {
            StoreError::Full { .. } => Error::Full {
                cause: error.to_string().into(),
            },
            StoreError::Io { ref source, .. } if is_full(source) => Error::Full {
                cause: error.to_string().into(),
            },
            other => Error::Store(Arc::new(other)),
        }
    }
}

fn is_full(source: &std::io::Error) -> bool {
    matches!(
        source.kind(),
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
    )
}
