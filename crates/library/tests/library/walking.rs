//! Whole trees from a far replica: what reads everything waits for few answers, a reader that walks a mount is noticed,
//! and one that does not is not burdened with what it does not read.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bulla::Tree;
use bulla::extract::ExtractOptions;
use bulla::walk::Step;
use reader::{Reads, Tally};
use sim::liar::{Liar, Lie};
use store::Replica;
use store::memory::MemoryStore;
use store::object::ObjectName;
use tokio::time::Instant;
use trust::change::Change;
use trust::inode::{Content, Inode};
use volume::{Refreshed, Snapshot, Volume, VolumeOptions};

use crate::far::{self, BELOW, ROUND_TRIP, TOPS, publish, waits_since, world};
use crate::support::{difference, extract, verify};
use crate::world::{World, noise, now, settle, soon};

/// The root, what lies in it, and what lies in these.
const DIRECTORIES: usize = 1 + (TOPS * (1 + BELOW)) as usize;

struct Opened {
    liar: Arc<Liar<MemoryStore>>,
    volume: Arc<Volume>,
    world: World,
}

impl Opened {
    async fn far() -> Opened {
        let (liar, volume, world) = far::open().await;
        Opened {
            liar,
            volume,
            world,
        }
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        self.volume.snapshot()
    }

    fn fetched(&self) -> u64 {
        far::fetched(&self.volume)
    }
}

/// Walks everything. Gives the number of entries.
async fn walk(opened: &Opened, reads: Reads) -> usize {
    let snapshot = opened.snapshot();
    let tree = Tree::published(&opened.volume, snapshot);
    let mut walk = tree.walk(&tree.root().await.unwrap(), reads);
    let mut entries = 0;
    while let Some(step) = walk.next().await.unwrap() {
        if let Step::Entry(entry) = step {
            entries += 1;
            if entry.is_directory() {
                walk.enter(entry);
            }
        }
    }
    entries
}

/// Lists directories as a mount does, depth first; at most `most`.
async fn list(opened: &Opened, most: usize) -> usize {
    let snapshot = opened.snapshot();
    let mut stack: Vec<Inode> = vec![snapshot.root().as_ref().clone()];
    let mut listed = 0;
    while let Some(directory) = stack.pop().filter(|_| listed < most) {
        let entries = snapshot.list(&directory, None, 1000, soon()).await.unwrap();
        snapshot.prefetcher().listed(&directory, &entries);
        listed += 1;
        for (_, inode) in entries.into_iter().rev() {
            if matches!(inode.content, Content::Directory { .. }) {
                stack.push(inode);
            }
        }
    }
    listed
}

#[tokio::test(start_paused = true)]
async fn whole_tree_is_listed_in_few_round_trips() {
    let opened = Opened::far().await;
    let began = Instant::now();
    let entries = walk(&opened, Reads::Names).await;
    assert_eq!(entries, DIRECTORIES - 1 + (TOPS * BELOW * 2) as usize);
    let waits = waits_since(began);
    assert!(waits <= 6, "{waits}");
    settle().await;
    // No content was fetched: besides nodes of directories only what came with them unasked.
    assert!(
        opened.fetched() < 2 * DIRECTORIES as u64,
        "{}",
        opened.fetched()
    );
}

#[tokio::test(start_paused = true)]
async fn replica_prepares_for_who_reads_a_whole_tree_and_for_nobody_else() {
    const SOME: u64 = 8 << 20;
    for (reads, expected) in [
        (Reads::Directory, vec![]),
        (Reads::Names, vec![SOME]),
        (Reads::Everything, vec![u64::MAX]),
    ] {
        let opened = Opened::far().await;
        walk(&opened, reads).await;
        assert_eq!(opened.liar.prepared(), expected, "{reads:?}");
    }
    let mounted = Opened::far().await;
    list(&mounted, 2).await;
    settle().await;
    assert_eq!(mounted.liar.prepared(), [0; 0]);
    list(&mounted, usize::MAX).await;
    assert_eq!(mounted.liar.prepared(), [SOME]);
}

#[tokio::test(start_paused = true)]
async fn replica_prepares_while_the_volume_is_opened() {
    for (reads, expected) in [
        (None, vec![]),
        (Some(Reads::Directory), vec![]),
        (Some(Reads::Names), vec![8 << 20]),
        (Some(Reads::Everything), vec![u64::MAX]),
    ] {
        let mut world = world();
        let liar = world.liar(Lie::None);
        let options = VolumeOptions {
            reads,
            ..world.options()
        };
        let replicas: Vec<Arc<dyn Replica>> = vec![liar.clone()];
        let volume = Volume::open(world.model.id(), replicas, options).await;
        settle().await;
        assert_eq!(liar.prepared(), expected, "{reads:?}");
        // A newer version has few blocks that the older one has not.
        publish(&mut world, 1);
        let newer = liar.honest();
        newer.set_head(world.head.clone());
        for record in &world.model.records {
            newer.insert(record.clone());
        }
        for (tile, bytes) in world.model.tiles().unwrap() {
            newer.set_object(ObjectName::Tile { epoch: 0, tile }, bytes.into());
        }
        let adopted = volume.unwrap().refresh().await.unwrap();
        assert!(matches!(adopted, Refreshed::Adopted(_)));
        settle().await;
        assert_eq!(liar.prepared(), expected, "{reads:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn whole_tree_is_extracted_and_verified_in_few_round_trips() {
    let opened = Opened::far().await;
    let began = Instant::now();
    let snapshot = opened.snapshot();
    let target = opened.world.state.path().join("out");
    let tally = Arc::new(Tally::default());
    let options = ExtractOptions::default();
    let extracted = extract(&opened.volume, &snapshot, b"", &target, &options, &tally);
    let extracted = extracted.await.unwrap();
    assert_eq!(extracted.totals, snapshot.record().totals);
    // 157 directories and 288 files, each of an array node and two blocks.
    let waits = waits_since(began);
    assert!(waits <= 20, "{waits}");
    let made = std::fs::read(target.join("t03/b05/f1")).unwrap();
    assert!(made == noise(1000 + (3 * BELOW + 5) * 2 + 1, 3000));

    let fresh = Opened::far().await;
    let snapshot = fresh.snapshot();
    let began = Instant::now();
    let report = verify(&fresh.volume, &snapshot, b"", &tally).await;
    assert_eq!(report.unwrap().damage_count, 0);
    let waits = waits_since(began);
    assert!(waits <= 20, "{waits}");
}

#[tokio::test(start_paused = true)]
async fn tree_that_is_larger_than_the_cache_is_fetched_once() {
    let mut world = World::new();
    let files = (0..400u64).map(|number| {
        let file = world.model.file(&noise(5000 + number, 50_000), 8192);
        (format!("f{number:03}").into_bytes(), file.unwrap())
    });
    let files = files.collect();
    let root = world.model.directory(files).unwrap();
    world.head = world.model.publish(&root, now(), 3600).unwrap();
    for reads in ["extract", "verify"] {
        let liar = world.liar(Lie::None);
        let options = VolumeOptions {
            cache_bytes: 8 << 20,
            ..world.options()
        };
        let volume = Volume::open(world.model.id(), vec![liar.clone()], options);
        let volume = volume.await.unwrap();
        liar.tell(Lie::Slow(ROUND_TRIP));
        let (snapshot, tally) = (volume.snapshot(), Arc::new(Tally::default()));
        if reads == "extract" {
            let target = world.state.path().join("large");
            let options = ExtractOptions::default();
            let extracted = extract(&volume, &snapshot, b"", &target, &options, &tally);
            extracted.await.unwrap();
        } else {
            let report = verify(&volume, &snapshot, b"", &tally).await;
            assert_eq!(report.unwrap().damage_count, 0);
        }
        settle().await;
        let counters = snapshot.blocks().counters();
        let fetched = counters.fetched.load(Ordering::Relaxed);
        // 20 MB: 400 files of an array node and seven blocks, and the nodes of their directory.
        assert!((3200..3200 + 320).contains(&fetched), "{reads}: {fetched}");
    }
}

/// Two versions, the replica that has both, and the number of directories of either that differ.
async fn two_versions() -> (Arc<Volume>, Arc<Volume>, Arc<Liar<MemoryStore>>, u64) {
    const CHANGED: u64 = 6;
    let mut world = world();
    let old = world.open(vec![Arc::new(world.replica())]).await.unwrap();
    publish(&mut world, CHANGED);
    let liar = world.liar(Lie::None);
    let new = world.open(vec![liar.clone()]).await.unwrap();
    liar.tell(Lie::Slow(ROUND_TRIP));
    (old, new, liar, 2 * (1 + CHANGED * (1 + BELOW)))
}

#[tokio::test(start_paused = true)]
async fn versions_are_compared_in_few_round_trips_and_equal_directories_are_not_fetched() {
    let (old, new, _, directories) = two_versions().await;
    let volume = new;
    let (old, new) = (old.snapshot(), volume.snapshot());
    let fetched = || new.blocks().counters().fetched.load(Ordering::Relaxed);
    let (began, before, mut told) = (Instant::now(), fetched(), Vec::new());
    let tell = |change: Change| {
        told.push(change.path.display().to_string());
        Ok(())
    };
    difference(&volume, &old, &new, tell).await.unwrap();
    let expected = (0..6).flat_map(|top| (0..BELOW).map(move |n| format!("t{top:02}/b{n:02}/f1")));
    assert_eq!(told, expected.collect::<Vec<_>>());
    let waits = waits_since(began);
    assert!(waits <= 6, "{waits}");
    let fetched = fetched() - before;
    assert!(fetched <= directories, "{fetched} of {directories}");
}

#[tokio::test(start_paused = true)]
async fn wrong_blocks_are_the_error_of_a_comparison() {
    let (old, new, liar, _) = two_versions().await;
    liar.tell(Lie::WrongPlaintext);
    let (before, after) = (old.snapshot(), new.snapshot());
    let compared = difference(&new, &before, &after, |_| Ok(())).await;
    let class = compared.unwrap_err().class();
    assert_eq!(class, Some(trust::error::Class::Integrity));
}

#[tokio::test(start_paused = true)]
async fn mount_that_is_walked_fetches_directories_ahead() {
    let opened = Opened::far().await;
    let began = Instant::now();
    assert_eq!(list(&opened, usize::MAX).await, DIRECTORIES);
    let waits = waits_since(began);
    assert!(waits <= 12, "{waits}");
}

#[tokio::test(start_paused = true)]
async fn reader_that_lists_few_directories_fetches_no_others() {
    let opened = Opened::far().await;
    let before = opened.liar.asked();
    // The root and two below it.
    assert_eq!(list(&opened, 3).await, 3);
    settle().await;
    let asked = opened.liar.asked() - before;
    assert!(asked <= 3, "{asked}");
    // The third listing below the root opens a window, and nobody goes on.
    let opened = Opened::far().await;
    let before = opened.fetched();
    list(&opened, 4).await;
    settle().await;
    let brought = opened.fetched() - before;
    assert!(brought <= 64 + 16, "{brought}");
}

#[tokio::test(start_paused = true)]
async fn walk_that_is_given_up_fetches_no_more() {
    let opened = Opened::far().await;
    let snapshot = opened.snapshot();
    let tree = Tree::published(&opened.volume, snapshot);
    drop(tree.walk(&tree.root().await.unwrap(), Reads::Everything));
    settle().await;
    // The first request was under way.
    assert!(opened.fetched() <= 10, "{}", opened.fetched());
}

#[tokio::test(start_paused = true)]
async fn wrong_blocks_ahead_of_a_walk_are_the_walks_error() {
    let opened = Opened::far().await;
    opened.liar.tell(Lie::WrongPlaintext);
    let snapshot = opened.snapshot();
    let tree = Tree::published(&opened.volume, snapshot);
    let mut walk = tree.walk(&tree.root().await.unwrap(), Reads::Everything);
    let mut failed = 0;
    loop {
        match walk.next().await {
            Ok(None) => break,
            Ok(Some(Step::Entry(entry))) => {
                if entry.is_directory() {
                    walk.enter(entry);
                }
            }
            Ok(Some(Step::Left(_))) => {}
            Err(unlisted) => {
                let class = unlisted.why.class();
                assert_eq!(class, Some(trust::error::Class::Integrity), "{unlisted:?}");
                failed += 1;
            }
        }
    }
    assert!(failed > 0);
}
