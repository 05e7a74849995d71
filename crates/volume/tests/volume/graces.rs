//! Expired statements that are still read: which one a grace prefers, and which one a pin finds.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sim::altered::{Alteration, Altered};
use sim::liar::Lie;
use store::object::ObjectName;
use store::{BoxFuture, MemoryStore, Replica, StoreError};
use trust::error::Class;
use trust::judge::Freshness;
use volume::{Refreshed, Volume, VolumeError, VolumeOptions};

use crate::world::{World, noise, now, read};

/// A version whose one file is `name`, valid from `start` on for `duration` seconds.
fn version(world: &mut World, name: &str, start: u64, duration: u64) -> Bytes {
    let file = world.model.file(&noise(60, 5000), 4096).unwrap();
    let entries = vec![(name.as_bytes().to_vec(), file)];
    let root = world.model.directory(entries).unwrap();
    world.model.publish(&root, start, duration).unwrap()
}

async fn open(
    world: &World,
    heads: &[&Bytes],
    freshness: Freshness,
) -> Result<Arc<Volume>, VolumeError> {
    let told = |head: &&Bytes| world.liar(Lie::Head((*head).clone())) as Arc<dyn Replica>;
    let options = VolumeOptions {
        freshness,
        ..world.options()
    };
    Volume::open(world.model.id(), heads.iter().map(told).collect(), options).await
}

#[tokio::test]
async fn under_grace_an_expired_version_is_the_last_choice() {
    let mut world = World::new();
    let fresh = version(&mut world, "fresh", now(), 3600);
    let over = version(&mut world, "over", now() - 100, 50);
    let grace = Freshness::Grace(3600);
    for heads in [[&fresh, &over], [&over, &fresh]] {
        let volume = open(&world, &heads, grace).await.unwrap();
        assert!(read(&volume, "fresh").await.is_ok());
        assert!(!volume.is_stale());
    }
    // Alone, it is read, and known to be expired.
    let newcomer = World {
        state: tempfile::tempdir().unwrap(),
        ..world
    };
    let volume = open(&newcomer, &[&over], grace).await.unwrap();
    assert!(volume.is_stale());
    assert!(read(&volume, "over").await.is_ok());
    let strict = open(&newcomer, &[&over], Freshness::Strict).await;
    assert_eq!(strict.unwrap_err().class(), Some(Class::Expired));
    let short = open(&newcomer, &[&over], Freshness::Grace(10)).await;
    assert_eq!(short.unwrap_err().class(), Some(Class::Expired));
    // A version adopted under the grace is a floor like any other.
    let back = open(&newcomer, &[&fresh], grace).await;
    assert_eq!(back.unwrap_err().class(), Some(Class::Rollback));
}

#[tokio::test]
async fn a_valid_version_is_not_replaced_by_an_expired_newer_one() {
    let mut world = World::new();
    let fresh = version(&mut world, "fresh", now(), 2);
    let over = version(&mut world, "over", now() - 100, 50);
    let later = version(&mut world, "later", now(), 3600);
    let liar = world.liar(Lie::Head(fresh));
    let options = VolumeOptions {
        freshness: Freshness::Grace(3600),
        ..world.options()
    };
    let places = vec![liar.clone() as Arc<dyn Replica>];
    let volume = Volume::open(world.model.id(), places, options)
        .await
        .unwrap();
    liar.tell(Lie::Head(over));
    assert!(matches!(
        volume.refresh().await.unwrap(),
        Refreshed::Unchanged
    ));
    assert!(read(&volume, "fresh").await.is_ok());
    // When the one in use has expired as well, the newer one is preferred.
    world.clock.advance(Duration::from_secs(3));
    assert!(volume.is_stale());
    assert!(matches!(
        volume.refresh().await.unwrap(),
        Refreshed::Adopted(_)
    ));
    assert!(read(&volume, "over").await.is_ok() && volume.is_stale());
    liar.tell(Lie::Head(later));
    volume.refresh().await.unwrap();
    assert!(read(&volume, "later").await.is_ok() && !volume.is_stale());
}

#[tokio::test]
async fn a_pinned_version_is_found_and_not_updated() {
    let mut world = World::new();
    let over = version(&mut world, "over", now() - 100, 50);
    let head = trust::head::Head::decode(&over).unwrap();
    let later = version(&mut world, "later", now(), 3600);
    let pin = |record_hash| Freshness::Pinned {
        version: 2,
        record_hash,
    };
    let liar = world.liar(Lie::Head(over));
    let options = VolumeOptions {
        freshness: pin(head.record.hash()),
        ..world.options()
    };
    let places = vec![liar.clone() as Arc<dyn Replica>];
    let volume = Volume::open(world.model.id(), places, options)
        .await
        .unwrap();
    liar.tell(Lie::Head(later.clone()));
    assert!(matches!(
        volume.refresh().await.unwrap(),
        Refreshed::Unchanged
    ));
    assert!(read(&volume, "over").await.is_ok() && !volume.is_stale());
    // A replica without a log has nothing but its head.
    let gone = open(&world, &[&later], pin(head.record.hash())).await;
    assert_eq!(gone.unwrap_err().class(), Some(Class::Unavailable));
    let wrong = open(&world, &[&later], pin([9; 32])).await;
    assert_eq!(wrong.unwrap_err().class(), Some(Class::Unavailable));
}

/// Gives no leaf of its log.
struct WithoutLeaves(MemoryStore);

impl Alteration for WithoutLeaves {
    fn honest(&self) -> &dyn Replica {
        &self.0
    }

    fn file(
        &self,
        name: ObjectName,
        offset: u64,
        len_bytes: usize,
    ) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        match (name, self.0.objects()) {
            (ObjectName::Log { .. }, _) | (_, None) => Box::pin(std::future::pending()),
            (_, Some(objects)) => objects.range(name, offset, len_bytes),
        }
    }
}

#[tokio::test]
async fn a_stalled_replica_leaves_time_for_others_to_show_a_pinned_version() {
    let mut world = World::new();
    let first = trust::head::Head::decode(&world.head).unwrap();
    world.head = version(&mut world, "later", now(), 3600);
    let honest = world.replica();
    let leaf = ObjectName::Log { epoch: 0, index: 1 };
    honest.set_object(leaf, first.record.to_bytes().into());
    let options = VolumeOptions {
        freshness: Freshness::Pinned {
            version: 1,
            record_hash: first.record.hash(),
        },
        deadline: Duration::from_secs(8),
        ..world.options()
    };
    let stalls = Arc::new(Altered(WithoutLeaves(world.replica())));
    let places: Vec<Arc<dyn Replica>> = vec![stalls, Arc::new(honest)];
    let volume = Volume::open(world.model.id(), places, options).await;
    assert_eq!(volume.unwrap().snapshot().record().version, 1);
}
