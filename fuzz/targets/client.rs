//! The client's end of a connection: arbitrary bytes as the server's answer to three concurrent requests.
//! Each request ends, and no answer contains records that were not requested.
#![no_main]

use std::sync::OnceLock;
use std::time::Duration;

use bulla_fuzz::{next_loopback, plant, record, run_of};
use bytes::{BufMut, BytesMut};
use libfuzzer_sys::fuzz_target;
use store::{BlockStore, Replica};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use trust::Handle;
use trust::statement::VolumeId;
use wire::frame::{HELLO, Header};
use wire::mirror::kind;
use wire::refusal::{ErrorCode, put_error};
use wire::{ObjectName, RemoteOptions, RemoteStore};

const AROUND_BYTES: usize = 200;

fn wanted() -> Vec<Handle> {
    vec![record(1, 40).handle, record(2, 60).handle]
}

fn seeds() -> Vec<Vec<u8>> {
    let records = run_of(&[record(2, 60), record(1, 40), record(3, 50)]);
    let parts = [
        (kind::HEAD, b"head".as_slice()),
        (kind::RECORDS, &records),
        (kind::DONE, b""),
        (kind::RANGE, b"bytes"),
        (kind::DONE, b""),
    ];
    // The client chooses the number of each request.
    [[1, 2, 2, 3, 3], [3, 1, 1, 2, 2], [2, 3, 3, 1, 1]]
        .iter()
        .map(|ids| {
            let mut out = BytesMut::from(&HELLO[..]);
            for (id, (kind, body)) in ids.iter().zip(parts) {
                Header {
                    kind,
                    id: *id,
                    body_bytes: body.len(),
                }
                .put(&mut out);
                out.put_slice(body);
            }
            put_error(&mut out, 0, ErrorCode::STOPPING, "bye");
            out.to_vec()
        })
        .collect()
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
    })
}

async fn talk(answer: &[u8]) {
    let listener = TcpListener::bind(next_loopback()).await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let options = RemoteOptions {
        stall: Duration::from_millis(500),
        max_held_bytes: 8 << 20,
        ..RemoteOptions::default()
    };
    let store = RemoteStore::new(&address, VolumeId::from_bytes([7; 32]), options);
    let want = wanted();
    let server = async {
        let (mut stream, _) = listener.accept().await.expect("a client");
        // A second connection is refused at once.
        drop(listener);
        // Closing the connection with unread requests would reset it, and the answer would be lost.
        let mut asked = [0; 4096];
        let _ = stream.read(&mut asked).await;
        let _ = stream.write_all(answer).await;
        let _ = stream.shutdown().await;
        while stream.read(&mut asked).await.is_ok_and(|n| n > 0) {}
    };
    let calls = async {
        let head = store.head_toward(b"a/b");
        let data = store.get_many(&want, AROUND_BYTES);
        let range = store.range(ObjectName::Format, 0, 5);
        let answers = tokio::join!(head, data, range);
        drop(store);
        answers
    };
    let both = async { tokio::join!(server, calls).1 };
    let (_, data, range) = tokio::time::timeout(Duration::from_secs(3), both)
        .await
        .expect("every call ends");
    if let Ok(records) = data {
        let unasked = |r: &&trust::Record| !wanted().contains(&r.handle);
        let around: usize = records.iter().filter(unasked).map(trust::Record::len).sum();
        assert!(around <= AROUND_BYTES);
        let mut names: Vec<_> = records.iter().map(|r| r.handle).collect();
        names.retain(|name| wanted().contains(name));
        names.sort();
        assert!(
            names.is_sorted_by(|a, b| a < b),
            "an answer that came twice"
        );
    }
    if let Ok(Some(bytes)) = range {
        assert!(bytes.len() <= 5);
    }
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| runtime().block_on(talk(data)));
