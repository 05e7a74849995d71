//! The client of one device: a state machine without input, output, clock or randomness of its own.
//!
//! It takes calls of programs, messages of the server, and timers that ring. It gives [`Effect`]s, which are done one
//! after the other. It knows the log that it has verified ([`Ledger`]), and nothing else. A restart
//! begins with what was journaled ([`Durable`]) and a fresh incarnation.
//!
//! | file | what it decides |
//! |---|---|
//! | `mod` | what is called from outside |
//! | `effect` | messages, effects, the journal |
//! | `take` | whether a reply is right, and what its leaves mean for this device |
//! | `verify`, `unverified` | signatures of entries, before anything rests on them |
//! | `send` | which entries and marks are sent |
//! | `waiting` | the read rule, Attests, answers, locks of other devices |
//! | `resume` | beginning a new incarnation |
//! | `alarm` | deadlines for the timers |

mod alarm;
mod effect;
mod resume;
mod send;
mod take;
mod unverified;
mod verify;
mod waiting;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

pub use alarm::{Alarm, Delays};
pub use unverified::Unverified;

pub use effect::{Durable, Effect, Evidence, Record, Reply, Request, Sent, StopReason};

use crate::ledger::Ledger;
use crate::read_rule::Silence;
use crate::rows::Rows;
use crate::scheme::{DeviceScheme, Leaf};
use crate::volume::Volume;

/// How a device is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The volume's policy for silent authors.
    pub silence: Silence,
    /// Calls that wait at a time. Others are refused.
    pub calls: usize,
}

/// A clock of the engine that may ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Timer {
    /// Floor and journal are synced, at most a second late.
    Sync,
    /// After a short idle time: the device attests what it has seen.
    Attest,
    /// All that the server has was taken: the device begins its incarnation.
    Resume,
    /// The time to live of locks, which begins anew when [`Engine::watched`] changes.
    Lapse,
}

/// The client of one device. `T` names a call to whom made it.
pub struct Engine<S: DeviceScheme, V: Volume<S>, T> {
    scheme: S,
    setup: Setup,
    ledger: Arc<Ledger<S, V>>,
    unverified: Unverified<S>,
    /// Leaves that were checked and are not in the journal yet.
    news: Vec<Leaf<S>>,
    /// The journal has records that are not synced.
    unsynced: bool,
    /// Size of the floor that was synced last.
    kept: u64,
    incarnation: S::Incarnation,
    /// Number of the last entry that was signed.
    n: u64,
    /// Prefixes of this log that devices attest by messages.
    attested: Rows<S::Device, u64>,
    /// Entries that were sent and are not in the log. Of this incarnation at most one.
    flight: Vec<S::Entry>,
    running: Vec<Running<S, V, T>>,
    status: Status<S>,
    /// A change of this device waits for its next entry.
    confirm: bool,
    /// Somebody wants an Attest, and an entry was in flight: the next entry attests all that is here then.
    owes: bool,
    /// Others change what this device changes.
    contended: bool,
    /// Size of the log with the last entry of this device that made what a call asked for.
    wrote: u64,
    /// Size of the log when this device began to wait out locks.
    watched: Option<u64>,
    /// A prefix that it has known for the time to live of locks.
    lapsed: u64,
    /// Something is fetched that says whether it has taken what it does not use.
    looks: bool,
    /// The device does not resume yet ([`Engine::wait_to_resume`]).
    waits: bool,
    forgotten: Forgotten,
}

/// Entries of this device that came with the log, and that its journal does not have. A power cut can take entries from
/// the journal, and so does a backup of the files that is put back. Otherwise somebody else has signed them with this
/// device's key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// How many they are.
    pub entries: u64,
    /// Position of the last one.
    pub last_at: u64,
}

#[derive(Clone)]
enum Status<S: DeviceScheme> {
    /// Not a member, as far as it knows.
    Outside,
    /// Catches up, and then waits for its Resume.
    Resuming { sent: Option<S::Entry> },
    /// Reads and writes.
    Running,
    /// Writes no more.
    Stopped,
}

/// A call that has no answer.
struct Running<S: DeviceScheme, V: Volume<S>, T> {
    /// None: the program is gone.
    ticket: Option<T>,
    call: V::Call,
    stage: Stage<S, V>,
    /// Entries that were sent for it.
    attempts: u8,
    /// Size of the log at which it came to an operation. It is built again when an entry can have it, or the log has
    /// grown: else each step would build all that wait for the entry in flight. Nothing depends on it.
    built: Option<u64>,
    /// No entry may have it any more ([`Engine::withdraw`]).
    withdrawn: bool,
}

enum Stage<S: DeviceScheme, V: Volume<S>> {
    Queued,
    /// Something must be fetched before it is known what the call comes to.
    Fetching,
    /// It is an operation of the entry in flight with this number.
    Sent {
        n: u64,
        op: usize,
    },
    Marked(S::Mark),
    /// Its mark is in the log. Something must be fetched before the answer is known.
    Reading,
    /// It is an operation of the entry at this position. Something must be fetched before its outcome is known.
    Ordered {
        at: u64,
        op: usize,
    },
    /// It is an operation of the entry at this position, and not yet in effect.
    Late {
        at: u64,
        op: usize,
        answer: V::Answer,
    },
    /// Its place in the log decides the answer.
    Taken {
        at: u64,
        answer: V::Answer,
        basis: V::Basis,
    },
}

impl<S: DeviceScheme, V: Volume<S>> Stage<S, V> {
    /// Something must be fetched before it is known what the call does.
    fn is_fetching(&self) -> bool {
        matches!(
            self,
            Stage::Fetching | Stage::Reading | Stage::Ordered { .. }
        )
    }
}

/// Effects, in the order in which they are done.
type Effects<S, V, T> = Vec<Effect<S, V, T>>;

impl<S: DeviceScheme, V: Volume<S>, T: Copy> Engine<S, V, T> {
    /// Starts from what was journaled, with a fresh incarnation. Nothing is sent before [`Engine::connected`].
    pub fn start(mut scheme: S, setup: Setup, durable: Durable<S, V>) -> Self {
        let incarnation = scheme.incarnation();
        let member = durable.ledger.volume().active(scheme.me());
        let mut engine = Engine {
            // What a killed process wrote can be read, and is perhaps not on the disk.
            kept: 0,
            ledger: durable.ledger,
            unverified: durable.unverified,
            scheme,
            setup,
            news: Vec::new(),
            unsynced: true,
            incarnation,
            n: 0,
            attested: Rows::default(),
            flight: Vec::new(),
            running: Vec::new(),
            status: if member {
                Status::Resuming { sent: None }
            } else {
                Status::Outside
            },
            confirm: false,
            owes: false,
            contended: false,
            wrote: 0,
            watched: None,
            lapsed: 0,
            looks: false,
            waits: false,
            forgotten: Forgotten::default(),
        };
        engine.recover(durable.sent);
        engine
    }

    /// Programs make calls, which go together.
    pub fn issue(&mut self, calls: impl IntoIterator<Item = (T, V::Call)>) -> Effects<S, V, T> {
        let mut out = Vec::new();
        for (ticket, call) in calls {
            let stopped = matches!(self.status, Status::Stopped);
            if stopped || self.running.len() >= self.setup.calls {
                out.push(Effect::Busy(ticket));
                continue;
            }
            self.running.push(Running {
                ticket: Some(ticket),
                call,
                stage: Stage::Queued,
                attempts: 0,
                built: None,
                withdrawn: false,
            });
        }
        self.pump(&mut out);
        self.settle(|_| false, &mut out);
        out
    }

    /// The server has replied.
    pub fn deliver(&mut self, reply: &Reply<S>) -> Effects<S, V, T> {
        let mut out = Vec::new();
        if matches!(self.status, Status::Stopped) {
            return out;
        }
        let before = self.ledger.size();
        if let Err(wrong) = self.take(reply, &mut out) {
            self.wrong(wrong, &mut out);
            return out;
        }
        for attest in &reply.attests {
            self.learn(attest, &mut out);
        }
        if let Some(entry) = reply.refused {
            self.refused(entry);
        }
        if let Some(entry) = reply.unstored {
            self.unstored(entry, &mut out);
        }
        if !reply.more {
            self.pump(&mut out);
        }
        self.settle(|_| false, &mut out);
        if self.ledger.size() > before {
            self.ask(&mut out);
        }
        if reply.asked {
            self.asked(&mut out);
        }
        out
    }

    /// There is a new connection to the server. What was sent before may be lost, so it is sent again. The first
    /// connection syncs the journal that the start has read.
    pub fn connected(&mut self) -> Effects<S, V, T> {
        let mut out = Vec::new();
        if !self.is_verified(&mut out) {
            return out;
        }
        if self.kept == 0 {
            self.sync(&mut out);
        }
        self.send_again(&mut out);
        self.pump(&mut out);
        out
    }

    /// Something that the volume missed is here.
    pub fn supplied(&mut self) -> Effects<S, V, T> {
        let mut out = Vec::new();
        self.looks = false;
        for place in 0..self.running.len() {
            let Some(running) = self.running.get_mut(place) else {
                continue;
            };
            match running.stage {
                Stage::Fetching => running.stage = Stage::Queued,
                Stage::Reading => self.look(place, &mut out),
                Stage::Ordered { at, op } => self.decided(place, at, op, &mut out),
                _ => {}
            }
        }
        self.pump(&mut out);
        self.settle(|_| false, &mut out);
        out
    }

    /// A timer rings.
    pub fn ring(&mut self, timer: Timer) -> Effects<S, V, T> {
        let mut out = Vec::new();
        match timer {
            Timer::Sync => self.sync(&mut out),
            Timer::Attest => self.attest(&mut out),
            Timer::Resume => self.resume(&mut out),
            Timer::Lapse => self.lapse(),
        }
        self.pump(&mut out);
        out
    }

    /// Nobody waits for this call any more. What was sent for it may still have effect.
    pub fn cancel(&mut self, ticket: T)
    where
        T: PartialEq,
    {
        let sent = |stage: &Stage<S, V>| matches!(stage, Stage::Sent { .. });
        self.running
            .retain(|running| running.ticket != Some(ticket) || sent(&running.stage));
        for running in &mut self.running {
            if running.ticket == Some(ticket) {
                running.ticket = None;
            }
        }
    }

    /// Whether this timer has something to ring for.
    pub fn armed(&self, timer: Timer) -> bool {
        let works = !matches!(self.status, Status::Outside | Status::Stopped);
        works
            && match timer {
                Timer::Sync => self.ledger.size() > self.kept || self.unsynced,
                Timer::Attest => self.unattested(),
                Timer::Resume => self.must_resume(),
                Timer::Lapse => self.is_running() && self.watched.is_some(),
            }
    }

    /// Other devices change what this one changes, and it does not attest all that it wrote: they may wait for that.
    pub fn hurries(&self) -> bool {
        self.contended && self.unattested() && self.attested(self.scheme.me()) < self.wrote
    }

    /// Calls wait for locks of other devices since the log had this size.
    pub fn watched(&self) -> Option<u64> {
        self.watched
    }

    /// It reads and writes.
    pub fn is_running(&self) -> bool {
        matches!(self.status, Status::Running)
    }

    /// It is no member, as far as it knows.
    pub fn is_outside(&self) -> bool {
        matches!(self.status, Status::Outside)
    }

    /// It writes no more.
    pub fn is_stopped(&self) -> bool {
        matches!(self.status, Status::Stopped)
    }

    /// Calls that have no answer.
    pub fn calls(&self) -> impl Iterator<Item = &V::Call> {
        self.running.iter().map(|running| &running.call)
    }

    /// Entries that were sent for a call that has no answer, at most.
    pub fn attempts(&self) -> u8 {
        let attempts = self.running.iter().map(|running| running.attempts);
        attempts.max().unwrap_or(0)
    }

    /// Entries of this device that it has met since its start and does not remember.
    pub fn forgotten(&self) -> Forgotten {
        self.forgotten
    }

    /// Whether calls ask what became of operations at earlier positions, and wait for what is missing.
    pub fn asks_about_the_past(&self) -> bool {
        let asks = |running: &Running<S, V, T>| matches!(running.stage, Stage::Ordered { .. });
        self.running.iter().any(asks)
    }

    /// The log that it has verified. What it has stays readable here after it has stopped.
    pub fn ledger(&self) -> &Arc<Ledger<S, V>> {
        &self.ledger
    }

    /// Entries whose signatures nobody has verified yet.
    pub fn unverified(&self) -> &Unverified<S> {
        &self.unverified
    }

    /// What a snapshot keeps of this engine, if all that it has is journaled: the verified log, and entries that nobody
    /// has verified.
    pub fn snapshot(&self) -> Durable<S, V> {
        Durable {
            ledger: Arc::clone(&self.ledger),
            sent: Vec::new(),
            unverified: self.unverified.clone(),
        }
    }

    /// Size of the floor that a power cut leaves.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// The device's secrets, and where its randomness comes from.
    pub fn scheme(&self) -> &S {
        &self.scheme
    }
}

impl<S: DeviceScheme, V: Volume<S>, T> fmt::Debug for Engine<S, V, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("device", &self.scheme.me())
            .field("incarnation", &self.incarnation)
            .field("ledger", &self.ledger)
            .field("kept", &self.kept)
            .field("in flight", &self.flight.len())
            .field("calls", &self.running.len())
            .finish_non_exhaustive()
    }
}

impl<S: DeviceScheme, V: Volume<S>, T: Clone> Clone for Engine<S, V, T> {
    fn clone(&self) -> Self {
        Engine {
            scheme: self.scheme.clone(),
            setup: self.setup,
            ledger: Arc::clone(&self.ledger),
            unverified: self.unverified.clone(),
            news: self.news.clone(),
            unsynced: self.unsynced,
            kept: self.kept,
            incarnation: self.incarnation,
            n: self.n,
            attested: self.attested.clone(),
            flight: self.flight.clone(),
            running: self.running.clone(),
            status: self.status.clone(),
            confirm: self.confirm,
            owes: self.owes,
            contended: self.contended,
            wrote: self.wrote,
            watched: self.watched,
            lapsed: self.lapsed,
            looks: self.looks,
            waits: self.waits,
            forgotten: self.forgotten,
        }
    }
}

impl<S: DeviceScheme, V: Volume<S>, T: Clone> Clone for Running<S, V, T> {
    fn clone(&self) -> Self {
        Running {
            ticket: self.ticket.clone(),
            call: self.call.clone(),
            stage: self.stage.clone(),
            attempts: self.attempts,
            built: self.built,
            withdrawn: self.withdrawn,
        }
    }
}

impl<S: DeviceScheme, V: Volume<S>> Clone for Stage<S, V> {
    fn clone(&self) -> Self {
        match self {
            Stage::Queued => Stage::Queued,
            Stage::Fetching => Stage::Fetching,
            Stage::Reading => Stage::Reading,
            Stage::Ordered { at, op } => Stage::Ordered { at: *at, op: *op },
            Stage::Sent { n, op } => Stage::Sent { n: *n, op: *op },
            Stage::Marked(mark) => Stage::Marked(*mark),
            Stage::Late { at, op, answer } => Stage::Late {
                at: *at,
                op: *op,
                answer: answer.clone(),
            },
            Stage::Taken { at, answer, basis } => Stage::Taken {
                at: *at,
                answer: answer.clone(),
                basis: basis.clone(),
            },
        }
    }
}

/// All that decides what it does next, but for the scheme's randomness.
impl<S: DeviceScheme, V: Volume<S>, T: Hash> Hash for Engine<S, V, T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.ledger, self.news.len(), self.unsynced, self.kept).hash(state);
        (self.incarnation, self.n, &self.attested, self.confirm).hash(state);
        (
            self.owes,
            self.contended,
            self.wrote,
            self.looks,
            self.waits,
        )
            .hash(state);
        for (author, _) in self.unverified.iter() {
            author.hash(state);
        }
        (self.watched, self.lapsed, self.flight.len()).hash(state);
        for entry in &self.flight {
            S::id(entry).hash(state);
        }
        self.running.len().hash(state);
        for running in &self.running {
            (&running.ticket, &running.call, running.attempts).hash(state);
            (&running.stage, running.withdrawn).hash(state);
        }
        match &self.status {
            Status::Outside => 0u8.hash(state),
            Status::Running => 1u8.hash(state),
            Status::Stopped => 2u8.hash(state),
            Status::Resuming { sent } => (3u8, sent.as_ref().map(S::id)).hash(state),
        }
    }
}

impl<S: DeviceScheme, V: Volume<S>> Hash for Stage<S, V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Stage::Queued => 0u8.hash(state),
            Stage::Fetching => 5u8.hash(state),
            Stage::Reading => 6u8.hash(state),
            Stage::Ordered { at, op } => (7u8, at, op).hash(state),
            Stage::Sent { n, op } => (1u8, n, op).hash(state),
            Stage::Marked(mark) => (2u8, mark).hash(state),
            Stage::Late { at, op, answer } => (3u8, at, op, answer).hash(state),
            Stage::Taken { at, answer, basis } => (4u8, at, answer, basis).hash(state),
        }
    }
}
