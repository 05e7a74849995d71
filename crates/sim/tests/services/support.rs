//! A running echo on TCP, TLS and a Unix socket, and its clients.

use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serve::net::{Counters, Limits, Resources, Server};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use wire::frame::{HELLO_BYTES, Header, MAX_ANSWER_BYTES, hello, take};
use wire::refusal::{ERROR, ErrorCode, Refusal};

use crate::echo::{Echo, EchoService, PROTOCOL};

const PATIENCE: Duration = Duration::from_secs(60);

pub struct Running {
    pub tcp: SocketAddr,
    pub tls: SocketAddr,
    pub unix: PathBuf,
    pub echo: Arc<Echo>,
    pub counters: Arc<Counters>,
    connector: TlsConnector,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

fn identity() -> (Arc<ServerConfig>, TlsConnector) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
    let provider = Arc::new(ring::default_provider());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).unwrap();
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server), TlsConnector::from(Arc::new(client)))
}

impl Running {
    pub fn start(limits: Limits) -> Running {
        let dir = tempfile::tempdir().unwrap();
        let echo = Echo::new(std::fs::File::create(dir.path().join("log")).unwrap());
        let (config, connector) = identity();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let service = EchoService(Arc::clone(&echo));
        let mut server = Server::new(service, Resources::new(limits));
        let unix = dir.path().join("socket");
        server.unix(UnixListener::bind(&unix).unwrap());
        let (tcp, tls) = (server.tcp(any).unwrap(), server.tls(any, config).unwrap());
        let counters = Arc::clone(server.resources().counters());
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(server.run(async move { drop(stopped.await) }));
        Running {
            tcp,
            tls,
            unix,
            echo,
            counters,
            connector,
            stop: Some(stop),
            task,
            _dir: dir,
        }
    }

    pub async fn tcp(&self) -> Client<TcpStream> {
        Client::greet(TcpStream::connect(self.tcp).await.unwrap()).await
    }

    pub async fn unix(&self) -> Client<UnixStream> {
        Client::greet(UnixStream::connect(&self.unix).await.unwrap()).await
    }

    pub async fn tls(&self) -> Client<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.tls).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        Client::greet(self.connector.connect(name, stream).await.unwrap()).await
    }

    /// Stops it; all connections end within the grace.
    pub async fn stop(mut self) {
        self.stop.take();
        timeout(PATIENCE, &mut self.task).await.unwrap().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A client on any stream.
pub struct Client<T> {
    pub stream: T,
    buffer: BytesMut,
    greeted: bool,
}

/// An answer, or why there is none.
pub type Answer = Result<(u8, u32, BytesMut), ErrorCode>;

impl<T: AsyncRead + AsyncWrite + Unpin> Client<T> {
    async fn greet(mut stream: T) -> Client<T> {
        // A server that admits no more may have closed already.
        let _ = stream.write_all(&hello(PROTOCOL)).await;
        let _ = stream.flush().await;
        Client {
            stream,
            buffer: BytesMut::new(),
            greeted: false,
        }
    }

    pub async fn send(&mut self, kind: u8, id: u32, body: &[u8]) {
        assert!(self.try_send(kind, id, body).await, "the server hung up");
    }

    /// The same to a server that may close the connection meanwhile.
    pub async fn try_send(&mut self, kind: u8, id: u32, body: &[u8]) -> bool {
        let mut out = BytesMut::new();
        Header::new(kind, id, body.len()).put(&mut out);
        out.put_slice(body);
        self.stream.write_all(&out).await.is_ok() && self.stream.flush().await.is_ok()
    }

    /// The next message of any kind; `None` when the server has closed.
    pub async fn message(&mut self) -> Option<(u8, u32, BytesMut)> {
        let next = timeout(PATIENCE, self.next_message()).await;
        next.expect("the server neither answers nor closes")
    }

    async fn next_message(&mut self) -> Option<(u8, u32, BytesMut)> {
        loop {
            if !self.greeted && self.buffer.len() >= HELLO_BYTES {
                assert_eq!(self.buffer.split_to(HELLO_BYTES), hello(PROTOCOL)[..]);
                self.greeted = true;
            }
            if self.greeted
                && let Some((header, body)) = take(&mut self.buffer, MAX_ANSWER_BYTES).unwrap()
            {
                return Some((header.kind, header.id, body));
            }
            match self.stream.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// The next answer or refusal.
    pub async fn answer(&mut self) -> Answer {
        let (kind, id, body) = self.message().await.expect("the server closed");
        match kind {
            ERROR => Err(Refusal::decode(&body).unwrap().code),
            _ => Ok((kind, id, body)),
        }
    }

    /// Asks one thing and takes its answer.
    pub async fn ask(&mut self, kind: u8, id: u32, body: &[u8]) -> Answer {
        self.send(kind, id, body).await;
        self.answer().await
    }

    /// The code of the refusal under id 0, if one comes before the server closes.
    pub async fn parting(&mut self) -> Option<ErrorCode> {
        let mut code = None;
        while let Some((kind, id, body)) = self.message().await {
            if (kind, id) == (ERROR, 0) {
                code = Some(Refusal::decode(&body).unwrap().code);
            }
        }
        code
    }
}
