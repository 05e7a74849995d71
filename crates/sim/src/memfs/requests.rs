//! The kernel's requests to the file system in memory: each takes the lock, does one operation of
//! `tree`, `content` or `locks`, and is answered at once. Only a blocking lock waits.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use mount::fuse::request::{
    Allocation, Attributes, Caller, Changes, CopyRange, Data, Entry, Features, Lock, LockKind,
    LockRequest, Lookup, NewName, Opened, Read, Release, Rename, Seek, SetXattr, Statistics, Write,
};
use mount::fuse::{
    AddEntry, AddName, Answer, Error, FileHandle, FileSystem, FileType, INodeNo, InitFlags,
    Listing, LockOwner, OpenFlags,
};

use super::MemFs;
use super::content::{Content, PAGE_BYTES};
use super::inode::Node;
use super::tree::{MAX_NAME_BYTES, Tree};

/// Most entries that are listed for one answer to READDIR; fewer fit into it.
const LISTED_AT_ONCE: usize = 1024;

impl FileSystem for MemFs {
    type Error = Error;
    type Listing = Entries;

    fn features(&self) -> Features {
        let mut features = Features::default();
        features.flags |= InitFlags::FUSE_POSIX_LOCKS
            | InitFlags::FUSE_FLOCK_LOCKS
            | InitFlags::FUSE_ATOMIC_O_TRUNC;
        if self.options.writeback_cache {
            features.flags |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        features
    }

    fn lookup(&self, _: &Caller, parent: INodeNo, name: &[u8]) -> Answer<Lookup, Error> {
        let mut state = self.lock();
        let found = state.tree.lookup(parent.0, name);
        found
            .and_then(|found| match found {
                Some(inode) => self.entry(&mut state, inode).map(Lookup::Found),
                None => Ok(Lookup::Absent(self.options.ttl)),
            })
            .into()
    }

    fn forget(&self, inode: INodeNo, lookups: u64) {
        self.lock().tree.let_go(inode.0, lookups, 0);
    }

    fn getattr(
        &self,
        _: &Caller,
        inode: INodeNo,
        _: Option<FileHandle>,
    ) -> Answer<Attributes, Error> {
        let state = self.lock();
        let found = state.tree.get(inode.0);
        found
            .map(|found| self.attributes(found.attributes(inode.0)))
            .into()
    }

    fn setattr(&self, _: &Caller, inode: INodeNo, changes: &Changes) -> Answer<Attributes, Error> {
        let mut state = self.lock();
        let changed = state.tree.set_attributes(inode.0, changes);
        changed
            .and_then(|()| state.tree.get(inode.0))
            .map(|found| self.attributes(found.attributes(inode.0)))
            .into()
    }

    fn readlink(&self, _: &Caller, inode: INodeNo) -> Answer<Bytes, Error> {
        let state = self.lock();
        let found = state.tree.get(inode.0);
        found
            .and_then(|found| match &found.node {
                Node::Symlink(target) => Ok(target.clone()),
                _ => Err(Error::InvalidArgument),
            })
            .into()
    }

    fn mknod(&self, by: &Caller, new: &NewName<'_>, rdev: u32) -> Answer<Entry, Error> {
        let node = match new.mode & libc::S_IFMT {
            libc::S_IFREG | 0 => Ok(Node::File(Content::default())),
            libc::S_IFIFO => Ok(Node::Special(FileType::NamedPipe)),
            libc::S_IFSOCK => Ok(Node::Special(FileType::Socket)),
            libc::S_IFCHR => Ok(Node::Special(FileType::CharDevice)),
            libc::S_IFBLK => Ok(Node::Special(FileType::BlockDevice)),
            _ => Err(Error::InvalidArgument),
        };
        self.make(by, new, node, rdev).into()
    }

    fn mkdir(&self, by: &Caller, new: &NewName<'_>) -> Answer<Entry, Error> {
        let node = Tree::new_directory(new.parent.0);
        self.make(by, new, Ok(node), 0).into()
    }

    fn symlink(
        &self,
        by: &Caller,
        parent: INodeNo,
        name: &[u8],
        target: &[u8],
    ) -> Answer<Entry, Error> {
        let new = NewName {
            parent,
            name,
            mode: 0o777,
            umask: 0,
        };
        self.make(by, &new, Tree::new_symlink(target), 0).into()
    }

    fn link(
        &self,
        _: &Caller,
        inode: INodeNo,
        new_parent: INodeNo,
        new_name: &[u8],
    ) -> Answer<Entry, Error> {
        let mut state = self.lock();
        let linked = state.tree.link(inode.0, new_parent.0, new_name);
        linked.and_then(|()| self.entry(&mut state, inode.0)).into()
    }

    fn unlink(&self, _: &Caller, parent: INodeNo, name: &[u8]) -> Answer<(), Error> {
        self.lock().tree.unlink(parent.0, name).into()
    }

    fn rmdir(&self, _: &Caller, parent: INodeNo, name: &[u8]) -> Answer<(), Error> {
        self.lock().tree.rmdir(parent.0, name).into()
    }

    fn rename(&self, _: &Caller, rename: &Rename<'_>) -> Answer<(), Error> {
        self.lock().tree.rename(rename).into()
    }

    fn open(&self, _: &Caller, inode: INodeNo, flags: OpenFlags) -> Answer<Opened, Error> {
        let mut state = self.lock();
        let truncated = if flags.0 & libc::O_TRUNC != 0 {
            let changes = Changes {
                size: Some(0),
                ..Changes::default()
            };
            state.tree.set_attributes(inode.0, &changes)
        } else {
            Ok(())
        };
        truncated
            .and_then(|()| self.open_file(&mut state, inode.0))
            .into()
    }

    fn create(
        &self,
        by: &Caller,
        new: &NewName<'_>,
        flags: OpenFlags,
    ) -> Answer<(Entry, Opened), Error> {
        // The kernel looked the name up, but another process may have made it since.
        let there = self.lock().tree.lookup(new.parent.0, new.name);
        let entry = match there {
            Ok(Some(inode)) if flags.0 & libc::O_EXCL == 0 => self.entry(&mut self.lock(), inode),
            Ok(_) => self.make(by, new, Ok(Node::File(Content::default())), 0),
            Err(error) => Err(error),
        };
        entry
            .and_then(|entry| {
                let opened = self.open_file(&mut self.lock(), entry.attributes.ino.0)?;
                Ok((entry, opened))
            })
            .into()
    }

    fn read(&self, _: &Caller, read: &Read) -> Answer<Data, Error> {
        let state = self.lock();
        let inode = state.opened(read.handle, read.inode);
        let content = inode.and_then(|inode| state.tree.content(inode));
        content
            .map(|content| {
                let bytes = content.read(read.offset, u64::from(read.size));
                vec![Bytes::from(bytes)]
            })
            .into()
    }

    fn write(&self, _: &Caller, write: &Write<'_>) -> Answer<u32, Error> {
        self.write_now(write).into()
    }

    fn flush(
        &self,
        _: &Caller,
        inode: INodeNo,
        _: FileHandle,
        owner: LockOwner,
    ) -> Answer<(), Error> {
        self.release_locks(&mut self.lock(), inode.0, owner);
        Answer::Now(Ok(()))
    }

    fn fsync(&self, _: &Caller, _: INodeNo, _: FileHandle, _: bool) -> Answer<(), Error> {
        self.shared.fsyncs.fetch_add(1, Ordering::Relaxed);
        Answer::Now(Ok(()))
    }

    fn release(&self, _: &Caller, release: &Release) -> Answer<(), Error> {
        let mut state = self.lock();
        if let Some(owner) = release.flock_owner {
            self.release_locks(&mut state, release.inode.0, owner);
        }
        state.close(release.handle).into()
    }

    fn opendir(&self, _: &Caller, inode: INodeNo, _: OpenFlags) -> Answer<Opened, Error> {
        self.lock().open(inode.0).into()
    }

    fn readdir(
        &self,
        _: &Caller,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
    ) -> Answer<Entries, Error> {
        let state = self.lock();
        let listed = state.tree.list(inode.0, offset, LISTED_AT_ONCE);
        listed.map(Entries).into()
    }

    fn releasedir(&self, _: &Caller, _: INodeNo, handle: FileHandle) -> Answer<(), Error> {
        self.lock().close(handle).into()
    }

    fn statfs(&self, _: &Caller, _: INodeNo) -> Answer<Statistics, Error> {
        let state = self.lock();
        let (blocks, free) = state.tree.pages();
        Answer::Now(Ok(Statistics {
            blocks,
            free,
            available: free,
            files: state.tree.count() as u64,
            free_files: u64::from(u32::MAX),
            best_bytes: PAGE_BYTES as u32,
            longest_name: MAX_NAME_BYTES as u32,
            unit_bytes: PAGE_BYTES as u32,
        }))
    }

    fn getxattr(&self, _: &Caller, inode: INodeNo, name: &[u8]) -> Answer<Bytes, Error> {
        let state = self.lock();
        let found = state.tree.get(inode.0);
        found.and_then(|found| found.xattr(name)).into()
    }

    fn listxattr(&self, _: &Caller, inode: INodeNo) -> Answer<Vec<u8>, Error> {
        let state = self.lock();
        state
            .tree
            .get(inode.0)
            .map(|found| found.xattr_names())
            .into()
    }

    fn setxattr(
        &self,
        _: &Caller,
        inode: INodeNo,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Answer<(), Error> {
        let mut state = self.lock();
        let found = state.tree.get_mut(inode.0);
        found
            .and_then(|found| found.set_xattr(name, value, how))
            .into()
    }

    fn removexattr(&self, _: &Caller, inode: INodeNo, name: &[u8]) -> Answer<(), Error> {
        let mut state = self.lock();
        let found = state.tree.get_mut(inode.0);
        found.and_then(|found| found.remove_xattr(name)).into()
    }

    fn getlk(&self, _: &Caller, lock: &LockRequest) -> Answer<Lock, Error> {
        let free = || Lock {
            range: lock.range.clone(),
            kind: LockKind::Unlock,
            pid: 0,
        };
        Answer::Now(Ok(self.lock().locks.conflict(lock).unwrap_or_else(free)))
    }

    fn setlk(&self, _: &Caller, lock: &LockRequest, wait: bool) -> Answer<(), Error> {
        if self.lock().locks.set(lock) {
            self.shared.unlocked.notify_waiters();
            Answer::Now(Ok(()))
        } else if wait {
            self.wait_for_lock(lock)
        } else {
            Error::WouldBlock.into()
        }
    }

    fn fallocate(
        &self,
        _: &Caller,
        inode: INodeNo,
        handle: FileHandle,
        range: std::ops::Range<u64>,
        what: Allocation,
    ) -> Answer<(), Error> {
        let mut state = self.lock();
        let takes_space = match what {
            Allocation::PunchHole => 0..0,
            _ => range.clone(),
        };
        let opened = state.opened(handle, inode);
        opened
            .and_then(|inode| {
                state
                    .tree
                    .change(inode, takes_space, |content| match what {
                        Allocation::Allocate { keep_size } => content.allocate(range, keep_size),
                        Allocation::PunchHole => content.punch(range),
                        Allocation::ZeroRange { keep_size } => {
                            content.punch(range.clone());
                            content.allocate(range, keep_size);
                        }
                    })?;
                state.tree.get_mut(inode)?.modified();
                Ok(())
            })
            .into()
    }

    fn lseek(
        &self,
        _: &Caller,
        inode: INodeNo,
        _: FileHandle,
        offset: i64,
        what: Seek,
    ) -> Answer<i64, Error> {
        if !self.options.finds_holes {
            return Error::NotImplemented.into();
        }
        let state = self.lock();
        let content = state.tree.content(inode.0);
        content
            .and_then(|content| {
                let offset = u64::try_from(offset).map_err(|_| Error::NoSuchOffset)?;
                let found = match what {
                    Seek::Data => content.next_data(offset),
                    Seek::Hole => content.next_hole(offset),
                };
                let found = found.ok_or(Error::NoSuchOffset)?;
                i64::try_from(found).map_err(|_| Error::Overflow)
            })
            .into()
    }

    fn copy_file_range(&self, _: &Caller, copy: &CopyRange) -> Answer<u32, Error> {
        self.copy(copy).into()
    }
}

impl MemFs {
    fn attributes(&self, attributes: mount::fuse::FileAttr) -> Attributes {
        Attributes {
            attributes: self.told(attributes),
            ttl: self.options.ttl,
        }
    }
}

/// Entries of a directory, each with the position that follows it.
pub struct Entries(Vec<(u64, Vec<u8>, u64)>);

impl Listing<MemFs> for Entries {
    fn names(self, fs: &MemFs, add: AddName<'_>) {
        let state = fs.lock();
        for (next, name, inode) in self.0 {
            // Removed since it was listed: not shown.
            let Ok(found) = state.tree.get(inode) else {
                continue;
            };
            if add(next, &name, INodeNo(inode), found.kind()) {
                return;
            }
        }
    }

    fn entries(self, fs: &MemFs, add: AddEntry<'_>) {
        let mut state = fs.lock();
        for (next, name, inode) in self.0 {
            let Ok(entry) = fs.entry(&mut state, inode) else {
                continue;
            };
            let full = add(next, &name, &entry);
            if full || name == b"." || name == b".." {
                state.tree.let_go(inode, 1, 0);
            }
            if full {
                return;
            }
        }
    }
}
