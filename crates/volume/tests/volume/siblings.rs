//! Directory prefetch from a far replica: a reader of whole directories waits once for many files, and a
//! reader of single files does not fetch the others.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use reader::Fetch;
use sim::liar::Lie;
use sim::model::inode;
use trust::array::Extent;
use trust::inode::{Content, FileContent, Inode};
use volume::Volume;

use crate::world::{World, noise, now, read, settle};

const FAR: Lie = Lie::Slow(Duration::from_millis(15));
const DIRECTORIES: usize = 40;
const FILES: usize = 20;

fn seed(directory: usize, file: usize) -> u64 {
    1000 + (directory * FILES + file) as u64
}

/// `d00/` to `d39/`, each with `f00` to `f19` of some blocks.
fn world() -> World {
    let mut world = World::new();
    let model = &mut world.model;
    let mut top = Vec::new();
    for d in 0..DIRECTORIES {
        let files = (0..FILES).map(|f| {
            let file = model.file(&noise(seed(d, f), 3000), 2048).unwrap();
            (format!("f{f:02}").into_bytes(), file)
        });
        let files = files.collect();
        top.push((
            format!("d{d:02}").into_bytes(),
            model.directory(files).unwrap(),
        ));
    }
    let root = model.directory(top).unwrap();
    world.head = model.publish(&root, now(), 3600).unwrap();
    world
}

/// Reads the first `files` files of each directory. Gives the number of blocks and of requests.
async fn go_through(world: &World, files: usize) -> (u64, usize) {
    let liar = world.liar(Lie::None);
    let volume: Arc<Volume> = world.open(vec![liar.clone()]).await.unwrap();
    liar.tell(FAR);
    let before = liar.asked();
    for d in 0..DIRECTORIES {
        for f in 0..files {
            let name = format!("d{d:02}/f{f:02}");
            let bytes = read(&volume, &name).await.unwrap();
            assert!(bytes == noise(seed(d, f), 3000), "{name}");
        }
    }
    settle().await;
    let snapshot = volume.snapshot();
    let fetched = snapshot.blocks().counters().fetched.load(Ordering::Relaxed);
    (fetched, liar.asked() - before)
}

#[tokio::test]
async fn reading_a_whole_directory_costs_few_requests() {
    let world = world();
    let (_, asked) = go_through(&world, FILES).await;
    // Each of 800 files is of an array node and two blocks: 1,640 requests one by one, and half of what
    // they are with read-around alone.
    assert!(asked < 8 * DIRECTORIES, "{asked}");
}

#[tokio::test]
async fn files_with_only_the_node_in_memory_are_prefetched_too() {
    let world = world();
    let liar = world.liar(Lie::None);
    let volume: Arc<Volume> = world.open(vec![liar.clone()]).await.unwrap();
    let snapshot = volume.snapshot();
    let how = Fetch::Until(Instant::now() + Duration::from_secs(60));
    let names = |d: usize| (0..FILES).map(move |f| format!("d{d:02}/f{f:02}"));
    for name in (0..DIRECTORIES).flat_map(names) {
        let file = snapshot.resolve(name.as_bytes(), how).await.unwrap();
        let runs = snapshot.data_runs(&file.unwrap(), 0, 3000, how).await;
        assert_eq!(runs.unwrap().data.first(), Some(&(0..3000)), "{name}");
    }
    liar.tell(FAR);
    let before = liar.asked();
    for name in (0..DIRECTORIES).flat_map(names) {
        read(&volume, &name).await.unwrap();
    }
    let asked = liar.asked() - before;
    assert!(asked < 8 * DIRECTORIES, "{asked}");
}

#[tokio::test]
async fn a_file_of_very_many_very_short_blocks_is_not_fetched_ahead() {
    let mut world = World::new();
    let extents: Vec<Extent> = (0..20_000u16)
        .map(|n| {
            let handle = world.model.block(&n.to_le_bytes()).unwrap();
            Extent::Data { handle, len: 2 }
        })
        .collect();
    let shreds = world.model.extents(&extents).unwrap().unwrap();
    let shreds = inode(0o644, Content::Regular(FileContent::Array(shreds)));
    let mut files: Vec<(Vec<u8>, Inode)> = (0..FILES)
        .map(|f| {
            let file = world.model.file(&noise(seed(0, f), 3000), 2048).unwrap();
            (format!("f{f:02}").into_bytes(), file)
        })
        .collect();
    files.push((b"f01-shreds".to_vec(), shreds));
    let root = world.model.directory(files).unwrap();
    world.head = world.model.publish(&root, now(), 3600).unwrap();
    let liar = world.liar(Lie::None);
    let volume: Arc<Volume> = world.open(vec![liar.clone()]).await.unwrap();
    liar.tell(FAR);
    for name in ["f00", "f01"] {
        read(&volume, name).await.unwrap();
    }
    settle().await;
    // The others came, and of that one no more than its nodes.
    let snapshot = volume.snapshot();
    let fetched = snapshot.blocks().counters().fetched.load(Ordering::Relaxed) as usize;
    assert!((2 * FILES..200).contains(&fetched), "{fetched}");
}

#[tokio::test]
async fn reading_one_file_of_each_directory_fetches_no_others() {
    let world = world();
    let (fetched, _) = go_through(&world, 1).await;
    // Six blocks for each directory: the path to the file, and the file.
    assert!(fetched <= 6 * DIRECTORIES as u64, "{fetched}");
}

#[tokio::test]
async fn reading_few_files_of_a_directory_fetches_few_blocks() {
    let world = world();
    let (fetched, _) = go_through(&world, 2).await;
    let all = (DIRECTORIES * FILES * 3) as u64;
    assert!(fetched < all / 2, "{fetched} of {all}");
}
