//! The product's client with a disk: what was written stays after kill -9, what was synced stays after a power cut.
//!
//! Effects of one step are all done before the next one, so a kill inside a step is the same as a kill before or after
//! it.

use std::hash::Hash;

use ordering::engine::{Durable, Effect, Engine, Evidence, Record, Setup, StopReason};
use ordering::ledger::Ledger;
use ordering::rows::Rows;

use crate::action::describe;
use crate::chain::Chain;
use crate::engine::{ClientEngine, Crash, Output, Timer};
use crate::protocol::{Call, CallId, Device, Incarnation, Leaf, Point, Reply};
use crate::rules::Rule;
use crate::state::{Asked, State};
use crate::symbolic::Symbolic;
use crate::wide::Wide;

#[derive(Clone, Debug)]
pub struct Client {
    engine: Engine<Symbolic, State, CallId>,
    setup: Setup,
    /// What the device knew when it was set up.
    genesis: Durable<Symbolic, State>,
    written: Durable<Symbolic, State>,
    synced: Durable<Symbolic, State>,
    /// What the newest snapshot has. A restart begins with it, if the device keeps snapshots.
    snapshot: Option<Durable<Symbolic, State>>,
    keeps: bool,
}

impl Client {
    pub fn new(scheme: Symbolic, setup: Setup, durable: Durable<Symbolic, State>) -> Client {
        Client {
            engine: Engine::start(scheme, setup, durable.clone()),
            setup,
            genesis: durable.clone(),
            written: durable.clone(),
            synced: durable,
            snapshot: None,
            keeps: false,
        }
    }

    /// It writes a snapshot whenever its floor is synced.
    pub fn that_keeps_snapshots(self, keeps: bool) -> Client {
        Client { keeps, ..self }
    }

    /// Everything that it has is synced: it may write a snapshot.
    fn keep(&mut self) {
        let ledger = self.engine.ledger();
        if !self.keeps || self.synced.ledger.point() != ledger.point() {
            return;
        }
        let says = self.engine.scheme().has(Rule::SnapshotUnverified);
        self.snapshot = Some(match says {
            true => self.engine.snapshot(),
            false => Durable::new(Ledger::clone(ledger)),
        });
    }

    /// What a restart begins with: the snapshot and the leaves after it, or all leaves.
    fn found(&self) -> Durable<Symbolic, State> {
        let Some(mut found) = self.snapshot.clone() else {
            return self.written.clone();
        };
        let log = self.written.ledger.log();
        assert!(
            log.contains(found.ledger.point()),
            "it is ahead of the floor"
        );
        for leaf in log.since(found.ledger.size()) {
            found.extend(&leaf);
        }
        found.sent = self.written.sent.clone();
        if let Some(note) = self.written.ledger.note() {
            std::sync::Arc::make_mut(&mut found.ledger).met(note);
        }
        found
    }

    /// Another device that knows what this one knows.
    pub fn as_device(&self, device: Device) -> Client {
        let scheme = self.engine.scheme().as_device(device);
        Client::new(scheme, self.setup, self.written.clone())
    }

    /// Without the rule that a reply extends what was verified: starts over with any log that the server shows.
    fn start_over(&mut self, reply: &Reply) {
        let mut durable = self.genesis.clone();
        durable.apply(&Record::Floor {
            leaves: reply.leaves.clone(),
            note: reply.note,
        });
        let scheme = *self.engine.scheme();
        self.engine = Engine::start(scheme, self.setup, durable.clone());
        (self.written, self.synced) = (durable.clone(), durable);
        self.snapshot = None;
    }

    /// Does what the engine wants done.
    fn act(&mut self, effects: Vec<Effect<Symbolic, State, CallId>>) -> Vec<Output> {
        let (mut out, mut synced) = (Vec::new(), false);
        for effect in effects {
            match effect {
                Effect::Journal(record) => self.written.apply(&record),
                Effect::Fetch(missing) => match missing {},
                Effect::Store(blocks) => assert!(blocks.is_empty(), "this volume has no blocks"),
                Effect::Sync => {
                    self.synced = self.written.clone();
                    synced = true;
                }
                Effect::Send(request) => out.push(Output::Send(request)),
                Effect::Again(_) => panic!("no block is missing here"),
                Effect::Answer {
                    ticket,
                    answer,
                    at,
                    marked,
                } => {
                    let prefix = self.frontier().prefix(at);
                    out.push(Output::Answer {
                        call: ticket,
                        answer,
                        at: prefix.expect("an answer beyond the log").point(),
                        marked: marked.all(),
                    });
                }
                Effect::Unfit(what) => out.push(Output::Alarm(what.to_owned())),
                Effect::Stopped(StopReason::Evidence(evidence)) => {
                    out.push(Output::Alarm(tell(&evidence)));
                }
                Effect::Stopped(StopReason::Unsigned) => panic!("an entry without encoding"),
                // The check `Stops` looks for this.
                Effect::Stopped(StopReason::Elsewhere) | Effect::Differs(_) => {}
                Effect::Busy(call) => panic!("{call:?} was not taken"),
                Effect::Withdrawn(_) => panic!("no block is missing here"),
            }
        }
        if synced {
            self.keep();
        }
        out
    }
}

/// Evidence for people to read.
fn tell(evidence: &Evidence<Symbolic>) -> String {
    match evidence {
        Evidence::Form {
            at,
            entry,
            faults,
            malformed,
            ..
        } => {
            let entry = describe(&Leaf::Entry(entry.clone()));
            let what = malformed.unwrap_or("bad form");
            format!("at {at}, {what} {faults:?}: {entry}")
        }
        Evidence::Start { note, .. } => {
            format!("a log of size {} without the owners' prefix", note.size)
        }
        Evidence::Notes { mine, theirs, .. } => {
            format!("two logs, of sizes {} and {}", mine.size, theirs.size)
        }
    }
}

impl ClientEngine for Client {
    fn ready(&self) -> bool {
        self.engine.is_running() && self.engine.calls().count() < self.setup.calls
    }

    fn issue(&mut self, call: CallId, what: Call) -> Vec<Output> {
        let effects = self.engine.issue([(call, Asked { call, what })]);
        self.act(effects)
    }

    fn deliver(&mut self, reply: &Reply) -> Vec<Output> {
        let extends = self.frontier().contains(reply.note) || reply.from > 0;
        if !extends && !self.engine.scheme().has(Rule::Extends) {
            self.start_over(reply);
        }
        let effects = self.engine.deliver(reply);
        self.act(effects)
    }

    fn armed(&self, timer: Timer) -> bool {
        match timer {
            Timer::Sync => self.engine.armed(ordering::engine::Timer::Sync),
            Timer::Attest => self.engine.armed(ordering::engine::Timer::Attest),
            Timer::Resume => self.engine.armed(ordering::engine::Timer::Resume),
            Timer::Timeout => self.engine.waiting().next().is_some(),
            Timer::Resend => !self.engine.is_stopped(),
            Timer::Lapse => self.engine.armed(ordering::engine::Timer::Lapse),
        }
    }

    fn timer(&mut self, timer: Timer) -> Vec<Output> {
        let effects = match timer {
            Timer::Sync => self.engine.ring(ordering::engine::Timer::Sync),
            Timer::Attest => self.engine.ring(ordering::engine::Timer::Attest),
            Timer::Resume => self.engine.ring(ordering::engine::Timer::Resume),
            Timer::Timeout => self.engine.give_up(|_| true),
            Timer::Resend => self.engine.connected(),
            Timer::Lapse => self.engine.ring(ordering::engine::Timer::Lapse),
        };
        self.act(effects)
    }

    fn crash(&mut self, how: Crash, fresh: Incarnation) -> Vec<Output> {
        if self.engine.is_stopped() {
            return Vec::new();
        }
        if how == Crash::Power {
            self.written = self.synced.clone();
        }
        let scheme = self.engine.scheme().with_fresh(fresh);
        self.engine = Engine::start(scheme, self.setup, self.found());
        let effects = self.engine.connected();
        self.act(effects)
    }

    fn cancel(&mut self, call: CallId) {
        self.engine.cancel(call);
    }

    fn begin(&self, from: &Client, fresh: Incarnation) -> Option<(Client, Vec<Output>)> {
        let scheme = self.engine.scheme();
        let ledger = from.engine.ledger();
        let size = ledger.size();
        let attested = from.engine.foldable() >= size && !from.engine.is_unverified();
        let kept = from.synced.ledger.size() >= size;
        let signs = (attested || !scheme.has(Rule::CheckpointAttested))
            && (kept || !scheme.has(Rule::CheckpointKept));
        if !signs || size == 0 {
            return None;
        }
        let mut authors = Rows::default();
        for (device, row) in ledger.authors() {
            authors.insert(device, *row);
        }
        let begun = Ledger::begin(
            ledger.log().clone(),
            authors,
            ledger.volume().clone(),
            *ledger.note()?,
        );
        let scheme = scheme.with_fresh(fresh);
        let mut client =
            Client::new(scheme, self.setup, Durable::new(begun)).that_keeps_snapshots(self.keeps);
        client.genesis = self.genesis.clone();
        let effects = client.engine.connected();
        let outputs = client.act(effects);
        Some((client, outputs))
    }

    fn follow(&mut self, start: Point, fresh: Incarnation) -> Vec<Output> {
        let scheme = self.engine.scheme().in_epoch_from(start).with_fresh(fresh);
        (self.written, self.synced) = (self.genesis.clone(), self.genesis.clone());
        // The next epoch has a memory of its own.
        self.snapshot = None;
        self.engine = Engine::start(scheme, self.setup, self.genesis.clone());
        let effects = self.engine.connected();
        self.act(effects)
    }

    fn start(&self) -> Option<Point> {
        ordering::scheme::Scheme::start(self.engine.scheme())
    }

    fn frontier(&self) -> &Chain {
        self.engine.ledger().log()
    }

    fn kept(&self) -> u64 {
        self.engine.kept()
    }

    fn awaits(&self, device: Device) -> bool {
        self.engine.awaited().contains(&device)
            || self.engine.calls().any(|asked| asked.what == Call::Fold)
    }

    fn attempts(&self) -> u8 {
        self.engine.attempts()
    }

    fn watched(&self) -> Option<u64> {
        self.engine.watched()
    }

    fn stopped(&self) -> bool {
        self.engine.is_stopped()
    }

    fn state(&self, into: &mut Wide) {
        (&self.engine, self.engine.scheme()).hash(into);
        (&self.written, &self.synced, &self.snapshot).hash(into);
    }
}
