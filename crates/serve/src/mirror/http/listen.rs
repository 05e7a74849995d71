//! One HTTP connection: served by hyper, ended by its deadlines. [`crate::net`] accepts it and counts
//! it within the same limits as those of the bulla protocol.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::deadlines::{ConnectionDeadlines, Overdue, Watched};
use super::respond::respond;
use crate::mirror::volumes::Mirror;
use crate::net::accept::Handler;
use crate::net::limiter::{Full, Permit};
use crate::net::{Account, Peer};

/// Most bytes of requests that wait to be parsed: headers are shorter.
const MAX_BUFFER_BYTES: usize = 16 << 10;
/// The response to a client that is not admitted.
const TURNED_AWAY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n\
    Content-Length: 0\r\nConnection: close\r\n\r\n";

/// Serves a mirror's repositories over HTTP.
#[derive(Clone)]
pub(crate) struct Http {
    mirror: Arc<Mirror>,
}

impl Http {
    pub(crate) fn new(mirror: Arc<Mirror>) -> Http {
        Http { mirror }
    }
}

impl Handler<TcpStream> for Http {
    async fn serve(
        self,
        stream: TcpStream,
        peer: Peer,
        permit: Permit,
        stop: watch::Receiver<bool>,
    ) {
        let account = Account::new(Arc::clone(&self.mirror.resources), &permit);
        connection(&self.mirror, &account, stream, peer, stop).await;
        drop(permit);
    }

    fn refusal(&self, _full: Full) -> Vec<u8> {
        TURNED_AWAY.to_vec()
    }
}

async fn connection(
    mirror: &Arc<Mirror>,
    account: &Arc<Account>,
    stream: TcpStream,
    peer: Peer,
    mut stopped: watch::Receiver<bool>,
) {
    let counters = mirror.resources.counters();
    let deadlines = Arc::new(ConnectionDeadlines::begin(account));
    let answer = service_fn(|request| {
        let (mirror, deadlines) = (Arc::clone(mirror), Arc::clone(&deadlines));
        let account = Arc::clone(account);
        async move { Ok::<_, Infallible>(respond(&mirror, &account, &deadlines, request).await) }
    });
    let io = TokioIo::new(Watched {
        stream,
        deadlines: Arc::clone(&deadlines),
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        // Our own deadlines distinguish an idle connection from half a request; this one does not.
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
            why = deadlines.overdue() => {
                match why {
                    Overdue::Idle => counters.idle.add(1),
                    Overdue::TooSlow => counters.too_slow.add(1),
                }
                tracing::debug!(%peer, ?why, "connection closed");
                return;
            }
            () = account.must_end() => {
                counters.too_slow.add(1);
                tracing::debug!(%peer, "connection closed: others wait for room");
                return;
            }
            _ = stopped.wait_for(|stop| *stop), if !stopping => {
                stopping = true;
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}
