//! Requests of the kernel and their answers as typed values: the vocabulary of [`super::FileSystem`]. Plain data
//! (attributes, flags, numbers) are the types of the module above.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;

use super::types::{
    FileAttr, FileHandle, FopenFlags, INodeNo, InitFlags, LockOwner, OpenFlags, RenameFlags,
    TimeOrNow, Timestamp,
};

/// The process that makes a request. The kernel checks permissions itself (`default_permissions`); this is
/// for the owner of new files and for waits that a signal ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// Effective user for file systems (`fsuid`).
    pub uid: u32,
    /// Effective group for file systems (`fsgid`).
    pub gid: u32,
    /// Thread, 0 for requests that the kernel makes by itself.
    pub pid: u32,
}

/// Features that a file system requests from the kernel when it is mounted.
#[derive(Debug, Clone)]
pub struct Features {
    /// Wanted flags of FUSE_INIT. Each is set only if the kernel has it; [`super::FileSystem::init`] gets
    /// those that were set. With `FUSE_NO_OPEN_SUPPORT` the kernel sends no OPEN.
    ///
    /// With `FUSE_FLOCK_LOCKS` set, `flock` comes as a lock request over the whole file ([`LockRequest::flock`]).
    /// Without it the kernel keeps `flock` itself, correctly within one machine.
    pub flags: InitFlags,
    /// Largest read or write, bytes.
    pub max_request_bytes: u32,
    /// How much the kernel may read ahead, bytes.
    pub max_read_ahead_bytes: u32,
    /// Read-ahead and write-back requests that may be under way at once.
    pub max_background: u16,
}

impl Default for Features {
    fn default() -> Self {
        Features {
            // Not FUSE_ASYNC_DIO: its requests have no INTERRUPT, and who waits for one cannot be killed before the deadline.
            flags: InitFlags::FUSE_PARALLEL_DIROPS
                | InitFlags::FUSE_DO_READDIRPLUS
                | InitFlags::FUSE_READDIRPLUS_AUTO
                | InitFlags::FUSE_CACHE_SYMLINKS,
            max_request_bytes: 1 << 20,
            max_read_ahead_bytes: 1 << 20,
            max_background: 64,
        }
    }
}

/// Attributes, and how long the kernel may use them without asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// The attributes.
    pub attributes: FileAttr,
    /// How long they are valid.
    pub ttl: Duration,
}

/// A name that exists. The answer counts as one look-up of its inode number, until a FORGET takes it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its attributes; the inode number is among them.
    pub attributes: FileAttr,
    /// How long name and attributes are valid.
    pub ttl: Duration,
    /// Distinguishes inodes that have the same number one after the other.
    pub generation: u64,
}

/// The answer to LOOKUP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// The name exists.
    Found(Entry),
    /// It does not, and the kernel may cache that for this long.
    Absent(Duration),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Changes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length, bytes.
    pub size: Option<u64>,
    /// Time of last access.
    pub atime: Option<TimeOrNow>,
    /// Time of last modification.
    pub mtime: Option<TimeOrNow>,
    /// Time of last change of attributes; only with the write-back cache, when the kernel keeps it.
    pub ctime: Option<Timestamp>,
    /// The open file through which the call came.
    pub handle: Option<FileHandle>,
}

/// A name to be made in a directory. `mode` has the umask applied unless the file system asked for
/// `FUSE_DONT_MASK`.
#[derive(Debug, Clone, Copy)]
pub struct NewName<'a> {
    /// The directory.
    pub parent: INodeNo,
    /// The name.
    pub name: &'a [u8],
    /// File type and permission bits.
    pub mode: u32,
    /// The caller's umask.
    pub umask: u32,
}

/// RENAME.
#[derive(Debug, Clone, Copy)]
pub struct Rename<'a> {
    /// Directory of the old name.
    pub parent: INodeNo,
    /// Old name.
    pub name: &'a [u8],
    /// Directory of the new name.
    pub new_parent: INodeNo,
    /// New name.
    pub new_name: &'a [u8],
    /// RENAME_NOREPLACE or RENAME_EXCHANGE.
    pub flags: RenameFlags,
}

/// An open file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// The handle by which later requests name it.
    pub handle: FileHandle,
    /// What the kernel may cache.
    pub flags: FopenFlags,
}

impl Opened {
    /// A handle without flags.
    pub fn new(handle: u64) -> Opened {
        Opened {
            handle: FileHandle(handle),
            flags: FopenFlags::empty(),
        }
    }
}

/// READ.
#[derive(Debug, Clone, Copy)]
pub struct Read {
    /// The file.
    pub inode: INodeNo,
    /// As it was opened.
    pub handle: FileHandle,
    /// First byte.
    pub offset: u64,
    /// Bytes, at most [`Features::max_request_bytes`].
    pub size: u32,
    /// Flags of the open file, such as O_DIRECT.
    pub flags: OpenFlags,
    /// Lock owner of the caller.
    pub owner: Option<LockOwner>,
}

/// The bytes of an answer to READ, in pieces; fewer than requested only at the end of the file.
pub type Data = Vec<Bytes>;

/// WRITE.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// The file.
    pub inode: INodeNo,
    /// As it was opened; with `from_page_cache` any handle that was open for writing.
    pub handle: FileHandle,
    /// First byte. For a file that is open with O_APPEND it is the end as the kernel knows it.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
    /// Flags of the open file, such as O_APPEND and O_DSYNC.
    pub flags: OpenFlags,
    /// Delayed: from a mapping or from the write-back cache. `offset` then is exact also with O_APPEND.
    pub from_page_cache: bool,
    /// Set-id bits must be cleared: the caller may not keep them.
    pub kill_privileges: bool,
    /// Lock owner of the caller.
    pub owner: Option<LockOwner>,
}

/// RELEASE: nothing uses the handle any more.
#[derive(Debug, Clone, Copy)]
pub struct Release {
    /// The file.
    pub inode: INodeNo,
    /// The handle.
    pub handle: FileHandle,
    /// Flags that it was opened with.
    pub flags: OpenFlags,
    /// Owner whose `flock` ends, with `FUSE_FLOCK_LOCKS`.
    pub flock_owner: Option<LockOwner>,
}

/// Kind of a lock over a range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
    /// None: removes a lock; as an answer, no lock conflicts.
    Unlock,
}

/// GETLK, SETLK and SETLKW.
#[derive(Debug, Clone)]
pub struct LockRequest {
    /// The file.
    pub inode: INodeNo,
    /// As it was opened.
    pub handle: FileHandle,
    /// The owner of the lock: one for each process and file table (`fcntl`) or open file (`flock`).
    pub owner: LockOwner,
    /// The bytes; the end is `i64::MAX` for "to the end of the file".
    pub range: RangeInclusive<u64>,
    /// The kind.
    pub kind: LockKind,
    /// Process that asks, for [`Lock::pid`].
    pub pid: u32,
    /// By `flock`, which neither sees nor meets locks by `fcntl`.
    pub flock: bool,
}

/// The answer to GETLK: a conflicting lock, or [`LockKind::Unlock`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// Its bytes.
    pub range: RangeInclusive<u64>,
    /// Its kind.
    pub kind: LockKind,
    /// The process that holds it.
    pub pid: u32,
}

/// What `fallocate` does with a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// Space is reserved. The file grows to the end of the range unless `keep_size`.
    Allocate {
        /// FALLOC_FL_KEEP_SIZE
        keep_size: bool,
    },
    /// The range becomes a hole; the size stays.
    PunchHole,
    /// The range reads as zeros.
    ZeroRange {
        /// FALLOC_FL_KEEP_SIZE
        keep_size: bool,
    },
}

/// What LSEEK looks for; all other seeking the kernel does by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The first byte from the offset on that is not in a hole.
    Data,
    /// The first byte from the offset on that is in a hole or at the end of the file.
    Hole,
}

/// COPY_FILE_RANGE. Answered by the number of bytes copied.
#[derive(Debug, Clone, Copy)]
pub struct CopyRange {
    /// The source file.
    pub from: INodeNo,
    /// Its handle.
    pub from_handle: FileHandle,
    /// First byte to copy.
    pub from_offset: u64,
    /// The target file.
    pub to: INodeNo,
    /// Its handle.
    pub to_handle: FileHandle,
    /// Offset in the target, bytes.
    pub to_offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// What SETXATTR expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetXattr {
    /// Nothing.
    CreateOrReplace,
    /// XATTR_CREATE: that the attribute is not there.
    Create,
    /// XATTR_REPLACE: that it is.
    Replace,
}

/// STATFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// Size in units of `unit_bytes`.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks for ordinary users.
    pub available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub free_files: u64,
    /// Best size of reads and writes, bytes.
    pub best_bytes: u32,
    /// Longest name, bytes.
    pub longest_name: u32,
    /// Unit of the counts above, bytes.
    pub unit_bytes: u32,
}
