//! Errors by which a file system refuses a request. Inside a file system errors are typed; only `dispatch`
//! turns them into an errno, when it answers the kernel.

use super::types::Errno;

/// An error of a file system itself, as POSIX names them. A file system that has more to say (which
/// replica, which block) wraps it in a type of its own and implements [`Refusal`] for that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// ENOENT
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST
    #[error("file exists")]
    AlreadyExists,
    /// ENOTDIR
    #[error("not a directory")]
    NotADirectory,
    /// EISDIR
    #[error("is a directory")]
    IsADirectory,
    /// ENOTEMPTY
    #[error("directory not empty")]
    DirectoryNotEmpty,
    /// EROFS
    #[error("read-only file system")]
    ReadOnly,
    /// EPERM
    #[error("operation not permitted")]
    NotPermitted,
    /// EACCES
    #[error("permission denied")]
    AccessDenied,
    /// EINVAL
    #[error("invalid argument")]
    InvalidArgument,
    /// ENAMETOOLONG
    #[error("file name too long")]
    NameTooLong,
    /// EBUSY
    #[error("too much is under way")]
    Busy,
    /// ENOSPC
    #[error("no space left")]
    NoSpace,
    /// EFBIG
    #[error("file too large")]
    FileTooLarge,
    /// EMLINK
    #[error("too many links")]
    TooManyLinks,
    /// ENODATA
    #[error("no such extended attribute")]
    NoSuchAttribute,
    /// E2BIG
    #[error("extended attribute too large")]
    AttributeTooLarge,
    /// ENXIO: `lseek` found neither data nor a hole from the offset on.
    #[error("no data or hole from this offset on")]
    NoSuchOffset,
    /// EOVERFLOW
    #[error("value too large")]
    Overflow,
    /// ESTALE: the kernel uses an inode number that this mount does not know.
    #[error("stale inode number")]
    StaleInode,
    /// EBADF: the kernel uses a handle that is not open.
    #[error("bad file handle")]
    BadHandle,
    /// ENOTTY: no such `ioctl`.
    #[error("no such ioctl")]
    NoSuchIoctl,
    /// ENOSYS: the kernel asks once, then does without the operation for the life of the mount.
    #[error("operation not implemented")]
    NotImplemented,
    /// EOPNOTSUPP: this call with these arguments; the kernel asks again.
    #[error("operation not supported")]
    NotSupported,
    /// EAGAIN: another owner holds the lock, and the caller does not wait.
    #[error("would block")]
    WouldBlock,
    /// EDEADLK
    #[error("deadlock")]
    Deadlock,
    /// ENOLCK: a lock was not obtained before the deadline, or before the mount was unmounted.
    #[error("no lock before the deadline")]
    NoLock,
    /// EINTR: the caller has a signal pending. Without one it must not be answered to SETLKW: the kernel
    /// turns it into ERESTARTSYS, which without a signal reaches the program as errno 512.
    #[error("interrupted")]
    Interrupted,
    /// EIO: the answer did not come before the deadline.
    #[error("no answer before the deadline")]
    TimedOut,
    /// EIO, with the cause for the log.
    #[error("input/output error: {0}")]
    Io(String),
}

/// An error type that a file system answers with.
pub trait Refusal: From<Error> + std::fmt::Debug + Send + 'static {
    /// The errno that the calling program sees.
    fn errno(&self) -> Errno;
}

impl Refusal for Error {
    fn errno(&self) -> Errno {
        match self {
            Error::NotFound => Errno::ENOENT,
            Error::AlreadyExists => Errno::EEXIST,
            Error::NotADirectory => Errno::ENOTDIR,
            Error::IsADirectory => Errno::EISDIR,
            Error::DirectoryNotEmpty => Errno::ENOTEMPTY,
            Error::ReadOnly => Errno::EROFS,
            Error::NotPermitted => Errno::EPERM,
            Error::AccessDenied => Errno::EACCES,
            Error::InvalidArgument => Errno::EINVAL,
            Error::NameTooLong => Errno::ENAMETOOLONG,
            Error::Busy => Errno::EBUSY,
            Error::NoSpace => Errno::ENOSPC,
            Error::FileTooLarge => Errno::EFBIG,
            Error::TooManyLinks => Errno::EMLINK,
            Error::NoSuchAttribute => Errno::ENODATA,
            Error::AttributeTooLarge => Errno::E2BIG,
            Error::NoSuchOffset => Errno::ENXIO,
            Error::Overflow => Errno::EOVERFLOW,
            Error::StaleInode => Errno::ESTALE,
            Error::BadHandle => Errno::EBADF,
            Error::NoSuchIoctl => Errno::ENOTTY,
            Error::NotImplemented => Errno::ENOSYS,
            Error::NotSupported => Errno::EOPNOTSUPP,
            Error::WouldBlock => Errno::EAGAIN,
            Error::Deadlock => Errno::EDEADLK,
            Error::NoLock => Errno::ENOLCK,
            Error::Interrupted => Errno::EINTR,
            Error::TimedOut | Error::Io(_) => Errno::EIO,
        }
    }
}
