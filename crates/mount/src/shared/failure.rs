//! Errors of requests on a shared volume, and the errno that programs see.

use bulla::edit::EditError;
use reader::ReadError;
use share::client::{ClientError, Stopped};
use share::files::Refused;
use store::StoreError;

use super::loss::Loss;
use crate::fuse::{Errno, Error, Refusal};

/// Why a request fails.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An error that does not come from the volume.
    #[error(transparent)]
    Plain(Error),
    /// The volume refuses a call, which has no effect.
    #[error("{0}")]
    Refused(Refused),
    /// The client has no answer.
    #[error("{0}")]
    Client(ClientError),
    /// This device writes no more.
    #[error("{0}")]
    Stopped(Stopped),
    /// An answer would rest on what a silent device wrote.
    #[error("the server or device {0} is silent, and what it wrote last is not used")]
    Silent(String),
    /// Content cannot be read.
    #[error("{0}")]
    Read(ReadError),
    /// What programs wrote rests on content that is gone.
    #[error("the server does not have the content any more that was changed here")]
    Collected,
    /// Content cannot be stored.
    #[error("{0}")]
    Store(StoreError),
    /// The local file with what programs wrote fails.
    #[error("what programs wrote cannot be kept on this machine: {0}")]
    Local(std::io::Error),
    /// A lock cannot be had.
    #[error("the lock cannot be had: {}", .0.why)]
    NoLock(Loss),
    /// Another device has taken over a lock that was taken through this descriptor.
    #[error("another device has taken over the lock, because this one did not renew it")]
    LockLost,
    /// Bytes that were written earlier could not be committed.
    #[error("what was written earlier is not in the volume: {}", .0.why)]
    Lost(Loss),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Plain(error)
    }
}

impl From<Refused> for Failure {
    fn from(why: Refused) -> Self {
        Failure::Refused(why)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Stopped(why) => Failure::Stopped(why),
            error => Failure::Client(error),
        }
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        Failure::Read(error)
    }
}

impl From<EditError> for Failure {
    fn from(error: EditError) -> Self {
        match error {
            EditError::Read(why) => Failure::Read(why),
            EditError::Local(why) => Failure::Local(why),
            EditError::Sink(why) => Failure::Store(why),
            EditError::Refused(_) => Failure::Plain(Error::FileTooLarge),
        }
    }
}

impl Refusal for Failure {
    fn errno(&self) -> Errno {
        match self {
            Failure::Plain(error) => error.errno(),
            Failure::Refused(why) => of_refused(why),
            Failure::Stopped(_) => Errno::EROFS,
            Failure::Store(StoreError::Full { .. })
            | Failure::Client(ClientError::Unstored { is_full: true, .. }) => Errno::ENOSPC,
            Failure::Local(error) => match error.raw_os_error() {
                Some(libc::ENOSPC | libc::EDQUOT) => Errno::ENOSPC,
                _ => Errno::EIO,
            },
            Failure::Client(_)
            | Failure::Silent(_)
            | Failure::Read(_)
            | Failure::Collected
            | Failure::Store(_)
            | Failure::LockLost => Errno::EIO,
            Failure::Lost(loss) | Failure::NoLock(loss) => loss.errno,
        }
    }
}

fn of_refused(why: &Refused) -> Errno {
    match why {
        Refused::NotFound => Errno::ENOENT,
        Refused::Exists => Errno::EEXIST,
        Refused::NotEmpty => Errno::ENOTEMPTY,
        Refused::NotADirectory => Errno::ENOTDIR,
        Refused::IsADirectory => Errno::EISDIR,
        Refused::NotRegular | Refused::BelowItself => Errno::EINVAL,
        Refused::NotPermitted => Errno::EACCES,
        Refused::Needed => Errno::EBUSY,
        Refused::Loop => Errno::ELOOP,
        Refused::Stale => Errno::ESTALE,
        Refused::Locked => Errno::EAGAIN,
        Refused::NotLocked => Errno::ENOLCK,
        Refused::TooLarge => Errno::E2BIG,
        Refused::TooMany => Errno::EMLINK,
        Refused::Full => Errno::ENOSPC,
        Refused::NeedsPath
        | Refused::Forgotten(_)
        | Refused::Beyond
        | Refused::Damaged(_)
        | Refused::Unsupported(_) => Errno::EIO,
    }
}

impl Failure {
    /// What programs are told of bytes that are lost for this reason.
    pub fn loss(&self) -> Loss {
        Loss {
            why: self.to_string(),
            errno: self.errno(),
        }
    }

    /// Writes a line into the log, if an operator should know.
    pub fn log(&self, operation: &str, path: impl FnOnce() -> String) {
        match self {
            Failure::Plain(Error::TimedOut)
            | Failure::Client(_)
            | Failure::Silent(_)
            | Failure::Store(_)
            | Failure::Local(_)
            | Failure::Collected
            | Failure::Lost(_)
            | Failure::NoLock(_)
            | Failure::LockLost => {
                tracing::warn!(operation, path = path(), error = %self, "failed");
            }
            Failure::Read(why) if why.is_outage() => {
                tracing::warn!(operation, path = path(), error = %self, "failed");
            }
            Failure::Stopped(_)
            | Failure::Read(_)
            | Failure::Refused(Refused::Damaged(_) | Refused::Unsupported(_)) => {
                tracing::error!(operation, path = path(), error = %self, "refused");
            }
            _ => tracing::debug!(operation, path = path(), error = %self),
        }
    }
}
