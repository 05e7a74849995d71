//! Long messages of records, which a client takes record by record as they come: however the bytes are cut, with wrong
//! records in the middle, and longer than the memory that is reserved for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use store::BlockStore;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use trust::record::RECORD_HEADER_BYTES;
use trust::{Handle, Record};
use wire::frame::{HEADER_BYTES, Header};
use wire::mirror::kind;

use super::hostile_servers::{
    answers, get, greet, is_bad, message, patient, record, records, request, server, server_for,
};

/// A server that sends `sent` for its first request and then is silent, for longer than any test takes.
async fn sends(sent: impl Fn(u32) -> Vec<u8> + Clone + Send + 'static) -> wire::RemoteStore {
    let behave = move |mut stream: TcpStream| {
        let sent = sent.clone();
        async move {
            greet(&mut stream).await;
            let (id, _) = request(&mut stream, &mut BytesMut::new()).await;
            stream.write_all(&sent(id)).await.unwrap();
            std::future::pending::<()>().await;
        }
    };
    server(behave).await.0
}

/// The beginning of a message of records whose body has `body_bytes`.
fn begun(id: u32, body_bytes: usize, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + body.len());
    Header::new(kind::RECORDS, id, body_bytes).put(&mut out);
    out.extend_from_slice(body);
    out
}

fn put(records: &[Record]) -> BytesMut {
    let mut body = BytesMut::new();
    records.iter().for_each(|record| record.put(&mut body));
    body
}

#[tokio::test]
async fn records_of_a_long_message_come_whole_however_the_bytes_are_cut() {
    for step in [700, 4096, 70_000, 1 << 20] {
        let behave = move |mut stream: TcpStream| async move {
            stream.set_nodelay(true).unwrap();
            let mut buffer = BytesMut::new();
            greet(&mut stream).await;
            loop {
                let (id, _) = request(&mut stream, &mut buffer).await;
                let all = [
                    records(
                        id,
                        &[
                            record(9, 30),
                            record(2, 300_000),
                            record(8, 0),
                            record(7, 5000),
                        ],
                    ),
                    records(id, &[record(1, 150_000), record(6, 90_000), record(5, 20)]),
                    message(kind::DONE, id, &[]),
                ];
                for piece in all.concat().chunks(step) {
                    if stream.write_all(piece).await.is_err() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            }
        };
        let (store, connections) = server(behave).await;
        let expected = [
            (2, 300_000),
            (1, 150_000),
            (9, 30),
            (8, 0),
            (7, 5000),
            (6, 90_000),
            (5, 20),
        ];
        // The second answer begins where the first one ends.
        for _ in 0..2 {
            let got = get(&store, 200_000).await.unwrap();
            assert_eq!(
                got,
                expected.map(|(n, len)| record(n, len)),
                "{step} bytes at once"
            );
        }
        assert_eq!(connections.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test]
async fn wrong_record_in_a_long_message_is_refused_before_the_rest_of_the_message_comes() {
    type Liar = fn(u32) -> Vec<u8>;
    const LONG: usize = 1 << 20;
    let liars: [(&str, Liar); 6] = [
        ("a record nobody asked for", |id| {
            begun(id, LONG, &put(&[record(1, 9), record(9, 100)]))
        }),
        ("a long record nobody asked for", |id| {
            begun(id, LONG, &put(&[record(9, 100_000)]))
        }),
        ("a record twice", |id| {
            begun(id, LONG, &put(&[record(1, 70_000), record(1, 70_000)]))
        }),
        ("a record longer than its message", |id| {
            let body = put(&[record(1, 9), record(2, 100_000)]);
            let until = body.len() - 100_000;
            begun(id, body.len() - 1, &body[..until])
        }),
        ("a record longer than any", |id| {
            let body = [&[1; 32][..], &(2u32 << 20).to_le_bytes()].concat();
            begun(id, LONG, &body)
        }),
        ("an impossible frame", |id| {
            let mut body = put(&[record(1, 50_000)]);
            // The stated length of the plaintext.
            body[RECORD_HEADER_BYTES + 2] ^= 1;
            begun(id, LONG, &body)
        }),
    ];
    for (what, liar) in liars {
        // The server is silent for as long as the client waits for more of the message.
        let store = sends(liar).await;
        let got = tokio::time::timeout(Duration::from_secs(40), get(&store, 0)).await;
        assert!(is_bad(got.expect(what)), "{what}");
    }
}

#[tokio::test]
async fn long_record_of_a_later_bulla_is_passed_over() {
    let later = |id| {
        let mut body = put(&[record(1, 80_000), record(2, 90_000)]);
        // The codec of the first frame.
        body[RECORD_HEADER_BYTES + 1] = 9;
        [
            message(kind::RECORDS, id, &body),
            message(kind::DONE, id, &[]),
        ]
        .concat()
    };
    let got = get(&answers(later).await, 0).await.unwrap();
    assert_eq!(got, [record(2, 90_000)]);
}

#[tokio::test]
async fn long_message_beyond_the_reserved_memory_is_skipped_and_asked_for_again() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&requests);
    let behave = move |mut stream: TcpStream| {
        let counter = Arc::clone(&counter);
        async move {
            let mut buffer = BytesMut::new();
            greet(&mut stream).await;
            loop {
                let (id, _) = request(&mut stream, &mut buffer).await;
                counter.fetch_add(1, Ordering::Relaxed);
                let all = [
                    records(id, &[record(1, 400_000)]),
                    message(kind::DONE, id, &[]),
                ];
                if stream.write_all(&all.concat()).await.is_err() {
                    return;
                }
            }
        }
    };
    let (store, connections) = server_for(patient(), behave).await;
    let want = [Handle::from_bytes([1; 32])];
    let got = store.get_within(&want, 0, 100_000).await.unwrap();
    assert_eq!(got, [record(1, 400_000)]);
    assert_eq!(requests.load(Ordering::Relaxed), 2);
    assert_eq!(connections.load(Ordering::Relaxed), 1, "nobody was blamed");
}
