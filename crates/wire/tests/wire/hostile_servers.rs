//! Servers that stall, trickle, lie about lengths, send unrequested answers, or never stop: each call ends in
//! time with the right kind of error, and only requested data is held.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use sim::random::noise;
use sim::time::eventually;
use store::{BlockStore, Replica, StoreError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use trust::frame::Packer;
use trust::{Handle, Kind, Record};
use wire::frame::{HELLO, Header, MAX_REQUEST_BYTES, take};
use wire::mirror::{NO_VOLUME, Request, kind};
use wire::refusal::{ErrorCode, put_error};
use wire::{RemoteOptions, RemoteStore};

pub const VOLUME: trust::statement::VolumeId = trust::statement::VolumeId::from_bytes([1; 32]);

/// Time-outs that no answer reaches, however busy the machine is. What follows a failure at once falls into the pause.
pub fn patient() -> RemoteOptions {
    RemoteOptions {
        connect_timeout: Duration::from_secs(60),
        stall: Duration::from_secs(60),
        progress: Duration::from_secs(60),
        first_pause: Duration::from_secs(60),
        max_pause: Duration::from_secs(60),
        ..RemoteOptions::default()
    }
}

/// Gives up a silent server soon.
pub fn impatient() -> RemoteOptions {
    RemoteOptions {
        stall: Duration::from_millis(300),
        progress: Duration::from_millis(900),
        ..patient()
    }
}

pub fn record(n: u8, len: usize) -> Record {
    let plain = noise(n.into(), len);
    Record {
        handle: Handle::from_bytes([n; 32]),
        frame: Packer::new().pack(Kind::Data, &plain).unwrap(),
    }
}

pub fn message(kind: u8, id: u32, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let body_bytes = body.len();
    Header {
        kind,
        id,
        body_bytes,
    }
    .put(&mut out);
    out.extend_from_slice(body);
    out
}

pub fn records(id: u32, records: &[Record]) -> Vec<u8> {
    let mut body = BytesMut::new();
    records.iter().for_each(|r| r.put(&mut body));
    message(kind::RECORDS, id, &body)
}

/// A server that runs `behave` for every connection. Gives a store that speaks to it, and the number of
/// connections.
pub async fn server<F, B>(behave: B) -> (RemoteStore, Arc<AtomicU32>)
where
    F: Future<Output = ()> + Send + 'static,
    B: Fn(TcpStream) -> F + Send + 'static,
{
    server_for(patient(), behave).await
}

/// As [`server`], and the store has these options.
pub async fn server_for<F, B>(options: RemoteOptions, behave: B) -> (RemoteStore, Arc<AtomicU32>)
where
    F: Future<Output = ()> + Send + 'static,
    B: Fn(TcpStream) -> F + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let count = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counter.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(behave(stream));
        }
    });
    (RemoteStore::new(&address, VOLUME, options), count)
}

/// Reads the client's next request.
pub async fn request(stream: &mut TcpStream, buffer: &mut BytesMut) -> (u32, Request) {
    loop {
        if let Some((header, body)) = take(buffer, MAX_REQUEST_BYTES).unwrap() {
            return (header.id, Request::decode(header.kind, &body).unwrap());
        }
        if stream.read_buf(buffer).await.unwrap_or(0) == 0 {
            // The client has gone, so no further request comes.
            std::future::pending::<()>().await;
        }
    }
}

pub async fn greet(stream: &mut TcpStream) {
    let mut hello = [0; 8];
    stream.read_exact(&mut hello).await.unwrap();
    stream.write_all(&HELLO).await.unwrap();
}

/// A server that sends the result of `answer` for the id of each request.
pub async fn answers(answer: impl Fn(u32) -> Vec<u8> + Clone + Send + 'static) -> RemoteStore {
    let behave = move |mut stream: TcpStream| {
        let answer = answer.clone();
        async move {
            let mut buffer = BytesMut::new();
            greet(&mut stream).await;
            loop {
                let (id, _) = request(&mut stream, &mut buffer).await;
                if stream.write_all(&answer(id)).await.is_err() {
                    return;
                }
            }
        }
    };
    server(behave).await.0
}

pub async fn get(store: &RemoteStore, around: usize) -> Result<Vec<Record>, StoreError> {
    let want = [Handle::from_bytes([1; 32]), Handle::from_bytes([2; 32])];
    let call = store.get_many(&want, around);
    let within = Duration::from_secs(120);
    tokio::time::timeout(within, call).await.unwrap()
}

pub fn is_bad(result: Result<impl Sized, StoreError>) -> bool {
    matches!(result, Err(StoreError::BadAnswer { .. }))
}

fn is_unavailable(result: Result<impl Sized, StoreError>) -> bool {
    matches!(result, Err(StoreError::Unavailable { .. }))
}

#[tokio::test]
async fn an_honest_answer_is_accepted() {
    let good = |id| {
        [
            records(id, &[record(2, 50), record(9, 100)]),
            records(id, &[record(1, 70_000)]),
            message(kind::DONE, id, &[]),
        ]
        .concat()
    };
    let store = answers(good).await;
    let got = get(&store, 1000).await.unwrap();
    assert_eq!(got, [record(2, 50), record(1, 70_000), record(9, 100)]);
}

#[tokio::test]
async fn dishonest_answers_are_refused() {
    type Liar = fn(u32) -> Vec<u8>;
    fn claims(id: u32, length: u32) -> Vec<u8> {
        let mut m = message(kind::RECORDS, id, &[]);
        m.splice(0..4, length.to_le_bytes());
        m
    }
    let liars: [(&str, Liar); 14] = [
        ("another id", |id| message(kind::DONE, id + 1, &[])),
        ("id 0", |_| message(kind::DONE, 0, &[])),
        ("a head for data", |id| message(kind::HEAD, id, b"head")),
        ("an unknown type", |id| message(0x99, id, &[])),
        ("a request", |id| {
            message(kind::GET_HEAD, id, VOLUME.as_bytes())
        }),
        ("a length below the least", |id| claims(id, 4)),
        ("a length above the most", |id| claims(id, u32::MAX)),
        ("a body longer than asked for", |id| claims(id, 3 << 20)),
        ("a record nobody asked for", |id| {
            records(id, &[record(9, 100)])
        }),
        ("a record twice", |id| {
            records(id, &[record(1, 9), record(1, 9)])
        }),
        ("half a record", |id| {
            let whole = records(id, &[record(1, 100)]);
            message(kind::RECORDS, id, &whole[9..whole.len() - 1])
        }),
        ("an impossible frame", |id| {
            message(kind::RECORDS, id, &[1; 100])
        }),
        ("no records in records", |id| {
            message(kind::RECORDS, id, &[])
        }),
        ("bytes in an end", |id| message(kind::DONE, id, b"x")),
    ];
    for (what, liar) in liars {
        let store = answers(liar).await;
        assert!(is_bad(get(&store, 0).await), "{what}");
    }
}

#[tokio::test]
async fn another_service_at_the_port_is_unusable() {
    for hello in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"SSH-2.0-x\r\n"] {
        let (store, _) = server(move |mut stream| async move {
            stream.write_all(hello).await.unwrap();
            std::future::pending::<()>().await;
        })
        .await;
        match get(&store, 0).await {
            // A mistyped port is not reported as an attack, and not asked again.
            Err(StoreError::Unusable { cause, .. }) => {
                assert!(cause.contains("does not speak bulla"), "{cause}");
            }
            answer => panic!("{hello:?}: {answer:?}"),
        }
    }
}

#[tokio::test]
async fn silence_is_noticed() {
    let (store, _) = server_for(impatient(), |stream| async move {
        let _keep = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let began = Instant::now();
    let error = get(&store, 0).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }));
    assert!(error.to_string().contains("silent"), "{error}");
    assert!(began.elapsed() >= Duration::from_millis(290));
    assert!(began.elapsed() < Duration::from_secs(60));
    // Calls during the pause fail at once.
    let error = store.head().await.unwrap_err();
    assert!(error.to_string().contains("next attempt"), "{error}");
}

#[tokio::test]
async fn a_trickling_server_is_cut_off() {
    let (store, _) = server_for(impatient(), |mut stream| async move {
        let all = [&HELLO[..], &message(kind::HEAD, 1, &[7; 1000])].concat();
        for byte in all {
            if stream.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    // The whole answer takes 100 s.
    let result = tokio::time::timeout(Duration::from_secs(60), store.head()).await;
    assert!(is_unavailable(result.unwrap()));
}

#[tokio::test]
async fn an_endless_answer_is_cut_at_its_bound() {
    let is_cut = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_cut);
    let (store, _) = server(move |mut stream| {
        let ends = Arc::clone(&ends);
        async move {
            greet(&mut stream).await;
            let (id, _) = request(&mut stream, &mut BytesMut::new()).await;
            let piece = records(id, &[record(9, 900)]);
            while stream.write_all(&piece).await.is_ok() {}
            ends.store(true, Ordering::Relaxed);
        }
    })
    .await;
    assert!(is_bad(get(&store, 100_000).await));
    let is_cut = || is_cut.load(Ordering::Relaxed);
    eventually("the connection is closed", is_cut).await;
}

#[tokio::test]
async fn closing_in_the_middle_is_an_outage() {
    for cut in [0, 4, 8, 12, 17, 30, 60, 100] {
        let (store, _) = server(move |mut stream| async move {
            let mut hello = [0; 8];
            stream.read_exact(&mut hello).await.unwrap();
            let (id, _) = request(&mut stream, &mut BytesMut::new()).await;
            let all = [&HELLO[..], &records(id, &[record(1, 500)])].concat();
            stream.write_all(&all[..cut]).await.unwrap();
        })
        .await;
        assert!(is_unavailable(get(&store, 0).await), "cut at {cut}");
    }
}

#[tokio::test]
async fn refusals_have_their_meaning_and_no_escape_sequences() {
    let refuse = |code: u8| {
        move |id: u32| {
            let body = [&[code][..], b"\x1b[31mred\xff"].concat();
            message(kind::ERROR, id, &body)
        }
    };
    let no_volume = answers(refuse(NO_VOLUME.0)).await;
    let got = get(&no_volume, 0).await;
    assert!(matches!(got, Err(StoreError::NoVolume { .. })));
    for code in [1, 3, 4, 5, 6, 77] {
        let error = get(&answers(refuse(code)).await, 0).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable { .. }));
        assert!(error.to_string().contains("?[31mred?"), "{error}");
    }
    let empty = answers(|id| message(kind::ERROR, id, &[])).await;
    assert!(is_bad(get(&empty, 0).await));
    let long = answers(|id| message(kind::ERROR, id, &[b'x'; 300])).await;
    assert!(is_bad(get(&long, 0).await));
}

#[tokio::test]
async fn one_refusal_for_all_ends_the_connection() {
    let (store, count) = server(|mut stream| async move {
        let mut all = HELLO.to_vec();
        put_error(&mut all, 0, ErrorCode::BUSY, "too many connections");
        stream.write_all(&all).await.unwrap();
        let mut rest = Vec::new();
        // Ends when the client closes the connection, in whatever way.
        let _ = stream.read_to_end(&mut rest).await;
    })
    .await;
    let error = store.head().await.unwrap_err().to_string();
    assert!(error.contains("too many connections"), "{error}");
    // The pause between attempts keeps a busy server from being hammered.
    for _ in 0..1000 {
        assert!(is_unavailable(store.head().await));
    }
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn unreachable_addresses_and_unknown_names_are_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let store = RemoteStore::new(&address, VOLUME, patient());
    assert!(is_unavailable(store.head().await));
    let nowhere = RemoteStore::new("no port", VOLUME, patient());
    assert!(is_unavailable(nowhere.head().await));
}

/// On one thread: once every call has begun, each was admitted or waits.
#[tokio::test]
async fn calls_beyond_the_memory_bound_wait() {
    let asked = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&asked);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = BytesMut::new();
        greet(&mut stream).await;
        while stream.read_buf(&mut buffer).await.unwrap_or(0) > 0 {
            while let Some((header, body)) = take(&mut buffer, MAX_REQUEST_BYTES).unwrap() {
                if let Request::Data { want, .. } = Request::decode(header.kind, &body).unwrap() {
                    counter.fetch_add(want.len() as u32, Ordering::Relaxed);
                }
            }
        }
    });
    let options = RemoteOptions {
        max_held_bytes: 9 << 20,
        ..patient()
    };
    let store = Arc::new(RemoteStore::new(&address, VOLUME, options));
    let begun = Arc::new(AtomicU32::new(0));
    let calls: Vec<_> = (0..30u8)
        .map(|n| {
            let (store, begun) = (Arc::clone(&store), Arc::clone(&begun));
            tokio::spawn(async move {
                let want = [n, n + 100].map(|n| Handle::from_bytes([n; 32]));
                begun.fetch_add(1, Ordering::Relaxed);
                store.get_many(&want, 0).await.map(drop)
            })
        })
        .collect();
    eventually("all calls have begun", || {
        begun.load(Ordering::Relaxed) == 30
    })
    .await;
    eventually("the first calls were sent", || {
        asked.load(Ordering::Relaxed) >= 8
    })
    .await;
    for call in &calls {
        assert!(!call.is_finished(), "a call ended without an answer");
        call.abort();
    }
    for call in calls {
        assert!(call.await.unwrap_err().is_cancelled());
    }
    // The server reads to the end of the stream: there is nothing that it has not seen.
    drop(store);
    server.await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 8);
}

#[tokio::test]
async fn the_answer_to_a_cancelled_call_is_skipped() {
    let asked = Arc::new(Notify::new());
    let arrives = Arc::clone(&asked);
    let (store, count) = server(move |mut stream| {
        let arrives = Arc::clone(&arrives);
        async move {
            let mut buffer = BytesMut::new();
            greet(&mut stream).await;
            let (first, _) = request(&mut stream, &mut buffer).await;
            arrives.notify_one();
            let (second, _) = request(&mut stream, &mut buffer).await;
            let all = [
                records(first, &[record(1, 100_000)]),
                message(kind::HEAD, second, b"head"),
                message(kind::DONE, first, &[]),
            ];
            stream.write_all(&all.concat()).await.unwrap();
            let (third, _) = request(&mut stream, &mut buffer).await;
            let again = message(kind::HEAD, third, b"again");
            stream.write_all(&again).await.unwrap();
            std::future::pending::<()>().await;
        }
    })
    .await;
    let want = [Handle::from_bytes([1; 32])];
    tokio::select! {
        got = store.get_many(&want, 0) => panic!("{got:?} without an answer"),
        () = asked.notified() => {}
    }
    assert_eq!(&store.head().await.unwrap()[..], b"head");
    assert_eq!(&store.head().await.unwrap()[..], b"again");
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn records_pushed_with_the_first_head_are_given_once() {
    let (store, _) = server(|mut stream| async move {
        let mut buffer = BytesMut::new();
        greet(&mut stream).await;
        loop {
            let (id, asked) = request(&mut stream, &mut buffer).await;
            let answer = match asked {
                // Two records for one handle: the second is ignored.
                Request::Head { around_bytes, .. } if around_bytes > 0 => [
                    records(id, &[record(1, 100), record(2, 200)]),
                    records(id, &[record(3, 300), record(3, 9), record(4, 400)]),
                    message(kind::HEAD, id, b"head"),
                ]
                .concat(),
                Request::Head { .. } => message(kind::HEAD, id, b"again"),
                Request::Data { want, .. } => {
                    let from_afar = want.iter().map(|h| Record {
                        handle: *h,
                        frame: record(9, 1).frame,
                    });
                    let from_afar: Vec<Record> = from_afar.chain([record(2, 7)]).collect();
                    [records(id, &from_afar), message(kind::DONE, id, &[])].concat()
                }
                Request::Range { .. } => return,
            };
            stream.write_all(&answer).await.unwrap();
        }
    })
    .await;
    let handle = |n| Handle::from_bytes([n; 32]);
    let lengths =
        |got: Vec<Record>| -> Vec<usize> { got.iter().map(|r| r.frame.plaintext_len()).collect() };
    assert!(store.try_cached(&handle(1)).is_none());
    assert_eq!(&store.head().await.unwrap()[..], b"head");
    assert_eq!(store.try_cached(&handle(1)).unwrap(), record(1, 100).frame);
    assert!(store.try_cached(&handle(1)).is_none());
    let around = record(2, 7).len();
    // Its neighbour is given already.
    let got = store.get_many(&[handle(2), handle(5)], around).await;
    assert_eq!(lengths(got.unwrap()), [200, 1]);
    let got = store.get_many(&[handle(3)], 0).await.unwrap();
    assert_eq!(lengths(got), [300]);
    let got = store.get_many(&[handle(3)], around).await.unwrap();
    assert_eq!(lengths(got), [1, 7]);
    // The next head comes alone, and the records of the old one are dropped.
    assert_eq!(&store.head().await.unwrap()[..], b"again");
    assert!(store.try_cached(&handle(4)).is_none());
}

#[tokio::test]
async fn unallowed_records_with_a_head_are_a_bad_answer() {
    type Extra = fn(u32) -> Vec<u8>;
    let extras: [(&str, Extra); 5] = [
        ("one too long", |id| records(id, &[record(1, 65_536)])),
        ("together too long", |id| {
            let half = |n| records(id, &[record(n, 32_768)]);
            [half(1), half(2)].concat()
        }),
        ("an empty list", |id| records(id, &[])),
        ("a record cut short", |id| {
            message(kind::RECORDS, id, &[7; 40])
        }),
        ("an end of data", |id| message(kind::DONE, id, &[])),
    ];
    for (what, extra) in extras {
        let store = answers(move |id| [extra(id), message(kind::HEAD, id, b"head")].concat()).await;
        let got = store.head().await;
        assert!(
            matches!(got, Err(StoreError::BadAnswer { .. })),
            "{what}: {got:?}"
        );
        assert!(store.try_cached(&Handle::from_bytes([1; 32])).is_none());
    }
    // A client that allows no records gets none.
    let (store, _) = server(|mut stream| async move {
        let mut buffer = BytesMut::new();
        greet(&mut stream).await;
        let (first, _) = request(&mut stream, &mut buffer).await;
        let head = message(kind::HEAD, first, b"head");
        stream.write_all(&head).await.unwrap();
        let (second, _) = request(&mut stream, &mut buffer).await;
        let more = records(second, &[record(1, 10)]);
        stream.write_all(&more).await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    store.head().await.unwrap();
    assert!(matches!(
        store.head().await,
        Err(StoreError::BadAnswer { .. })
    ));
}

#[tokio::test]
async fn a_store_that_is_dropped_leaves_no_task() {
    let store = answers(|id| message(kind::HEAD, id, b"h")).await;
    let alive = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = alive();
    store.head().await.unwrap();
    assert!(alive() >= before + 3);
    drop(store);
    // The server's task for the connection stays, because it waits for ever by design.
    eventually("the store's tasks end", || alive() <= before + 1).await;
}

#[tokio::test]
async fn a_head_request_with_a_path_bounds_the_pushed_records() {
    let (store, _) = server(|mut stream| async move {
        let mut buffer = BytesMut::new();
        greet(&mut stream).await;
        loop {
            let (id, asked) = request(&mut stream, &mut buffer).await;
            let Request::Head {
                around_bytes,
                toward,
                ..
            } = asked
            else {
                return;
            };
            // As many small records as fit, and one more when that is asked for.
            let one = records(id, &[record(1, 1000)]).len() - 9;
            let mut count = around_bytes / one;
            if toward == b"too/much" {
                count += 1;
            }
            let mut answer: Vec<u8> = (0..count)
                .flat_map(|n| records(id, &[record((n % 200) as u8, 1000)]))
                .collect();
            answer.extend(message(kind::HEAD, id, &toward));
            stream.write_all(&answer).await.unwrap();
        }
    })
    .await;
    // Paths that the protocol cannot carry are not sent.
    for path in [&b""[..], b"/", b"a//b", b"../a", b"a\0", &[b'x'; 5000]] {
        assert_eq!(&store.head_toward(path).await.unwrap()[..], b"");
    }
    assert_eq!(&store.head_toward(b"a/b").await.unwrap()[..], b"a/b");
    let handle = |n| Handle::from_bytes([n; 32]);
    assert!(store.try_cached(&handle(1)).is_some());
    assert!(store.try_cached(&handle(1)).is_none());
    let error = store.head_toward(b"too/much").await.unwrap_err();
    assert!(
        matches!(error, store::StoreError::BadAnswer { .. }),
        "{error}"
    );
    assert!(store.try_cached(&handle(2)).is_some(), "old records stay");
}
