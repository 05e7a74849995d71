//! Hostile and slow clients: the server ends their connections in time, counts them, frees their memory, and
//! goes on serving the others.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use serve::mirror::Options;
use serve::net::Limits;
use sim::random::noise;
use sim::time::eventually;
use store::{BlockStore, Replica};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use wire::frame::{HELLO, Header, take};
use wire::mirror::{MAX_HANDLES, Request, kind, put_get_data};
use wire::refusal::{ErrorCode, Refusal};

use crate::support::{Running, SEGMENT, TestReader, VOLUME, record};

fn quick() -> Limits {
    Limits {
        hello_timeout: Duration::from_secs(1),
        request_timeout: Duration::from_secs(1),
        idle_timeout: Duration::from_secs(2),
        write_timeout: Duration::from_secs(1),
        min_bytes_per_second: 64 << 20,
        ..Limits::default()
    }
}

async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

/// Everything until the server closes.
async fn until_closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut got = Vec::new();
    let read = stream.read_to_end(&mut got);
    let read = tokio::time::timeout(Duration::from_secs(60), read).await;
    // A reset is an end as well: bytes that the server did not read cause one.
    let _ = read.expect("the server did not close in time");
    got
}

fn refusal(mut bytes: &[u8]) -> Option<ErrorCode> {
    bytes = bytes.strip_prefix(&HELLO[..])?;
    let (header, body) = take(&mut BytesMut::from(bytes), 1 << 20).ok()??;
    assert_eq!((header.kind, header.id), (kind::ERROR, 0));
    Some(Refusal::decode(&body).ok()?.code)
}

#[tokio::test]
async fn malformed_requests_are_refused_and_the_connection_closed() {
    let server = Running::start(Arc::new(TestReader::new(&[])), Limits::default());
    let frame = |length: u32, kind: u8, id: u32, body: &[u8]| {
        let mut bytes = HELLO.to_vec();
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.push(kind);
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes.extend_from_slice(body);
        bytes
    };
    let toward = |path: &[u8]| {
        let body = [&[7; 32][..], &[0, 16, 0, 0], &[0; 32], path].concat();
        frame(5 + body.len() as u32, kind::GET_HEAD, 1, &body)
    };
    let bad = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        frame(u32::MAX, kind::GET_HEAD, 1, &[]),
        frame(0, kind::GET_HEAD, 1, &[]),
        frame(5 + 65 * 1024, kind::GET_DATA, 1, &[]),
        frame(5 + 31, kind::GET_HEAD, 1, &[0; 31]),
        frame(5 + 32, kind::GET_HEAD, 0, &[0; 32]),
        frame(5 + 32, kind::HEAD, 1, &[0; 32]),
        frame(5 + 36, kind::GET_DATA, 1, &[0; 36]),
        frame(5 + 36 + 33, kind::GET_DATA, 1, &[0; 69]),
        frame(5 + 48, kind::GET_RANGE, 1, &[b'.'; 48]),
        toward(b"/"),
        toward(b"a//b"),
        toward(b"a/"),
        toward(b"a/../b"),
        toward(b"."),
        toward(b"a\0b"),
        toward(&[b'x'; 256]),
        toward(&[b"xy/".repeat(1365), b"xyz".to_vec()].concat()),
    ];
    for (n, bytes) in bad.iter().enumerate() {
        let mut stream = connect(server.address).await;
        stream.write_all(bytes).await.unwrap();
        let got = until_closed(&mut stream).await;
        if !got.is_empty() {
            assert_eq!(refusal(&got), Some(ErrorCode::MALFORMED), "{n}");
        }
        eventually("it is counted", || {
            server.counters.net.malformed.get() == n as u64 + 1
        })
        .await;
    }
    eventually("all are gone", || {
        server.counters.net.connections.get() == 0
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn noise_ends_only_its_own_connection() {
    let server = Running::start(Arc::new(TestReader::new(&[])), quick());
    for seed in 0..200u64 {
        let mut stream = connect(server.address).await;
        let mut bytes = noise(seed, 1 + (seed as usize * 37) % 3000);
        if seed % 2 == 0 {
            bytes.splice(0..0, HELLO);
        }
        // The server may close the connection in the middle.
        let _ = stream.write_all(&bytes).await;
        until_closed(&mut stream).await;
    }
    assert_eq!(&server.store().head().await.unwrap()[..], b"head 1");
    server.stop().await;
}

#[tokio::test]
async fn slow_clients_are_cut_off() {
    let server = Running::start(Arc::new(TestReader::new(&[])), quick());
    // No hello; half a hello; half a request; a byte now and then; nothing after a request.
    let mut half = BytesMut::from(&HELLO[..]);
    Request::Head {
        volume: VOLUME,
        around_bytes: 0,
        known: None,
        toward: Vec::new(),
    }
    .put(1, &mut half);
    let whole = half.clone();
    half.truncate(20);
    for (n, bytes) in [&b""[..], b"bul", &half].into_iter().enumerate() {
        let began = Instant::now();
        let mut stream = connect(server.address).await;
        stream.write_all(bytes).await.unwrap();
        until_closed(&mut stream).await;
        assert!(began.elapsed() >= Duration::from_millis(900));
        eventually("it is counted", || {
            server.counters.net.too_slow.get() == n as u64 + 1
        })
        .await;
    }
    // Bytes do not prolong the time for a request: if they did, this one would take 3 minutes.
    let mut stream = connect(server.address).await;
    let began = Instant::now();
    let mut slow = BytesMut::from(&HELLO[..]);
    put_get_data(
        &mut slow,
        1,
        &VOLUME,
        0,
        &vec![trust::Handle::from_bytes([1; 32]); 18],
    );
    for byte in &slow {
        if stream.write_all(&[*byte]).await.is_err() {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "still served");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    until_closed(&mut stream).await;
    assert_eq!(server.counters.net.idle.get(), 0);
    let mut stream = connect(server.address).await;
    stream.write_all(&whole).await.unwrap();
    let got = until_closed(&mut stream).await;
    assert!(got.ends_with(b"head 1"));
    eventually("it is counted", || server.counters.net.idle.get() == 1).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_is_held_back_then_cut_off() {
    let records: Vec<_> = (0..16).map(|n| record(n, 64 << 10)).collect();
    let server = Running::start(Arc::new(TestReader::new(&records)), quick());
    let want: Vec<_> = records.iter().map(|r| r.handle).collect();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
    stream.write_all(&HELLO).await.unwrap();
    // Requests a megabyte a thousand times, and reads nothing.
    let mut requests = BytesMut::new();
    for id in 1..=1000 {
        put_get_data(&mut requests, id, &VOLUME, 0, &want);
    }
    let (mut read, mut write) = stream.split();
    let mut worst = 0;
    let flood = async {
        // The server stops reading, so this write fails in the end.
        let _ = write.write_all(&requests).await;
        std::future::pending::<()>().await;
    };
    let watch = eventually("cut off", || {
        worst = worst.max(server.counters.net.held_bytes.get());
        server.counters.net.too_slow.get() == 1
    });
    tokio::select! { () = flood => {}, () = watch => {} }
    assert!(worst > 0 && worst < 4 << 20, "{worst} bytes held");
    assert_eq!(server.counters.net.held_bytes.get(), 0);
    let mut rest = Vec::new();
    let _ = read.read_to_end(&mut rest).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_refused_as_busy_when_too_much_is_held() {
    let limits = Limits {
        max_held_bytes: 100_000,
        write_timeout: Duration::from_secs(60),
        room_timeout: Duration::from_secs(60),
        ..Limits::default()
    };
    let server = Running::start(Arc::new(TestReader::new(&[])), limits);
    let mut slow = Vec::new();
    for address in ["127.0.0.2:0", "127.0.0.3:0"] {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind(address.parse().unwrap()).unwrap();
        let mut stream = socket.connect(server.address).await.unwrap();
        let mut requests = BytesMut::from(&HELLO[..]);
        for id in 1..=100 {
            let request = Request::Range {
                volume: VOLUME,
                object: SEGMENT,
                offset: 0,
                len_bytes: 300_000,
            };
            request.put(id, &mut requests);
        }
        stream.write_all(&requests).await.unwrap();
        slow.push(stream);
    }
    // Each gets the least that a client may hold.
    let mut looks = 0;
    eventually("the slow ones hold, and go on holding", || {
        let too_much = server.counters.net.held_bytes.get() > 100_000;
        looks = if too_much { looks + 1 } else { 0 };
        looks > 50
    })
    .await;
    let error = server.store().head().await.unwrap_err();
    assert!(error.to_string().contains("too much in flight"), "{error}");
    drop(slow);
    eventually("all is free", || server.counters.net.held_bytes.get() == 0).await;
    assert!(server.store().head().await.is_ok());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_reads_from_disk_waits_its_turn() {
    let records: Vec<_> = (0..4).map(|n| record(n, 1000)).collect();
    let shelf = Arc::new(TestReader::new(&records));
    shelf.cold.store(true, Ordering::Relaxed);
    shelf.held.store(true, Ordering::SeqCst);
    let server = Running::start(Arc::clone(&shelf), Limits::default());
    let mut stream = connect(server.address).await;
    let mut requests = BytesMut::from(&HELLO[..]);
    for id in 1..=200 {
        put_get_data(&mut requests, id, &VOLUME, 0, &[records[0].handle]);
    }
    stream.write_all(&requests).await.unwrap();
    eventually("reads wait", || shelf.waiting.load(Ordering::SeqCst) > 0).await;
    for _ in 0..50 {
        assert!(server.counters.disk_reads.get() <= 32);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    shelf.held.store(false, Ordering::SeqCst);
    let mut buffer = BytesMut::new();
    let mut hello = [0; 8];
    stream.read_exact(&mut hello).await.unwrap();
    let mut done = std::collections::HashSet::new();
    while done.len() < 200 {
        assert!(stream.read_buf(&mut buffer).await.unwrap() > 0);
        while let Some((Header { kind, id, .. }, _)) = take(&mut buffer, 1 << 20).unwrap() {
            if kind == kind::DONE {
                assert!(done.insert(id));
            }
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_for_clients_that_do_not_read_is_bounded() {
    let records: Vec<_> = (0..8).map(|n| record(n, 1 << 20)).collect();
    let shelf = Arc::new(TestReader::new(&records));
    shelf.cold.store(true, Ordering::Relaxed);
    let limits = Limits {
        max_held_bytes: 8 << 20,
        write_timeout: Duration::from_secs(60),
        ..Limits::default()
    };
    let options = Options {
        disk_reads: 4,
        ..Options::default()
    };
    let server = Running::start_with(shelf, limits, options);
    let want: Vec<_> = records.iter().map(|r| r.handle).collect();
    let mut requests = BytesMut::from(&HELLO[..]);
    (1..=16).for_each(|id| put_get_data(&mut requests, id, &VOLUME, 0, &want));
    let mut idlers = Vec::new();
    for _ in 0..20 {
        let mut stream = connect(server.address).await;
        stream.write_all(&requests).await.unwrap();
        idlers.push(stream);
    }
    // Requests 128 MiB twenty times.
    let mut worst = 0;
    eventually("some are refused", || {
        worst = worst.max(server.counters.net.held_bytes.get());
        server.counters.net.busy.get() > 0
    })
    .await;
    let reads_under_way = 4 * (4 << 20);
    assert!(worst <= (8 << 20) + reads_under_way, "{worst} bytes held");
    drop(idlers);
    eventually("all is free", || server.counters.net.held_bytes.get() == 0).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_early_leaves_nothing_behind() {
    let records: Vec<_> = (0..8).map(|n| record(n, 500_000)).collect();
    let shelf = Arc::new(TestReader::new(&records));
    shelf.cold.store(true, Ordering::Relaxed);
    shelf.disk_ms.store(30, Ordering::Relaxed);
    let server = Running::start(shelf, Limits::default());
    let want: Vec<_> = records.iter().map(|r| r.handle).collect();
    for n in 0..50u64 {
        let mut stream = connect(server.address).await;
        let mut requests = BytesMut::from(&HELLO[..]);
        put_get_data(&mut requests, 1, &VOLUME, 0, &want);
        stream.write_all(&requests).await.unwrap();
        if n % 3 > 0 {
            tokio::time::sleep(Duration::from_millis(n)).await;
        }
    }
    eventually("all are gone", || {
        server.counters.net.connections.get() == 0
    })
    .await;
    eventually("nothing is held", || {
        server.counters.net.held_bytes.get() == 0
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_over_the_limit_is_refused() {
    let records = [record(1, 2000)];
    let limits = Limits {
        max_connections: 2000,
        ..Limits::default()
    };
    let server = Running::start(Arc::new(TestReader::new(&records)), limits);
    let mut all = Vec::new();
    let mut request = BytesMut::from(&HELLO[..]);
    put_get_data(&mut request, 1, &VOLUME, 0, &[records[0].handle]);
    for _ in 0..2000 {
        let mut stream = connect(server.address).await;
        stream.write_all(&request).await.unwrap();
        all.push(stream);
    }
    eventually("all are in", || {
        server.counters.net.connections.get() == 2000
    })
    .await;
    let mut one_more = connect(server.address).await;
    let got = until_closed(&mut one_more).await;
    assert_eq!(refusal(&got), Some(ErrorCode::BUSY));
    let store = server.store();
    let error = store.get_many(&[records[0].handle], 0).await.unwrap_err();
    assert!(
        matches!(error, store::StoreError::Unavailable { .. }),
        "{error}"
    );
    let expected = HELLO.len() + 9 + records[0].len() + 9;
    let mut answer = vec![0; expected];
    for stream in &mut all {
        stream.read_exact(&mut answer).await.unwrap();
    }
    drop(all);
    eventually("all are gone", || {
        server.counters.net.connections.get() == 0
    })
    .await;
    assert!(server.store().head().await.is_ok());
    server.stop().await;
}

#[tokio::test]
async fn the_largest_request_is_accepted() {
    let server = Running::start(Arc::new(TestReader::new(&[])), Limits::default());
    let mut stream = connect(server.address).await;
    let mut requests = BytesMut::from(&HELLO[..]);
    let want = vec![trust::Handle::from_bytes([1; 32]); MAX_HANDLES];
    put_get_data(&mut requests, 5, &VOLUME, 1 << 20, &want);
    for piece in requests.chunks(1000) {
        stream.write_all(piece).await.unwrap();
    }
    let mut answer = [0; 8 + 9];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer[12], kind::DONE);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_one_client_are_limited() {
    let limits = Limits {
        max_per_client: 20,
        ..Limits::default()
    };
    let server = Running::start(Arc::new(TestReader::new(&[])), limits);
    let mut all = Vec::new();
    for _ in 0..20 {
        all.push(connect(server.address).await);
    }
    eventually("all are in", || server.counters.net.connections.get() == 20).await;
    let mut one_more = connect(server.address).await;
    let got = until_closed(&mut one_more).await;
    assert_eq!(refusal(&got), Some(ErrorCode::BUSY));
    assert_eq!(server.counters.net.turned_away.get(), 1);
    // Another address of the loopback network is another client.
    let other = TcpSocket::new_v4().unwrap();
    other.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let _other = other.connect(server.address).await.unwrap();
    eventually("it is in", || server.counters.net.connections.get() == 21).await;
    all.pop();
    eventually("one has left", || {
        server.counters.net.connections.get() == 20
    })
    .await;
    assert!(server.store().head().await.is_ok());
    server.stop().await;
}
