//! Clients that break the protocol, that replay a claim, that never read. Each is cut off or costs little, and the
//! others are served.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use serve::net::Limits;
use serve::shared::limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use trust_shared::mark::Nonce;
use wire::frame::{self, Header};
use wire::refusal::{ErrorCode, Refusal};
use wire::session::{Claim, Exporter, tls};
use wire::shared::enter::{Enter, SIGNING_DOMAIN};
use wire::shared::{FORGED, MAX_STORE_BYTES, PROTOCOL, Request, SESSION_ID, ServerAddress, kind};

use super::device::{Device, soon};
use super::volume::{Running, block, directory, founder, options, orderer, policy, serve};

const OPEN: Request = Request::Open {
    heartbeat_ms: 10_000,
    note: None,
};

/// A client that a test plays by hand.
struct Raw {
    stream: TlsStream<TcpStream>,
    buffer: BytesMut,
}

impl Raw {
    async fn connect(to: &ServerAddress) -> Raw {
        let tcp = TcpStream::connect(to.authority()).await.unwrap();
        let config = tls::client(Some(&orderer().public())).unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let stream = TlsConnector::from(config).connect(name, tcp).await.unwrap();
        let mut raw = Raw {
            stream,
            buffer: BytesMut::new(),
        };
        raw.bytes(&frame::hello(PROTOCOL)).await;
        raw
    }

    fn exporter(&self) -> Exporter {
        tls::exporter(self.stream.get_ref().1).unwrap()
    }

    async fn bytes(&mut self, bytes: &[u8]) {
        // The server may have closed.
        let _ = self.stream.write_all(bytes).await;
        let _ = self.stream.flush().await;
    }

    async fn send(&mut self, kind: u8, id: u32, body: &[u8]) {
        let mut bytes = Vec::new();
        Header::new(kind, id, body.len()).put(&mut bytes);
        bytes.extend_from_slice(body);
        self.bytes(&bytes).await;
    }

    async fn say(&mut self, request: &Request, id: u32) {
        let mut bytes = BytesMut::new();
        request.put(id, &mut bytes);
        self.bytes(&bytes).await;
    }

    async fn enter(&mut self, claim: Option<Claim>) {
        let mut bytes = BytesMut::new();
        let enter = Enter {
            volume: policy().0,
            device: claim,
        };
        enter.put(SESSION_ID, &mut bytes);
        self.bytes(&bytes).await;
    }

    /// Enters as the founder's device.
    async fn member(to: &ServerAddress) -> Raw {
        let mut raw = Raw::connect(to).await;
        let claim = Claim::new(SIGNING_DOMAIN, policy().0, &founder(), &raw.exporter());
        raw.enter(Some(claim)).await;
        assert_eq!(raw.recv().await.unwrap().0, kind::WELCOME);
        raw
    }

    /// The next message; `None` when the server has closed.
    async fn recv(&mut self) -> Option<(u8, u32, Vec<u8>)> {
        let mut greeted = !self.buffer.is_empty();
        loop {
            if self.buffer.starts_with(b"bulla") && self.buffer.len() >= 8 {
                drop(self.buffer.split_to(8));
                greeted = true;
            }
            if (greeted || !self.buffer.starts_with(b"b"))
                && let Some((header, body)) = frame::take(&mut self.buffer, 8 << 20).unwrap()
            {
                return Some((header.kind, header.id, body.to_vec()));
            }
            match soon(self.stream.read_buf(&mut self.buffer)).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// The code of the error that comes next, other messages left out.
    async fn error(&mut self) -> ErrorCode {
        loop {
            let (kind, _, body) = self.recv().await.expect("an ERROR");
            if kind == kind::ERROR {
                return Refusal::decode(&body).unwrap().code;
            }
        }
    }

    async fn is_closed(&mut self) -> bool {
        while self.recv().await.is_some() {}
        true
    }
}

#[tokio::test]
async fn claim_of_another_connection_is_refused() {
    let (_dir, server) = serve();
    let first = Raw::connect(&server.address).await;
    let claim = Claim::new(SIGNING_DOMAIN, policy().0, &founder(), &first.exporter());
    let mut second = Raw::connect(&server.address).await;
    assert_ne!(first.exporter(), second.exporter());
    second.enter(Some(claim)).await;
    assert_eq!(second.error().await, FORGED);
    // It gets no second try on this connection.
    let own = Claim::new(SIGNING_DOMAIN, policy().0, &founder(), &second.exporter());
    second.enter(Some(own)).await;
    assert_eq!(second.error().await, ErrorCode::MALFORMED);
    assert!(second.is_closed().await);
    let other = Claim::new(
        SIGNING_DOMAIN,
        policy().0,
        &super::volume::key(9),
        &first.exporter(),
    );
    let mut first = first;
    first.enter(Some(other)).await;
    assert_eq!(first.error().await, wire::shared::NOT_MEMBER);
    server.stop().await;
}

#[tokio::test]
async fn messages_out_of_order_are_malformed() {
    let (_dir, server) = serve();
    let to = &server.address;
    let mut before = Raw::connect(to).await;
    before.say(&Request::Ping, 2).await;
    assert_eq!(before.error().await, ErrorCode::MALFORMED);
    let mark = Request::Mark(Nonce::from_bytes([1; 32]));
    for (request, id) in [
        (Request::Next, SESSION_ID),
        (mark.clone(), SESSION_ID),
        (mark, 2),
        (Request::Ping, SESSION_ID),
    ] {
        let mut member = Raw::member(to).await;
        member.say(&request, id).await;
        assert_eq!(member.error().await, ErrorCode::MALFORMED, "{request:?}");
        assert!(member.is_closed().await);
    }
    let mut twice = Raw::member(to).await;
    twice.say(&OPEN, SESSION_ID).await;
    twice.say(&OPEN, SESSION_ID).await;
    assert_eq!(twice.error().await, ErrorCode::MALFORMED);
    server.stop().await;
}

#[tokio::test]
async fn oversized_and_truncated_messages_are_refused() {
    let (_dir, server) = serve();
    let to = &server.address;
    for (kind, len) in [
        (kind::STORE, MAX_STORE_BYTES + 1),
        (kind::ENTRY, 200_000),
        (kind::POST, 1000),
        (kind::MARK, 33),
        (0x24, 5 << 20),
        (0x84, 1),
    ] {
        let mut member = Raw::member(to).await;
        let mut header = Vec::new();
        Header::new(kind, 2, len).put(&mut header);
        member.bytes(&header).await;
        assert_eq!(member.error().await, ErrorCode::MALFORMED, "{kind:#x}");
        assert!(member.is_closed().await);
    }
    for (kind, body) in [
        (kind::RETRIEVE, &[1; 31][..]),
        (kind::STORE, &[0; 10]),
        (kind::LEAVES, &[0; 12]),
        (kind::POLICIES, &[0; 7]),
    ] {
        let mut member = Raw::member(to).await;
        member.send(kind, 2, body).await;
        assert_eq!(member.error().await, ErrorCode::MALFORMED, "{kind:#x}");
    }
    // Who has not entered cannot make the server take a long body.
    let mut stranger = Raw::connect(to).await;
    let mut header = Vec::new();
    Header::new(kind::STORE, 2, 1 << 20).put(&mut header);
    stranger.bytes(&header).await;
    assert_eq!(stranger.error().await, ErrorCode::MALFORMED);
    server.stop().await;
}

/// The server ends the connection of a client that never sends ENTER, and of one that it has refused.
#[tokio::test]
async fn client_that_does_not_enter_is_cut_off_soon() {
    let dir = directory();
    let limits = Limits {
        hello_timeout: Duration::from_secs(2),
        ..limits()
    };
    let server = Running::start(dir.path(), options(), limits);
    let mut silent = Raw::connect(&server.address).await;
    let mut refused = Raw::connect(&server.address).await;
    let other = trust::volume_id::VolumeId::from_bytes([9; 32]);
    let enter = Enter {
        volume: other,
        device: None,
    };
    let mut bytes = BytesMut::new();
    enter.put(SESSION_ID, &mut bytes);
    refused.bytes(&bytes).await;
    assert_eq!(refused.error().await, wire::shared::NO_VOLUME);
    let mut guest = Raw::connect(&server.address).await;
    guest.enter(None).await;
    let mut member = Raw::member(&server.address).await;
    let began = Instant::now();
    for stranger in [&mut silent, &mut refused] {
        while stranger.recv().await.is_some() {}
    }
    assert!(began.elapsed() < Duration::from_secs(60));
    for other in [&mut guest, &mut member] {
        other.say(&Request::Ping, 8).await;
        // The guest has not read its WELCOME.
        while other.recv().await.expect("an answer").0 != kind::DONE {}
    }
    server.stop().await;
}

#[tokio::test]
async fn unknown_request_is_refused_and_the_connection_stays() {
    let (_dir, server) = serve();
    let mut member = Raw::member(&server.address).await;
    member.send(0x2f, 7, &[1; 1000]).await;
    assert_eq!(member.error().await, ErrorCode::UNSUPPORTED);
    member.say(&Request::Ping, 8).await;
    assert_eq!(member.recv().await, Some((kind::DONE, 8, vec![])));
    server.stop().await;
}

/// A device that takes no delivery costs at most the window, and the others are served meanwhile.
#[tokio::test]
async fn device_that_never_takes_a_delivery_gets_only_the_window() {
    let (_dir, server) = serve();
    let mut ada = Device::start(&server.address, founder()).await;
    ada.begin().await;
    ada.admit(&[super::volume::key(10)]).await;
    let mut idle = Raw::connect(&server.address).await;
    let claim = Claim::new(
        SIGNING_DOMAIN,
        policy().0,
        &super::volume::key(10),
        &idle.exporter(),
    );
    idle.enter(Some(claim)).await;
    idle.say(&OPEN, SESSION_ID).await;
    for _ in 0..50 {
        ada.write(Vec::new()).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    idle.say(&Request::Ping, 9).await;
    let mut deliveries = 0;
    loop {
        match idle.recv().await.unwrap() {
            (kind::DELIVERY, 0, _) => deliveries += 1,
            (kind::DONE, 9, _) => break,
            _ => {}
        }
    }
    assert_eq!(deliveries, wire::shared::WINDOW);
    // Each NEXT allows one more.
    idle.say(&Request::Next, SESSION_ID).await;
    let one_more = async { while idle.recv().await.unwrap().0 != kind::DELIVERY {} };
    // Before the next heartbeat.
    let one_more = tokio::time::timeout(Duration::from_secs(5), one_more);
    one_more.await.expect("there is room for one more");
    server.stop().await;
}

/// A client that asks for many blocks and reads none of them is cut off, and holds a bounded number of bytes until then.
#[tokio::test]
async fn client_that_does_not_read_is_cut_off() {
    let dir = directory();
    let limits = Limits {
        write_timeout: Duration::from_secs(2),
        max_held_per_connection: 4 << 20,
        ..limits()
    };
    let server = Running::start(dir.path(), options(), limits);
    let mut raw = Raw::member(&server.address).await;
    let blocks: Vec<_> = (0..8).map(|n| block(n, 1_000_000)).collect();
    for (id, record) in (2..).zip(&blocks) {
        raw.say(&Request::Pstore(vec![record.clone()]), id).await;
        assert_eq!(raw.recv().await, Some((kind::DONE, id, vec![])));
    }
    let handles: Vec<_> = blocks.iter().map(|record| record.handle).collect();
    let many = Request::Retrieve(handles.iter().cycle().take(1000).copied().collect());
    for id in 100..140 {
        raw.say(&many, id).await;
    }
    let began = Instant::now();
    let resources = Arc::clone(&server.resources);
    let mut most = 0;
    while resources.counters().connections.get() > 0 {
        most = most.max(resources.counters().held_bytes.get());
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "it is not cut off"
        );
    }
    assert!(most < 24 << 20, "{most} bytes held");
    // Another client is served as ever.
    let mut other = Raw::member(&server.address).await;
    other.say(&Request::Ping, 5).await;
    assert_eq!(other.recv().await, Some((kind::DONE, 5, vec![])));
    server.stop().await;
}
