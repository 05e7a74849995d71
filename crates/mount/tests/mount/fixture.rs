//! What the tests share: a volume in memory, versions of it, and mounts that are always removed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use mount::{MountOptions, Mounted};
use rustix::mount::UnmountFlags;
use sim::guarded::GuardedDir;
use sim::model::{Model, inode};
pub use sim::random::noise;
use sim::time::now;
pub use sim::time::wait_until;
use state::ManualClock;
use store::Replica;
use store::memory::MemoryStore;
use store::object::ObjectName;
use trust::inode::{Content, Inode};
use volume::{Volume, VolumeOptions};

/// A publisher and the replica that it fills.
pub struct World {
    pub model: Model,
    pub store: Arc<MemoryStore>,
    pub state: tempfile::TempDir,
    /// The clock of the publisher and of the readers. It stands still until a test moves it.
    pub clock: ManualClock,
    sent: usize,
}

impl World {
    pub fn new() -> World {
        World {
            model: Model::new(9).unwrap(),
            store: Arc::new(MemoryStore::new("memory")),
            state: tempfile::tempdir().unwrap(),
            clock: ManualClock::at(now()),
            sent: 0,
        }
    }

    /// The time of the clock, unix seconds.
    pub fn now(&self) -> u64 {
        self.clock.clock().now()
    }

    pub fn file(&mut self, content: &[u8]) -> Inode {
        self.model.file(content, 64 << 10).unwrap()
    }

    pub fn directory(&mut self, entries: Vec<(&str, Inode)>) -> Inode {
        let entries = entries
            .into_iter()
            .map(|(n, i)| (n.as_bytes().to_vec(), i))
            .collect();
        self.model.directory(entries).unwrap()
    }

    /// Signs `entries` as the root of the next version, valid for `seconds`, and gives it to the
    /// replica.
    pub fn publish(&mut self, entries: Vec<(&str, Inode)>, seconds: u64) {
        let root = self.directory(entries);
        self.publish_root(&root, seconds);
    }

    pub fn publish_root(&mut self, root: &Inode, seconds: u64) {
        let head = self.sign(root, seconds);
        self.store.set_head(head);
    }

    /// Gives the replica all records made since the last time, and a head that the model has made.
    pub fn supply(&mut self, head: Bytes) {
        self.send();
        self.store.set_head(head);
    }

    fn send(&mut self) {
        for record in self.model.records.iter().skip(self.sent) {
            self.store.insert(record.clone());
        }
        self.sent = self.model.records.len();
        for (tile, bytes) in self.model.tiles().unwrap() {
            let name = ObjectName::Tile { epoch: 0, tile };
            self.store.set_object(name, bytes.into());
        }
    }

    /// A copy of the replica as it is now.
    pub async fn copy(&self) -> MemoryStore {
        let copy = MemoryStore::new("far");
        for record in &self.model.records {
            copy.insert(record.clone());
        }
        copy.set_head(Replica::head(self.store.as_ref()).await.unwrap());
        copy
    }

    /// As [`World::publish_root`], without giving the replica the head.
    pub fn sign(&mut self, root: &Inode, seconds: u64) -> Bytes {
        let head = self.model.publish(root, self.now(), seconds).unwrap();
        self.send();
        head
    }

    pub async fn open(&self) -> Arc<Volume> {
        self.open_over(vec![self.store.clone()]).await
    }

    pub async fn open_over(&self, replicas: Vec<Arc<dyn Replica>>) -> Arc<Volume> {
        let options = VolumeOptions {
            state_directory: self.state.path().to_owned(),
            cache_bytes: 64 << 20,
            // Long enough for a busy machine, and what waits for silent replicas takes this long.
            deadline: Duration::from_secs(5),
            clock: self.clock.clock(),
            ..VolumeOptions::default()
        };
        let volume = Volume::open(self.model.id(), replicas, options).await;
        volume.unwrap()
    }

    /// Mounts the volume with a short refresh interval.
    pub async fn mount(&self) -> TestMount {
        TestMount::new(self.open().await, quick()).await
    }
}

/// Options under which an update is seen quickly.
pub fn quick() -> MountOptions {
    MountOptions {
        refresh: Duration::from_millis(100),
        ..MountOptions::default()
    }
}

pub fn symlink(target: &'static str) -> Inode {
    inode(
        0o777,
        Content::Symlink(Bytes::from_static(target.as_bytes())),
    )
}

/// Whether anything is mounted on `directory`, by the kernel's own table.
pub fn is_mounted(directory: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table
        .lines()
        .any(|line| line.split(' ').nth(4) == directory.to_str())
}

/// Fails if something is still mounted on `directory`, unless the test fails already. The guard removes it.
pub fn assert_unmounted(directory: &Path) {
    if !std::thread::panicking() {
        assert!(!is_mounted(directory), "a mount was left behind");
    }
}

/// Ends a mount that hangs: if it is not dropped in time, the kernel's connection to the mount is aborted,
/// so that every call in it fails, and the test with it.
pub struct Watchdog {
    _alive: mpsc::Sender<()>,
}

impl Watchdog {
    /// Watches the mount on `directory`.
    pub fn start(directory: &Path, limit: Duration) -> Watchdog {
        let (alive, dropped) = mpsc::channel::<()>();
        let directory = directory.to_owned();
        std::thread::spawn(move || {
            if dropped.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("watchdog: a mount is not done after {limit:?}: aborted");
                // FORCE aborts the connection. Only root may; for other users the end of this process
                // does it.
                let how = UnmountFlags::FORCE | UnmountFlags::DETACH;
                if rustix::mount::unmount(&directory, how).is_err() {
                    let _ = mount::unmount(&directory);
                    std::process::exit(101);
                }
            }
        });
        Watchdog { _alive: alive }
    }
}

/// A mount on a directory of its own, which is removed when this is dropped, also by a panic.
pub struct TestMount {
    pub mounted: Option<Mounted>,
    directory: GuardedDir,
    _watchdog: Watchdog,
}

impl TestMount {
    pub async fn new(volume: Arc<Volume>, options: MountOptions) -> TestMount {
        let directory = GuardedDir::new().unwrap();
        let mounted = mount::mount(volume, directory.path(), options)
            .await
            .unwrap();
        assert!(is_mounted(directory.path()));
        let watchdog = Watchdog::start(mounted.directory(), Duration::from_secs(300));
        TestMount {
            mounted: Some(mounted),
            directory,
            _watchdog: watchdog,
        }
    }

    pub fn mounted(&self) -> &Mounted {
        self.mounted.as_ref().unwrap()
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join(below)
    }

    pub fn read(&self, below: &str) -> Vec<u8> {
        std::fs::read(self.path(below)).unwrap()
    }

    /// Waits until `count` more refreshes have begun and ended. Each has seen everything that was published
    /// before this call.
    pub fn wait_for_refreshes(&self, count: u64) {
        let refreshes = || self.mounted().reporter().report().refreshes.0;
        // The first to end may have begun before.
        let last = refreshes() + 1 + count;
        wait_until("refreshes", || refreshes() >= last);
    }

    /// Waits until programs see version `version`.
    pub fn wait_for(&self, version: u64) {
        wait_until("the update", || self.mounted().version() >= version);
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        drop(self.mounted.take());
        assert_unmounted(self.directory.path());
    }
}

/// The errno of a result that must be an error.
pub fn errno<T>(result: std::io::Result<T>) -> i32 {
    match result {
        Ok(_) => panic!("it worked"),
        Err(error) => error
            .raw_os_error()
            .unwrap_or_else(|| panic!("no errno in {error}")),
    }
}
