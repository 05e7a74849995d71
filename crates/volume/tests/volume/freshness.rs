//! Floors: rollback, fork, expiry, clocks, updates (SFSRO 3.2 and 3.4).

use std::sync::Arc;

use bytes::Bytes;
use reader::ReadError;
use sim::liar::Lie;
use store::Replica;
use trust::Handle;
use trust::error::Class;
use trust::floor::Floor;
use trust::judge::Freshness;
use volume::volume::{Candidate, Demands};
use volume::{Refreshed, Snapshot, Volume, VolumeError, VolumeOptions};

use crate::evidence::evidence;
use crate::world::{World, noise, now, read, tree};

pub fn next(world: &mut World, seed: u64) -> Bytes {
    let file = world.model.file(&noise(seed, 5000), 4096).unwrap();
    let root = world
        .model
        .directory(vec![(b"new".to_vec(), file)])
        .unwrap();
    world.model.publish(&root, now(), 3600).unwrap()
}

/// Why a volume does not open.
async fn refused(world: &World, replicas: Vec<Arc<dyn Replica>>) -> VolumeError {
    world.open(replicas).await.unwrap_err()
}

/// The error of a reader of two replicas that show these heads.
async fn contradicted(world: &World, one: Bytes, other: Bytes) -> Option<Class> {
    let both = [one, other].map(|head| world.liar(Lie::Head(head)) as Arc<dyn Replica>);
    refused(world, both.to_vec()).await.class()
}

/// The directory in which the reader remembers the volume.
pub fn kept(world: &World) -> std::path::PathBuf {
    let volumes = world.state.path().join("volumes");
    volumes.join(world.model.id().to_string())
}

/// What the reader has seen, as it is on disk.
fn floor(world: &World) -> Floor {
    Floor::decode(&std::fs::read(kept(world).join("floor")).unwrap()).unwrap()
}

#[tokio::test]
async fn an_update_is_adopted_as_a_whole_and_never_taken_back() {
    let mut world = World::new();
    let old = world.head.clone();
    let new = next(&mut world, 50);
    let liar = world.liar(Lie::Head(old.clone()));
    let volume = world.open(vec![liar.clone()]).await.unwrap();
    assert!(matches!(
        volume.refresh().await.unwrap(),
        Refreshed::Unchanged
    ));
    liar.tell(Lie::Head(new));
    assert!(matches!(
        volume.refresh().await.unwrap(),
        Refreshed::Adopted(_)
    ));
    assert_eq!(read(&volume, "new").await.unwrap(), noise(50, 5000));
    assert!(matches!(
        read(&volume, "big").await,
        Err(VolumeError::Read(ReadError::NotFound { .. }))
    ));

    liar.tell(Lie::Head(old.clone()));
    assert_eq!(
        volume.refresh().await.unwrap_err().class(),
        Some(Class::Rollback)
    );
    assert_eq!(read(&volume, "new").await.unwrap(), noise(50, 5000));
    // Another process of the same user has the same floor, and the evidence is kept: both heads.
    let again = world.open(vec![world.liar(Lie::Head(old.clone()))]).await;
    assert_eq!(again.unwrap_err().class(), Some(Class::Rollback));
    let heads: Vec<_> = evidence(&world).into_iter().map(|(_, head)| head).collect();
    assert_eq!(heads.len(), 2);
    assert!(heads.contains(&old.to_vec()), "the older one");
    assert!(heads.contains(&world.head.to_vec()), "the newer one");
}

#[tokio::test]
async fn a_replica_that_lags_while_another_does_not_is_not_accused() {
    let mut world = World::new();
    let stale = world.liar(Lie::Head(world.head.clone()));
    world.head = next(&mut world, 55);
    let fresh = world.liar(Lie::None);
    for _ in 0..2 {
        let volume = world
            .open(vec![stale.clone(), fresh.clone()])
            .await
            .unwrap();
        assert_eq!(volume.snapshot().record().version, 2);
        for _ in 0..3 {
            let refreshed = volume.refresh().await.unwrap();
            assert!(matches!(refreshed, Refreshed::Unchanged));
        }
        let behind = volume
            .mirrors()
            .status()
            .into_iter()
            .map(|mirror| mirror.behind);
        assert_eq!(behind.collect::<Vec<_>>(), [true, false]);
        assert!(!kept(&world).join("evidence").exists());
    }
    // Alone, it takes the newer version away: a rollback.
    let error = refused(&world, vec![stale]).await;
    assert_eq!(error.class(), Some(Class::Rollback), "{error}");
    assert!(kept(&world).join("evidence").exists());
}

/// The owners' keys signed two policies. Neither becomes true because the mirror with the other is silenced.
#[tokio::test]
async fn fork_of_policies_outlasts_the_mirror_that_showed_it() {
    let mut world = World::new();
    let first = world.head.clone();
    let second = next(&mut world, 57);
    let succeed = |head: &Bytes| world.model.succeed(head, head, false).unwrap();
    let (one, other) = (succeed(&first), succeed(&second));
    let fork = contradicted(&world, one.clone(), other.clone()).await;
    assert_eq!(fork, Some(Class::Fork));
    assert!(floor(&world).forks().policies().is_some());
    for alone in [&one, &other] {
        let error = refused(&world, vec![world.liar(Lie::Head(alone.clone()))]).await;
        assert_eq!(error.class(), Some(Class::Fork), "{error}");
    }
}

/// After a fork no new version is adopted. The adopted version stays readable, and replicas that show newer versions are not accused.
#[tokio::test]
async fn version_in_use_stays_readable_beside_a_fork_of_records() {
    let mut world = World::new();
    let first = world.head.clone();
    let liar = world.liar(Lie::None);
    let volume = world.open(vec![liar.clone()]).await.unwrap();
    let one = next(&mut world, 58);
    world.model.fork(Some(&first)).unwrap();
    let other = next(&mut world, 59);
    assert_eq!(
        contradicted(&world, one.clone(), other.clone()).await,
        Some(Class::Fork)
    );
    assert_eq!(floor(&world).forks().records().unwrap().version, 2);
    let pieces = evidence(&world);
    let later = next(&mut world, 60);
    for head in [one, other, later] {
        liar.tell(Lie::Head(head));
        let error = volume.refresh().await.unwrap_err();
        assert_eq!(error.class(), Some(Class::Fork), "{error}");
        assert_eq!(read(&volume, "small").await.unwrap(), noise(2, 1000));
    }
    assert_eq!(evidence(&world), pieces);
    liar.tell(Lie::None);
    volume.refresh().await.unwrap();
    assert_eq!(read(&volume, "small").await.unwrap(), noise(2, 1000));
}

/// The signers made both records. Neither mirror is proved to lie.
#[tokio::test]
async fn mirrors_that_show_a_fork_are_not_set_aside() {
    let mut world = World::new();
    let first = world.head.clone();
    let (left, right) = (world.liar(Lie::None), world.liar(Lie::None));
    let volume = world.open(vec![left.clone(), right.clone()]).await.unwrap();
    let one = next(&mut world, 58);
    world.model.fork(Some(&first)).unwrap();
    let other = next(&mut world, 59);
    left.tell(Lie::Head(one));
    right.tell(Lie::Head(other));
    let error = volume.refresh().await.unwrap_err();
    assert_eq!(error.class(), Some(Class::Fork), "{error}");
    for mirror in volume.mirrors().status() {
        assert_eq!(mirror.set_aside, None, "{}", mirror.place);
    }
}

#[tokio::test]
async fn two_records_of_one_version_are_a_fork() {
    let mut world = World::new();
    let first = world.head.clone();
    world.open(vec![Arc::new(world.replica())]).await.unwrap();
    world.model.fork(None).unwrap();
    let other = next(&mut world, 51);
    let error = refused(&world, vec![world.liar(Lie::Head(other.clone()))]).await;
    assert_eq!(error.class(), Some(Class::Fork), "{error}");
    // Also if both come at once: the reader stops and does not choose one.
    let state = tempfile::tempdir().unwrap();
    let world = World { state, ..world };
    world
        .open(vec![world.liar(Lie::Head(first.clone()))])
        .await
        .unwrap();
    assert_eq!(contradicted(&world, first, other).await, Some(Class::Fork));
}

#[tokio::test]
async fn a_withheld_new_root_does_not_end_the_version_in_use() {
    let mut world = World::new();
    let old = world.head.clone();
    let honest = world.replica();
    let new = next(&mut world, 52);
    // Both replicas hold the old blocks only; one announces the new root.
    let liar = Arc::new(sim::liar::Liar::new(honest, Lie::Head(old.clone())));
    let volume = world.open(vec![liar.clone()]).await.unwrap();
    liar.tell(Lie::Head(new));
    assert_eq!(
        volume.refresh().await.unwrap_err().class(),
        Some(Class::Unavailable)
    );
    assert_eq!(read(&volume, "small").await.unwrap(), noise(2, 1000));
    // And a new reader still gets the version that the honest replica can serve.
    let fresh = World {
        state: tempfile::tempdir().unwrap(),
        ..world
    };
    let good = Arc::new(sim::liar::Liar::new(fresh.replica_with(old), Lie::None));
    let volume = fresh.open(vec![good]).await.unwrap();
    assert_eq!(read(&volume, "small").await.unwrap(), noise(2, 1000));
}

#[tokio::test]
async fn an_expired_statement_opens_nothing_and_stops_new_readers() {
    let mut world = World::new();
    let root = tree(&mut world.model);
    let expired = world.model.publish(&root, now() - 100, 50).unwrap();
    let error = refused(&world, vec![world.liar(Lie::Head(expired))]).await;
    assert_eq!(error.class(), Some(Class::Expired));
    let short = world.model.publish(&root, now(), 2).unwrap();
    let volume = world
        .open(vec![world.liar(Lie::Head(short))])
        .await
        .unwrap();
    volume.current().unwrap();
    world.clock.advance(std::time::Duration::from_secs(3));
    assert!(matches!(volume.current(), Err(VolumeError::Expired { .. })));
    let snapshot = volume.snapshot();
    let inode = snapshot
        .resolve(b"small", crate::world::soon())
        .await
        .unwrap()
        .unwrap();
    // An open file stays readable.
    snapshot
        .read(&inode, 0, 10, crate::world::soon())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_clock_that_is_behind_gives_no_statement_more_time() {
    let mut world = World::new();
    let root = tree(&mut world.model);
    // By this reader's clock the statement begins in nine minutes: the clock is behind.
    let start = now() + 540;
    let ahead = world.model.publish(&root, start, 2).unwrap();
    let volume = world
        .open(vec![world.liar(Lie::Head(ahead))])
        .await
        .unwrap();
    assert!(volume.now() >= start, "the clock never goes back");
    volume.current().unwrap();
    world.clock.advance(std::time::Duration::from_secs(4));
    assert!(matches!(volume.current(), Err(VolumeError::Expired { .. })));
}

#[tokio::test]
async fn a_clock_that_is_behind_gives_a_renewed_statement_no_more_time() {
    let mut world = World::new();
    let root = tree(&mut world.model);
    let liar = world.liar(Lie::Head(world.head.clone()));
    let volume = world.open(vec![liar.clone()]).await.unwrap();
    let start = now() + 540;
    liar.tell(Lie::Head(world.model.publish(&root, start, 2).unwrap()));
    volume.refresh().await.unwrap();
    assert!(volume.now() >= start, "the clock never goes back");
    world.clock.advance(std::time::Duration::from_secs(4));
    assert!(matches!(volume.current(), Err(VolumeError::Expired { .. })));
}

/// Each refresh shows a record that starts ten minutes after the reader's time. Its root need not exist, because
/// a start is recorded before a version is adopted.
#[tokio::test]
async fn stolen_publisher_key_moves_the_readers_time_by_ten_minutes_at_most() {
    const SEVEN_DAYS: u64 = 7 * 24 * 3600;
    let mut world = World::new();
    let root = tree(&mut world.model);
    world.head = world.model.publish(&root, now(), SEVEN_DAYS).unwrap();
    let wall = world.clock.clock().now();
    let liar = world.liar(Lie::None);
    let volume = world.open(vec![liar.clone()]).await.unwrap();
    for round in 0..120 {
        let nowhere = Handle::from_bytes([round; 32]);
        let start = volume.now() + 600;
        let stolen = world
            .model
            .publish_handle(nowhere, start, SEVEN_DAYS, |_| {});
        liar.tell(Lie::Head(stolen.unwrap()));
        volume.refresh().await.unwrap_err();
        assert!(volume.now() <= wall + 600, "after {round} refreshes");
    }
    assert_eq!(floor(&world).newest_start(), wall + 600);
    liar.tell(Lie::None);
    volume.refresh().await.unwrap();
    assert_eq!(read(&volume, "small").await.unwrap(), noise(2, 1000));
}

#[tokio::test]
async fn a_start_in_the_future_is_refused_and_not_recorded() {
    let mut world = World::new();
    let root = tree(&mut world.model);
    let future = world.model.publish(&root, now() + 3600, 3600).unwrap();
    let error = refused(&world, vec![world.liar(Lie::Head(future))]).await;
    assert_eq!(error.class(), Some(Class::Expired));
    world.open(vec![Arc::new(world.replica())]).await.unwrap();
}

#[tokio::test]
async fn a_revoked_volume_ends_for_its_readers() {
    let world = World::new();
    let liar = world.liar(Lie::None);
    let volume = world.open(vec![liar.clone()]).await.unwrap();
    volume.current().unwrap();
    let ended = world.model.succeed(&world.head, &world.head, true).unwrap();
    liar.tell(Lie::Head(ended));
    let error = volume.refresh().await.unwrap_err();
    assert!(error.to_string().contains("revoked"), "{error}");
    assert!(matches!(volume.current(), Err(VolumeError::Expired { .. })));
    // The old head does not bring it back.
    liar.tell(Lie::None);
    volume.refresh().await.unwrap_err();
    assert!(volume.current().is_err());
}

/// A stolen key signed a record. It is not read until it expires if the owners continued from a record
/// before it.
#[tokio::test]
async fn a_record_that_a_newer_policy_leaves_out_ends_for_its_readers() {
    let mut world = World::new();
    let honest = world.head.clone();
    world.head = next(&mut world, 56);
    let liar = world.liar(Lie::None);
    let volume = world.open(vec![liar.clone()]).await.unwrap();
    assert_eq!(volume.current().unwrap().record().version, 2);
    let succeed = |shown| world.model.succeed(&honest, shown, false).unwrap();
    liar.tell(Lie::Head(succeed(&world.head)));
    volume.refresh().await.unwrap_err();
    assert!(matches!(volume.current(), Err(VolumeError::Expired { .. })));
    liar.tell(Lie::Head(succeed(&honest)));
    volume.refresh().await.unwrap();
    assert_eq!(volume.current().unwrap().record().version, 1);
    assert_eq!(read(&volume, "small").await.unwrap(), noise(2, 1000));
}

/// Demands something that the version of this number lacks.
struct NotOf(u64);

impl Demands for NotOf {
    fn fetch<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        _: std::time::Instant,
    ) -> store::BoxFuture<'a, Result<(), VolumeError>> {
        Box::pin(async move {
            if snapshot.record().version != self.0 {
                return Ok(());
            }
            Err(VolumeError::unavailable("what is in use", "withheld"))
        })
    }
}

#[tokio::test]
async fn a_version_without_demanded_blocks_is_skipped() {
    let mut world = World::new();
    let root = tree(&mut world.model);
    let held = world.model.publish(&root, now(), 3).unwrap();
    let (lagging, newest) = (next(&mut world, 57), next(&mut world, 58));
    let places = [(); 2].map(|()| world.liar(Lie::Head(held.clone())));
    let replicas = places.each_ref().map(|it| it.clone() as Arc<dyn Replica>);
    let volume = world.open(replicas.to_vec()).await.unwrap();
    let version = |found: Option<Candidate>| found.map(|it| it.snapshot().record().version);

    places[0].tell(Lie::Head(newest.clone()));
    places[1].tell(Lie::Head(lagging));
    let found = volume.check_for(&NotOf(4)).await.unwrap();
    assert_eq!(version(found), Some(3));
    assert_eq!(version(volume.check().await.unwrap()), Some(4));
    // No replica has another version: the one in use stays until it expires, then any newer one is used.
    places[1].tell(Lie::Head(newest));
    let error = volume.check_for(&NotOf(4)).await.unwrap_err();
    assert_eq!(error.class(), Some(Class::Unavailable), "{error}");
    world.clock.advance(std::time::Duration::from_secs(4));
    let found = volume.check_for(&NotOf(4)).await.unwrap();
    assert_eq!(version(found), Some(4));
}

/// If every statement has expired, a replica that shows the newest is not behind.
#[tokio::test]
async fn an_expired_statement_does_not_mark_a_replica_as_behind() {
    let mut world = World::new();
    let root = tree(&mut world.model);
    world.head = world.model.publish(&root, now(), 1).unwrap();
    let place = world.liar(Lie::None);
    let volume = world.open(vec![place]).await.unwrap();
    world.clock.advance(std::time::Duration::from_secs(2));
    let error = volume.refresh().await.unwrap_err();
    assert_eq!(error.class(), Some(Class::Expired), "{error}");
    assert!(!volume.mirrors().status()[0].behind);
}

#[tokio::test]
async fn a_damaged_floor_is_an_error_and_not_a_fresh_start() {
    let world = World::new();
    world.open(vec![Arc::new(world.replica())]).await.unwrap();
    let floor = kept(&world).join("floor");
    let mut bytes = std::fs::read(&floor).unwrap();
    bytes.pop();
    std::fs::write(&floor, bytes).unwrap();
    let error = refused(&world, vec![Arc::new(world.replica())]).await;
    assert!(matches!(error, VolumeError::State { .. }), "{error}");
}

#[tokio::test]
async fn two_replicas_that_contradict_one_another_stop_a_new_reader() {
    let mut world = World::new();
    let first = world.head.clone();
    world.model.fork(None).unwrap();
    let other = next(&mut world, 53);
    assert_eq!(contradicted(&world, first, other).await, Some(Class::Fork));
}

#[tokio::test]
async fn a_withheld_version_does_not_hide_the_one_before() {
    let mut world = World::new();
    let (honest, announcer) = (world.replica(), world.replica());
    let new = next(&mut world, 54);
    let announcer = Arc::new(sim::liar::Liar::new(announcer, Lie::Head(new)));
    let volume = world.open(vec![announcer, Arc::new(honest)]).await.unwrap();
    assert_eq!(volume.snapshot().record().version, 1);
    assert_eq!(read(&volume, "small").await.unwrap(), noise(2, 1000));
    let status = volume.mirrors().status();
    assert!(status[0].counts.wrong > 0 && status[1].counts.wrong == 0);
    let why = status[0].last_fault.as_deref().unwrap();
    assert!(why.contains("withholds version 2"), "{why}");
}

#[tokio::test]
async fn outage_of_the_announcing_replica_is_not_withholding() {
    let mut world = World::new();
    let old = world.replica();
    let new = next(&mut world, 54);
    let broken = sim::liar::Liar::new(world.replica_with(new), Lie::FailBlocks);
    let replicas: Vec<Arc<dyn store::Replica>> = vec![Arc::new(broken), Arc::new(old)];
    // Half of the deadline is for the newest version: its replica may come back.
    let options = VolumeOptions {
        deadline: std::time::Duration::from_secs(6),
        ..world.options()
    };
    let opened = Volume::open(world.model.id(), replicas, options).await;
    let volume = opened.unwrap();
    assert_eq!(volume.snapshot().record().version, 1);
    let status = volume.mirrors().status();
    assert_eq!((status[0].counts.wrong, status[1].counts.wrong), (0, 0));
    assert!(status[0].counts.failures > 0);
    // Another replica that denies the new version is not to blame either: it never announced it.
    assert!(status[1].last_fault.is_none(), "{:?}", status[1].last_fault);
}

#[tokio::test]
async fn the_floor_of_another_volume_is_an_error() {
    let world = World::new();
    world.open(vec![Arc::new(world.replica())]).await.unwrap();
    let floor = kept(&world).join("floor");
    let other = trust::floor::Floor::new(trust::statement::VolumeId::from_bytes([1; 32]));
    std::fs::write(&floor, other.encode()).unwrap();
    let error = refused(&world, vec![Arc::new(world.replica())]).await;
    assert!(matches!(error, VolumeError::State { .. }), "{error}");
}

#[tokio::test]
async fn pinning_an_old_version_does_not_replace_the_kept_head() {
    let mut world = World::new();
    let first = world.open(vec![world.liar(Lie::None)]).await.unwrap();
    let old = world.replica();
    let snapshot = first.snapshot();
    let (version, record_hash) = (snapshot.record().version, *snapshot.record_hash());
    let root = tree(&mut world.model);
    world.head = world.model.publish(&root, now(), 3600).unwrap();
    world.open(vec![world.liar(Lie::None)]).await.unwrap();
    assert_eq!(
        std::fs::read(kept(&world).join("adopted")).unwrap(),
        world.head
    );
    let options = VolumeOptions {
        freshness: Freshness::Pinned {
            version,
            record_hash,
        },
        ..world.options()
    };
    let pinned = Volume::open(world.model.id(), vec![Arc::new(old)], options).await;
    assert_eq!(pinned.unwrap().snapshot().record().version, version);
    assert_eq!(
        std::fs::read(kept(&world).join("adopted")).unwrap(),
        world.head
    );
}
