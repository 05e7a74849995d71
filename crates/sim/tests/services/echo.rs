//! A second service: an echo with pushes, session state and a log that it syncs for many requests at
//! once. It has a protocol number of its own.

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serve::net::{Completion, Opening, Peer, Pusher, Request, Responder, Service};
use trust::Reject;
use wire::refusal::ErrorCode;

pub const PROTOCOL: u8 = 0xee;
/// Types of messages; an answer has the high bit.
pub mod kind {
    /// Answered with its body.
    pub const ECHO: u8 = 1;
    /// Appends the body to the log; answered with the number of the commit when it is durable.
    pub const APPEND: u8 = 2;
    /// From now on messages that others publish come under this request's id.
    pub const WATCH: u8 = 3;
    /// Keeps the connection; has no answer.
    pub const PING: u8 = 4;
    /// Answered with the number of the session's requests and the peer.
    pub const SESSION: u8 = 5;
    /// The service drops this request without an answer.
    pub const LOSE: u8 = 6;
    /// The service never answers.
    pub const HANG: u8 = 7;
    /// Goes to all watchers; answered when queued.
    pub const PUBLISH: u8 = 8;
    /// A push.
    pub const NEWS: u8 = 0x80;
}
/// The service does not know the type of the request.
pub const UNKNOWN: ErrorCode = ErrorCode(200);
pub const MAX_ECHO_BYTES: usize = 1 << 20;
pub const MAX_APPEND_BYTES: usize = 1 << 10;

/// State of the service.
pub struct Echo {
    watchers: Mutex<Vec<(u32, Pusher)>>,
    log: Mutex<Sender<(Vec<u8>, Completion)>>,
    /// Held by a test that wants requests to gather.
    pub gate: Arc<Mutex<()>>,
    pub commits: Arc<AtomicUsize>,
    pub appends: AtomicUsize,
    hanging: Mutex<Vec<Completion>>,
    pub sessions: Arc<AtomicUsize>,
}

impl Echo {
    pub fn new(log: File) -> Arc<Echo> {
        let (sender, receiver) = channel();
        let (gate, commits) = (Arc::default(), Arc::default());
        let committer = (Arc::clone(&gate), Arc::clone(&commits));
        std::thread::spawn(move || commit(&receiver, log, &committer.0, &committer.1));
        Arc::new(Echo {
            watchers: Mutex::default(),
            log: Mutex::new(sender),
            gate,
            commits,
            appends: AtomicUsize::new(0),
            hanging: Mutex::default(),
            sessions: Arc::default(),
        })
    }

    /// How many requests hang.
    pub fn hanging(&self) -> usize {
        self.hanging.lock().unwrap().len()
    }

    /// Pushes to all watchers; forgets those that are gone.
    pub fn publish(&self, body: &Bytes) {
        let mut watchers = self.watchers.lock().unwrap();
        watchers.retain(|(id, pusher)| pusher.push(*id, kind::NEWS, body.clone()).is_ok());
    }

    /// How many watchers there are.
    pub fn watchers(&self) -> usize {
        self.watchers.lock().unwrap().len()
    }
}

/// Takes all waiting requests, writes them, syncs once, and completes them.
fn commit(
    log: &Receiver<(Vec<u8>, Completion)>,
    mut file: File,
    gate: &Mutex<()>,
    commits: &AtomicUsize,
) {
    while let Ok(first) = log.recv() {
        let open = gate.lock().unwrap();
        let batch: Vec<_> = std::iter::once(first).chain(log.try_iter()).collect();
        drop(open);
        for (body, _) in &batch {
            file.write_all(body).unwrap();
        }
        file.sync_data().unwrap();
        let number = commits.fetch_add(1, Ordering::SeqCst) as u64 + 1;
        for (_, mut completion) in batch.into_iter().rev() {
            let number = Bytes::copy_from_slice(&number.to_le_bytes());
            completion.message(kind::APPEND | 0x80, number);
            completion.finish();
        }
    }
}

pub struct EchoService(pub Arc<Echo>);

/// State of one connection; counts itself while it lives.
pub struct Session {
    requests: u64,
    peer: Peer,
    alive: Arc<AtomicUsize>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Service for EchoService {
    const PROTOCOL: u8 = PROTOCOL;
    type Session = Session;

    fn open(&self, opening: Opening<'_>) -> Session {
        let alive = Arc::clone(&self.0.sessions);
        alive.fetch_add(1, Ordering::SeqCst);
        Session {
            requests: 0,
            peer: opening.peer(),
            alive,
        }
    }

    fn max_body_bytes(&self, _: &Session, kind: u8) -> Option<usize> {
        match kind {
            kind::ECHO | kind::PUBLISH => Some(MAX_ECHO_BYTES),
            kind::APPEND => Some(MAX_APPEND_BYTES),
            kind::WATCH..=kind::HANG => Some(0),
            // Unknown requests are refused one by one. Types of answers are not requests.
            0..0x80 => Some(256),
            _ => None,
        }
    }

    fn request(
        &self,
        session: &mut Session,
        request: Request<'_>,
        mut responder: Responder<'_>,
    ) -> Result<(), Reject> {
        session.requests += 1;
        let (echo, answer) = (&self.0, request.kind | 0x80);
        match request.kind {
            kind::ECHO => responder.message(answer, Bytes::copy_from_slice(request.body)),
            kind::APPEND => {
                let entry = (request.body.to_vec(), responder.later());
                echo.log.lock().unwrap().send(entry).unwrap();
                echo.appends.fetch_add(1, Ordering::SeqCst);
            }
            kind::WATCH => {
                responder.watch(true);
                let watcher = (request.id, responder.pusher());
                echo.watchers.lock().unwrap().push(watcher);
                responder.message(answer, Bytes::new());
            }
            kind::PING => {}
            kind::SESSION => {
                let text = format!("{} {}", session.requests, session.peer);
                responder.message(answer, Bytes::from(text));
            }
            kind::LOSE => drop(responder.later()),
            kind::HANG => echo.hanging.lock().unwrap().push(responder.later()),
            kind::PUBLISH => {
                echo.publish(&Bytes::copy_from_slice(request.body));
                responder.message(answer, Bytes::new());
            }
            _ => responder.refuse(UNKNOWN, "unknown type of request"),
        }
        Ok(())
    }
}
