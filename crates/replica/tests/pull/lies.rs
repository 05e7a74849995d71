//! Hostile sources. Each is named, or masked by another source. The previous version stays whole, and only
//! blocks that a signed root reaches are written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use reader::ReadError;
use replica::pull::PullError;
use sim::altered::{Alteration, Altered};
use sim::liar::{Liar, Lie};
use sim::random::noise;
use sim::time::{eventually, now};
use store::object::ObjectName;
use store::{BoxFuture, Objects, Replica, Repository, StoreError, Writer};
use trust::error::Class;
use trust::{Data, Handle, Record};
use volume::VolumeError;

use crate::world::{Follower, Publisher};

fn liar(publisher: &Publisher, lie: Lie) -> Arc<dyn Replica> {
    Arc::new(Liar::new(publisher.repository.clone(), lie))
}

fn honest(publisher: &Publisher) -> Arc<dyn Replica> {
    liar(publisher, Lie::None)
}

fn class(error: &PullError) -> Option<Class> {
    match error {
        PullError::Volume(error) => error.class(),
        _ => None,
    }
}

/// A publisher two versions on, and a replica at the first.
async fn behind() -> (Publisher, Follower) {
    let mut publisher = Publisher::new(5);
    let follower = Follower::new();
    follower
        .pull(&publisher, &[publisher.source()])
        .await
        .unwrap();
    for _ in 0..20 {
        publisher.edit();
    }
    publisher.publish();
    (publisher, follower)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_lie_about_blocks_is_named_or_masked_by_an_honest_source() {
    let lies = [
        (Lie::FlipBit(77), Class::Integrity),
        (Lie::WrongPlaintext, Class::Integrity),
        (Lie::AnotherBlock, Class::Integrity),
        (Lie::WrongKind, Class::Integrity),
        (Lie::Truncate, Class::Integrity),
        (Lie::Bomb, Class::Integrity),
        (Lie::DenyBlocks, Class::Unavailable),
        (Lie::DenyVolume, Class::Unavailable),
        (Lie::Stall, Class::Unavailable),
    ];
    for (lie, expected) in lies {
        let (publisher, mut follower) = behind().await;
        if matches!(lie, Lie::Stall) {
            follower.options.deadline = Duration::from_secs(2);
        }
        let error = follower
            .pull(&publisher, &[liar(&publisher, lie.clone())])
            .await;
        let error = error.expect_err("a lie was believed");
        // A source that denies the volume looks like a wrong address, which has no class of its own.
        let told = class(&error).unwrap_or(Class::Unavailable);
        assert_eq!(told, expected, "{lie:?}: {error}");
        assert_eq!(follower.proved(&publisher, "").await, 1, "{lie:?}");
        let places = [liar(&publisher, lie.clone()), honest(&publisher)];
        follower.pull(&publisher, &places).await.unwrap();
        assert_eq!(follower.proved(&publisher, "").await, 2, "{lie:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_under_wrong_handles_are_dropped() {
    let (publisher, follower) = behind().await;
    let before = follower.repository().index_entries();
    let pulled = follower
        .pull(&publisher, &[liar(&publisher, Lie::PoisonAround)])
        .await;
    let pulled = pulled.unwrap();
    assert_eq!(
        follower.repository().index_entries(),
        before + pulled.blocks
    );
    assert_eq!(follower.proved(&publisher, "").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_head_is_a_rollback_even_without_the_floor() {
    let (publisher, follower) = behind().await;
    let old = Follower::new();
    let first_head = follower.repository().statements();
    follower
        .pull(&publisher, &[publisher.source()])
        .await
        .unwrap();
    let stale = || liar(&publisher, Lie::Head(first_head.clone()));
    let error = follower.pull(&publisher, &[stale()]).await.unwrap_err();
    assert_eq!(class(&error), Some(Class::Rollback), "{error}");
    let forgetful = Follower {
        disk: follower.disk.clone(),
        ..old
    };
    let error = forgetful.pull(&publisher, &[stale()]).await.unwrap_err();
    assert_eq!(class(&error), Some(Class::Rollback), "{error}");
    assert_eq!(follower.proved(&publisher, "").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_lags_while_another_does_not_is_not_accused() {
    let (publisher, follower) = behind().await;
    let first_head = follower.repository().statements();
    let stale = || liar(&publisher, Lie::Head(first_head.clone()));
    let volumes = follower.state.path().join("volumes");
    let evidence = volumes
        .join(publisher.model.id().to_string())
        .join("evidence");
    for _ in 0..2 {
        let places = [stale(), honest(&publisher)];
        let pulled = follower.pull(&publisher, &places).await.unwrap();
        assert_eq!(pulled.version, 2);
        assert!(!evidence.exists());
    }
    follower.pull(&publisher, &[stale()]).await.unwrap_err();
    assert!(evidence.exists());
}

/// Ctrl-C during a stalled request takes effect at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_is_interrupted_while_a_source_withholds_its_files() {
    let (publisher, mut follower) = behind().await;
    follower.options.deadline = Duration::from_secs(200);
    let stalling = Arc::new(Altered(Lying::new(&publisher, Files::Stall)));
    let began = Instant::now();
    let stop = async {
        let given = &stalling.given;
        eventually("a request", || given.load(Ordering::Relaxed) > 0).await;
        follower.options.stop.notify_one();
    };
    let sources = [stalling.clone() as Arc<dyn Replica>];
    let (pulled, ()) = tokio::join!(follower.pull(&publisher, &sources), stop);
    let error = pulled.unwrap_err();
    assert!(matches!(error, PullError::Interrupted), "{error}");
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_stops_the_replica() {
    let (mut publisher, follower) = behind().await;
    let told = publisher.head.clone();
    publisher.model.fork(Some(&told)).unwrap();
    let other = follower.repository().statements();
    publisher.model.fork(Some(&other)).unwrap();
    publisher.edit();
    let root = publisher.model.directory(Vec::new()).unwrap();
    let forked = publisher.model.publish(&root, now(), 3600).unwrap();
    let places = [honest(&publisher), liar(&publisher, Lie::Head(forked))];
    let error = follower.pull(&publisher, &places).await.unwrap_err();
    assert_eq!(class(&error), Some(Class::Fork), "{error}");
    assert_eq!(follower.proved(&publisher, "").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_withheld_version_leaves_the_previous_one() {
    let (mut publisher, follower) = behind().await;
    let second = publisher.head.clone();
    publisher.edit();
    let root = publisher.model.directory(Vec::new()).unwrap();
    // It is signed, but no repository has its blocks.
    let third = publisher.model.publish(&root, now(), 3600).unwrap();
    let withholding = liar(&publisher, Lie::Head(third));
    let error = follower
        .pull(&publisher, std::slice::from_ref(&withholding))
        .await
        .unwrap_err();
    assert_eq!(class(&error), Some(Class::Unavailable), "{error}");
    assert_eq!(follower.proved(&publisher, "").await, 1);
    let behind = liar(&publisher, Lie::Head(second));
    let pulled = follower
        .pull(&publisher, &[withholding, behind])
        .await
        .unwrap();
    assert_eq!(pulled.version, 2);
    assert_eq!(follower.proved(&publisher, "").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_that_breaks_the_rules_is_refused() {
    let (mut publisher, follower) = behind().await;
    let handle: Handle<Data> = publisher.model.block(&noise(1, 1000)).unwrap();
    let extents = [
        trust::array::Extent::Data { handle, len: 999 },
        trust::array::Extent::Hole { len: 5 },
    ];
    let root = publisher.model.extents(&extents).unwrap().unwrap();
    let content = trust::inode::FileContent::Array(root);
    let file = sim::model::inode(0o644, trust::inode::Content::Regular(content));
    let top = publisher
        .model
        .directory(vec![(b"bad".to_vec(), file)])
        .unwrap();
    publisher.head = publisher.model.publish(&top, now(), 3600).unwrap();
    publisher.commit();
    for source in [publisher.source(), honest(&publisher)] {
        let error = follower.pull(&publisher, &[source]).await.unwrap_err();
        assert!(
            matches!(
                error,
                PullError::Volume(VolumeError::Read(ReadError::Malformed(_)))
            ),
            "{error}"
        );
        assert_eq!(follower.proved(&publisher, "").await, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_another_length_than_its_tree_is_refused() {
    let (mut publisher, follower) = behind().await;
    let content = noise(2, 100_000);
    let root = publisher.model.array(&content, 8192).unwrap().unwrap();
    let root = trust::array::ArrayRoot {
        len: root.len + 1,
        ..root
    };
    let content = trust::inode::FileContent::Array(root);
    let file = sim::model::inode(0o644, trust::inode::Content::Regular(content));
    let top = publisher
        .model
        .directory(vec![(b"bad".to_vec(), file)])
        .unwrap();
    publisher.head = publisher.model.publish(&top, now(), 3600).unwrap();
    publisher.commit();
    for source in [honest(&publisher), publisher.source()] {
        let error = follower.pull(&publisher, &[source]).await.unwrap_err();
        assert!(
            matches!(
                error,
                PullError::Volume(VolumeError::Read(ReadError::Malformed(_)))
            ),
            "{error}"
        );
        assert_eq!(follower.proved(&publisher, "").await, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_node_is_blamed_on_the_publisher_and_on_no_source() {
    let (mut publisher, follower) = behind().await;
    let child = publisher.model.file(b"a", 8192).unwrap();
    let mut map = publisher
        .model
        .map(vec![(b"a".to_vec(), child)])
        .unwrap()
        .unwrap();
    map.handle = publisher.model.block(b"\0no node").unwrap();
    let content = trust::inode::Content::Directory {
        map: Some(map),
        opaque: false,
    };
    let top = sim::model::inode(0o755, content);
    publisher.head = publisher.model.publish(&top, now(), 3600).unwrap();
    publisher.commit();
    for source in [publisher.source(), honest(&publisher)] {
        let error = follower.pull(&publisher, &[source]).await.unwrap_err();
        assert!(
            matches!(
                error,
                PullError::Volume(VolumeError::Read(ReadError::Malformed(_)))
            ),
            "{error}"
        );
        assert_eq!(follower.proved(&publisher, "").await, 1);
    }
}

/// How a source that shows its files misbehaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Files {
    /// The head file is noise.
    NoiseHead,
    /// The index is noise of the right length.
    NoiseIndex,
    /// The segments are noise without end.
    NoiseSegments,
    /// The segments hold blocks that match their handles and that no tree reaches.
    Junk,
    /// The same without end.
    Endless,
    /// Records of a kind that this program does not know, without end. It passes them over.
    UnknownKind,
    /// The segments hold the right handles over wrong content.
    Swapped,
    /// Requests for ranges are not answered.
    Stall,
}

struct Lying {
    honest: Repository,
    junk: Bytes,
    files: Files,
    given: AtomicU64,
}

impl Lying {
    fn new(publisher: &Publisher, files: Files) -> Lying {
        let mut junk = bytes::BytesMut::from(&b"bullaseg\0\0\0\0\0\0\0\0"[..]);
        let mut model = sim::model::Model::new(7).unwrap();
        for n in 0..500 {
            model.block::<Data>(&noise(5000 + n, 20_000)).unwrap();
        }
        let records = match files {
            Files::Swapped => publisher
                .model
                .records
                .iter()
                .zip(&model.records)
                .map(|(right, wrong)| Record {
                    handle: right.handle,
                    frame: wrong.frame.clone(),
                })
                .collect(),
            _ => model.records,
        };
        for record in &records {
            let at = junk.len();
            record.put(&mut junk);
            if let Files::UnknownKind = files {
                // The kind follows the handle and the length.
                junk[at + 36] = 0x7f;
            }
        }
        Lying {
            honest: publisher.repository.clone(),
            junk: junk.freeze(),
            files,
            given: 0.into(),
        }
    }
}

impl Alteration for Lying {
    fn honest(&self) -> &dyn Replica {
        &self.honest
    }

    fn file(
        &self,
        name: ObjectName,
        offset: u64,
        len_bytes: usize,
    ) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        let junk = move |len: usize| Ok(Some(noise(offset, len).into()));
        Box::pin(async move {
            match (self.files, name) {
                (Files::Stall, ObjectName::Segment(_)) => {
                    self.given.fetch_add(1, Ordering::Relaxed);
                    std::future::pending().await
                }
                (Files::NoiseHead, ObjectName::Head) => junk(5000),
                (Files::NoiseIndex, ObjectName::Index(_)) => junk(len_bytes),
                (Files::NoiseSegments, ObjectName::Segment(_)) => {
                    let given = &self.given;
                    given.fetch_add(len_bytes as u64, Ordering::Relaxed);
                    Ok(Some(vec![7; len_bytes].into()))
                }
                (Files::Endless | Files::UnknownKind, ObjectName::Segment(_)) => {
                    let given = &self.given;
                    given.fetch_add(len_bytes as u64, Ordering::Relaxed);
                    // In large pieces: byte by byte takes so long that the pull stops for the time, not for the bytes.
                    let (header, records) = self.junk.split_at(16);
                    let (mut bytes, mut at) = (Vec::with_capacity(len_bytes), offset as usize);
                    while bytes.len() < len_bytes {
                        let rest = match header.get(at..) {
                            Some(rest) if !rest.is_empty() => rest,
                            _ => &records[(at - header.len()) % records.len()..],
                        };
                        let rest = &rest[..rest.len().min(len_bytes - bytes.len())];
                        bytes.extend_from_slice(rest);
                        at += rest.len();
                    }
                    Ok(Some(bytes.into()))
                }
                (Files::Junk | Files::Swapped, ObjectName::Segment(_)) => {
                    let from = (offset as usize).min(self.junk.len());
                    let until = (from + len_bytes).min(self.junk.len());
                    Ok(Some(self.junk.slice(from..until)))
                }
                _ => self.honest.range(name, offset, len_bytes).await,
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_files_cost_only_time() {
    for files in [
        Files::NoiseHead,
        Files::NoiseIndex,
        Files::NoiseSegments,
        Files::Junk,
        Files::Endless,
        Files::UnknownKind,
        Files::Swapped,
        Files::Stall,
    ] {
        let (publisher, mut follower) = behind().await;
        if matches!(files, Files::Stall) {
            follower.options.deadline = Duration::from_secs(2);
        }
        let before = follower.repository().index_entries();
        let lying = Arc::new(Altered(Lying::new(&publisher, files)));
        let place: [Arc<dyn Replica>; 1] = [lying.clone()];
        let pulled = follower.pull(&publisher, &place).await.unwrap();
        assert_eq!(follower.proved(&publisher, "").await, 2, "{files:?}");
        // Exactly the blocks of the new version came in.
        let held = follower.repository().index_entries();
        assert_eq!(held, before + pulled.blocks, "{files:?}");
        let by_handle = Follower::new();
        by_handle
            .pull(&publisher, &[honest(&publisher)])
            .await
            .unwrap();
        assert!(
            pulled.blocks <= by_handle.repository().index_entries(),
            "{files:?}"
        );
        let given = lying.given.load(Ordering::Relaxed);
        assert!(given <= 80 << 20, "{files:?}: {given}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsigned_log_is_not_copied() {
    let (publisher, follower) = behind().await;
    let right = publisher.repository.log_leaf(0, 1).unwrap().unwrap();
    // The last byte belongs to a signature.
    let mut forged = right.to_vec();
    *forged.last_mut().unwrap() ^= 1;
    let elsewhere = publisher.repository.log_leaf(0, 2).unwrap().unwrap();
    let fresh = Follower::new();
    for wrong in [&b"another history"[..], &elsewhere, &forged] {
        let mut writer = Writer::begin(&publisher.repository).unwrap();
        writer.put_log_leaf(0, 1, wrong).unwrap();
        writer.commit(&publisher.head).unwrap();
        drop(writer);
        let fresh = Follower::new();
        let pulled = fresh.pull(&publisher, &[publisher.source()]).await.unwrap();
        assert!(!pulled.log_whole);
        assert_eq!(fresh.repository().log_leaf(0, 1).unwrap(), None);
    }
    assert!(fresh.pull(&publisher, &[publisher.source()]).await.is_ok());
    // A replica that has the leaf already is not affected, and a complete log fills the gap.
    assert!(
        follower
            .pull(&publisher, &[publisher.source()])
            .await
            .unwrap()
            .log_whole
    );
    let mut publisher = publisher;
    publisher.edit();
    publisher.publish();
    let log = [publisher.source(), Arc::new(follower.repository())];
    assert!(fresh.pull(&publisher, &log).await.is_ok());
}
