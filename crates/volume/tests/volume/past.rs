//! Earlier versions by their numbers: what proves that they are in the log, and replicas and publishers that lie about it.

use std::sync::Arc;

use bytes::Bytes;
use reader::ReadError;
use store::Replica;
use store::memory::MemoryStore;
use store::object::ObjectName;
use trust::error::Class;
use trust::head::Head;
use trust::root::RootRecord;
use volume::{Refreshed, VersionRef, Volume, VolumeError};

use crate::world::{World, noise, now, read};

/// A volume whose version N has the file `new` with content N, and the head of each version.
pub struct Past {
    pub world: World,
    pub heads: Vec<Bytes>,
}

impl Past {
    pub fn new(versions: u64) -> Past {
        let world = World::new();
        let heads = vec![world.head.clone()];
        let mut past = Past { world, heads };
        for seed in 2..=versions {
            past.publish(seed);
        }
        past
    }

    /// The next version, with other content for another seed.
    pub fn publish(&mut self, seed: u64) {
        let world = &mut self.world;
        let file = world.model.file(&noise(seed, 5000), 8192).unwrap();
        let root = world.model.directory(vec![(b"new".to_vec(), file)]);
        world.head = world.model.publish(&root.unwrap(), now(), 3600).unwrap();
        self.heads.push(world.head.clone());
    }

    /// As [`Past::publish`], with a name for the version.
    fn publish_named(&mut self, seed: u64, name: &str) {
        self.publish(seed);
        self.heads.pop();
        let name = name.parse().unwrap();
        self.world.head = self.world.model.name_last(&name).unwrap();
        self.heads.push(self.world.head.clone());
    }

    /// Publishes another version in the place of the newest one. Returns the head that it contradicts.
    pub fn contradict(&mut self, seed: u64) -> Bytes {
        let contradicted = self.heads.pop().unwrap();
        self.world.model.fork(self.heads.last()).unwrap();
        self.publish(seed);
        contradicted
    }

    /// A replica that keeps the whole log.
    pub fn replica(&self) -> MemoryStore {
        self.replica_without(None)
    }

    /// One that keeps all leaves of the log but that of a version.
    fn replica_without(&self, version: Option<usize>) -> MemoryStore {
        let store = self.world.replica();
        let genesis = self.world.model.policies[0].to_bytes();
        let (epoch, index) = (0, 0);
        store.set_object(ObjectName::Log { epoch, index }, genesis.into());
        for (at, head) in self.heads.iter().enumerate() {
            if version != Some(at + 1) {
                put_leaf(&store, head);
            }
        }
        store
    }
}

/// Puts the record of a head into its place in the log.
fn put_leaf(store: &MemoryStore, head: &Bytes) {
    let head = Head::decode(head).unwrap();
    let (epoch, index) = (0, head.frontier.size());
    store.set_object(
        ObjectName::Log { epoch, index },
        head.record.to_bytes().into(),
    );
}

fn root(past: &Past, version: usize) -> trust::Handle {
    let head = Head::decode(&past.heads[version - 1]).unwrap();
    let record: RootRecord = head.record.statement().read(past.world.model.id()).unwrap();
    record.root.any()
}

async fn open(past: &Past, replicas: Vec<MemoryStore>) -> Arc<Volume> {
    let replicas = replicas
        .into_iter()
        .map(|it| Arc::new(it) as Arc<dyn Replica>);
    past.world.open(replicas.collect()).await.unwrap()
}

async fn at(volume: &Volume, version: u64) -> Result<Option<Arc<Volume>>, VolumeError> {
    volume.at(&VersionRef::Number(version)).await
}

fn floor(past: &Past) -> Vec<u8> {
    let volume = past.world.state.path().join("volumes");
    std::fs::read(volume.join(past.world.model.id().to_string()).join("floor")).unwrap()
}

#[tokio::test]
async fn earlier_versions_are_read_and_change_no_floor() {
    let past = Past::new(9);
    let volume = open(&past, vec![past.replica()]).await;
    let before = floor(&past);
    for version in 2..=9u64 {
        let earlier = at(&volume, version).await.unwrap().expect("it is kept");
        assert_eq!(earlier.snapshot().record().version, version);
        assert_eq!(read(&earlier, "new").await.unwrap(), noise(version, 5000));
        assert!(matches!(
            earlier.refresh().await.unwrap(),
            Refreshed::Unchanged
        ));
        assert_eq!(earlier.snapshot().record().version, version);
    }
    assert!(at(&volume, 10).await.unwrap().is_none());
    assert!(at(&volume, 0).await.unwrap().is_none());
    assert_eq!(floor(&past), before);
    // History does not expire; the version in use does.
    let earlier = at(&volume, 3).await.unwrap().unwrap();
    past.world
        .clock
        .advance(std::time::Duration::from_secs(7200));
    assert!(volume.current().is_err());
    assert_eq!(read(&earlier, "new").await.unwrap(), noise(3, 5000));
}

#[tokio::test]
async fn signed_record_that_is_not_in_the_log_is_a_fork() {
    let mut past = Past::new(3);
    let outside = past.contradict(33);
    for seed in 4..=7 {
        past.publish(seed);
    }
    let liar = past.replica();
    put_leaf(&liar, &outside);
    let volume = open(&past, vec![liar]).await;
    let error = at(&volume, 3)
        .await
        .expect_err("a record outside of the log was believed");
    assert_eq!(error.class(), Some(Class::Fork), "{error}");
    // The versions beside it are in the log.
    assert!(at(&volume, 2).await.unwrap().is_some());
    assert!(at(&volume, 4).await.unwrap().is_some());
    // It stops nobody who also has a replica with the right one, whichever is asked first.
    for liar_is_first in [true, false] {
        let liar = past.replica();
        put_leaf(&liar, &outside);
        let mut replicas = vec![liar, past.replica()];
        if !liar_is_first {
            replicas.reverse();
        }
        let volume = open(&past, replicas).await;
        let found = at(&volume, 3).await.unwrap().unwrap();
        let record = found.snapshot().record().clone();
        assert_eq!(record.version, 3);
        let other = Head::decode(&outside).unwrap().record.hash();
        assert_ne!(*found.snapshot().record_hash(), other);
    }
}

#[tokio::test]
async fn record_of_another_log_is_a_fork() {
    let mut past = Past::new(4);
    // It goes on after version 4, and another version 4 takes its place in the log.
    past.publish(5);
    let beside = past.heads.pop().unwrap();
    past.heads.pop();
    past.world.model.fork(past.heads.last()).unwrap();
    past.world.model.fork(past.heads.last()).unwrap();
    for seed in 14..=18 {
        past.publish(seed);
    }
    let liar = past.replica();
    put_leaf(&liar, &beside);
    let volume = open(&past, vec![liar]).await;
    let error = at(&volume, 5)
        .await
        .expect_err("a record of another log was believed");
    assert_eq!(error.class(), Some(Class::Fork), "{error}");
}

#[tokio::test]
async fn wrong_tile_or_missing_leaf_is_masked_by_another_mirror() {
    let past = Past::new(6);
    let bent = past.replica();
    for (tile, mut bytes) in past.world.model.tiles().unwrap() {
        bytes[0] ^= 1;
        bent.set_object(ObjectName::Tile { epoch: 0, tile }, bytes.into());
    }
    let volume = open(&past, vec![bent, past.replica()]).await;
    assert!(at(&volume, 2).await.unwrap().is_some());
    let status = volume.mirrors().status();
    let words = |i: usize| format!("{:?}", status[i]);
    assert!(words(0).contains("log: "), "{}", words(0));
    assert!(!words(1).contains("log: "), "{}", words(1));
    // One that keeps no leaves of the log is passed over.
    let volume = open(&past, vec![past.world.replica(), past.replica()]).await;
    assert!(at(&volume, 2).await.unwrap().is_some());
    let volume = open(&past, vec![past.world.replica()]).await;
    assert!(at(&volume, 2).await.unwrap().is_none());
}

#[tokio::test]
async fn leaf_of_a_stranger_is_refused() {
    let past = Past::new(4);
    let liar = past.replica();
    let head = Head::decode(&past.heads[1]).unwrap();
    let stranger = trust::key::SecretKey::from_seed(&[99; 32]);
    let forged = head.record.statement().sign(&[&stranger]);
    let (epoch, index) = (0, head.frontier.size());
    liar.set_object(ObjectName::Log { epoch, index }, forged.to_bytes().into());
    let volume = open(&past, vec![liar]).await;
    assert!(at(&volume, 2).await.unwrap().is_none(), "not a leaf at all");
}

#[tokio::test]
async fn hole_in_the_log_hides_no_newer_version_with_a_name() {
    let mut past = Past::new(3);
    past.publish_named(4, "stable");
    past.publish(5);
    past.publish_named(6, "stable");
    past.publish(7);
    let stable = VersionRef::Name("stable".parse().unwrap());
    let volume = open(&past, vec![past.replica()]).await;
    assert_eq!(volume.number(&stable).await.unwrap(), Some(6));
    let other = VersionRef::Name("other".parse().unwrap());
    assert_eq!(volume.number(&other).await.unwrap(), None);
    // Without the newer leaf the name does not lead to the older version, unless another mirror has it.
    let hole = past.replica_without(Some(6));
    let volume = open(&past, vec![hole]).await;
    let error = volume.number(&stable).await.unwrap_err();
    assert_eq!(error.class(), Some(Class::Unavailable), "{error}");
    // Another leaf in its place is a lie, and is masked.
    let liar = past.replica();
    let lie = Head::decode(&past.heads[3]).unwrap();
    let (epoch, index) = (0, 6);
    liar.set_object(
        ObjectName::Log { epoch, index },
        lie.record.to_bytes().into(),
    );
    let volume = open(&past, vec![liar, past.replica()]).await;
    assert_eq!(volume.number(&stable).await.unwrap(), Some(6));
    let words = format!("{:?}", volume.mirrors().status()[0]);
    assert!(words.contains("log: "), "{words}");
}

#[tokio::test]
async fn versions_whose_blocks_are_gone_are_not_readable() {
    let past = Past::new(5);
    let gone = [root(&past, 2), root(&past, 3)];
    let store = MemoryStore::new("pruned");
    let kept = past.world.model.records.iter();
    for record in kept.filter(|record| !gone.contains(&record.handle)) {
        store.insert(record.clone());
    }
    store.set_head(past.world.head.clone());
    for (tile, bytes) in past.world.model.tiles().unwrap() {
        store.set_object(ObjectName::Tile { epoch: 0, tile }, bytes.into());
    }
    for head in &past.heads {
        put_leaf(&store, head);
    }
    let volume = open(&past, vec![store]).await;
    match at(&volume, 2).await {
        Err(VolumeError::Read(ReadError::Unavailable { denied, .. })) => {
            assert_eq!(denied, ["pruned"]);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(volume.readable_versions().await, [5, 4, 1]);
}
