//! Blocks on the reader's own disk: used before any replica, and verified in the same way.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sim::liar::{Liar, Lie};
use store::MemoryStore;
use store::cache::format::HEADER_BYTES;
use store::cache::{CacheLimits, DiskCache};
use trust::Record;
use volume::{Fetch, Volume, VolumeOptions};

use crate::world::{World, eventually, noise, read};

fn cache(directory: &Path) -> Arc<DiskCache> {
    let limits = CacheLimits {
        quota_bytes: 64 << 20,
        keep_free_bytes: 0,
    };
    DiskCache::open(directory, limits).unwrap()
}

async fn open(world: &World, liar: Arc<Liar<MemoryStore>>, directory: &Path) -> Arc<Volume> {
    let options = VolumeOptions {
        disk_cache: Some(cache(directory)),
        ..world.options()
    };
    Volume::open(world.model.id(), vec![liar], options)
        .await
        .unwrap()
}

/// Reads `big` through the cache in `directory` and waits until it is on the disk.
async fn fill(world: &World, directory: &Path) {
    let volume = open(world, world.liar(Lie::None), directory).await;
    assert_eq!(read(&volume, "big").await.unwrap(), noise(1, 300_000));
    let snapshot = volume.snapshot();
    let fetched = || snapshot.blocks().counters().fetched.load(Ordering::Relaxed);
    let disk = snapshot.blocks().disk().unwrap().counters();
    let written = || disk.written.load(Ordering::Relaxed);
    eventually("all is on the disk", || written() >= fetched()).await;
}

/// The files of records.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|it| it == "blocks"))
        .collect()
}

/// Calls `change` for the bytes of each record of the cache, and gives their number.
fn each_record(directory: &Path, change: impl Fn(usize, &mut [u8])) -> usize {
    let mut number = 0;
    for path in files(directory) {
        let mut bytes = std::fs::read(&path).unwrap();
        let mut rest = bytes.get_mut(HEADER_BYTES..).unwrap();
        while let Ok(Some(taken)) = Record::take(&mut Bytes::copy_from_slice(rest)) {
            let (record, behind) = rest.split_at_mut(taken.len());
            change(number, record);
            number += 1;
            rest = behind;
        }
        std::fs::write(&path, bytes).unwrap();
    }
    number
}

#[tokio::test]
async fn blocks_read_before_are_read_without_any_replica() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    fill(&world, directory.path()).await;
    // The replica still gives the head, but has no blocks.
    let empty = world.liar(Lie::DenyBlocks);
    let volume = open(&world, empty.clone(), directory.path()).await;
    assert_eq!(read(&volume, "big").await.unwrap(), noise(1, 300_000));
    assert_eq!(empty.asked(), 0);
    let snapshot = volume.snapshot();
    let counters = snapshot.blocks().counters();
    assert!(counters.from_disk.load(Ordering::Relaxed) > 30);
    // A file that was never read is not in the cache.
    assert!(read(&volume, "small").await.is_err());
}

#[tokio::test]
async fn a_damaged_block_on_the_local_disk_is_replaced() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    fill(&world, directory.path()).await;
    // Change one byte of the content of each record, so that it keeps its name.
    each_record(directory.path(), |n, record| {
        let last = record.len() - 1 - n % 7;
        record[last] ^= 1 << (n % 8);
    });
    let volume = open(&world, world.liar(Lie::None), directory.path()).await;
    assert_eq!(read(&volume, "big").await.unwrap(), noise(1, 300_000));
    let snapshot = volume.snapshot();
    let blocks = snapshot.blocks();
    assert_eq!(blocks.counters().from_disk.load(Ordering::Relaxed), 0);
    let disk = blocks.disk().unwrap();
    assert!(disk.counters().damaged.load(Ordering::Relaxed) > 30);
    drop((snapshot, volume));
    // The damage is gone from the disk.
    let volume = open(&world, world.liar(Lie::DenyBlocks), directory.path()).await;
    assert_eq!(read(&volume, "big").await.unwrap(), noise(1, 300_000));
}

#[test]
fn a_stuck_disk_leaves_mirrors_the_time_to_answer() {
    // The only thread that reads the disk is busy.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (world, directory) = (World::new(), tempfile::tempdir().unwrap());
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let outcome = runtime.block_on(async {
        let volume = open(&world, world.liar(Lie::None), directory.path()).await;
        tokio::task::spawn_blocking(move || ended.recv());
        let snapshot = volume.snapshot();
        let how = Fetch::Until(Instant::now() + Duration::from_secs(10));
        let big = snapshot.resolve(b"big", how).await?.unwrap();
        snapshot.read(&big, 0, 300_000, how).await
    });
    drop(end);
    assert_eq!(outcome.unwrap().concat(), noise(1, 300_000));
}

#[tokio::test]
async fn a_wrong_block_never_reaches_the_disk() {
    let world = World::new();
    let directory = tempfile::tempdir().unwrap();
    let liar = world.liar(Lie::None);
    let volume = open(&world, liar.clone(), directory.path()).await;
    liar.tell(Lie::WrongPlaintext);
    assert!(read(&volume, "big").await.is_err());
    drop(volume);
    let before = each_record(directory.path(), |_, _| {});
    liar.tell(Lie::None);
    let volume = open(&world, liar, directory.path()).await;
    assert_eq!(read(&volume, "big").await.unwrap(), noise(1, 300_000));
    let snapshot = volume.snapshot();
    let disk = snapshot.blocks().disk().unwrap();
    assert_eq!(disk.counters().damaged.load(Ordering::Relaxed), 0);
    assert!(before < 10, "{before} blocks of a file that was refused");
}
