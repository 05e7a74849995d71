//! One step of a device: what came in goes to the engine, and what the engine wants done on this machine is done.
//!
//! A step waits for the disk and for nothing else. It writes the journal and syncs it in the engine's order, and looks
//! for bodies in the floor before anybody asks the server. What goes to the server and to programs comes out, in order
//! too: it happens after all writes of the step. When a write fails, nothing of it goes out, and the device stops.

mod beacon;
mod compare;
mod feed;
mod history;
mod look;
mod snapshot;
mod tidy;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::oneshot;
use trust::array::ArrayRoot;
use trust::frame::Packer;
use trust::history::LogPoint;
use trust::reach::Wanted;
use trust::{Record, Reject};
use trust_shared::attest::SignedAttest;
use trust_shared::note::SignedNote;
use trust_shared::ops::Body;

use super::error::{Differing, Stopped};
use super::evidence::Court;
use crate::disk::{Disk, DiskError, Keep, Placed, own_entries};
use crate::files::{Answer, Basis, Call, Files, Made, Shelf, Stamped};
use crate::home::{Memo, Timekeeper};
use ordering::engine::{
    Alarm, Delays, Durable, Effect, Engine, Record as EngineRecord, Reply, Request, Setup,
    StopReason,
};
use ordering::roster::{OpsCodec, Product};
use ordering::scheme::{DeviceScheme, Leaf, Log, Scheme};
use ordering::signed::Entry;

pub use compare::Compared;
use compare::compare;
use feed::Feeding;
#[cfg(test)]
pub(super) use feed::MAX_BEHIND;
#[cfg(test)]
pub(super) use history::MOST_LEAVES;
pub(super) use snapshot::Snapshots;
pub use tidy::Folding;
use tidy::{Kind, Tidy, UNASKED};

/// Leaves that are read at a time.
const CHUNK: u64 = 256;
/// How long a file of an earlier epoch may be locked.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often one step puts on the shelf what a question misses and the floor has. A long question takes more, and the
/// shelf may drop what it needs while an older one waits for the server. The server's answers, and programs, get a turn
/// between the steps.
const MAX_ROUNDS: usize = 8;

/// Names a call.
pub(super) type Ticket = u64;

impl Keep for Stamped {
    fn encode(&self) -> Vec<u8> {
        Stamped::encode(self)
    }

    fn decode(bytes: &[u8]) -> Result<Self, Reject> {
        Stamped::decode(bytes)
    }
}

/// What happens to a device.
pub(super) enum Input {
    /// Programs call.
    Issue(Vec<(Ticket, Stamped)>),
    /// The server sent something.
    Deliver(Reply<Product>),
    /// There is a new connection.
    Connected,
    /// Something that was missing is on the shelf, or it is time to look for it again.
    Supplied,
    /// A timer may be due.
    Ring,
    /// A program waits no more.
    Cancel(Ticket),
    /// Blocks that these calls name cannot be stored.
    Withdraw(Vec<Ticket>),
    /// The device was away for so long that the server may have removed blocks that calls name: such calls are made again by
    /// their programs.
    Back,
    /// Blocks that folds made cannot be stored.
    WithdrawFolds,
    /// These trees, which calls of an earlier run name, are not whole at the server.
    Lacking(Vec<ArrayRoot>),
    /// A program asks what this device knows, whatever the server says.
    Look(Ticket, Call),
    /// Somebody has another device's note.
    Compare(SignedNote, Box<dyn FnOnce(Compared) + Send>),
    /// Somebody wants leaves of the floor.
    Leaves {
        from: u64,
        to: u64,
        answer: oneshot::Sender<Result<Vec<Placed<OpsCodec>>, DiskError>>,
    },
    /// Somebody waits until all devices have attested what they wrote.
    Ask,
    /// Which entries of this device the log that stands does not have.
    Lost(oneshot::Sender<Result<Vec<Entry>, DiskError>>),
    /// The device is closed: what was written is made durable.
    Close,
}

/// What is done elsewhere.
pub(super) enum Out {
    /// Send this to the server.
    Send(Request<Product>),
    /// Send this entry again, after its blocks: the server missed some.
    SendAgain(Entry),
    /// Store these blocks before the next entry is sent.
    Store(Vec<Record>),
    /// Fetch this, put it on the shelf, and say so.
    Fetch(Lacks),
    /// The floor has more of what is missing: after what waits, this device goes on.
    Again,
    /// Answer a program.
    Answer {
        ticket: Ticket,
        answer: Answer,
        at: u64,
        marked: Basis,
    },
    /// A call was not taken.
    Busy(Ticket),
    /// A call is taken back: no entry has it.
    Withdrawn(Ticket),
    /// The server's reply does not fit: close the connection.
    Unfit(&'static str),
    /// A device attests another log.
    Differs(Differing),
    /// The engine writes no more.
    Stopped(Stopped),
}

/// What is missing, with what it takes to verify it.
#[derive(Debug, Default)]
pub(super) struct Lacks {
    /// Positions of entries, and the hashes of their bodies.
    pub(super) bodies: Vec<(u64, [u8; 32])>,
    /// Blocks of trees.
    pub(super) blocks: Vec<Wanted>,
}

/// The engine of a device, its timers and its disk.
pub(super) struct Core {
    engine: Engine<Product, Files, Ticket>,
    alarm: Alarm<Ticket>,
    disk: Disk<OpsCodec>,
    shelf: Arc<Shelf>,
    court: Court,
    times: Timekeeper,
    forgotten: Memo,
    /// The prefix that the invitation names, as long as the log is shorter.
    begins: Option<LogPoint>,
    /// Time zero of the timers.
    began: Instant,
    stopped: bool,
    /// Why the device writes nothing more, or nothing from its start on.
    convicted: Option<Stopped>,
    /// What this device knew of earlier epochs of the log, where something of it may be lost.
    before: Vec<PathBuf>,
    /// Questions about the verified log that miss something.
    looking: Vec<(Ticket, Stamped)>,
    /// Questions about changes.
    feeding: Vec<Feeding>,
    tidy: Tidy,
    snapshots: Snapshots,
    /// Content of calls of an earlier run, until it is known whether the server has it.
    unchecked: Vec<ArrayRoot>,
}

type Effects = Vec<Effect<Product, Files, Ticket>>;

impl Core {
    pub(super) fn new(
        scheme: Product,
        setup: Setup,
        (delays, folding, snapshots): (Delays, Folding, Snapshots),
        (disk, durable): (Disk<OpsCodec>, Durable<Product, Files>),
        shelf: Arc<Shelf>,
        (court, times, forgotten): (Court, Timekeeper, Memo),
        (begins, before): (Option<LogPoint>, Vec<PathBuf>),
    ) -> Core {
        let size = durable.ledger.size();
        let calls = durable.sent.iter().flat_map(|sent| &sent.calls);
        let unchecked: Vec<_> = calls.flat_map(|call| call.call.arrays()).collect();
        let convicted = court.convicted();
        let mut core = Core {
            engine: Engine::start(scheme, setup, durable),
            alarm: Alarm::new(delays),
            disk,
            shelf,
            court,
            times,
            forgotten,
            // What the floor has was checked before it was written.
            begins: begins.filter(|begins| begins.size > size),
            began: Instant::now(),
            stopped: convicted.is_some(),
            convicted,
            before,
            looking: Vec::new(),
            feeding: Vec::new(),
            tidy: Tidy::new(folding),
            snapshots,
            unchecked,
        };
        if !core.unchecked.is_empty() {
            core.engine.wait_to_resume();
        }
        core.verify_floor();
        core.alarm.set(0, &core.engine);
        core
    }

    /// The floor was checked before it was written, but for signatures of the last entries when the process ended in
    /// the middle of catching up.
    fn verify_floor(&mut self) {
        let effects = self.engine.verify();
        let mut outs = Vec::new();
        if let Err(why) = self.perform(effects, None, &mut outs) {
            self.stop(why, &mut outs);
        }
    }

    fn stop(&mut self, why: Stopped, outs: &mut Vec<Out>) {
        self.stopped = true;
        self.convicted.get_or_insert(why.clone());
        outs.push(Out::Stopped(why));
    }

    pub(super) fn engine(&self) -> &Engine<Product, Files, Ticket> {
        &self.engine
    }

    /// Why the device writes nothing from its start on: an earlier run has found out that the server lies.
    pub(super) fn convicted(&self) -> Option<&Stopped> {
        self.convicted.as_ref()
    }

    /// Content that calls of an earlier run name. The device resumes after [`Input::Lacking`].
    pub(super) fn unchecked(&self) -> &[ArrayRoot] {
        &self.unchecked
    }

    /// What this device knew of earlier epochs of the log, where something of it may be lost.
    pub(super) fn before(&self) -> &[PathBuf] {
        &self.before
    }

    pub(super) fn disk(&self) -> &Disk<OpsCodec> {
        &self.disk
    }

    pub(super) fn court(&self) -> &Court {
        &self.court
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// When a timer is due.
    pub(super) fn wakes(&self) -> Option<Instant> {
        let alarm = self.alarm.next(&self.engine);
        let alarm = alarm.and_then(|ms| self.began.checked_add(Duration::from_millis(ms)));
        alarm.into_iter().chain(self.feeds_until()).min()
    }

    /// Takes what happened.
    pub(super) fn step(&mut self, input: Input) -> Vec<Out> {
        let mut outs = Vec::new();
        let Some(input) = self.aside(input, &mut outs) else {
            return outs;
        };
        if self.stopped {
            if let Input::Issue(calls) = input {
                outs.extend(calls.into_iter().map(|(ticket, _)| Out::Busy(ticket)));
            }
            return outs;
        }
        let reply = match &input {
            Input::Deliver(reply) => Some(reply.clone()),
            _ => None,
        };
        let kind = Kind::of(&input);
        let effects = self.drive(input);
        // Before the floor has these entries: a later start does not meet them again.
        self.forgotten.met(self.engine.forgotten());
        let performed = self.perform(effects, reply.as_ref(), &mut outs);
        if let Err(why) = performed.and_then(|()| self.tidy(&kind, &mut outs)) {
            self.stop(why, &mut outs);
        }
        self.feed_on(&mut outs);
        self.snapshot();
        let now = self.now_ms();
        self.alarm.set(now, &self.engine);
        outs
    }

    /// Takes what the engine has nothing to do with. Gives back the rest.
    fn aside(&mut self, input: Input, outs: &mut Vec<Out>) -> Option<Input> {
        match input {
            // The files say how much of them is durable, so a failure shows at the next start.
            Input::Close => drop(self.disk.sync()),
            Input::Compare(note, answer) => {
                let compared = compare(self, &note);
                if let Some(why) = compared.convicts().filter(|_| !self.stopped) {
                    self.stop(why, outs);
                }
                answer(compared);
            }
            Input::Leaves { from, to, answer } => drop(answer.send(self.disk.range(from, to))),
            Input::Ask => {
                let devices = self.engine.unsupported().into_iter();
                let asks = devices.map(|(device, _)| Out::Send(Request::Ask(device)));
                outs.extend(asks.filter(|_| !self.stopped));
            }
            // Whoever asked may be gone.
            Input::Lost(answer) => drop(answer.send(self.lost())),
            Input::Look(ticket, call) => {
                match call {
                    Call::Feed {
                        since,
                        wait,
                        hold_ms,
                    } => {
                        let feeding = Feeding::new(ticket, since, wait, hold_ms);
                        self.feeding.push(feeding);
                    }
                    call => self.looking.push((ticket, call.into())),
                }
                self.look_again(outs);
            }
            input => {
                if let Input::Cancel(ticket) = &input {
                    self.looking.retain(|(looking, _)| looking != ticket);
                    self.feeding.retain(|feeding| feeding.ticket != *ticket);
                }
                if let Input::Supplied = &input {
                    self.look_again(outs);
                }
                return Some(input);
            }
        }
        None
    }

    /// Answers questions about the log, once the signatures are verified on which the answers rest. A log with an entry
    /// that nobody signed answers nothing.
    fn look_again(&mut self, outs: &mut Vec<Out>) {
        let effects = self.engine.verify();
        if let Err(why) = self.perform(effects, None, outs) {
            self.stop(why, outs);
        }
        // A log that ended before the start of its epoch may be one that the owners have not chosen.
        let is_chosen = self.engine.has_start() || !self.stopped;
        if !self.engine.is_unverified() && is_chosen {
            self.answer_looks(outs);
            if self.engine.has_start() {
                self.answer_feeds(outs);
            }
            return;
        }
        self.looking.clear();
        self.feeding.clear();
        outs.extend(self.convicted.clone().map(Out::Stopped));
    }

    fn drive(&mut self, input: Input) -> Effects {
        match input {
            Input::Issue(calls) => self.engine.issue(calls),
            Input::Deliver(reply) => {
                self.alarm.replied(&reply);
                self.engine.deliver(&reply)
            }
            Input::Connected => {
                self.alarm.connected();
                self.engine.connected()
            }
            Input::Supplied => self.engine.supplied(),
            Input::Ring => {
                let now = self.now_ms();
                self.alarm.ring(now, &mut self.engine)
            }
            Input::Cancel(ticket) => {
                self.engine.cancel(ticket);
                Vec::new()
            }
            Input::Withdraw(calls) => {
                let is_one = |of: Option<Ticket>| of.is_some_and(|of| calls.contains(&of));
                self.engine.withdraw(|of, _| is_one(of))
            }
            Input::Back => self
                .engine
                .withdraw(|_, call| !call.call.arrays().is_empty()),
            Input::WithdrawFolds => {
                let is_fold = |call: &Stamped| matches!(call.call, Call::Fold(_));
                self.engine.withdraw(|_, call| is_fold(call))
            }
            Input::Lacking(lacking) => {
                if !lacking.is_empty() {
                    let trees = lacking.len();
                    tracing::warn!(
                        trees,
                        "the server does not have content of changes that were not acknowledged: they are given up"
                    );
                }
                self.unchecked.clear();
                self.engine.may_resume();
                let is_lost = |call: &Stamped| {
                    let mut roots = call.call.arrays().into_iter();
                    roots.any(|root| lacking.contains(&root))
                };
                self.engine
                    .withdraw(|of, call| of.is_none() && is_lost(call))
            }
            Input::Look(..)
            | Input::Compare(..)
            | Input::Leaves { .. }
            | Input::Ask
            | Input::Lost(_)
            | Input::Close => Vec::new(),
        }
    }

    /// Does effects, and those that follow when the floor has what is missing.
    fn perform(
        &mut self,
        effects: Effects,
        reply: Option<&Reply<Product>>,
        outs: &mut Vec<Out>,
    ) -> Result<(), Stopped> {
        self.check_beginning()?;
        let mut effects = effects;
        for round in 1.. {
            let mut found = false;
            for effect in std::mem::take(&mut effects) {
                found |= self.effect(effect, reply, outs)?;
            }
            if !found {
                break;
            }
            if round == MAX_ROUNDS {
                outs.push(Out::Again);
                break;
            }
            effects = self.engine.supplied();
        }
        Ok(())
    }

    /// Does one effect. Gives whether it put on the shelf what was missing.
    fn effect(
        &mut self,
        effect: Effect<Product, Files, Ticket>,
        reply: Option<&Reply<Product>>,
        outs: &mut Vec<Out>,
    ) -> Result<bool, Stopped> {
        match effect {
            Effect::Journal(record) => {
                self.disk.write(&record)?;
                if let EngineRecord::Floor { note, .. } = &record {
                    self.times.met(note.note());
                }
            }
            Effect::Sync => self.disk.sync()?,
            Effect::Send(request) => outs.push(Out::Send(request)),
            Effect::Store(blocks) => outs.push(Out::Store(pack(blocks)?)),
            Effect::Again(entry) => outs.push(Out::SendAgain(entry)),
            Effect::Fetch(missing) => return Ok(self.look(&missing, outs)?),
            Effect::Answer {
                ticket: UNASKED, ..
            }
            | Effect::Busy(UNASKED) => self.tidy.folded(),
            Effect::Answer {
                ticket,
                answer,
                at,
                marked,
            } => outs.push(Out::Answer {
                ticket,
                answer,
                at,
                marked,
            }),
            Effect::Busy(ticket) => outs.push(Out::Busy(ticket)),
            Effect::Withdrawn(UNASKED) => self.tidy.unstored(),
            Effect::Withdrawn(ticket) => outs.push(Out::Withdrawn(ticket)),
            Effect::Unfit(what) => outs.push(Out::Unfit(what)),
            Effect::Differs(attest) => outs.push(Out::Differs(differing(&attest))),
            Effect::Stopped(why) => return Err(self.stopped_by(&why, reply)),
        }
        Ok(false)
    }

    fn stopped_by(&self, why: &StopReason<Product>, reply: Option<&Reply<Product>>) -> Stopped {
        match why {
            StopReason::Elsewhere => Stopped::Elsewhere,
            StopReason::Unsigned => Stopped::Unsigned,
            StopReason::Evidence(evidence) => self.court.convict(evidence, reply, &self.disk),
        }
    }

    /// The log must begin as the invitation says, before anything of it is written down or used.
    fn check_beginning(&mut self) -> Result<(), Stopped> {
        let log = self.engine.ledger().log();
        let Some(begins) = self
            .begins
            .filter(|begins| begins.size <= Log::<Product>::size(log))
        else {
            return Ok(());
        };
        if Log::<Product>::root_at(log, begins.size) != Some(begins.root) {
            return Err(Stopped::OtherBeginning);
        }
        self.begins = None;
        Ok(())
    }

    /// Entries of this device that earlier epochs of the log had, or were to have, and that this one does not.
    fn lost(&self) -> Result<Vec<Entry>, DiskError> {
        let device = self.engine.scheme().me();
        let mut here = HashSet::new();
        let mut next = 0;
        while next < self.disk.len() {
            let until = next.saturating_add(CHUNK);
            for (_, leaf) in self.disk.range(next, until)? {
                if let Leaf::Entry(entry) = leaf
                    && Product::author(&entry) == device
                {
                    here.insert(Product::id(&entry));
                }
            }
            next = until;
        }
        let deadline = Instant::now() + PATIENCE;
        let mut lost = Vec::new();
        for memory in &self.before {
            let entries = own_entries(memory, deadline, device)?;
            lost.extend(
                entries
                    .into_iter()
                    .filter(|entry| here.insert(Product::id(entry))),
            );
        }
        Ok(lost)
    }

    /// Whether every entry that was sent has its place in the log, or will never have one.
    pub(super) fn is_settled(&self) -> bool {
        self.disk.is_settled()
    }
}

/// A body of an entry whose hash it has.
pub(super) fn read_body(body: &Bytes) -> Result<Arc<Body>, Reject> {
    Body::decode(body).map(Arc::new)
}

/// Blocks as they are stored.
fn pack(blocks: Vec<Made>) -> Result<Vec<Record>, Stopped> {
    let mut packer = Packer::new();
    let record = |made: Made| {
        let frame = packer.pack(made.kind, &made.bytes).ok()?;
        Some(Record {
            handle: made.handle,
            frame,
        })
    };
    let records: Option<Vec<Record>> = blocks.into_iter().map(record).collect();
    records.ok_or(Stopped::Unsigned)
}

fn differing(attest: &SignedAttest) -> Differing {
    let (device, seen) = Product::attested(attest);
    Differing {
        device,
        size: seen.size,
    }
}
