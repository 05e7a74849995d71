//! One connection: requests of many callers go out together, answers come back by request id.
//!
//! A connection has two tasks, one for each direction; both end with the [`Link`]. The reading task
//! decides when a connection is over: closed, silent for too long while a request is outstanding, or
//! an answer that no honest server sends. All waiting callers then get the reason. Memory: the answers
//! to the callers (bounded by their admission in `remote`), one message of at most 4 MiB, or one record of a
//! message of records, and two buffers of 128 KiB.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::buf::Limit;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use trust::{Handle, Reject};

use super::collect::{self, Answer, Ask, Body, Collect};
use super::failure::Failure;
use super::records::IncomingRecords;
use crate::frame::{self, HEADER_BYTES, HELLO, HELLO_BYTES, Header, MAX_ANSWER_BYTES, PROTOCOL};
use crate::mirror::kind;
use crate::refusal::Refusal;

mod reader;

use reader::Reader;

/// Most unanswered requests of one connection, abandoned ones included.
const MAX_OUTSTANDING: usize = 4096;
/// A body longer than this gets memory of its own.
const OWN_BUFFER_BYTES: usize = 64 << 10;
/// Length of a buffer in each direction, bytes.
const READ_BUFFER_BYTES: usize = 128 << 10;

/// Deadlines of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Longest silence while a request is outstanding.
    pub(super) stall: Duration,
    /// Longest wait of one request for its next message.
    pub(super) progress: Duration,
    /// Time without use after which a connection is closed.
    pub(super) idle: Duration,
}

/// A connection; dropping it ends its tasks. The socket is closed as soon as the connection is over, also
/// while the link is kept for the reason.
pub(super) struct Link {
    shared: Arc<Shared>,
    tasks: [AbortHandle; 2],
}

struct Shared {
    out: Mutex<Out>,
    wake_writer: Notify,
    slots: Mutex<Slots>,
    epoch: Instant,
    /// When a byte last arrived, or the first request after a pause was sent; ms since `epoch`.
    moved_ms: AtomicU64,
    /// When a byte last arrived, ms since `epoch`; 0 if none has.
    heard_ms: AtomicU64,
    answered: AtomicBool,
}

/// Requests that wait to be sent.
struct Out {
    /// `None` when the connection is over.
    write: Option<Arc<OwnedWriteHalf>>,
    buffer: BytesMut,
    /// The writing task is writing, so no caller may.
    busy: bool,
}

struct Slots {
    open: HashMap<u32, Arc<Slot>>,
    next_id: u32,
    dead: Option<Failure>,
}

/// One outstanding request.
struct Slot {
    ask: Ask,
    state: Mutex<SlotState>,
    moved_ms: AtomicU64,
}

struct SlotState {
    allowance_left_bytes: usize,
    reserved_left_bytes: usize,
    /// `None` when the caller has gone: the rest of the answer is skipped.
    waiting: Option<(Collect, oneshot::Sender<Result<Answer, Failure>>)>,
}

/// Locks; ignores poison, because no critical section leaves broken state behind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees a caller's memory when its future is dropped before the answer is complete.
struct Leave<'a>(&'a Slot);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).waiting = None;
    }
}

impl Link {
    /// Starts both tasks on a new connection. Call it within a runtime.
    pub(super) fn start(stream: TcpStream, patience: Patience) -> Link {
        let (read, write) = stream.into_split();
        let write = Arc::new(write);
        let shared = Arc::new(Shared {
            out: Mutex::new(Out {
                write: Some(Arc::clone(&write)),
                buffer: BytesMut::from(&HELLO[..]),
                busy: false,
            }),
            wake_writer: Notify::new(),
            slots: Mutex::new(Slots {
                open: HashMap::new(),
                next_id: 1,
                dead: None,
            }),
            epoch: Instant::now(),
            moved_ms: AtomicU64::new(0),
            heard_ms: AtomicU64::new(0),
            answered: AtomicBool::new(false),
        });
        let writer = tokio::spawn(run_writer(Arc::clone(&shared), write)).abort_handle();
        let last_word = LastWord(Arc::clone(&shared), writer.clone());
        let reader = tokio::spawn(run_reader(last_word, read, patience)).abort_handle();
        Link {
            shared,
            tasks: [reader, writer],
        }
    }

    /// Why the connection is over, if it is.
    pub(super) fn dead(&self) -> Option<Failure> {
        self.shared.dead()
    }

    /// When a byte last arrived; `None` if none has.
    pub(super) fn heard(&self) -> Option<Instant> {
        let heard_ms = self.shared.heard_ms.load(Ordering::Relaxed);
        (heard_ms > 0).then(|| self.shared.epoch + Duration::from_millis(heard_ms))
    }

    /// Whether the server has ever answered on this connection.
    pub(super) fn has_answered(&self) -> bool {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// Sends a request, which `put` encodes under the id that it gets, and waits for its answer.
    pub(super) async fn call(
        &self,
        ask: Ask,
        put: impl FnOnce(u32, &mut BytesMut),
    ) -> Result<Answer, Failure> {
        let (send, receive) = oneshot::channel();
        let now_ms = self.shared.now_ms();
        let slot = Arc::new(Slot {
            state: Mutex::new(SlotState {
                allowance_left_bytes: collect::allowance_bytes(&ask),
                reserved_left_bytes: collect::reserved_bytes(&ask),
                waiting: Some((Collect::new(ask.clone()), send)),
            }),
            moved_ms: AtomicU64::new(now_ms),
            ask,
        });
        let leave = Leave(&slot);
        let (id, alone) = self.shared.open(&slot, now_ms)?;
        self.shared.send(alone, |out| put(id, out));
        let answer = receive
            .await
            .unwrap_or_else(|_| Err(Failure::Closed("the connection was given up".into())));
        drop(leave);
        answer
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Shared {
    fn now_ms(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }

    /// Gives a request its id; also returns whether it is the only one.
    fn open(&self, slot: &Arc<Slot>, now_ms: u64) -> Result<(u32, bool), Failure> {
        let mut slots = lock(&self.slots);
        if let Some(failure) = &slots.dead {
            return Err(failure.clone());
        }
        if slots.open.len() >= MAX_OUTSTANDING {
            drop(slots);
            let failure = Failure::Stalled("too many requests were never answered".into());
            self.die(failure.clone());
            return Err(failure);
        }
        let alone = slots.open.is_empty();
        if alone {
            self.moved_ms.store(now_ms, Ordering::Relaxed);
        }
        let mut id = slots.next_id;
        while id == 0 || slots.open.contains_key(&id) {
            id = id.wrapping_add(1);
        }
        slots.next_id = id.wrapping_add(1);
        slots.open.insert(id, Arc::clone(slot));
        Ok((id, alone))
    }

    /// Queues bytes. A single request goes straight to the socket, which saves a task switch; the
    /// writing task sends all others that have gathered in one call.
    fn send(&self, alone: bool, put: impl FnOnce(&mut BytesMut)) {
        let mut locked = lock(&self.out);
        let out = &mut *locked;
        let Some(write) = &out.write else {
            return;
        };
        put(&mut out.buffer);
        if alone && !out.busy {
            while !out.buffer.is_empty() {
                match write.try_write(&out.buffer) {
                    Ok(n) if n > 0 => out.buffer.advance(n),
                    _ => break,
                }
            }
        }
        let left = !out.buffer.is_empty();
        drop(locked);
        if left {
            self.wake_writer.notify_one();
        }
    }

    /// Ends the connection for all callers, present and future.
    fn die(&self, failure: Failure) {
        let open = {
            let mut slots = lock(&self.slots);
            if slots.dead.is_some() {
                return;
            }
            slots.dead = Some(failure.clone());
            std::mem::take(&mut slots.open)
        };
        for slot in open.into_values() {
            if let Some((_, send)) = lock(&slot.state).waiting.take() {
                // The caller may just have gone.
                let _ = send.send(Err(failure.clone()));
            }
        }
        {
            let mut out = lock(&self.out);
            (out.write, out.buffer) = (None, BytesMut::new());
        }
        self.wake_writer.notify_one();
    }

    fn dead(&self) -> Option<Failure> {
        lock(&self.slots).dead.clone()
    }

    /// Checks the deadlines; says why the connection must end.
    fn overdue(&self, patience: &Patience) -> Option<Failure> {
        let now_ms = self.now_ms();
        let since = |then: &AtomicU64| {
            Duration::from_millis(now_ms.saturating_sub(then.load(Ordering::Relaxed)))
        };
        let slots = lock(&self.slots);
        let silent = since(&self.moved_ms);
        if slots.open.is_empty() {
            let why = || Failure::Closed("not used for a while".into());
            return (silent >= patience.idle).then(why);
        }
        if silent >= patience.stall {
            let why = format!("silent for {:.1} s", silent.as_secs_f32());
            return Some(Failure::Stalled(why));
        }
        let longest = slots.open.values().map(|s| since(&s.moved_ms)).max();
        longest
            .filter(|l| *l >= patience.progress)
            .map(|l| Failure::Stalled(format!("no progress for {:.1} s", l.as_secs_f32())))
    }
}

async fn run_writer(shared: Arc<Shared>, write: Arc<OwnedWriteHalf>) {
    let mut mine = BytesMut::new();
    loop {
        {
            let mut out = lock(&shared.out);
            out.busy = !out.buffer.is_empty();
            std::mem::swap(&mut mine, &mut out.buffer);
        }
        if mine.is_empty() {
            shared.wake_writer.notified().await;
            if shared.dead().is_some() {
                return;
            }
            continue;
        }
        while !mine.is_empty() {
            // A shared half has no `AsyncWrite`, so wait for readiness and try.
            let wrote = match write.writable().await {
                Ok(()) => write.try_write(&mine),
                Err(e) => Err(e),
            };
            match wrote {
                Ok(n) => mine.advance(n),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(e) => return shared.die(Failure::Closed(e.to_string())),
            }
        }
        if mine.capacity() > READ_BUFFER_BYTES {
            mine = BytesMut::new();
        }
    }
}

/// Ends the connection for all callers, and the writing task, when the reading task ends, for whatever reason.
struct LastWord(Arc<Shared>, AbortHandle);

impl Drop for LastWord {
    fn drop(&mut self) {
        self.0
            .die(Failure::Closed("the connection was given up".into()));
        // It may wait for a server that receives nothing, and holds one half of the socket.
        self.1.abort();
    }
}

async fn run_reader(last_word: LastWord, read: OwnedReadHalf, patience: Patience) {
    let every = (patience.stall / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
    let mut clock = tokio::time::interval(every);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut reader = Reader::new(Arc::clone(&last_word.0), read);
    let failure = loop {
        tokio::select! {
            step = reader.step() => if let Err(failure) = step { break failure },
            _ = clock.tick() => if let Some(failure) = last_word.0.overdue(&patience) { break failure },
        }
        // A caller, an error about the whole connection, or the writing task has ended it.
        if let Some(failure) = last_word.0.dead() {
            break failure;
        }
    };
    last_word.0.die(failure);
}

impl Slot {
    /// Takes a record that belongs to the answer; drops it if nobody waits.
    fn take_record(&self, handle: Handle, frame: Bytes) -> Result<(), Reject> {
        match &mut lock(&self.state).waiting {
            Some((collect, _)) => collect.record(handle, frame),
            None => Ok(()),
        }
    }
}

impl Shared {
    fn slot(&self, id: u32) -> Result<Arc<Slot>, Reject> {
        let slot = lock(&self.slots).open.get(&id).cloned();
        slot.ok_or(Reject::Malformed {
            what: "answer",
            why: "to a request that was never made",
        })
    }

    /// Checks that an honest server could send a message with this header.
    fn check(&self, header: &Header) -> Result<(), Reject> {
        if header.kind == kind::ERROR {
            return Ok(());
        }
        let slot = self.slot(header.id)?;
        collect::fits(&slot.ask, header.kind, header.body_bytes)?;
        if header.body_bytes > lock(&slot.state).allowance_left_bytes {
            return Err(Reject::Malformed {
                what: "answer",
                why: "longer than what was asked for",
            });
        }
        Ok(())
    }

    /// Passes a message that [`Shared::check`] accepted to its caller.
    fn deliver(&self, header: Header, body: Body, now_ms: u64) -> Result<(), Reject> {
        if header.kind == kind::ERROR {
            return self.deliver_error(&header, &body);
        }
        let slot = self.begin(&header)?;
        let mut state = lock(&slot.state);
        if let Some((collect, _)) = &mut state.waiting
            && let Some(answer) = collect.feed(header.kind, body)?
            && let Some((_, send)) = state.waiting.take()
        {
            // The caller may just have gone.
            let _ = send.send(Ok(answer));
        }
        drop(state);
        self.ended(&slot, &header, now_ms);
        Ok(())
    }

    /// Takes the bytes of a message that [`Shared::check`] accepted off what its request may get. Memory for them is
    /// taken after this.
    fn begin(&self, header: &Header) -> Result<Arc<Slot>, Reject> {
        let slot = self.slot(header.id)?;
        let mut state = lock(&slot.state);
        state.allowance_left_bytes = state.allowance_left_bytes.saturating_sub(header.body_bytes);
        let left = state.reserved_left_bytes.checked_sub(header.body_bytes);
        state.reserved_left_bytes = left.unwrap_or(0);
        if left.is_none()
            && let Some((_, send)) = state.waiting.take()
        {
            // The rest of the answer is skipped.
            let _ = send.send(Err(Failure::Longer));
        }
        drop(state);
        Ok(slot)
    }

    /// A message has come whole.
    fn ended(&self, slot: &Slot, header: &Header, now_ms: u64) {
        slot.moved_ms.store(now_ms, Ordering::Relaxed);
        self.answered.store(true, Ordering::Relaxed);
        if collect::is_last(header.kind) {
            lock(&self.slots).open.remove(&header.id);
        }
    }

    fn deliver_error(&self, header: &Header, body: &Body) -> Result<(), Reject> {
        let refusal = Refusal::decode(&body.bytes)?;
        if header.id == 0 {
            self.die(Failure::Refused(refusal));
            return Ok(());
        }
        let slot = self.slot(header.id)?;
        lock(&self.slots).open.remove(&header.id);
        self.answered.store(true, Ordering::Relaxed);
        if let Some((_, send)) = lock(&slot.state).waiting.take() {
            let _ = send.send(Err(Failure::Refused(refusal)));
        }
        Ok(())
    }
}
