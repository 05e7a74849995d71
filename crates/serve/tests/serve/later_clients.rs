//! Clients of a later protocol: a request that this server does not know is refused and the connection
//! stays; a protocol or an incompatible feature that it does not know is refused as such.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use serve::net::Limits;
use sim::time::eventually;
use store::Replica;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wire::frame::{HELLO, HELLO_BYTES, Header, take};
use wire::mirror::{Request, kind};
use wire::refusal::{ErrorCode, Refusal};

use crate::support::{Running, TestReader, VOLUME};

fn message(kind: u8, id: u32, body_bytes: usize) -> BytesMut {
    let mut out = BytesMut::new();
    Header::new(kind, id, body_bytes).put(&mut out);
    out.resize(out.len() + body_bytes, 5);
    out
}

fn get_head(id: u32) -> BytesMut {
    let mut out = BytesMut::new();
    let request = Request::Head {
        volume: VOLUME,
        around_bytes: 0,
        known: None,
        toward: Vec::new(),
    };
    request.put(id, &mut out);
    out
}

struct Client {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Client {
    async fn new(server: &Running, hello: &[u8]) -> Client {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(hello).await.unwrap();
        let buffer = BytesMut::new();
        Client { stream, buffer }
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    async fn skip_hello(&mut self) {
        let mut hello = [0; HELLO_BYTES];
        self.stream.read_exact(&mut hello).await.unwrap();
        assert_eq!(hello, HELLO);
    }

    /// The next answer; `None` when the server closes.
    async fn answer(&mut self) -> Option<(Header, BytesMut)> {
        loop {
            if let Some(answer) = take(&mut self.buffer, 1 << 20).unwrap() {
                return Some(answer);
            }
            let read = self.stream.read_buf(&mut self.buffer);
            let read = tokio::time::timeout(Duration::from_secs(60), read).await;
            match read.expect("the server answers in time") {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    async fn refusal(&mut self) -> (u32, ErrorCode) {
        let (header, body) = self.answer().await.unwrap();
        assert_eq!(header.kind, kind::ERROR);
        (header.id, Refusal::decode(&body).unwrap().code)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_request_is_refused_and_the_connection_stays() {
    let server = Running::start(Arc::new(TestReader::new(&[])), Limits::default());
    let mut client = Client::new(&server, &HELLO).await;
    let mut id = 0;
    for (kind, body_bytes) in [
        (0x00, 0),
        (0x04, 10),
        (0x0f, 64 << 10),
        (0x10, 4 << 20),
        (0x2f, 1),
        (0x30, 64 << 10),
        (0x7f, 0),
    ] {
        id += 2;
        // The next request is sent before the answer has come.
        client.send(&message(kind, id, body_bytes)).await;
        client.send(&get_head(id + 1)).await;
        if id == 2 {
            client.skip_hello().await;
        }
        assert_eq!(client.refusal().await, (id, ErrorCode::UNSUPPORTED));
        let (header, body) = client.answer().await.unwrap();
        assert_eq!((header.kind, header.id), (kind::HEAD, id + 1));
        assert_eq!(&body[..], b"head 1");
    }
    // A newcomer that begins with them is no worse off.
    let all = [&HELLO[..], &message(0x20, 7, 100), &get_head(8)].concat();
    let mut client = Client::new(&server, &all).await;
    client.skip_hello().await;
    assert_eq!(client.refusal().await, (7, ErrorCode::UNSUPPORTED));
    assert_eq!(client.answer().await.unwrap().0.kind, kind::HEAD);
    assert_eq!(server.counters.net.malformed.get(), 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_request_has_a_limit_and_takes_no_memory() {
    let server = Running::start(Arc::new(TestReader::new(&[])), Limits::default());
    for (kind, body_bytes) in [(0x04, 65_537), (0x2f, (4 << 20) + 1), (0x80, 0), (0xfe, 1)] {
        let mut client = Client::new(&server, &HELLO).await;
        let mut header = message(kind, 1, body_bytes);
        header.truncate(9);
        client.send(&header).await;
        client.skip_hello().await;
        assert_eq!(client.refusal().await, (0, ErrorCode::MALFORMED));
        assert!(client.answer().await.is_none());
    }
    let mut client = Client::new(&server, &HELLO).await;
    let almost = message(0x10, 1, 4 << 20);
    client.send(&almost[..almost.len() - 1]).await;
    eventually("almost all has come", || {
        server.counters.net.received_bytes.get() > 4 << 20
    })
    .await;
    assert_eq!(server.counters.net.held_bytes.get(), 0);
    client.send(&almost[almost.len() - 1..]).await;
    client.skip_hello().await;
    assert_eq!(client.refusal().await, (1, ErrorCode::UNSUPPORTED));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_request_that_never_ends_is_cut_off() {
    let limits = Limits {
        request_timeout: Duration::from_millis(200),
        min_bytes_per_second: 64 << 20,
        ..Limits::default()
    };
    let server = Running::start(Arc::new(TestReader::new(&[])), limits);
    let mut client = Client::new(&server, &HELLO).await;
    let whole = message(0x10, 1, 4 << 20);
    // The server may hang up in the middle.
    let _ = client.stream.write_all(&whole[..1 << 20]).await;
    eventually("it is cut off", || server.counters.net.too_slow.get() == 1).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn later_protocol_is_refused_as_such_and_compatible_flags_are_ignored() {
    let server = Running::start(Arc::new(TestReader::new(&[])), Limits::default());
    for hello in [b"bulla\x01\0\0", b"bulla\xff\xff\xff", b"bulla\0\0\x01"] {
        let mut client = Client::new(&server, hello).await;
        client.skip_hello().await;
        assert_eq!(client.refusal().await, (0, ErrorCode::UNSUPPORTED));
        assert!(client.answer().await.is_none());
    }
    assert_eq!(server.counters.net.malformed.get(), 0);
    let mut client = Client::new(&server, b"bulla\0\xff\0").await;
    client.send(&get_head(3)).await;
    client.skip_hello().await;
    assert_eq!(client.answer().await.unwrap().0.kind, kind::HEAD);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn head_that_the_client_has_is_not_sent_again() {
    let reader = Arc::new(TestReader::new(&[]));
    let server = Running::start(reader.clone(), Limits::default());
    let mut client = Client::new(&server, &HELLO).await;
    client.skip_hello().await;
    let ask = |id, known: &[u8]| {
        let mut out = BytesMut::new();
        let request = Request::Head {
            volume: VOLUME,
            around_bytes: 8192,
            known: Some(wire::mirror::head_name(known)),
            toward: b"a".to_vec(),
        };
        request.put(id, &mut out);
        out
    };
    client.send(&ask(1, b"head 1")).await;
    let (header, body) = client.answer().await.unwrap();
    assert_eq!((header.kind, header.id, body.len()), (kind::DONE, 1, 0));
    client.send(&ask(2, b"head 0")).await;
    let (header, body) = client.answer().await.unwrap();
    assert_eq!((header.kind, &body[..]), (kind::HEAD, &b"head 1"[..]));
    // The remote store gives the head that it has, and sees a new one.
    let store = server.store();
    for _ in 0..3 {
        assert_eq!(&Replica::head(&store).await.unwrap()[..], b"head 1");
    }
    reader.publish(b"head 2");
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while &Replica::head(&store).await.unwrap()[..] != b"head 2" {
        assert!(
            std::time::Instant::now() < until,
            "the new head is not served"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.stop().await;
}
