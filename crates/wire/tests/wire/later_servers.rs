//! Servers of a later protocol: the store says that it needs a newer bulla, and blames nobody.

use std::time::Duration;

use store::{BlockStore, Replica, StoreError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use trust::Handle;
use trust::statement::VolumeId;
use wire::frame::HELLO;
use wire::refusal::{ErrorCode, put_error};
use wire::{ObjectName, RemoteOptions, RemoteStore};

/// A store whose server sends `bytes` on every connection, when something has been asked.
async fn server(bytes: Vec<u8>) -> RemoteStore {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let bytes = bytes.clone();
            tokio::spawn(async move {
                let mut asked = [0; 64];
                let _ = stream.read(&mut asked).await;
                let _ = stream.write_all(&bytes).await;
                // Ends when the client hangs up.
                let _ = stream.read_to_end(&mut Vec::new()).await;
            });
        }
    });
    let options = RemoteOptions {
        stall: Duration::from_secs(60),
        ..RemoteOptions::default()
    };
    RemoteStore::new(&address, VolumeId::from_bytes([1; 32]), options)
}

fn is_newer(result: Result<impl Sized, StoreError>) -> bool {
    let Err(error) = result else { return false };
    let said = error.to_string().contains("needs a newer bulla");
    matches!(error, StoreError::Unsupported { .. }) && said
}

#[tokio::test]
async fn later_protocol_and_incompatible_features_need_a_newer_bulla() {
    let mut refused = HELLO.to_vec();
    put_error(
        &mut refused,
        0,
        ErrorCode::UNSUPPORTED,
        "protocol 3 or later",
    );
    for hello in [
        b"bulla\x01\0\0".to_vec(),
        b"bulla\xff\0\0 and what nobody can read".to_vec(),
        b"bulla\0\0\x80".to_vec(),
        refused,
    ] {
        let store = server(hello).await;
        let want = [Handle::from_bytes([1; 32])];
        // Also while it pauses before it connects again.
        for _ in 0..3 {
            assert!(is_newer(store.head().await));
            assert!(is_newer(store.get_many(&want, 0).await));
            assert!(is_newer(store.range(ObjectName::Head, 0, 9).await));
        }
    }
}

#[tokio::test]
async fn request_that_the_server_does_not_know_needs_another_server() {
    let mut answer = HELLO.to_vec();
    put_error(
        &mut answer,
        1,
        ErrorCode::UNSUPPORTED,
        "unknown type of request",
    );
    let store = server(answer).await;
    assert!(is_newer(store.head().await));
}

#[tokio::test]
async fn compatible_features_of_a_later_server_are_ignored() {
    let mut answer = b"bulla\0\xff\0".to_vec();
    wire::frame::Header::new(wire::mirror::kind::HEAD, 1, 4).put(&mut answer);
    answer.extend_from_slice(b"head");
    let store = server(answer).await;
    assert_eq!(&store.head().await.unwrap()[..], b"head");
}
