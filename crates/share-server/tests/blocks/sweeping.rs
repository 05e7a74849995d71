//! A sweep whose end cannot be read: what it has removed counts as gone until the index is read again.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use share_server::blocks::{Options, Progress};
use share_server::collect::book::{Book, Boot, Times};
use sim::device::Machine;
use sim::disk::CrashDisk;
use store::Repository;
use store::disk::{Disk, DiskFile, Lock};
use store::writer::MostSwept;
use trust::volume_id::VolumeId;

use crate::support::*;

/// A disk that does not open the head while it is told not to.
#[derive(Clone)]
struct Headless {
    disk: Arc<CrashDisk>,
    fails: Arc<AtomicBool>,
}

impl Disk for Headless {
    fn place(&self) -> &str {
        self.disk.place()
    }
    fn path(&self, name: &str) -> PathBuf {
        self.disk.path(name)
    }
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.create(name)
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        match name == "head" && self.fails.load(Ordering::Relaxed) {
            true => Err(io::Error::other("too many open files")),
            false => self.disk.open(name),
        }
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn make_dir(&self, name: &str) -> io::Result<()> {
        self.disk.make_dir(name)
    }
    fn sync_dir(&self, name: &str) -> io::Result<()> {
        self.disk.sync_dir(name)
    }
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }
    fn lock(&self, name: &str) -> io::Result<Option<Lock>> {
        self.disk.lock(name)
    }
}

#[test]
fn removed_block_is_not_told_to_be_there_while_the_index_cannot_be_read() {
    let machine = Machine::new(&[("log", DEVICE_BYTES)]);
    let device = machine.device("log");
    format(&*device);
    let disk = Headless {
        disk: CrashDisk::new(),
        fails: Arc::default(),
    };
    let repository = Repository::create_on(Arc::new(disk.clone())).unwrap();
    let time = Time::default();
    let storage = open(device, repository, &time, Options::default()).unwrap();
    let tick = Duration::from_secs(200);
    let times = Times {
        tick,
        window: 4,
        boot: Boot(Some([1; 16])),
    };
    let log = (VolumeId::from_bytes([9; 32]), 0);
    let book = Book::open(CrashDisk::new(), log, time.clock(), times).unwrap();
    let book = Arc::new(book);
    storage.keep_ages(Arc::clone(&book));
    let blocks = much(1);
    let session = session(&storage, 1);
    let answer = submit(&storage, session, blocks.clone(), Vec::new());
    storage.advance().unwrap();
    while storage.commit() == Progress::Done {}
    assert!(answered(&answer).unwrap().is_ok());
    let segments = storage.repository().segments();
    for size in 0..8 {
        book.go_on(size, &segments).unwrap();
        time.pass(tick);
    }
    let marks = storage.marks();
    let mut left: VecDeque<_> = segments.into();
    let most = MostSwept {
        blocks: 100,
        bytes: 1 << 30,
        time: Duration::from_mins(1),
    };
    disk.fails.store(true, Ordering::Relaxed);
    let began = book.with(|ages| ages.now());
    let swept = storage.sweep((&marks, began), &mut left, most, Duration::ZERO);
    assert_eq!(swept.unwrap().blocks, 17);
    let gone = &blocks[0].handle;
    assert!(!storage.cstore(session, gone).unwrap());
    assert!(storage.retrieve(session, gone).unwrap().is_none());
    disk.fails.store(false, Ordering::Relaxed);
    // Who is told so stores it again, and it is written again.
    let answer = submit(&storage, session, blocks.clone(), Vec::new());
    let moved = storage.advance().unwrap();
    while storage.commit() == Progress::Done {}
    assert!(answered(&answer).unwrap().is_ok());
    assert!(moved.written_bytes > 17 << 16, "{moved:?}");
    assert!(storage.cstore(session, gone).unwrap());
    assert_eq!(
        storage.retrieve(session, gone).unwrap(),
        Some(blocks[0].clone())
    );
}
