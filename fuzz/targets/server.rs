//! The server's end of a connection: arbitrary bytes from a client. The connection ends, the answer consists
//! of whole messages within the requested size, and the next client is served as usual.
#![no_main]

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use bulla_fuzz::{honest_head, next_loopback, plant, record};
use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use serve::mirror::{Options, Server};
use serve::net::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::runtime::{Builder, Runtime};
use trust::statement::VolumeId;
use wire::ObjectName;
use wire::frame::{HELLO, MAX_ANSWER_BYTES, take};
use wire::mirror::{Request, kind};

/// A server that runs as long as the fuzzer does.
struct Served {
    runtime: Runtime,
    address: SocketAddr,
    volume: VolumeId,
}

fn served() -> &'static Served {
    static SERVED: OnceLock<Served> = OnceLock::new();
    SERVED.get_or_init(|| {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let (volume, head, _) = honest_head();
        let disk = sim::disk::CrashDisk::new();
        let repository = store::Repository::create_on(disk).expect("a repository");
        let mut writer = store::Writer::begin(&repository).expect("a writer");
        for n in 0..4 {
            writer.append(&record(n, 50)).expect("a record");
        }
        writer
            .commit(&head.encode().expect("a head"))
            .expect("a commit");
        drop(writer);
        let limits = Limits {
            hello_timeout: Duration::from_millis(500),
            request_timeout: Duration::from_millis(500),
            ..Limits::default()
        };
        let options = Options {
            refresh: Duration::from_secs(3600),
            ..Options::default()
        };
        let address = runtime.block_on(async {
            let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
            let server = Server::bind(any, vec![repository], limits, options).expect("a server");
            let address = server.local_addr();
            tokio::spawn(server.run(std::future::pending()));
            address
        });
        Served {
            runtime,
            address,
            volume,
        }
    })
}

fn seeds() -> Vec<Vec<u8>> {
    let volume = served().volume;
    let mut out = BytesMut::from(&HELLO[..]);
    Request::Head {
        volume,
        around_bytes: 4096,
        known: None,
        toward: b"a/b".to_vec(),
    }
    .put(1, &mut out);
    let want = vec![record(1, 50).handle, record(9, 50).handle];
    Request::Data {
        volume,
        around_bytes: 500,
        want,
    }
    .put(2, &mut out);
    let object = ObjectName::Format;
    Request::Range {
        volume,
        object,
        offset: 0,
        len_bytes: 40,
    }
    .put(3, &mut out);
    vec![out.to_vec(), HELLO.to_vec()]
}

/// Sends the bytes and returns the answer.
async fn exchange(sent: &[u8]) -> BytesMut {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(next_loopback()).expect("an address");
    let connected = socket.connect(served().address).await;
    let mut stream = connected.expect("a connection");
    let mut answer = BytesMut::new();
    // A server may close the connection before it has read everything.
    let _ = stream.write_all(sent).await;
    let _ = stream.shutdown().await;
    while stream.read_buf(&mut answer).await.is_ok_and(|n| n > 0) {
        assert!(answer.len() < 64 << 20);
    }
    answer
}

fn messages(mut answer: BytesMut) -> Vec<u8> {
    let mut kinds = Vec::new();
    if answer.is_empty() {
        return kinds;
    }
    assert_eq!(answer.split_to(HELLO.len()), HELLO[..]);
    while let Some((header, _)) = take(&mut answer, MAX_ANSWER_BYTES).expect("a message") {
        assert!(header.kind & 0x80 != 0);
        kinds.push(header.kind);
    }
    assert!(answer.is_empty(), "half a message");
    kinds
}

async fn visit(data: &[u8]) {
    let answer = tokio::time::timeout(Duration::from_secs(3), exchange(data)).await;
    messages(answer.expect("the connection ends"));
    let mut honest = BytesMut::from(&HELLO[..]);
    Request::Head {
        volume: served().volume,
        around_bytes: 0,
        known: None,
        toward: Vec::new(),
    }
    .put(1, &mut honest);
    let answer = tokio::time::timeout(Duration::from_secs(3), exchange(&honest)).await;
    assert_eq!(messages(answer.expect("an answer")), [kind::HEAD]);
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| served().runtime.block_on(visit(data)));
