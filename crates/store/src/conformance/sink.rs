//! What every sink must do ([`BlockSink`]), as code that each implementation's tests call.
//!
//! A [`SinkPlace`] opens sinks and restarts; the suite puts blocks, restarts, and reads them back as a
//! client would. A place that fails panics with the name of the rule.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;

use futures_util::future::join_all;
use trust::frame::{MAX_BLOCK_BYTES, Packer};
use trust::{Frame, Handle, Kind, Record};

use super::{assert_same, compressible, names, record};
use crate::{BlockSink, BlockStore, StoreError};

/// A place under test, empty at first. At most one sink is open at a time.
pub trait SinkPlace {
    /// Its sinks.
    type Sink: BlockSink;
    /// Its blocks, for reading.
    type Store: BlockStore;

    /// Opens a sink.
    fn sink(&self) -> impl Future<Output = Self::Sink>;

    /// Simulates a crash: loses data that is not durable, as far as this kind of place can, starts the place
    /// again, and opens it for reading. All sinks were dropped before.
    fn restart(&mut self) -> impl Future<Output = Self::Store>;

    /// Lets the place run out of room after this many writes, or gives it room again. Returns whether the
    /// place can do that. If not, the suite skips the rules of a full place and says so on the error stream.
    fn limit(&mut self, _writes: Option<u64>) -> bool {
        false
    }

    /// Whether its sinks refuse a frame that does not hash to its handle under [`super::hasher`].
    fn checks_frames(&self) -> bool {
        false
    }
}

/// Runs the whole suite on new places.
///
/// # Panics
/// When the place breaks a rule; the message names it.
pub async fn suite<P: SinkPlace>(mut make: impl AsyncFnMut() -> P) {
    put_then_get(&mut make().await).await;
    sizes(&mut make().await).await;
    put_twice(&mut make().await).await;
    touch(&mut make().await).await;
    durability(&mut make().await).await;
    concurrent(&mut make().await).await;
    hostile_frames(&mut make().await).await;
    full(&mut make().await).await;
}

fn some(from: u64, count: u64) -> Vec<Record> {
    (from..from + count)
        .map(|i| match Kind::ALL[i as usize % 4] {
            kind if i % 3 == 0 => compressible(kind, i, 60 + 31 * i as usize),
            kind => record(kind, i, 60 + 31 * i as usize),
        })
        .collect()
}

async fn get(store: &impl BlockStore, want: &[Handle]) -> Vec<Record> {
    store.get_many(want, 0).await.expect("an answer")
}

async fn put_then_get<P: SinkPlace>(place: &mut P) {
    let records = some(0, 100);
    let sink = place.sink().await;
    sink.put(&[]).await.expect("nothing can be put");
    sink.flush().await.expect("and flushed");
    for part in records.chunks(17) {
        sink.put(part).await.expect("a put");
    }
    sink.flush().await.expect("a flush");
    drop(sink);
    let store = place.restart().await;
    let got = get(&store, &names(&records)).await;
    assert_same("what was put is got", &got, &records);
    let absent = record(Kind::Data, 5000, 100).handle;
    assert!(get(&store, &[absent]).await.is_empty(), "and nothing else");
}

async fn sizes<P: SinkPlace>(place: &mut P) {
    let mut records = vec![
        record(Kind::Data, 1, 0),
        record(Kind::Data, 2, 1),
        record(Kind::Data, 3, MAX_BLOCK_BYTES),
        compressible(Kind::Data, 4, MAX_BLOCK_BYTES),
    ];
    records.extend((0..3000).map(|i| record(Kind::Map, 1000 + i, 40)));
    let sink = place.sink().await;
    sink.put(&records).await.expect("large and many in one put");
    sink.flush().await.expect("a flush");
    drop(sink);
    let got = get(&place.restart().await, &names(&records)).await;
    assert_same("large and many", &got, &records);
    // An oversized block cannot become a record, so that no sink is ever given one.
    let large = vec![7; MAX_BLOCK_BYTES + 1];
    assert!(Packer::new().pack(Kind::Data, &large).is_err(), "oversize");
    let mut frame = vec![Kind::Data as u8, 0];
    frame.extend_from_slice(&(large.len() as u32).to_le_bytes());
    frame.extend_from_slice(&large);
    assert!(Frame::parse(frame.into()).is_err(), "oversize as a frame");
}

async fn put_twice<P: SinkPlace>(place: &mut P) {
    let records = some(0, 20);
    let sink = place.sink().await;
    let twice = [&records[..], &records[..]].concat();
    sink.put(&twice).await.expect("twice in one put");
    sink.put(&records[5..]).await.expect("again");
    sink.flush().await.expect("a flush");
    sink.put(&records).await.expect("again after a flush");
    sink.flush().await.expect("a flush");
    drop(sink);
    let sink = place.sink().await;
    sink.put(&records[..5]).await.expect("by another sink");
    sink.flush().await.expect("a flush");
    drop(sink);
    let got = get(&place.restart().await, &names(&records)).await;
    assert_same("a put is idempotent", &got, &records);
}

/// The handles, sorted: a sink may answer in any order.
fn sorted(mut handles: Vec<Handle>) -> Vec<Handle> {
    handles.sort_unstable();
    handles
}

async fn touch<P: SinkPlace>(place: &mut P) {
    let (here, absent) = (some(0, 20), some(100, 20));
    let sink = place.sink().await;
    assert!(sink.touch(&[]).await.expect("an answer").is_empty());
    let all = sorted(names(&absent));
    let answer = sink.touch(&names(&absent)).await.expect("an answer");
    assert_eq!(sorted(answer), all, "touch names what is absent");
    sink.put(&here[..10]).await.expect("a put");
    sink.flush().await.expect("a flush");
    sink.put(&here[10..]).await.expect("a put");
    let answer = sink.touch(&names(&here)).await.expect("an answer");
    assert_eq!(answer, [], "touch finds what was put, flushed or not");
    let mixed = [names(&absent), names(&here), names(&absent)].concat();
    let answer = sink.touch(&mixed).await.expect("an answer");
    assert_eq!(sorted(answer), all, "each absent block is named once");
    sink.flush().await.expect("a flush");
    drop(sink);
    let store = place.restart().await;
    let got = get(&store, &mixed).await;
    assert_same("touch adds nothing and loses nothing", &got, &here);
    drop(store);
    let sink = place.sink().await;
    let answer = sink.touch(&mixed).await.expect("an answer");
    assert_eq!(sorted(answer), all, "touch after a restart");
}

async fn durability<P: SinkPlace>(place: &mut P) {
    let mut kept: Vec<Record> = Vec::new();
    for round in 0..3 {
        let (flushed, loose) = (some(round * 100, 15), some(round * 100 + 50, 15));
        let sink = place.sink().await;
        sink.put(&flushed).await.expect("a put");
        sink.flush().await.expect("a flush");
        sink.put(&loose).await.expect("a put that is not flushed");
        drop(sink);
        kept.extend(flushed);
        let store = place.restart().await;
        let got = get(&store, &names(&kept)).await;
        assert_same("what was flushed survives a restart", &got, &kept);
        let got = get(&store, &names(&loose)).await;
        assert!(
            got.iter().all(|r| loose.contains(r)),
            "what was not flushed is whole or absent"
        );
        drop(store);
        let sink = place.sink().await;
        let absent = sink.touch(&names(&loose)).await.expect("an answer");
        let absent: HashSet<Handle> = absent.into_iter().collect();
        let lost = loose.iter().filter(|r| absent.contains(&r.handle));
        let lost: Vec<Record> = lost.cloned().collect();
        sink.put(&lost).await.expect("putting what was lost");
        sink.flush().await.expect("a flush");
        drop(sink);
        kept.extend(loose);
        let got = get(&place.restart().await, &names(&kept)).await;
        assert_same("what touch finds and what is put again is all", &got, &kept);
    }
}

async fn concurrent<P: SinkPlace>(place: &mut P) {
    let records = Arc::new(some(0, 300));
    let sink = Arc::new(place.sink().await);
    let tasks = (0..16_usize).map(|task| {
        let (sink, records) = (sink.clone(), records.clone());
        tokio::spawn(async move {
            for round in 0..20 {
                let from = (task * 17 + round * 15) % 300;
                let part = &records[from..(from + 20).min(300)];
                // A call that is given up must not disturb the others.
                drop(sink.put(part));
                sink.put(part).await.expect("a put among others");
                let absent = sink.touch(&names(part)).await.expect("an answer");
                assert_eq!(absent, [], "what was put stays");
                if (task + round) % 7 == 0 {
                    sink.flush().await.expect("a flush among puts");
                }
            }
        })
    });
    for task in join_all(tasks).await {
        task.expect("no task fails");
    }
    sink.put(&records).await.expect("a put");
    sink.flush().await.expect("a flush");
    drop(sink);
    let got = get(&place.restart().await, &names(&records)).await;
    assert_same("puts at once", &got, &records);
}

/// A frame that is not the block that its handle names. Either the sink checks and refuses it, or it
/// keeps the record as it came, for the reader to refuse.
async fn hostile_frames<P: SinkPlace>(place: &mut P) {
    let honest = some(0, 10);
    let garbage = Record {
        handle: record(Kind::Data, 900, 500).handle,
        frame: record(Kind::Data, 901, 500).frame,
    };
    let checks = place.checks_frames();
    let sink = place.sink().await;
    sink.put(&honest[..5]).await.expect("a put");
    let put = sink.put(std::slice::from_ref(&garbage)).await;
    assert_eq!(put.is_err(), checks, "it checks frames if it says so");
    let usurper = Record {
        handle: honest[1].handle,
        frame: garbage.frame.clone(),
    };
    let put = sink.put(&[usurper]).await;
    assert_eq!(put.is_err(), checks, "it checks frames if it says so");
    sink.put(&honest[5..]).await.expect("a put afterwards");
    sink.flush().await.expect("a flush afterwards");
    drop(sink);
    let store = place.restart().await;
    let got = get(&store, &names(&honest)).await;
    assert_same("garbage replaces no block", &got, &honest);
    let got = get(&store, &[garbage.handle]).await;
    let expected = if checks { vec![] } else { vec![garbage] };
    assert_same("garbage stays what it is", &got, &expected);
}

async fn full<P: SinkPlace>(place: &mut P) {
    let first = some(0, 10);
    let sink = place.sink().await;
    sink.put(&first).await.expect("a put");
    sink.flush().await.expect("a flush");
    drop(sink);
    for writes in [0, 1, 2, 3, 5, 8, 13, 21, 34, 55] {
        let sink = place.sink().await;
        if !place.limit(Some(writes)) {
            eprintln!("SKIPPED: this place cannot be made full");
            return;
        }
        let (error, mut accepted, durable) = fill(&sink, writes).await;
        assert!(
            matches!(error, StoreError::Full { .. }),
            "a full place says so: {error}"
        );
        place.limit(None);
        // A flush that succeeds now must have kept all that was accepted.
        if sink.flush().await.is_err() {
            accepted.truncate(durable);
        }
        let durable = accepted;
        drop(sink);
        let store = place.restart().await;
        let got = get(&store, &names(&first)).await;
        assert_same("a full place keeps what it had", &got, &first);
        let got = get(&store, &names(&durable)).await;
        assert_same("and what was flushed since", &got, &durable);
        drop(store);
        let sink = place.sink().await;
        sink.put(&durable).await.expect("a put when there is room");
        sink.flush().await.expect("a flush when there is room");
    }
}

/// Puts until the sink refuses, flushing every third time: the error, what was accepted, and how much
/// of that was flushed.
async fn fill(sink: &impl BlockSink, seed: u64) -> (StoreError, Vec<Record>, usize) {
    let (mut accepted, mut durable) = (Vec::new(), 0);
    for batch in 0..600 {
        let number = 10_000 * (seed + 1) + 8 * batch;
        let records = (number..number + 8).map(|i| record(Kind::Data, i, 50_000));
        let records: Vec<Record> = records.collect();
        let mut done = sink.put(&records).await;
        if done.is_ok() {
            accepted.extend(records);
            if batch % 3 == 2 {
                done = sink.flush().await;
                if done.is_ok() {
                    durable = accepted.len();
                }
            }
        }
        if let Err(error) = done {
            return (error, accepted, durable);
        }
    }
    panic!("a full place refuses at last");
}
