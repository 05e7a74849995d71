//! Honest sources: a pull brings what was published at a low cost, and a second pull costs nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reader::ReadError;
use replica::note::{ReplicaNote, Scope};
use replica::pull::PullError;
use sim::liar::{Liar, Lie};
use sim::log::Log;
use sim::model::of_kind;
use sim::random::Random;
use sim::time::now;
use store::{BlockStore, Replica, StoreError, Writer};
use tracing::Level;
use trust::error::Class;
use trust::inode::{Entry, Extension};
use trust::{Handle, InodeBlock, Kind};
use volume::VolumeError;

use crate::world::{Follower, Publisher};

/// The same blocks without the files: a source that is only asked by handle.
fn by_handle(publisher: &Publisher) -> Arc<dyn Replica> {
    Arc::new(Liar::new(publisher.repository.clone(), Lie::None))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_equals_the_publication_after_any_history() {
    for seed in 1..9 {
        let mut random = Random::new(seed);
        let mut publisher = Publisher::new(seed);
        let (files, handles) = (Follower::new(), Follower::new());
        for _ in 0..6 {
            for _ in 0..random.below(3) + 1 {
                for _ in 0..random.below(12) {
                    publisher.edit();
                }
                publisher.publish();
            }
            for (follower, source) in [
                (&files, publisher.source()),
                (&handles, by_handle(&publisher)),
            ] {
                let pulled = follower
                    .pull(&publisher, std::slice::from_ref(&source))
                    .await
                    .unwrap();
                assert_eq!(pulled.version, publisher.versions);
                assert_eq!(follower.proved(&publisher, "").await, publisher.versions);
                let again = follower.pull(&publisher, &[source]).await.unwrap();
                assert_eq!((again.blocks, again.received_bytes), (0, 0));
            }
            let repository = files.repository();
            for index in 0..=publisher.versions {
                let leaf = |r: &store::Repository| r.log_leaf(0, index).unwrap();
                assert!(leaf(&repository).is_some(), "seed {seed}: leaf {index}");
                assert_eq!(leaf(&repository), leaf(&publisher.repository));
            }
        }
        // Both ways bring the same number of blocks, so neither keeps blocks that no version reaches.
        let (a, b) = (files.repository(), handles.repository());
        assert_eq!(a.index_entries(), b.index_entries(), "seed {seed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_costs_its_new_bytes_and_few_waves() {
    let mut publisher = Publisher::new(20);
    for _ in 0..400 {
        publisher.edit();
    }
    publisher.publish();
    let (files, handles) = (Follower::new(), Follower::new());
    for follower in [&files, &handles] {
        follower
            .pull(&publisher, &[publisher.source()])
            .await
            .unwrap();
    }
    for round in 0..4 {
        for _ in 0..15 {
            publisher.edit();
        }
        publisher.publish();
        let pulled = files.pull(&publisher, &[publisher.source()]).await.unwrap();
        // Head; index; segments.
        assert!(pulled.waves <= 3, "round {round}: {pulled:?}");
        let allowed = pulled.block_bytes + pulled.block_bytes / 5 + 2048;
        assert!(
            pulled.received_bytes <= allowed,
            "round {round}: {pulled:?}"
        );
        let pulled = handles
            .pull(&publisher, &[by_handle(&publisher)])
            .await
            .unwrap();
        // Head, root, three nested directories, a file's node, its content, and possibly a second
        // level of a directory's map.
        assert!(pulled.waves <= 9, "round {round}: {pulled:?}");
        assert_eq!(pulled.received_bytes, pulled.block_bytes, "round {round}");
    }
}

/// A source is not silent because its files together take longer than it may be silent: nothing is fetched
/// twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefetched_segments_on_a_slow_network_are_not_fetched_twice() {
    let publisher = Publisher::new(21);
    let mut follower = Follower::new();
    follower.options.bytes_per_second = Some(100_000);
    let deadline = Duration::from_secs(2);
    follower.options.deadline = deadline;
    let began = Instant::now();
    let pulled = follower.pull(&publisher, &[publisher.source()]).await;
    let pulled = pulled.unwrap();
    assert!(
        began.elapsed() > deadline,
        "too fast: {:?}",
        began.elapsed()
    );
    let allowed = pulled.block_bytes + pulled.block_bytes / 5;
    assert!(pulled.received_bytes <= allowed, "{pulled:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_pull_resumes() {
    let publisher = Publisher::new(30);
    let mut follower = Follower::new();
    // The source is asked again until then.
    follower.options.deadline = Duration::from_secs(3);
    let source: Arc<dyn Replica> = Arc::new(Breaking::after(&publisher, 3));
    let error = follower
        .pull(&publisher, std::slice::from_ref(&source))
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            PullError::Volume(VolumeError::Read(ReadError::Unavailable { .. }))
        ),
        "{error}"
    );
    assert!(
        follower.repository().statements().is_empty(),
        "nothing is visible"
    );
    let kept = follower.repository().index_entries();
    assert!(kept > 0, "what arrived is kept");
    let root = follower.repository().contains(&publisher.root()).unwrap();
    assert!(!root, "the root came before blocks below it");
    let whole = Follower::new()
        .pull(&publisher, &[publisher.source()])
        .await
        .unwrap();
    let rest = follower
        .pull(&publisher, &[by_handle(&publisher)])
        .await
        .unwrap();
    assert_eq!(rest.blocks + kept, whole.blocks);
    assert_eq!(rest.received_bytes, rest.block_bytes);
    assert_eq!(follower.proved(&publisher, "").await, publisher.versions);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_source_continues_where_one_stops() {
    let publisher = Publisher::new(31);
    let breaking: Arc<dyn Replica> = Arc::new(Breaking::after(&publisher, 2));
    let follower = Follower::new();
    follower
        .pull(&publisher, &[breaking, by_handle(&publisher)])
        .await
        .unwrap();
    assert_eq!(follower.proved(&publisher, "").await, publisher.versions);
}

/// Stops answering after a number of answers.
struct Breaking {
    honest: Liar<store::Repository>,
    left: std::sync::atomic::AtomicI64,
}

impl Breaking {
    fn after(publisher: &Publisher, answers: i64) -> Breaking {
        Breaking {
            honest: Liar::new(publisher.repository.clone(), Lie::None),
            left: answers.into(),
        }
    }
}

impl BlockStore for Breaking {
    fn place(&self) -> &str {
        "breaking"
    }

    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> store::BoxFuture<'a, Result<Vec<trust::Record>, StoreError>> {
        use std::sync::atomic::Ordering;
        if self.left.fetch_sub(1, Ordering::Relaxed) > 0 {
            return self.honest.get_many(want, around);
        }
        Box::pin(async {
            Err(StoreError::Unavailable {
                place: "breaking".to_owned(),
                cause: "gone".to_owned(),
            })
        })
    }
}

impl Replica for Breaking {
    fn head(&self) -> store::BoxFuture<'_, Result<bytes::Bytes, StoreError>> {
        self.honest.head()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_is_pulled_proved_and_widened() {
    let mut publisher = Publisher::new(40);
    let mut follower = Follower::new();
    let whole = Follower::new()
        .pull(&publisher, &[publisher.source()])
        .await
        .unwrap();
    follower.options.scope = Scope::new([b"/a/b1/".to_vec()]);
    let part = follower
        .pull(&publisher, &[publisher.source()])
        .await
        .unwrap();
    assert!(part.blocks * 2 < whole.blocks, "{part:?} of {whole:?}");
    assert_eq!(follower.proved(&publisher, "a/b1").await, 1);
    let note = ReplicaNote::load(&follower.repository()).unwrap().unwrap();
    assert!(note.partial);
    assert_eq!(note.proved[0].1.to_string(), "a/b1");
    // An update of the part, then everything.
    for _ in 0..30 {
        publisher.edit();
    }
    publisher.publish();
    follower
        .pull(&publisher, &[publisher.source()])
        .await
        .unwrap();
    assert_eq!(follower.proved(&publisher, "a/b1").await, 2);
    follower.options.scope = Scope::default();
    follower
        .pull(&publisher, &[publisher.source()])
        .await
        .unwrap();
    assert_eq!(follower.proved(&publisher, "").await, 2);
    follower.options.scope = Scope::new([b"no/such".to_vec()]);
    let error = follower
        .pull(&publisher, &[publisher.source()])
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            PullError::Volume(VolumeError::Read(ReadError::NotFound { .. }))
        ),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_longer_statement_is_stored_and_a_second_writer_is_refused() {
    let publisher = Publisher::new(50);
    let follower = Follower::new();
    follower
        .pull(&publisher, &[publisher.source()])
        .await
        .unwrap();
    let repository = follower.repository();
    let writer = Writer::begin(&repository).unwrap();
    let error = follower
        .pull(&publisher, &[publisher.source()])
        .await
        .unwrap_err();
    assert!(
        matches!(error, PullError::Store(StoreError::Locked { .. })),
        "{error}"
    );
    drop(writer);
    let other = Publisher::new(51);
    let mut stranger = sim::model::Model::new(9).unwrap();
    std::mem::swap(&mut stranger, &mut { other }.model);
    let tally = Arc::default();
    let (source, disk) = ([publisher.source()], follower.disk.clone());
    let wrong = trust::statement::VolumeId::from_bytes([3; 32]);
    let error = replica::pull::pull(wrong, &source, disk, &follower.options, tally).await;
    assert!(
        matches!(error, Err(PullError::OtherVolume { .. })),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_holds_over_the_whole_pull() {
    let publisher = Publisher::new(60);
    let mut follower = Follower::new();
    let rate = 2_000_000;
    follower.options.bytes_per_second = Some(rate);
    for source in [publisher.source(), by_handle(&publisher)] {
        let follower = Follower {
            options: follower.options.clone(),
            ..Follower::new()
        };
        let began = Instant::now();
        let pulled = follower.pull(&publisher, &[source]).await.unwrap();
        let least = Duration::from_secs_f64(pulled.received_bytes as f64 / rate as f64 * 0.95);
        assert!(
            began.elapsed() >= least,
            "{pulled:?} in {:?}",
            began.elapsed()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paranoid_pull_replaces_damaged_blocks() {
    let publisher = Publisher::new(70);
    let mut follower = Follower::new();
    follower
        .pull(&publisher, &[publisher.source()])
        .await
        .unwrap();
    let disk = follower.disk.clone();
    let files = disk.files();
    let segment = files
        .iter()
        .find(|name| name.starts_with("segments/"))
        .unwrap();
    let file = store::disk::Disk::open(&*disk, segment).unwrap();
    let len = file.len_bytes().unwrap();
    for at in (500..len / 2).step_by(len as usize / 12) {
        file.write_at(&[0xa5; 3], at).unwrap();
    }
    let plain = follower
        .pull(&publisher, &[publisher.source()])
        .await
        .unwrap();
    assert_eq!(plain.healed, 0);
    follower.options.paranoid = true;
    let healed = follower
        .pull(&publisher, &[publisher.source()])
        .await
        .unwrap();
    assert!(healed.healed > 0, "{healed:?}");
    assert_eq!(follower.proved(&publisher, "").await, 1);
    let again = follower
        .pull(&publisher, &[publisher.source()])
        .await
        .unwrap();
    assert_eq!(again.healed, 0);
}

/// In one thread, so that every log line is captured.
#[tokio::test]
async fn a_missing_path_is_not_blamed_on_a_source() {
    let mut publisher = Publisher::new(41);
    let first = publisher.head.clone();
    publisher.edit();
    publisher.publish();
    let mut follower = Follower::new();
    let whole = follower.pull(&publisher, &[publisher.source()]).await;
    whole.unwrap();
    follower.options.scope = Scope::new([b"no/such".to_vec()]);
    let log = Log::default();
    let listening = tracing::subscriber::set_default(log.clone());
    let two = [by_handle(&publisher), publisher.source()];
    let error = follower.pull(&publisher, &two).await.unwrap_err();
    drop(listening);
    assert!(
        matches!(
            error,
            PullError::Volume(VolumeError::Read(ReadError::NotFound { .. }))
        ),
        "{error}"
    );
    assert_eq!(log.lines(Level::WARN), Vec::<String>::new());
    // A source that lags is not accused either.
    let lagging = Lie::Head(first);
    let lagging = Arc::new(Liar::new(publisher.repository.clone(), lagging));
    let two = [by_handle(&publisher), lagging];
    let error = follower.pull(&publisher, &two).await.unwrap_err();
    assert!(
        matches!(
            error,
            PullError::Volume(VolumeError::Read(ReadError::NotFound { .. }))
        ),
        "{error}"
    );
}

/// A pull copies extensions, and takes over a version in which only an extension changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extensions_of_a_later_bulla_are_pulled() {
    let mut publisher = Publisher::new(31);
    let follower = Follower::new();
    for value in ["one", "two"] {
        let mut file = publisher.model.file(&[3; 9000], 8192).unwrap();
        file.extensions.push(Extension {
            tag: 0x80,
            value: value.into(),
        });
        let root = publisher.model.directory(vec![(b"file".to_vec(), file)]);
        let head = publisher.model.publish(&root.unwrap(), now(), 3600);
        publisher.head = head.unwrap();
        publisher.commit();
        let sources = [publisher.source()];
        let pulled = follower.pull(&publisher, &sources).await.unwrap();
        assert_eq!(pulled.version, publisher.versions);
        assert!(pulled.blocks > 0, "the root differs");
        assert_eq!(follower.proved(&publisher, "").await, publisher.versions);
        let root = publisher.root();
        assert!(follower.repository().contains(&root).unwrap());
    }
}

/// An entry that this version does not know is the publisher's, so no source is blamed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn version_of_a_later_bulla_is_unsupported_at_each_pull() {
    let mut publisher = Publisher::new(32);
    let mut critical = publisher.model.file(b"x", 8192).unwrap().encode();
    critical.push(0x7f);
    let apart = publisher.model.block::<InodeBlock>(&critical).unwrap();
    for later in [Entry::Block(apart).encode(), vec![0xf0; 46]] {
        let entries: [(&[u8], Vec<u8>); 1] = [(b"later", later)];
        let root = publisher.model.directory_of_values(&entries).unwrap();
        publisher.head = publisher.model.publish(&root, now(), 3600).unwrap();
        publisher.commit();
        let follower = Follower::new();
        for _ in 0..2 {
            let sources = [publisher.source()];
            let refused = follower.pull(&publisher, &sources).await.unwrap_err();
            let unsupported = matches!(
                &refused,
                PullError::Volume(VolumeError::Read(ReadError::Unsupported { .. }))
            );
            assert!(unsupported, "{refused}");
        }
        // A later bulla wrote the block here. It is not damaged.
        let repository = follower.repository();
        let mut writer = Writer::begin(&repository).unwrap();
        for record in of_kind(&publisher.model.records, Kind::Inode) {
            writer.append(record).unwrap();
        }
        writer.checkpoint().unwrap();
        drop(writer);
        let sources = [publisher.source()];
        let refused = follower.pull(&publisher, &sources).await.unwrap_err();
        let unsupported = match &refused {
            PullError::Store(error) => matches!(error, StoreError::Unsupported { .. }),
            PullError::Volume(error) => error.class() == Some(Class::Unsupported),
            _ => false,
        };
        assert!(unsupported, "{refused}");
    }
}
