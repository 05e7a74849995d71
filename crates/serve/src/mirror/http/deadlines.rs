//! Deadlines of an HTTP connection: for a request, for half a request, for taking a response.
//!
//! A connection is in one phase at a time: idle, asking, being answered, taking the last bytes, and
//! idle again. The phase follows the bytes that pass the socket ([`Watched`]) and the life of the
//! response ([`Answering`]).

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::net::Counters;
use crate::net::Limits;

/// Most bytes of a response that are in memory at a time. After the body has ended, at most this many are
/// left for the client to take.
pub(super) const PIECE_BYTES: usize = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Asking,
    Answering,
    Taking,
}

/// Which deadline passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overdue {
    /// The client sent no request for long.
    Idle,
    /// The client was too slow in sending a request or in taking a response.
    TooSlow,
}

/// The phase of one connection and its deadline.
pub(super) struct ConnectionDeadlines {
    limits: Limits,
    counters: Arc<Counters>,
    state: Mutex<(Phase, Instant)>,
    changed: Notify,
}

impl ConnectionDeadlines {
    /// Begins with a new connection.
    pub(super) fn begin(limits: &Limits, counters: Arc<Counters>) -> ConnectionDeadlines {
        ConnectionDeadlines {
            state: Mutex::new((Phase::Idle, Instant::now() + limits.hello_timeout)),
            limits: limits.clone(),
            counters,
            changed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, (Phase, Instant)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, phase: Phase, within: Duration) {
        *self.state() = (phase, Instant::now() + within);
        self.changed.notify_one();
    }

    /// How long a client may take to receive this many bytes.
    fn time_for(&self, bytes: u64) -> Duration {
        let seconds = bytes / self.limits.min_bytes_per_second.max(1);
        self.limits.write_timeout + Duration::from_secs(seconds)
    }

    /// A request has come; finding its answer may take until `find` has passed.
    pub(super) fn answer(self: &Arc<Self>, find: Duration) -> Answering {
        self.enter(Phase::Answering, find);
        Answering(Arc::clone(self))
    }

    /// Waits for a deadline to pass.
    pub(super) async fn overdue(&self) -> Overdue {
        loop {
            let changed = self.changed.notified();
            let (phase, until) = *self.state();
            tokio::select! {
                () = changed => {}
                () = sleep_until(until) => {
                    if self.state().1 <= Instant::now() {
                        return match phase {
                            Phase::Idle => Overdue::Idle,
                            Phase::Asking | Phase::Answering | Phase::Taking => Overdue::TooSlow,
                        };
                    }
                }
            }
        }
    }

    fn heard(&self, bytes: usize) {
        self.counters.received_bytes.add(bytes as u64);
        if self.state().0 == Phase::Idle {
            self.enter(Phase::Asking, self.limits.request_timeout);
        }
    }

    fn sent(&self, bytes: usize) {
        self.counters.sent_bytes.add(bytes as u64);
    }

    fn flushed(&self) {
        if self.state().0 == Phase::Taking {
            self.enter(Phase::Idle, self.limits.idle_timeout);
        }
    }
}

/// A response that is being made or sent. When it is dropped, only its last bytes are left to send.
pub(super) struct Answering(Arc<ConnectionDeadlines>);

impl Answering {
    /// The answer is found and has `len_bytes` bytes.
    pub(super) fn begin(&self, len_bytes: u64) {
        self.0.enter(Phase::Answering, self.0.time_for(len_bytes));
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let rest = self.0.time_for(PIECE_BYTES as u64);
        self.0.enter(Phase::Taking, rest);
    }
}

/// A socket whose traffic moves the deadlines.
pub(super) struct Watched {
    pub(super) stream: TcpStream,
    pub(super) deadlines: Arc<ConnectionDeadlines>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        let came = buf.filled().len().saturating_sub(before);
        if came > 0 {
            self.deadlines.heard(came);
        }
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(bytes)) = polled {
            self.deadlines.sent(bytes);
        }
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        if let Poll::Ready(Ok(bytes)) = polled {
            self.deadlines.sent(bytes);
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called when all bytes have been written.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        if polled.is_ready() {
            self.deadlines.flushed();
        }
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
