//! What the tests share: a publisher with a random tree, its repository, and replicas of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bulla::verify::verify;
use bytes::Bytes;
use reader::Tally;
use replica::pull::{PullError, PullOptions, Pulled, pull};
use sim::disk::CrashDisk;
use sim::liar::{Liar, Lie};
use sim::model::Model;
use sim::random::{Random, noise};
use sim::time::now;
use store::disk::Disk;
use store::{Replica, Repository, Writer};
use trust::head::Head;
use trust::inode::Inode;
use trust::judge::Freshness;
use trust::root::RootRecord;
use volume::{Volume, VolumeOptions};

/// A tree: files by path.
pub type Tree = BTreeMap<String, Vec<u8>>;

/// A publisher and its repository, in memory.
pub struct Publisher {
    pub model: Model,
    pub tree: Tree,
    pub disk: Arc<CrashDisk>,
    pub repository: Repository,
    pub head: Bytes,
    /// Every head so far.
    pub heads: Vec<Bytes>,
    pub versions: u64,
    random: Random,
    written: usize,
    /// Policies in the repository.
    policies: usize,
}

impl Publisher {
    /// With 40 files, published once.
    pub fn new(seed: u64) -> Publisher {
        let disk = CrashDisk::new();
        let mut publisher = Publisher {
            model: Model::new(7).unwrap(),
            tree: Tree::new(),
            repository: Repository::create_on(disk.clone()).unwrap(),
            disk,
            heads: Vec::new(),
            head: Bytes::new(),
            versions: 0,
            random: Random::new(seed),
            written: 0,
            policies: 0,
        };
        for _ in 0..40 {
            publisher.edit();
        }
        publisher.publish();
        publisher
    }

    /// Changes one file: new, other content, or gone.
    pub fn edit(&mut self) {
        let random = &mut self.random;
        let path = match random.below(4) {
            0 => format!("top-{}", random.below(10)),
            1 => format!("a/mid-{}", random.below(10)),
            _ => format!("a/b{}/c/deep-{}", random.below(3), random.below(30)),
        };
        if self.tree.len() > 20 && random.below(5) == 0 {
            self.tree.remove(&path);
            return;
        }
        let len = match random.below(5) {
            0 => random.below(200),
            1 => 40_000 + random.below(60_000),
            _ => 300 + random.below(5000),
        };
        let content = noise(random.number(), len as usize);
        self.tree.insert(path, content);
    }

    pub fn publish(&mut self) {
        self.publish_until(now(), 3600);
    }

    pub fn publish_until(&mut self, start: u64, duration: u64) {
        let files: Vec<(&str, &[u8])> = self
            .tree
            .iter()
            .map(|(path, content)| (path.as_str(), content.as_slice()))
            .collect();
        let root = directory(&mut self.model, &files);
        self.head = self.model.publish(&root, start, duration).unwrap();
        self.commit();
    }

    /// Writes what the model made since the last time, its head, and its leaf of the log.
    pub fn commit(&mut self) {
        let mut writer = Writer::begin(&self.repository).unwrap();
        for record in &self.model.records[self.written..] {
            writer.append(record).unwrap();
        }
        self.written = self.model.records.len();
        let head = Head::decode(&self.head).unwrap();
        let record: RootRecord = head.record.statement().read(self.model.id()).unwrap();
        for number in self.policies..self.model.policies.len() {
            let policy = self.model.policies[number].to_bytes();
            let index = number as u64 + self.versions;
            writer.put_policy(number as u64, &policy).unwrap();
            writer.put_log_leaf(0, index, &policy).unwrap();
        }
        self.policies = self.model.policies.len();
        let leaf = head.record.to_bytes();
        let log = record.log;
        writer.put_log_leaf(log.epoch, log.size, &leaf).unwrap();
        let mut after = head.frontier.clone();
        after.push(head.record.statement().bytes()).unwrap();
        assert!(writer.tile_log(&after.point(log.epoch)));
        writer.commit(&self.head).unwrap();
        self.heads.push(self.head.clone());
        self.versions = record.version;
    }

    /// The newest root.
    pub fn root(&self) -> trust::Handle {
        let head = Head::decode(&self.head).unwrap();
        let record: RootRecord = head.record.statement().read(self.model.id()).unwrap();
        record.root.any()
    }

    pub fn source(&self) -> Arc<dyn Replica> {
        Arc::new(self.repository.clone())
    }
}

pub fn directory(model: &mut Model, files: &[(&str, &[u8])]) -> Inode {
    let mut below: BTreeMap<&str, Vec<(&str, &[u8])>> = BTreeMap::new();
    let mut entries: Vec<(Vec<u8>, Inode)> = Vec::new();
    for (path, content) in files {
        match path.split_once('/') {
            Some((top, rest)) => below.entry(top).or_default().push((rest, content)),
            None => {
                let file = model.file(content, 8192).unwrap();
                entries.push((path.as_bytes().to_vec(), file));
            }
        }
    }
    for (name, files) in below {
        entries.push((name.as_bytes().to_vec(), directory(model, &files)));
    }
    model.directory(entries).unwrap()
}

/// A replica: a disk, and the state of the process that pulls.
pub struct Follower {
    pub disk: Arc<CrashDisk>,
    pub options: PullOptions,
    pub state: Arc<tempfile::TempDir>,
}

impl Follower {
    pub fn new() -> Follower {
        Follower::on(CrashDisk::new())
    }

    pub fn on(disk: Arc<CrashDisk>) -> Follower {
        let state = Arc::new(tempfile::tempdir().unwrap());
        Follower {
            disk,
            options: PullOptions {
                state_directory: state.path().to_owned(),
                deadline: Duration::from_secs(60),
                ..PullOptions::default()
            },
            state,
        }
    }

    /// The same replica after a crash left its disk like this.
    pub fn reborn(&self, disk: Arc<CrashDisk>) -> Follower {
        Follower {
            disk,
            options: self.options.clone(),
            state: self.state.clone(),
        }
    }

    pub async fn pull(
        &self,
        publisher: &Publisher,
        sources: &[Arc<dyn Replica>],
    ) -> Result<Pulled, PullError> {
        let tally = Arc::new(Tally::default());
        let disk: Arc<dyn Disk> = self.disk.clone();
        pull(publisher.model.id(), sources, disk, &self.options, tally).await
    }

    pub fn repository(&self) -> Repository {
        Repository::open_on(self.disk.clone()).unwrap()
    }

    /// The replica's version, after proving every block below `path`.
    pub async fn proved(&self, publisher: &Publisher, path: &str) -> u64 {
        proved(publisher, self.repository(), path).await
    }
}

/// The version of a repository's head, after proving every block below `path`.
pub async fn proved(publisher: &Publisher, repository: Repository, path: &str) -> u64 {
    let head = repository.statements();
    prove(publisher, repository, head, path)
        .await
        .expect("damages")
}

/// The version of a head, after proving it from a repository; `None` if something is missing.
pub async fn prove(
    publisher: &Publisher,
    repository: Repository,
    head: Bytes,
    path: &str,
) -> Option<u64> {
    let record = Head::decode(&head).unwrap().record;
    let told: RootRecord = record.statement().read(publisher.model.id()).unwrap();
    let state = tempfile::tempdir().unwrap();
    let options = VolumeOptions {
        state_directory: state.path().to_owned(),
        // Also expired versions.
        freshness: Freshness::Pinned {
            version: told.version,
            record_hash: record.hash(),
        },
        ..VolumeOptions::default()
    };
    let replica: Arc<dyn Replica> = Arc::new(Liar::new(repository, Lie::Head(head)));
    let volume = Volume::open(publisher.model.id(), vec![replica], options);
    let volume = volume.await.ok()?;
    let snapshot = volume.current().unwrap();
    let tree = bulla::Tree::published(&volume, Arc::clone(&snapshot));
    let top = tree.find(path.as_bytes()).await.expect("the path is there");
    let tally = Arc::default();
    let report = verify(&tree, &top, &tally).await;
    let report = report.unwrap();
    if report.damage_count > 0 {
        return None;
    }
    assert!(report.data_blocks > 0);
    Some(snapshot.record().version)
}
