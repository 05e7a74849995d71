//! The log of a volume with many versions: copied in windows, also across interruptions, and never from another
//! branch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use sim::altered::{Alteration, Altered};
use sim::time::{eventually, now};
use store::object::ObjectName;
use store::{BoxFuture, Objects, Replica, Repository, StoreError};
use trust::head::Head;
use trust::key::SecretKey;
use trust::statement::Signed;

use crate::world::{Follower, Publisher, directory};

/// Shows a head, blocks, and a log up to a leaf, after which it is silent.
struct Logged {
    honest: Repository,
    head: Bytes,
    log: Repository,
    silent_from: AtomicU64,
    asked: AtomicUsize,
    /// Leaves from here on are missing.
    ends_at: u64,
    /// Strangers' signatures are added to each leaf.
    pads: bool,
    /// The next leaf is given in the place of this one.
    wrong_at: Option<u64>,
}

impl Logged {
    fn new(publisher: &Publisher) -> Logged {
        Logged {
            honest: publisher.repository.clone(),
            head: publisher.head.clone(),
            log: publisher.repository.clone(),
            silent_from: u64::MAX.into(),
            asked: AtomicUsize::new(0),
            ends_at: u64::MAX,
            pads: false,
            wrong_at: None,
        }
    }
}

impl Alteration for Logged {
    fn honest(&self) -> &dyn Replica {
        &self.honest
    }

    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        Box::pin(async { Ok(self.head.clone()) })
    }

    fn file(
        &self,
        name: ObjectName,
        offset: u64,
        len_bytes: usize,
    ) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        Box::pin(async move {
            let (epoch, index) = match name {
                ObjectName::Log { epoch, index } => (epoch, index),
                ObjectName::Policy(_) | ObjectName::Tile { .. } => {
                    return self.log.range(name, offset, len_bytes).await;
                }
                _ => return Ok(None),
            };
            if index >= self.ends_at {
                return Ok(None);
            }
            if index >= self.silent_from.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            self.asked.fetch_add(1, Ordering::Relaxed);
            let index = index + u64::from(self.wrong_at == Some(index));
            let name = ObjectName::Log { epoch, index };
            let leaf = self.log.range(name, offset, len_bytes).await?;
            Ok(leaf.map(|leaf| if self.pads { padded(&leaf) } else { leaf }))
        })
    }
}

fn padded(leaf: &[u8]) -> Bytes {
    let mut signed = Signed::from_bytes(leaf).unwrap();
    for stranger in 100..140 {
        signed.add(&SecretKey::from_seed(&[stranger; 32]));
    }
    signed.to_bytes().into()
}

/// Publishes more versions of the same tree.
fn publish_many(publisher: &mut Publisher, versions: u64) {
    let root = directory(&mut publisher.model, &[("f", b"content")]);
    for _ in 0..versions {
        publisher.head = publisher.model.publish(&root, now(), 3600).unwrap();
        publisher.commit();
    }
}

fn leaf(repository: &Repository, index: u64) -> Option<Bytes> {
    repository.log_leaf(0, index).unwrap()
}

/// What the repository holds below `size` is the publisher's log.
fn assert_log_is(repository: &Repository, publisher: &Publisher, size: u64) {
    for index in 0..size {
        let ours = leaf(repository, index);
        assert_eq!(ours, leaf(&publisher.repository, index), "{index}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_is_written_while_it_is_copied_and_continued_after_an_interruption() {
    let mut publisher = Publisher::new(120);
    publish_many(&mut publisher, 700);
    let mut follower = Follower::new();
    follower.options.deadline = Duration::from_secs(60);
    let source = Arc::new(Altered(Logged::new(&publisher)));
    source.silent_from.store(650, Ordering::Relaxed);
    let places: [Arc<dyn Replica>; 1] = [source.clone()];
    let disk = follower.disk.clone();
    let held = || {
        disk.files()
            .iter()
            .filter(|name| name.starts_with("log/0/"))
            .count()
    };
    let stop = async {
        // Two windows of 256 leaves are written, and the source is silent before the third is full.
        eventually("all leaves but the silent ones", || {
            source.asked.load(Ordering::Relaxed) == 650
        })
        .await;
        eventually("two windows", || held() >= 512).await;
        follower.options.stop.notify_one();
    };
    let (pulled, ()) = tokio::join!(follower.pull(&publisher, &places), stop);
    pulled.unwrap_err();
    let here = held();
    assert!(here < 650, "{here} leaves of unproved windows");

    source.silent_from.store(u64::MAX, Ordering::Relaxed);
    source.asked.store(0, Ordering::Relaxed);
    let pulled = follower.pull(&publisher, &places).await.unwrap();
    assert!(pulled.log_whole);
    let asked = source.asked.load(Ordering::Relaxed);
    assert_eq!(
        asked,
        702 - here - 1,
        "without the leaves that were here, and the last, which came with the head"
    );
    assert_log_is(&follower.repository(), &publisher, 702);
    let after = Head::decode(&publisher.head)
        .unwrap()
        .next_log(publisher.model.id())
        .unwrap()
        .0;
    assert!(
        trust::tiles::Edge::names(after.size)
            .into_iter()
            .all(|tile| { follower.repository().log_tile(0, tile).unwrap().is_some() })
    );
}

/// The publisher's key signed two histories. One source shows the newest head with the log of the other branch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaves_of_another_branch_are_not_kept() {
    // Two first versions of one volume.
    let (mut other, mut publisher) = (Publisher::new(121), Publisher::new(122));
    publish_many(&mut other, 600);
    publish_many(&mut publisher, 600);
    let liar = |publisher: &Publisher| {
        Arc::new(Altered(Logged {
            log: other.repository.clone(),
            ..Logged::new(publisher)
        }))
    };
    let follower = Follower::new();
    let alone: [Arc<dyn Replica>; 1] = [liar(&publisher)];
    let pulled = follower.pull(&publisher, &alone).await.unwrap();
    assert!(!pulled.log_whole);
    let repository = follower.repository();
    let kept = (1..601).filter(|index| leaf(&repository, *index).is_some());
    assert_eq!(kept.count(), 0);

    publish_many(&mut publisher, 1);
    for (follower, silent_from) in [
        (follower, u64::MAX),
        (Follower::new(), u64::MAX),
        // It leaves a window behind.
        (Follower::new(), 300),
    ] {
        let liar = liar(&publisher);
        liar.silent_from.store(silent_from, Ordering::Relaxed);
        let both: [Arc<dyn Replica>; 2] = [liar.clone(), publisher.source()];
        let pulled = follower.pull(&publisher, &both).await.unwrap();
        assert!(pulled.log_whole);
        assert!(liar.asked.load(Ordering::Relaxed) > 256);
        assert_log_is(&follower.repository(), &publisher, 603);
    }
}

/// Each record proves the leaves before it, so none is written that only has good signatures.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaf_in_the_wrong_place_is_not_written() {
    let mut publisher = Publisher::new(124);
    publish_many(&mut publisher, 600);
    let follower = Follower::new();
    let source = Logged {
        wrong_at: Some(5),
        silent_from: 400.into(),
        ..Logged::new(&publisher)
    };
    let pulled = follower
        .pull(&publisher, &[Arc::new(Altered(source))])
        .await
        .unwrap();
    assert!(!pulled.log_whole);
    let repository = follower.repository();
    assert!((0..601).all(|index| leaf(&repository, index).is_none()));
}

/// Any number of policies may follow one record. No record proves them, but memory stays bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_without_a_record_between_them_are_written_in_windows() {
    let mut publisher = Publisher::new(125);
    for _ in 0..400 {
        publisher.head = publisher.model.rotate(|_| {}).unwrap();
    }
    publisher.edit();
    publisher.publish();
    let patient = || {
        let mut follower = Follower::new();
        follower.options.deadline = Duration::from_secs(60);
        follower
    };
    let follower = patient();
    let source = Arc::new(Altered(Logged::new(&publisher)));
    source.silent_from.store(350, Ordering::Relaxed);
    let places: [Arc<dyn Replica>; 1] = [source.clone()];
    let disk = follower.disk.clone();
    let stop = async {
        eventually("a window", || {
            let files = disk.files();
            files
                .iter()
                .filter(|name| name.starts_with("log/0/"))
                .count()
                >= 256
        })
        .await;
        follower.options.stop.notify_one();
    };
    let (pulled, ()) = tokio::join!(follower.pull(&publisher, &places), stop);
    pulled.unwrap_err();
    source.silent_from.store(u64::MAX, Ordering::Relaxed);
    assert!(follower.pull(&publisher, &places).await.unwrap().log_whole);
    assert_log_is(&follower.repository(), &publisher, 402);

    // What no record has proved when the source ends is removed.
    let ending = Logged {
        ends_at: 350,
        ..Logged::new(&publisher)
    };
    let follower = patient();
    let pulled = follower
        .pull(&publisher, &[Arc::new(Altered(ending))])
        .await;
    assert!(!pulled.unwrap().log_whole);
    let repository = follower.repository();
    assert!((0..402).all(|index| leaf(&repository, index).is_none()));
}

/// Signatures by strangers cost a mirror nothing. A replica keeps none of them, in its head or its log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signatures_by_strangers_are_not_kept() {
    let mut publisher = Publisher::new(123);
    publish_many(&mut publisher, 5);
    let mut head = Head::decode(&publisher.head).unwrap();
    for signed in [&mut head.record, &mut head.policies[0]] {
        *signed = Signed::from_bytes(&padded(&signed.to_bytes())).unwrap();
    }
    let source = Logged {
        head: head.encode().unwrap().into(),
        pads: true,
        ..Logged::new(&publisher)
    };
    let follower = Follower::new();
    let pulled = follower
        .pull(&publisher, &[Arc::new(Altered(source))])
        .await
        .unwrap();
    assert!(pulled.log_whole);
    assert_eq!(follower.repository().statements(), publisher.head);
    assert_log_is(&follower.repository(), &publisher, 7);
}
