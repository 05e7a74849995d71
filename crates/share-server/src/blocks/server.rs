//! A block server that works by itself: one thread commits what clients store, another moves blocks to the segments.
//! Clients that store at the same time share a sync, and so do those whose blocks go straight to the segments.

use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trust::Record;

use super::batch::{Batch, Done, Receipt};
use super::error::Error;
use super::storage::{Progress, Storage, lock};
use super::{Session, moving::Moved};

/// How often the oldest blocks are looked at. Blocks of so long a time move together.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long the segments rest after an error.
const REST: Duration = Duration::from_secs(1);
/// How long batches wait for space in a full log.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long [`Server::store`] waits for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// See the head of this file. Dropping it ends the threads; what was acknowledged stays in the log.
pub struct Server {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    storage: Storage,
    signals: Mutex<Signals>,
    to_log: Condvar,
    to_segments: Condvar,
}

#[derive(Default)]
struct Signals {
    log: bool,
    segments: bool,
    stop: bool,
    /// Why the segments did not take what was moved last.
    failure: Option<Error>,
}

impl Server {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn start(storage: Storage) -> std::io::Result<Server> {
        let shared = Arc::new(Shared {
            storage,
            signals: Mutex::default(),
            to_log: Condvar::new(),
            to_segments: Condvar::new(),
        });
        let server = Server {
            shared: Arc::clone(&shared),
            threads: Mutex::default(),
        };
        let spawn = |name: &str, work: fn(&Shared)| {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(name.to_owned());
            thread.spawn(move || work(&shared))
        };
        for (name, work) in [
            ("blocks commit", Shared::commit as fn(&Shared)),
            ("blocks move", Shared::advance),
        ] {
            let thread = spawn(name, work)?;
            lock(&server.threads).push(thread);
        }
        Ok(server)
    }

    /// Everything that needs no thread: sessions, CSTORE, RETRIEVE, DECREF.
    pub fn storage(&self) -> &Storage {
        &self.shared.storage
    }

    /// STORE: takes a batch; `done` is told when it is durable.
    pub fn submit(&self, batch: Batch, done: Done) {
        self.shared.storage.submit(batch, done);
        self.wake();
    }

    /// Takes batches of the orderer's records ([`Storage::submit_entries`]).
    pub fn submit_entries(&self, session: Session, batches: Vec<(Vec<wal::Record>, Done)>) {
        self.shared.storage.submit_entries(session, batches);
        self.wake();
    }

    /// PSTORE: takes a block that goes straight to the segments.
    pub fn submit_permanent(&self, session: Session, record: Record, done: Done) {
        self.shared.storage.pstore(session, record, done);
        self.wake();
    }

    fn wake(&self) {
        let stopped = lock(&self.shared.signals).stop;
        match stopped {
            false => self.shared.wake(),
            true => self.refuse_waiting(),
        }
    }

    /// Ends the threads. What waits, and what is submitted later, is told so; what was acknowledged stays in the log.
    pub fn stop(&self) {
        lock(&self.shared.signals).stop = true;
        self.shared.to_log.notify_all();
        self.shared.to_segments.notify_all();
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            // An answer that one of them gives may drop the last reference to this.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join(); // a panic was reported by its thread
            }
        }
        self.refuse_waiting();
    }

    fn refuse_waiting(&self) {
        self.shared.storage.refuse_waiting(&Error::Stopped);
        self.shared.storage.refuse_direct(&Error::Stopped);
    }

    /// STORE, waiting for the answer.
    ///
    /// # Errors
    /// As [`Storage::submit`]; [`Error::Late`] after a minute.
    pub fn store(&self, session: Session, blocks: Vec<Record>) -> Result<Receipt, Error> {
        let batch = Batch {
            session,
            blocks,
            entries: Vec::new(),
        };
        answer(|done| self.submit(batch, done))
    }

    /// PSTORE, waiting for the answer.
    ///
    /// # Errors
    /// As [`Server::store`].
    pub fn pstore(&self, session: Session, record: Record) -> Result<Receipt, Error> {
        answer(|done| self.submit_permanent(session, record, done))
    }

    /// The orderer has released entries: there may be space for what waits.
    pub fn look_at_space(&self) {
        lock(&self.shared.signals).log = true;
        self.shared.to_log.notify_one();
    }

    /// Why the segments did not take the blocks that were to move last; nothing if they did.
    pub fn failure(&self) -> Option<Error> {
        lock(&self.shared.signals).failure.clone()
    }
}

fn answer(submit: impl FnOnce(Done)) -> Result<Receipt, Error> {
    let (send, receive) = sync_channel(1);
    submit(Box::new(move |result| {
        let _ = send.send(result); // nobody waits any more
    }));
    let after = ANSWER_WITHIN;
    let answer = receive.recv_timeout(after);
    answer.unwrap_or(Err(Error::Late { after }))
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn wake(&self) {
        let mut signals = lock(&self.signals);
        if self.storage.has_batches() {
            signals.log = true;
            self.to_log.notify_one();
        }
        if self.storage.has_direct() {
            signals.segments = true;
            self.to_segments.notify_one();
        }
    }

    /// Waits for a signal, at most for `longest`. False when the server stops.
    fn wait(
        &self,
        signal: &Condvar,
        flag: fn(&mut Signals) -> &mut bool,
        longest: Duration,
    ) -> bool {
        let deadline = Instant::now() + longest;
        let mut signals = lock(&self.signals);
        while !signals.stop && !std::mem::take(flag(&mut signals)) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let woken = signal.wait_timeout(signals, left);
            signals = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        !signals.stop
    }

    fn wait_for_batches(&self, longest: Duration) -> bool {
        self.wait(&self.to_log, |signals| &mut signals.log, longest)
    }

    /// The thread that commits.
    fn commit(&self) {
        let mut full_since = None;
        loop {
            match self.storage.commit() {
                Progress::Done => full_since = None,
                Progress::Idle => {
                    full_since = None;
                    if !self.wait_for_batches(LOOK_EVERY) {
                        return;
                    }
                }
                Progress::Full => {
                    let since = *full_since.get_or_insert_with(Instant::now);
                    if !self.wait_for_space(since) {
                        return;
                    }
                }
            }
            if self.storage.is_pressed() {
                self.look_at_segments();
            }
        }
    }

    /// Waits until blocks have moved. When they cannot, or it takes too long, the clients are told.
    fn wait_for_space(&self, since: Instant) -> bool {
        let failure = lock(&self.signals).failure.clone();
        if failure.is_some() || since.elapsed() > PATIENCE {
            let cause = failure.map_or_else(
                || "the temporary log is full".into(),
                |failure| format!("the temporary log is full, and {failure}").into(),
            );
            self.storage.refuse_waiting(&Error::Full { cause });
        }
        self.look_at_segments();
        self.wait_for_batches(REST)
    }

    fn look_at_segments(&self) {
        lock(&self.signals).segments = true;
        self.to_segments.notify_one();
    }

    /// The thread that moves blocks.
    fn advance(&self) {
        loop {
            let failure = self.advance_while_there_is_work().err();
            let rest = match &failure {
                Some(error) => {
                    tracing::warn!(%error, "blocks cannot move to the segments");
                    REST
                }
                None => LOOK_EVERY,
            };
            lock(&self.signals).failure = failure;
            if !self.wait(&self.to_segments, |signals| &mut signals.segments, rest) {
                return;
            }
        }
    }

    fn advance_while_there_is_work(&self) -> Result<(), Error> {
        while self.storage.has_work_for_segments() && !lock(&self.signals).stop {
            let moved: Moved = self.storage.advance()?;
            // Batches with blocks that are in the segments now wait for the log, and there is space.
            lock(&self.signals).log = true;
            self.to_log.notify_one();
            if moved.is_nothing() {
                break;
            }
        }
        Ok(())
    }
}
