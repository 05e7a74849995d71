//! Where a repository waits for its disk: on the runtime's blocking threads, or on the caller's thread when
//! the caller chose that; and never for data in the page cache.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use futures_util::FutureExt;
use store::blocking::Blocking;
use store::conformance::record;
use store::disk::{Disk, DiskFile, Local, Lock};
use store::{BlockStore, Replica, Repository, StoreError, Writer};
use trust::Kind;

/// A disk that remembers which threads opened files or waited for their bytes.
struct Watched {
    inner: Local,
    threads: Arc<Mutex<Vec<ThreadId>>>,
}

struct WatchedFile {
    inner: Arc<dyn DiskFile>,
    threads: Arc<Mutex<Vec<ThreadId>>>,
}

fn note(threads: &Mutex<Vec<ThreadId>>) {
    threads.lock().unwrap().push(std::thread::current().id());
}

impl Disk for Watched {
    fn place(&self) -> &str {
        self.inner.place()
    }
    fn path(&self, name: &str) -> PathBuf {
        self.inner.path(name)
    }
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.inner.create(name)
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        if name == "head" {
            note(&self.threads);
        }
        Ok(Arc::new(WatchedFile {
            inner: self.inner.open(name)?,
            threads: self.threads.clone(),
        }))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }
    fn make_dir(&self, name: &str) -> io::Result<()> {
        self.inner.make_dir(name)
    }
    fn sync_dir(&self, name: &str) -> io::Result<()> {
        self.inner.sync_dir(name)
    }
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.inner.list(dir)
    }
    fn lock(&self, name: &str) -> io::Result<Option<Lock>> {
        self.inner.lock(name)
    }
}

impl DiskFile for WatchedFile {
    fn len_bytes(&self) -> io::Result<u64> {
        self.inner.len_bytes()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        note(&self.threads);
        self.inner.read_at(buf, offset)
    }
    /// As on a disk whose page cache is empty.
    fn read_at_if_cached(&self, _: &mut [u8], _: u64) -> io::Result<Option<usize>> {
        Ok(None)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.inner.write_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

/// A repository with one block and a head, on a watched disk with a cold page cache.
struct Place {
    repository: Repository,
    threads: Arc<Mutex<Vec<ThreadId>>>,
    _dir: tempfile::TempDir,
}

fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::create(dir.path()).unwrap();
    let mut writer = Writer::begin(&repository).unwrap();
    writer.append(&record(Kind::Data, 1, 5000)).unwrap();
    writer.commit(b"statements").unwrap();
    let threads = Arc::new(Mutex::new(Vec::new()));
    let repository = Repository::open_on(Arc::new(Watched {
        inner: Local::new(dir.path()),
        threads: threads.clone(),
    }));
    threads.lock().unwrap().clear();
    Place {
        repository: repository.unwrap(),
        threads,
        _dir: dir,
    }
}

#[tokio::test]
async fn futures_of_a_repository_never_wait_for_the_disk_on_a_worker() {
    let place = place();
    let here = std::thread::current().id();
    let want = [record(Kind::Data, 1, 5000).handle];
    assert_eq!(&place.repository.head().await.unwrap()[..], b"statements");
    assert_eq!(place.repository.get_many(&want, 0).await.unwrap().len(), 1);
    let threads = place.threads.lock().unwrap();
    assert!(threads.len() >= 2, "the disk was read");
    assert!(!threads.contains(&here), "the worker waited");
}

#[test]
fn inline_repository_waits_on_the_caller_and_the_default_one_refuses() {
    let place = place();
    let error = place.repository.head().now_or_never().unwrap().unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    assert!(place.threads.lock().unwrap().is_empty(), "it read anyway");
    let inline = place.repository.with_blocking(Blocking::Inline);
    let head = inline.head().now_or_never().unwrap().unwrap();
    assert_eq!(&head[..], b"statements");
    let here = std::thread::current().id();
    assert!(place.threads.lock().unwrap().iter().all(|t| *t == here));
}

#[test]
fn cached_answer_needs_no_runtime() {
    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::create(dir.path()).unwrap();
    let mut writer = Writer::begin(&repository).unwrap();
    let record = record(Kind::Data, 1, 5000);
    writer.append(&record).unwrap();
    writer.commit(b"statements").unwrap();
    // Not every file system can tell what its page cache has.
    if repository.try_cached(&record.handle).is_some() {
        let want = [record.handle];
        let answer = repository.get_many(&want, 0).now_or_never();
        assert_eq!(answer.unwrap().unwrap(), [record]);
    }
}
