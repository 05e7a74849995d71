//! The interface that a file system implements to be mounted. One method for each request of the
//! kernel; the numbering, caching and life cycle rules are those of FUSE (libfuse's low-level API).
//!
//! Defaults make a read-only file system short: requests that change something are answered EROFS, optional
//! ones ENOSYS, after which the kernel does without them.

use super::answer::Answer;
use super::error::{Error, Refusal};
use super::request::{
    Allocation, Attributes, Caller, Changes, CopyRange, Data, Entry, Features, Lock, LockRequest,
    Lookup, NewName, Opened, Read, Release, Rename, Seek, SetXattr, Statistics, Write,
};
use super::types::{FileHandle, FileType, INodeNo, InitFlags, LockOwner, OpenFlags};

/// A file system. Methods are called by several threads at once and must not block: a request that cannot be
/// answered from memory (or a local disk) is answered by [`Answer::Later`].
///
/// Names are single path components, neither empty nor `.` nor `..`, without `/` and NUL; the kernel
/// ensures that. Inode numbers come from the file system's own answers, but a number may have been
/// forgotten: [`Error::StaleInode`]. The root is number 1 and is never forgotten.
pub trait FileSystem: Send + Sync + Sized + 'static {
    /// The error of a request.
    type Error: Refusal;
    /// The answer to READDIR and READDIRPLUS.
    type Listing: Listing<Self>;

    /// What to ask of the kernel; called once, before the first request.
    fn features(&self) -> Features {
        Features::default()
    }

    /// Which of the wanted flags the kernel has; called once, before the first request.
    fn init(&self, granted: InitFlags) {
        let _ = granted;
    }

    /// A request on `inode` failed with `error`, which the caller sees as an errno only. For logs and
    /// counters.
    fn refused(&self, operation: &'static str, inode: INodeNo, error: &Self::Error) {
        let _ = (operation, inode, error);
    }

    /// Finds `name` in a directory.
    fn lookup(&self, by: &Caller, parent: INodeNo, name: &[u8]) -> Answer<Lookup, Self::Error>;

    /// The kernel dropped `lookups` of the look-ups of `inode` that it had been given. A file without
    /// look-ups and without names can be removed.
    fn forget(&self, inode: INodeNo, lookups: u64) {
        let _ = (inode, lookups);
    }

    /// Attributes of a file.
    fn getattr(
        &self,
        by: &Caller,
        inode: INodeNo,
        handle: Option<FileHandle>,
    ) -> Answer<Attributes, Self::Error>;

    /// Changes attributes: `chmod`, `chown`, `truncate`, `utimensat`.
    fn setattr(
        &self,
        by: &Caller,
        inode: INodeNo,
        changes: &Changes,
    ) -> Answer<Attributes, Self::Error> {
        let _ = (by, inode, changes);
        Error::ReadOnly.into()
    }

    /// Target of a symbolic link.
    fn readlink(&self, by: &Caller, inode: INodeNo) -> Answer<bytes::Bytes, Self::Error> {
        let _ = (by, inode);
        Error::InvalidArgument.into()
    }

    /// Makes a file, device, FIFO or socket.
    fn mknod(&self, by: &Caller, new: &NewName<'_>, rdev: u32) -> Answer<Entry, Self::Error> {
        let _ = (by, new, rdev);
        Error::ReadOnly.into()
    }

    /// Makes a directory.
    fn mkdir(&self, by: &Caller, new: &NewName<'_>) -> Answer<Entry, Self::Error> {
        let _ = (by, new);
        Error::ReadOnly.into()
    }

    /// Makes a symbolic link.
    fn symlink(
        &self,
        by: &Caller,
        parent: INodeNo,
        name: &[u8],
        target: &[u8],
    ) -> Answer<Entry, Self::Error> {
        let _ = (by, parent, name, target);
        Error::ReadOnly.into()
    }

    /// Makes another name for a file.
    fn link(
        &self,
        by: &Caller,
        inode: INodeNo,
        new_parent: INodeNo,
        new_name: &[u8],
    ) -> Answer<Entry, Self::Error> {
        let _ = (by, inode, new_parent, new_name);
        Error::ReadOnly.into()
    }

    /// Removes a name that is not a directory's. Open files keep their content.
    fn unlink(&self, by: &Caller, parent: INodeNo, name: &[u8]) -> Answer<(), Self::Error> {
        let _ = (by, parent, name);
        Error::ReadOnly.into()
    }

    /// Removes an empty directory.
    fn rmdir(&self, by: &Caller, parent: INodeNo, name: &[u8]) -> Answer<(), Self::Error> {
        let _ = (by, parent, name);
        Error::ReadOnly.into()
    }

    /// Moves a name, atomically over an existing one.
    fn rename(&self, by: &Caller, rename: &Rename<'_>) -> Answer<(), Self::Error> {
        let _ = (by, rename);
        Error::ReadOnly.into()
    }

    /// Opens a file. O_CREAT and O_EXCL are done already, O_TRUNC too unless the file system asked
    /// for `FUSE_ATOMIC_O_TRUNC`. Not called if the kernel does without ([`Features::flags`]).
    fn open(&self, by: &Caller, inode: INodeNo, flags: OpenFlags) -> Answer<Opened, Self::Error> {
        let _ = (by, inode, flags);
        Answer::Now(Ok(Opened::new(0)))
    }

    /// Makes a file and opens it.
    fn create(
        &self,
        by: &Caller,
        new: &NewName<'_>,
        flags: OpenFlags,
    ) -> Answer<(Entry, Opened), Self::Error> {
        let _ = (by, new, flags);
        Error::ReadOnly.into()
    }

    /// Reads bytes.
    fn read(&self, by: &Caller, read: &Read) -> Answer<Data, Self::Error>;

    /// Writes bytes; answered by their number, which is all of them except for O_DIRECT.
    fn write(&self, by: &Caller, write: &Write<'_>) -> Answer<u32, Self::Error> {
        let _ = (by, write);
        Error::ReadOnly.into()
    }

    /// A descriptor of an open file is closed: errors of earlier writes are reported here, and the locks
    /// of `owner` by `fcntl` end.
    fn flush(
        &self,
        by: &Caller,
        inode: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
    ) -> Answer<(), Self::Error> {
        let _ = (by, inode, handle, owner);
        Error::NotImplemented.into()
    }

    /// Makes a file durable; with `data_only` without attributes that reading does not need.
    fn fsync(
        &self,
        by: &Caller,
        inode: INodeNo,
        handle: FileHandle,
        data_only: bool,
    ) -> Answer<(), Self::Error> {
        let _ = (by, inode, handle, data_only);
        Answer::Now(Ok(()))
    }

    /// The last descriptor and mapping of an open file is gone. No program sees an error of this.
    fn release(&self, by: &Caller, release: &Release) -> Answer<(), Self::Error> {
        let _ = (by, release);
        Answer::Now(Ok(()))
    }

    /// Opens a directory.
    fn opendir(
        &self,
        by: &Caller,
        inode: INodeNo,
        flags: OpenFlags,
    ) -> Answer<Opened, Self::Error> {
        let _ = (by, inode, flags);
        Answer::Now(Ok(Opened::new(0)))
    }

    /// Entries of an open directory from position `offset` on. 0 is the beginning. Every other position
    /// came with an entry of an earlier answer; it means the same entry as long as the directory is open,
    /// even if other entries are added and removed.
    fn readdir(
        &self,
        by: &Caller,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
    ) -> Answer<Self::Listing, Self::Error>;

    /// Closes a directory.
    fn releasedir(
        &self,
        by: &Caller,
        inode: INodeNo,
        handle: FileHandle,
    ) -> Answer<(), Self::Error> {
        let _ = (by, inode, handle);
        Answer::Now(Ok(()))
    }

    /// Makes the names of a directory durable.
    fn fsyncdir(
        &self,
        by: &Caller,
        inode: INodeNo,
        handle: FileHandle,
        data_only: bool,
    ) -> Answer<(), Self::Error> {
        let _ = (by, inode, handle, data_only);
        Answer::Now(Ok(()))
    }

    /// Size and free space.
    fn statfs(&self, by: &Caller, inode: INodeNo) -> Answer<Statistics, Self::Error>;

    /// Value of an extended attribute.
    fn getxattr(
        &self,
        by: &Caller,
        inode: INodeNo,
        name: &[u8],
    ) -> Answer<bytes::Bytes, Self::Error> {
        let _ = (by, inode, name);
        Error::NotImplemented.into()
    }

    /// Names of the extended attributes, each ended by a NUL.
    fn listxattr(&self, by: &Caller, inode: INodeNo) -> Answer<Vec<u8>, Self::Error> {
        let _ = (by, inode);
        Error::NotImplemented.into()
    }

    /// Sets an extended attribute.
    fn setxattr(
        &self,
        by: &Caller,
        inode: INodeNo,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Answer<(), Self::Error> {
        let _ = (by, inode, name, value, how);
        Error::ReadOnly.into()
    }

    /// Removes an extended attribute.
    fn removexattr(&self, by: &Caller, inode: INodeNo, name: &[u8]) -> Answer<(), Self::Error> {
        let _ = (by, inode, name);
        Error::ReadOnly.into()
    }

    /// Whether the caller may do what `mask` (R_OK, W_OK, X_OK) says. Asked only on mounts without
    /// `default_permissions`.
    fn access(&self, by: &Caller, inode: INodeNo, mask: i32) -> Answer<(), Self::Error> {
        let _ = (by, inode, mask);
        Error::NotImplemented.into()
    }

    /// A lock that conflicts with the one described.
    fn getlk(&self, by: &Caller, lock: &LockRequest) -> Answer<Lock, Self::Error> {
        let _ = (by, lock);
        Error::NotImplemented.into()
    }

    /// Sets, changes or removes a lock. If another lock conflicts: [`Error::WouldBlock`], or with `wait` an
    /// [`Answer::wait`].
    fn setlk(&self, by: &Caller, lock: &LockRequest, wait: bool) -> Answer<(), Self::Error> {
        let _ = (by, lock, wait);
        Error::NotImplemented.into()
    }

    /// Reserves, zeroes or frees a range of a file.
    fn fallocate(
        &self,
        by: &Caller,
        inode: INodeNo,
        handle: FileHandle,
        range: std::ops::Range<u64>,
        what: Allocation,
    ) -> Answer<(), Self::Error> {
        let _ = (by, inode, handle, range, what);
        Error::ReadOnly.into()
    }

    /// Offset of the next data or the next hole. After ENOSYS the kernel treats whole files as data.
    fn lseek(
        &self,
        by: &Caller,
        inode: INodeNo,
        handle: FileHandle,
        offset: i64,
        what: Seek,
    ) -> Answer<i64, Self::Error> {
        let _ = (by, inode, handle, offset, what);
        Error::NotImplemented.into()
    }

    /// Copies bytes between two files of this file system.
    fn copy_file_range(&self, by: &Caller, copy: &CopyRange) -> Answer<u32, Self::Error> {
        let _ = (by, copy);
        Error::ReadOnly.into()
    }
}

/// Adds a name to an answer: position that follows, name, inode number, type. `true`: it is full.
pub type AddName<'a> = &'a mut dyn FnMut(u64, &[u8], INodeNo, FileType) -> bool;

/// Adds an entry to an answer: position that follows, name, entry. `true`: it is full.
pub type AddEntry<'a> = &'a mut dyn FnMut(u64, &[u8], &Entry) -> bool;

/// Entries of a directory, of which an answer takes as many as fit. Both methods give `add` each entry
/// with the position that follows it, and stop when it returns `true`: the answer is full, and that
/// entry is not in it.
pub trait Listing<F>: Send + 'static {
    /// READDIR: names, inode numbers and types. Counts no look-ups.
    fn names(self, file_system: &F, add: AddName<'_>);

    /// READDIRPLUS: names with attributes. Each entry that is in the answer counts as one look-up,
    /// except `.` and `..`.
    fn entries(self, file_system: &F, add: AddEntry<'_>);
}
