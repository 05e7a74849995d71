//! What the callers of a link and its two tasks share: requests that wait for answers, bytes that wait to be sent, and
//! why the link ended.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::sync::{Notify, oneshot, watch};
use trust::Reject;

use super::collect::{Answer, Collect, Expect};
use super::error::LinkError;
use crate::frame::Header;
use crate::refusal::{ErrorCode, Refusal};
use crate::shared::request::Request;
use crate::shared::terms::TERMS_BYTES;
use crate::shared::{SESSION_ID, Terms, WINDOW, Window, kind};

/// Most bytes that wait to be sent when one more message of the session comes.
const MAX_UNSENT_BYTES: usize = 8 << 20;
/// Deliveries that were taken before the server is told so, at most: a quarter of those that may be outstanding.
const MAX_UNTOLD: u32 = WINDOW / 4;
/// Of a longer one the server is told at once, because fewer of them may be outstanding.
const MAX_UNTOLD_BYTES: usize = 16 << 10;
/// Most requests that were given up and never answered.
const MAX_ABANDONED: usize = 256;

pub(super) struct Shared {
    place: Arc<str>,
    /// Longest silence of a server that pushes, whatever its heartbeat is.
    max_silence: Duration,
    answer_timeout: Duration,
    out: Mutex<Out>,
    pub(super) wake_writer: Notify,
    slots: Mutex<Slots>,
    ended: Notify,
    /// The answer to OPEN.
    terms: watch::Sender<Option<Terms>>,
    epoch: Instant,
    heard_ms: AtomicU64,
    /// The server was asked to push.
    opened: AtomicBool,
    /// Deliveries that were received and not taken.
    waiting: Mutex<Window>,
}

#[derive(Default)]
struct Out {
    buffer: BytesMut,
    closed: bool,
    /// Deliveries that were taken and that the server was not told of.
    untold: u32,
}

struct Slots {
    open: HashMap<u32, Waiting>,
    next_id: u32,
    /// Requests so far.
    asked: u64,
    dead: Option<LinkError>,
}

/// A request without an answer.
struct Waiting {
    collect: Collect,
    /// `None`: the caller has gone.
    send: Option<oneshot::Sender<Result<Answer, LinkError>>>,
    until: Instant,
    /// Which request of the connection it is.
    nth: u64,
}

impl Slots {
    /// A part of the answer to a request has come: its time, and that of those that wait behind it, begins anew. On a slow
    /// connection all of them are sent one after the other. A request that the server passes over gets no time by those
    /// that are made after it.
    fn heard_of(&mut self, id: &u32, until: Instant) {
        let Some(nth) = self.open.get(id).map(|waiting| waiting.nth) else {
            return;
        };
        for waiting in self.open.values_mut().filter(|it| it.nth >= nth) {
            waiting.until = waiting.until.max(until);
        }
    }
}

/// Locks; ignores poison, because no critical section leaves broken state behind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request that is on its way. When it is dropped before the answer is whole, the caller's memory is freed.
pub(super) struct Asked {
    shared: Arc<Shared>,
    id: u32,
    answer: oneshot::Receiver<Result<Answer, LinkError>>,
}

impl Asked {
    /// Its answer.
    pub(super) async fn answered(mut self) -> Result<Answer, LinkError> {
        let answered = (&mut self.answer).await;
        answered.unwrap_or_else(|_| Err(self.shared.ended()))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(waiting) = lock(&self.shared.slots).open.get_mut(&self.id) {
            waiting.send = None;
            waiting.collect.abandon();
        }
    }
}

impl Shared {
    /// Timeouts: for the silence of a server that pushes, and for answers.
    pub(super) fn new(
        place: Arc<str>,
        (max_silence, answer_timeout): (Duration, Duration),
    ) -> Arc<Shared> {
        Arc::new(Shared {
            place,
            max_silence,
            answer_timeout,
            terms: watch::Sender::new(None),
            out: Mutex::default(),
            wake_writer: Notify::new(),
            slots: Mutex::new(Slots {
                open: HashMap::new(),
                next_id: SESSION_ID,
                asked: 0,
                dead: None,
            }),
            ended: Notify::new(),
            epoch: Instant::now(),
            heard_ms: AtomicU64::new(0),
            opened: AtomicBool::new(false),
            waiting: Mutex::default(),
        })
    }

    pub(super) fn place(&self) -> &Arc<str> {
        &self.place
    }

    /// Why the link ended, if it has.
    pub(super) fn dead(&self) -> Option<LinkError> {
        lock(&self.slots).dead.clone()
    }

    /// Why the link ended.
    pub(super) fn ended(&self) -> LinkError {
        let closed = || LinkError::unavailable(&self.place, "the connection is closed");
        self.dead().unwrap_or_else(closed)
    }

    /// Completes when the link has ended.
    pub(super) async fn wait_for_end(&self) {
        let ended = self.ended.notified();
        if self.dead().is_none() {
            ended.await;
        }
    }

    pub(super) fn close(&self, why: &str) {
        self.die(LinkError::unavailable(&self.place, why));
    }

    /// Ends the link for all callers, present and future.
    pub(super) fn die(&self, error: LinkError) {
        let open = {
            let mut slots = lock(&self.slots);
            if slots.dead.is_some() {
                return;
            }
            slots.dead = Some(error.clone());
            std::mem::take(&mut slots.open)
        };
        for send in open.into_values().filter_map(|waiting| waiting.send) {
            // The caller may just have gone.
            let _ = send.send(Err(error.clone()));
        }
        *lock(&self.out) = Out {
            closed: true,
            ..Out::default()
        };
        self.wake_writer.notify_one();
        self.ended.notify_waiters();
    }

    /// The server was asked to push.
    pub(super) fn opened(&self) {
        self.heard();
        self.opened.store(true, Ordering::Relaxed);
    }

    /// The answer to OPEN, when it comes.
    pub(super) async fn terms(&self) -> Result<Terms, LinkError> {
        let mut terms = self.terms.subscribe();
        let came = terms.wait_for(Option::is_some);
        tokio::select! {
            biased;
            Ok(came) = came => came.ok_or_else(|| self.ended()),
            () = self.wait_for_end() => Err(self.ended()),
        }
    }

    /// Three heartbeats, and not less than a second: a busy machine is late.
    fn silence(&self) -> Duration {
        let terms = *self.terms.borrow();
        let heartbeats = |it: Terms| Duration::from_millis(it.heartbeat_ms.into()) * 3;
        let longest = terms.map_or(self.max_silence, heartbeats);
        longest.max(Duration::from_secs(1)).min(self.max_silence)
    }

    /// The server has answered OPEN.
    fn take_terms(&self, body: &[u8]) -> Result<(), Reject> {
        let terms = Terms::decode(body)?;
        self.terms.send_replace(Some(terms));
        Ok(())
    }

    /// A delivery of this length was received; false when the server has sent more than the window.
    pub(super) fn received(&self, bytes: usize) -> bool {
        let opened = self.opened.load(Ordering::Relaxed);
        let mut waiting = lock(&self.waiting);
        let fits = opened && waiting.has_room();
        waiting.sent(bytes);
        fits
    }

    /// A delivery was taken, so the server may send one more. It is told with the next message, or after some more of
    /// them: each message costs both ends as much as what it is about. `more`: the server has more to send now.
    pub(super) fn taken(&self, more: bool) {
        self.heard();
        let bytes = lock(&self.waiting).taken();
        let long = bytes.is_none_or(|bytes| bytes > MAX_UNTOLD_BYTES);
        let untold = {
            let mut out = lock(&self.out);
            out.untold = out.untold.saturating_add(1);
            out.untold
        };
        if more || long || untold >= MAX_UNTOLD {
            self.tell();
        }
    }

    /// Tells the server of the deliveries that were taken.
    pub(super) fn tell(&self) {
        if lock(&self.out).untold > 0 {
            // A dead link is reported by the next delivery that does not come.
            let _ = self.say(|_| {});
        }
    }

    /// Bytes have come.
    pub(super) fn heard(&self) {
        let now_ms = self.epoch.elapsed().as_millis() as u64;
        self.heard_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Sends a message of the session.
    pub(super) fn say(&self, put: impl FnOnce(&mut BytesMut)) -> Result<(), LinkError> {
        {
            let mut out = lock(&self.out);
            if out.closed {
                drop(out);
                return Err(self.ended());
            }
            if out.buffer.len() <= MAX_UNSENT_BYTES {
                for _ in 0..std::mem::take(&mut out.untold) {
                    Request::Next.put(SESSION_ID, &mut out.buffer);
                }
                put(&mut out.buffer);
                drop(out);
                self.wake_writer.notify_one();
                return Ok(());
            }
        }
        let error = LinkError::unavailable(&self.place, "it does not read what it is sent");
        self.die(error.clone());
        Err(error)
    }

    /// What waits to be sent.
    pub(super) fn unsent(&self) -> BytesMut {
        std::mem::take(&mut lock(&self.out).buffer)
    }

    /// Puts a request behind all that was sent before.
    pub(super) fn ask(
        self: &Arc<Self>,
        expect: Expect,
        wait: Duration,
        put: impl FnOnce(u32, &mut BytesMut),
    ) -> Result<Asked, LinkError> {
        let (send, answer) = oneshot::channel();
        let until = Instant::now() + self.answer_timeout + wait;
        let id = self.enlist(Waiting {
            collect: Collect::new(expect),
            send: Some(send),
            until,
            nth: 0,
        })?;
        let shared = Arc::clone(self);
        let asked = Asked { shared, id, answer };
        {
            let mut out = lock(&self.out);
            if !out.closed {
                put(id, &mut out.buffer);
            }
        }
        self.wake_writer.notify_one();
        Ok(asked)
    }

    fn enlist(&self, mut waiting: Waiting) -> Result<u32, LinkError> {
        let mut slots = lock(&self.slots);
        if let Some(error) = &slots.dead {
            return Err(error.clone());
        }
        if slots.open.len() >= MAX_ABANDONED {
            drop(slots);
            let error = LinkError::unavailable(&self.place, "it left too many requests unanswered");
            self.die(error.clone());
            return Err(error);
        }
        let mut id = slots.next_id;
        while id <= SESSION_ID || slots.open.contains_key(&id) {
            id = id.wrapping_add(1);
        }
        slots.next_id = id.wrapping_add(1);
        slots.asked = slots.asked.saturating_add(1);
        waiting.nth = slots.asked;
        slots.open.insert(id, waiting);
        Ok(id)
    }

    /// Checks by its header that an honest server could send a message that is no part of a delivery.
    pub(super) fn check(&self, header: &Header) -> Result<(), Reject> {
        if header.kind == kind::ERROR {
            return Ok(());
        }
        if header.id == SESSION_ID {
            let asked = self.opened.load(Ordering::Relaxed) && self.terms.borrow().is_none();
            let fits = header.kind == kind::OPENED && header.body_bytes == TERMS_BYTES;
            return match asked && fits {
                true => Ok(()),
                false => Err(never_asked()),
            };
        }
        match lock(&self.slots).open.get(&header.id) {
            Some(waiting) => waiting.collect.check(header.kind, header.body_bytes),
            None => Err(never_asked()),
        }
    }

    /// Takes a message that [`Shared::check`] accepted.
    pub(super) fn deliver(&self, header: &Header, body: Bytes) -> Result<(), Reject> {
        if header.kind == kind::ERROR {
            return self.deliver_error(header.id, &body);
        }
        if header.id == SESSION_ID {
            return self.take_terms(&body);
        }
        let mut slots = lock(&self.slots);
        slots.heard_of(&header.id, Instant::now() + self.answer_timeout);
        let waiting = slots.open.get_mut(&header.id).ok_or_else(never_asked)?;
        let Some(answer) = waiting.collect.feed(header.kind, body)? else {
            return Ok(());
        };
        let waiting = slots.open.remove(&header.id);
        drop(slots);
        if let Some(send) = waiting.and_then(|waiting| waiting.send) {
            // The caller may just have gone.
            let _ = send.send(Ok(answer));
        }
        Ok(())
    }

    fn deliver_error(&self, id: u32, body: &[u8]) -> Result<(), Reject> {
        let refusal = Refusal::decode(body)?;
        let malformed = refusal.code == ErrorCode::MALFORMED;
        let error = LinkError::refused(&self.place, refusal);
        if id <= SESSION_ID || malformed {
            self.die(error);
            return Ok(());
        }
        let waiting = lock(&self.slots).open.remove(&id);
        let waiting = waiting.ok_or_else(never_asked)?;
        if let Some(send) = waiting.send {
            let _ = send.send(Err(error));
        }
        Ok(())
    }

    /// Whether a deadline has passed; says why the link must end.
    pub(super) fn overdue(&self) -> Option<LinkError> {
        let now = Instant::now();
        let late = lock(&self.slots).open.values().any(|w| w.until <= now);
        if late {
            let why = "it did not answer a request in time";
            return Some(LinkError::unavailable(&self.place, why));
        }
        // A server that has filled the window must be silent.
        let may_push = self.opened.load(Ordering::Relaxed) && lock(&self.waiting).has_room();
        let heard = Duration::from_millis(self.heard_ms.load(Ordering::Relaxed));
        let silent = self.epoch.elapsed().saturating_sub(heard);
        (may_push && silent >= self.silence()).then(|| {
            let why = format!("silent for {:.1} s", silent.as_secs_f32());
            LinkError::unavailable(&self.place, why)
        })
    }

    /// Longest time in which the server must take some bytes.
    pub(super) fn write_timeout(&self) -> Duration {
        self.answer_timeout
    }
}

fn never_asked() -> Reject {
    Reject::Malformed {
        what: "answer",
        why: "to a request that was never made",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_gives_time_to_requests_behind_it_and_to_none_before_it() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let waiting = |nth| Waiting {
            collect: Collect::new(Expect::Done),
            send: None,
            until: at(30),
            nth,
        };
        let mut slots = Slots {
            open: [(7, 1), (5, 2), (9, 3)]
                .map(|(id, nth)| (id, waiting(nth)))
                .into(),
            next_id: 10,
            asked: 3,
            dead: None,
        };
        slots.heard_of(&5, at(50));
        let until = |slots: &Slots, id| slots.open[&id].until;
        assert_eq!(
            [7, 5, 9].map(|id| until(&slots, id)),
            [at(30), at(50), at(50)]
        );
        // Nothing is taken back, and what nobody has asked for gives nothing.
        slots.heard_of(&7, at(40));
        slots.heard_of(&8, at(90));
        assert_eq!(
            [7, 5, 9].map(|id| until(&slots, id)),
            [at(40), at(50), at(50)]
        );
    }
}
