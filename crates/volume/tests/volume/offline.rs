//! A start while no replica answers: with the head that was adopted last, from this machine's disk. It is
//! verified like one from a replica.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sim::liar::{Liar, Lie};
use sim::model::Model;
use store::cache::{CacheLimits, DiskCache};
use store::{BlockStore, BoxFuture, MemoryStore, Replica, StoreError};
use trust::error::Class;
use trust::head::Head;
use trust::key::SecretKey;
use trust::policy::Successor;
use trust::roles::{Roles, Threshold};
use trust::timestamp::Timestamp;
use trust::{Handle, Record};
use volume::{Volume, VolumeError, VolumeOptions};

use crate::world::{World, noise, now, read, read_with, tree, within};

/// A replica that does not answer.
struct Dead;

fn gone<T>() -> BoxFuture<'static, Result<T, StoreError>> {
    let cause = "connection refused".to_owned();
    let place = "dead".to_owned();
    Box::pin(async { Err(StoreError::Unavailable { place, cause }) })
}

impl BlockStore for Dead {
    fn place(&self) -> &str {
        "dead"
    }

    fn get_many<'a>(
        &'a self,
        _want: &'a [Handle],
        _around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        gone()
    }
}

impl Replica for Dead {
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        gone()
    }
}

async fn open(
    world: &World,
    replicas: Vec<Arc<dyn Replica>>,
    cache: &Path,
) -> Result<Arc<Volume>, VolumeError> {
    open_within(world, replicas, cache, Duration::from_secs(2)).await
}

async fn open_within(
    world: &World,
    replicas: Vec<Arc<dyn Replica>>,
    cache: &Path,
    deadline: Duration,
) -> Result<Arc<Volume>, VolumeError> {
    let limits = CacheLimits {
        quota_bytes: 64 << 20,
        keep_free_bytes: 0,
    };
    let options = VolumeOptions {
        disk_cache: Some(DiskCache::open(cache, limits).unwrap()),
        deadline,
        ..world.options()
    };
    Volume::open(world.model.id(), replicas, options).await
}

/// Adopts what `replica` tells, and reads `name` through the cache.
async fn fill(world: &World, replica: Arc<dyn Replica>, cache: &Path, name: &str) {
    let volume = open(world, vec![replica], cache).await.unwrap();
    assert!(!volume.is_offline());
    read(&volume, name).await.unwrap();
}

async fn refused(world: &World, replica: Arc<dyn Replica>, cache: &Path) -> Option<Class> {
    // An opening that is refused waits for the end of the outage first.
    let deadline = Duration::from_millis(400);
    let opened = open_within(world, vec![replica], cache, deadline).await;
    opened.unwrap_err().class()
}

fn state(world: &World, name: &str) -> PathBuf {
    let volumes = world.state.path().join("volumes");
    volumes.join(world.model.id().to_string()).join(name)
}

/// The next version: with a file `new` beside the old ones.
fn next(world: &mut World, start: u64, duration: u64) -> Bytes {
    let old = tree(&mut world.model);
    let new = world.model.file(&noise(9, 5000), 8192).unwrap();
    let entries = vec![(b"new".to_vec(), new), (b"old".to_vec(), old)];
    let root = world.model.directory(entries).unwrap();
    world.model.publish(&root, start, duration).unwrap()
}

#[tokio::test]
async fn content_read_before_is_readable_while_no_replica_answers() {
    let world = World::new();
    let cache = tempfile::tempdir().unwrap();
    // Nothing was adopted yet, so there is no kept head.
    let class = refused(&world, Arc::new(Dead), cache.path()).await;
    assert_eq!(class, Some(Class::Unavailable));
    fill(&world, world.liar(Lie::None), cache.path(), "big").await;

    let silent = world.liar(Lie::Stall);
    for places in [
        vec![Arc::new(Dead) as Arc<dyn Replica>],
        vec![silent.clone(), Arc::new(Dead)],
        vec![world.liar(Lie::DenyVolume)],
    ] {
        let volume = open(&world, places, cache.path()).await.unwrap();
        assert!(volume.is_offline());
        assert_eq!(volume.snapshot().record().version, 1);
        assert_eq!(read(&volume, "big").await.unwrap(), noise(1, 300_000));
        // A file that was never read is not in the cache.
        let how = within(Duration::from_secs(2));
        let missing = read_with(&volume, "small", how).await.unwrap_err();
        assert_eq!(missing.class(), Some(Class::Unavailable), "{missing}");
        // A reader that continues still gets an error for the outage.
        volume.refresh().await.unwrap_err();
        assert!(volume.is_offline());
    }

    // A replica that comes back is asked for the newest version.
    let volume = open(&world, vec![silent.clone()], cache.path())
        .await
        .unwrap();
    silent.tell(Lie::None);
    volume.refresh().await.unwrap();
    assert!(!volume.is_offline());
    assert_eq!(read(&volume, "small").await.unwrap(), noise(2, 1000));
}

#[tokio::test]
async fn a_newer_version_comes_before_the_kept_one_and_takes_its_place() {
    let mut world = World::new();
    let cache = tempfile::tempdir().unwrap();
    fill(&world, world.liar(Lie::None), cache.path(), "big").await;
    world.head = next(&mut world, now(), 3600);
    let places: Vec<Arc<dyn Replica>> = vec![Arc::new(Dead), world.liar(Lie::None)];
    let volume = open(&world, places, cache.path()).await.unwrap();
    assert_eq!(volume.snapshot().record().version, 2);
    assert!(!volume.is_offline());
    read(&volume, "new").await.unwrap();
    drop(volume);
    let volume = open(&world, vec![Arc::new(Dead)], cache.path())
        .await
        .unwrap();
    assert_eq!(volume.snapshot().record().version, 2);
    assert_eq!(read(&volume, "new").await.unwrap(), noise(9, 5000));
}

#[tokio::test]
async fn an_update_that_a_running_reader_adopts_is_kept_too() {
    let mut world = World::new();
    let cache = tempfile::tempdir().unwrap();
    let old = world.head.clone();
    world.head = next(&mut world, now(), 3600);
    let liar = world.liar(Lie::Head(old));
    let volume = open(&world, vec![liar.clone()], cache.path())
        .await
        .unwrap();
    liar.tell(Lie::None);
    volume.refresh().await.unwrap();
    drop(volume);
    let volume = open(&world, vec![Arc::new(Dead)], cache.path())
        .await
        .unwrap();
    assert_eq!(volume.snapshot().record().version, 2);
}

#[tokio::test]
async fn a_kept_head_hides_no_rollback_and_no_fork() {
    let mut world = World::new();
    let cache = tempfile::tempdir().unwrap();
    let old = world.head.clone();
    world.head = next(&mut world, now(), 3600);
    fill(&world, world.liar(Lie::None), cache.path(), "new").await;
    let places =
        || -> Vec<Arc<dyn Replica>> { vec![Arc::new(Dead), world.liar(Lie::Head(old.clone()))] };
    let error = open(&world, places(), cache.path()).await.unwrap_err();
    assert_eq!(error.class(), Some(Class::Rollback), "{error}");
    world.model.fork(Some(&old)).unwrap();
    let other = next(&mut world, now() + 1, 3600);
    let class = refused(&world, world.liar(Lie::Head(other)), cache.path()).await;
    assert_eq!(class, Some(Class::Fork));
    let evidence = std::fs::read_dir(state(&world, "evidence")).unwrap();
    // The old head and the other one, each with the head that it contradicts.
    assert_eq!(evidence.count(), 4);
    // Without a replica that contradicts it, the kept head is used.
    let alone = open(&world, vec![Arc::new(Dead)], cache.path()).await;
    assert!(alone.unwrap().is_offline());
}

/// Policy 1 of the world's volume, which demands timestamps.
fn with_timestamps(world: &World) -> Head {
    let key = SecretKey::from_seed(&[7; 32]);
    let mut head = Head::decode(&world.head).unwrap();
    let policy = Successor {
        number: 1,
        previous: head.policies[0].hash(),
        not_after: u64::MAX,
        log_epoch: 0,
        roles: Roles {
            timestamps: Threshold::single(key.public()),
            timestamp_max: 10_000,
            ..Roles::single(key.public())
        },
        last: None,
        lower: false,
        revoked: None,
        refused: Vec::new(),
    };
    head.policies
        .push(policy.statement(world.model.id()).sign(&[&key]));
    head
}

/// The head under a timestamp that is valid for so many seconds.
fn stamped(world: &World, head: &Head, seconds: u64) -> Bytes {
    let newest = head.policies.last().unwrap();
    let timestamp = Timestamp {
        record_hash: head.record.hash(),
        policy_number: head.policies.len() as u64 - 1,
        policy_hash: newest.hash(),
        issued: now(),
        until: now() + seconds,
    };
    let timestamp = timestamp.statement(world.model.id());
    let timestamp = timestamp.sign(&[&SecretKey::from_seed(&[7; 32])]);
    let head = Head {
        timestamp: Some(timestamp),
        ..head.clone()
    };
    head.encode().unwrap().into()
}

#[tokio::test]
async fn start_with_a_shorter_timestamp_does_not_replace_the_kept_head() {
    let world = World::new();
    let cache = tempfile::tempdir().unwrap();
    let head = with_timestamps(&world);
    let kept = || std::fs::read(state(&world, "adopted")).unwrap();
    for (seconds, longest) in [(1000, 1000), (500, 1000), (2000, 2000), (1999, 2000)] {
        let shown = world.liar(Lie::Head(stamped(&world, &head, seconds)));
        fill(&world, shown, cache.path(), "small").await;
        let kept = Head::decode(&kept()).unwrap().timestamp.unwrap();
        let kept: Timestamp = kept.statement().read(world.model.id()).unwrap();
        assert!(kept.until.abs_diff(now() + longest) < 100, "{seconds}");
    }
}

#[tokio::test]
async fn kept_head_has_all_policies_that_the_reader_knows() {
    let world = World::new();
    let cache = tempfile::tempdir().unwrap();
    let lagging = world.head.clone();
    let newest = world.model.succeed(&lagging, &lagging, false).unwrap();
    let kept = || std::fs::read(state(&world, "adopted")).unwrap();
    fill(
        &world,
        world.liar(Lie::Head(newest.clone())),
        cache.path(),
        "small",
    )
    .await;
    fill(
        &world,
        world.liar(Lie::Head(lagging.clone())),
        cache.path(),
        "small",
    )
    .await;
    assert_eq!(kept(), newest);
    // Also when nothing was kept.
    std::fs::remove_file(state(&world, "adopted")).unwrap();
    fill(
        &world,
        world.liar(Lie::Head(lagging)),
        cache.path(),
        "small",
    )
    .await;
    assert_eq!(kept(), newest);
}

#[tokio::test]
async fn a_withheld_version_does_not_displace_the_kept_one() {
    let mut world = World::new();
    let cache = tempfile::tempdir().unwrap();
    fill(&world, world.liar(Lie::None), cache.path(), "big").await;
    let honest = world.replica();
    let new = next(&mut world, now(), 3600);
    let liar = Arc::new(Liar::<MemoryStore>::new(honest, Lie::Head(new)));
    let volume = open(&world, vec![liar], cache.path()).await.unwrap();
    assert!(volume.is_offline());
    assert_eq!(read(&volume, "big").await.unwrap(), noise(1, 300_000));
}

#[tokio::test]
async fn a_kept_head_that_is_damaged_foreign_old_or_expired_is_refused() {
    let mut world = World::new();
    let cache = tempfile::tempdir().unwrap();
    let first = world.head.to_vec();
    // Its blocks lie in the cache, too.
    fill(&world, world.liar(Lie::None), cache.path(), "big").await;
    world.head = next(&mut world, now(), 3600);
    fill(&world, world.liar(Lie::None), cache.path(), "new").await;
    let kept = state(&world, "adopted");
    let good = std::fs::read(&kept).unwrap();
    assert_eq!(good, world.head);
    let floor = std::fs::read(state(&world, "floor")).unwrap();

    let mut bad = vec![Vec::new(), first, vec![0; 2 << 20]];
    for at in (0..good.len()).step_by(7) {
        let mut flipped = good.clone();
        flipped[at] ^= 1 << (at % 8);
        bad.push(flipped);
    }
    bad.push(good[..good.len() - 1].to_vec());
    let mut foreign = Model::new(8).unwrap();
    let root = tree(&mut foreign);
    bad.push(foreign.publish(&root, now(), 3600).unwrap().to_vec());
    bad.push(next(&mut world, now() - 100, 50).to_vec());
    bad.push(next(&mut world, now() + 3000, 3600).to_vec());
    for bytes in bad {
        std::fs::write(&kept, &bytes).unwrap();
        let class = refused(&world, Arc::new(Dead), cache.path()).await;
        assert_eq!(class, Some(Class::Unavailable), "{} bytes", bytes.len());
    }
    std::fs::remove_file(&kept).unwrap();
    std::fs::create_dir(&kept).unwrap();
    assert!(
        refused(&world, Arc::new(Dead), cache.path())
            .await
            .is_some()
    );
    std::fs::remove_dir(&kept).unwrap();
    assert_eq!(std::fs::read(state(&world, "floor")).unwrap(), floor);
    assert!(!state(&world, "evidence").exists());

    // The next reader that reaches a replica repairs it.
    std::fs::write(&kept, b"nonsense").unwrap();
    let honest = world.liar(Lie::Head(Bytes::from(good.clone())));
    fill(&world, honest, cache.path(), "new").await;
    assert_eq!(std::fs::read(&kept).unwrap(), good);
    // Without a cache the kept head is not used.
    let error = world.open(vec![Arc::new(Dead)]).await.unwrap_err();
    assert_eq!(error.class(), Some(Class::Unavailable));
}
