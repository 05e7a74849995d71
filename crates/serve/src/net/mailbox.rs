//! The mailbox of a connection: answers that the service completes later, and pushes.
//!
//! Any thread may post; the connection's task takes letters when it has room to write them. Three
//! bounds keep a client that does not read from filling memory: the number of requests in flight,
//! [`Limits::max_push_bytes`](crate::net::Limits) for pushes, and the server's total of held bytes. A push
//! over its bound ends the connection at once and frees the messages in its mailbox.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tokio::sync::oneshot;
use wire::refusal::ErrorCode;

use crate::net::account::{Account, Held};

/// Memory of a waiting message besides its body, bytes.
const MESSAGE_BYTES: usize = 128;

/// One message: its type and its body.
pub(crate) type Message = (u8, Bytes);

/// The state of a request after a posted part of its answer.
pub(crate) enum Progress {
    /// More will come; the channel notifies the sender when the connection has taken the part.
    More(oneshot::Sender<()>),
    /// The answer is complete.
    Complete,
    /// The service refuses the request.
    Refused(ErrorCode, String),
    /// The server held too many bytes to begin.
    Busy,
}

/// What a connection takes out of its mailbox.
pub(crate) enum Letter {
    /// Part of the answer to a request.
    Answer {
        id: u32,
        messages: Vec<Message>,
        progress: Progress,
        held: Held,
    },
    /// Messages that answer no request.
    Push {
        id: u32,
        messages: Vec<Message>,
        held: Held,
        /// Notifies the sender when the connection has taken them.
        taken: Option<oneshot::Sender<()>>,
    },
}

pub(crate) struct Mailbox {
    account: Arc<Account>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    letters: VecDeque<Letter>,
    /// Memory of the pushes among the letters.
    push_bytes: usize,
    overrun: bool,
    closed: bool,
    waker: Option<Waker>,
}

impl Mailbox {
    pub(crate) fn new(account: Arc<Account>) -> Mailbox {
        Mailbox {
            account,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next letter.
    pub(crate) fn take(&self) -> Option<Letter> {
        let mut state = self.state();
        let letter = state.letters.pop_front();
        // Those whose sender waits are not counted.
        if let Some(Letter::Push {
            messages,
            taken: None,
            ..
        }) = &letter
        {
            state.push_bytes = state.push_bytes.saturating_sub(weigh(messages));
        }
        letter
    }

    /// Whether pushes came faster than the client took them.
    pub(crate) fn is_overrun(&self) -> bool {
        self.state().overrun
    }

    /// Ready when there is a letter or an overrun; otherwise the next one wakes the task.
    pub(crate) fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll(cx, |state| state.overrun || !state.letters.is_empty())
    }

    /// Ready at an overrun.
    pub(crate) fn poll_overrun(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll(cx, |state| state.overrun)
    }

    fn poll(&self, cx: &mut Context<'_>, is_ready: impl FnOnce(&State) -> bool) -> Poll<()> {
        let mut state = self.state();
        if is_ready(&state) {
            return Poll::Ready(());
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => state.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Refuses further letters and drops those that wait: the connection is over.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.push_bytes = 0;
        let (letters, waker) = (std::mem::take(&mut state.letters), state.waker.take());
        drop(state);
        drop((letters, waker));
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Posts a part of an answer; nobody takes it when the connection is over. `held` is what is on the
    /// account for it.
    fn post(&self, id: u32, messages: Vec<Message>, held: Option<Held>, progress: Progress) {
        let bytes = weigh(&messages);
        let mut held = held.unwrap_or_else(|| self.account.hold(bytes));
        held.resize(bytes);
        let mut state = self.state();
        if state.closed {
            return;
        }
        state.letters.push_back(Letter::Answer {
            id,
            messages,
            progress,
            held,
        });
        wake(state);
    }

    fn push(&self, id: u32, message: Message) -> Result<(), PushError> {
        let bytes = weight(&message.1);
        // The server may be crowded by others: then only a client that keeps up gets more.
        let crowded = !self.account.has_room();
        let mut state = self.state();
        if state.closed || state.overrun {
            return Err(PushError::Closed);
        }
        let waiting = state.push_bytes.saturating_add(bytes);
        let most = self.account.resources().limits().max_push_bytes;
        if waiting > most || (crowded && state.push_bytes > 0) {
            state.overrun = true;
            state.push_bytes = 0;
            let letters = std::mem::take(&mut state.letters);
            wake(state);
            drop(letters);
            return Err(PushError::Overrun);
        }
        state.push_bytes = waiting;
        let held = self.account.hold(bytes);
        state.letters.push_back(Letter::Push {
            id,
            messages: vec![message],
            held,
            taken: None,
        });
        wake(state);
        Ok(())
    }

    /// Posts messages whose sender waits until they are taken.
    fn send(&self, id: u32, messages: Vec<Message>) -> Option<oneshot::Receiver<()>> {
        let held = self.account.hold(weigh(&messages));
        let (taken, wait) = oneshot::channel();
        let mut state = self.state();
        if state.closed || state.overrun {
            return None;
        }
        state.letters.push_back(Letter::Push {
            id,
            messages,
            held,
            taken: Some(taken),
        });
        wake(state);
        Some(wait)
    }
}

fn weigh(messages: &[Message]) -> usize {
    messages.iter().map(|(_, body)| weight(body)).sum()
}

fn weight(body: &Bytes) -> usize {
    body.len().saturating_add(MESSAGE_BYTES)
}

/// Wakes the connection's task, with the lock released.
fn wake(mut state: MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Why a push was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The connection is over.
    #[error("the connection is closed")]
    Closed,
    /// The client does not take its pushes; the connection ends.
    #[error("the client does not read its pushes")]
    Overrun,
}

/// Sends messages that answer no request, from any thread. Cheap to clone.
#[derive(Clone)]
pub struct Pusher(pub(crate) Arc<Mailbox>);

impl Pusher {
    /// Queues a message under request id `id`: 0, or the id of the request that asked for pushes.
    /// Never waits.
    ///
    /// # Errors
    /// [`PushError::Overrun`] when more than
    /// [`Limits::max_push_bytes`](crate::net::Limits::max_push_bytes) would wait for the client:
    /// the connection ends. [`PushError::Closed`] when it already has.
    pub fn push(&self, id: u32, kind: u8, body: Bytes) -> Result<(), PushError> {
        self.0.push(id, (kind, body))
    }

    /// Queues messages and waits until the connection takes them; false when it is over. A sender that waits each time
    /// before it makes the next messages holds no more than one lot in memory, however slow the client is. They are not
    /// counted in [`Limits::max_push_bytes`](crate::net::Limits::max_push_bytes).
    pub async fn send(&self, id: u32, messages: Vec<(u8, Bytes)>) -> bool {
        match self.0.send(id, messages) {
            Some(taken) => taken.await.is_ok(),
            None => false,
        }
    }

    /// Whether the connection is over.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// Completes one request later, from any task or thread, in any order: for example when the commit
/// that many requests share is durable.
///
/// A completion that is dropped without an end refuses the request with
/// [`ErrorCode::STORAGE`], so that no client waits for ever.
pub struct Completion {
    mailbox: Arc<Mailbox>,
    id: u32,
    messages: Vec<Message>,
    /// The bytes charged to the account for the messages.
    held: Option<Held>,
    ended: bool,
}

impl Completion {
    pub(crate) fn new(mailbox: Arc<Mailbox>, id: u32) -> Completion {
        Completion {
            mailbox,
            id,
            messages: Vec::new(),
            held: None,
            ended: false,
        }
    }

    /// The id of the request.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Whether the connection is over, so that an answer is not needed.
    pub fn is_closed(&self) -> bool {
        self.mailbox.is_closed()
    }

    /// Gathers a message of the answer.
    pub fn message(&mut self, kind: u8, body: Bytes) {
        self.messages.push((kind, body));
    }

    /// Hands over the bytes that are on the account for the messages of the next part.
    pub fn charge(&mut self, held: Held) {
        self.held = Some(held);
    }

    /// Posts the gathered messages and waits until the connection takes them; false when it is
    /// over. A long answer sent in parts holds no more than one part in memory.
    pub async fn send(&mut self) -> bool {
        let (taken, wait) = oneshot::channel();
        let (messages, held) = (std::mem::take(&mut self.messages), self.held.take());
        self.mailbox
            .post(self.id, messages, held, Progress::More(taken));
        wait.await.is_ok()
    }

    /// Posts the gathered messages as the end of the answer.
    pub fn finish(mut self) {
        self.end(Progress::Complete);
    }

    /// Refuses the request, after the gathered messages.
    pub fn refuse(mut self, code: ErrorCode, text: &str) {
        self.end(Progress::Refused(code, text.to_owned()));
    }

    /// Refuses the request because the server holds too many bytes, and counts that.
    pub fn busy(mut self) {
        self.end(Progress::Busy);
    }

    fn end(&mut self, progress: Progress) {
        self.ended = true;
        let (messages, held) = (std::mem::take(&mut self.messages), self.held.take());
        self.mailbox.post(self.id, messages, held, progress);
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if !self.ended {
            let text = "the service did not answer".to_owned();
            self.end(Progress::Refused(ErrorCode::STORAGE, text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::limits::Limits;
    use crate::net::peer::Peer;
    use crate::net::resources::Resources;

    fn mailbox(limits: Limits) -> (Arc<Resources>, Arc<Mailbox>) {
        let resources = Resources::new(limits);
        let permit = resources.limiter().take(Peer::User(7));
        let account = Account::new(Arc::clone(&resources), &permit.ok().unwrap());
        (resources, Arc::new(Mailbox::new(account)))
    }

    #[test]
    fn push_over_the_bound_ends_the_connection_and_frees_the_queue() {
        let limits = Limits {
            max_push_bytes: 10 * (1000 + MESSAGE_BYTES),
            ..Limits::default()
        };
        let (resources, mailbox) = mailbox(limits);
        let pusher = Pusher(Arc::clone(&mailbox));
        let body = Bytes::from(vec![1; 1000]);
        for _ in 0..10 {
            pusher.push(0, 1, body.clone()).unwrap();
        }
        // Room comes back as the connection takes letters.
        assert!(mailbox.take().is_some());
        pusher.push(0, 1, body.clone()).unwrap();
        assert_eq!(
            resources.counters().held_bytes.get(),
            10 * (1000 + MESSAGE_BYTES as u64)
        );
        assert_eq!(pusher.push(0, 1, body.clone()), Err(PushError::Overrun));
        assert!(mailbox.is_overrun() && mailbox.take().is_none());
        assert_eq!(resources.counters().held_bytes.get(), 0);
        assert_eq!(pusher.push(0, 1, body), Err(PushError::Closed));
    }

    #[test]
    fn crowded_server_pushes_only_to_clients_that_keep_up() {
        let limits = Limits {
            max_held_bytes: 500,
            ..Limits::default()
        };
        let (resources, mailbox) = mailbox(limits);
        resources.counters().held_bytes.add(501);
        let pusher = Pusher(Arc::clone(&mailbox));
        pusher.push(0, 1, Bytes::new()).unwrap();
        assert!(mailbox.take().is_some());
        pusher.push(0, 1, Bytes::new()).unwrap();
        assert_eq!(pusher.push(0, 1, Bytes::new()), Err(PushError::Overrun));
    }

    #[test]
    fn dropped_completion_refuses_its_request() {
        let (resources, mailbox) = mailbox(Limits::default());
        let mut completion = Completion::new(Arc::clone(&mailbox), 7);
        completion.message(3, Bytes::from_static(b"part"));
        drop(completion);
        let Some(Letter::Answer { id, progress, .. }) = mailbox.take() else {
            panic!("no letter");
        };
        assert_eq!(id, 7);
        assert!(matches!(progress, Progress::Refused(ErrorCode::STORAGE, _)));
        assert_eq!(resources.counters().held_bytes.get(), 0);
    }

    #[tokio::test]
    async fn sender_of_pushes_waits_until_they_are_taken() {
        let limits = Limits {
            max_push_bytes: 1000,
            ..Limits::default()
        };
        let (resources, mailbox) = mailbox(limits);
        let pusher = Pusher(Arc::clone(&mailbox));
        let lot = vec![(1, Bytes::from(vec![1; 5000])), (2, Bytes::new())];
        let sending = pusher.send(0, lot.clone());
        let taking = async {
            tokio::task::yield_now().await;
            assert!(resources.counters().held_bytes.get() > 5000);
            let Some(Letter::Push {
                messages, taken, ..
            }) = mailbox.take()
            else {
                panic!("no letter");
            };
            assert_eq!(messages, lot);
            taken.unwrap().send(()).unwrap();
        };
        let (taken, ()) = tokio::join!(sending, taking);
        assert!(taken && !mailbox.is_overrun());
        assert_eq!(resources.counters().held_bytes.get(), 0);
        // An ordinary push is not hindered by them.
        pusher.push(0, 1, Bytes::from(vec![1; 500])).unwrap();
        let close = async { mailbox.close() };
        let (taken, ()) = tokio::join!(pusher.send(0, lot.clone()), close);
        assert!(!taken && !pusher.send(0, lot).await);
        assert_eq!(resources.counters().held_bytes.get(), 0);
    }

    #[tokio::test]
    async fn sender_learns_that_the_connection_is_over() {
        let (resources, mailbox) = mailbox(Limits::default());
        let mut completion = Completion::new(Arc::clone(&mailbox), 7);
        completion.message(3, Bytes::from_static(b"part"));
        let close = async { mailbox.close() };
        let (sent, ()) = tokio::join!(completion.send(), close);
        assert!(!sent && completion.is_closed());
        assert!(!completion.send().await);
        drop(completion);
        assert!(mailbox.take().is_none());
        assert_eq!(resources.counters().held_bytes.get(), 0);
    }
}
