//! Why a request on a published volume fails. Tampering is logged with path, block and replica; the
//! program gets EIO, and ENOENT only for a name that is proved absent.

use fuser::Errno;
use publish::ReadError;
use trust::error::Class;

use crate::fuse::{Error, Refusal};

/// Why a request is not answered with what was asked for.
#[derive(Debug)]
pub enum Failure {
    /// The verified reader refused, or could not.
    Read(ReadError),
    /// An error that needs no reader to be known.
    Plain(Error),
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        Failure::Read(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            // Counted and logged as what it is: no replica answered.
            Error::TimedOut => Failure::Read(ReadError::Unavailable {
                what: "the answer".to_owned(),
                cause: "it did not come before the deadline".to_owned(),
            }),
            error => Failure::Plain(error),
        }
    }
}

impl Refusal for Failure {
    fn errno(&self) -> Errno {
        match self {
            Failure::Plain(error) => error.errno(),
            Failure::Read(ReadError::NotFound { .. }) => Errno::ENOENT,
            Failure::Read(ReadError::WrongKind { .. }) => Errno::ENOTDIR,
            Failure::Read(_) => Errno::EIO,
        }
    }
}

impl Failure {
    /// Whether something has to be fetched first.
    pub fn must_wait(&self) -> bool {
        matches!(self, Failure::Read(ReadError::NotCached))
    }

    /// Logs what a person should know of; `path` is made only when it is needed.
    pub fn log(&self, operation: &str, path: impl FnOnce() -> String) {
        let Failure::Read(error) = self else { return };
        match error.class() {
            Some(class @ (Class::Integrity | Class::Rollback | Class::Fork)) => {
                tracing::error!(operation, path = path(), ?class, %error, "refused");
            }
            Some(Class::Unavailable) => {
                tracing::warn!(operation, path = path(), %error, "not available");
            }
            // `freshness` tells it once, when it happens.
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
        let of = |e: ReadError| Failure::from(e).errno();
        assert_eq!(of(ReadError::NotFound { path: "x".into() }), Errno::ENOENT);
        let unavailable = ReadError::Unavailable {
            what: "x".into(),
            cause: "none answers".into(),
        };
        assert_eq!(of(unavailable), Errno::EIO);
        assert_eq!(of(ReadError::Expired { until: 1 }), Errno::EIO);
        assert_eq!(of(ReadError::NotCached), Errno::EIO);
    }
}
