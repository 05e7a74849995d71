//! Heads that skip versions: tiles of the log that are honest, wrong or missing, and a publisher that
//! rewrote skipped versions.

use std::sync::Arc;

use bytes::Bytes;
use store::Replica;
use store::memory::MemoryStore;
use store::object::ObjectName;
use trust::error::Class;
use volume::{Refreshed, Volume, VolumeError};

use crate::world::{World, noise, now};

/// The newest root once more, as another version.
fn publish(world: &mut World, seed: u64) {
    let file = world.model.file(&noise(seed, 100), 8192).unwrap();
    let root = world.model.directory(vec![(b"new".to_vec(), file)]);
    world.head = world.model.publish(&root.unwrap(), now(), 3600).unwrap();
}

/// A world at version 4 and a reader's floor at version 2.
async fn skipped() -> World {
    let mut world = World::new();
    publish(&mut world, 2);
    world.open(vec![Arc::new(world.replica())]).await.unwrap();
    publish(&mut world, 3);
    publish(&mut world, 4);
    world
}

/// The tile that the reader needs of a log of five leaves.
fn wanted() -> ObjectName {
    ObjectName::from_bytes(b"log/0/tiles/0.0.5").unwrap()
}

fn without_log(world: &World) -> MemoryStore {
    let store = MemoryStore::new("no log");
    for record in &world.model.records {
        store.insert(record.clone());
    }
    store.set_head(world.head.clone());
    store
}

fn version(volume: &Volume) -> u64 {
    volume.snapshot().record().version
}

#[tokio::test]
async fn a_log_that_only_grew_is_adopted() {
    let world = skipped().await;
    let volume = world.open(vec![Arc::new(world.replica())]).await.unwrap();
    assert_eq!(version(&volume), 4);
}

#[tokio::test]
async fn a_wrong_tile_is_masked_by_another_mirror_and_its_sender_blamed() {
    let world = skipped().await;
    let right = world.model.tiles().unwrap();
    let right = right
        .iter()
        .find(|(t, _)| t.to_string() == "0.0.5")
        .unwrap();
    let mut flipped = right.1.clone();
    flipped[0] ^= 1;
    let short = right.1[..96].to_vec();
    for wrong in [flipped, short, noise(9, 160), noise(9, 9000), Vec::new()] {
        let liar = world.replica();
        liar.set_object(wanted(), wrong.into());
        let state = tempfile::tempdir().unwrap();
        copy(world.state.path(), state.path());
        let options = volume::VolumeOptions {
            state_directory: state.path().to_owned(),
            ..world.options()
        };
        let replicas: Vec<Arc<dyn Replica>> = vec![Arc::new(liar), Arc::new(world.replica())];
        let volume = Volume::open(world.model.id(), replicas, options).await;
        let volume = volume.unwrap();
        assert_eq!(version(&volume), 4);
        let status = volume.mirrors().status();
        let words = |i: usize| format!("{:?}", status[i]);
        assert!(words(0).contains("log: history"), "{}", words(0));
        assert!(!words(1).contains("log: history"), "{}", words(1));
    }
}

#[tokio::test]
async fn a_mirror_without_a_log_is_skipped() {
    let world = skipped().await;
    let volume = world
        .open(vec![
            Arc::new(without_log(&world)),
            Arc::new(world.replica()),
        ])
        .await
        .unwrap();
    assert_eq!(version(&volume), 4);
}

#[tokio::test]
async fn without_a_proof_the_older_version_stays_and_no_replica_is_accused() {
    let mut world = World::new();
    publish(&mut world, 2);
    let store = Arc::new(without_log(&world));
    let volume = world.open(vec![store.clone()]).await.unwrap();
    publish(&mut world, 3);
    publish(&mut world, 4);
    store.set_head(world.head.clone());
    for record in &world.model.records {
        store.insert(record.clone());
    }
    let error = volume.refresh().await.unwrap_err();
    assert_eq!(error.class(), Some(Class::Unavailable), "{error}");
    assert!(error.to_string().contains("only grew"), "{error}");
    assert_eq!(version(&volume), 2);
    assert!(volume.current().is_ok());
    assert!(evidence(&world).is_empty());

    // As soon as a replica gives the proof, the new version is adopted.
    for (tile, bytes) in world.model.tiles().unwrap() {
        store.set_object(ObjectName::Tile { epoch: 0, tile }, bytes.into());
    }
    let adopted = volume.refresh().await.unwrap();
    assert!(matches!(adopted, Refreshed::Adopted(_)));
    assert_eq!(version(&volume), 4);
}

#[tokio::test]
async fn a_rewritten_skipped_version_is_a_fork_with_evidence() {
    let mut world = World::new();
    let first = world.head.clone();
    publish(&mut world, 2);
    let adopted = world.head.clone();
    world.open(vec![Arc::new(world.replica())]).await.unwrap();
    world.model.fork(Some(&first)).unwrap();
    for seed in [12, 13, 14] {
        publish(&mut world, seed);
    }
    let opened = world.open(vec![Arc::new(world.replica())]).await;
    let error: VolumeError = opened.expect_err("a rewritten history was adopted");
    assert_eq!(error.class(), Some(Class::Fork), "{error}");
    let kept = evidence(&world);
    let tiles = world.model.tiles().unwrap();
    let tile = tiles.iter().find(|(t, _)| t.to_string() == "0.0.5");
    assert!(kept.contains(&world.head), "the head");
    assert!(
        kept.contains(&Bytes::from(tile.unwrap().1.clone())),
        "the tile"
    );
    assert!(kept.contains(&adopted), "the head adopted before");
    assert_eq!(kept.len(), 4, "and the floor");
}

fn evidence(world: &World) -> Vec<Bytes> {
    let volume = world.state.path().join("volumes");
    let kept = volume.join(world.model.id().to_string()).join("evidence");
    let Ok(files) = std::fs::read_dir(kept) else {
        return Vec::new();
    };
    let read = |file: std::io::Result<std::fs::DirEntry>| std::fs::read(file.unwrap().path());
    files.map(|file| read(file).unwrap().into()).collect()
}

/// Copies a directory of files and directories.
fn copy(from: &std::path::Path, to: &std::path::Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&to).unwrap();
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}
