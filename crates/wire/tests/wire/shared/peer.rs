//! A server that a test plays by hand: TLS with the orderer's key, and messages one by one.

use std::future::Future;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use trust::history::LogPoint;
use trust::key::SecretKey;
use trust::volume_id::VolumeId;
use trust_shared::note::{Note, SignedNote};
use wire::frame::{self, HEADER_BYTES, HELLO_BYTES, Header};
use wire::session::Exporter;
use wire::session::tls;
use wire::shared::delivery::End;
use wire::shared::enter::{Enter, Welcome};
use wire::shared::link::{Deliveries, Link, LinkError, LinkOptions};
use wire::shared::terms::{Pace, Terms};
use wire::shared::{PROTOCOL, SESSION_ID, ServerAddress, kind};

pub const VOLUME: VolumeId = VolumeId::from_bytes([7; 32]);

pub fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed(&[seed; 32])
}

/// The orderer of these tests.
pub fn orderer() -> SecretKey {
    key(1)
}

/// A device of these tests.
pub fn device() -> SecretKey {
    key(2)
}

/// Time-outs that no answer reaches, however busy the machine is.
pub fn patient() -> LinkOptions {
    LinkOptions {
        connect_timeout: Duration::from_secs(60),
        answer_timeout: Duration::from_secs(60),
        max_silence: Duration::from_secs(60),
        ..LinkOptions::default()
    }
}

/// Gives up a silent server soon.
pub fn impatient() -> LinkOptions {
    LinkOptions {
        connect_timeout: Duration::from_secs(2),
        answer_timeout: Duration::from_secs(2),
        max_silence: Duration::from_secs(2),
        ..LinkOptions::default()
    }
}

pub fn welcome() -> Vec<u8> {
    Welcome { newest_policy: 0 }.encode()
}

/// What a server of these tests answers to OPEN.
pub fn terms(heartbeat_ms: u32) -> Terms {
    let pace = Pace {
        per_second: 1000,
        at_once: 2000,
    };
    Terms {
        heartbeat_ms,
        bytes: pace,
        entries: pace,
        entry_bytes: pace,
        outstanding_bytes: 1 << 20,
    }
}

pub fn note(size: u64) -> SignedNote {
    let root = [9; 32];
    let log = LogPoint {
        epoch: 0,
        size,
        root,
    };
    Note { log, time_ms: 1 }.sign(VOLUME, &orderer())
}

/// The end of a delivery without leaves.
pub fn heartbeat(size: u64) -> Vec<u8> {
    let end = End {
        from: size,
        note: note(size),
        more: false,
        asked: false,
        refused: None,
        unstored: None,
    };
    end.encode().to_vec()
}

/// The server's end of a connection.
pub struct Peer {
    pub stream: TlsStream<TcpStream>,
    pub buffer: BytesMut,
    pub exporter: Exporter,
    pub enter: Option<Enter>,
}

impl Peer {
    /// The next message of the client; `None` when it has closed.
    pub async fn recv(&mut self) -> Option<(u8, u32, Vec<u8>)> {
        loop {
            if let Some((header, body)) = frame::take(&mut self.buffer, 8 << 20).unwrap() {
                return Some((header.kind, header.id, body.to_vec()));
            }
            match self.stream.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    pub async fn send(&mut self, kind: u8, id: u32, body: &[u8]) {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        Header::new(kind, id, body.len()).put(&mut bytes);
        bytes.extend_from_slice(body);
        self.raw(&bytes).await;
    }

    pub async fn raw(&mut self, bytes: &[u8]) {
        // The client may have gone.
        let _ = self.stream.write_all(bytes).await;
        let _ = self.stream.flush().await;
    }

    /// Reads until the client closes.
    pub async fn drain(&mut self) {
        while self.recv().await.is_some() {}
    }

    /// Reads hello and ENTER.
    async fn greet(&mut self) -> Option<()> {
        while self.buffer.len() < HELLO_BYTES {
            let read = self.stream.read_buf(&mut self.buffer).await;
            read.ok().filter(|n| *n > 0)?;
        }
        let hello = self.buffer.first_chunk::<HELLO_BYTES>()?;
        assert_eq!(frame::check_hello(hello, PROTOCOL), Ok(0));
        self.buffer.advance(HELLO_BYTES);
        let (kind, id, body) = self.recv().await?;
        assert_eq!((kind, id), (kind::ENTER, SESSION_ID));
        self.enter = Some(Enter::decode(&body).unwrap());
        Some(())
    }

    /// Hello and welcome.
    pub async fn welcome(&mut self) {
        self.raw(&frame::hello(PROTOCOL)).await;
        self.send(kind::WELCOME, SESSION_ID, &welcome()).await;
    }
}

/// A server that runs `behave` for every connection whose client has sent ENTER.
pub async fn server<F, B>(behave: B) -> ServerAddress
where
    F: Future<Output = ()> + Send + 'static,
    B: Fn(Peer) -> F + Send + Sync + Clone + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = TlsAcceptor::from(tls::server(&orderer()).unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, behave) = (acceptor.clone(), behave.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let exporter = tls::exporter(stream.get_ref().1).unwrap();
                let mut peer = Peer {
                    stream,
                    buffer: BytesMut::new(),
                    exporter,
                    enter: None,
                };
                if peer.greet().await.is_some() {
                    behave(peer).await;
                }
            });
        }
    });
    ServerAddress {
        host: "127.0.0.1".to_owned(),
        port,
    }
}

pub async fn connect(to: &ServerAddress) -> Result<(Link, Deliveries), LinkError> {
    connect_with(&patient(), to).await
}

pub async fn connect_with(
    options: &LinkOptions,
    to: &ServerAddress,
) -> Result<(Link, Deliveries), LinkError> {
    let orderer = orderer().public();
    Link::connect(to, VOLUME, &orderer, Some(&device()), options).await
}

/// A link to a server that runs `behave` after its welcome.
pub async fn linked<F, B>(behave: B) -> (Link, Deliveries)
where
    F: Future<Output = ()> + Send + 'static,
    B: Fn(Peer) -> F + Send + Sync + Clone + 'static,
{
    linked_with(&patient(), behave).await
}

/// As [`linked`], and the link has these options.
pub async fn linked_with<F, B>(options: &LinkOptions, behave: B) -> (Link, Deliveries)
where
    F: Future<Output = ()> + Send + 'static,
    B: Fn(Peer) -> F + Send + Sync + Clone + 'static,
{
    let behave = move |mut peer: Peer| {
        let behave = behave.clone();
        async move {
            peer.welcome().await;
            behave(peer).await;
        }
    };
    let to = server(behave).await;
    connect_with(options, &to).await.unwrap()
}
