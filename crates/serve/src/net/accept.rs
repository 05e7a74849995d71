//! Accepts connections on one thread and hands each to a task. For every kind of stream; plain TCP
//! has a faster way, [`super::worker`].

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use wire::frame;
use wire::refusal::{ErrorCode, put_error};

use crate::net::connection::Connection;
use crate::net::limiter::{Full, Permit};
use crate::net::peer::Peer;
use crate::net::resources::Resources;
use crate::net::run::Stream;
use crate::net::service::{Host, Service};

/// Pause after the system refused a connection for lack of a resource.
pub(super) const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Whether the system lacks a resource for a connection. The shortage ends when connections close.
pub(super) fn is_shortage(error: Errno) -> bool {
    matches!(
        error,
        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM
    )
}

/// A listening socket.
pub(crate) trait Incoming: Send + 'static {
    /// The type of a connection.
    type Stream: Stream;

    /// Waits for the next connection. Cancel-safe.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Peer)>> + Send;

    /// Writes as much as goes without waiting.
    fn try_write(stream: &Self::Stream, bytes: &[u8]);
}

impl Incoming for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Peer)> {
        let (stream, address) = TcpListener::accept(self).await?;
        Ok((stream, address.into()))
    }

    fn try_write(stream: &TcpStream, bytes: &[u8]) {
        // Best effort: the connection ends either way.
        let _ = stream.try_write(bytes);
    }
}

impl Incoming for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Peer)> {
        let (stream, _) = UnixListener::accept(self).await?;
        let user = stream.peer_cred()?.uid();
        Ok((stream, Peer::User(user)))
    }

    fn try_write(stream: &UnixStream, bytes: &[u8]) {
        // Best effort: the connection ends either way.
        let _ = stream.try_write(bytes);
    }
}

/// Serves accepted streams.
pub(crate) trait Handler<T>: Clone + Send + 'static {
    /// Serves a connection to its end, which comes soon after `stop` asks for it.
    fn serve(
        self,
        stream: T,
        peer: Peer,
        permit: Permit,
        stop: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send;

    /// The answer to a client that is not admitted.
    fn refusal(&self, full: Full) -> Vec<u8>;
}

/// Serves a bulla protocol without TLS.
pub(crate) struct Plain<S>(pub(crate) Arc<Host<S>>);

impl<S> Clone for Plain<S> {
    fn clone(&self) -> Plain<S> {
        Plain(Arc::clone(&self.0))
    }
}

impl<S: Service, T: Stream> Handler<T> for Plain<S> {
    async fn serve(self, mut stream: T, peer: Peer, permit: Permit, stop: watch::Receiver<bool>) {
        let host = Arc::clone(&self.0);
        let connection = Connection::new(host, peer, permit, Instant::now());
        let end = connection.run(&mut stream, stop).await;
        self.0.resources.ended(peer, &end);
    }

    fn refusal(&self, full: Full) -> Vec<u8> {
        refusal::<S>(full)
    }
}

/// Hello and ERROR for a client that is not admitted.
pub(super) fn refusal<S: Service>(full: Full) -> Vec<u8> {
    let mut bytes = frame::hello(S::PROTOCOL).to_vec();
    let text = match full {
        Full::All => "too many connections",
        Full::Client => "too many connections of yours",
    };
    put_error(&mut bytes, 0, ErrorCode::BUSY, text);
    bytes
}

/// Accepts until `stop` asks to stop or its sender is gone; then lets connections finish.
pub(crate) async fn serve<I: Incoming>(
    listener: I,
    handler: impl Handler<I::Stream>,
    resources: Arc<Resources>,
    stopped: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    let orderly = {
        let mut told = stopped.clone();
        let mut stop = pin!(async move { told.wait_for(|stop| *stop).await.is_ok() });
        let mut is_short = false;
        loop {
            tokio::select! {
                orderly = stop.as_mut() => break orderly,
                accepted = accept(&listener, &resources, &mut is_short) => {
                    let Some((stream, peer)) = accepted else { continue };
                    match resources.limiter().take(peer) {
                        Ok(permit) => {
                            let serving = handler.clone();
                            connections.spawn(serving.serve(stream, peer, permit, stopped.clone()));
                        }
                        Err(full) => {
                            resources.turned_away(peer, full);
                            I::try_write(&stream, &handler.refusal(full));
                        }
                    }
                }
                Some(_) = connections.join_next() => {}
            }
        }
    };
    drop(listener);
    finish(connections, orderly, &resources).await;
}

/// Waits for connections to finish, for the grace at most.
pub(super) async fn finish(mut connections: JoinSet<()>, orderly: bool, resources: &Resources) {
    let all = async { while connections.join_next().await.is_some() {} };
    if orderly && timeout(resources.limits().grace, all).await.is_err() {
        let connections = connections.len();
        tracing::warn!(connections, "cut off at the end of the grace period");
    }
}

/// The next connection; `None` after an error. Pauses first if the error is a shortage.
async fn accept<I: Incoming>(
    listener: &I,
    resources: &Resources,
    is_short: &mut bool,
) -> Option<(I::Stream, Peer)> {
    let error = match listener.accept().await {
        Ok(accepted) => {
            *is_short = false;
            return Some(accepted);
        }
        Err(error) => error,
    };
    resources.counters().accept_errors.add(1);
    if Errno::from_io_error(&error).is_some_and(is_shortage) {
        note_shortage(resources, is_short, &error);
        sleep(SHORTAGE_PAUSE).await;
    } else {
        tracing::debug!(%error, "a connection was gone before it was accepted");
    }
    None
}

/// Counts and logs a shortage once, however long it lasts.
pub(super) fn note_shortage(
    resources: &Resources,
    is_short: &mut bool,
    error: &impl std::fmt::Display,
) {
    if !std::mem::replace(is_short, true) {
        resources.counters().shortages.add(1);
        tracing::warn!(%error, "cannot accept connections now");
    }
}
