//! Devices, an orderer and a block store in memory. Bodies of entries do not come with deliveries, unless they decide
//! about members: devices fetch them. Everything goes in turns, or at random speeds by a seed.

mod carry;
mod desk;
mod trouble;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use ordering::engine::{
    Alarm, Delays, Durable, Effect, Engine, Record, Reply, Request, Setup, Timer,
};
use ordering::ledger::Ledger;
use ordering::orderer::{Limits, Orderer, Unlimited};
use ordering::prefixes::Recent;
use ordering::read_rule::Silence;
use ordering::roster::{Product, Roster};
use ordering::scheme::{DeviceScheme, Leaf};
use ordering::signed::Entry;
use ordering::volume::Roll;
use share::files::{Answer, Basis, Call, Files, Shelf, ShelfBytes, Stamped};
use share::outbox::{Flight, Outbox, Unstored};
use trust::array::ArrayRoot;
use trust::device::DeviceKey;
use trust::{Handle, Record as Block};
use trust_shared::change::Change;
use trust_shared::decision::{Decision, Label, Role};
use trust_shared::effect::Missing;
use trust_shared::form::Heading;
use trust_shared::genesis::Policies;
use trust_shared::ops::{Body, Op};
use trust_shared::principal::{Device, FileId};

use desk::{Desk, Storing, Up, packed};

use crate::world::{carried, device, hash_of, key, ops, orderer, policies, scheme, user};

type Effects = Vec<Effect<Product, Files, u64>>;

pub struct Node {
    pub engine: Engine<Product, Files, u64>,
    alarm: Alarm<u64>,
    journal: Vec<Record<Product, Files>>,
    synced: usize,
    up: VecDeque<Up>,
    outbox: Outbox,
    /// What the server says of batches of blocks.
    acks: VecDeque<(u64, Result<(), Unstored>)>,
    /// Which of the blocks that were asked for the server lacks.
    touched: Option<Vec<Handle>>,
    /// Content of calls of an earlier run. The device resumes when it knows which of it the server has.
    unchecked: Vec<ArrayRoot>,
    retry_at: Option<u64>,
    /// Calls that were taken back.
    pub withdrawn: BTreeSet<u64>,
    down: VecDeque<Reply<Product>>,
    connected: bool,
    missing: VecDeque<Missing>,
    pub answers: BTreeMap<u64, (Answer, Basis)>,
    /// Sizes of the prefixes at whose ends the calls took place.
    pub ends: BTreeMap<u64, u64>,
    /// Why it stopped.
    pub stopped: Option<String>,
    /// It does nothing on its own.
    pub asleep: bool,
    /// No connection can be made.
    pub offline: bool,
}

pub struct Net {
    seed: u64,
    drawn: u64,
    pub now_ms: u64,
    pub nodes: Vec<Node>,
    pub server: Orderer<Product, Roster>,
    pub stored: Vec<Leaf<Product>>,
    committing: Vec<Leaf<Product>>,
    pub blocks: HashMap<Handle, Bytes>,
    desks: Vec<Desk>,
    storing: Vec<Storing>,
    /// Of 1,000 batches of blocks the server refuses so many.
    pub refuses: u64,
    /// Each content that an entry sets must be at the server before it.
    pub watches_blocks: bool,
    /// Entries that were not ordered, because blocks before them were missing.
    pub unstored: u64,
    tickets: u64,
    shelf_bytes: usize,
    pub fetched: u64,
    pub entries: u64,
    /// Bodies come with deliveries, as the product's server sends them when they are short, and a message does not wait
    /// for those before it.
    pub whole: bool,
    /// Blocks come at each so many milliseconds only: the server is far away, and bodies are in the floor.
    pub blocks_ms: u64,
    policies: Policies,
}

const SETUP: Setup = Setup {
    silence: Silence::Strict,
    calls: 64,
};

impl Net {
    /// A volume with so many devices, each of its own user, who may all write.
    pub fn new(devices: usize, seed: u64) -> Net {
        let mut net = Net::founded(seed, 64 << 20);
        (1..devices).for_each(|number| net.admit(number, Some(Role::Writer)));
        net
    }

    /// A volume with its founder, and devices that keep so much.
    pub fn founded(seed: u64, shelf_bytes: usize) -> Net {
        let policies = policies();
        let volume = policies.chain().volume();
        let roster = Roster::new(volume, policies.founder()).unwrap();
        let ledger = Ledger::new(Recent::default(), roster);
        let scheme = scheme(&policies, orderer(), seed);
        let mut net = Net {
            seed,
            drawn: 0,
            now_ms: 0,
            nodes: Vec::new(),
            server: Orderer::start(scheme, Limits::default(), Unlimited, ledger),
            stored: Vec::new(),
            committing: Vec::new(),
            blocks: HashMap::new(),
            desks: Vec::new(),
            storing: Vec::new(),
            refuses: 0,
            watches_blocks: false,
            unstored: 0,
            tickets: 0,
            shelf_bytes,
            fetched: 0,
            entries: 0,
            whole: false,
            blocks_ms: 1,
            policies,
        };
        net.start();
        net
    }

    /// One more device, which is no member yet.
    pub fn start(&mut self) -> usize {
        let number = self.nodes.len();
        let (engine, unchecked) = self.engine(number, &[]);
        self.desks.push(Desk::default());
        self.nodes.push(Node {
            engine,
            alarm: Alarm::new(Delays::default()),
            journal: Vec::new(),
            synced: 0,
            up: VecDeque::new(),
            outbox: Outbox::default(),
            acks: VecDeque::new(),
            touched: None,
            unchecked,
            retry_at: None,
            withdrawn: BTreeSet::new(),
            down: VecDeque::new(),
            connected: false,
            missing: VecDeque::new(),
            answers: BTreeMap::new(),
            ends: BTreeMap::new(),
            stopped: None,
            asleep: false,
            offline: false,
        });
        number
    }

    fn engine(
        &self,
        number: usize,
        journal: &[Record<Product, Files>],
    ) -> (Engine<Product, Files, u64>, Vec<ArrayRoot>) {
        let shelf = Arc::new(Shelf::new(ShelfBytes::each(self.shelf_bytes)));
        let files = Files::new(&self.policies, shelf).unwrap();
        let files = files.of(device(number));
        let mut durable = Durable::new(Ledger::new(Recent::default(), files));
        journal.iter().for_each(|record| durable.apply(record));
        let seed = self.seed << 16 | (number as u64) << 8 | (self.drawn & 0xff);
        let calls = durable.sent.iter().flat_map(|sent| &sent.calls);
        let unchecked: Vec<_> = calls.flat_map(|call| call.call.arrays()).collect();
        let mut engine = Engine::start(scheme(&self.policies, key(number), seed), SETUP, durable);
        if !unchecked.is_empty() {
            engine.wait_to_resume();
        }
        (engine, unchecked)
    }

    /// Device 0 adds a user with one device, which may do this with everybody's files.
    pub fn admit(&mut self, number: usize, role: Option<Role>) {
        while self.nodes.len() <= number {
            self.start();
        }
        let label = Label::new(&format!("user {number}")).unwrap();
        let user = user(number);
        self.decide(0, Decision::AddUser { user, label });
        self.decide(
            0,
            Decision::AdmitDevice {
                device: Device(number as u32),
                key: key(number).public(),
                user,
            },
        );
        if let Some(role) = role {
            let group = self.root().principal;
            self.decide(0, Decision::Grant { group, user, role });
        }
        self.rest();
        assert!(self.nodes[number].engine.is_running());
    }

    pub fn decide(&mut self, at: usize, decision: Decision) {
        assert_eq!(self.call(at, Call::Decide(decision)), Answer::Settled);
    }

    pub fn files(&self, at: usize) -> &Files {
        self.nodes[at].engine.ledger().volume()
    }

    pub fn root(&self) -> FileId {
        self.files(0).terms().root
    }

    /// Whether a device has an entry on its way to the server.
    pub fn sends_entry(&self, at: usize) -> bool {
        let mut up = self.nodes[at].up.iter();
        up.any(|up| matches!(up, Up::Request(Request::Entry(_))))
    }

    /// Whether somebody has the lock of a file, as the log says.
    pub fn locked(&self, file: FileId) -> bool {
        let mut holder = None;
        for (at, entry) in self.stored_entries() {
            if entry.signed().entry().is_resume() {
                continue;
            }
            let ops = ops(&self.body(at));
            let author = entry.signed().entry().device;
            for change in ops.iter().flat_map(|op| &op.changes) {
                match change {
                    Change::Lock { file: locked } | Change::Claim { file: locked }
                        if *locked == file && holder.is_none() =>
                    {
                        holder = Some(author);
                    }
                    Change::Pass { file: passed, to }
                        if *passed == file && holder == Some(author) =>
                    {
                        let to = self.files(0).members().key(*to).unwrap();
                        holder = holder.and(Some(DeviceKey::from(to)));
                    }
                    Change::Unlock { file: unlocked } if *unlocked == file => {
                        holder = holder.filter(|holder| *holder != author);
                    }
                    _ => {}
                }
            }
        }
        holder.is_some()
    }

    pub fn random(&mut self, bound: u64) -> u64 {
        self.drawn += 1;
        let seed = [self.seed.to_le_bytes(), self.drawn.to_le_bytes()].concat();
        let hash = hash_of(&seed);
        let (first, _) = hash.as_bytes().split_at(8);
        u64::from_le_bytes(first.try_into().unwrap()) % bound
    }

    /// Makes a call, and waits for the answer.
    pub fn call(&mut self, at: usize, call: Call) -> Answer {
        let ticket = self.issue(at, call);
        self.wait(at, ticket)
    }

    pub fn issue(&mut self, at: usize, call: Call) -> u64 {
        self.issue_all(at, vec![call])[0]
    }

    /// Makes a call that travels with its blocks.
    pub fn issue_with(&mut self, at: usize, call: Call, blocks: Vec<Block>) -> u64 {
        let flight = Flight::of(blocks, None);
        self.nodes[at].outbox.keep(self.tickets + 1, flight);
        self.fly(at);
        self.issue(at, call)
    }

    /// Makes calls together.
    pub fn issue_all(&mut self, at: usize, calls: Vec<Call>) -> Vec<u64> {
        let first = self.tickets + 1;
        self.tickets += calls.len() as u64;
        let tickets: Vec<u64> = (first..=self.tickets).collect();
        // The clocks of all devices are right.
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(self.now_ms);
        let time = time.into();
        let calls = calls.into_iter().map(|call| Stamped { time, call });
        let calls = tickets.iter().copied().zip(calls);
        let effects = self.nodes[at].engine.issue(calls);
        self.act(at, effects);
        tickets
    }

    pub fn wait(&mut self, at: usize, ticket: u64) -> Answer {
        for _ in 0..20_000 {
            if let Some((answer, basis)) = self.nodes[at].answers.get(&ticket) {
                assert_eq!(*basis, Basis::default(), "nothing is marked when strict");
                return answer.clone();
            }
            self.turn();
        }
        panic!("seed {}: no answer at device {at}", self.seed);
    }

    /// Goes on until nothing happens any more.
    pub fn rest(&mut self) {
        for _ in 0..20_000 {
            self.turn();
            let idle = self.nodes.iter().all(|node| {
                let all = node.engine.ledger().size() == self.server.published();
                let quiet = node.down.is_empty() && node.up.is_empty() && node.missing.is_empty();
                let quiet = quiet && node.acks.is_empty() && node.retry_at.is_none();
                let attests = node.engine.armed(Timer::Attest) || node.engine.armed(Timer::Resume);
                node.asleep || node.stopped.is_some() || (all && quiet && !attests)
            });
            let is_stored = self.storing.is_empty();
            if idle && is_stored && !self.server.waits() && self.committing.is_empty() {
                return;
            }
        }
        panic!("seed {}: no rest", self.seed);
    }

    /// Everybody does one step.
    pub fn turn(&mut self) {
        for at in 0..self.nodes.len() {
            if self.nodes[at].asleep || self.nodes[at].stopped.is_some() {
                continue;
            }
            if !self.nodes[at].connected {
                self.connect(at);
            }
            self.serve(at);
            self.draw(at);
            self.take(at);
            self.hear(at);
            self.fetch(at);
        }
        self.sync();
        self.commit();
        self.committed();
        self.tick(1);
    }

    /// Some device does one of its steps.
    pub fn step(&mut self) {
        let at = self.random(self.nodes.len() as u64) as usize;
        match self.random(10) {
            0 if !self.nodes[at].connected => self.connect(at),
            0..=2 => self.serve(at),
            3 => {
                self.commit();
                self.hear(at);
            }
            4 => {
                self.committed();
                self.sync();
            }
            5 => self.draw(at),
            6..=7 => self.take(at),
            8 => self.fetch(at),
            _ => self.tick(1),
        }
    }

    fn act(&mut self, at: usize, effects: Effects) {
        for effect in effects {
            self.effect(at, effect);
        }
        self.fly(at);
        let node = &mut self.nodes[at];
        node.alarm.set(self.now_ms, &node.engine);
    }

    fn effect(&mut self, at: usize, effect: Effect<Product, Files, u64>) {
        let node = &mut self.nodes[at];
        match effect {
            Effect::Journal(record) => node.journal.push(record),
            Effect::Sync => node.synced = node.journal.len(),
            Effect::Store(made) => node.outbox.store(packed(made)),
            Effect::Send(request) if node.connected => self.send(at, request),
            Effect::Send(_) => {}
            Effect::Again(entry) if node.connected => self.again(at, entry),
            Effect::Again(_) => {}
            Effect::Fetch(missing) if node.missing.contains(&missing) => {}
            Effect::Fetch(missing) => node.missing.push_back(missing),
            Effect::Answer {
                ticket,
                answer,
                at,
                marked,
            } => {
                node.outbox.answered(ticket);
                node.ends.insert(ticket, at);
                node.answers.insert(ticket, (answer, marked));
            }
            Effect::Busy(ticket) => panic!("no room for {ticket}"),
            Effect::Withdrawn(ticket) => {
                node.outbox.answered(ticket);
                node.withdrawn.insert(ticket);
            }
            Effect::Unfit(what) => node.stopped = Some(what.to_owned()),
            Effect::Stopped(why) => node.stopped = Some(format!("{why:?}")),
            Effect::Differs(attest) => panic!("seed {}: {attest:?}", self.seed),
        }
    }

    fn connect(&mut self, at: usize) {
        if self.nodes[at].offline {
            return;
        }
        self.leave(at);
        let node = &mut self.nodes[at];
        node.connected = true;
        self.touch(at);
        let node = &mut self.nodes[at];
        node.alarm.connected();
        let effects = node.engine.connected();
        self.act(at, effects);
    }

    fn serve(&mut self, at: usize) {
        self.order(at);
        while let Some(up) = self.nodes[at].up.pop_front() {
            self.took(at, up);
            self.order(at);
            if !self.whole {
                break;
            }
        }
    }

    fn receive(&mut self, at: usize, request: &Request<Product>) {
        if let Request::Entry(entry) = request {
            self.entries += 1;
            assert_eq!(self.server.ledger().volume().malformed(entry), None);
            self.check_blocks(entry);
        }
        self.server.receive(device(at), request).unwrap();
    }

    /// A member writes these ops, whatever its client would do.
    pub fn inject(&mut self, at: usize, ops: Vec<Op>) -> u64 {
        self.rest();
        let seen = self.server.ledger().point();
        let row = self.server.ledger().author(device(at)).copied().unwrap();
        let heading = Heading {
            incarnation: row.incarnation,
            n: row.n + 1,
            previous: row.last,
            seen,
            kept: seen.size,
            resume: false,
            alone: true,
        };
        let entry = self.nodes[at].engine.scheme().sign(heading, ops).unwrap();
        self.receive(at, &Request::Entry(entry));
        self.commit();
        self.committed();
        seen.size
    }

    /// A member confirms what is in the log, whatever its client would do.
    pub fn vouch(&mut self, at: usize) {
        let seen = self.server.ledger().point();
        let attest = self.nodes[at].engine.scheme().attest(seen).unwrap();
        self.receive(at, &Request::Attest(attest));
    }

    /// The clock of one device is far ahead: the time to live of locks that it waits for is over.
    pub fn hurry(&mut self, at: usize) -> bool {
        let engine = &mut self.nodes[at].engine;
        let waits = engine.armed(Timer::Lapse);
        if waits {
            let effects = engine.ring(Timer::Lapse);
            self.act(at, effects);
        }
        waits
    }

    /// A turn in which nothing that is missed arrives.
    pub fn turn_without_fetching(&mut self) {
        let missing: Vec<_> = self
            .nodes
            .iter_mut()
            .map(|node| std::mem::take(&mut node.missing))
            .collect();
        self.turn();
        for (node, missing) in self.nodes.iter_mut().zip(missing) {
            node.missing.extend(missing);
        }
    }

    /// The records that a device has written.
    pub fn journal(&self, at: usize) -> &[Record<Product, Files>] {
        &self.nodes[at].journal
    }

    /// Device 0 counts what a silent device has written.
    pub fn accept(&mut self, number: u32) {
        self.rest();
        let device = Device(number);
        self.decide(0, Decision::Accept { device });
    }

    /// The members of an empty log.
    pub fn first_roster(&self) -> Roster {
        let volume = self.policies.chain().volume();
        Roster::new(volume, self.policies.founder()).unwrap()
    }

    /// The entries of the log, with their bodies.
    pub fn stored_entries(&self) -> Vec<(u64, Entry)> {
        let leaves = (0..).zip(&self.stored);
        let entries = leaves.filter_map(|(at, leaf)| match leaf {
            Leaf::Entry(entry) => Some((at, entry.clone())),
            Leaf::Marks(_) => None,
        });
        entries.collect()
    }

    /// The body of the entry at a position.
    pub fn body(&self, position: u64) -> Bytes {
        match &self.stored[position as usize] {
            Leaf::Entry(entry) => entry.body().unwrap().clone(),
            Leaf::Marks(_) => panic!("marks have no body"),
        }
    }

    pub fn tick(&mut self, ms: u64) {
        self.now_ms += ms;
        for at in 0..self.nodes.len() {
            let node = &mut self.nodes[at];
            let next = node.alarm.next(&node.engine);
            if !node.asleep && next.is_some_and(|next| next <= self.now_ms) {
                let effects = node.alarm.ring(self.now_ms, &mut node.engine);
                self.act(at, effects);
            }
            self.retry(at);
        }
    }

    /// Every device has the same log, and none has stopped.
    pub fn check(&self) {
        let log = self.server.ledger().point();
        for node in &self.nodes {
            assert_eq!(node.stopped, None, "seed {}", self.seed);
            assert_eq!(node.engine.ledger().point(), log, "seed {}", self.seed);
        }
    }
}
