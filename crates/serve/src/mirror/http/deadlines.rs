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

use crate::net::pace::Pace;
use crate::net::{Account, Resources};

/// Most bytes of a response that are in memory at a time. After the body has ended, at most this many are
/// left for the client to take.
pub(super) const PIECE_BYTES: usize = 64 << 10;
/// Longest time to find an answer or its next piece: a crowded server and a slow disk.
const FIND: Duration = Duration::from_secs(60);

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
    account: Arc<Account>,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    phase: Phase,
    until: Instant,
    pace: Pace,
}

impl ConnectionDeadlines {
    /// Begins with a new connection.
    pub(super) fn begin(account: &Arc<Account>) -> ConnectionDeadlines {
        let limits = account.resources().limits();
        ConnectionDeadlines {
            state: Mutex::new(State {
                phase: Phase::Idle,
                until: Instant::now() + limits.hello_timeout,
                pace: Pace::default(),
            }),
            account: Arc::clone(account),
            changed: Notify::new(),
        }
    }

    fn resources(&self) -> &Resources {
        self.account.resources()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, phase: Phase, within: Duration) {
        let mut state = self.state();
        (state.phase, state.until) = (phase, Instant::now() + within);
        drop(state);
        self.changed.notify_one();
    }

    /// A request has come.
    pub(super) fn answer(self: &Arc<Self>) -> Answering {
        self.enter(Phase::Answering, FIND);
        Answering(Arc::clone(self))
    }

    /// Waits for a deadline to pass.
    pub(super) async fn overdue(&self) -> Overdue {
        loop {
            let changed = self.changed.notified();
            let until = self.state().until;
            tokio::select! {
                () = changed => {}
                () = sleep_until(until) => {
                    if let Some(overdue) = self.look() {
                        return overdue;
                    }
                }
            }
        }
    }

    /// Which deadline has passed, if one has.
    fn look(&self) -> Option<Overdue> {
        let state = &mut *self.state();
        if state.until > Instant::now() {
            return None;
        }
        match state.phase {
            Phase::Idle => Some(Overdue::Idle),
            Phase::Answering
                if state.pace.is_waiting() && state.pace.keeps_up(self.resources().limits()) =>
            {
                state.until = state.pace.wait(self.resources().limits());
                None
            }
            Phase::Asking | Phase::Answering | Phase::Taking => Some(Overdue::TooSlow),
        }
    }

    fn heard(&self, bytes: usize) {
        self.resources().counters().received_bytes.add(bytes as u64);
        if self.state().phase == Phase::Idle {
            self.enter(Phase::Asking, self.resources().limits().request_timeout);
        }
    }

    fn sent(&self, bytes: usize) {
        self.resources().counters().sent_bytes.add(bytes as u64);
        let state = &mut *self.state();
        let waited = state.pace.is_waiting();
        state.pace.took(bytes, self.resources().limits());
        self.account.owes(None);
        if state.phase == Phase::Answering {
            // A client that is too slow is cut off at once, any other has what it asked for to come.
            let now = Instant::now();
            let keeps_up = !waited || state.pace.keeps_up(self.resources().limits());
            state.until = if keeps_up { now + FIND } else { now };
            self.changed.notify_one();
        }
    }

    fn wrote(&self, polled: &Poll<io::Result<usize>>) {
        match polled {
            Poll::Ready(Ok(bytes)) => self.sent(*bytes),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.blocked(),
        }
    }

    /// The client takes nothing for now.
    fn blocked(&self) {
        let state = &mut *self.state();
        if state.phase == Phase::Answering && !state.pace.is_waiting() {
            state.until = state.pace.wait(self.resources().limits());
            self.account.owes(state.pace.owes_since());
            self.changed.notify_one();
        }
    }

    fn flushed(&self) {
        if self.state().phase == Phase::Taking {
            self.enter(Phase::Idle, self.resources().limits().idle_timeout);
        }
    }
}

/// A response that is being made or sent. When it is dropped, only its last bytes are left to send.
pub(super) struct Answering(Arc<ConnectionDeadlines>);

impl Answering {
    /// The answer is found.
    pub(super) fn begin(&self) {
        self.0.enter(Phase::Answering, FIND);
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let limits = self.0.resources().limits();
        let rest = limits.write_timeout + limits.time_for(PIECE_BYTES);
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
        self.deadlines.wrote(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.deadlines.wrote(&polled);
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
