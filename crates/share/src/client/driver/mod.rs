//! The task that owns the engine: it takes what happens in the order in which it happens, and does what comes out.
//!
//! Each step runs on a thread that may wait for the disk; meanwhile nothing else is taken. What comes out is sent,
//! fetched or answered here. The task ends when the last client is dropped, and makes the journal durable then.

mod absence;
mod beacons;
mod online;

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use store::StoreError;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::sleep_until;
use trust::Hasher;
use trust::array::ArrayRoot;

use self::absence::Absence;
use self::beacons::Kind;
use super::Answered;
use super::beacons::Beacons;
use super::connection::{
    Backoff, Connected, Connection, Deliveries, Dial, Line, Lost, Stored, Stores, Trouble,
};
use super::core::{Core, Input, Out, Ticket};
use super::error::{ClientError, Differing, Stopped};
use super::fetch::{Fetched, Key};
use super::local::{Query, Response};
use super::near::Near;
use super::own::Own;
use super::status::{Phase, Status, View};
use crate::disk::{DiskError, Placed};
use crate::files::{Shelf, Stamped};
use crate::outbox::{Flight, Outbox};
use ordering::engine::{Reply, Request};
use ordering::roster::{OpsCodec, Product};
use ordering::signed::Entry;

/// When something could not be fetched or stored, it is tried again after this time.
const AGAIN: Duration = Duration::from_secs(1);
/// Most devices whose differing Attests are remembered.
const MAX_DIFFERING: usize = 64;

/// What a client asks of the driver.
pub(super) enum Command {
    Call(Calling),
    Cancel(Ticket),
    /// Something about the engine.
    Query(Query, oneshot::Sender<Response>),
    Leaves {
        from: u64,
        to: u64,
        answer: oneshot::Sender<Result<Vec<Placed<OpsCodec>>, DiskError>>,
    },
    Ask,
    /// The connection to the server, if there is one.
    Line(oneshot::Sender<Option<Arc<dyn Line>>>),
    /// Which entries of this device the log that stands does not have.
    Lost(oneshot::Sender<Result<Vec<Entry>, DiskError>>),
    Close(oneshot::Sender<()>),
}

/// Where the answer to a call goes.
type Waiting = oneshot::Sender<Result<Answered, ClientError>>;

/// A call, and where its answer goes.
pub(super) struct Calling {
    pub(super) ticket: Ticket,
    pub(super) call: Stamped,
    /// It is answered from what this device has verified, whatever the server says.
    pub(super) looks: bool,
    /// Blocks that it names, and that travel with it.
    pub(super) flight: Box<Flight>,
    pub(super) answer: Waiting,
}

/// What tasks of the driver give back.
pub(super) enum Done {
    Dialed(Result<Connected, Lost>),
    Fetched(Fetched),
    Stored {
        /// Number of the batch of blocks.
        batch: u64,
        result: Stored,
    },
    /// Trees of an earlier run, as far as they were looked at, and whether each is whole.
    Checked(Vec<(ArrayRoot, bool)>, Result<(), StoreError>),
}

enum Event {
    Command(Option<Command>),
    Reply(Result<Reply<Product>, Lost>),
    Done(Option<Done>),
    Wake,
    /// The engine goes on with what it has begun.
    Again,
}

/// What clients see without asking.
pub(super) struct Shown {
    pub(super) view: watch::Sender<View>,
    pub(super) line: watch::Sender<Option<Arc<dyn Stores>>>,
}

pub(super) struct Driver {
    core: Option<Arc<Mutex<Core>>>,
    near: Arc<Near>,
    commands: mpsc::UnboundedReceiver<Command>,
    dial: Arc<dyn Dial>,
    shown: Shown,
    shelf: Arc<Shelf>,
    hasher: Hasher,
    calls: HashMap<Ticket, (Waiting, Kind)>,
    line: Option<Arc<dyn Line>>,
    deliveries: Option<Box<dyn Deliveries>>,
    dialing: bool,
    backoff: Backoff,
    dial_at: Option<Instant>,
    /// When what could not be fetched or stored is tried again.
    again_at: Option<Instant>,
    /// The engine has not looked at all that its floor has.
    again: bool,
    fetching: HashSet<Key>,
    /// What this device keeps of its own content.
    own: Option<Arc<Own>>,
    /// It is being looked whether the server has what calls of an earlier run name.
    checking: bool,
    /// What was seen of it so far.
    checked: Vec<(ArrayRoot, bool)>,
    outbox: Outbox,
    /// Why blocks of calls are given up.
    given_up: HashMap<Ticket, ClientError>,
    absence: Absence,
    /// Why folds were given up the last time.
    unfolded: Option<ClientError>,
    tasks: JoinSet<Done>,
    differing: Vec<Differing>,
    stopped: Option<Stopped>,
    inputs: VecDeque<Input>,
    beacons: Beacons,
    /// Calls that wait for a beacon.
    held: Vec<Calling>,
    /// Somebody waits until the files are durable.
    closing: Option<oneshot::Sender<()>>,
}

/// The next delivery; never, without a connection.
async fn next(deliveries: &mut Option<Box<dyn Deliveries>>) -> Result<Reply<Product>, Lost> {
    match deliveries {
        Some(deliveries) => deliveries.next().await,
        None => std::future::pending().await,
    }
}

async fn wake(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// What became of a step.
enum Step {
    Done(Vec<Out>),
    NotBegun,
    Panicked,
}

/// A step of the engine, which may wait for the disk: on this thread if the runtime has others that take its tasks over
/// meanwhile, because a change of threads takes longer than most steps.
async fn stepped(core: Arc<Mutex<Core>>, input: Input) -> Step {
    let step = move || Some(core.lock().ok()?.step(input));
    let done = match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => {
            let caught = || catch_unwind(AssertUnwindSafe(step)).ok().flatten();
            tokio::task::block_in_place(caught)
        }
        _ => match tokio::task::spawn_blocking(step).await {
            Err(error) if error.is_cancelled() => return Step::NotBegun,
            done => done.ok().flatten(),
        },
    };
    done.map_or(Step::Panicked, Step::Done)
}

impl Driver {
    pub(super) fn new(
        core: Core,
        commands: mpsc::UnboundedReceiver<Command>,
        dial: Arc<dyn Dial>,
        shown: Shown,
        shelf: Arc<Shelf>,
        (hasher, near): (Hasher, Arc<Near>),
    ) -> Driver {
        let stopped = core.convicted().cloned();
        let core = Arc::new(Mutex::new(core));
        near.set(Some(Arc::clone(&core)));
        Driver {
            stopped,
            core: Some(core),
            near,
            commands,
            dial,
            shown,
            shelf,
            hasher,
            calls: HashMap::new(),
            line: None,
            deliveries: None,
            dialing: false,
            backoff: Backoff::default(),
            dial_at: Some(Instant::now()),
            again_at: None,
            again: false,
            fetching: HashSet::new(),
            own: None,
            checking: false,
            checked: Vec::new(),
            outbox: Outbox::default(),
            given_up: HashMap::new(),
            absence: Absence::new(super::AWAY),
            unfolded: None,
            tasks: JoinSet::new(),
            differing: Vec::new(),
            inputs: VecDeque::new(),
            beacons: Beacons::default(),
            held: Vec::new(),
            closing: None,
        }
    }

    /// The same with what this device keeps of its own content.
    pub(super) fn with_own(mut self, own: Option<Arc<Own>>) -> Driver {
        self.own = own;
        self
    }

    /// The same with another time without a connection after which blocks may be gone.
    pub(super) fn with_absence(mut self, long: Duration) -> Driver {
        self.absence = Absence::new(long);
        self
    }

    /// The engine, unless a step of it has panicked.
    fn core(&self) -> Option<MutexGuard<'_, Core>> {
        self.core.as_ref()?.lock().ok()
    }

    /// Runs until the last client is gone.
    pub(super) async fn run(mut self) {
        while self.closing.is_none() {
            self.connect();
            let timer = self.core().and_then(|core| core.wakes());
            let timer = timer.filter(|_| self.stopped.is_none());
            let held = self.held_until();
            let at = [timer, self.dial_at, self.again_at, held];
            let at = at.into_iter().flatten();
            let event = tokio::select! {
                command = self.commands.recv() => Event::Command(command),
                reply = next(&mut self.deliveries) => Event::Reply(reply),
                Some(done) = self.tasks.join_next() => Event::Done(done.ok()),
                () = wake(at.min()) => Event::Wake,
                // Of those that are ready, any may be next.
                () = std::future::ready(()), if self.again => Event::Again,
            };
            match event {
                Event::Command(None) => break,
                event => self.take(event),
            }
            while let Some(input) = self.inputs.pop_front() {
                self.step(input).await;
                self.meet_beacons();
            }
            self.release();
            self.show();
        }
        self.near.set(None);
        self.step(Input::Close).await;
        self.calls
            .drain()
            .for_each(|(_, (answer, _))| drop(answer.send(Err(ClientError::Closed))));
        // Whoever closed the client may be gone.
        let _ = self.closing.take().map(|done| done.send(()));
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Command(command) => self.commands(command),
            Event::Reply(Ok(reply)) => {
                self.backoff.works();
                if !reply.more {
                    self.beacons.caught_up();
                }
                self.inputs.push_back(Input::Deliver(reply));
            }
            Event::Reply(Err(lost)) => self.disconnect(lost),
            Event::Done(Some(done)) => self.done(done),
            // A task that panicked has fetched nothing, and looked at nothing. To look twice does no harm.
            Event::Done(None) => {
                self.checking = false;
                self.again_at = Some(Instant::now() + AGAIN);
            }
            Event::Wake => self.woke(),
            Event::Again => {
                self.again = false;
                self.inputs.push_back(Input::Supplied);
            }
        }
    }

    fn woke(&mut self) {
        let now = Instant::now();
        if self.again_at.is_some_and(|at| at <= now) {
            self.again_at = None;
            self.retry();
            self.check();
            self.inputs.push_back(Input::Supplied);
        }
        self.inputs.push_back(Input::Ring);
    }

    /// Takes this command and those that wait behind it: their calls go together.
    fn commands(&mut self, first: Option<Command>) {
        let mut calls = Vec::new();
        let mut next = first;
        while let Some(command) = next {
            match command {
                Command::Call(it) if it.looks => {
                    self.calls.insert(it.ticket, (it.answer, Kind::Look));
                    self.inputs.push_back(Input::Look(it.ticket, it.call.call));
                }
                Command::Call(it) => match &self.stopped {
                    // The caller may have gone.
                    Some(why) => drop(it.answer.send(Err(why.clone().into()))),
                    None => calls.extend(self.admit(it)),
                },
                // What has left with its blocks goes on: they may be on the way.
                Command::Cancel(ticket) if self.outbox.has(ticket) => {}
                Command::Cancel(ticket) => {
                    self.calls.remove(&ticket);
                    self.held.retain(|held| held.ticket != ticket);
                    match calls.iter().position(|(called, _)| *called == ticket) {
                        Some(place) => drop(calls.remove(place)),
                        None => self.inputs.push_back(Input::Cancel(ticket)),
                    }
                }
                Command::Query(query, answer) => self.query(query, answer),
                Command::Leaves { from, to, answer } => {
                    self.inputs.push_back(Input::Leaves { from, to, answer });
                }
                Command::Ask => self.inputs.push_back(Input::Ask),
                // Whoever asked may be gone.
                Command::Line(answer) => drop(answer.send(self.line.clone())),
                Command::Lost(answer) => self.inputs.push_back(Input::Lost(answer)),
                Command::Close(done) => self.closing = Some(done),
            }
            next = self.commands.try_recv().ok();
        }
        if !calls.is_empty() {
            self.store();
            self.inputs.push_front(Input::Issue(calls));
        }
    }

    /// One step of the engine, on a thread that may wait for the disk.
    async fn step(&mut self, input: Input) {
        let Some(core) = self.core.clone() else {
            return;
        };
        let outs = match stepped(core, input).await {
            Step::Done(outs) => outs,
            // The program ends before the step has begun. The next start begins with the journal.
            Step::NotBegun => Vec::new(),
            // The engine has a bug: nothing more is written.
            Step::Panicked => {
                self.core = None;
                self.near.set(None);
                vec![Out::Stopped(Stopped::Unsigned)]
            }
        };
        for out in outs {
            self.out(out);
        }
        if self.core().is_some_and(|core| core.is_settled()) {
            self.outbox.settled();
        }
        self.store();
    }

    fn out(&mut self, out: Out) {
        match out {
            Out::Send(request) => {
                self.store();
                if let Some(request) = self.outbox.send(request) {
                    self.send(request);
                }
            }
            Out::Store(blocks) => self.outbox.store(blocks),
            Out::SendAgain(entry) => self.send_again(Request::Entry(entry)),
            Out::Fetch(lacks) => self.fetch(lacks),
            Out::Again => self.again = true,
            Out::Answer {
                ticket,
                answer,
                at,
                marked,
            } => self.answer(ticket, Ok(Answered { answer, at, marked })),
            Out::Busy(ticket) => self.answer(ticket, Err(ClientError::Busy)),
            Out::Withdrawn(ticket) => {
                let why = self.given_up.remove(&ticket);
                let why = why.or_else(|| self.unfolded.clone());
                self.answer(ticket, Err(why.unwrap_or(ClientError::Interrupted)));
            }
            Out::Unfit(what) => self.disconnect(Lost::new(Trouble::Unfit, what)),
            Out::Differs(differing) => {
                let known = self.differing.contains(&differing);
                if !known && self.differing.len() < MAX_DIFFERING {
                    tracing::warn!(device = %differing.device, "a device attests another log");
                    self.differing.push(differing);
                }
            }
            Out::Stopped(why) => self.stop(why),
        }
    }

    fn answer(&mut self, ticket: Ticket, answer: Result<Answered, ClientError>) {
        self.outbox.answered(ticket);
        self.given_up.remove(&ticket);
        if let Some((waiting, kind)) = self.calls.remove(&ticket) {
            let answer = self.in_time(kind, answer);
            // The caller may have gone.
            let _ = waiting.send(answer);
        }
    }

    fn stop(&mut self, why: Stopped) {
        tracing::error!(%why, "the engine of a shared volume has stopped");
        let phase = Phase::Stopped(why.clone());
        self.shown.view.send_modify(|view| view.phase = phase);
        for (_, (waiting, _)) in self.calls.drain() {
            let _ = waiting.send(Err(why.clone().into()));
        }
        self.stopped = Some(why);
        self.outbox.clear();
        self.given_up.clear();
        // Blocks can still be read.
        self.deliveries = None;
    }

    /// Shows clients what has changed.
    fn show(&mut self) {
        let Some(core) = self.core() else { return };
        let phase = match &self.stopped {
            Some(why) => Phase::Stopped(why.clone()),
            None => Phase::of(core.engine()),
        };
        let size = core.engine().ledger().size();
        drop(core);
        let online = self.line.is_some();
        self.shown.view.send_if_modified(|view| {
            let before = (
                view.size,
                view.phase.kind(),
                view.connection == Connection::Online,
            );
            if online {
                view.connection = Connection::Online;
            }
            view.size = size;
            view.phase = phase;
            before
                != (
                    view.size,
                    view.phase.kind(),
                    view.connection == Connection::Online,
                )
        });
    }

    /// The program that asked may be gone.
    fn query(&mut self, query: Query, answer: oneshot::Sender<Response>) {
        let response = match query {
            Query::Status => match self.status() {
                Some(status) => Response::Status(Box::new(status)),
                None => return,
            },
            Query::Compare(note) => {
                let tell = |compared| drop(answer.send(Response::Compared(compared)));
                return self.inputs.push_back(Input::Compare(note, Box::new(tell)));
            }
            Query::Beacons => {
                self.read_beacons();
                Response::Done(Ok(Vec::new()))
            }
        };
        let _ = answer.send(response);
    }

    fn status(&self) -> Option<Status> {
        let core = self.core()?;
        let connection = self.shown.view.borrow().connection.clone();
        let (stopped, differing) = (self.stopped.clone(), self.differing.clone());
        let mut status = Status::of(core.engine(), connection, stopped, differing);
        status.beacons = self.beacons.status(Instant::now());
        Some(status)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.near.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Client;
    use crate::client::tests::Lab;

    #[test]
    fn end_of_the_program_in_the_middle_of_a_step_is_no_failure_of_the_engine() {
        // A runtime of one thread gives its steps to other threads.
        let ended = tokio::runtime::Builder::new_current_thread();
        let ended = { ended }.build().unwrap();
        let own = tokio::runtime::Runtime::new().unwrap();
        let (client, driver): (Client, Driver) = Lab::new().driver(1);
        let handle = ended.handle().clone();
        ended.shutdown_background();
        own.block_on(async {
            let mut driver = driver;
            // Steps go to the threads of a runtime that has ended.
            let _ended = handle.enter();
            driver.step(Input::Close).await;
        });
        let phase = client.view().phase;
        assert!(!matches!(phase, Phase::Stopped(_)), "{phase:?}");
    }
}
