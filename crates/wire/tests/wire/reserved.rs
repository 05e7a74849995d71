//! Requests for blocks of known length reserve little memory, so that many are under way. The lengths come from the
//! volume's publisher, who may lie: an honest server must not be blamed for a longer block, and no server can use it to
//! fill the memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use sim::random::noise;
use sim::time::eventually;
use store::BlockStore;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use trust::frame::Packer;
use trust::{Handle, Kind, Record};
use wire::RemoteOptions;
use wire::mirror::{Request, kind};

use super::hostile_servers::{greet, message, patient, request, server_for};

/// Handles in the requests of these tests.
const BLOCKS: usize = 100;

fn handles() -> Vec<Handle> {
    let handles = (0..BLOCKS).map(|n| Handle::from_bytes([n as u8; 32]));
    handles.collect()
}

/// The answer to a request: records of so many bytes for all its handles.
fn answer(id: u32, asked: &Request, len: usize) -> Vec<u8> {
    let Request::Data { want, .. } = asked else {
        panic!("{asked:?}");
    };
    let mut out = Vec::new();
    for handle in want {
        let frame = Packer::new().pack(Kind::Data, &noise(1, len)).unwrap();
        let mut body = BytesMut::new();
        Record {
            handle: *handle,
            frame,
        }
        .put(&mut body);
        out.extend(message(kind::RECORDS, id, &body));
    }
    out.extend(message(kind::DONE, id, &[]));
    out
}

#[tokio::test]
async fn block_that_is_longer_than_its_publisher_says_is_given_all_the_same() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&requests);
    let behave = move |mut stream: TcpStream| {
        let counter = Arc::clone(&counter);
        async move {
            let mut buffer = BytesMut::new();
            greet(&mut stream).await;
            loop {
                let (id, asked) = request(&mut stream, &mut buffer).await;
                counter.fetch_add(1, Ordering::Relaxed);
                if stream.write_all(&answer(id, &asked, 4000)).await.is_err() {
                    return;
                }
            }
        }
    };
    let (store, connections) = server_for(patient(), behave).await;
    let want = handles();
    let got = store.get_within(&want, 0, 4000 * BLOCKS as u64).await;
    assert_eq!(got.unwrap().len(), BLOCKS);
    assert_eq!(requests.load(Ordering::Relaxed), 1);
    // A bound that the answer exceeds: asked again, with room for the longest blocks.
    let got = store.get_within(&want, 0, 100 * BLOCKS as u64).await;
    assert_eq!(got.unwrap().len(), BLOCKS);
    assert_eq!(requests.load(Ordering::Relaxed), 3);
    let got = store.get_within(&want, 0, 4000 * BLOCKS as u64).await;
    assert_eq!(got.unwrap().len(), BLOCKS);
    assert_eq!(connections.load(Ordering::Relaxed), 1, "nobody was blamed");
}

#[tokio::test]
async fn requests_of_known_length_are_under_way_together() {
    let (under_way, may_answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (counter, gate) = (Arc::clone(&under_way), Arc::clone(&may_answer));
    let behave = move |mut stream: TcpStream| {
        let (counter, gate) = (Arc::clone(&counter), Arc::clone(&gate));
        async move {
            let mut buffer = BytesMut::new();
            greet(&mut stream).await;
            let mut asked = Vec::new();
            loop {
                tokio::select! {
                    one = request(&mut stream, &mut buffer) => {
                        counter.fetch_add(1, Ordering::Relaxed);
                        asked.push(one);
                    }
                    _ = gate.acquire() => break,
                }
            }
            for (id, request) in asked {
                stream.write_all(&answer(id, &request, 1000)).await.unwrap();
            }
            std::future::pending::<()>().await;
        }
    };
    // Room for four blocks of unknown length.
    let options = RemoteOptions {
        max_held_bytes: 4 << 20,
        ..patient()
    };
    let (store, _) = server_for(options, behave).await;
    let store = Arc::new(store);
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let want = handles();
                store.get_within(&want, 0, 1000 * BLOCKS as u64).await
            })
        })
        .collect();
    eventually("all are under way", || {
        under_way.load(Ordering::Relaxed) == 8
    })
    .await;
    may_answer.add_permits(1);
    for call in calls {
        let got = tokio::time::timeout(Duration::from_secs(60), call).await;
        assert_eq!(got.unwrap().unwrap().unwrap().len(), BLOCKS);
    }
}
