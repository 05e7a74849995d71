//! A second service on `serve::net`, over TCP, TLS and a Unix socket: the promises of the trait to a
//! service, and hostile clients.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod echo;
mod hostile;
mod support;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use echo::{UNKNOWN, kind};
use serve::net::Limits;
use sim::time::eventually;
use support::{Client, Running};
use tokio::io::{AsyncRead, AsyncWrite};
use wire::refusal::ErrorCode;

/// One client's use of everything.
async fn converse<T: AsyncRead + AsyncWrite + Unpin>(mut client: Client<T>, peer: &str) {
    let long = vec![7; 300_000];
    for (id, body) in [(1, &b"hello"[..]), (2, b""), (3, &long)] {
        let (kind, answered, got) = client.ask(kind::ECHO, id, body).await.unwrap();
        assert_eq!((kind, answered), (kind::ECHO | 0x80, id));
        assert!(got == body, "{} bytes came of {}", got.len(), body.len());
    }
    assert_eq!(client.ask(0x44, 4, b"what?").await, Err(UNKNOWN));
    let lost = client.ask(kind::LOSE, 5, b"").await;
    assert_eq!(lost, Err(ErrorCode::STORAGE));
    assert!(client.ask(kind::APPEND, 6, b"entry").await.is_ok());
    client.send(kind::PING, 7, b"").await;
    let (_, _, session) = client.ask(kind::SESSION, 8, b"").await.unwrap();
    let session = String::from_utf8(session.to_vec()).unwrap();
    assert!(session.starts_with("8 "), "{session}");
    assert!(session.contains(peer), "{session}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_stream_carries_the_same_service() {
    let server = Running::start(Limits::default());
    converse(server.tcp().await, "127.0.0.1:").await;
    converse(server.tls().await, "127.0.0.1:").await;
    converse(server.unix().await, "user ").await;
    eventually("all sessions have ended", || {
        server.echo.sessions.load(Ordering::SeqCst) == 0
    })
    .await;
    assert_eq!(server.counters.accepted.get(), 3);
    assert_eq!(server.counters.malformed.get(), 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_commit_completes_the_requests_of_many_connections() {
    let server = Running::start(Limits::default());
    let (gate, commits) = (&server.echo.gate, &server.echo.commits);
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(server.tls().await);
    }
    let closed = std::sync::Arc::clone(gate);
    let (opener, open) = std::sync::mpsc::channel::<()>();
    let (ready, is_ready) = std::sync::mpsc::channel::<()>();
    let holder = std::thread::spawn(move || {
        let _held = closed.lock().unwrap();
        ready.send(()).unwrap();
        let _ = open.recv();
    });
    is_ready.recv().unwrap();
    for client in &mut clients {
        for id in 1..=5 {
            client.send(kind::APPEND, id, b"entry").await;
        }
        // A later request is answered first.
        let (kind, id, _) = client.ask(kind::ECHO, 6, b"meanwhile").await.unwrap();
        assert_eq!((kind, id), (kind::ECHO | 0x80, 6));
    }
    let appends = || server.echo.appends.load(Ordering::SeqCst);
    eventually("all are queued", || appends() == 15).await;
    assert_eq!(commits.load(Ordering::SeqCst), 0);
    drop(opener);
    for client in &mut clients {
        let mut ids = Vec::new();
        for _ in 0..5 {
            let (_, id, commit) = client.answer().await.unwrap();
            assert_eq!(commit, 1_u64.to_le_bytes()[..]);
            ids.push(id);
        }
        // They complete in the order of the service, which differs from that of the requests.
        assert_eq!(ids, [5, 4, 3, 2, 1]);
    }
    assert_eq!(commits.load(Ordering::SeqCst), 1);
    holder.join().unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_reach_watchers_on_every_kind_of_stream() {
    let server = Running::start(Limits::default());
    let (mut tls, mut unix) = (server.tls().await, server.unix().await);
    tls.ask(kind::WATCH, 11, b"").await.unwrap();
    unix.ask(kind::WATCH, 12, b"").await.unwrap();
    let mut publisher = server.tcp().await;
    for n in 0..100_u32 {
        let body = vec![n as u8; 5000];
        publisher.ask(kind::PUBLISH, n + 1, &body).await.unwrap();
        let expected = |id| Ok((kind::NEWS, id, body.as_slice().into()));
        assert_eq!(tls.answer().await, expected(11));
        assert_eq!(unix.answer().await, expected(12));
    }
    // A watcher may ask for other things.
    let (kind, id, _) = tls.ask(kind::ECHO, 13, b"x").await.unwrap();
    assert_eq!((kind, id), (kind::ECHO | 0x80, 13));
    eventually("nothing is held", || server.counters.held_bytes.get() == 0).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watcher_stays_while_it_keeps_alive_and_is_cut_when_it_does_not() {
    // In real time: the server's threads have runtimes of their own, whose clocks cannot be paused.
    const WATCH: Duration = Duration::from_secs(3);
    let limits = Limits {
        idle_timeout: Duration::from_secs(1),
        watch_timeout: WATCH,
        ..Limits::default()
    };
    let server = Running::start(limits);
    let (mut watcher, mut idler) = (server.tls().await, server.tls().await);
    watcher.ask(kind::WATCH, 1, b"").await.unwrap();
    idler.ask(kind::ECHO, 1, b"").await.unwrap();
    let began = Instant::now();
    assert_eq!(idler.message().await, None, "only a watcher may be idle");
    let mut id = 1;
    while began.elapsed() < 2 * WATCH {
        id += 1;
        watcher.send(kind::PING, id, b"").await;
        server.echo.publish(&Bytes::from_static(b"news"));
        assert!(watcher.answer().await.is_ok(), "{:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let silent = Instant::now();
    // Pushes to a client that is silent do not keep it.
    while server.counters.idle.get() < 2 {
        server.echo.publish(&Bytes::from_static(b"news"));
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(silent.elapsed() < Duration::from_secs(60));
    }
    assert!(silent.elapsed() > WATCH - Duration::from_millis(500));
    while watcher.message().await.is_some() {}
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_completes_what_is_in_flight_and_ends_watchers() {
    let server = Running::start(Limits::default());
    let (mut watcher, mut writer) = (server.tls().await, server.unix().await);
    watcher.ask(kind::WATCH, 1, b"").await.unwrap();
    writer.ask(kind::APPEND, 1, b"entry").await.unwrap();
    let ends = tokio::spawn(async move { (watcher.parting().await, writer.parting().await) });
    server.stop().await;
    let stopping = Some(ErrorCode::STOPPING);
    assert_eq!(ends.await.unwrap(), (stopping, stopping));
}
