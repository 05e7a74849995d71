//! Several mirrors of which all but one misbehave, each in its own way: the reader gets the right bytes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sim::liar::Lie;
use sim::model::Model;
use store::{BlockStore, BoxFuture, MemoryStore, Replica, StoreError};
use trust::{Handle, Record};
use volume::{Volume, VolumeOptions};

use crate::world::{World, noise, now, read, tree};

/// Answers requests for the head, and never those for blocks.
struct Announcer {
    head: Bytes,
}

impl BlockStore for Announcer {
    fn place(&self) -> &str {
        "announcer"
    }

    fn get_many<'a>(
        &'a self,
        _want: &'a [Handle],
        _around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        Box::pin(std::future::pending())
    }
}

impl Replica for Announcer {
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        let head = self.head.clone();
        Box::pin(async move { Ok(head) })
    }
}

fn patient(world: &World) -> VolumeOptions {
    VolumeOptions {
        deadline: Duration::from_secs(200),
        ..world.options()
    }
}

fn next(model: &mut Model, seed: u64) -> Bytes {
    let old = tree(model);
    let mut entries = vec![(
        b"new".to_vec(),
        model.file(&noise(seed, 5000), 8192).unwrap(),
    )];
    entries.push((b"old".to_vec(), old));
    let root = model.directory(entries).unwrap();
    model.publish(&root, now(), 3600).unwrap()
}

#[tokio::test]
async fn one_honest_mirror_among_bad_ones_suffices() {
    for honest_at in 0..5 {
        let world = World::new();
        let lies = [
            Lie::Stall,
            Lie::WrongPlaintext,
            Lie::DenyBlocks,
            Lie::Slow(Duration::from_millis(900)),
        ];
        let mut replicas: Vec<Arc<dyn Replica>> = lies
            .into_iter()
            .map(|lie| -> Arc<dyn Replica> { world.liar(lie) })
            .collect();
        replicas.insert(honest_at, Arc::new(world.replica()));
        let began = Instant::now();
        let volume = Volume::open(world.model.id(), replicas, patient(&world))
            .await
            .unwrap();
        assert_eq!(read(&volume, "big").await.unwrap(), noise(1, 300_000));
        for n in (0..500).step_by(25) {
            let name = format!("dir/f{n:03}");
            assert_eq!(read(&volume, &name).await.unwrap(), noise(100 + n, 600));
        }
        let took = began.elapsed();
        assert!(took < Duration::from_secs(60), "{honest_at}: {took:?}");
    }
}

#[tokio::test]
async fn waiting_for_further_heads_is_bounded() {
    let world = World::new();
    let replicas: Vec<Arc<dyn Replica>> = vec![world.liar(Lie::Stall), Arc::new(world.replica())];
    let began = Instant::now();
    let volume = Volume::open(world.model.id(), replicas, patient(&world))
        .await
        .unwrap();
    assert_eq!(read(&volume, "tiny").await.unwrap(), b"tiny");
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn a_mirror_that_announces_and_then_stalls_does_not_hide_other_versions() {
    let mut world = World::new();
    let honest = world.replica();
    let head = next(&mut world.model, 7);
    let options = VolumeOptions {
        deadline: Duration::from_secs(8),
        ..world.options()
    };
    let replicas: Vec<Arc<dyn Replica>> = vec![Arc::new(Announcer { head }), Arc::new(honest)];
    let volume = Volume::open(world.model.id(), replicas, options)
        .await
        .unwrap();
    assert_eq!(volume.snapshot().record().version, 1);
    assert_eq!(read(&volume, "big").await.unwrap(), noise(1, 300_000));
}

#[tokio::test]
async fn a_lagging_mirror_is_asked_last_until_it_has_caught_up() {
    let mut world = World::new();
    let lagging = Arc::new(MemoryStore::new("lagging"));
    for record in world.replica().get_many(&all(&world), 0).await.unwrap() {
        lagging.insert(record);
    }
    lagging.set_head(world.head.clone());
    world.head = next(&mut world.model, 8);
    let replicas: Vec<Arc<dyn Replica>> = vec![lagging.clone(), Arc::new(world.replica())];
    let volume = Volume::open(world.model.id(), replicas, patient(&world))
        .await
        .unwrap();
    assert_eq!(volume.snapshot().record().version, 2);
    let behind = |volume: &Volume| -> Vec<bool> {
        let status = volume.mirrors().status();
        status.into_iter().map(|status| status.behind).collect()
    };
    assert_eq!(behind(&volume), [true, false]);
    assert_eq!(read(&volume, "new").await.unwrap(), noise(8, 5000));
    lagging.set_head(world.head.clone());
    volume.refresh().await.unwrap();
    assert_eq!(behind(&volume), [false, false]);
}

fn all(world: &World) -> Vec<Handle> {
    world.model.records.iter().map(|r| r.handle).collect()
}
