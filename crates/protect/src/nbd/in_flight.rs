//! What one client has asked for and was not sent yet: the number of requests, their bytes of memory, the replies that
//! wait. The thread that reads requests waits here for room, so nothing grows with what a client sends.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Violation;
use super::address::{Stream, Unsent};
use super::wire::{NbdError, REPLY_BYTES, reply};

/// Replies that are sent by one call of the system.
const REPLIES_AT_ONCE: usize = 32;

/// Memory that clients use beyond their own shares, first come, first served.
#[derive(Debug)]
pub(super) struct Spare(Mutex<usize>);

impl Spare {
    pub(super) fn new(bytes: usize) -> Arc<Spare> {
        Arc::new(Spare(Mutex::new(bytes)))
    }

    fn take(&self, bytes: usize) -> bool {
        let mut left = lock(&self.0);
        let enough = *left >= bytes;
        if enough {
            *left -= bytes;
        }
        enough
    }

    fn give(&self, bytes: usize) {
        *lock(&self.0) += bytes;
    }
}

/// One client: its connection, and the account of what it asked for.
#[derive(Debug)]
pub(super) struct InFlight {
    stream: Stream,
    state: Mutex<State>,
    /// There is room again.
    room: Condvar,
    /// The connection takes no more replies for now, or there will be no more.
    stalled: Condvar,
    max_requests: usize,
    share_bytes: usize,
    spare: Arc<Spare>,
}

#[derive(Debug, Default)]
struct State {
    requests: usize,
    bytes: usize,
    /// How many of the bytes are spare ones.
    spare: usize,
    /// Replies that nobody sends yet.
    replies: VecDeque<Reply>,
    sender: Sender,
    /// No more requests will come.
    last: bool,
    /// Nothing is sent any more.
    closed: bool,
}

/// Who sends replies. The thread that answers does it itself if the connection takes them at once.
#[derive(Debug, Default)]
enum Sender {
    #[default]
    Nobody,
    Somebody,
    /// The client reads slowly: these replies wait for the thread that can wait. So many bytes of them are sent.
    Stalled(Vec<Reply>, usize),
}

/// A reply that waits for the client.
#[derive(Debug)]
struct Reply {
    header: [u8; REPLY_BYTES],
    payload: Vec<u8>,
    /// When it was ready.
    since: Instant,
    held_bytes: usize,
}

impl InFlight {
    pub(super) fn new(
        stream: Stream,
        max_requests: usize,
        share_bytes: usize,
        spare: Arc<Spare>,
    ) -> Arc<InFlight> {
        Arc::new(InFlight {
            stream,
            state: Mutex::default(),
            room: Condvar::new(),
            stalled: Condvar::new(),
            max_requests,
            share_bytes,
            spare,
        })
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Waits for room for a request with so many bytes, at most the share. `None` when the client is gone.
    pub(super) fn admit(self: &Arc<Self>, bytes: usize) -> Option<Room> {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return None;
            }
            if state.requests < self.max_requests && self.take_spare(&mut state, bytes) {
                state.requests += 1;
                state.bytes += bytes;
                return Some(Room {
                    client: self.clone(),
                    held_bytes: Some(bytes),
                    cookie: None,
                });
            }
            // The client has requests in flight, else there would be room. Each of them ends.
            state = wait(&self.room, state);
        }
    }

    /// Takes spare bytes for what goes beyond the share.
    fn take_spare(&self, state: &mut State, bytes: usize) -> bool {
        let beyond = (state.bytes + bytes).saturating_sub(self.share_bytes);
        let more = beyond.saturating_sub(state.spare);
        let enough = more == 0 || self.spare.take(more);
        if enough {
            state.spare += more;
        }
        enough
    }

    fn release(&self, state: &mut State, bytes: usize) {
        state.requests -= 1;
        state.bytes -= bytes;
        let beyond = state.bytes.saturating_sub(self.share_bytes);
        let unused = state.spare.saturating_sub(beyond);
        state.spare -= unused;
        if unused > 0 {
            self.spare.give(unused);
        }
        self.room.notify_one();
        if state.last && state.requests == 0 {
            self.stalled.notify_one();
        }
    }

    fn release_all(&self, state: &mut State, replies: Vec<Reply>) {
        // The memory of payloads is freed before others may take as much.
        let held: Vec<usize> = replies.into_iter().map(|reply| reply.held_bytes).collect();
        for bytes in held {
            self.release(state, bytes);
        }
    }

    fn answered(&self, reply: Reply) {
        let mut state = lock(&self.state);
        state.replies.push_back(reply);
        if matches!(state.sender, Sender::Nobody) {
            self.send_waiting(state);
        }
    }

    /// Sends the replies that wait, as long as the connection takes them at once.
    fn send_waiting<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        loop {
            let count = REPLIES_AT_ONCE.min(state.replies.len());
            let replies: Vec<Reply> = state.replies.drain(..count).collect();
            if replies.is_empty() {
                state.sender = Sender::Nobody;
                return;
            }
            if state.closed {
                self.release_all(&mut state, replies);
                continue;
            }
            state.sender = Sender::Somebody;
            drop(state);
            let mut parts = parts(&replies);
            let all: usize = parts.iter().map(|part| part.len()).sum();
            let mut unsent = &mut parts[..];
            let sent = self.stream.send_now(&mut unsent);
            let left: usize = unsent.iter().map(|part| part.len()).sum();
            state = lock(&self.state);
            if sent.is_err() {
                state.closed = true;
                self.stream.shutdown(Shutdown::Both);
            }
            if left > 0 && !state.closed {
                state.sender = Sender::Stalled(replies, all - left);
                self.stalled.notify_one();
                return;
            }
            self.release_all(&mut state, replies);
        }
    }

    /// Sends replies that the client is slow to read, until the last one. A reply that waits longer than `patience` ends
    /// the connection.
    pub(super) fn send_to_slow_reader(&self, patience: Duration) -> Result<(), Violation> {
        loop {
            let Some((replies, sent)) = self.wait_until_stalled() else {
                return Ok(());
            };
            let mut parts = parts(&replies);
            let mut unsent = &mut parts[..];
            IoSlice::advance_slices(&mut unsent, sent);
            let since = replies
                .first()
                .map_or_else(Instant::now, |reply| reply.since);
            let result = self.stream.send(unsent, since + patience);
            let mut state = lock(&self.state);
            self.release_all(&mut state, replies);
            if let Err(unsent) = result {
                drop(state);
                self.close();
                return match unsent {
                    Unsent::Late => Err(Violation::SlowReader),
                    Unsent::Gone => Ok(()),
                };
            }
            self.send_waiting(state);
        }
    }

    /// `None` when there will be no more replies.
    fn wait_until_stalled(&self) -> Option<(Vec<Reply>, usize)> {
        let mut state = lock(&self.state);
        loop {
            if state.closed || (state.last && state.requests == 0) {
                return None;
            }
            if let Sender::Stalled(replies, sent) = &mut state.sender {
                let stalled = (std::mem::take(replies), *sent);
                state.sender = Sender::Somebody;
                return Some(stalled);
            }
            state = wait(&self.stalled, state);
        }
    }

    /// No more requests will come; those in flight are still answered.
    pub(super) fn last(&self) {
        lock(&self.state).last = true;
        self.stalled.notify_one();
    }

    /// Ends the connection: nothing is admitted or sent any more.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        let mut replies: Vec<Reply> = std::mem::take(&mut state.replies).into();
        if let Sender::Stalled(stalled, _) = &mut state.sender {
            replies.append(stalled);
            state.sender = Sender::Nobody;
        }
        self.release_all(&mut state, replies);
        self.room.notify_all();
        self.stalled.notify_all();
        drop(state);
        self.stream.shutdown(Shutdown::Both);
    }
}

fn parts(replies: &[Reply]) -> Vec<IoSlice<'_>> {
    let parts = replies.iter();
    let parts = parts.flat_map(|reply| [&reply.header[..], &reply.payload]);
    parts.map(IoSlice::new).collect()
}

/// Room for one request. It is free again when the reply was sent, or when the room is dropped.
#[derive(Debug)]
pub(super) struct Room {
    client: Arc<InFlight>,
    held_bytes: Option<usize>,
    cookie: Option<u64>,
}

impl Room {
    /// Names the request that the room is for. From now on, dropping the room answers the request with an error, so that
    /// none stays unanswered when a thread panics.
    pub(super) fn of(mut self, cookie: u64) -> Room {
        self.cookie = Some(cookie);
        self
    }

    /// Sends the reply.
    pub(super) fn answer(mut self, result: Result<Vec<u8>, NbdError>) {
        self.settle(result);
    }

    fn settle(&mut self, result: Result<Vec<u8>, NbdError>) {
        let Some(held_bytes) = self.held_bytes.take() else {
            return;
        };
        let Some(cookie) = self.cookie else {
            return self
                .client
                .release(&mut lock(&self.client.state), held_bytes);
        };
        self.client.answered(Reply {
            header: reply(cookie, result.as_ref().err().copied()),
            payload: result.unwrap_or_default(),
            since: Instant::now(),
            held_bytes,
        });
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.settle(Err(NbdError::Io));
    }
}

/// A thread that panics leaves counts that are still right: they change in one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition
        .wait(guard)
        .unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
