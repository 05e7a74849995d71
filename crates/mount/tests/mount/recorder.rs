//! A FUSE file system with one file that writes down what the kernel sends and answers as a test says: late, short, with
//! an error, or not before it is let. For the contract of the loop device (`linux_sends`).

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mount::device::DeviceOptions;
use mount::fuse::request::{
    Allocation, Attributes, Caller, Data, Entry, Features, Lookup, Opened, Read, Statistics, Write,
};
use mount::fuse::{
    AddEntry, AddName, Answer, Error, FileAttr, FileHandle, FileSystem, FileType, FopenFlags,
    INodeNo, InitFlags, Listing, LockOwner, OpenFlags, Session, SessionOptions, Timestamp,
};
use sim::guarded::GuardedDir;
use tokio::sync::watch;

use crate::fixture::{Watchdog, assert_unmounted};

const BLOCK: u64 = 512;
const FILE: INodeNo = INodeNo(2);
const FOR_EVER: Duration = Duration::from_secs(3600);

/// A request on the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    Open,
    Read { offset: u64, bytes: u32 },
    Write { offset: u64, bytes: usize },
    Flush,
    Fsync { data_only: bool },
    Allocate(Range<u64>, Allocation),
}

/// Kinds of requests, for gates and counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Read,
    Write,
    Fsync,
    Allocate,
}

/// How requests are answered.
#[derive(Debug, Clone, Default)]
pub struct Manner {
    /// How long each answer takes.
    pub delay: Duration,
    /// Requests of these kinds wait until they are taken from this list.
    pub held: Vec<Kind>,
    /// Requests of these kinds fail.
    pub fails: Option<(Kind, Error)>,
    /// At most so many bytes of a write are taken.
    pub short_writes: Option<u32>,
    /// At most so many bytes are read.
    pub short_reads: Option<u32>,
}

#[derive(Debug, Default)]
struct State {
    sent: Vec<Sent>,
    /// Written blocks of 512 bytes; all others are zeros.
    blocks: HashMap<u64, Vec<u8>>,
    under_way: HashMap<Kind, usize>,
    most_under_way: HashMap<Kind, usize>,
}

/// The file system.
#[derive(Debug)]
pub struct Recorder {
    bytes: u64,
    open_flags: FopenFlags,
    max_background: u16,
    max_request_bytes: u32,
    state: Arc<Mutex<State>>,
    manner: watch::Sender<Manner>,
}

/// How the file is shown.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub bytes: u64,
    pub open_flags: FopenFlags,
    pub max_background: u16,
    pub max_request_bytes: u32,
}

impl Shape {
    /// As a protected device shows itself.
    pub fn device(bytes: u64) -> Shape {
        let options = DeviceOptions::new("", "");
        Shape {
            bytes,
            open_flags: FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
            max_background: options.max_background,
            max_request_bytes: options.max_request_bytes,
        }
    }
}

impl Recorder {
    fn new(shape: Shape) -> Recorder {
        Recorder {
            bytes: shape.bytes,
            open_flags: shape.open_flags,
            max_background: shape.max_background,
            max_request_bytes: shape.max_request_bytes,
            state: Arc::default(),
            manner: watch::Sender::new(Manner::default()),
        }
    }

    /// What was sent since the last call.
    pub fn take(&self) -> Vec<Sent> {
        std::mem::take(&mut self.lock().sent)
    }

    /// As [`Recorder::take`], without reads (which the kernel makes by itself, for partitions).
    pub fn changes(&self) -> Vec<Sent> {
        let sent = self.take();
        let is_change = |one: &Sent| !matches!(one, Sent::Read { .. } | Sent::Open | Sent::Flush);
        sent.into_iter().filter(is_change).collect()
    }

    /// Changes how requests are answered; held ones that are held no longer go on.
    pub fn answer(&self, change: impl FnOnce(&mut Manner)) {
        self.manner.send_modify(change);
    }

    /// Requests of `kind` that have arrived and have no answer.
    pub fn under_way(&self, kind: Kind) -> usize {
        self.lock().under_way.get(&kind).copied().unwrap_or(0)
    }

    /// The most of `kind` that waited at once, since the last call.
    pub fn most_under_way(&self, kind: Kind) -> usize {
        self.lock().most_under_way.remove(&kind).unwrap_or(0)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records `sent` and answers by `work`, when the manner allows.
    fn later<T: Send + 'static>(
        &self,
        sent: Sent,
        kind: Kind,
        work: impl FnOnce(&mut State, &Manner) -> T + Send + 'static,
    ) -> Answer<T, Error> {
        let mut state = self.lock();
        state.sent.push(sent);
        let now = state.under_way.entry(kind).or_default();
        *now += 1;
        let now = *now;
        let most = state.most_under_way.entry(kind).or_default();
        *most = now.max(*most);
        drop(state);
        let (state, mut manner) = (self.state.clone(), self.manner.subscribe());
        Answer::later(Instant::now() + FOR_EVER, async move {
            let free = manner.wait_for(|manner| !manner.held.contains(&kind));
            let manner = free.await.map_err(|_| Error::TimedOut)?.clone();
            tokio::time::sleep(manner.delay).await;
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(count) = state.under_way.get_mut(&kind) {
                *count -= 1;
            }
            match manner.fails.clone() {
                Some((failing, error)) if failing == kind => Err(error),
                _ => Ok(work(&mut state, &manner)),
            }
        })
    }

    fn attributes(&self, inode: INodeNo) -> Attributes {
        let is_file = inode == FILE;
        Attributes {
            attributes: FileAttr {
                ino: inode,
                size: if is_file { self.bytes } else { 0 },
                blocks: if is_file { self.bytes / 512 } else { 0 },
                atime: Timestamp::default(),
                mtime: Timestamp::default(),
                ctime: Timestamp::default(),
                kind: if is_file {
                    FileType::RegularFile
                } else {
                    FileType::Directory
                },
                perm: if is_file { 0o600 } else { 0o700 },
                nlink: 1,
                uid: 0,
                gid: 0,
                rdev: 0,
                blksize: 4096,
            },
            ttl: FOR_EVER,
        }
    }
}

impl State {
    fn read(&self, offset: u64, bytes: u64) -> Vec<u8> {
        let mut out = Vec::new();
        for block in offset / BLOCK..(offset + bytes).div_ceil(BLOCK) {
            match self.blocks.get(&block) {
                Some(held) => out.extend_from_slice(held),
                None => out.resize(out.len() + BLOCK as usize, 0),
            }
        }
        let skip = (offset % BLOCK) as usize;
        out[skip..skip + bytes as usize].to_vec()
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        assert_eq!(offset % BLOCK, 0, "loop writes whole sectors");
        for (at, chunk) in (offset / BLOCK..).zip(data.chunks(BLOCK as usize)) {
            let mut block = chunk.to_vec();
            block.resize(BLOCK as usize, 0);
            self.blocks.insert(at, block);
        }
    }
}

/// The root's entries: none are listed, because nobody asks for them.
pub struct Nothing;

impl Listing<Recorder> for Nothing {
    fn names(self, _: &Recorder, _: AddName<'_>) {}
    fn entries(self, _: &Recorder, _: AddEntry<'_>) {}
}

impl FileSystem for Recorder {
    type Error = Error;
    type Listing = Nothing;

    fn features(&self) -> Features {
        Features {
            max_background: self.max_background,
            max_request_bytes: self.max_request_bytes,
            // As the file of a device asks for it.
            flags: InitFlags::FUSE_ASYNC_DIO | Features::default().flags,
            ..Features::default()
        }
    }

    fn lookup(&self, _: &Caller, _: INodeNo, name: &[u8]) -> Answer<Lookup, Error> {
        if name != b"device" {
            return Error::NotFound.into();
        }
        Answer::Now(Ok(Lookup::Found(Entry {
            attributes: self.attributes(FILE).attributes,
            ttl: FOR_EVER,
            generation: 0,
        })))
    }

    fn getattr(
        &self,
        _: &Caller,
        inode: INodeNo,
        _: Option<FileHandle>,
    ) -> Answer<Attributes, Error> {
        Answer::Now(Ok(self.attributes(inode)))
    }

    fn open(&self, _: &Caller, _: INodeNo, _: OpenFlags) -> Answer<Opened, Error> {
        self.lock().sent.push(Sent::Open);
        Answer::Now(Ok(Opened {
            flags: self.open_flags,
            ..Opened::new(1)
        }))
    }

    fn read(&self, _: &Caller, read: &Read) -> Answer<Data, Error> {
        let (offset, bytes) = (read.offset, read.size);
        let end = self.bytes;
        self.later(Sent::Read { offset, bytes }, Kind::Read, move |s, m| {
            let most = m.short_reads.unwrap_or(bytes).min(bytes);
            let bytes = u64::from(most).min(end.saturating_sub(offset));
            vec![Bytes::from(s.read(offset, bytes))]
        })
    }

    fn write(&self, _: &Caller, write: &Write<'_>) -> Answer<u32, Error> {
        let (offset, data) = (write.offset, write.data.to_vec());
        let bytes = data.len();
        self.later(Sent::Write { offset, bytes }, Kind::Write, move |s, m| {
            let most = m.short_writes.unwrap_or(u32::MAX).min(data.len() as u32);
            s.write(offset, &data[..most as usize]);
            most
        })
    }

    fn flush(&self, _: &Caller, _: INodeNo, _: FileHandle, _: LockOwner) -> Answer<(), Error> {
        self.lock().sent.push(Sent::Flush);
        Answer::Now(Ok(()))
    }

    fn fsync(&self, _: &Caller, _: INodeNo, _: FileHandle, data_only: bool) -> Answer<(), Error> {
        self.later(Sent::Fsync { data_only }, Kind::Fsync, |_, _| ())
    }

    fn fallocate(
        &self,
        _: &Caller,
        _: INodeNo,
        _: FileHandle,
        range: Range<u64>,
        what: Allocation,
    ) -> Answer<(), Error> {
        let sent = Sent::Allocate(range.clone(), what);
        self.later(sent, Kind::Allocate, move |state, _| {
            let gone = range.start / BLOCK..range.end / BLOCK;
            state.blocks.retain(|block, _| !gone.contains(block));
        })
    }

    fn readdir(&self, _: &Caller, _: INodeNo, _: FileHandle, _: u64) -> Answer<Nothing, Error> {
        Answer::Now(Ok(Nothing))
    }

    fn statfs(&self, _: &Caller, _: INodeNo) -> Answer<Statistics, Error> {
        Answer::Now(Ok(Statistics {
            blocks: self.bytes / 4096,
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

/// A mounted [`Recorder`], unmounted when this is dropped, also by a panic.
pub struct Recording {
    pub fs: Arc<Recorder>,
    session: Option<Session>,
    directory: GuardedDir,
    _watchdog: Watchdog,
}

impl Recording {
    pub async fn new(shape: Shape) -> Recording {
        let directory = GuardedDir::new().unwrap();
        let fs = Arc::new(Recorder::new(shape));
        let session = Session::mount(
            fs.clone(),
            directory.path(),
            SessionOptions::new("recorder"),
        )
        .await;
        let session = session.unwrap();
        let watchdog = Watchdog::start(session.directory(), Duration::from_secs(120));
        Recording {
            fs,
            session: Some(session),
            directory,
            _watchdog: watchdog,
        }
    }

    /// The file.
    pub fn file(&self) -> PathBuf {
        self.directory.path().join("device")
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.fs.answer(|manner| *manner = Manner::default());
        drop(self.session.take());
        assert_unmounted(self.directory.path());
    }
}
