//! From an error to what the calling program sees: the only place where errors become errno. What
//! was tampered with is logged with path, block and replica; the program gets EIO (publish.md,
//! *Laws* 1 and 3).

use fuser::Errno;
use publish::ReadError;
use trust::error::Class;

/// Why a request is not answered with what was asked for.
#[derive(Debug)]
pub enum Failure {
    /// The verified reader refused, or could not.
    Read(ReadError),
    /// A plain answer of the file system.
    Plain(Errno),
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        Failure::Read(error)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Failure::Plain(errno)
    }
}

impl Failure {
    /// Whether the answer would have to be waited for.
    pub fn must_wait(&self) -> bool {
        matches!(self, Failure::Read(ReadError::NotCached))
    }

    /// No answer came before the deadline.
    pub fn late() -> Failure {
        Failure::Read(ReadError::Unavailable {
            what: "the answer".to_owned(),
            cause: "it did not come before the deadline".to_owned(),
        })
    }

    /// What the calling program is told.
    pub fn errno(&self) -> Errno {
        match self {
            Failure::Plain(errno) => *errno,
            Failure::Read(ReadError::NotFound { .. }) => Errno::ENOENT,
            Failure::Read(ReadError::WrongKind { .. }) => Errno::ENOTDIR,
            Failure::Read(_) => Errno::EIO,
        }
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
            // Told once, when it happens, by whoever keeps the statement fresh.
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
