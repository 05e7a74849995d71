//! The interface between a service and its connections (decision 0027).
//!
//! A [`Service`] sees whole requests of bounded length and answers each through a [`Responder`]: at
//! once, or later through a [`Completion`]. It may push messages through a [`Pusher`]. Streams,
//! framing, limits and deadlines are not its concern.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use trust::Reject;
use wire::refusal::ErrorCode;
use wire::session::Exporter;

use crate::net::account::Account;
use crate::net::mailbox::{Completion, Mailbox, Pusher};
use crate::net::outbox::Outbox;
use crate::net::peer::Peer;
use crate::net::resources::Resources;

/// A protocol of requests, answers and pushes. All methods are called from many threads and must not block:
/// work that waits for a disk or a lock belongs to another thread and a [`Completion`].
pub trait Service: Send + Sync + 'static {
    /// Number of the protocol in the hello. A client that speaks another one is refused.
    const PROTOCOL: u8;

    /// State of one connection: made when the client's hello has come, dropped when the connection
    /// ends, however it ends.
    type Session: Send + 'static;

    /// Makes the state of a connection.
    fn open(&self, opening: Opening<'_>) -> Self::Session;

    /// Largest body of a request of this type, bytes. Called when the header has come and before
    /// any memory is taken for the body; a client that sends a longer one is malformed.
    ///
    /// `None` for a type that the service does not know: its body is skipped as it comes, within
    /// [`wire::frame::unknown_request_bytes`], and the client is told [`ErrorCode::UNSUPPORTED`]. The
    /// connection stays.
    fn max_body_bytes(&self, session: &Self::Session, kind: u8) -> Option<usize>;

    /// Handles a request. Some requests have no answer (a keep-alive, for example).
    ///
    /// # Errors
    /// [`Reject`] when the request breaks the protocol: the client is told so and the connection
    /// ends.
    fn request(
        &self,
        session: &mut Self::Session,
        request: Request<'_>,
        responder: Responder<'_>,
    ) -> Result<(), Reject>;
}

/// A service with the resources of its server.
pub(crate) struct Host<S> {
    pub(crate) service: S,
    pub(crate) resources: Arc<Resources>,
}

/// A whole request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Type of the message.
    pub kind: u8,
    /// The client's number for the request; never 0.
    pub id: u32,
    /// The body, at most as long as the service allowed.
    pub body: &'a [u8],
}

/// A new connection, for the service that opens a session.
pub struct Opening<'a> {
    pub(crate) peer: Peer,
    pub(crate) flags: u16,
    pub(crate) exporter: Option<Exporter>,
    pub(crate) hints: &'a mut Hints,
    pub(crate) mail: &'a mut Mail,
    pub(crate) account: &'a Arc<Account>,
}

impl Opening<'_> {
    /// The client.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// The flags in the client's hello.
    pub fn flags(&self) -> u16 {
        self.flags
    }

    /// What only the two ends of the connection's TLS session know. `None` without TLS.
    pub fn exporter(&self) -> Option<Exporter> {
        self.exporter
    }

    /// Says that the client must say who it is: until [`Responder::entered`] it has the time that it had for its hello.
    pub fn must_enter(&mut self) {
        self.hints.entering = true;
    }

    /// A way to push messages to this connection.
    pub fn pusher(&mut self) -> Pusher {
        self.mail.pusher(self.account)
    }
}

/// Answers one request.
pub struct Responder<'a> {
    pub(crate) id: u32,
    pub(crate) outbox: &'a mut Outbox,
    pub(crate) hints: &'a mut Hints,
    pub(crate) mail: &'a mut Mail,
    pub(crate) account: &'a Arc<Account>,
}

impl Responder<'_> {
    /// Sends one message of the answer; one message may be all of it.
    #[inline]
    pub fn message(&mut self, kind: u8, body: Bytes) {
        self.outbox.message(kind, self.id, body);
    }

    /// Refuses the request; the connection stays.
    pub fn refuse(self, code: ErrorCode, text: &str) {
        self.outbox.error(self.id, code, text);
    }

    /// Leaves the answer for later. The request is in flight until the completion ends; a
    /// connection with [`Limits::max_in_flight`](crate::net::Limits::max_in_flight) of them reads
    /// no further request.
    pub fn later(self) -> Completion {
        let mailbox = Arc::clone(self.mail.mailbox(self.account));
        self.mail.in_flight += 1;
        Completion::new(mailbox, self.id)
    }

    /// A way to push messages to this connection.
    pub fn pusher(&mut self) -> Pusher {
        self.mail.pusher(self.account)
    }

    /// The connection's account of bytes in memory.
    pub fn account(&self) -> &Arc<Account> {
        self.account
    }

    /// Says that the client has said who it is ([`Opening::must_enter`]).
    pub fn entered(&mut self) {
        self.hints.entering = false;
    }

    /// Says whether the client now watches, which means that it waits for pushes:
    /// [`Limits::watch_timeout`](crate::net::Limits::watch_timeout) replaces the idle deadline.
    pub fn watch(&mut self, watching: bool) {
        self.hints.watching = watching;
    }

    /// Nothing more is read of this client for so long: it has done much. Its requests wait where they are, and cost the
    /// server nothing. Answers and pushes go on.
    pub fn rest(&mut self, time: Duration) {
        let until = Instant::now() + time;
        let before = self.hints.rests_until.unwrap_or(until);
        self.hints.rests_until = Some(before.max(until));
    }

    /// Hint: the client has everything it asked for and will probably leave.
    pub fn likely_last(&mut self) {
        self.hints.likely_last = true;
    }

    /// Hint: this request was expensive, so that other connections get a turn before the next one.
    pub fn costly(&mut self) {
        self.hints.costly = true;
    }
}

/// Hints of a service about a connection.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    pub(crate) likely_last: bool,
    pub(crate) costly: bool,
    pub(crate) watching: bool,
    pub(crate) entering: bool,
    /// Nothing is read before.
    pub(crate) rests_until: Option<Instant>,
}

/// A connection's end of its mailbox, which is made when first needed.
#[derive(Default)]
pub(crate) struct Mail {
    mailbox: Option<Arc<Mailbox>>,
    /// Requests that the service has yet to complete.
    pub(crate) in_flight: usize,
    /// The service can push.
    pub(crate) can_push: bool,
}

impl Mail {
    fn mailbox(&mut self, account: &Arc<Account>) -> &Arc<Mailbox> {
        self.mailbox
            .get_or_insert_with(|| Arc::new(Mailbox::new(Arc::clone(account))))
    }

    fn pusher(&mut self, account: &Arc<Account>) -> Pusher {
        self.can_push = true;
        Pusher(Arc::clone(self.mailbox(account)))
    }

    /// The mailbox, if a letter may come.
    pub(crate) fn expected(&self) -> Option<&Mailbox> {
        let expects = self.in_flight > 0 || self.can_push;
        self.mailbox.as_deref().filter(|_| expects)
    }

    /// Waits for a letter, or for ever.
    pub(crate) async fn ready(&self) {
        match self.expected() {
            Some(mailbox) => std::future::poll_fn(|cx| mailbox.poll_ready(cx)).await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Mail {
    fn drop(&mut self) {
        if let Some(mailbox) = &self.mailbox {
            mailbox.close();
        }
    }
}
