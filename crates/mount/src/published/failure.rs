//! Errors of requests on a published volume. Tampering is logged with path, block and replica; the
//! program gets EIO, and ENOENT only for a name that is proved absent.

use reader::ReadError;
use trust::error::Class;
use volume::VolumeError;

use crate::fuse::{Errno, Error, Refusal};

/// Why a request fails.
#[derive(Debug)]
pub enum Failure {
    /// The volume's reader failed.
    Read(VolumeError),
    /// An error that does not come from the reader.
    Plain(Error),
}

impl From<VolumeError> for Failure {
    fn from(error: VolumeError) -> Self {
        Failure::Read(error)
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        Failure::Read(error.into())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            // Counted and logged as an outage: no replica answered.
            Error::TimedOut => {
                let cause = "it did not come before the deadline";
                Failure::Read(VolumeError::unavailable("the answer", cause))
            }
            error => Failure::Plain(error),
        }
    }
}

impl Refusal for Failure {
    fn errno(&self) -> Errno {
        match self {
            Failure::Plain(error) => error.errno(),
            Failure::Read(VolumeError::Read(ReadError::NotFound { .. })) => Errno::ENOENT,
            Failure::Read(VolumeError::Read(ReadError::WrongKind { .. })) => Errno::ENOTDIR,
            Failure::Read(_) => Errno::EIO,
        }
    }
}

impl Failure {
    /// Whether something has to be fetched first.
    pub fn must_wait(&self) -> bool {
        matches!(self, Failure::Read(VolumeError::Read(ReadError::NotCached)))
    }

    /// Logs the failure; `path` is made only when it is needed.
    pub fn log(&self, operation: &str, path: impl FnOnce() -> String) {
        let Failure::Read(error) = self else { return };
        match error.class() {
            Some(class @ (Class::Integrity | Class::Rollback | Class::Fork)) => {
                tracing::error!(operation, path = path(), ?class, %error, "refused");
            }
            Some(Class::Unavailable) => {
                tracing::warn!(operation, path = path(), %error, "not available");
            }
            Some(Class::Unsupported) => {
                tracing::warn!(operation, path = path(), %error, "of a later bulla");
            }
            // `freshness` logs the expiry once, when it happens.
            Some(Class::Expired) => tracing::debug!(operation, path = path(), %error),
            None => tracing::debug!(operation, path = path(), %error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_proved_absence_is_enoent() {
        fn of(error: impl Into<Failure>) -> Errno {
            error.into().errno()
        }
        assert_eq!(of(ReadError::NotFound { path: "x".into() }), Errno::ENOENT);
        let unavailable = ReadError::Unavailable {
            what: "x".into(),
            cause: "none answers".into(),
            denied: Vec::new(),
        };
        assert_eq!(of(unavailable), Errno::EIO);
        assert_eq!(of(VolumeError::Expired { until: 1 }), Errno::EIO);
        assert_eq!(of(ReadError::NotCached), Errno::EIO);
    }
}
