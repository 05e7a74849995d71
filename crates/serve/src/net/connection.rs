//! One client, without its stream: requests are cut from a buffer and passed to the service, answers are
//! gathered in an outbox, and a clock keeps the client's deadline.
//!
//! [`super::run`] moves bytes between this and a stream, [`super::newcomer`] between this and a
//! socket that was just accepted.

use std::pin::Pin;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use tokio::time::{Instant, Sleep};
use trust::Reject;
use wire::frame::{self, HEADER_BYTES, HELLO_BYTES, Header, MAX_REQUEST_BYTES};
use wire::refusal::ErrorCode;
use wire::session::Exporter;

use crate::net::account::Account;
use crate::net::end::End;
use crate::net::limiter::Permit;
use crate::net::mailbox::{Letter, Progress};
use crate::net::outbox::Outbox;
use crate::net::pace::Pace;
use crate::net::peer::Peer;
use crate::net::service::{Hints, Host, Mail, Opening, Request, Responder, Service};

/// Buffer of a connection that waits for its next request, bytes.
pub(super) const READ_BUFFER_BYTES: usize = 4096;

/// An unknown request.
struct Skipped {
    id: u32,
    left_bytes: usize,
}

pub(crate) struct Connection<S: Service> {
    pub(super) host: Arc<Host<S>>,
    peer: Peer,
    pub(super) account: Arc<Account>,
    _permit: Permit,
    /// For the session that is made.
    exporter: Option<Exporter>,
    /// Made when the client's hello has come.
    session: Option<S::Session>,
    pub(super) buffer: BytesMut,
    pub(super) outbox: Outbox,
    pub(super) pace: Pace,
    pub(super) mail: Mail,
    pub(super) hints: Hints,
    /// How the client broke the protocol, until [`super::run`] reports it.
    pub(super) rejected: Option<Reject>,
    /// An unknown request whose body is still coming.
    skipped: Option<Skipped>,
    /// Bytes of the outbox and the buffer that are on the server's account.
    held_bytes: usize,
    /// When the first bytes of the request in `buffer` came, and how many it has.
    begun: Option<(Instant, usize)>,
    /// When the connection was made, or the client last took all its answers.
    pub(super) last_active: Instant,
    /// When the last request came. Only kept up to date if the service pushes.
    last_heard: Instant,
}

impl<S: Service> Connection<S> {
    /// A connection that was accepted at `since`.
    pub(crate) fn new(
        host: Arc<Host<S>>,
        peer: Peer,
        permit: Permit,
        since: Instant,
    ) -> Connection<S> {
        let mut outbox = Outbox::default();
        // The client does not wait for the hello, so it is sent with the first answer.
        outbox.raw(&frame::hello(S::PROTOCOL));
        Connection {
            account: Account::new(Arc::clone(&host.resources), &permit),
            host,
            peer,
            _permit: permit,
            exporter: None,
            session: None,
            buffer: BytesMut::new(),
            outbox,
            pace: Pace::default(),
            mail: Mail::default(),
            hints: Hints::default(),
            rejected: None,
            skipped: None,
            held_bytes: 0,
            begun: None,
            last_active: since,
            last_heard: since,
        }
    }

    /// The same, inside the TLS session with this exporter.
    pub(crate) fn inside(mut self, exporter: Exporter) -> Connection<S> {
        self.exporter = Some(exporter);
        self
    }

    /// Whether the client's hello has come.
    pub(super) fn is_greeted(&self) -> bool {
        self.session.is_some()
    }

    /// Until when the client rests, if it does now.
    pub(super) fn rests_until(&self) -> Option<Instant> {
        let until = self.hints.rests_until;
        until.filter(|until| *until > Instant::now())
    }

    /// Whether the client may have another request in flight.
    pub(super) fn may_start(&self) -> bool {
        self.rests_until().is_none()
            && self.mail.in_flight < self.host.resources.limits().max_in_flight.max(1)
    }

    /// Whether the connection may read: not when it has a long body in memory and the server is
    /// crowded with this client's answers or with others'.
    pub(super) fn may_read(&self) -> bool {
        self.buffer.len() < MAX_REQUEST_BYTES || self.account.has_room()
    }

    /// The header of the first request in the buffer; `None` until the whole request is there.
    pub(super) fn next_request(&mut self) -> Result<Option<Header>, Reject> {
        if let Some(why) = self.rejected.take() {
            return Err(why);
        }
        if self.session.is_none() && !self.greet()? {
            return Ok(None);
        }
        let mut header = self.peek()?;
        while self.skipped.is_some() {
            if !self.skip() {
                return Ok(None);
            }
            header = self.peek()?;
        }
        let bytes = header.map_or(0, |h| HEADER_BYTES.saturating_add(h.body_bytes));
        if header.is_some() && self.buffer.len() >= bytes {
            self.begun = None;
            return Ok(header);
        }
        self.wait_for_rest(bytes);
        Ok(None)
    }

    /// The header at the front of the buffer, if it is there. That of an unknown request is taken off.
    fn peek(&mut self) -> Result<Option<Header>, Reject> {
        let (None, Some(session)) = (&self.skipped, &self.session) else {
            return Ok(None);
        };
        let Some(header) = Header::peek(&self.buffer, usize::MAX)? else {
            return Ok(None);
        };
        if header.id == 0 {
            return Err(malformed("id 0"));
        }
        let known = self.host.service.max_body_bytes(session, header.kind);
        match known.or(frame::unknown_request_bytes(header.kind)) {
            None => return Err(malformed("unknown type")),
            Some(most) if header.body_bytes > most => return Err(malformed("too long")),
            Some(_) => {}
        }
        if known.is_some() {
            return Ok(Some(header));
        }
        self.buffer.advance(HEADER_BYTES);
        let since = self.begun.map_or_else(Instant::now, |(since, _)| since);
        self.begun = Some((since, header.body_bytes));
        self.skipped = Some(Skipped {
            id: header.id,
            left_bytes: header.body_bytes,
        });
        Ok(None)
    }

    /// Drops what has come of an unknown request, and refuses it when all has; false until then.
    fn skip(&mut self) -> bool {
        let Some(skipped) = &mut self.skipped else {
            return true;
        };
        let here = skipped.left_bytes.min(self.buffer.len());
        self.buffer.advance(here);
        skipped.left_bytes -= here;
        if skipped.left_bytes > 0 {
            return false;
        }
        let id = skipped.id;
        self.skipped = None;
        self.begun = None;
        self.outbox
            .error(id, ErrorCode::UNSUPPORTED, "unknown type of request");
        true
    }

    /// Takes the client's hello; false until it is whole.
    fn greet(&mut self) -> Result<bool, Reject> {
        let Some(hello) = self.buffer.first_chunk::<HELLO_BYTES>() else {
            return Ok(false);
        };
        let flags = frame::check_hello(hello, S::PROTOCOL)?;
        self.buffer.advance(HELLO_BYTES);
        self.last_active = Instant::now();
        self.last_heard = self.last_active;
        self.session = Some(self.host.service.open(Opening {
            peer: self.peer,
            flags,
            exporter: self.exporter.take(),
            hints: &mut self.hints,
            mail: &mut self.mail,
            account: &self.account,
        }));
        Ok(true)
    }

    /// Notes that a request of `bytes` (0: not known yet) has begun to come. Memory for a long one
    /// is taken as its bytes come, not by its header.
    fn wait_for_rest(&mut self, bytes: usize) {
        if self.buffer.is_empty() {
            self.begun = None;
            return;
        }
        let since = self.begun.map_or_else(Instant::now, |(since, _)| since);
        self.begun = Some((since, bytes));
        let missing = bytes.saturating_sub(self.buffer.len());
        if missing > 0 {
            self.buffer.reserve(missing.min(MAX_REQUEST_BYTES));
        }
        if bytes > MAX_REQUEST_BYTES {
            self.settle();
        }
    }

    /// Hands the first request in the buffer to the service.
    pub(super) fn answer(&mut self, header: Header) -> Result<(), Reject> {
        self.hints.likely_last = false;
        let end = HEADER_BYTES.saturating_add(header.body_bytes);
        let (Some(body), Some(session)) =
            (self.buffer.get(HEADER_BYTES..end), self.session.as_mut())
        else {
            return Ok(());
        };
        let in_flight = self.mail.in_flight;
        let request = Request {
            kind: header.kind,
            id: header.id,
            body,
        };
        let responder = Responder {
            id: header.id,
            outbox: &mut self.outbox,
            hints: &mut self.hints,
            mail: &mut self.mail,
            account: &self.account,
        };
        let handled = self.host.service.request(session, request, responder);
        self.buffer.advance(end);
        if self.mail.can_push {
            self.last_heard = Instant::now();
        }
        if self.mail.in_flight > in_flight {
            self.last_active = Instant::now();
        }
        handled
    }

    /// Refuses the first request in the buffer because the server holds too many bytes.
    pub(super) fn refuse_busy(&mut self, header: Header) {
        self.buffer
            .advance(HEADER_BYTES.saturating_add(header.body_bytes));
        self.busy(header.id);
    }

    fn busy(&mut self, id: u32) {
        self.host.resources.counters().busy.add(1);
        self.outbox.error(id, ErrorCode::BUSY, "too much in flight");
    }

    /// Moves letters to the outbox until enough is gathered.
    pub(super) fn take_mail(&mut self) -> Result<(), End> {
        let most = self.host.resources.limits().gather_bytes;
        while let Some(mailbox) = self.mail.expected() {
            if mailbox.is_overrun() {
                return Err(End::TooSlow("does not read its pushes"));
            }
            if self.outbox.left_bytes() >= most {
                break;
            }
            let Some(letter) = mailbox.take() else { break };
            self.deliver(letter);
        }
        Ok(())
    }

    fn deliver(&mut self, letter: Letter) {
        match letter {
            Letter::Push {
                id,
                messages,
                held,
                taken,
            } => {
                for (kind, body) in messages {
                    self.outbox.message(kind, id, body);
                }
                if let Some(taken) = taken {
                    // The sender may have gone.
                    let _ = taken.send(());
                }
                self.settle();
                drop(held);
            }
            Letter::Answer {
                id,
                messages,
                progress,
                held,
            } => {
                for (kind, body) in messages {
                    self.outbox.message(kind, id, body);
                }
                if !matches!(progress, Progress::More(_)) {
                    self.mail.in_flight = self.mail.in_flight.saturating_sub(1);
                }
                match progress {
                    // The sender may have gone.
                    Progress::More(taken) => drop(taken.send(())),
                    Progress::Complete => {}
                    Progress::Refused(code, text) => self.outbox.error(id, code, &text),
                    Progress::Busy => self.busy(id),
                }
                self.settle();
                drop(held);
            }
        }
    }

    /// Gives an empty buffer back unless it is small: an idle connection keeps no memory.
    pub(super) fn shrink(&mut self) {
        if self.buffer.is_empty() && self.buffer.capacity() > READ_BUFFER_BYTES {
            self.buffer = BytesMut::new();
            self.settle();
        }
    }

    /// Brings the server's account up to date with what this connection holds.
    pub(super) fn settle(&mut self) {
        let long = self.buffer.capacity() > 2 * MAX_REQUEST_BYTES;
        let buffer = if long { self.buffer.capacity() } else { 0 };
        self.settle_for(self.outbox.left_bytes() + buffer);
    }

    pub(super) fn settle_for(&mut self, bytes: usize) {
        if bytes > self.held_bytes {
            self.account.add((bytes - self.held_bytes) as u64);
        } else if bytes < self.held_bytes {
            self.account.subtract((self.held_bytes - bytes) as u64);
        }
        self.held_bytes = bytes;
    }

    /// The deadline of the client, or of the service; and how the connection ends when it passes.
    pub(super) fn deadline(&self) -> (Instant, End) {
        let limits = self.host.resources.limits();
        if !self.is_greeted() {
            let until = self.last_active + limits.hello_timeout;
            return (until, End::TooSlow("sends no hello"));
        }
        if let Some((begun, bytes)) = self.begun {
            // What was not read for a time has that time in addition.
            let begun = self.hints.rests_until.map_or(begun, |end| begun.max(end));
            let until = begun + limits.request_timeout + limits.time_for(bytes);
            return (until, End::TooSlow("does not finish its request"));
        }
        if self.mail.in_flight > 0 {
            let until = self.last_active.max(self.last_heard) + limits.answer_timeout;
            return (until, End::Unanswered);
        }
        if self.hints.entering {
            let until = self.last_heard + limits.hello_timeout;
            return (until, End::TooSlow("does not say who it is"));
        }
        let until = if self.hints.watching {
            self.last_heard + limits.watch_timeout
        } else if self.mail.can_push {
            // Pushes do not show that the client is alive: they go to the kernel's buffer.
            self.last_heard + limits.idle_timeout
        } else {
            self.last_active + limits.idle_timeout
        };
        (until, End::Idle)
    }

    /// Checks the deadline and sets the clock to it. The clock is mostly early enough already: it is
    /// moved when it has fired, not at each request.
    pub(super) fn arm(&mut self, clock: Pin<&mut Sleep>) -> Result<(), End> {
        let (deadline, end) = self.deadline();
        let rung = clock.is_elapsed();
        if rung && Instant::now() >= deadline {
            return Err(end);
        }
        if rung || clock.deadline() > deadline {
            clock.reset(deadline);
        }
        Ok(())
    }
}

impl<S: Service> Drop for Connection<S> {
    fn drop(&mut self) {
        self.settle_for(0);
    }
}

fn malformed(why: &'static str) -> Reject {
    Reject::Malformed {
        what: "request",
        why,
    }
}
