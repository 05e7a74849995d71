//! Makes a connection: TCP, TLS with the orderer's key, hello, ENTER, and the server's welcome.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use rustls::pki_types::{IpAddr, Ipv4Addr, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use trust::Reject;
use trust::key::{PublicKey, SecretKey};
use trust::volume_id::VolumeId;

use super::error::LinkError;
use super::{LinkOptions, PROTOCOL, SESSION_ID, ServerAddress, kind};
use crate::frame::{self, HELLO_BYTES, check_hello};
use crate::refusal::{ERROR, MAX_ERROR_TEXT_BYTES, Refusal};
use crate::session::Claim;
use crate::session::tls;
use crate::shared::enter::{Enter, SIGNING_DOMAIN, Welcome};

/// A connection inside TLS.
pub(super) type Stream = TlsStream<TcpStream>;

/// Longest body that comes before the first answer is over: a WELCOME or an ERROR.
const MAX_FIRST_BYTES: usize = 1 + MAX_ERROR_TEXT_BYTES;

pub(super) struct Dialed {
    pub(super) stream: Stream,
    /// Bytes that came after the welcome.
    pub(super) buffer: BytesMut,
    pub(super) welcome: Welcome,
    /// The key that the server has proved to have.
    pub(super) key: PublicKey,
}

pub(super) async fn dial(
    to: &ServerAddress,
    volume: VolumeId,
    orderer: Option<&PublicKey>,
    device: Option<&SecretKey>,
    options: &LinkOptions,
) -> Result<Dialed, LinkError> {
    let place: Arc<str> = to.to_string().into();
    let until = Instant::now() + options.connect_timeout;
    let late = || LinkError::unavailable(&place, "no answer in time");
    let tcp = timeout_at(until, reach(to, until));
    let tcp = tcp.await.map_err(|_| late())?;
    let tcp = tcp.map_err(|why| LinkError::unavailable(&place, why))?;
    let enter = enter(&place, tcp, volume, orderer, device);
    timeout_at(until, enter).await.map_err(|_| late())?
}

/// Tries each address of the host.
async fn reach(to: &ServerAddress, until: Instant) -> Result<TcpStream, String> {
    let authority = to.authority();
    let found = look_up(authority.clone()).await;
    let found = found.map_err(|e| format!("cannot look up {authority}: {e}"))?;
    // Each address gets a share of the time, so that a dead one does not hide a good one.
    let share = until.saturating_duration_since(Instant::now()) / found.len().max(1) as u32;
    let mut why = format!("{authority} has no address");
    for address in found {
        let share = Instant::now() + share;
        match timeout_at(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true).map_err(|e| e.to_string())?;
                return Ok(stream);
            }
            Ok(Err(e)) => why = format!("cannot connect to {address}: {e}"),
            Err(_) => why = format!("cannot connect to {address}: no answer"),
        }
    }
    Err(why)
}

/// The addresses of a host. The system's look-up cannot be ended and may take minutes, so it has a thread that nobody
/// waits for: a runtime waits for its own threads when it ends.
async fn look_up(authority: String) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = authority.parse() {
        return Ok(vec![address]);
    }
    let (send, found) = oneshot::channel();
    let thread = std::thread::Builder::new().name("look-up".to_owned());
    thread.spawn(move || {
        let found = authority.to_socket_addrs();
        // Whoever asked may be gone.
        let _ = send.send(found.map(Iterator::collect));
    })?;
    found
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

async fn enter(
    place: &Arc<str>,
    tcp: TcpStream,
    volume: VolumeId,
    orderer: Option<&PublicKey>,
    device: Option<&SecretKey>,
) -> Result<Dialed, LinkError> {
    let failed = |why: String| LinkError::unavailable(place, why);
    let config = tls::client(orderer).map_err(failed)?;
    // Never sent, and checked by nobody: the key says who the server is.
    let name = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::from([0; 4])));
    let handshake = TlsConnector::from(config).connect(name, tcp).await;
    let mut stream = handshake.map_err(|e| match tls::is_other_key(&e) {
        true => LinkError::OtherServer {
            place: Arc::clone(place),
        },
        false => failed(format!("no TLS session: {e}")),
    })?;
    let key = tls::shown_key(stream.get_ref().1);
    let key = key.ok_or_else(|| failed("the server shows no key".to_owned()))?;
    let exporter = tls::exporter(stream.get_ref().1).map_err(failed)?;
    let enter = Enter {
        volume,
        device: device.map(|key| Claim::new(SIGNING_DOMAIN, volume, key, &exporter)),
    };
    let mut first = BytesMut::from(&frame::hello(PROTOCOL)[..]);
    enter.put(SESSION_ID, &mut first);
    stream
        .write_all(&first)
        .await
        .map_err(|e| failed(e.to_string()))?;
    stream.flush().await.map_err(|e| failed(e.to_string()))?;
    let (welcome, buffer) = welcome(place, &mut stream).await?;
    Ok(Dialed {
        stream,
        buffer,
        welcome,
        key,
    })
}

/// Reads the hello and the first answer; also gives what came after it.
async fn welcome(place: &Arc<str>, stream: &mut Stream) -> Result<(Welcome, BytesMut), LinkError> {
    let bad = |why: Reject| match why {
        // Another service at a mistyped port is not an attack.
        Reject::Malformed { what: "hello", .. } => {
            LinkError::unavailable(place, "it does not speak bulla")
        }
        why => LinkError::bad(place, why),
    };
    let mut buffer = BytesMut::new();
    let mut greeted = false;
    loop {
        if !greeted && let Some(hello) = buffer.first_chunk::<HELLO_BYTES>() {
            check_hello(hello, PROTOCOL).map_err(bad)?;
            buffer.advance(HELLO_BYTES);
            greeted = true;
        }
        if greeted
            && let Some((header, body)) = frame::take(&mut buffer, MAX_FIRST_BYTES).map_err(bad)?
        {
            return match header.kind {
                kind::WELCOME if header.id == SESSION_ID => {
                    let welcome = Welcome::decode(&body).map_err(bad)?;
                    Ok((welcome, buffer))
                }
                ERROR => {
                    let refusal = Refusal::decode(&body).map_err(bad)?;
                    Err(LinkError::refused(place, refusal))
                }
                _ => Err(bad(Reject::Malformed {
                    what: "answer",
                    why: "to a request that was never made",
                })),
            };
        }
        match stream.read_buf(&mut buffer).await {
            Ok(0) => {
                return Err(LinkError::unavailable(
                    place,
                    "the server closed the connection",
                ));
            }
            Ok(_) => {}
            Err(e) => return Err(LinkError::unavailable(place, e.to_string())),
        }
    }
}
