//! The socket of a connection that is over is closed at once, and not when the store is used again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use sim::time::eventually;
use store::BlockStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use trust::Handle;
use wire::frame::HELLO;
use wire::mirror::kind;
use wire::refusal::{ErrorCode, put_error};
use wire::{RemoteOptions, RemoteStore};

use crate::hostile_servers::{
    VOLUME, get, greet, impatient, message, patient, request, server_for,
};

/// No later call is needed: the store may be the last that its reader asks.
#[tokio::test]
async fn socket_is_closed_as_soon_as_the_connection_is_over() {
    type End = fn(u32) -> Vec<u8>;
    let ends: [(&str, End); 3] = [
        ("a bad answer", |id| message(kind::HEAD, id + 1, b"head")),
        ("a refusal of the whole connection", |_| {
            let mut refusal = Vec::new();
            put_error(&mut refusal, 0, ErrorCode::BUSY, "busy");
            refusal
        }),
        ("silence", |_| Vec::new()),
    ];
    for (what, end) in ends {
        let is_closed = Arc::new(AtomicBool::new(false));
        let closes = Arc::clone(&is_closed);
        // Only silence is waited for.
        let options = if what == "silence" {
            impatient()
        } else {
            patient()
        };
        let (store, _) = server_for(options, move |mut stream| {
            let closes = Arc::clone(&closes);
            async move {
                greet(&mut stream).await;
                let (id, _) = request(&mut stream, &mut BytesMut::new()).await;
                stream.write_all(&end(id)).await.unwrap();
                // Ends when the client closes the connection, in whatever way.
                let _ = stream.read_to_end(&mut Vec::new()).await;
                closes.store(true, Ordering::Relaxed);
            }
        })
        .await;
        get(&store, 0).await.unwrap_err();
        eventually(what, || is_closed.load(Ordering::Relaxed)).await;
        drop(store);
    }
}

/// The task that sends requests waits for the server and must not keep the socket.
#[tokio::test]
async fn socket_is_closed_while_requests_wait_to_be_sent() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let options = RemoteOptions {
        stall: Duration::from_secs(600),
        ..patient()
    };
    let store = RemoteStore::new(&address, VOLUME, options);
    let want: Vec<Handle> = (0..64).map(|n| Handle::from_bytes([n; 32])).collect();
    let call = || store.get_many(&want, 0);
    let began = tokio::time::timeout(Duration::from_millis(1), call());
    let (_, accepted) = tokio::join!(began, listener.accept());
    let mut stream = accepted.unwrap().0;
    for _ in 0..4000 {
        // Abandoned at once, so that the next one is admitted.
        assert!(tokio::time::timeout(Duration::ZERO, call()).await.is_err());
        tokio::task::yield_now().await;
    }
    let bad = [&HELLO[..], &message(kind::DONE, u32::MAX, &[])].concat();
    stream.write_all(&bad).await.unwrap();
    // Nothing is read: a closed socket with unsent bytes resets the connection when more arrives.
    let began = Instant::now();
    while stream.write_all(b"more").await.is_ok() {
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "the socket stays open"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
