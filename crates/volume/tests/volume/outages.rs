//! An outage between a head and the files that prove it: the reader asks for tiles and policies again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use store::object::ObjectName;
use store::{BlockStore, BoxFuture, MemoryStore, Objects, Replica, StoreError};
use trust::error::Class;
use trust::{Handle, Record};
use volume::{Volume, VolumeError};

use crate::world::{World, now, tree};

/// Gives heads and blocks, and refuses the next requests for other files.
struct Restarting {
    store: MemoryStore,
    refuses: AtomicUsize,
}

impl Restarting {
    fn new(world: &World, refuses: usize) -> Arc<Restarting> {
        Arc::new(Restarting {
            store: world.replica(),
            refuses: AtomicUsize::new(refuses),
        })
    }
}

impl BlockStore for Restarting {
    fn place(&self) -> &str {
        "restarting"
    }

    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        self.store.get_many(want, around)
    }
}

impl Replica for Restarting {
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        self.store.head()
    }

    fn objects(&self) -> Option<&dyn Objects> {
        Some(self)
    }
}

impl Objects for Restarting {
    fn range(
        &self,
        name: ObjectName,
        offset: u64,
        len_bytes: usize,
    ) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        let one_less = |left: usize| left.checked_sub(1);
        let refused = self
            .refuses
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        if refused.is_ok() {
            let error = StoreError::Unavailable {
                place: "restarting".to_owned(),
                cause: "it restarts".to_owned(),
            };
            return Box::pin(async move { Err(error) });
        }
        match self.store.objects() {
            Some(objects) => objects.range(name, offset, len_bytes),
            None => Box::pin(async { Ok(None) }),
        }
    }
}

fn publish(world: &mut World) {
    let root = tree(&mut world.model);
    world.head = world.model.publish(&root, now(), 3600).unwrap();
}

async fn open(world: &World, replica: Arc<dyn Replica>) -> Result<Arc<Volume>, VolumeError> {
    world.open(vec![replica]).await
}

#[tokio::test]
async fn opening_waits_for_the_proof_that_the_log_only_grew() {
    let mut world = World::new();
    open(&world, Arc::new(world.replica())).await.unwrap();
    (0..3).for_each(|_| publish(&mut world));
    let replica = Restarting::new(&world, 3);
    let volume = open(&world, replica.clone()).await.unwrap();
    assert_eq!(volume.snapshot().record().version, 4);
    assert_eq!(replica.refuses.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn opening_waits_for_the_policies_between_two_heads() {
    let mut world = World::new();
    for _ in 0..20 {
        world.head = world.model.rotate(|_| {}).unwrap();
    }
    publish(&mut world);
    let replica = Restarting::new(&world, 30);
    open(&world, replica.clone()).await.unwrap();
    assert_eq!(replica.refuses.load(Ordering::Relaxed), 0);

    let volume = open(&world, replica.clone()).await.unwrap();
    let histories = volume.histories().await.unwrap();
    replica.refuses.store(5, Ordering::Relaxed);
    let deadline = Instant::now() + Duration::from_secs(60);
    histories[0].verify_policies(deadline).await.unwrap();
    assert_eq!(replica.refuses.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn mount_that_looks_for_a_newer_version_does_not_wait() {
    let mut world = World::new();
    let replica = Restarting::new(&world, 0);
    let volume = open(&world, replica.clone()).await.unwrap();
    (0..3).for_each(|_| publish(&mut world));
    for record in &world.model.records {
        replica.store.insert(record.clone());
    }
    replica.store.set_head(world.head.clone());
    replica.refuses.store(usize::MAX, Ordering::Relaxed);
    let began = Instant::now();
    let error = volume.refresh().await.unwrap_err();
    assert_eq!(error.class(), Some(Class::Unavailable), "{error}");
    // Its deadline is a minute.
    assert!(began.elapsed() < Duration::from_secs(15));
}
