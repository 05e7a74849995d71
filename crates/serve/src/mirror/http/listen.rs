//! One thread that accepts HTTP connections and serves them to their end, as `worker` does for the
//! bulla protocol: the same limits count for both together.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::deadlines::{ConnectionDeadlines, Overdue, Watched};
use super::respond::respond;
use crate::mirror::server::Shared;
use crate::net::worker;

/// Most that a connection's requests may fill before they are read, bytes: headers are shorter.
const MAX_BUFFER_BYTES: usize = 16 << 10;
/// Pause after the system refused a connection for want of something.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);
/// What one connection too many is told.
const TURNED_AWAY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n\
    Content-Length: 0\r\nConnection: close\r\n\r\n";

/// Serves what comes to `listener` until told to stop, or until whoever could tell is gone.
pub(crate) fn run(
    listener: std::net::TcpListener,
    shared: &Arc<Shared>,
    stopped: watch::Receiver<bool>,
) {
    worker::on_this_thread(serve(listener, shared, stopped));
}

async fn serve(
    listener: std::net::TcpListener,
    shared: &Arc<Shared>,
    stopped: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    let orderly = {
        let mut told = stopped.clone();
        let mut stop = pin!(async move { told.wait_for(|stop| *stop).await.is_ok() });
        loop {
            tokio::select! {
                orderly = stop.as_mut() => break orderly,
                accepted = accept(&listener, shared) => if let Some((stream, peer)) = accepted {
                    admit(shared, &mut connections, stream, peer, &stopped);
                },
                Some(_) = connections.join_next() => {}
            }
        }
    };
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if orderly && timeout(shared.limits.grace, all).await.is_err() {
        let connections = connections.len();
        tracing::warn!(connections, "cut off: the grace is over");
    }
    Ok(())
}

/// The next connection. A shortage is waited out: it passes when connections close.
async fn accept(listener: &TcpListener, shared: &Shared) -> Option<(TcpStream, SocketAddr)> {
    match listener.accept().await {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            shared.counters.accept_errors.add(1);
            let shortage = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
            let code = error.raw_os_error();
            if shortage.iter().any(|s| Some(s.raw_os_error()) == code) {
                shared.counters.shortages.add(1);
                tracing::warn!(%error, "cannot accept HTTP connections now");
                sleep(SHORTAGE_PAUSE).await;
            }
            None
        }
    }
}

fn admit(
    shared: &Arc<Shared>,
    connections: &mut JoinSet<()>,
    stream: TcpStream,
    peer: SocketAddr,
    stopped: &watch::Receiver<bool>,
) {
    let seat = match shared.seats.take(peer.ip()) {
        Ok(seat) => seat,
        Err(full) => {
            let turned_away = &shared.counters.turned_away;
            // Said once a thousand times: whoever floods connections must not flood the log too.
            if turned_away.get().is_multiple_of(1000) {
                tracing::warn!(?full, %peer, "too many connections, turned away");
            }
            turned_away.add(1);
            // Best effort: the connection ends either way.
            let _ = stream.try_write(TURNED_AWAY);
            return;
        }
    };
    let (shared, stopped) = (Arc::clone(shared), stopped.clone());
    connections.spawn(async move {
        connection(&shared, stream, peer, stopped).await;
        drop(seat);
    });
}

async fn connection(
    shared: &Arc<Shared>,
    stream: TcpStream,
    peer: SocketAddr,
    mut stopped: watch::Receiver<bool>,
) {
    let counters = &shared.counters;
    let pulse = Arc::new(ConnectionDeadlines::begin(
        &shared.limits,
        Arc::clone(counters),
    ));
    let answer = service_fn(|request| {
        let (shared, pulse) = (Arc::clone(shared), Arc::clone(&pulse));
        async move { Ok::<_, Infallible>(respond(&shared, &pulse, request).await) }
    });
    let io = TokioIo::new(Watched {
        stream,
        pulse: Arc::clone(&pulse),
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        // The pulse tells an idle connection from half a question; this clock does not.
        .header_read_timeout(None)
        .max_buf_size(MAX_BUFFER_BYTES)
        .serve_connection(io, answer);
    let mut serving = pin!(serving);
    let mut stopping = false;
    loop {
        tokio::select! {
            ended = serving.as_mut() => {
                if let Err(error) = ended {
                    if error.is_parse() {
                        counters.malformed.add(1);
                    }
                    tracing::debug!(%peer, %error, "connection closed");
                }
                return;
            }
            why = pulse.overdue() => {
                match why {
                    Overdue::Idle => counters.idle.add(1),
                    Overdue::TooSlow => counters.too_slow.add(1),
                }
                tracing::debug!(%peer, ?why, "connection closed");
                return;
            }
            _ = stopped.wait_for(|stop| *stop), if !stopping => {
                stopping = true;
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}
