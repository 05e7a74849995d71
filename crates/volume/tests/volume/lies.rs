//! One replica lies in each of the ways that `sim` knows: the reader names it, and an honest second
//! replica masks it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use reader::ReadError;
use sim::liar::{Liar, Lie};
use store::{BlockStore, BoxFuture, MemoryStore, Replica, StoreError};
use tokio::sync::Notify;
use trust::error::Class;
use trust::{Handle, Record};
use volume::{Volume, VolumeError};

use crate::world::{World, noise, read, read_with, soon, within};

/// Opens honestly, then lies, then reads something not yet in memory.
async fn read_under(lie: Lie) -> Result<Vec<u8>, VolumeError> {
    read_under_until(lie, Duration::from_secs(60)).await
}

async fn read_under_until(lie: Lie, time: Duration) -> Result<Vec<u8>, VolumeError> {
    let world = World::new();
    let liar = world.liar(Lie::None);
    let volume = world.open(vec![liar.clone()]).await?;
    liar.tell(lie);
    read_with(&volume, "big", within(time)).await
}

fn class(result: Result<Vec<u8>, VolumeError>) -> Class {
    let error = result.expect_err("a lie was believed");
    error
        .class()
        .unwrap_or_else(|| panic!("{error} has no class"))
}

#[tokio::test]
async fn a_flipped_bit_is_an_integrity_error() {
    for bit in [0, 1, 1000, 4095 * 8] {
        assert_eq!(class(read_under(Lie::FlipBit(bit)).await), Class::Integrity);
    }
}

#[tokio::test]
async fn wrong_content_in_a_well_formed_frame_is_an_integrity_error() {
    assert_eq!(
        class(read_under(Lie::WrongPlaintext).await),
        Class::Integrity
    );
}

#[tokio::test]
async fn another_valid_block_is_an_integrity_error() {
    assert_eq!(class(read_under(Lie::AnotherBlock).await), Class::Integrity);
}

#[tokio::test]
async fn a_block_of_another_kind_is_an_integrity_error() {
    assert_eq!(class(read_under(Lie::WrongKind).await), Class::Integrity);
}

#[tokio::test]
async fn a_truncated_block_is_an_integrity_error() {
    assert_eq!(class(read_under(Lie::Truncate).await), Class::Integrity);
}

#[tokio::test]
async fn a_decompression_bomb_is_an_integrity_error() {
    assert_eq!(class(read_under(Lie::Bomb).await), Class::Integrity);
}

#[tokio::test]
async fn a_denied_block_is_unavailable_and_never_absent() {
    let result = read_under(Lie::DenyBlocks).await;
    assert!(!matches!(
        result,
        Err(VolumeError::Read(ReadError::NotFound { .. }))
    ));
    assert_eq!(class(result), Class::Unavailable);
}

#[tokio::test]
async fn a_stalled_replica_costs_the_deadline_and_no_more() {
    let began = Instant::now();
    let stalled = read_under_until(Lie::Stall, Duration::from_millis(400)).await;
    assert_eq!(class(stalled), Class::Unavailable);
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn poisoned_read_around_is_not_kept() {
    let world = World::new();
    let liar = world.liar(Lie::PoisonAround);
    let volume = world.open(vec![liar]).await.unwrap();
    assert_eq!(read(&volume, "big").await.unwrap(), noise(1, 300_000));
    let kept = volume
        .snapshot()
        .blocks()
        .counters()
        .around
        .load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(kept, 0);
}

#[tokio::test]
async fn every_lie_about_blocks_is_masked_by_one_honest_replica() {
    for lie in [
        Lie::FlipBit(3),
        Lie::WrongPlaintext,
        Lie::AnotherBlock,
        Lie::WrongKind,
        Lie::Truncate,
        Lie::Bomb,
        Lie::DenyBlocks,
        Lie::PoisonAround,
    ] {
        let world = World::new();
        let liar = world.liar(lie.clone());
        let volume: Arc<Volume> = world
            // The honest replica is not a local one either: a local one would be read first.
            .open(vec![liar, world.liar(Lie::None)])
            .await
            .unwrap();
        assert_eq!(
            read(&volume, "big").await.unwrap(),
            noise(1, 300_000),
            "{lie:?}"
        );
        assert_eq!(
            read(&volume, "dir/f123").await.unwrap(),
            noise(223, 600),
            "{lie:?}"
        );
    }
}

#[tokio::test]
async fn a_head_with_a_flipped_or_missing_byte_is_refused() {
    let world = World::new();
    let honest = world.head.clone();
    // The tests of `trust` change every bit. Here a prime stride suffices, because each open writes to disk.
    for bit in (0..honest.len() * 8).step_by(101) {
        let volume = world.open(vec![world.liar(Lie::FlipHead(bit))]).await;
        let error = volume.expect_err(&format!("bit {bit} of the head was believed"));
        // A bit of a format number or of flags makes it look like one of a later bulla.
        let known = [Class::Integrity, Class::Unsupported];
        let class = error.class();
        assert!(
            class.is_some_and(|c| known.contains(&c)),
            "bit {bit}: {error}"
        );
    }
    // An empty head says that nothing is published: no version, but not tampering either.
    for cut in (1..honest.len()).step_by(7) {
        let error = world
            .open(vec![world.liar(Lie::CutHead(cut))])
            .await
            .expect_err("cut head");
        assert_eq!(error.class(), Some(Class::Integrity), "cut {cut}");
    }
}

#[tokio::test]
async fn a_replica_of_another_volume_is_named_as_such() {
    let world = World::new();
    let error = world
        .open(vec![world.liar(Lie::DenyVolume)])
        .await
        .unwrap_err();
    assert!(matches!(error, VolumeError::Place(_)), "{error}");
}

#[tokio::test]
async fn swapped_blocks_of_equal_length_are_refused() {
    let mut world = World::new();
    let content = noise(77, 3 * 8192);
    let first = world.model.records.len();
    let file = world.model.file(&content, 8192).unwrap();
    let root = world.model.directory(vec![(b"f".to_vec(), file)]).unwrap();
    world.head = world
        .model
        .publish(&root, crate::world::now(), 3600)
        .unwrap();
    let swapped = world.model.records[first + 1].frame.clone();
    world.model.records[first].frame = swapped;
    let volume = world.open(vec![Arc::new(world.replica())]).await.unwrap();
    let outcome = read(&volume, "f").await;
    assert!(
        matches!(outcome, Err(VolumeError::Read(ReadError::Integrity { .. }))),
        "another block than the requested one was read: {outcome:?}"
    );
}

#[tokio::test]
async fn empty_repository_is_not_reported_as_tampering() {
    let world = World::new();
    let empty = Arc::new(world.replica_with(bytes::Bytes::new()));
    let error = world.open(vec![empty.clone()]).await.unwrap_err();
    assert!(matches!(error, VolumeError::Place(_)), "{error}");
    let volume = world.open(vec![empty, Arc::new(world.replica())]).await;
    let volume = volume.unwrap();
    let wrong: Vec<u64> = volume
        .mirrors()
        .status()
        .iter()
        .map(|m| m.counts.wrong)
        .collect();
    assert_eq!(wrong, [0, 0]);
}

#[tokio::test]
async fn replica_of_a_later_protocol_is_passed_over_and_never_accused() {
    let world = World::new();
    // Alone it needs a newer bulla, at the head and at the blocks.
    let alone = world.open(vec![world.liar(Lie::LaterProtocol)]).await;
    let error = alone.unwrap_err();
    assert_eq!(error.class(), Some(Class::Unsupported), "{error}");
    assert!(error.to_string().contains("needs a newer bulla"), "{error}");
    let result = read_under(Lie::LaterProtocol).await;
    assert_eq!(class(result), Class::Unsupported);
    // Beside an honest one nothing is noticed.
    let later = world.liar(Lie::LaterProtocol);
    let volume = world.open(vec![later, Arc::new(world.replica())]).await;
    let volume = volume.unwrap();
    assert!(read(&volume, "big").await.is_ok());
    let status = &volume.mirrors().status()[0];
    assert_eq!((status.counts.wrong, status.counts.failures), (0, 0));
    let volumes = world.state.path().join("volumes");
    let kept = volumes.join(world.model.id().to_string());
    assert!(!kept.join("evidence").exists());
}

/// Once it lies, it answers the next request for blocks when it is let go, and none after it.
struct LastWords {
    liar: Arc<Liar<MemoryStore>>,
    lies: AtomicBool,
    asked: AtomicUsize,
    go: Notify,
}

impl BlockStore for LastWords {
    fn place(&self) -> &str {
        "last words"
    }

    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        Box::pin(async move {
            if !self.lies.load(Ordering::Relaxed) {
                return self.liar.get_many(want, around).await;
            }
            if self.asked.fetch_add(1, Ordering::Relaxed) > 0 {
                return Err(StoreError::Unavailable {
                    place: "last words".to_owned(),
                    cause: "gone".to_owned(),
                });
            }
            self.go.notified().await;
            self.liar.get_many(want, around).await
        })
    }
}

impl Replica for LastWords {
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        self.liar.head()
    }
}

#[tokio::test]
async fn reader_who_waits_for_the_fetch_of_another_hears_that_the_block_was_wrong() {
    let world = World::new();
    let lying = Arc::new(LastWords {
        liar: world.liar(Lie::None),
        lies: AtomicBool::new(false),
        asked: AtomicUsize::new(0),
        go: Notify::new(),
    });
    let volume = world.open(vec![lying.clone()]).await.unwrap();
    let small = volume.snapshot().resolve(b"small", soon()).await.unwrap();
    let small = small.unwrap();
    lying.liar.tell(Lie::FlipBit(3));
    lying.lies.store(true, Ordering::Relaxed);
    let snapshot = volume.snapshot();
    let how = within(Duration::from_secs(1));
    let read = || async { snapshot.read(&small, 0, 1000, how).await };
    let let_go = async {
        while lying.asked.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        lying.go.notify_one();
    };
    let (first, second, ()) = tokio::join!(read(), read(), let_go);
    for (who, read) in [("who asks", first), ("who waits", second)] {
        let error = read.expect_err(who);
        assert_eq!(error.class(), Some(Class::Integrity), "{who}: {error}");
    } // Nobody answers now, and who was wrong is known. A block that nobody gave wrong is only not there.
    let soon = within(Duration::from_millis(300));
    let again = snapshot.read(&small, 0, 1000, soon).await.unwrap_err();
    assert_eq!(again.class(), Some(Class::Integrity), "{again}");
    let other = read_with(&volume, "big", soon).await.unwrap_err();
    assert_eq!(other.class(), Some(Class::Unavailable), "{other}");
}
