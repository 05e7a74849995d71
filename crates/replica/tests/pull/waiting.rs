//! Sources that fall silent at some request: a pull waits for them no longer than the deadline, and a pull
//! that is asked to stop does not wait at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use replica::note::Scope;
use replica::pull::{PullError, Pulled};
use sim::altered::{Alteration, Altered};
use sim::time::{eventually, now};
use store::object::ObjectName;
use store::{BlockStore, BoxFuture, Objects, Replica, Repository, StoreError};
use trust::{Handle, Record};

use crate::world::{Follower, Publisher};

/// Much longer than any of these pulls takes, and much shorter than the deadline.
const SOON: Duration = Duration::from_secs(60);

/// What a source can be asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asked {
    Head,
    Blocks,
    Log,
    Tile,
    Other,
}

/// Falls silent at one request. Of its files, it shows only the log.
struct Silent {
    honest: Repository,
    at: Option<Asked>,
    silences: AtomicU64,
}

impl Silent {
    fn new(publisher: &Publisher, at: Option<Asked>) -> Arc<Altered<Silent>> {
        Arc::new(Altered(Silent {
            honest: publisher.repository.clone(),
            at,
            silences: 0.into(),
        }))
    }

    async fn hear(&self, asked: Asked) {
        if self.at == Some(asked) {
            self.silences.fetch_add(1, Ordering::Relaxed);
            std::future::pending().await
        }
    }
}

impl Alteration for Silent {
    fn honest(&self) -> &dyn Replica {
        &self.honest
    }

    fn records<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        Box::pin(async move {
            self.hear(Asked::Blocks).await;
            self.honest.get_many(want, around).await
        })
    }

    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        Box::pin(async move {
            self.hear(Asked::Head).await;
            self.honest.head().await
        })
    }

    fn file(
        &self,
        name: ObjectName,
        offset: u64,
        len_bytes: usize,
    ) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        Box::pin(async move {
            let asked = match name {
                ObjectName::Log { .. } => Asked::Log,
                ObjectName::Tile { .. } => Asked::Tile,
                _ => Asked::Other,
            };
            self.hear(asked).await;
            match asked {
                Asked::Other => Ok(None),
                _ => self.honest.range(name, offset, len_bytes).await,
            }
        })
    }
}

async fn in_time(
    follower: &Follower,
    publisher: &Publisher,
    places: &[Arc<dyn Replica>],
) -> Pulled {
    let pull = follower.pull(publisher, places);
    let pulled = tokio::time::timeout(SOON, pull).await;
    pulled.expect("waits for a silent place").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_withholds_its_log_is_not_waited_for() {
    let mut publisher = Publisher::new(90);
    for _ in 0..3 {
        publisher.edit();
        publisher.publish();
    }
    let silent = || Silent::new(&publisher, Some(Asked::Log)) as Arc<dyn Replica>;
    let mut alone = Follower::new();
    // Leaves come until then.
    alone.options.deadline = Duration::from_secs(3);
    let alone = in_time(&alone, &publisher, &[silent()]).await;
    assert_eq!((alone.version, alone.log_whole), (4, false));
    let both = [silent(), publisher.source()];
    let follower = Follower::new();
    let pulled = in_time(&follower, &publisher, &both).await;
    assert_eq!((pulled.version, pulled.log_whole), (4, true));
    let leaf = |r: &Repository| r.log_leaf(0, 2).unwrap().unwrap();
    assert_eq!(leaf(&follower.repository()), leaf(&publisher.repository));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_a_pull_waits_for_no_source() {
    for at in [Asked::Head, Asked::Blocks, Asked::Log, Asked::Tile] {
        for paths in [vec![], vec![b"a".to_vec()]] {
            let what = format!("{at:?} {paths:?}");
            let mut publisher = Publisher::new(91);
            let mut follower = Follower::new();
            let source = [publisher.source()];
            follower.pull(&publisher, &source).await.unwrap();
            for _ in 0..4 {
                publisher.edit();
                publisher.publish();
            }
            follower.options.deadline = Duration::from_secs(200);
            follower.options.scope = Scope::new(paths);
            let silent = Silent::new(&publisher, Some(at));
            let stop = async {
                let silences = &silent.silences;
                eventually("a request", || silences.load(Ordering::Relaxed) > 0).await;
                follower.options.stop.notify_one();
            };
            let place = [silent.clone() as Arc<dyn Replica>];
            let pull = async { tokio::join!(follower.pull(&publisher, &place), stop).0 };
            let ended = tokio::time::timeout(SOON, pull).await;
            let error = ended.expect(&what).unwrap_err();
            assert!(matches!(error, PullError::Interrupted), "{what}: {error}");
            // The previous version stays, and the next pull is not asked to stop.
            assert_eq!(follower.proved(&publisher, "").await, 1, "{what}");
            let pulled = in_time(&follower, &publisher, &source).await;
            assert_eq!(pulled.version, 5, "{what}");
        }
    }
}

/// The wait for the bandwidth limit comes last. The version is committed by then, and a stop reports it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_a_committed_pull_reports_success() {
    let mut publisher = Publisher::new(92);
    let mut follower = Follower::new();
    follower
        .pull(&publisher, &[publisher.source()])
        .await
        .unwrap();
    // The same tree twice more: a leaf of the log is all that is to be fetched.
    publisher.publish_until(now(), 3700);
    publisher.publish_until(now(), 3800);
    follower.options.bytes_per_second = Some(5);
    let before = follower.repository().statements();
    let stop = async {
        let changed = || follower.repository().statements() != before;
        eventually("the new head", changed).await;
        follower.options.stop.notify_one();
    };
    let place = [Silent::new(&publisher, None) as Arc<dyn Replica>];
    let pull = async { tokio::join!(follower.pull(&publisher, &place), stop).0 };
    let ended = tokio::time::timeout(SOON, pull).await;
    let pulled = ended.expect("waits for the bandwidth limit").unwrap();
    assert_eq!((pulled.version, pulled.log_whole), (3, true));
    assert!(pulled.received_bytes > 100, "{pulled:?}");
}
