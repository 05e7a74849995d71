//! The kernel's requests, as `fuser` delivers them: gives each to the file system in typed form, and
//! sends the answer: at once from the thread that read the request, from a task ([`super::parked`]), or from a
//! thread of the file system.
//! The only place where an error becomes an errno.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::answer::{Answer, Reply};
use super::error::{Error, Refusal};
use super::file_system::{FileSystem, Listing};
use super::parked::Parking;
use super::replies;
use super::request::{
    Caller, Changes, CopyRange, LockRequest, NewName, Read, Release, Rename, SetXattr, Write,
};

/// A file system as `fuser` drives it.
#[derive(Debug)]
pub struct Dispatch<F> {
    file_system: Arc<F>,
    parking: Parking,
    /// Whether the kernel does without OPEN, because the file system asked for that.
    no_open: bool,
}

/// A request, for logs.
#[derive(Debug, Clone, Copy)]
struct About {
    operation: &'static str,
    inode: INodeNo,
    pid: u32,
}

fn caller(request: &Request) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
        pid: request.pid(),
    }
}

fn about(operation: &'static str, inode: INodeNo, request: &Request) -> About {
    About {
        operation,
        inode,
        pid: request.pid(),
    }
}

impl<F: FileSystem> Dispatch<F> {
    /// Serves `file_system`; waits run in `parking`.
    pub fn new(file_system: Arc<F>, parking: Parking) -> Self {
        Dispatch {
            file_system,
            parking,
            no_open: false,
        }
    }

    /// Gives the result of `answer` to `finish`: now, or from a task.
    fn send<T, Finish>(&self, about: About, answer: Answer<T, F::Error>, finish: Finish)
    where
        T: Send + 'static,
        Finish: FnOnce(&F, Result<T, Errno>) + Send + 'static,
    {
        match answer {
            Answer::Now(result) => {
                let result = told(&*self.file_system, about, result);
                finish(&self.file_system, result);
            }
            Answer::Later(later) => {
                let file_system = self.file_system.clone();
                self.parking.park(later, about.pid, move |result| {
                    let result = told(&*file_system, about, result);
                    finish(&file_system, result);
                });
            }
            Answer::Elsewhere(start) => {
                let file_system = self.file_system.clone();
                start(Reply::new(move |result| {
                    let result = told(&*file_system, about, result);
                    finish(&file_system, result);
                }));
            }
        }
    }

    /// Sends an answer that says only whether it worked.
    fn send_empty(&self, about: About, answer: Answer<(), F::Error>, reply: ReplyEmpty) {
        self.send(about, answer, |_, result| match result {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        });
    }
}

/// Reports an error to the file system, and converts it to an errno.
fn told<F: FileSystem, T>(
    file_system: &F,
    about: About,
    result: Result<T, F::Error>,
) -> Result<T, Errno> {
    result.map_err(|error| {
        file_system.refused(about.operation, about.inode, &error);
        error.errno()
    })
}

impl<F: FileSystem> Filesystem for Dispatch<F> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let features = self.file_system.features();
        let granted = features.flags & config.capabilities();
        // Only flags that the kernel has are requested, so it does not refuse them.
        let _ = config.add_capabilities(granted);
        self.no_open = granted.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        let _ = config.set_max_write(features.max_request_bytes.max(4096));
        let read_ahead = features.max_read_ahead_bytes.max(4096);
        if let Err(most) = config.set_max_readahead(read_ahead) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(features.max_background.max(1));
        self.file_system.init(granted);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let answer = self
            .file_system
            .lookup(&caller(request), parent, name.as_bytes());
        self.send(about("lookup", parent, request), answer, |_, result| {
            replies::lookup(result, reply);
        });
    }

    fn forget(&self, _: &Request, inode: INodeNo, lookups: u64) {
        self.file_system.forget(inode, lookups);
    }

    fn getattr(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let answer = self.file_system.getattr(&caller(request), inode, handle);
        self.send(about("getattr", inode, request), answer, |_, result| {
            replies::attributes(result, reply);
        });
    }

    fn setattr(
        &self,
        request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = Changes {
            mode,
            uid,
            gid,
            size,
            atime: atime.map(replies::time),
            mtime: mtime.map(replies::time),
            ctime: ctime.map(replies::corrected),
            handle,
        };
        let answer = self.file_system.setattr(&caller(request), inode, &changes);
        self.send(about("setattr", inode, request), answer, |_, result| {
            replies::attributes(result, reply);
        });
    }

    fn readlink(&self, request: &Request, inode: INodeNo, reply: ReplyData) {
        let answer = self.file_system.readlink(&caller(request), inode);
        self.send(
            about("readlink", inode, request),
            answer,
            |_, result| match result {
                Ok(target) => reply.data(&target),
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let new = new_name(parent, name, mode, umask);
        let answer = self.file_system.mknod(&caller(request), &new, rdev);
        self.send(about("mknod", parent, request), answer, |_, result| {
            replies::entry(result, reply);
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let new = new_name(parent, name, mode, umask);
        let answer = self.file_system.mkdir(&caller(request), &new);
        self.send(about("mkdir", parent, request), answer, |_, result| {
            replies::entry(result, reply);
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let answer = self
            .file_system
            .unlink(&caller(request), parent, name.as_bytes());
        self.send_empty(about("unlink", parent, request), answer, reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let answer = self
            .file_system
            .rmdir(&caller(request), parent, name.as_bytes());
        self.send_empty(about("rmdir", parent, request), answer, reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let target = target.as_os_str().as_bytes();
        let answer = self
            .file_system
            .symlink(&caller(request), parent, name.as_bytes(), target);
        self.send(about("symlink", parent, request), answer, |_, result| {
            replies::entry(result, reply);
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let rename = Rename {
            parent,
            name: name.as_bytes(),
            new_parent,
            new_name: new_name.as_bytes(),
            flags,
        };
        let answer = self.file_system.rename(&caller(request), &rename);
        self.send_empty(about("rename", parent, request), answer, reply);
    }

    fn link(
        &self,
        request: &Request,
        inode: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let new_name = new_name.as_bytes();
        let answer = self
            .file_system
            .link(&caller(request), inode, new_parent, new_name);
        self.send(about("link", inode, request), answer, |_, result| {
            replies::entry(result, reply);
        });
    }

    fn open(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.no_open {
            // After one such answer the kernel opens files by itself, and keeps their pages.
            return reply.error(Errno::ENOSYS);
        }
        let answer = self.file_system.open(&caller(request), inode, flags);
        self.send(about("open", inode, request), answer, |_, result| {
            replies::opened(result, reply);
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let new = new_name(parent, name, mode, umask);
        let answer = self
            .file_system
            .create(&caller(request), &new, OpenFlags(flags));
        self.send(about("create", parent, request), answer, |_, result| {
            replies::created(result, reply);
        });
    }

    fn read(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = Read {
            inode,
            handle,
            offset,
            size,
            flags,
            owner,
        };
        let answer = self.file_system.read(&caller(request), &read);
        self.send(about("read", inode, request), answer, |_, result| {
            replies::data(result, reply);
        });
    }

    fn write(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let write = Write {
            inode,
            handle,
            offset,
            data,
            flags,
            from_page_cache: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
            kill_privileges: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
            owner,
        };
        let answer = self.file_system.write(&caller(request), &write);
        self.send(about("write", inode, request), answer, |_, result| {
            replies::written(result, reply);
        });
    }

    fn flush(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let answer = self
            .file_system
            .flush(&caller(request), inode, handle, owner);
        self.send_empty(about("flush", inode, request), answer, reply);
    }

    fn release(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        flags: OpenFlags,
        flock_owner: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let release = Release {
            inode,
            handle,
            flags,
            flock_owner,
        };
        let answer = self.file_system.release(&caller(request), &release);
        self.send_empty(about("release", inode, request), answer, reply);
    }

    fn fsync(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let by = caller(request);
        let answer = self.file_system.fsync(&by, inode, handle, data_only);
        self.send_empty(about("fsync", inode, request), answer, reply);
    }

    fn opendir(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let answer = self.file_system.opendir(&caller(request), inode, flags);
        self.send(about("opendir", inode, request), answer, |_, result| {
            replies::opened(result, reply);
        });
    }

    fn readdir(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let by = caller(request);
        let answer = self.file_system.readdir(&by, inode, handle, offset);
        let about = about("readdir", inode, request);
        self.send(about, answer, |file_system, result| match result {
            Ok(listing) => {
                listing.names(file_system, &mut |next, name, inode, kind| {
                    reply.add(inode, next, kind, OsStr::from_bytes(name))
                });
                reply.ok();
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn readdirplus(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let by = caller(request);
        let answer = self.file_system.readdir(&by, inode, handle, offset);
        let about = about("readdirplus", inode, request);
        self.send(about, answer, |file_system, result| match result {
            Ok(listing) => {
                listing.entries(file_system, &mut |next, name, entry| {
                    replies::add_entry(&mut reply, next, name, entry)
                });
                reply.ok();
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn releasedir(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let answer = self.file_system.releasedir(&caller(request), inode, handle);
        self.send_empty(about("releasedir", inode, request), answer, reply);
    }

    fn fsyncdir(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let by = caller(request);
        let answer = self.file_system.fsyncdir(&by, inode, handle, data_only);
        self.send_empty(about("fsyncdir", inode, request), answer, reply);
    }

    fn statfs(&self, request: &Request, inode: INodeNo, reply: ReplyStatfs) {
        let answer = self.file_system.statfs(&caller(request), inode);
        self.send(about("statfs", inode, request), answer, |_, result| {
            replies::statistics(result, reply);
        });
    }

    fn getxattr(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let answer = self
            .file_system
            .getxattr(&caller(request), inode, name.as_bytes());
        let about = about("getxattr", inode, request);
        self.send(about, answer, move |_, result| {
            replies::xattr(result.as_deref(), size, reply);
        });
    }

    fn listxattr(&self, request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        let answer = self.file_system.listxattr(&caller(request), inode);
        let about = about("listxattr", inode, request);
        self.send(about, answer, move |_, result| {
            replies::xattr(result.as_deref(), size, reply);
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let how = match flags {
            libc::XATTR_CREATE => SetXattr::Create,
            libc::XATTR_REPLACE => SetXattr::Replace,
            0 => SetXattr::CreateOrReplace,
            _ => return reply.error(Errno::EINVAL),
        };
        let name = name.as_bytes();
        let answer = self
            .file_system
            .setxattr(&caller(request), inode, name, value, how);
        self.send_empty(about("setxattr", inode, request), answer, reply);
    }

    fn removexattr(&self, request: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let answer = self
            .file_system
            .removexattr(&caller(request), inode, name.as_bytes());
        self.send_empty(about("removexattr", inode, request), answer, reply);
    }

    fn access(&self, request: &Request, inode: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let answer = self
            .file_system
            .access(&caller(request), inode, mask.bits());
        self.send_empty(about("access", inode, request), answer, reply);
    }

    fn getlk(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let Some(kind) = replies::lock_kind(kind) else {
            return reply.error(Errno::EINVAL);
        };
        let lock = LockRequest {
            inode,
            handle,
            owner,
            range: start..=end,
            kind,
            pid,
        };
        let answer = self.file_system.getlk(&caller(request), &lock);
        self.send(about("getlk", inode, request), answer, |_, result| {
            replies::lock(result, reply);
        });
    }

    fn setlk(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        wait: bool,
        reply: ReplyEmpty,
    ) {
        let Some(kind) = replies::lock_kind(kind) else {
            return reply.error(Errno::EINVAL);
        };
        let lock = LockRequest {
            inode,
            handle,
            owner,
            range: start..=end,
            kind,
            pid,
        };
        let answer = self.file_system.setlk(&caller(request), &lock, wait);
        self.send_empty(about("setlk", inode, request), answer, reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(what) = replies::allocation(mode) else {
            return reply.error(Errno::EOPNOTSUPP);
        };
        let range = match offset.checked_add(length) {
            Some(end) if length > 0 => offset..end,
            _ => return reply.error(Errno::EINVAL),
        };
        let by = caller(request);
        let answer = self.file_system.fallocate(&by, inode, handle, range, what);
        self.send_empty(about("fallocate", inode, request), answer, reply);
    }

    fn lseek(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let Some(what) = replies::seek(whence) else {
            return reply.error(Errno::EINVAL);
        };
        let by = caller(request);
        let answer = self.file_system.lseek(&by, inode, handle, offset, what);
        self.send(
            about("lseek", inode, request),
            answer,
            |_, result| match result {
                Ok(offset) => reply.offset(offset),
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: INodeNo,
        from_handle: FileHandle,
        from_offset: u64,
        to: INodeNo,
        to_handle: FileHandle,
        to_offset: u64,
        len: u64,
        flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let copy = CopyRange {
            from,
            from_handle,
            from_offset,
            to,
            to_handle,
            to_offset,
            len,
        };
        let answer = self.file_system.copy_file_range(&caller(request), &copy);
        let about = about("copy_file_range", from, request);
        self.send(about, answer, |_, result| replies::written(result, reply));
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Error::NoSuchIoctl.errno());
    }
}

fn new_name(parent: INodeNo, name: &OsStr, mode: u32, umask: u32) -> NewName<'_> {
    NewName {
        parent,
        name: name.as_bytes(),
        mode,
        umask,
    }
}
