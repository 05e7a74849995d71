//! What every replica ([`suite`]) and every sink ([`sink`]) must do, as library code that the tests of
//! each implementation call.
//!
//! `make` returns a replica with the given content, and the suite sends it every kind of request. It
//! checks answers by hashing, as a client does. When a rule is broken, the suite panics with its name.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a suite fails by panicking

pub mod sink;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use trust::frame::{MAX_BLOCK_BYTES, Packer};
use trust::{Handle, Hasher, Kind, Record};

use crate::{Replica, StoreError};

/// Content of a replica under test: the records in this order, and the head.
#[derive(Debug, Clone, Default)]
pub struct Content {
    /// Blocks, in the order of a segment.
    pub records: Vec<Record>,
    /// The head that [`Replica::head`] returns; `None` when no version was published.
    pub head: Option<Bytes>,
}

/// The hash function with which [`record`] names blocks.
pub fn hasher() -> Hasher {
    Hasher::new(&[0x42; 32])
}

/// A record with a block of `len_bytes` that does not compress. Each seed gives another block if it
/// has 8 bytes or more.
pub fn record(kind: Kind, seed: u64, len_bytes: usize) -> Record {
    let mut noise = blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof();
    let mut plain = vec![0; len_bytes];
    noise.fill(&mut plain);
    pack(kind, &plain)
}

/// A record with a block that compresses well.
pub fn compressible(kind: Kind, seed: u64, len_bytes: usize) -> Record {
    let mut plain = format!("{seed} ").into_bytes();
    plain.resize(len_bytes.max(plain.len()), b'x');
    pack(kind, &plain)
}

fn pack(kind: Kind, plain: &[u8]) -> Record {
    Record {
        handle: hasher().name(kind, plain),
        frame: Packer::new().pack(kind, plain).expect("block fits"),
    }
}

/// Runs the whole suite. `head` is the head of the test volume; some replicas only take a valid one.
///
/// # Panics
/// When the replica breaks a rule; the message names it.
pub async fn suite<R: Replica>(make: impl AsyncFn(Content) -> R, head: Bytes) {
    empty(&make, head.clone()).await;
    shapes_of_requests(&make, head.clone()).await;
    sizes(&make, head.clone()).await;
    around(&make, head.clone()).await;
    concurrent(&make, head.clone()).await;
    heads(&make, head).await;
}

/// Sends a request and checks what must hold for every answer: without `around` only wanted records,
/// none twice, and every block hashes to its handle.
async fn ask(replica: &dyn Replica, want: &[Handle], around: usize) -> Vec<Record> {
    let answer = replica.get_many(want, around).await.expect("an answer");
    let wanted: HashSet<Handle> = want.iter().copied().collect();
    let mut seen = HashSet::new();
    let (mut extra_bytes, mut behind) = (0, false);
    for record in &answer {
        assert!(seen.insert(record.handle), "a block is answered once");
        let plain = record.frame.unpack().expect("a whole frame");
        let name = hasher().name(record.frame.kind(), &plain);
        assert_eq!(name, record.handle, "a block hashes to its name");
        if wanted.contains(&record.handle) {
            assert!(!behind, "read-around comes after what was asked for");
        } else {
            behind = true;
            extra_bytes += record.len();
        }
    }
    assert!(extra_bytes <= around, "read-around keeps to its budget");
    answer
}

fn names(records: &[Record]) -> Vec<Handle> {
    records.iter().map(|r| r.handle).collect()
}

/// Asserts that both have the same records in any order.
fn assert_same(rule: &str, got: &[Record], expected: &[Record]) {
    let map = |records: &[Record]| -> HashMap<Handle, Bytes> {
        let pair = |r: &Record| (r.handle, r.frame.as_bytes().clone());
        records.iter().map(pair).collect()
    };
    assert_eq!(got.len(), expected.len(), "{rule}");
    assert!(map(got) == map(expected), "{rule}");
}

async fn empty<R: Replica>(make: &impl AsyncFn(Content) -> R, head: Bytes) {
    let content = Content {
        records: Vec::new(),
        head: Some(head),
    };
    let replica = make(content).await;
    assert!(!replica.place().is_empty(), "a place has a name");
    assert!(
        ask(&replica, &[], 0).await.is_empty(),
        "nothing for nothing"
    );
    assert!(
        ask(&replica, &[], 1 << 20).await.is_empty(),
        "nor around it"
    );
    let absent = record(Kind::Data, 1, 100).handle;
    assert!(ask(&replica, &[absent], 1 << 20).await.is_empty(), "denied");
    assert!(replica.try_cached(&absent).is_none(), "nor cached");
}

async fn shapes_of_requests<R: Replica>(make: &impl AsyncFn(Content) -> R, head: Bytes) {
    let records: Vec<Record> = (0..300)
        .map(|i| match Kind::ALL[i as usize % 4] {
            kind if i % 3 == 0 => compressible(kind, i, 50 + 17 * i as usize),
            kind => record(kind, i, 50 + 17 * i as usize),
        })
        .collect();
    let content = Content {
        records: records.clone(),
        head: Some(head),
    };
    let replica = make(content).await;
    for r in records.iter().step_by(29) {
        assert_same(
            "one block",
            &ask(&replica, &[r.handle], 0).await,
            std::slice::from_ref(r),
        );
        if let Some(frame) = replica.try_cached(&r.handle) {
            assert_eq!(frame, r.frame, "what is cached is the same");
        }
    }
    let mut want = names(&records);
    assert_same("all", &ask(&replica, &want, 0).await, &records);
    want.reverse();
    assert_same("all, backwards", &ask(&replica, &want, 0).await, &records);
    let some: Vec<Record> = records.iter().step_by(7).cloned().collect();
    let mut want = names(&some);
    assert_same("some, far apart", &ask(&replica, &want, 0).await, &some);
    want.extend(names(&some));
    assert_same("twice asked", &ask(&replica, &want, 0).await, &some);
    for i in 0..50 {
        want.insert(i * 2, record(Kind::Map, 10_000 + i as u64, 60).handle);
    }
    assert_same("mixed with absent", &ask(&replica, &want, 0).await, &some);
    assert_same(
        "and around",
        &wanted(&ask(&replica, &want, 4096).await, &want),
        &some,
    );
    let absent: Vec<Handle> = (0..50)
        .map(|i| record(Kind::Data, 20_000 + i, 60).handle)
        .collect();
    assert!(ask(&replica, &absent, 4096).await.is_empty(), "all absent");
}

fn wanted(answer: &[Record], want: &[Handle]) -> Vec<Record> {
    let wanted: HashSet<&Handle> = want.iter().collect();
    let of_it = |r: &&Record| wanted.contains(&r.handle);
    answer.iter().filter(of_it).cloned().collect()
}

async fn sizes<R: Replica>(make: &impl AsyncFn(Content) -> R, head: Bytes) {
    let mut records: Vec<Record> = (0..8)
        .map(|i| record(Kind::Data, i, MAX_BLOCK_BYTES - i as usize))
        .collect();
    records.push(compressible(Kind::Data, 100, MAX_BLOCK_BYTES));
    records.push(record(Kind::Data, 101, 0));
    records.push(record(Kind::Data, 102, 1));
    records.extend((0..5000).map(|i| record(Kind::Map, 1000 + i, 40)));
    let content = Content {
        records: records.clone(),
        head: Some(head),
    };
    let replica = make(content).await;
    let want = names(&records);
    assert_same("large and many", &ask(&replica, &want, 0).await, &records);
    for r in records.iter().take(11) {
        let answer = ask(&replica, &[r.handle], 0).await;
        assert_same("a size by itself", &answer, std::slice::from_ref(r));
    }
}

async fn around<R: Replica>(make: &impl AsyncFn(Content) -> R, head: Bytes) {
    let records: Vec<Record> = (0..200).map(|i| record(Kind::Data, i, 900)).collect();
    let content = Content {
        records: records.clone(),
        head: Some(head),
    };
    let replica = make(content).await;
    let len = records[0].len();
    for budget in [
        0,
        1,
        len - 1,
        len,
        len + 1,
        10 * len,
        64 << 10,
        1 << 20,
        1 << 30,
    ] {
        for at in [0, 57, 199] {
            let want = [records[at].handle];
            let answer = ask(&replica, &want, budget).await;
            let found = wanted(&answer, &want);
            assert_same("read-around loses nothing", &found, &records[at..=at]);
        }
        let want: Vec<Handle> = records.iter().step_by(50).map(|r| r.handle).collect();
        assert_eq!(wanted(&ask(&replica, &want, budget).await, &want).len(), 4);
    }
}

async fn concurrent<R: Replica>(make: &impl AsyncFn(Content) -> R, head: Bytes) {
    let records: Vec<Record> = (0..400).map(|i| record(Kind::Data, i, 3000)).collect();
    let content = Content {
        records: records.clone(),
        head: Some(head),
    };
    let replica: Arc<R> = Arc::new(make(content).await);
    let tasks = (0..32).map(|task: usize| {
        let (replica, records) = (replica.clone(), records.clone());
        tokio::spawn(async move {
            for round in 0..20 {
                let from = (task * 13 + round * 29) % 390;
                let part = &records[from..from + 10];
                let want = names(part);
                let answer = ask(&*replica, &want, (round % 3) * 4000).await;
                assert_same("at once", &wanted(&answer, &want), part);
                // A caller that gives up must not disturb the others.
                drop(replica.get_many(&want, 0));
            }
        })
    });
    for task in join_all(tasks).await {
        task.expect("no task fails");
    }
}

async fn heads<R: Replica>(make: &impl AsyncFn(Content) -> R, head: Bytes) {
    let with = Content {
        records: vec![record(Kind::Map, 1, 100)],
        head: Some(head.clone()),
    };
    let replica = make(with).await;
    for _ in 0..3 {
        assert_eq!(replica.head().await.expect("a head"), head, "the head");
    }
    let replica = make(Content::default()).await;
    assert!(
        matches!(replica.head().await, Err(StoreError::NoVolume { .. })),
        "without a version there is no volume"
    );
}
