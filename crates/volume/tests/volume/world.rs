//! What the tests share: a small volume in memory, and a way to open it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reader::ReadError;
use sim::liar::{Liar, Lie};
use sim::model::{Model, inode};
pub use sim::random::noise;
pub use sim::time::{eventually, now};
use state::ManualClock;
use store::Replica;
use store::memory::MemoryStore;
use store::object::ObjectName;
use trust::inode::{Content, Inode};
use volume::{Fetch, Volume, VolumeError, VolumeOptions};

pub struct World {
    pub model: Model,
    pub head: Bytes,
    pub state: tempfile::TempDir,
    /// The readers' clock. It stands still until a test moves it.
    pub clock: ManualClock,
}

/// `big` (300 KB in 8 KB blocks), `small`, `tiny` (inline), `link`, `dir/` with 500 files.
pub fn tree(model: &mut Model) -> Inode {
    let big = model.file(&noise(1, 300_000), 8192).unwrap();
    let small = model.file(&noise(2, 1000), 8192).unwrap();
    let tiny = model.file(b"tiny", 8192).unwrap();
    let link = inode(0o777, Content::Symlink(Bytes::from_static(b"dir/f007")));
    let files = (0..500u32)
        .map(|i| {
            let file = model.file(&noise(100 + u64::from(i), 600), 8192).unwrap();
            (format!("f{i:03}").into_bytes(), file)
        })
        .collect();
    let dir = model.directory(files).unwrap();
    let entries = [
        ("big", big),
        ("small", small),
        ("tiny", tiny),
        ("link", link),
        ("dir", dir),
    ];
    let entries = entries
        .into_iter()
        .map(|(n, i)| (n.as_bytes().to_vec(), i))
        .collect();
    model.directory(entries).unwrap()
}

impl World {
    pub fn new() -> World {
        let mut model = Model::new(7).unwrap();
        let root = tree(&mut model);
        let head = model.publish(&root, now(), 3600).unwrap();
        World {
            model,
            head,
            state: tempfile::tempdir().unwrap(),
            clock: ManualClock::at(now()),
        }
    }

    /// An honest replica of everything published so far.
    pub fn replica(&self) -> MemoryStore {
        self.replica_with(self.head.clone())
    }

    pub fn replica_with(&self, head: Bytes) -> MemoryStore {
        let store = MemoryStore::new("memory");
        for record in &self.model.records {
            store.insert(record.clone());
        }
        store.set_head(head);
        for (tile, bytes) in self.model.tiles().unwrap() {
            store.set_object(ObjectName::Tile { epoch: 0, tile }, bytes.into());
        }
        for (number, policy) in (0..).zip(&self.model.policies) {
            store.set_object(ObjectName::Policy(number), policy.to_bytes().into());
        }
        store
    }

    pub fn liar(&self, lie: Lie) -> Arc<Liar<MemoryStore>> {
        Arc::new(Liar::new(self.replica(), lie))
    }

    pub fn options(&self) -> VolumeOptions {
        VolumeOptions {
            state_directory: self.state.path().to_owned(),
            cache_bytes: 16 << 20,
            deadline: Duration::from_secs(60),
            clock: self.clock.clock(),
            ..VolumeOptions::default()
        }
    }

    pub async fn open(&self, replicas: Vec<Arc<dyn Replica>>) -> Result<Arc<Volume>, VolumeError> {
        Volume::open(self.model.id(), replicas, self.options()).await
    }
}

/// Later than any answer that a test waits for.
pub fn soon() -> Fetch {
    within(Duration::from_secs(60))
}

/// For what is not answered.
pub fn within(time: Duration) -> Fetch {
    Fetch::Until(Instant::now() + time)
}

/// Waits until every task of this runtime has ended: nothing that a read started is in progress.
pub async fn settle() {
    let tasks = tokio::runtime::Handle::current().metrics();
    eventually("all tasks have ended", || tasks.num_alive_tasks() == 0).await;
}

/// Reads a whole file by path.
pub async fn read(volume: &Volume, path: &str) -> Result<Vec<u8>, VolumeError> {
    read_with(volume, path, soon()).await
}

/// As [`read`], until a deadline.
pub async fn read_with(volume: &Volume, path: &str, how: Fetch) -> Result<Vec<u8>, VolumeError> {
    let snapshot = volume.current()?;
    let inode = snapshot.resolve(path.as_bytes(), how).await?;
    let inode = inode.ok_or(ReadError::NotFound {
        path: path.to_owned(),
    })?;
    Ok(snapshot
        .read(&inode, 0, inode.size as usize, how)
        .await?
        .concat())
}
