//! The HTTP service of a witness of logs (C2SP `tlog-witness`): POST `add-checkpoint`, and nothing else.
//!
//! Anybody may connect, so connections, bodies and times are bounded, within the limits of [`crate::net`]. The caller
//! decides about a body. That may wait for a disk or a key, so it runs on a thread for blocking work, and the number of
//! bodies that wait so is bounded, too; a client that leaves does not make room for another one.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use trust::witness::MAX_SUBMISSION_BYTES;

use crate::net::accept::{self, Handler};
use crate::net::limiter::{Full, Permit};
use crate::net::{Limits, Listen, ListenError, Peer, Resources};

/// The path of the call, at the end of the address that the witness gives to logs.
const CALL: &str = "/add-checkpoint";
/// How long clients may take.
#[derive(Clone, Copy)]
struct Times {
    /// For the headers of a request, and for its body.
    asking: Duration,
    /// For all of a connection. Logs send a request now and then, and connect again.
    connection: Duration,
}

const TIMES: Times = Times {
    asking: Duration::from_secs(10),
    connection: Duration::from_secs(60),
};
/// Most bodies that are decided about or wait for that. Further requests get 503.
const DECIDING: usize = 16;
/// Most connections, and of one client unless all clients come over a proxy on this machine.
const CONNECTIONS: usize = 256;
const PER_CLIENT: usize = 32;
/// Most bytes of headers.
const MAX_HEAD_BYTES: usize = 16 << 10;
const TURNED_AWAY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n\
    Content-Length: 0\r\nConnection: close\r\n\r\n";

/// An answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The type of the body.
    pub kind: &'static str,
    /// The body.
    pub body: String,
}

/// Decides about the body of a request from this address.
pub type Decide = Arc<dyn Fn(&[u8], Peer) -> Answer + Send + Sync>;

/// A witness that listens.
pub struct Server {
    listener: std::net::TcpListener,
    local: SocketAddr,
    http: Http,
    resources: Arc<Resources>,
}

impl Server {
    /// Listens; clients wait until [`Server::run`].
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(listen: Listen, decide: Decide) -> Result<Server, ListenError> {
        let (listeners, local) = listen.open(1)?;
        let limits = Limits {
            max_connections: CONNECTIONS,
            // To a listener on a loopback address all clients of a reverse proxy are one.
            max_per_client: if local.ip().is_loopback() {
                CONNECTIONS
            } else {
                PER_CLIENT
            },
            ..Limits::default()
        };
        let listener = listeners.into_iter().next().ok_or_else(|| ListenError {
            address: local,
            source: std::io::ErrorKind::NotConnected.into(),
        })?;
        Ok(Server {
            listener,
            local,
            http: Http {
                decide,
                times: TIMES,
                deciding: Arc::new(Semaphore::new(DECIDING)),
            },
            resources: Resources::new(limits),
        })
    }

    /// The address, its port chosen by the system where 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Serves until `shutdown` completes, and lets requests under way finish.
    ///
    /// # Errors
    /// [`ListenError`] when the runtime cannot take the socket.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ListenError> {
        let failed = |source| ListenError {
            address: self.local,
            source,
        };
        self.listener.set_nonblocking(true).map_err(failed)?;
        let listener = TcpListener::from_std(self.listener).map_err(failed)?;
        let (stop, stopped) = watch::channel(false);
        let serving = accept::serve(listener, self.http, self.resources, stopped);
        let stopping = async {
            shutdown.await;
            // The server may have ended.
            let _ = stop.send(true);
        };
        tokio::join!(serving, stopping);
        Ok(())
    }
}

#[derive(Clone)]
struct Http {
    decide: Decide,
    times: Times,
    deciding: Arc<Semaphore>,
}

impl Handler<TcpStream> for Http {
    async fn serve(
        self,
        stream: TcpStream,
        peer: Peer,
        permit: Permit,
        mut stop: watch::Receiver<bool>,
    ) {
        let http = &self;
        let answer = service_fn(|request| async move {
            Ok::<_, Infallible>(respond(http.clone(), peer, request).await)
        });
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.times.asking)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), answer);
        let mut serving = std::pin::pin!(serving);
        let mut life = std::pin::pin!(tokio::time::sleep(self.times.connection));
        let mut is_stopping = false;
        loop {
            tokio::select! {
                ended = serving.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(%peer, %error, "connection closed");
                    }
                    break;
                }
                () = life.as_mut() => break,
                _ = stop.wait_for(|stop| *stop), if !is_stopping => {
                    is_stopping = true;
                    serving.as_mut().graceful_shutdown();
                }
            }
        }
        drop(permit);
    }

    fn refusal(&self, _full: Full) -> Vec<u8> {
        TURNED_AWAY.to_vec()
    }
}

async fn respond(http: Http, peer: Peer, request: Request<Incoming>) -> Response<Text> {
    if !request.uri().path().ends_with(CALL) {
        return plain(
            StatusCode::NOT_FOUND,
            "this is a witness of logs: POST /add-checkpoint\n",
        );
    }
    if request.method() != Method::POST {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "POST a checkpoint\n");
        let allow = HeaderValue::from_static("POST");
        response.headers_mut().insert(ALLOW, allow);
        return response;
    }
    let body = match timeout(http.times.asking, whole(request.into_body())).await {
        Ok(Some(body)) => body,
        Ok(None) => return plain(StatusCode::PAYLOAD_TOO_LARGE, "too long, or broken off\n"),
        Err(_) => return plain(StatusCode::REQUEST_TIMEOUT, "too slow\n"),
    };
    let Ok(turn) = http.deciding.try_acquire_owned() else {
        let mut response = plain(StatusCode::SERVICE_UNAVAILABLE, "busy\n");
        let after = HeaderValue::from_static("1");
        response.headers_mut().insert(RETRY_AFTER, after);
        return response;
    };
    let decide = http.decide;
    let decided = tokio::task::spawn_blocking(move || {
        let answer = decide(&body, peer);
        drop(turn);
        answer
    });
    let decided = decided.await;
    let Ok(Answer { status, kind, body }) = decided else {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, "the witness failed\n");
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = plain(status, &body);
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// The whole body; `None` when it is longer than a request can be, or breaks off.
async fn whole(mut body: Incoming) -> Option<Bytes> {
    let mut all = BytesMut::new();
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let data = frame.ok()?.into_data().unwrap_or_default();
        if all.len().saturating_add(data.len()) > MAX_SUBMISSION_BYTES {
            return None;
        }
        all.extend_from_slice(&data);
    }
    Some(all.freeze())
}

fn plain(status: StatusCode, body: &str) -> Response<Text> {
    let mut response = Response::new(Text(Some(Bytes::copy_from_slice(body.as_bytes()))));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// A short body.
struct Text(Option<Bytes>);

impl Body for Text {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

#[cfg(test)]
mod tests;
