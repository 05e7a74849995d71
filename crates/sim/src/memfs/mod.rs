//! A writable file system in memory with the semantics of POSIX, for tests of `mount::fuse` on real
//! mounts. It keeps nothing durable, and `atime` moves only by `utimensat`.
//!
//! [`tree`] holds [`inode`]s and their names, [`content`] the bytes of sparse files, [`locks`] the
//! locks; `requests` answers the kernel from them.

pub mod content;
pub mod inode;
pub mod locks;
mod requests;
pub mod tree;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mount::fuse::request::{Caller, CopyRange, Entry, LockRequest, NewName, Opened, Write};
use mount::fuse::{Answer, Error, FileAttr, FileHandle, FileType, FopenFlags, INodeNo, LockOwner};
use tokio::sync::Notify;

use inode::{Creation, Node};
use locks::LockTable;
use tree::Tree;

/// Bytes that one COPY_FILE_RANGE copies at most.
const MAX_COPY_BYTES: u64 = 16 << 20;

/// How the file system behaves.
#[derive(Debug, Clone)]
pub struct MemFsOptions {
    /// The kernel collects writes and sends them later.
    pub writeback_cache: bool,
    /// How long the kernel may believe names and attributes.
    pub ttl: Duration,
    /// Room for content, bytes.
    pub capacity_bytes: u64,
    /// How long a blocking lock is waited for before the caller gets ENOLCK.
    pub lock_deadline: Duration,
    /// By how much the size that the kernel is told of a file differs from its content, bytes. If it does, the kernel
    /// reads from here and not from its cache, which knows nothing of the end.
    pub size_error: i64,
    /// Whether `lseek` finds data and holes. If not, the kernel takes a whole file for data.
    pub finds_holes: bool,
}

impl Default for MemFsOptions {
    fn default() -> Self {
        MemFsOptions {
            writeback_cache: false,
            ttl: Duration::from_secs(1),
            capacity_bytes: 1 << 30,
            lock_deadline: Duration::from_secs(60),
            size_error: 0,
            finds_holes: true,
        }
    }
}

/// The file system. Waits for locks hold a clone of its shared part.
#[derive(Debug)]
pub struct MemFs {
    options: MemFsOptions,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    unlocked: Notify,
    fsyncs: AtomicU64,
}

#[derive(Debug)]
struct State {
    tree: Tree,
    locks: LockTable,
    /// Inode of each open file and directory.
    handles: HashMap<u64, u64>,
    last_handle: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn open(&mut self, inode: u64) -> Result<Opened, Error> {
        self.tree.hold(inode, 0, 1)?;
        self.last_handle += 1;
        self.handles.insert(self.last_handle, inode);
        Ok(Opened::new(self.last_handle))
    }

    fn close(&mut self, handle: FileHandle) -> Result<(), Error> {
        let inode = self.handles.remove(&handle.0).ok_or(Error::BadHandle)?;
        self.tree.let_go(inode, 0, 1);
        Ok(())
    }

    /// The inode behind an open handle, which must be the one that the kernel names.
    fn opened(&self, handle: FileHandle, inode: INodeNo) -> Result<u64, Error> {
        match self.handles.get(&handle.0) {
            Some(opened) if *opened == inode.0 => Ok(inode.0),
            _ => Err(Error::BadHandle),
        }
    }
}

impl MemFs {
    /// An empty file system that belongs to this process.
    pub fn new(options: MemFsOptions) -> MemFs {
        let uid = rustix::process::getuid().as_raw();
        let gid = rustix::process::getgid().as_raw();
        let state = State {
            tree: Tree::new(options.capacity_bytes, uid, gid),
            locks: LockTable::default(),
            handles: HashMap::new(),
            last_handle: 0,
        };
        MemFs {
            options,
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                unlocked: Notify::new(),
                fsyncs: AtomicU64::new(0),
            }),
        }
    }

    /// Content of the file at `path` below the root, without writes that are still in the kernel's
    /// cache.
    ///
    /// # Errors
    /// As a look-up's.
    pub fn content(&self, path: &str) -> Result<Vec<u8>, Error> {
        let state = self.lock();
        let mut at = tree::ROOT;
        for name in path.split('/') {
            let found = state.tree.lookup(at, name.as_bytes())?;
            at = found.ok_or(Error::NotFound)?;
        }
        let content = state.tree.content(at)?;
        Ok(content.read(0, content.size()))
    }

    /// Number of inodes, with the root, and of open handles.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.lock();
        (state.tree.count(), state.handles.len())
    }

    /// Locks that are held, and owners that wait for one.
    pub fn locks(&self) -> (usize, usize) {
        self.lock().locks.counts()
    }

    /// How many FSYNC requests arrived.
    pub fn fsyncs(&self) -> u64 {
        self.shared.fsyncs.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    /// The answer that gives the kernel an inode, which counts as a look-up.
    fn entry(&self, state: &mut State, inode: u64) -> Result<Entry, Error> {
        state.tree.hold(inode, 1, 0)?;
        Ok(Entry {
            attributes: self.told(state.tree.get(inode)?.attributes(inode)),
            ttl: self.options.ttl,
            generation: 0,
        })
    }

    /// What the kernel is told of a file.
    fn told(&self, mut attributes: FileAttr) -> FileAttr {
        if attributes.kind == FileType::RegularFile {
            attributes.size = attributes
                .size
                .saturating_add_signed(self.options.size_error);
        }
        attributes
    }

    fn open_file(&self, state: &mut State, inode: u64) -> Result<Opened, Error> {
        let mut opened = state.open(inode)?;
        if self.options.size_error != 0 {
            opened.flags |= FopenFlags::FOPEN_DIRECT_IO;
        }
        Ok(opened)
    }

    fn make(
        &self,
        by: &Caller,
        new: &NewName<'_>,
        node: Result<Node, Error>,
        rdev: u32,
    ) -> Result<Entry, Error> {
        let creation = Creation {
            mode: new.mode,
            uid: by.uid,
            gid: by.gid,
            rdev,
        };
        let mut state = self.lock();
        let inode = state
            .tree
            .create(new.parent.0, new.name, node?, &creation)?;
        self.entry(&mut state, inode)
    }

    fn write_now(&self, write: &Write<'_>) -> Result<u32, Error> {
        let mut state = self.lock();
        let inode = state.opened(write.handle, write.inode)?;
        let appends = write.flags.0 & libc::O_APPEND != 0 && !write.from_page_cache;
        let offset = if appends {
            state.tree.content(inode)?.size()
        } else {
            write.offset
        };
        let end = offset.checked_add(write.data.len() as u64);
        let range = offset..end.ok_or(Error::FileTooLarge)?;
        state
            .tree
            .change(inode, range, |content| content.write(offset, write.data))?;
        // With the write-back cache the kernel keeps the times and sends them by SETATTR.
        if !(self.options.writeback_cache && write.from_page_cache) {
            state.tree.get_mut(inode)?.modified();
        }
        Ok(write.data.len() as u32)
    }

    fn copy(&self, copy: &CopyRange) -> Result<u32, Error> {
        let mut state = self.lock();
        let from = state.opened(copy.from_handle, copy.from)?;
        let to = state.opened(copy.to_handle, copy.to)?;
        let len = copy.len.min(MAX_COPY_BYTES);
        let bytes = state.tree.content(from)?.read(copy.from_offset, len);
        let end = copy.to_offset.checked_add(bytes.len() as u64);
        let range = copy.to_offset..end.ok_or(Error::FileTooLarge)?;
        if !bytes.is_empty() {
            state
                .tree
                .change(to, range, |content| content.write(copy.to_offset, &bytes))?;
            state.tree.get_mut(to)?.modified();
        }
        Ok(bytes.len() as u32)
    }

    fn wait_for_lock(&self, request: &LockRequest) -> Answer<(), Error> {
        if !self.lock().locks.begin_wait(request) {
            return Error::Deadlock.into();
        }
        let waiting = Waiting {
            shared: self.shared.clone(),
            request: request.clone(),
        };
        let deadline = Instant::now() + self.options.lock_deadline;
        Answer::wait(deadline, Error::NoLock, async move {
            loop {
                let unlocked = waiting.shared.unlocked.notified();
                tokio::pin!(unlocked);
                // Before the attempt, so that no release between the two is missed.
                unlocked.as_mut().enable();
                if waiting.shared.lock().locks.set(&waiting.request) {
                    // A write lock may have become a read lock.
                    waiting.shared.unlocked.notify_waiters();
                    return Ok(());
                }
                unlocked.await;
            }
        })
    }

    fn release_locks(&self, state: &mut State, inode: u64, owner: LockOwner) {
        if state.locks.release(inode, owner.0) {
            self.shared.unlocked.notify_waiters();
        }
    }
}

/// An owner that waits. Dropping it ends the wait, for whatever reason.
struct Waiting {
    shared: Arc<Shared>,
    request: LockRequest,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.shared.lock().locks.end_wait(self.request.owner.0);
    }
}
