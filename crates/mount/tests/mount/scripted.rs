//! A FUSE file system with one file whose answers a test chooses, and which writes down what the kernel asks. For facts
//! about the kernel (`kernel_facts`).

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mount::fuse::request::{Attributes, Caller, Data, Entry, Lookup, Opened, Read, Statistics};
use mount::fuse::{
    AddEntry, AddName, Answer, Connection, Error, FileAttr, FileHandle, FileSystem, FileType,
    FopenFlags, INodeNo, Listing, Notifier, OpenFlags, Reply, Session, SessionOptions, Timestamp,
};
use sim::guarded::GuardedDir;
use tokio::sync::watch;

use crate::fixture::{Watchdog, assert_unmounted};

const FILE_BYTES: u64 = 4096;
const FOR_EVER: Duration = Duration::from_secs(3600);
/// The number of the file.
pub const FILE: INodeNo = INodeNo(2);

/// A request about the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Lookup,
    Open,
    Read,
    Forget,
}

/// When reads are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    Now,
    /// When this changes, by a task that ends when its caller is killed.
    Held,
    /// When [`Scripted::let_go`] is called, whatever happens to the caller.
    Deaf,
    /// Never: the thread panics.
    Panic,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    opens: VecDeque<Error>,
    mtime: Timestamp,
    deaf: Vec<(u32, Reply<Data, Error>)>,
}

/// The file system.
pub struct Scripted {
    state: Arc<Mutex<State>>,
    reads: watch::Sender<Reads>,
}

impl Scripted {
    fn new() -> Scripted {
        Scripted {
            state: Arc::default(),
            reads: watch::Sender::new(Reads::Now),
        }
    }

    /// What was asked since the last call.
    pub fn take(&self) -> Vec<Call> {
        std::mem::take(&mut self.lock().calls)
    }

    /// How often it was asked since [`Scripted::take`].
    pub fn count(&self, call: Call) -> usize {
        let state = self.lock();
        state.calls.iter().filter(|one| **one == call).count()
    }

    /// The next opens fail.
    pub fn fail_opens(&self, errors: &[Error]) {
        self.lock().opens.extend(errors.iter().cloned());
    }

    pub fn set_mtime(&self, mtime: Timestamp) {
        self.lock().mtime = mtime;
    }

    pub fn set_reads(&self, reads: Reads) {
        self.reads.send_replace(reads);
    }

    /// Answers the reads that are deaf.
    pub fn let_go(&self) {
        let deaf = std::mem::take(&mut self.lock().deaf);
        for (bytes, reply) in deaf {
            reply.send(Ok(content(bytes)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let is_file = inode == FILE;
        let mtime = self.lock().mtime;
        FileAttr {
            ino: inode,
            size: if is_file { FILE_BYTES } else { 0 },
            blocks: 0,
            atime: mtime,
            mtime,
            ctime: mtime,
            kind: if is_file {
                FileType::RegularFile
            } else {
                FileType::Directory
            },
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
        }
    }
}

/// The first bytes of the file, in pieces of one byte; more than was asked for would be EIO.
fn content(bytes: u32) -> Data {
    let whole = whole();
    let bytes = whole.len().min(bytes as usize);
    (0..bytes).map(|at| whole.slice(at..=at)).collect()
}

/// Content of the file.
pub fn whole() -> Bytes {
    (0..FILE_BYTES).map(|at| at as u8).collect()
}

/// The root lists nothing.
pub struct Nothing;

impl Listing<Scripted> for Nothing {
    fn names(self, _: &Scripted, _: AddName<'_>) {}
    fn entries(self, _: &Scripted, _: AddEntry<'_>) {}
}

impl FileSystem for Scripted {
    type Error = Error;
    type Listing = Nothing;

    fn lookup(&self, _: &Caller, _: INodeNo, name: &[u8]) -> Answer<Lookup, Error> {
        if name != b"f" {
            return Error::NotFound.into();
        }
        self.lock().calls.push(Call::Lookup);
        Answer::Now(Ok(Lookup::Found(Entry {
            attributes: self.attributes(FILE),
            ttl: FOR_EVER,
            generation: 0,
        })))
    }

    fn forget(&self, _: INodeNo, _: u64) {
        self.lock().calls.push(Call::Forget);
    }

    fn getattr(
        &self,
        _: &Caller,
        inode: INodeNo,
        _: Option<FileHandle>,
    ) -> Answer<Attributes, Error> {
        Answer::Now(Ok(Attributes {
            attributes: self.attributes(inode),
            ttl: FOR_EVER,
        }))
    }

    fn open(&self, _: &Caller, _: INodeNo, _: OpenFlags) -> Answer<Opened, Error> {
        let mut state = self.lock();
        state.calls.push(Call::Open);
        if let Some(error) = state.opens.pop_front() {
            return error.into();
        }
        // Reads of a direct file are made by its caller, and not by the kernel's read-ahead.
        let flags = match *self.reads.borrow() {
            Reads::Now => FopenFlags::FOPEN_KEEP_CACHE,
            _ => FopenFlags::FOPEN_DIRECT_IO,
        };
        Answer::Now(Ok(Opened {
            flags,
            ..Opened::new(1)
        }))
    }

    fn read(&self, _: &Caller, read: &Read) -> Answer<Data, Error> {
        self.lock().calls.push(Call::Read);
        let bytes = read.size;
        let mut reads = self.reads.subscribe();
        match *reads.borrow_and_update() {
            Reads::Now => return Answer::Now(Ok(content(bytes))),
            Reads::Held => {}
            Reads::Panic => panic!("a panic of a test"),
            Reads::Deaf => {
                let state = self.state.clone();
                return Answer::elsewhere(move |reply| {
                    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                    state.deaf.push((bytes, reply));
                });
            }
        }
        Answer::later(Instant::now() + FOR_EVER, async move {
            let _ = reads.changed().await;
            Ok(content(bytes))
        })
    }

    fn readdir(&self, _: &Caller, _: INodeNo, _: FileHandle, _: u64) -> Answer<Nothing, Error> {
        Answer::Now(Ok(Nothing))
    }

    fn statfs(&self, _: &Caller, _: INodeNo) -> Answer<Statistics, Error> {
        Answer::Now(Ok(Statistics {
            blocks: 0,
            free: 0,
            available: 0,
            files: 1,
            free_files: 0,
            best_bytes: 4096,
            longest_name: 255,
            unit_bytes: 4096,
        }))
    }
}

/// A mounted [`Scripted`], unmounted when this is dropped, also by a panic.
pub struct ScriptedMount {
    pub fs: Arc<Scripted>,
    pub notifier: Arc<Notifier>,
    session: Option<Session>,
    directory: GuardedDir,
    _watchdog: Watchdog,
}

impl ScriptedMount {
    pub async fn new() -> ScriptedMount {
        let directory = GuardedDir::new().unwrap();
        let fs = Arc::new(Scripted::new());
        let options = SessionOptions::new("scripted");
        let connection = Connection::open(fs.clone(), directory.path(), options).await;
        let connection = connection.unwrap();
        let notifier = connection.notifier();
        let session = connection.serve().await.unwrap();
        let watchdog = Watchdog::start(session.directory(), Duration::from_secs(120));
        ScriptedMount {
            fs,
            notifier,
            session: Some(session),
            directory,
            _watchdog: watchdog,
        }
    }

    /// The file.
    pub fn file(&self) -> PathBuf {
        self.directory.path().join("f")
    }
}

impl Drop for ScriptedMount {
    fn drop(&mut self) {
        self.fs.set_reads(Reads::Now);
        self.fs.let_go();
        drop(self.session.take());
        assert_unmounted(self.directory.path());
    }
}
