//! Hostile clients: memory stays bounded, deadlines hold, and others are served.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use serve::net::Limits;
use sim::time::eventually;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use wire::frame::{Header, hello};
use wire::refusal::ErrorCode;

use crate::echo::{MAX_APPEND_BYTES, MAX_ECHO_BYTES, PROTOCOL, kind};
use crate::support::Running;

fn quick() -> Limits {
    Limits {
        hello_timeout: Duration::from_secs(2),
        request_timeout: Duration::from_secs(2),
        write_timeout: Duration::from_secs(2),
        min_bytes_per_second: 64 << 20,
        ..Limits::default()
    }
}

async fn is_served(server: &Running) {
    let mut client = server.tls().await;
    assert!(client.ask(kind::ECHO, 1, b"still there?").await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watcher_that_never_reads_is_dropped_and_others_get_every_push() {
    let limits = Limits {
        // The bound of queued pushes drops it, not the deadline of a write.
        write_timeout: Duration::from_secs(60),
        ..quick()
    };
    let most = limits.max_push_bytes + limits.gather_bytes;
    let server = Running::start(limits);
    let (mut slow, mut good) = (server.tls().await, server.tls().await);
    slow.ask(kind::WATCH, 1, b"").await.unwrap();
    good.ask(kind::WATCH, 1, b"").await.unwrap();
    let body = Bytes::from(vec![9; 64 << 10]);
    let (mut worst, mut pushed) = (0, 0);
    while server.counters.too_slow.get() == 0 {
        server.echo.publish(&body);
        let (_, _, got) = good.answer().await.unwrap();
        assert_eq!(got, body);
        worst = worst.max(server.counters.held_bytes.get());
        pushed += 1;
        assert!(pushed < 2000, "the slow watcher is never dropped");
    }
    // Each of the two holds its bound and one message more.
    let bound = 2 * (most + 2 * body.len()) as u64;
    assert!(worst > 0 && worst < bound, "{worst} bytes held");
    server.echo.publish(&body);
    assert!(good.answer().await.is_ok());
    assert_eq!(server.echo.watchers(), 1);
    eventually("nothing is held", || server.counters.held_bytes.get() == 0).await;
    eventually("its session has ended", || {
        server.echo.sessions.load(Ordering::SeqCst) == 1
    })
    .await;
    drop(slow);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_never_reads_its_answers_is_cut_off() {
    let server = Running::start(quick());
    let mut client = server.tls().await;
    let body = vec![1; 100_000];
    let flood = async {
        for id in 1.. {
            if !client.try_send(kind::ECHO, id, &body).await {
                break;
            }
        }
    };
    assert!(timeout(Duration::from_secs(60), flood).await.is_ok());
    eventually("it is counted", || server.counters.too_slow.get() == 1).await;
    eventually("nothing is held", || server.counters.held_bytes.get() == 0).await;
    is_served(&server).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_that_is_too_long_for_its_request_is_refused_by_its_header() {
    let server = Running::start(Limits::default());
    for (kind, allowed) in [
        (kind::APPEND, MAX_APPEND_BYTES),
        (kind::ECHO, MAX_ECHO_BYTES),
        (kind::PING, 0),
        (0x44, 256),
    ] {
        // The body never comes: the header is enough.
        for bytes in [allowed + 1, u32::MAX as usize - 5] {
            let mut client = server.tls().await;
            let mut out = BytesMut::new();
            Header::new(kind, 1, bytes).put(&mut out);
            client.stream.write_all(&out).await.unwrap();
            client.stream.flush().await.unwrap();
            assert_eq!(client.parting().await, Some(ErrorCode::MALFORMED));
        }
        let mut client = server.tls().await;
        client.send(kind, 1, &vec![0; allowed]).await;
        client.send(kind::SESSION, 2, b"").await;
        while client.message().await.expect("it stays").1 != 2 {}
    }
    let mut client = server.tls().await;
    client.send(0x81, 1, b"").await;
    assert_eq!(client.parting().await, Some(ErrorCode::MALFORMED));
    assert_eq!(server.counters.malformed.get(), 9);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_frame_is_cut_at_its_deadline_and_its_memory_is_counted() {
    let server = Running::start(quick());
    let mut whole = BytesMut::new();
    Header::new(kind::ECHO, 1, MAX_ECHO_BYTES).put(&mut whole);
    whole.resize(whole.len() + MAX_ECHO_BYTES, 5);
    for cut in [3, 9, 100, 500_000] {
        let mut client = server.tls().await;
        let began = Instant::now();
        client.stream.write_all(&whole[..cut]).await.unwrap();
        client.stream.flush().await.unwrap();
        if cut == 500_000 {
            eventually("it is held", || server.counters.held_bytes.get() > 500_000).await;
        }
        assert_eq!(client.parting().await, None);
        let took = began.elapsed();
        assert!(took > Duration::from_millis(1900) && took < Duration::from_secs(60));
    }
    assert_eq!(server.counters.too_slow.get(), 4);
    eventually("nothing is held", || server.counters.held_bytes.get() == 0).await;
    is_served(&server).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_requests_in_flight_is_bounded_and_ends_with_the_answer_deadline() {
    let limits = Limits {
        max_in_flight: 8,
        answer_timeout: Duration::from_secs(3),
        ..quick()
    };
    let server = Running::start(limits);
    let mut client = server.unix().await;
    let mut flood = BytesMut::new();
    for id in 1..=500 {
        Header::new(kind::HANG, id, 0).put(&mut flood);
    }
    client.stream.write_all(&flood).await.unwrap();
    eventually("eight are in flight", || server.echo.hanging() == 8).await;
    is_served(&server).await;
    assert_eq!(client.parting().await, Some(ErrorCode::STORAGE));
    assert_eq!(
        server.echo.hanging(),
        8,
        "more were read than may be in flight"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_drops_in_the_middle_of_a_push_leaves_nothing_behind() {
    let server = Running::start(quick());
    let body = Bytes::from(vec![3; 200_000]);
    for n in 0..20_usize {
        let mut client = server.tls().await;
        client.ask(kind::WATCH, 1, b"").await.unwrap();
        client.send(kind::APPEND, 2, b"entry").await;
        server.echo.publish(&body);
        let mut some = vec![0; 1000 * n];
        client.stream.read_exact(&mut some).await.unwrap();
    }
    eventually("all sessions have ended", || {
        server.echo.sessions.load(Ordering::SeqCst) == 0
    })
    .await;
    eventually("nothing is held", || server.counters.held_bytes.get() == 0).await;
    assert_eq!(server.counters.connections.get(), 0);
    server.echo.publish(&body);
    assert_eq!(server.echo.watchers(), 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_garbage_and_silent_handshakes_are_cut_off() {
    let server = Running::start(quick());
    let noise: Vec<u8> = (0..5000_u32).map(|n| ((n * n) >> 3) as u8).collect();
    let mut record = b"\x16\x03\x01\x40\x00".to_vec();
    record.extend_from_slice(&noise);
    // Plain text, noise, a record that never ends, nothing at all.
    for bytes in [&hello(PROTOCOL)[..], &noise, &record, b""] {
        let mut stream = TcpStream::connect(server.tls).await.unwrap();
        // The server may close the connection in the middle.
        let _ = stream.write_all(bytes).await;
        let mut got = Vec::new();
        let read = timeout(Duration::from_secs(60), stream.read_to_end(&mut got)).await;
        assert!(read.is_ok(), "{} bytes keep a connection", bytes.len());
    }
    // Within the session: no hello, and another protocol's.
    let mut client = server.tls().await;
    client.send(kind::ECHO, 1, b"").await;
    eventually("all others are gone", || {
        server.counters.connections.get() == 1
    })
    .await;
    assert!(client.answer().await.is_ok());
    assert_eq!(server.echo.sessions.load(Ordering::SeqCst), 1);
    is_served(&server).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_of_another_protocol_is_refused() {
    let server = Running::start(quick());
    for bytes in [hello(0), *b"GET / HT"] {
        let mut stream = TcpStream::connect(server.tcp).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let mut got = Vec::new();
        let read = timeout(Duration::from_secs(60), stream.read_to_end(&mut got)).await;
        assert!(read.is_ok(), "the server does not close");
    }
    // Another protocol of bulla breaks no rule.
    eventually("one is counted", || server.counters.malformed.get() == 1).await;
    assert_eq!(server.echo.sessions.load(Ordering::SeqCst), 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_user_of_a_unix_socket_takes_no_more_than_its_share() {
    let limits = Limits {
        max_per_client: 3,
        ..quick()
    };
    let server = Running::start(limits);
    let mut all = Vec::new();
    for id in 1..=3 {
        let mut client = server.unix().await;
        client.ask(kind::WATCH, id, b"").await.unwrap();
        all.push(client);
    }
    let mut one_more = server.unix().await;
    assert_eq!(one_more.parting().await, Some(ErrorCode::BUSY));
    is_served(&server).await;
    all.pop();
    eventually("one has left", || server.counters.connections.get() <= 2).await;
    let mut again = server.unix().await;
    assert!(again.ask(kind::ECHO, 1, b"").await.is_ok());
    server.stop().await;
}
