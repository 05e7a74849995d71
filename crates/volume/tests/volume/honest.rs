//! Reading from an honest replica.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bulla::Tree;
use bulla::verify::verify;
use reader::now as at_once;
use sim::liar::Lie;
use trust::inode::Content;
use volume::Fetch;

use crate::world::{World, noise, now, read, soon};

#[tokio::test]
async fn content_names_and_links_are_as_published() {
    let world = World::new();
    let volume = world.open(vec![Arc::new(world.replica())]).await.unwrap();
    assert_eq!(read(&volume, "big").await.unwrap(), noise(1, 300_000));
    assert_eq!(read(&volume, "small").await.unwrap(), noise(2, 1000));
    assert_eq!(read(&volume, "tiny").await.unwrap(), b"tiny");
    assert_eq!(
        read(&volume, "/dir//./f499").await.unwrap(),
        noise(599, 600)
    );
    let snapshot = volume.current().unwrap();
    assert!(
        snapshot
            .resolve(b"dir/f500", soon())
            .await
            .unwrap()
            .is_none()
    );
    assert!(snapshot.resolve(b"small/x", soon()).await.is_err());
    let followed = snapshot.follow(b"link", soon()).await.unwrap().unwrap();
    assert_eq!(
        snapshot
            .read(&followed, 0, 600, soon())
            .await
            .unwrap()
            .concat(),
        noise(107, 600)
    );
    let link = snapshot.resolve(b"link", soon()).await.unwrap().unwrap();
    assert!(matches!(&link.content, Content::Symlink(t) if t == "dir/f007"));
}

#[tokio::test]
async fn any_range_of_a_file_reads_as_the_same_range_of_its_content() {
    let world = World::new();
    let volume = world.open(vec![Arc::new(world.replica())]).await.unwrap();
    let snapshot = volume.current().unwrap();
    let inode = snapshot.resolve(b"big", soon()).await.unwrap().unwrap();
    let content = noise(1, 300_000);
    for (offset, len) in [
        (0, 1),
        (8191, 2),
        (8192, 8192),
        (100_001, 70_000),
        (299_999, 9),
        (300_000, 5),
    ] {
        let got = snapshot
            .read(&inode, offset, len, soon())
            .await
            .unwrap()
            .concat();
        let end = (offset as usize + len).min(content.len());
        assert_eq!(got, content[offset as usize..end], "{offset}+{len}");
    }
    assert!(
        snapshot
            .read(&inode, u64::MAX, 9, soon())
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn a_listing_can_be_taken_in_parts() {
    let world = World::new();
    let volume = world.open(vec![Arc::new(world.replica())]).await.unwrap();
    let snapshot = volume.current().unwrap();
    let dir = snapshot.resolve(b"dir", soon()).await.unwrap().unwrap();
    let mut names = Vec::new();
    loop {
        let after = names.last().map(|n: &bytes::Bytes| n.to_vec());
        let part = snapshot
            .list(&dir, after.as_deref(), 37, soon())
            .await
            .unwrap();
        if part.is_empty() {
            break;
        }
        assert!(part.len() <= 37);
        names.extend(part.into_iter().map(|(name, _)| name));
    }
    let expected: Vec<String> = (0..500).map(|i| format!("f{i:03}")).collect();
    assert_eq!(names, expected);
}

#[tokio::test]
async fn content_read_before_is_read_again_without_waiting() {
    let world = World::new();
    let replica = world.liar(sim::liar::Lie::None);
    let volume = world.open(vec![replica.clone()]).await.unwrap();
    let snapshot = volume.current().unwrap();
    let dir = at_once(snapshot.resolve(b"dir/f001", Fetch::Cached));
    assert!(matches!(dir, Err(reader::ReadError::NotCached)));
    read(&volume, "dir/f001").await.unwrap();
    let asked = replica.asked();
    let inode = at_once(snapshot.resolve(b"dir/f001", Fetch::Cached))
        .unwrap()
        .unwrap();
    at_once(snapshot.read(&inode, 0, 600, Fetch::Cached)).unwrap();
    assert_eq!(replica.asked(), asked);
}

#[tokio::test]
async fn concurrent_equal_reads_are_one_fetch() {
    let world = World::new();
    let replica = world.liar(sim::liar::Lie::Slow(std::time::Duration::from_millis(50)));
    let volume = world.open(vec![replica.clone()]).await.unwrap();
    let snapshot = volume.current().unwrap();
    let small = snapshot.resolve(b"small", soon()).await.unwrap().unwrap();
    let before = snapshot.blocks().counters().fetched.load(Ordering::Relaxed);
    let reads = (0..20).map(|_| snapshot.read(&small, 0, 1000, soon()));
    for result in futures_util::future::join_all(reads).await {
        assert_eq!(result.unwrap().concat(), noise(2, 1000));
    }
    let after = snapshot.blocks().counters().fetched.load(Ordering::Relaxed);
    assert_eq!(after - before, 1);
}

#[tokio::test(start_paused = true)]
async fn a_verification_waits_once_for_many_directories() {
    const DIRECTORIES: u64 = 300;
    const ROUND_TRIP: Duration = Duration::from_millis(10);
    let mut world = World::new();
    let model = &mut world.model;
    let entries = (0..DIRECTORIES)
        .map(|i| {
            let file = model.file(&noise(9000 + i, 600), 8192).unwrap();
            let array = model.file(&noise(5000 + i, 600), 300).unwrap();
            let inside = vec![(b"array".to_vec(), array), (b"file".to_vec(), file)];
            let directory = model.directory(inside).unwrap();
            (format!("d{i:03}").into_bytes(), directory)
        })
        .collect();
    let root = model.directory(entries).unwrap();
    world.head = model.publish(&root, now(), 3600).unwrap();
    // Not a local replica: those are read directly, without requests.
    let distant = world.liar(Lie::Slow(ROUND_TRIP));
    let volume = world.open(vec![distant]).await.unwrap();
    let snapshot = volume.current().unwrap();
    let began = tokio::time::Instant::now();
    let (path, tally) = (b"".as_slice(), Arc::default());
    let tree = Tree::published(&volume, snapshot);
    let report = verify(&tree, &tree.find(path).await.unwrap(), &tally).await;
    let report = report.unwrap();
    assert_eq!(report.damage_count, 0);
    assert_eq!(report.totals.directories, DIRECTORIES + 1);
    assert_eq!(report.data_blocks, 3 * DIRECTORIES);
    // The tests' time stands still while anybody works, so it counts the answers that were waited for.
    let waits = began.elapsed().as_millis() / ROUND_TRIP.as_millis();
    assert!(waits <= 15, "{waits}");
}
