//! A device that has entered: messages of its session, and how many deliveries it may be sent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use ordering::engine;
use ordering::orderer::Turned;
use ordering::roster::Product;
use ordering::signed::Entry;
use share_server::host::promise::Turn;
use share_server::host::rate::Rate;
use share_server::host::{Host, HostError, HostOptions, Session};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use trust::Reject;
use trust::device::DeviceKey;
use wire::shared::request::Request;
use wire::shared::terms::{Pace, Terms};
use wire::shared::{Window, kind};

use crate::net::{Completion, Responder};
use crate::shared::refuse::{malformed, told};

/// How long a busy server holds a message back before it refuses it.
const HOLD: Duration = Duration::from_secs(10);
/// First pause before a message is given to the host again, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// See the head of this file.
pub(crate) struct Member {
    session: Session,
    /// Rung when there may be something to deliver.
    bell: Arc<Notify>,
    opened: AtomicBool,
    /// The session was refused something: it is over.
    over: AtomicBool,
    /// Deliveries that the device has not taken.
    window: Mutex<Window>,
}

impl Member {
    pub(crate) fn enter(host: &Host, device: DeviceKey) -> Result<Member, HostError> {
        let bell = Arc::new(Notify::new());
        let rung = Arc::clone(&bell);
        let session = host.connect(device, Arc::new(move || rung.notify_one()))?;
        Ok(Member {
            session,
            bell,
            opened: AtomicBool::new(false),
            over: AtomicBool::new(false),
            window: Mutex::default(),
        })
    }

    /// The session in the host.
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Waits until there may be something to deliver.
    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// Whether the device may be sent a delivery.
    pub(crate) fn has_credit(&self) -> bool {
        self.window().has_room()
    }

    /// A delivery of this length is sent.
    pub(crate) fn spend(&self, bytes: usize) {
        self.window().sent(bytes);
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// NEXT: the device has taken a delivery.
    pub(crate) fn next(&self) -> Result<(), Reject> {
        let was_full = {
            let mut window = self.window();
            let was_full = !window.has_room();
            let taken = window.taken();
            taken.ok_or_else(|| malformed("NEXT without a delivery"))?;
            was_full
        };
        // Else whatever there is has been delivered, or has rung.
        if was_full {
            self.bell.notify_one();
        }
        Ok(())
    }

    /// OPEN: once. `heartbeat_ms`: what the client wishes for.
    pub(crate) fn open(
        self: &Arc<Self>,
        (heartbeat_ms, options): (u32, &HostOptions),
        request: Request,
        responder: Responder<'_>,
        tasks: &mut JoinSet<()>,
    ) -> Result<(), Reject> {
        if self.opened.swap(true, Ordering::AcqRel) {
            return Err(malformed("OPEN a second time"));
        }
        let heartbeat = Terms::heartbeat_for(heartbeat_ms).min(options.heartbeat);
        let ms = u32::try_from(heartbeat.as_millis()).unwrap_or(u32::MAX);
        let heartbeat = Terms::heartbeat_for(ms);
        self.session.set_heartbeat(heartbeat);
        let limits = responder.account().resources().limits();
        let terms = terms(heartbeat, options, limits.max_held_per_connection);
        self.give_or_hold(request, Some(terms.encode().into()), responder, tasks)
    }

    /// A message of the session. It has no answer unless it is refused.
    pub(crate) fn say(
        self: &Arc<Self>,
        request: Request,
        responder: Responder<'_>,
        tasks: &mut JoinSet<()>,
    ) -> Result<(), Reject> {
        if !self.opened.load(Ordering::Acquire) {
            return Err(malformed("a message of the session before OPEN"));
        }
        self.give_or_hold(request, None, responder, tasks)
    }

    /// `answer`: the client is told so when the message is taken.
    fn give_or_hold(
        self: &Arc<Self>,
        request: Request,
        answer: Option<Bytes>,
        mut responder: Responder<'_>,
        tasks: &mut JoinSet<()>,
    ) -> Result<(), Reject> {
        if self.over.load(Ordering::Acquire) {
            return Err(malformed("after the end of the session"));
        }
        let bytes = weight(&request);
        let message = self.placed(message(request)?);
        match message.is_ready().then(|| self.give(&message)) {
            Some(Ok(())) => {
                if let Some(body) = answer {
                    responder.message(kind::OPENED, body);
                }
            }
            Some(Err(error)) if !waits(&error) => {
                self.end();
                let (code, text) = told(&error);
                responder.refuse(code, &text);
            }
            None | Some(Err(_)) => {
                let held = responder.account().hold(bytes);
                let completion = responder.later();
                let again = Arc::clone(self).again(message, answer, completion);
                tasks.spawn(async move {
                    again.await;
                    drop(held);
                });
            }
        }
        Ok(())
    }

    /// An entry gets its place in the session.
    fn placed(&self, message: engine::Request<Product>) -> Placed {
        let is_entry = matches!(message, engine::Request::Entry(_));
        Placed {
            turn: is_entry.then(|| self.session.turn()),
            message,
        }
    }

    fn give(&self, it: &Placed) -> Result<(), HostError> {
        match &it.turn {
            Some(turn) => self.session.order(&it.message, turn),
            None => self.session.receive(&it.message),
        }
    }

    /// Gives the message to the host until it takes it, or for too long. An entry waits for the blocks before it first.
    async fn again(
        self: Arc<Self>,
        message: Placed,
        answer: Option<Bytes>,
        mut completion: Completion,
    ) {
        let waited = message.wait().await;
        let until = Instant::now() + HOLD;
        let (mut pause, longest) = PAUSES;
        let mut pauses = !waited;
        loop {
            if std::mem::replace(&mut pauses, true) {
                sleep(pause).await;
            }
            match self.give(&message) {
                Ok(()) => {
                    if let Some(body) = answer {
                        completion.message(kind::OPENED, body);
                    }
                    return completion.finish();
                }
                Err(error) if waits(&error) && Instant::now() < until => {
                    pause = longest.min(pause * 2);
                }
                Err(error) => {
                    self.end();
                    let (code, text) = told(&error);
                    return completion.refuse(code, &text);
                }
            }
        }
    }

    /// The session is over: the client knows, and must connect again.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }
}

/// What holds for a device.
fn terms(heartbeat: Duration, options: &HostOptions, outstanding_bytes: usize) -> Terms {
    let pace = |rate: Rate| Pace {
        per_second: rate.per_second.max(1),
        at_once: rate.burst.max(1),
    };
    Terms {
        heartbeat_ms: u32::try_from(heartbeat.as_millis()).unwrap_or(u32::MAX),
        bytes: pace(options.bytes),
        entries: pace(options.entries),
        entry_bytes: pace(options.entry_bytes),
        outstanding_bytes: (outstanding_bytes as u64).max(1),
    }
}

/// A message of the session; an entry with its place among the blocks.
struct Placed {
    message: engine::Request<Product>,
    turn: Option<Turn>,
}

impl Placed {
    fn is_ready(&self) -> bool {
        self.turn.as_ref().is_none_or(Turn::is_ready)
    }

    /// Waits for the blocks before an entry; false if that was not needed.
    async fn wait(&self) -> bool {
        let Some(turn) = self.turn.as_ref().filter(|turn| !turn.is_ready()) else {
            return false;
        };
        let (tell, told) = oneshot::channel();
        // The connection may be over.
        turn.when_ready(Box::new(move || {
            let _ = tell.send(());
        }));
        let _ = told.await;
        true
    }
}

/// Whether the host may take the message later.
fn waits(error: &HostError) -> bool {
    matches!(error, HostError::Turned(Turned::Busy | Turned::Quota))
}

/// Memory of a message, bytes.
fn weight(request: &Request) -> usize {
    match request {
        Request::Entry { entry, body } => {
            2 * entry.bytes().len() + body.as_ref().map_or(0, Bytes::len)
        }
        _ => 256,
    }
}

/// The message as the orderer takes it.
fn message(request: Request) -> Result<engine::Request<Product>, Reject> {
    Ok(match request {
        Request::Open { note, .. } => engine::Request::Open(note),
        Request::Entry { entry, body } => engine::Request::Entry(match body {
            Some(body) => Entry::with_body(*entry, body)?,
            None => Entry::new(*entry),
        }),
        Request::Mark(nonce) => engine::Request::Mark(nonce),
        Request::Attest(attest) => engine::Request::Attest(attest),
        Request::Ask(device) => engine::Request::Ask(device),
        _ => return Err(malformed("not a message of the session")),
    })
}
