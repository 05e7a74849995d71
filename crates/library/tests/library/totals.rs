//! Totals of a volume: a walk over all of it compares them with the signed ones. Nothing else depends on
//! them.

use std::sync::Arc;

use bulla::extract::ExtractOptions;
use bulla::verify::Report;
use sim::model::Model;
use trust::error::Class;
use trust::inode::Inode;
use trust::root::Totals;

use crate::support::{extract, verify};
use crate::world::{World, noise, now};

/// Verifies everything below `path`. Gives the report and the final tally (entries, bytes).
async fn verified(world: &World, path: &str) -> (Report, u64, u64) {
    let volume = world.open(vec![Arc::new(world.replica())]).await.unwrap();
    let snapshot = volume.current().unwrap();
    let tally = Arc::default();
    let report = verify(&volume, &snapshot, path.as_bytes(), &tally).await;
    let count = |n: &std::sync::atomic::AtomicU64| n.load(std::sync::atomic::Ordering::Relaxed);
    (report.unwrap(), count(&tally.leaves), count(&tally.bytes))
}

/// The world's tree, signed as holding this much.
fn signed(totals: Totals) -> World {
    let mut world = World::new();
    let root = crate::world::tree(&mut world.model);
    let root = world.model.block(&root.encode()).unwrap();
    let spoil = |record: &mut trust::root::RootRecord| record.totals = totals;
    let head = world.model.publish_handle(root, now(), 3600, spoil);
    world.head = head.unwrap();
    world
}

fn honest() -> Totals {
    let mut model = Model::new(7).unwrap();
    let root = crate::world::tree(&mut model);
    model.totals(&root)
}

#[tokio::test]
async fn a_walk_counts_the_signed_totals() {
    let (report, leaves, bytes) = verified(&World::new(), "").await;
    assert_eq!(report.damage_count, 0, "{:?}", report.damages);
    assert_eq!(report.totals, honest());
    assert_eq!(
        report.totals,
        Totals {
            files: 503,
            directories: 2,
            other: 1,
            bytes: 300_000 + 1000 + 4 + 500 * 600,
        }
    );
    assert_eq!((leaves, bytes), (504, report.totals.bytes), "the tally");
}

#[tokio::test]
async fn totals_that_were_signed_wrong_are_a_malformed_tree() {
    let change: [fn(&mut Totals); 6] = [
        |totals| totals.files += 1,
        |totals| totals.files -= 1,
        |totals| totals.directories += 1,
        |totals| totals.other = 0,
        |totals| totals.bytes -= 1,
        |totals| totals.bytes = u64::MAX,
    ];
    for change in change {
        let mut totals = honest();
        change(&mut totals);
        let world = signed(totals);
        let (report, ..) = verified(&world, "").await;
        assert_eq!(report.damage_count, 1, "{totals:?}");
        let why = &report.gravest().unwrap().why;
        assert_eq!(why.class(), Some(Class::Integrity), "{why}");
        // No totals are signed for a part of the tree.
        let (report, ..) = verified(&world, "dir").await;
        assert_eq!(report.damage_count, 0);
    }
}

/// A file with several names.
fn linked(model: &mut Model, group: u8, content: &[u8]) -> Inode {
    let mut inode = model.file(content, 8192).unwrap();
    inode.links = 2;
    inode.link_group = Some([group; 16]);
    inode
}

#[tokio::test]
async fn a_file_with_several_names_counts_its_content_once_wherever_they_are() {
    let mut world = World::new();
    let model = &mut world.model;
    // Two equal directories, of which a walk visits one.
    let long = linked(model, 1, &noise(40, 30_000));
    let short = linked(model, 2, b"short");
    let plain = model.file(&noise(41, 5000), 8192).unwrap();
    let inside = || {
        let entries = [("long", &long), ("plain", &plain), ("short", &short)];
        entries.map(|(name, inode)| (name.as_bytes().to_vec(), inode.clone()))
    };
    let directory = model.directory(inside().to_vec()).unwrap();
    let entries = ["a", "b"].map(|name| (name.as_bytes().to_vec(), directory.clone()));
    let root = model.directory(entries.to_vec()).unwrap();
    world.head = model.publish(&root, now(), 3600).unwrap();
    let (report, leaves, _) = verified(&world, "").await;
    assert_eq!(report.damage_count, 0, "{:?}", report.damages);
    assert_eq!((report.totals.files, report.totals.directories), (6, 3));
    assert_eq!(report.totals.bytes, 2 * 5000 + 30_000 + 5);
    assert_eq!(leaves, 6);
}

#[tokio::test]
async fn absurd_signed_totals_do_no_harm() {
    let most = u64::MAX;
    let totals = Totals {
        files: most,
        directories: most,
        other: most,
        bytes: most,
    };
    assert_eq!(totals.entries(), most);
    let mut sum = totals;
    sum.add(totals);
    assert_eq!(sum, totals);
    let world = signed(totals);
    let volume = world.open(vec![Arc::new(world.replica())]).await.unwrap();
    let snapshot = volume.current().unwrap();
    let target = tempfile::tempdir().unwrap();
    let (options, tally) = (ExtractOptions::default(), Arc::default());
    let made = extract(&volume, &snapshot, b"", target.path(), &options, &tally).await;
    assert_eq!(made.unwrap().totals, honest());
    let bytes = tally.bytes.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(bytes, honest().bytes, "the tally");
}
