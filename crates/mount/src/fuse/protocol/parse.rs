//! A request from its bytes. What a file system could not make sense of is refused here with an errno: names that are
//! no names, ranges that end before they begin, modes and flags that nobody defines.

use super::fields::Fields;
use super::{Header, opcode};
use crate::fuse::request::{
    Allocation, Changes, CopyRange, LockKind, LockRequest, NewName, Read, Release, Rename, Seek,
    SetXattr, Write,
};
use crate::fuse::types::{
    Errno, FileHandle, INodeNo, LockOwner, OpenFlags, RenameFlags, TimeOrNow, Timestamp,
};

const GETATTR_FH: u32 = 1 << 0;
const FATTR_MODE: u32 = 1 << 0;
const FATTR_UID: u32 = 1 << 1;
const FATTR_GID: u32 = 1 << 2;
const FATTR_SIZE: u32 = 1 << 3;
const FATTR_ATIME: u32 = 1 << 4;
const FATTR_MTIME: u32 = 1 << 5;
const FATTR_FH: u32 = 1 << 6;
const FATTR_ATIME_NOW: u32 = 1 << 7;
const FATTR_MTIME_NOW: u32 = 1 << 8;
const FATTR_CTIME: u32 = 1 << 10;
const READ_LOCKOWNER: u32 = 1 << 1;
const WRITE_CACHE: u32 = 1 << 0;
const WRITE_LOCKOWNER: u32 = 1 << 1;
const WRITE_KILL_SUIDGID: u32 = 1 << 2;
const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
const FSYNC_FDATASYNC: u32 = 1 << 0;
const LK_FLOCK: u32 = 1 << 0;
/// Bytes of `fuse_forget_one`.
const FORGET_ONE_BYTES: usize = 16;
const NANOSECONDS: u32 = 1_000_000_000;

/// A request. The inode is the header's unless a field says otherwise.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub enum Operation<'a> {
    Lookup(&'a [u8]),
    Forget(Forgotten<'a>),
    GetAttr(Option<FileHandle>),
    SetAttr(Changes),
    ReadLink,
    SymLink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod {
        new: NewName<'a>,
        rdev: u32,
    },
    MkDir(NewName<'a>),
    Unlink(&'a [u8]),
    RmDir(&'a [u8]),
    Rename(Rename<'a>),
    Link {
        inode: INodeNo,
        new_name: &'a [u8],
    },
    Open(OpenFlags),
    Create {
        new: NewName<'a>,
        flags: OpenFlags,
    },
    Read(Read),
    Write(Write<'a>),
    StatFs,
    Release(Release),
    FSync {
        handle: FileHandle,
        data_only: bool,
    },
    Flush {
        handle: FileHandle,
        owner: LockOwner,
    },
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        how: SetXattr,
    },
    /// A `size` of 0 asks for the length.
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    /// A `size` of 0 asks for the length.
    ListXattr {
        size: u32,
    },
    RemoveXattr(&'a [u8]),
    OpenDir(OpenFlags),
    ReadDir(Page),
    ReadDirPlus(Page),
    ReleaseDir(FileHandle),
    FSyncDir {
        handle: FileHandle,
        data_only: bool,
    },
    GetLk(LockRequest),
    SetLk {
        lock: LockRequest,
        wait: bool,
    },
    Access {
        mask: i32,
    },
    /// The request of this number is no longer wanted.
    Interrupt {
        unique: u64,
    },
    Destroy,
    IoCtl,
    FAllocate {
        handle: FileHandle,
        range: std::ops::Range<u64>,
        what: Allocation,
    },
    LSeek {
        handle: FileHandle,
        offset: i64,
        what: Seek,
    },
    /// `wide`: the answer has 64 bits.
    CopyFileRange {
        copy: CopyRange,
        wide: bool,
    },
    Statx {
        handle: Option<FileHandle>,
        flags: u32,
        mask: u32,
    },
    /// Data of a notification that this layer does not send.
    NotifyReply,
}

/// Part of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// The open directory.
    pub handle: FileHandle,
    /// Position from which on.
    pub offset: u64,
    /// Room in the answer, bytes.
    pub size: u32,
}

/// Inodes whose look-ups the kernel dropped, with their numbers.
#[derive(Debug, Clone)]
pub enum Forgotten<'a> {
    /// FORGET: the header's inode.
    One(INodeNo, u64),
    /// BATCH_FORGET: pairs of 64 bits.
    Many(&'a [u8]),
}

impl Forgotten<'_> {
    /// Gives each to `forget`.
    pub fn each(&self, mut forget: impl FnMut(INodeNo, u64)) {
        match self {
            Forgotten::One(inode, lookups) => forget(*inode, *lookups),
            Forgotten::Many(pairs) => {
                let mut fields = Fields::new(pairs);
                while let (Ok(inode), Ok(lookups)) = (fields.u64(), fields.u64()) {
                    forget(INodeNo(inode), lookups);
                }
            }
        }
    }
}

impl<'a> Operation<'a> {
    /// The request of `header` with this body.
    ///
    /// # Errors
    /// The errno to answer: ENOSYS for requests that this layer does not have, EIO for bytes that are no such request,
    /// EINVAL and EOPNOTSUPP for arguments that no file system takes.
    pub fn parse(header: &Header, body: &'a [u8]) -> Result<Operation<'a>, Errno> {
        let fields = &mut Fields::new(body);
        let inode = header.inode;
        Ok(match header.opcode {
            opcode::LOOKUP => Operation::Lookup(only_name(fields)?),
            opcode::FORGET => Operation::Forget(Forgotten::One(inode, fields.u64()?)),
            opcode::BATCH_FORGET => Operation::Forget(forgotten(fields)?),
            opcode::GETATTR => Operation::GetAttr(getattr(fields)?),
            opcode::SETATTR => Operation::SetAttr(changes(fields)?),
            opcode::READLINK => Operation::ReadLink,
            opcode::SYMLINK => symlink(fields)?,
            opcode::MKNOD => mknod(fields, inode)?,
            opcode::MKDIR => mkdir(fields, inode)?,
            opcode::UNLINK => Operation::Unlink(only_name(fields)?),
            opcode::RMDIR => Operation::RmDir(only_name(fields)?),
            opcode::RENAME => rename(fields, inode, false)?,
            opcode::RENAME2 => rename(fields, inode, true)?,
            opcode::LINK => Operation::Link {
                inode: INodeNo(fields.u64()?),
                new_name: only_name(fields)?,
            },
            opcode::OPEN => Operation::Open(open_flags(fields)?),
            opcode::OPENDIR => Operation::OpenDir(open_flags(fields)?),
            opcode::CREATE => create(fields, inode)?,
            opcode::READ => Operation::Read(read(fields, inode)?),
            opcode::WRITE => Operation::Write(write(fields, inode)?),
            opcode::STATFS => Operation::StatFs,
            opcode::RELEASE => Operation::Release(release(fields, inode)?),
            opcode::RELEASEDIR => Operation::ReleaseDir(FileHandle(fields.u64()?)),
            opcode::FSYNC => {
                let (handle, data_only) = fsync(fields)?;
                Operation::FSync { handle, data_only }
            }
            opcode::FSYNCDIR => {
                let (handle, data_only) = fsync(fields)?;
                Operation::FSyncDir { handle, data_only }
            }
            opcode::FLUSH => flush(fields)?,
            opcode::SETXATTR => setxattr(fields)?,
            opcode::GETXATTR => getxattr(fields)?,
            opcode::LISTXATTR => Operation::ListXattr {
                size: fields.u32()?,
            },
            opcode::REMOVEXATTR => Operation::RemoveXattr(only_string(fields)?),
            opcode::READDIR => Operation::ReadDir(page(fields)?),
            opcode::READDIRPLUS => Operation::ReadDirPlus(page(fields)?),
            opcode::GETLK => Operation::GetLk(lock(fields, inode)?),
            opcode::SETLK | opcode::SETLKW => Operation::SetLk {
                lock: lock(fields, inode)?,
                wait: header.opcode == opcode::SETLKW,
            },
            opcode::ACCESS => Operation::Access {
                mask: fields.u32()? as i32,
            },
            opcode::INTERRUPT => Operation::Interrupt {
                unique: fields.u64()?,
            },
            opcode::DESTROY => Operation::Destroy,
            opcode::IOCTL => Operation::IoCtl,
            opcode::FALLOCATE => fallocate(fields)?,
            opcode::LSEEK => lseek(fields)?,
            opcode::COPY_FILE_RANGE => copy_file_range(fields, inode, false)?,
            opcode::COPY_FILE_RANGE_64 => copy_file_range(fields, inode, true)?,
            opcode::STATX => statx(fields)?,
            opcode::NOTIFY_REPLY => Operation::NotifyReply,
            _ => return Err(Errno::ENOSYS),
        })
    }
}

fn only_name<'a>(fields: &mut Fields<'a>) -> Result<&'a [u8], Errno> {
    let name = fields.name()?;
    fields.end()?;
    Ok(name)
}

/// The name of an extended attribute, which may contain what names of files may not.
fn only_string<'a>(fields: &mut Fields<'a>) -> Result<&'a [u8], Errno> {
    let name = fields.string()?;
    fields.end()?;
    Ok(name)
}

fn forgotten<'a>(fields: &mut Fields<'a>) -> Result<Forgotten<'a>, Errno> {
    let count = fields.u32()? as usize;
    fields.skip(4)?;
    let pairs = fields.rest();
    if !pairs.len().is_multiple_of(FORGET_ONE_BYTES) || pairs.len() / FORGET_ONE_BYTES != count {
        return Err(Errno::EIO);
    }
    Ok(Forgotten::Many(pairs))
}

fn getattr(fields: &mut Fields<'_>) -> Result<Option<FileHandle>, Errno> {
    let flags = fields.u32()?;
    fields.skip(4)?;
    let handle = FileHandle(fields.u64()?);
    Ok((flags & GETATTR_FH != 0).then_some(handle))
}

fn statx<'a>(fields: &mut Fields<'_>) -> Result<Operation<'a>, Errno> {
    let handle = getattr(fields)?;
    Ok(Operation::Statx {
        handle,
        flags: fields.u32()?,
        mask: fields.u32()?,
    })
}

fn changes(fields: &mut Fields<'_>) -> Result<Changes, Errno> {
    let valid = fields.u32()?;
    let has = |flag: u32| valid & flag != 0;
    fields.skip(4)?;
    let handle = FileHandle(fields.u64()?);
    let size = fields.u64()?;
    fields.skip(8)?;
    let seconds = [fields.u64()?, fields.u64()?, fields.u64()?];
    let nanoseconds = [fields.u32()?, fields.u32()?, fields.u32()?];
    let mode = fields.u32()?;
    fields.skip(4)?;
    let (uid, gid) = (fields.u32()?, fields.u32()?);
    fields.skip(4)?;
    let time = |at: usize, set: u32| {
        if !has(set) {
            return Ok(None);
        }
        if nanoseconds[at] >= NANOSECONDS {
            return Err(Errno::EINVAL);
        }
        Ok(Some(Timestamp {
            seconds: seconds[at] as i64,
            nanoseconds: nanoseconds[at],
        }))
    };
    let time_or_now = |at: usize, set: u32, now: u32| {
        if has(set) && has(now) {
            return Ok(Some(TimeOrNow::Now));
        }
        time(at, set).map(|time| time.map(TimeOrNow::SpecificTime))
    };
    Ok(Changes {
        mode: has(FATTR_MODE).then_some(mode),
        uid: has(FATTR_UID).then_some(uid),
        gid: has(FATTR_GID).then_some(gid),
        size: has(FATTR_SIZE).then_some(size),
        atime: time_or_now(0, FATTR_ATIME, FATTR_ATIME_NOW)?,
        mtime: time_or_now(1, FATTR_MTIME, FATTR_MTIME_NOW)?,
        ctime: time(2, FATTR_CTIME)?,
        handle: has(FATTR_FH).then_some(handle),
    })
}

fn symlink<'a>(fields: &mut Fields<'a>) -> Result<Operation<'a>, Errno> {
    let name = fields.name()?;
    let target = only_string(fields)?;
    Ok(Operation::SymLink { name, target })
}

fn mknod<'a>(fields: &mut Fields<'a>, parent: INodeNo) -> Result<Operation<'a>, Errno> {
    let (mode, rdev, umask) = (fields.u32()?, fields.u32()?, fields.u32()?);
    fields.skip(4)?;
    let new = new_name(fields, parent, mode, umask)?;
    Ok(Operation::MkNod { new, rdev })
}

fn mkdir<'a>(fields: &mut Fields<'a>, parent: INodeNo) -> Result<Operation<'a>, Errno> {
    let (mode, umask) = (fields.u32()?, fields.u32()?);
    Ok(Operation::MkDir(new_name(fields, parent, mode, umask)?))
}

fn create<'a>(fields: &mut Fields<'a>, parent: INodeNo) -> Result<Operation<'a>, Errno> {
    let flags = OpenFlags(fields.u32()? as i32);
    let (mode, umask) = (fields.u32()?, fields.u32()?);
    fields.skip(4)?;
    let new = new_name(fields, parent, mode, umask)?;
    Ok(Operation::Create { new, flags })
}

fn new_name<'a>(
    fields: &mut Fields<'a>,
    parent: INodeNo,
    mode: u32,
    umask: u32,
) -> Result<NewName<'a>, Errno> {
    Ok(NewName {
        parent,
        name: only_name(fields)?,
        mode,
        umask,
    })
}

fn rename<'a>(
    fields: &mut Fields<'a>,
    parent: INodeNo,
    has_flags: bool,
) -> Result<Operation<'a>, Errno> {
    let new_parent = INodeNo(fields.u64()?);
    let mut flags = RenameFlags::empty();
    if has_flags {
        flags = RenameFlags::from_bits_retain(fields.u32()?);
        fields.skip(4)?;
    }
    Ok(Operation::Rename(Rename {
        parent,
        name: fields.name()?,
        new_parent,
        new_name: only_name(fields)?,
        flags,
    }))
}

fn open_flags(fields: &mut Fields<'_>) -> Result<OpenFlags, Errno> {
    Ok(OpenFlags(fields.u32()? as i32))
}

fn read(fields: &mut Fields<'_>, inode: INodeNo) -> Result<Read, Errno> {
    let handle = FileHandle(fields.u64()?);
    let (offset, size) = (fields.u64()?, fields.u32()?);
    let read_flags = fields.u32()?;
    let owner = LockOwner(fields.u64()?);
    let flags = open_flags(fields)?;
    Ok(Read {
        inode,
        handle,
        offset,
        size,
        flags,
        owner: (read_flags & READ_LOCKOWNER != 0).then_some(owner),
    })
}

fn page(fields: &mut Fields<'_>) -> Result<Page, Errno> {
    Ok(Page {
        handle: FileHandle(fields.u64()?),
        offset: fields.u64()?,
        size: fields.u32()?,
    })
}

fn write<'a>(fields: &mut Fields<'a>, inode: INodeNo) -> Result<Write<'a>, Errno> {
    let handle = FileHandle(fields.u64()?);
    let (offset, size) = (fields.u64()?, fields.u32()?);
    let write_flags = fields.u32()?;
    let owner = LockOwner(fields.u64()?);
    let flags = open_flags(fields)?;
    fields.skip(4)?;
    let data = fields.rest();
    if data.len() != size as usize {
        return Err(Errno::EIO);
    }
    Ok(Write {
        inode,
        handle,
        offset,
        data,
        flags,
        from_page_cache: write_flags & WRITE_CACHE != 0,
        kill_privileges: write_flags & WRITE_KILL_SUIDGID != 0,
        owner: (write_flags & WRITE_LOCKOWNER != 0).then_some(owner),
    })
}

fn release(fields: &mut Fields<'_>, inode: INodeNo) -> Result<Release, Errno> {
    let handle = FileHandle(fields.u64()?);
    let flags = open_flags(fields)?;
    let release_flags = fields.u32()?;
    let owner = LockOwner(fields.u64()?);
    Ok(Release {
        inode,
        handle,
        flags,
        flock_owner: (release_flags & RELEASE_FLOCK_UNLOCK != 0).then_some(owner),
    })
}

fn flush<'a>(fields: &mut Fields<'_>) -> Result<Operation<'a>, Errno> {
    let handle = FileHandle(fields.u64()?);
    fields.skip(8)?;
    Ok(Operation::Flush {
        handle,
        owner: LockOwner(fields.u64()?),
    })
}

fn fsync(fields: &mut Fields<'_>) -> Result<(FileHandle, bool), Errno> {
    let handle = FileHandle(fields.u64()?);
    Ok((handle, fields.u32()? & FSYNC_FDATASYNC != 0))
}

/// Without `FUSE_SETXATTR_EXT`, which is not asked for, the structure has two fields.
fn setxattr<'a>(fields: &mut Fields<'a>) -> Result<Operation<'a>, Errno> {
    let size = fields.u32()? as usize;
    let how = match fields.u32()? as i32 {
        0 => SetXattr::CreateOrReplace,
        libc::XATTR_CREATE => SetXattr::Create,
        libc::XATTR_REPLACE => SetXattr::Replace,
        _ => return Err(Errno::EINVAL),
    };
    let name = fields.string()?;
    let value = fields.rest();
    if value.len() != size {
        return Err(Errno::EIO);
    }
    Ok(Operation::SetXattr { name, value, how })
}

fn getxattr<'a>(fields: &mut Fields<'a>) -> Result<Operation<'a>, Errno> {
    let size = fields.u32()?;
    fields.skip(4)?;
    let name = only_string(fields)?;
    Ok(Operation::GetXattr { name, size })
}

fn lock(fields: &mut Fields<'_>, inode: INodeNo) -> Result<LockRequest, Errno> {
    let handle = FileHandle(fields.u64()?);
    let owner = LockOwner(fields.u64()?);
    let (start, end) = (fields.u64()?, fields.u64()?);
    let kind = match fields.u32()? as i32 {
        libc::F_RDLCK => LockKind::Read,
        libc::F_WRLCK => LockKind::Write,
        libc::F_UNLCK => LockKind::Unlock,
        _ => return Err(Errno::EINVAL),
    };
    let pid = fields.u32()?;
    let flags = fields.u32()?;
    if end < start {
        return Err(Errno::EINVAL);
    }
    Ok(LockRequest {
        inode,
        handle,
        owner,
        range: start..=end,
        kind,
        pid,
        flock: flags & LK_FLOCK != 0,
    })
}

fn fallocate<'a>(fields: &mut Fields<'_>) -> Result<Operation<'a>, Errno> {
    let handle = FileHandle(fields.u64()?);
    let (offset, length) = (fields.u64()?, fields.u64()?);
    let what = allocation(fields.u32()? as i32).ok_or(Errno::EOPNOTSUPP)?;
    match offset.checked_add(length) {
        Some(end) if length > 0 => Ok(Operation::FAllocate {
            handle,
            range: offset..end,
            what,
        }),
        _ => Err(Errno::EINVAL),
    }
}

/// The mode of `fallocate`; `None` for modes that are not supported (collapse, insert, unshare).
fn allocation(mode: i32) -> Option<Allocation> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    let keep_size = mode & KEEP != 0;
    match mode & !KEEP {
        0 => Some(Allocation::Allocate { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Some(Allocation::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Some(Allocation::ZeroRange { keep_size }),
        _ => None,
    }
}

/// The kernel seeks in all other ways by itself.
fn lseek<'a>(fields: &mut Fields<'_>) -> Result<Operation<'a>, Errno> {
    let handle = FileHandle(fields.u64()?);
    let offset = fields.u64()? as i64;
    let what = match fields.u32()? as i32 {
        libc::SEEK_DATA => Seek::Data,
        libc::SEEK_HOLE => Seek::Hole,
        _ => return Err(Errno::EINVAL),
    };
    Ok(Operation::LSeek {
        handle,
        offset,
        what,
    })
}

fn copy_file_range<'a>(
    fields: &mut Fields<'_>,
    from: INodeNo,
    wide: bool,
) -> Result<Operation<'a>, Errno> {
    let copy = CopyRange {
        from,
        from_handle: FileHandle(fields.u64()?),
        from_offset: fields.u64()?,
        to: INodeNo(fields.u64()?),
        to_handle: FileHandle(fields.u64()?),
        to_offset: fields.u64()?,
        // Answers of file systems have 32 bits.
        len: fields.u64()?.min(u64::from(u32::MAX)),
    };
    match fields.u64()? {
        0 => Ok(Operation::CopyFileRange { copy, wide }),
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests;
