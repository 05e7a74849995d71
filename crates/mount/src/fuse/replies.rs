//! Typed answers into the replies of `fuser`, and the kernel's numbers into typed requests.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use fuser::{
    Errno, FileAttr, Generation, INodeNo, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectoryPlus,
    ReplyEntry, ReplyLock, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, TimeOrNow,
};

use super::request::{
    Allocation, Attributes, Data, Entry, Lock, LockKind, Lookup, Opened, Seek, Statistics,
};

/// Linux bounds the value of an extended attribute, and a list of names.
const MAX_XATTR_BYTES: usize = 64 << 10;

pub fn lookup(result: Result<Lookup, Errno>, reply: ReplyEntry) {
    match result {
        Ok(Lookup::Found(entry)) => self::entry(Ok(entry), reply),
        Ok(Lookup::Absent(ttl)) => reply.entry(&ttl, &ABSENT, Generation(0)),
        Err(errno) => reply.error(errno),
    }
}

pub fn entry(result: Result<Entry, Errno>, reply: ReplyEntry) {
    match result {
        Ok(entry) => reply.entry(&entry.ttl, &entry.attributes, Generation(entry.generation)),
        Err(errno) => reply.error(errno),
    }
}

pub fn attributes(result: Result<Attributes, Errno>, reply: ReplyAttr) {
    match result {
        Ok(Attributes { attributes, ttl }) => reply.attr(&ttl, &attributes),
        Err(errno) => reply.error(errno),
    }
}

pub fn opened(result: Result<Opened, Errno>, reply: ReplyOpen) {
    match result {
        Ok(Opened { handle, flags }) => reply.opened(handle, flags),
        Err(errno) => reply.error(errno),
    }
}

pub fn created(result: Result<(Entry, Opened), Errno>, reply: ReplyCreate) {
    match result {
        Ok((entry, opened)) => {
            let generation = Generation(entry.generation);
            let (handle, flags) = (opened.handle, opened.flags);
            reply.created(&entry.ttl, &entry.attributes, generation, handle, flags);
        }
        Err(errno) => reply.error(errno),
    }
}

pub fn data(result: Result<Data, Errno>, reply: ReplyData) {
    match result.as_deref() {
        Ok([]) => reply.data(&[]),
        Ok([one]) => reply.data(one),
        Ok(pieces) => joined(pieces, |bytes| reply.data(bytes)),
        Err(errno) => reply.error(*errno),
    }
}

/// Gives `send` the pieces as one slice, because `fuser` takes only one. Each thread keeps a buffer: the
/// kernel would clear new memory for each reply, page by page.
fn joined(pieces: &[Bytes], send: impl FnOnce(&[u8])) {
    thread_local! {
        static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    BUFFER.with_borrow_mut(|buffer| {
        buffer.clear();
        buffer.reserve(pieces.iter().map(Bytes::len).sum());
        for piece in pieces {
            buffer.extend_from_slice(piece);
        }
        send(buffer);
    });
}

pub fn written(result: Result<u32, Errno>, reply: ReplyWrite) {
    match result {
        Ok(count) => reply.written(count),
        Err(errno) => reply.error(errno),
    }
}

/// Adds one entry to a READDIRPLUS; `true` if it does not fit.
pub fn add_entry(reply: &mut ReplyDirectoryPlus, next: u64, name: &[u8], entry: &Entry) -> bool {
    let attributes = &entry.attributes;
    let (name, generation) = (OsStr::from_bytes(name), Generation(entry.generation));
    reply.add(
        attributes.ino,
        next,
        name,
        &entry.ttl,
        attributes,
        generation,
    )
}

pub fn statistics(result: Result<Statistics, Errno>, reply: ReplyStatfs) {
    match result {
        Ok(s) => reply.statfs(
            s.blocks,
            s.free,
            s.available,
            s.files,
            s.free_files,
            s.best_bytes,
            s.longest_name,
            s.unit_bytes,
        ),
        Err(errno) => reply.error(errno),
    }
}

/// GETXATTR and LISTXATTR: a `size` of 0 asks for the length alone.
pub fn xattr(result: Result<&[u8], &Errno>, size: u32, reply: ReplyXattr) {
    match result {
        Err(errno) => reply.error(*errno),
        Ok(value) if value.len() > MAX_XATTR_BYTES => reply.error(Errno::E2BIG),
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(value),
    }
}

pub fn lock(result: Result<Lock, Errno>, reply: ReplyLock) {
    match result {
        Ok(lock) => {
            let kind = match lock.kind {
                LockKind::Read => libc::F_RDLCK,
                LockKind::Write => libc::F_WRLCK,
                LockKind::Unlock => libc::F_UNLCK,
            };
            reply.locked(*lock.range.start(), *lock.range.end(), kind, lock.pid);
        }
        Err(errno) => reply.error(errno),
    }
}

/// `l_type` of a lock request.
pub fn lock_kind(kind: i32) -> Option<LockKind> {
    match kind {
        libc::F_RDLCK => Some(LockKind::Read),
        libc::F_WRLCK => Some(LockKind::Write),
        libc::F_UNLCK => Some(LockKind::Unlock),
        _ => None,
    }
}

/// The mode of `fallocate`; `None` for modes that are not supported (collapse, insert, unshare).
pub fn allocation(mode: i32) -> Option<Allocation> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    let keep_size = mode & KEEP != 0;
    match mode & !KEEP {
        0 => Some(Allocation::Allocate { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Some(Allocation::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Some(Allocation::ZeroRange { keep_size }),
        _ => None,
    }
}

/// `whence` of LSEEK: the kernel asks for nothing else.
pub fn seek(whence: i32) -> Option<Seek> {
    match whence {
        libc::SEEK_DATA => Some(Seek::Data),
        libc::SEEK_HOLE => Some(Seek::Hole),
        _ => None,
    }
}

/// A time to set, corrected.
pub fn time(time: TimeOrNow) -> TimeOrNow {
    match time {
        TimeOrNow::SpecificTime(time) => TimeOrNow::SpecificTime(corrected(time)),
        TimeOrNow::Now => TimeOrNow::Now,
    }
}

/// The time that the kernel sent. Nanoseconds count forward also before 1970, but `fuser` 0.18
/// subtracts them there.
pub fn corrected(time: SystemTime) -> SystemTime {
    let Ok(before) = SystemTime::UNIX_EPOCH.duration_since(time) else {
        return time;
    };
    let nanoseconds = Duration::from_nanos(u64::from(before.subsec_nanos()));
    time.checked_add(nanoseconds * 2).unwrap_or(time)
}

/// The answer that the name does not exist and that the kernel may cache this: number 0.
const ABSENT: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: SystemTime::UNIX_EPOCH,
    mtime: SystemTime::UNIX_EPOCH,
    ctime: SystemTime::UNIX_EPOCH,
    crtime: SystemTime::UNIX_EPOCH,
    kind: fuser::FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 0,
    flags: 0,
};
