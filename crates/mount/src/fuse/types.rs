//! Plain data of the FUSE protocol: numbers, attributes, times, errno and flags, named as in `<linux/fuse.h>`. Only
//! flags that this layer honours have a name here, so nothing else can be asked of the kernel.

use std::time::{SystemTime, UNIX_EPOCH};

use bitflags::bitflags;

/// Number of an inode. The root is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct INodeNo(pub u64);

/// Number of an open file or directory, chosen by the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileHandle(pub u64);

/// Owner of locks: a process and its file table (`fcntl`), or an open file (`flock`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner(pub u64);

/// Flags of `open(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpenFlags(pub i32);

/// An error number of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

/// The kernel refuses an answer with a larger one, and its caller would wait for ever.
const MAX_ERRNO: i32 = 511;

macro_rules! errnos {
    ($($name:ident)*) => {
        #[allow(missing_docs)]
        impl Errno {
            $(pub const $name: Errno = Errno(libc::$name);)*
        }
    };
}

errnos! {
    E2BIG EACCES EAGAIN EBADF EBUSY EDEADLK EDQUOT EEXIST EFBIG EINTR EINVAL EIO EISDIR ELOOP EMLINK ENAMETOOLONG
    ENODATA ENODEV ENOENT ENOLCK ENOMEM ENOSPC ENOSYS ENOTDIR ENOTEMPTY ENOTTY ENXIO EOPNOTSUPP EOVERFLOW EPERM
    EPROTO ERANGE EROFS ESTALE ETIMEDOUT EXDEV
}

impl Errno {
    /// The error with this number; EIO if the kernel does not take it.
    pub fn from_i32(number: i32) -> Errno {
        match number {
            1..=MAX_ERRNO => Errno(number),
            _ => Errno::EIO,
        }
    }

    /// Its number, 1 to 511.
    pub fn code(self) -> i32 {
        self.0
    }
}

/// A time, as inodes have it: nanoseconds count forward, also before 1970. The default is 1970.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Below 1,000,000,000.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// The clock's time.
    pub fn now() -> Timestamp {
        Timestamp::from(SystemTime::now())
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Timestamp {
        let (seconds, nanoseconds) = match time.duration_since(UNIX_EPOCH) {
            Ok(since) => (i128::from(since.as_secs()), since.subsec_nanos()),
            Err(before) => {
                let before = before.duration();
                match before.subsec_nanos() {
                    0 => (-i128::from(before.as_secs()), 0),
                    part => (-i128::from(before.as_secs()) - 1, 1_000_000_000 - part),
                }
            }
        };
        Timestamp {
            seconds: seconds.clamp(i64::MIN.into(), i64::MAX.into()) as i64,
            nanoseconds,
        }
    }
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeOrNow {
    /// This one.
    SpecificTime(Timestamp),
    /// That of the file system's clock.
    Now,
}

/// Type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileType {
    /// FIFO
    NamedPipe,
    /// Character device
    CharDevice,
    /// Block device
    BlockDevice,
    /// Directory
    Directory,
    /// Regular file
    RegularFile,
    /// Symbolic link
    Symlink,
    /// Socket
    Socket,
}

impl FileType {
    /// The type's bits of `st_mode`.
    pub fn mode(self) -> u32 {
        match self {
            FileType::NamedPipe => libc::S_IFIFO,
            FileType::CharDevice => libc::S_IFCHR,
            FileType::BlockDevice => libc::S_IFBLK,
            FileType::Directory => libc::S_IFDIR,
            FileType::RegularFile => libc::S_IFREG,
            FileType::Symlink => libc::S_IFLNK,
            FileType::Socket => libc::S_IFSOCK,
        }
    }
}

/// Attributes of a file, as `stat` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileAttr {
    /// Inode number.
    pub ino: INodeNo,
    /// Length, bytes.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// Time of last access.
    pub atime: Timestamp,
    /// Time of last modification.
    pub mtime: Timestamp,
    /// Time of last change.
    pub ctime: Timestamp,
    /// Type.
    pub kind: FileType,
    /// Permission bits.
    pub perm: u16,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of a device.
    pub rdev: u32,
    /// Best size of reads and writes, bytes.
    pub blksize: u32,
}

bitflags! {
    /// Features of FUSE_INIT that a file system may ask for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct InitFlags: u64 {
        /// Pages are read before they are asked for.
        const FUSE_ASYNC_READ = 1 << 0;
        /// Locks by `fcntl` are requests.
        const FUSE_POSIX_LOCKS = 1 << 1;
        /// OPEN has O_TRUNC.
        const FUSE_ATOMIC_O_TRUNC = 1 << 3;
        /// Writes of more than a page.
        const FUSE_BIG_WRITES = 1 << 5;
        /// The file system applies the umask.
        const FUSE_DONT_MASK = 1 << 6;
        /// Locks by `flock` are requests.
        const FUSE_FLOCK_LOCKS = 1 << 10;
        /// Pages are dropped when `mtime` or size change.
        const FUSE_AUTO_INVAL_DATA = 1 << 12;
        /// READDIRPLUS
        const FUSE_DO_READDIRPLUS = 1 << 13;
        /// READDIRPLUS only where attributes are wanted.
        const FUSE_READDIRPLUS_AUTO = 1 << 14;
        /// Many requests of one direct read or write at once.
        const FUSE_ASYNC_DIO = 1 << 15;
        /// Writes are collected in the page cache.
        const FUSE_WRITEBACK_CACHE = 1 << 16;
        /// No OPEN after it was answered ENOSYS.
        const FUSE_NO_OPEN_SUPPORT = 1 << 17;
        /// Several requests on one directory at once.
        const FUSE_PARALLEL_DIROPS = 1 << 18;
        /// The answer to FUSE_INIT has `max_pages`.
        const FUSE_MAX_PAGES = 1 << 22;
        /// Targets of symbolic links are cached.
        const FUSE_CACHE_SYMLINKS = 1 << 23;
        /// No OPENDIR after it was answered ENOSYS.
        const FUSE_NO_OPENDIR_SUPPORT = 1 << 24;
        /// Pages are dropped only by a notification.
        const FUSE_EXPLICIT_INVAL_DATA = 1 << 25;
        /// FUSE_INIT has flags beyond the 31st.
        const FUSE_INIT_EXT = 1 << 30;
        /// Direct files may be mapped.
        const FUSE_DIRECT_IO_ALLOW_MMAP = 1 << 36;
    }
}

bitflags! {
    /// What the kernel may do with an open file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FopenFlags: u32 {
        /// Reads and writes pass the page cache.
        const FOPEN_DIRECT_IO = 1 << 0;
        /// Pages of earlier opens stay.
        const FOPEN_KEEP_CACHE = 1 << 1;
        /// Names of the directory are cached.
        const FOPEN_CACHE_DIR = 1 << 3;
        /// No FLUSH at close.
        const FOPEN_NOFLUSH = 1 << 5;
        /// Several direct writes at once.
        const FOPEN_PARALLEL_DIRECT_WRITES = 1 << 6;
    }
}

bitflags! {
    /// Flags of `renameat2(2)`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RenameFlags: u32 {
        /// The new name must not exist.
        const RENAME_NOREPLACE = 1 << 0;
        /// Both names exist and change places.
        const RENAME_EXCHANGE = 1 << 1;
        /// The old name becomes a whiteout of overlayfs.
        const RENAME_WHITEOUT = 1 << 2;
        /// The kernel may send others, which a file system refuses.
        const _ = !0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn nanoseconds_count_forward_before_1970() {
        let time = |time| {
            let Timestamp {
                seconds,
                nanoseconds,
            } = Timestamp::from(time);
            (seconds, nanoseconds)
        };
        assert_eq!(time(UNIX_EPOCH), (0, 0));
        assert_eq!(time(UNIX_EPOCH + Duration::new(1, 5)), (1, 5));
        assert_eq!(time(UNIX_EPOCH - Duration::new(1, 0)), (-1, 0));
        assert_eq!(time(UNIX_EPOCH - Duration::new(0, 1)), (-1, 999_999_999));
        let first = UNIX_EPOCH.checked_sub(Duration::from_secs(1 << 63));
        assert_eq!(time(first.unwrap()), (i64::MIN, 0));
    }

    #[test]
    fn errno_that_the_kernel_refuses_is_eio() {
        assert_eq!(Errno::from_i32(libc::ENOSPC), Errno::ENOSPC);
        assert_eq!(Errno::from_i32(511).code(), 511);
        for number in [0, -5, 512, 4095, i32::MIN, i32::MAX] {
            assert_eq!(Errno::from_i32(number), Errno::EIO, "{number}");
        }
    }
}
