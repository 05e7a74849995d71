//! The kernel's requests, by `fuser`: decides where each is answered, and puts answers into its form.
//!
//! A request that can be answered from memory (or a local repository) is answered on the thread that
//! read it. One that must wait for a network goes to the runtime with a deadline, so that no thread
//! of the mount ever waits and every caller is free at the latest at the deadline (*Laws*, 4).

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use futures_util::FutureExt;
use publish::Fetch;
use tokio::runtime::Handle as Runtime;
use trust::inode::{FileKind, MAX_NAME_BYTES};

use crate::published::attributes;
use crate::published::failure::Failure;
use crate::published::listing::{Inside, entered, listing};
use crate::published::operations::{Core, Entry};
use crate::published::seeking::{Sought, seek};

/// Largest read, bytes, and with it the most that the kernel asks for at once.
const MAX_READ_BYTES: u32 = 1 << 20;
/// Reads ahead of need that may be under way at once.
const MAX_BACKGROUND: u16 = 64;
/// What a deadline may be exceeded by before a request is answered without its operation.
const GRACE: Duration = Duration::from_millis(200);

/// The file system as `fuser` drives it.
#[derive(Debug)]
pub struct Bridge {
    core: Arc<Core>,
    runtime: Runtime,
    read_ahead_bytes: u32,
    /// Whether the kernel can do without OPEN.
    no_open: bool,
}

impl Bridge {
    /// Serves `core`; what must wait, waits on `runtime`.
    pub fn new(core: Arc<Core>, runtime: Runtime, read_ahead_bytes: u32) -> Self {
        Bridge {
            core,
            runtime,
            read_ahead_bytes,
            no_open: false,
        }
    }

    /// Answers now if that can be done without waiting, else from a task with a deadline.
    fn answer<T, Make, Work, Finish>(&self, about: About, make: Make, finish: Finish)
    where
        Make: Fn(Arc<Core>, Fetch) -> Work + Send + 'static,
        Work: Future<Output = Result<T, Failure>> + Send + 'static,
        Finish: FnOnce(&Core, Result<T, Errno>) + Send + 'static,
        T: Send,
    {
        match make(self.core.clone(), Fetch::Cached).now_or_never() {
            None => {}
            Some(Err(failure)) if failure.must_wait() => {}
            Some(result) => return finish(&self.core, about.tell(&self.core, result)),
        }
        let core = self.core.clone();
        self.runtime.spawn(async move {
            let deadline = core.volume.deadline();
            let work = make(core.clone(), Fetch::Until(deadline));
            let result = match tokio::time::timeout_at((deadline + GRACE).into(), work).await {
                Ok(result) => result,
                Err(_) => Err(Failure::late()),
            };
            finish(&core, about.tell(&core, result));
        });
    }
}

/// Gives `use_them` the pieces as one slice. `fuser` takes no more, and memory that is new for each
/// reply would be cleared by the kernel, page by page: each thread keeps a buffer.
fn joined(pieces: &[Bytes], use_them: impl FnOnce(&[u8])) {
    thread_local! {
        static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    BUFFER.with_borrow_mut(|buffer| {
        buffer.clear();
        buffer.reserve(pieces.iter().map(Bytes::len).sum());
        for piece in pieces {
            buffer.extend_from_slice(piece);
        }
        use_them(buffer);
    });
}

/// What a request is about, for logs.
#[derive(Debug, Clone, Copy)]
struct About(&'static str, u64);

impl About {
    fn tell<T>(self, core: &Core, result: Result<T, Failure>) -> Result<T, Errno> {
        result.map_err(|failure| {
            core.faults.count(&failure);
            failure.log(self.0, || core.path(self.1));
            failure.errno()
        })
    }
}

impl Filesystem for Bridge {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_CACHE_SYMLINKS,
        ];
        for flag in wanted {
            // Each is a gain where the kernel has it, and none is needed.
            let _ = config.add_capabilities(flag);
        }
        self.no_open = config
            .add_capabilities(InitFlags::FUSE_NO_OPEN_SUPPORT)
            .is_ok();
        let _ = config.set_max_write(MAX_READ_BYTES);
        if let Err(most) = config.set_max_readahead(self.read_ahead_bytes.max(4096)) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = Bytes::copy_from_slice(name.as_bytes());
        self.answer(
            About("lookup", parent.0),
            move |core, how| {
                let name = name.clone();
                async move { core.lookup(parent.0, &name, how).await }
            },
            |_, result| match result {
                Ok(Entry { attributes, ttl }) => {
                    reply.entry(&ttl, &attributes.unwrap_or(ABSENT), Generation(0));
                }
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.core.nodes.forget(number.0, lookups);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.answer(
            About("getattr", number.0),
            move |core, how| async move { core.attributes(number.0, how).await },
            |_, result| match result {
                Ok((attributes, ttl)) => reply.attr(&ttl, &attributes),
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        let result = self.core.target(number.0);
        match About("readlink", number.0).tell(&self.core, result) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if self.no_open {
            // Told once, the kernel opens by itself from then on, and keeps pages.
            reply.error(Errno::ENOSYS);
        } else {
            reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
        }
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.answer(
            About("read", number.0),
            move |core, how| async move { core.read(number.0, offset, size as usize, how).await },
            |_, result| match result.as_deref() {
                Ok([]) => reply.data(&[]),
                Ok([one]) => reply.data(one),
                Ok(pieces) => joined(pieces, |bytes| reply.data(bytes)),
                Err(errno) => reply.error(*errno),
            },
        );
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Told once, the kernel no longer asks: there is nothing to write.
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn lseek(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        // The kernel asks for nothing else; all other seeking it does by itself.
        let what = match whence {
            libc::SEEK_DATA => Sought::Data,
            libc::SEEK_HOLE => Sought::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        self.answer(
            About("lseek", number.0),
            move |core, how| async move { seek(&core, number.0, offset, what, how).await },
            |_, result| match result {
                Ok(offset) => reply.offset(offset),
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.answer(
            About("opendir", number.0),
            move |core, how| async move { core.open_directory(number.0, how).await },
            // No flags: the kernel must not keep a listing beyond this one open.
            |_, result| match result {
                Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.answer(
            About("readdir", number.0),
            move |core, how| async move { listing(&core, handle.0, offset, how).await },
            |core, result| match result {
                Ok(listing) => {
                    listing.fill(core, |core, directory, offset, name, inode| {
                        let (number, kind) = match inode {
                            Inside::Child(inode) => {
                                let node = &directory.node;
                                let number = core.nodes.number_of(node, name, inode);
                                (number, inode.kind())
                            }
                            Inside::Known(number) => (*number, FileKind::Directory),
                        };
                        let name = OsStr::from_bytes(name);
                        reply.add(INodeNo(number), offset, attributes::kind(kind), name)
                    });
                    reply.ok();
                }
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn readdirplus(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.answer(
            About("readdirplus", number.0),
            move |core, how| async move { listing(&core, handle.0, offset, how).await },
            |core, result| match result {
                Ok(listing) => {
                    listing.fill(core, |core, directory, offset, name, inode| {
                        let (attributes, ttl) = match inode {
                            Inside::Child(inode) => entered(core, directory, name, inode),
                            Inside::Known(number) => {
                                let of = attributes::of(&directory.inode, *number, core.owners());
                                (of, Duration::ZERO)
                            }
                        };
                        let number = attributes.ino;
                        let os_name = OsStr::from_bytes(name);
                        let full =
                            reply.add(number, offset, os_name, &ttl, &attributes, Generation(0));
                        if full && matches!(inode, Inside::Child(_)) {
                            core.nodes.forget(number.0, 1);
                        }
                        full
                    });
                    reply.ok();
                }
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.core.close_directory(handle.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        // What the publisher signed: only a walk of the whole tree would tell whether it is so. Nothing
        // is free, nothing can be made.
        let totals = self.core.view().snapshot.record().totals;
        let unit = attributes::STATFS_UNIT_BYTES;
        let blocks = totals.bytes.div_ceil(u64::from(unit));
        let longest_name = MAX_NAME_BYTES as u32;
        let best = attributes::BLOCK_BYTES;
        reply.statfs(blocks, 0, 0, totals.entries(), 0, best, longest_name, unit);
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = Bytes::copy_from_slice(name.as_bytes());
        self.answer(
            About("getxattr", number.0),
            move |core, how| {
                let name = name.clone();
                async move { core.xattr(number.0, &name, how).await }
            },
            move |_, result| xattr_reply(result.as_deref(), size, reply),
        );
    }

    fn listxattr(&self, _: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        self.answer(
            About("listxattr", number.0),
            move |core, how| async move { core.xattr_names(number.0, how).await },
            move |_, result| xattr_reply(result.as_deref(), size, reply),
        );
    }

    // All that would write is refused alike. The kernel refuses most of it by itself, because the
    // mount is read-only.

    fn setattr(
        &self,
        _: &Request,
        _: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.error(Errno::EROFS);
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }

    fn rmdir(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }

    fn symlink(&self, _: &Request, _: INodeNo, _: &OsStr, _: &std::path::Path, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: INodeNo,
        _: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EROFS);
    }

    fn link(&self, _: &Request, _: INodeNo, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::EROFS);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::EROFS);
    }

    fn setxattr(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: &[u8],
        _: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EROFS);
    }

    fn removexattr(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EROFS);
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::EROFS);
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
        reply.error(Errno::ENOTTY);
    }
}

/// The answer that says "not there, and you may remember it": number 0.
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

fn xattr_reply(result: Result<&[u8], &Errno>, size: u32, reply: ReplyXattr) {
    match result {
        Err(errno) => reply.error(*errno),
        // Linux bounds lists and values to 64 KiB when they are asked for.
        Ok(value) if value.len() > 64 << 10 => reply.error(Errno::E2BIG),
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(value),
    }
}
