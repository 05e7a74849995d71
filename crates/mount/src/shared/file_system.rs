//! A shared volume as a writable [`FileSystem`]. What each request means is in `names` and `files`.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use trust::inode::{Content, MAX_NAME_BYTES, MAX_TARGET_BYTES};

use super::core::{Core, FOR_EVER};
use super::failure::Failure;
use super::listing::Entries;
use super::names::content_of;
use crate::attributes;
use crate::fuse::request::{
    Allocation, Attributes, Caller, Changes, CopyRange, Data, Entry, Features, Lock, LockKind,
    LockRequest, Lookup, NewName, Opened, Read, Release, Rename, SetXattr, Statistics, Write,
};
use crate::fuse::{
    AddEntry, AddName, Answer, Error, FileHandle, FileSystem, INodeNo, InitFlags, Listing,
    LockOwner, OpenFlags,
};

/// A mounted shared volume.
pub struct Shared {
    /// What the requests share.
    pub core: Arc<Core>,
    /// Locks of programs reach other devices.
    pub locks_for_all: bool,
}

impl Shared {
    /// Answers later, at most after the deadline; at once if nothing must be waited for.
    fn later<T, Work>(&self, work: impl FnOnce(Arc<Core>) -> Work) -> Answer<T, Failure>
    where
        Work: Future<Output = Result<T, Failure>> + Send + 'static,
        T: Send + 'static,
    {
        let mut work = Box::pin(work(self.core.clone()));
        // A task costs more than most questions.
        let _runtime = self.core.runtime.enter();
        match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Answer::Now(result),
            Poll::Pending => Answer::later(self.core.until(), work),
        }
    }

    fn made(&self, new: &NewName<'_>, content: Content) -> Answer<Entry, Failure> {
        let (parent, name) = (new.parent.0, Bytes::copy_from_slice(new.name));
        let mode = new.mode;
        self.later(move |core| async move {
            let (node, until) = core.make(parent, &name, (mode, content)).await?;
            Ok(core.entry(&node, until))
        })
    }
}

/// The offset of a write; None: the end of the file, which the kernel may not know.
fn offset(write: &Write<'_>) -> Option<u64> {
    let appends = write.flags.0 & libc::O_APPEND != 0 && !write.from_page_cache;
    (!appends).then_some(write.offset)
}

impl FileSystem for Shared {
    type Error = Failure;
    type Listing = Entries;

    fn features(&self) -> Features {
        let mut features = Features::default();
        // Listings have no attributes yet.
        let plus = InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO;
        features.flags.remove(plus | InitFlags::FUSE_CACHE_SYMLINKS);
        // The kernel drops the pages of a file whose time or length is another.
        features.flags |= InitFlags::FUSE_ATOMIC_O_TRUNC | InitFlags::FUSE_AUTO_INVAL_DATA;
        if self.locks_for_all {
            features.flags |= InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS;
        }
        features
    }

    fn refused(&self, operation: &'static str, inode: INodeNo, failure: &Failure) {
        let path = || match self.core.nodes.get(inode.0) {
            Some(node) => node.shown(),
            None => format!("file number {}", inode.0),
        };
        failure.log(operation, path);
    }

    fn lookup(&self, _: &Caller, parent: INodeNo, name: &[u8]) -> Answer<Lookup, Failure> {
        let name = Bytes::copy_from_slice(name);
        self.later(move |core| async move { core.lookup(parent.0, &name).await })
    }

    fn forget(&self, inode: INodeNo, lookups: u64) {
        self.core.nodes.forget(inode.0, lookups);
    }

    fn getattr(
        &self,
        _: &Caller,
        inode: INodeNo,
        _: Option<FileHandle>,
    ) -> Answer<Attributes, Failure> {
        self.later(move |core| async move { core.getattr(inode.0).await })
    }

    fn setattr(
        &self,
        _: &Caller,
        inode: INodeNo,
        changes: &Changes,
    ) -> Answer<Attributes, Failure> {
        let changes = *changes;
        self.later(move |core| async move { core.setattr(inode.0, &changes).await })
    }

    fn readlink(&self, _: &Caller, inode: INodeNo) -> Answer<Bytes, Failure> {
        self.core.target(inode.0).into()
    }

    fn mknod(&self, _: &Caller, new: &NewName<'_>, _: u32) -> Answer<Entry, Failure> {
        match content_of(new.mode) {
            Ok(content) => self.made(new, content),
            Err(failure) => Answer::Now(Err(failure)),
        }
    }

    fn mkdir(&self, _: &Caller, new: &NewName<'_>) -> Answer<Entry, Failure> {
        let (map, opaque) = (None, false);
        self.made(new, Content::Directory { map, opaque })
    }

    fn symlink(
        &self,
        _: &Caller,
        parent: INodeNo,
        name: &[u8],
        target: &[u8],
    ) -> Answer<Entry, Failure> {
        if target.len() > MAX_TARGET_BYTES {
            return Error::NameTooLong.into();
        }
        let new = NewName {
            parent,
            name,
            mode: 0o777,
            umask: 0,
        };
        self.made(&new, Content::Symlink(Bytes::copy_from_slice(target)))
    }

    fn link(
        &self,
        _: &Caller,
        inode: INodeNo,
        new_parent: INodeNo,
        new_name: &[u8],
    ) -> Answer<Entry, Failure> {
        let name = Bytes::copy_from_slice(new_name);
        self.later(move |core| async move { core.link(inode.0, new_parent.0, &name).await })
    }

    fn unlink(&self, _: &Caller, parent: INodeNo, name: &[u8]) -> Answer<(), Failure> {
        let name = Bytes::copy_from_slice(name);
        self.later(move |core| async move { core.remove(parent.0, &name, false).await })
    }

    fn rmdir(&self, _: &Caller, parent: INodeNo, name: &[u8]) -> Answer<(), Failure> {
        let name = Bytes::copy_from_slice(name);
        self.later(move |core| async move { core.remove(parent.0, &name, true).await })
    }

    fn rename(&self, _: &Caller, rename: &Rename<'_>) -> Answer<(), Failure> {
        let (parent, new_parent, flags) = (rename.parent.0, rename.new_parent.0, rename.flags);
        let name = Bytes::copy_from_slice(rename.name);
        let new_name = Bytes::copy_from_slice(rename.new_name);
        self.later(move |core| async move {
            core.rename((parent, &name), (new_parent, &new_name), flags)
                .await
        })
    }

    fn open(&self, by: &Caller, inode: INodeNo, flags: OpenFlags) -> Answer<Opened, Failure> {
        let thread = by.pid;
        self.later(move |core| async move {
            // No flags: pages that the kernel has may be of an older version.
            core.open(inode.0, flags.0, thread).await.map(Opened::new)
        })
    }

    fn create(
        &self,
        by: &Caller,
        new: &NewName<'_>,
        flags: OpenFlags,
    ) -> Answer<(Entry, Opened), Failure> {
        let (parent, name) = (new.parent.0, Bytes::copy_from_slice(new.name));
        let (mode, thread) = (new.mode, by.pid);
        self.later(move |core| async move {
            let made = core.create_and_open((parent, &name), mode, (flags.0, thread));
            let (node, handle, until) = made.await?;
            Ok((core.entry(&node, until), Opened::new(handle)))
        })
    }

    fn read(&self, _: &Caller, read: &Read) -> Answer<Data, Failure> {
        let (handle, offset, bytes) = (read.handle.0, read.offset, read.size as usize);
        self.later(move |core| async move { core.read(handle, offset, bytes).await })
    }

    fn write(&self, _: &Caller, write: &Write<'_>) -> Answer<u32, Failure> {
        let (handle, offset) = (write.handle.0, offset(write));
        match self.core.write_now(handle, offset, write.data) {
            Ok(Some(written)) => Answer::Now(Ok(written)),
            Err(failure) => Answer::Now(Err(failure)),
            Ok(None) => {
                let data = Bytes::copy_from_slice(write.data);
                self.later(move |core| async move { core.write(handle, offset, data).await })
            }
        }
    }

    fn flush(
        &self,
        _: &Caller,
        _: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
    ) -> Answer<(), Failure> {
        self.later(move |core| async move { core.flush(handle.0, owner).await })
    }

    fn getlk(&self, _: &Caller, lock: &LockRequest) -> Answer<Lock, Failure> {
        let lock = lock.clone();
        self.later(move |core| core.get_lock(lock))
    }

    fn setlk(&self, _: &Caller, lock: &LockRequest, wait: bool) -> Answer<(), Failure> {
        let lock = lock.clone();
        match wait && lock.kind != LockKind::Unlock {
            true => {
                let core = self.core.clone();
                Answer::wait(
                    Instant::now() + FOR_EVER,
                    Error::NoLock,
                    core.set_lock(lock, true),
                )
            }
            false => self.later(move |core| core.set_lock(lock, false)),
        }
    }

    fn fsync(&self, _: &Caller, _: INodeNo, handle: FileHandle, _: bool) -> Answer<(), Failure> {
        self.later(move |core| async move { core.sync(handle.0).await })
    }

    fn release(&self, _: &Caller, release: &Release) -> Answer<(), Failure> {
        self.core.close(release.handle.0);
        Answer::Now(Ok(()))
    }

    fn opendir(&self, _: &Caller, inode: INodeNo, _: OpenFlags) -> Answer<Opened, Failure> {
        self.later(move |core| async move { core.list(inode.0).await.map(Opened::new) })
    }

    fn readdir(
        &self,
        _: &Caller,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
    ) -> Answer<Entries, Failure> {
        self.later(move |core| async move { core.names_from(handle.0, offset).await })
    }

    fn releasedir(&self, _: &Caller, _: INodeNo, handle: FileHandle) -> Answer<(), Failure> {
        self.core.close_directory(handle.0);
        Answer::Now(Ok(()))
    }

    fn statfs(&self, _: &Caller, _: INodeNo) -> Answer<Statistics, Failure> {
        self.later(|core| async move {
            let (blocks, free) = core.room().await;
            Ok(Statistics {
                blocks,
                free,
                available: free,
                files: 0,
                free_files: 0,
                best_bytes: attributes::BLOCK_BYTES,
                longest_name: MAX_NAME_BYTES as u32,
                unit_bytes: attributes::STATFS_UNIT_BYTES,
            })
        })
    }

    fn getxattr(&self, _: &Caller, inode: INodeNo, name: &[u8]) -> Answer<Bytes, Failure> {
        let name = Bytes::copy_from_slice(name);
        self.later(move |core| async move { core.xattr(inode.0, &name).await })
    }

    fn listxattr(&self, _: &Caller, inode: INodeNo) -> Answer<Vec<u8>, Failure> {
        self.later(move |core| async move { core.xattr_names(inode.0).await })
    }

    fn setxattr(
        &self,
        _: &Caller,
        inode: INodeNo,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Answer<(), Failure> {
        let (name, value) = (Bytes::copy_from_slice(name), Bytes::copy_from_slice(value));
        self.later(
            move |core| async move { core.set_xattr(inode.0, &name, Some(&value), how).await },
        )
    }

    fn removexattr(&self, _: &Caller, inode: INodeNo, name: &[u8]) -> Answer<(), Failure> {
        let name = Bytes::copy_from_slice(name);
        self.later(move |core| async move {
            core.set_xattr(inode.0, &name, None, SetXattr::Replace)
                .await
        })
    }

    /// The kernel copies by reading and writing.
    fn copy_file_range(&self, _: &Caller, _: &CopyRange) -> Answer<u32, Failure> {
        Error::NotImplemented.into()
    }

    fn fallocate(
        &self,
        _: &Caller,
        _: INodeNo,
        handle: FileHandle,
        range: Range<u64>,
        what: Allocation,
    ) -> Answer<(), Failure> {
        self.later(move |core| async move {
            match what {
                Allocation::Allocate { keep_size: true } => Ok(()),
                Allocation::Allocate { keep_size: false } => {
                    core.allocate(handle.0, range.end).await
                }
                Allocation::PunchHole => core.zero(handle.0, range, true).await,
                Allocation::ZeroRange { keep_size } => core.zero(handle.0, range, keep_size).await,
            }
        })
    }
}

impl Listing<Shared> for Entries {
    fn names(self, file_system: &Shared, add: AddName<'_>) {
        self.fill(&file_system.core.nodes, add);
    }

    /// Not asked for.
    fn entries(self, _: &Shared, _: AddEntry<'_>) {}
}
