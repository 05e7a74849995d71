//! The model of a device's engine: queue, journal, floor, checks of what the server sends, the read rule.
//!
//! `deliver` follows the order of the design: limits and form, frontier, own entry or mark, members and resumes, own
//! operations, the read rule, floor, answer. Because all of it is one step here, a kill inside the step is the same as
//! a kill before or after it.

use std::hash::Hash;
use std::rc::Rc;

use share::reading::Silence;

use crate::calls::{Build, Caller, build};
use crate::chain::Chain;
use crate::engine::{ClientEngine, Crash, Output, Timer};
use crate::protocol::{
    Answer, Attest, Body, Call, CallId, Content, Device, Entry, Heading, Incarnation, Leaf, Mark,
    Op, Point, Reply, Request,
};
use crate::rules::{Rule, Rules};
use crate::state::{DEVICES, Outcome, Positions, State};
use crate::wide::Wide;

/// How a device is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    pub rules: Rules,
    pub silence: Silence,
    /// Devices that the genesis policy admits, as bits.
    pub members: u8,
    /// System calls that programs of a device make at a time.
    pub programs: usize,
}

#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) me: Device,
    pub(crate) setup: Setup,
    pub(crate) chain: Chain,
    /// State at the end of `chain`.
    pub(crate) state: Rc<State>,
    /// Size of the floor that was synced last.
    pub(crate) kept: u64,
    pub(crate) synced: Journal,
    pub(crate) journal: Journal,
    pub(crate) incarnation: Incarnation,
    pub(crate) n: u64,
    /// Prefixes of this chain that devices attest by messages.
    pub(crate) attested: [u64; DEVICES],
    pub(crate) flight: Vec<Rc<Entry>>,
    marks: u8,
    pub(crate) running: Vec<Running>,
    pub(crate) status: Status,
    /// A change of this device waits for its next entry.
    confirm: bool,
}

/// What a restart finds of the entries in flight.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    pub entries: Vec<Rc<Entry>>,
    pub calls: Vec<(CallId, Call)>,
}

#[derive(Clone, Debug)]
pub(crate) enum Status {
    /// Not a member, as far as it knows.
    Outside,
    /// Catches up, and then waits for its Resume.
    Resuming {
        sent: Option<Rc<Entry>>,
        again: Vec<(CallId, Call)>,
    },
    Running,
    Stopped,
}

/// A system call that has no answer.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Running {
    pub call: CallId,
    pub what: Call,
    pub stage: Stage,
    /// Entries that were sent for it.
    pub attempts: u8,
    /// The program is gone; the call came from the journal.
    pub orphan: bool,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq)]
pub(crate) enum Stage {
    Queued,
    Sent,
    Marked(Mark),
    /// In the log, and not yet in effect.
    Late,
    /// Its place in the log decides the answer.
    Taken {
        size: u64,
        answer: Answer,
        rests_on: Positions,
    },
}

impl Client {
    pub fn new(me: Device, setup: Setup, log: &Chain) -> Client {
        let state = Rc::new(State::genesis(setup.rules, setup.members));
        let mut client = Client {
            me,
            setup,
            chain: Chain::default(),
            state,
            kept: 0,
            synced: Journal::default(),
            journal: Journal::default(),
            incarnation: 0,
            n: 0,
            attested: [0; DEVICES],
            flight: Vec::new(),
            marks: 0,
            running: Vec::new(),
            status: Status::Running,
            confirm: false,
        };
        client.replay(log);
        client.kept = log.size();
        if client.state.author(me).is_none() {
            client.status = Status::Outside;
        }
        client
    }

    pub(crate) fn rules(&self) -> Rules {
        self.setup.rules
    }

    /// Starts over with this log.
    pub(crate) fn replay(&mut self, log: &Chain) {
        let mut state = State::genesis(self.setup.rules, self.setup.members);
        for (leaf, _) in log.leaves() {
            state.extend(leaf);
        }
        self.state = Rc::new(state);
        self.chain = log.clone();
    }

    fn alarm(&mut self, what: String) -> Vec<Output> {
        self.status = Status::Stopped;
        vec![Output::Alarm(what)]
    }

    /// The leaves of a reply that are new, or why the reply is wrong.
    fn news(&mut self, reply: &Reply) -> Result<Vec<Leaf>, String> {
        let size = reply.extends.size;
        if self.chain.contains(reply.extends) {
            let known = self.chain.since(size);
            let same = known
                .iter()
                .zip(&reply.leaves)
                .all(|(mine, theirs)| mine.id() == theirs.id());
            if same {
                return Ok(reply.leaves.iter().skip(known.len()).cloned().collect());
            }
        }
        if self.rules().has(Rule::Extends) || size != 0 {
            return Err("the log does not extend the one that was verified before".to_owned());
        }
        self.replay(&Chain::default());
        Ok(reply.leaves.clone())
    }

    fn take(&mut self, leaf: &Leaf) -> Result<(), String> {
        if let Leaf::Entry(entry) = leaf {
            self.examine(entry)?;
        }
        let outcomes = Rc::make_mut(&mut self.state).extend(leaf);
        self.chain = self.chain.push(leaf.clone());
        match leaf {
            Leaf::Mark(mark) => self.reached(*mark),
            Leaf::Entry(entry) if entry.body.device == self.me => self.ordered(entry, &outcomes),
            Leaf::Entry(_) => self.admitted(),
        }
        Ok(())
    }

    /// What a client checks of an entry, whoever wrote it.
    fn examine(&self, entry: &Entry) -> Result<(), String> {
        let body = &entry.body;
        if body.signed_by != body.device && self.rules().has(Rule::Signature) {
            return Err("an entry with a wrong signature".to_owned());
        }
        let faults = self.state.faults(&self.chain, body);
        if !faults.is_empty() {
            return Err(format!("an entry of bad form: {faults:?}"));
        }
        let permitted = body
            .ops
            .iter()
            .all(|op| self.state.permitted(body.device, op).0);
        if !permitted && !self.rules().has(Rule::PermissionIsNoForm) {
            return Err("an entry whose author has no permission".to_owned());
        }
        Ok(())
    }

    /// Somebody's entry may have admitted this device.
    fn admitted(&mut self) {
        if matches!(self.status, Status::Outside) && self.state.active(self.me) {
            self.status = Status::Resuming {
                sent: None,
                again: Vec::new(),
            };
        }
    }

    /// A mark is in the log: calls that wait for it look at the state here.
    fn reached(&mut self, mark: Mark) {
        for at in 0..self.running.len() {
            if self.running[at].stage == Stage::Marked(mark) {
                self.running[at].stage = self.look(at).unwrap_or(Stage::Queued);
            }
        }
    }

    /// The answer of a call at the end of the log, if it changes nothing.
    fn look(&self, at: usize) -> Option<Stage> {
        match self.build(at) {
            Build::Says(answer, rests_on) => Some(Stage::Taken {
                size: self.chain.size(),
                answer,
                rests_on,
            }),
            Build::Op(_) | Build::Blocked => None,
        }
    }

    fn build(&self, at: usize) -> Build {
        let running = &self.running[at];
        let caller = Caller {
            device: self.me,
            call: running.call,
            failed: running.attempts,
            rules: self.rules(),
            foldable: self.foldable(),
        };
        build(running.what, &caller, &self.state)
    }

    /// An entry of this device is in the log.
    fn ordered(&mut self, entry: &Rc<Entry>, outcomes: &[Outcome]) {
        if entry.body.heading.resume {
            return self.resumed(entry);
        }
        self.flight.retain(|mine| mine.id != entry.id);
        self.journal.entries.retain(|mine| mine.id != entry.id);
        if self.journal.entries.is_empty() {
            self.journal.calls.clear();
        }
        for at in 0..self.running.len() {
            if self.running[at].stage == Stage::Late {
                let size = self.chain.size();
                self.running[at].stage = Stage::Taken {
                    size,
                    answer: Answer::Done,
                    rests_on: 0,
                };
            }
        }
        for outcome in outcomes {
            let found = self
                .running
                .iter()
                .position(|running| running.call == outcome.call);
            if let Some(at) = found {
                self.running[at].stage = self.decided(at, outcome);
            }
        }
    }

    fn decided(&mut self, at: usize, outcome: &Outcome) -> Stage {
        if outcome.late {
            self.confirm = true;
            return Stage::Late;
        }
        if outcome.effect && outcome.completes {
            let content = Answer::Content(Content(outcome.set));
            let is_append = matches!(self.running[at].what, Call::Append(_));
            let answer = if is_append { content } else { Answer::Done };
            let rests_on = if self.rules().has(Rule::OutcomesWait) {
                outcome.rests_on
            } else {
                0
            };
            return Stage::Taken {
                size: self.chain.size(),
                answer,
                rests_on,
            };
        }
        self.look(at).unwrap_or(Stage::Queued)
    }

    /// A Resume of this device is in the log. If it is the one that was sent, work goes on.
    fn resumed(&mut self, entry: &Rc<Entry>) {
        match &self.status {
            Status::Resuming {
                sent: Some(sent),
                again,
            } if sent.id == entry.id => {
                let executed = self.state.executed;
                let late = self.rules().has(Rule::RerunAfterReceipt);
                let lost = again
                    .iter()
                    .filter(|(call, _)| !late || executed & call.bit() == 0);
                let lost: Vec<_> = lost.copied().collect();
                self.status = Status::Running;
                self.journal = Journal::default();
                self.n = 0;
                for (call, what) in lost {
                    self.running.push(Running {
                        call,
                        what,
                        stage: Stage::Queued,
                        attempts: 0,
                        orphan: true,
                    });
                }
            }
            Status::Running if entry.body.heading.incarnation != self.incarnation => {
                self.status = Status::Stopped;
            }
            _ => {}
        }
    }

    /// Journaled calls as operations again, without knowing whether they were ordered.
    pub(crate) fn ops_again(&mut self, again: &[(CallId, Call)]) -> Vec<Op> {
        let mut ops = Vec::new();
        for (call, what) in again {
            self.running.push(Running {
                call: *call,
                what: *what,
                stage: Stage::Queued,
                attempts: 0,
                orphan: true,
            });
            if let Build::Op(op) = self.build(self.running.len() - 1) {
                ops.push(op);
            }
            self.running.pop();
        }
        ops
    }

    fn learn(&mut self, attest: &Attest) {
        let here = self.chain.contains(Point {
            size: attest.size,
            root: attest.root,
        });
        if here || !self.rules().has(Rule::AttestOnChain) {
            let known = &mut self.attested[usize::from(attest.device)];
            *known = attest.size.max(*known);
        }
    }

    /// Makes entries and marks of what is queued.
    fn pump(&mut self, out: &mut Vec<Output>) {
        if !matches!(self.status, Status::Running) {
            return;
        }
        let limit = if self.rules().has(Rule::OneInFlight) {
            1
        } else {
            2
        };
        let mut ops = Vec::new();
        for at in 0..self.running.len() {
            if self.running[at].stage != Stage::Queued {
                continue;
            }
            match self.build(at) {
                Build::Says(..) => self.send_mark(at, out),
                Build::Op(op) if self.flight.len() < limit => {
                    self.running[at].stage = Stage::Sent;
                    self.running[at].attempts += 1;
                    ops.push(op);
                }
                Build::Op(_) | Build::Blocked => {}
            }
        }
        let confirms = self.confirm && self.flight.is_empty();
        if confirms {
            self.confirm = false;
            self.sync();
        }
        if confirms || !ops.is_empty() {
            self.send(ops, out);
        }
    }

    fn send_mark(&mut self, at: usize, out: &mut Vec<Output>) {
        if !self.rules().has(Rule::MarkForReads) {
            self.running[at].stage = self.look(at).unwrap_or(Stage::Queued);
            return;
        }
        if !self.rules().has(Rule::MarkNotInFlight) {
            let other = self
                .running
                .iter()
                .find(|other| matches!(other.stage, Stage::Marked(_)));
            if let Some(stage) = other.map(|other| other.stage) {
                self.running[at].stage = stage;
                return;
            }
        }
        let mark = Mark {
            device: self.me,
            number: self.marks,
        };
        self.marks += 1;
        self.running[at].stage = Stage::Marked(mark);
        out.push(Output::Send(Request::Mark(mark)));
    }

    fn send(&mut self, ops: Vec<Op>, out: &mut Vec<Output>) {
        let entry = self.sign(self.n + 1, false, ops);
        self.n += 1;
        self.journal.entries.push(entry.clone());
        let calls = entry.body.ops.iter().filter_map(|op| {
            let running = self
                .running
                .iter()
                .find(|running| running.call == op.call)?;
            Some((running.call, running.what))
        });
        self.journal.calls.extend(calls.collect::<Vec<_>>());
        self.flight.push(entry.clone());
        out.push(Output::Send(Request::Entry(entry)));
    }

    pub(crate) fn sign(&self, n: u64, resume: bool, ops: Vec<Op>) -> Rc<Entry> {
        let seen = self.chain.point();
        let last = self
            .state
            .author(self.me)
            .map_or(Default::default(), |author| author.last);
        let heading = Heading {
            incarnation: self.incarnation,
            n,
            previous: self.flight.last().map_or(last, |entry| entry.id),
            seen,
            kept: if self.rules().has(Rule::Kept) {
                self.kept
            } else {
                seen.size
            },
            resume,
            alone: !resume || ops.is_empty(),
        };
        Entry::new(Body {
            device: self.me,
            signed_by: self.me,
            heading,
            ops,
        })
    }
}

impl ClientEngine for Client {
    fn ready(&self) -> bool {
        matches!(self.status, Status::Running) && self.running.len() < self.setup.programs
    }

    fn issue(&mut self, call: CallId, what: Call) -> Vec<Output> {
        let mut out = Vec::new();
        self.running.push(Running {
            call,
            what,
            stage: Stage::Queued,
            attempts: 0,
            orphan: false,
        });
        self.pump(&mut out);
        self.settle(false, &mut out);
        out
    }

    fn deliver(&mut self, reply: &Reply) -> Vec<Output> {
        if matches!(self.status, Status::Stopped) {
            return Vec::new();
        }
        let mut out = Vec::new();
        let news = match self.news(reply) {
            Ok(news) => news,
            Err(what) => return self.alarm(what),
        };
        for leaf in &news {
            if let Err(what) = self.take(leaf) {
                return self.alarm(what);
            }
        }
        for attest in &reply.attests {
            self.learn(attest);
        }
        if reply.refused {
            self.refused();
        }
        self.pump(&mut out);
        self.settle(false, &mut out);
        if !news.is_empty() {
            self.ask(&mut out);
        }
        if reply.asked {
            self.asked(&mut out);
        }
        out
    }

    fn armed(&self, timer: Timer) -> bool {
        self.timer_armed(timer)
    }

    fn timer(&mut self, timer: Timer) -> Vec<Output> {
        let mut out = Vec::new();
        match timer {
            Timer::Sync => self.sync(),
            Timer::Attest => self.attest(&mut out),
            Timer::Timeout => self.settle(true, &mut out),
            Timer::Resume => self.resume(&mut out),
            Timer::Resend => self.resend(&mut out),
        }
        self.pump(&mut out);
        out
    }

    fn crash(&mut self, how: Crash, fresh: Incarnation) -> Vec<Output> {
        self.stop(how);
        let mut out = self.start(fresh);
        self.pump(&mut out);
        out
    }

    fn frontier(&self) -> &Chain {
        &self.chain
    }

    fn kept(&self) -> u64 {
        self.kept
    }

    fn awaits(&self, device: Device) -> bool {
        self.awaited()[usize::from(device)]
            || self
                .running
                .iter()
                .any(|running| running.what == Call::Fold)
    }

    fn attempts(&self) -> u8 {
        self.running
            .iter()
            .map(|running| running.attempts)
            .max()
            .unwrap_or(0)
    }

    fn stopped(&self) -> bool {
        matches!(self.status, Status::Stopped)
    }

    fn state(&self, into: &mut Wide) {
        (
            self.chain.point(),
            self.kept,
            self.incarnation,
            self.n,
            self.attested,
        )
            .hash(into);
        (self.marks, self.confirm, &self.running).hash(into);
        for journal in [&self.journal, &self.synced] {
            journal.calls.hash(into);
            journal.entries.iter().for_each(|entry| entry.id.hash(into));
        }
        self.flight.len().hash(into);
        self.flight.iter().for_each(|entry| entry.id.hash(into));
        match &self.status {
            Status::Outside => 0u8.hash(into),
            Status::Running => 1u8.hash(into),
            Status::Stopped => 2u8.hash(into),
            Status::Resuming { sent, again } => {
                (3u8, again, sent.as_ref().map(|entry| entry.id)).hash(into);
            }
        }
    }
}
