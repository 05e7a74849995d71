//! The product's machines with real hashes and signatures, over a small network in memory: every speed of every
//! message, lost connections, group commits, crashes of devices and of the server, kills inside a step. The server is
//! honest: no alarm, no lost update, no stale read, and in the end every call has its answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ordering::engine::{Alarm, Delays, Durable, Effect, Engine, Reply, Request, Setup, Timer};
use ordering::ledger::Ledger;
use ordering::orderer::{Limits, Orderer, Turned, Unlimited};
use ordering::prefixes::{PAGE, Recent};
use ordering::read_rule::Silence;

use crate::protocol::Id;
use crate::real::{DEVICES, Leaf, Real, device, ops, real};
use crate::tally::{Block, Call, Shelf, Tally, named};

const SETUP: Setup = Setup {
    silence: Silence::Strict,
    calls: 16,
};
const COUNTERS: u8 = 3;

type Effects = Vec<Effect<Real, Tally, u64>>;

/// From a device to the server.
enum Up {
    Store(Block),
    Request(Request<Real>),
}

struct Node {
    engine: Engine<Real, Tally, u64>,
    alarm: Alarm<u64>,
    written: Durable<Real, Tally>,
    synced: Durable<Real, Tally>,
    up: VecDeque<Up>,
    /// Blocks that this device has stored, or is storing. They survive a crash.
    storing: BTreeSet<Block>,
    down: VecDeque<Reply<Real>>,
    connected: bool,
    /// Blocks that are being fetched, and those that were.
    fetching: VecDeque<Block>,
    shelf: Shelf,
    /// Calls that wait, and the largest sum that any program knew of the counter when the call began.
    calls: BTreeMap<u64, (Call, u64)>,
}

struct Net {
    seed: u64,
    drawn: u64,
    now_ms: u64,
    nodes: Vec<Node>,
    server: Orderer<Real, Tally>,
    /// Blocks that the server has.
    blocks: BTreeSet<Block>,
    /// Blocks that it refused, of each device.
    missing: Vec<BTreeSet<Block>>,
    /// Entries that were not ordered because of them.
    unstored: usize,
    /// What the server has synced.
    stored: Vec<Leaf>,
    durable: Ledger<Real, Tally>,
    committing: Vec<Leaf>,
    tickets: u64,
    /// Sums that were answered to additions, by counter.
    sums: Vec<BTreeSet<u64>>,
    /// The largest sum that any program knows, by counter.
    known: Vec<u64>,
    pages: u64,
    fetched: u64,
    /// Blocks that entries named.
    named: usize,
    answers: u64,
    /// Additions that were answered.
    added: u64,
    /// Calls that were taken back.
    withdrawn: u64,
    crashes: bool,
    withdraws: bool,
}

fn genesis(tally: Tally) -> Ledger<Real, Tally> {
    Ledger::new(Recent::default(), tally)
}

impl Net {
    fn new(seed: u64) -> Net {
        let node = |number| {
            let shelf = Shelf::default();
            let durable = Durable::new(genesis(Tally::with(shelf.clone())));
            Node {
                engine: Engine::start(real(number, seed), SETUP, durable.clone()),
                alarm: Alarm::new(Delays::default()),
                written: durable.clone(),
                synced: durable,
                up: VecDeque::new(),
                storing: BTreeSet::new(),
                down: VecDeque::new(),
                connected: false,
                fetching: VecDeque::new(),
                shelf,
                calls: BTreeMap::new(),
            }
        };
        let scheme = real(DEVICES, seed);
        Net {
            seed,
            drawn: 0,
            now_ms: 0,
            nodes: (0..DEVICES).map(node).collect(),
            server: Orderer::start(
                scheme,
                Limits::default(),
                Unlimited,
                genesis(Tally::complete()),
            ),
            blocks: BTreeSet::new(),
            missing: vec![BTreeSet::new(); usize::from(DEVICES)],
            unstored: 0,
            stored: Vec::new(),
            durable: genesis(Tally::complete()),
            committing: Vec::new(),
            tickets: 0,
            sums: vec![BTreeSet::new(); usize::from(COUNTERS)],
            known: vec![0; usize::from(COUNTERS)],
            pages: 0,
            fetched: 0,
            named: 0,
            answers: 0,
            added: 0,
            withdrawn: 0,
            crashes: true,
            withdraws: false,
        }
    }

    fn random(&mut self, bound: u64) -> u64 {
        self.drawn += 1;
        (Id::of(&(self.seed, self.drawn)).0 % u128::from(bound)) as u64
    }

    /// Does what an engine wants done; sometimes the device stops in the middle of it.
    fn act(&mut self, at: usize, effects: Effects) {
        let stops = self.crashes && self.random(150) == 0;
        let done = if stops {
            self.random(effects.len() as u64 + 1) as usize
        } else {
            effects.len()
        };
        for effect in effects.into_iter().take(done) {
            self.effect(at, effect);
        }
        if stops {
            return self.crash(at);
        }
        let node = &mut self.nodes[at];
        let (floor, log) = (&node.written.ledger, node.engine.ledger());
        assert_eq!(floor.point(), log.point(), "the floor is behind");
        node.alarm.set(self.now_ms, &node.engine);
    }

    fn effect(&mut self, at: usize, effect: Effect<Real, Tally, u64>) {
        let node = &mut self.nodes[at];
        match effect {
            Effect::Journal(record) => node.written.apply(&record),
            Effect::Sync => node.synced = node.written.clone(),
            Effect::Store(blocks) => {
                node.storing.extend(&blocks);
                if node.connected {
                    node.up.extend(blocks.into_iter().map(Up::Store));
                }
            }
            Effect::Send(request) if node.connected => node.up.push_back(Up::Request(request)),
            Effect::Send(_) => {}
            Effect::Again(entry) if node.connected => {
                node.up.extend(node.storing.iter().copied().map(Up::Store));
                node.up.push_back(Up::Request(Request::Entry(entry)));
            }
            Effect::Again(_) => {}
            Effect::Fetch(block) if node.fetching.contains(&block) => {}
            Effect::Fetch(block) => node.fetching.push_back(block),
            Effect::Answer { ticket, answer, .. } => {
                let asked = node.calls.remove(&ticket);
                let (call, before) = asked.expect("an answer that nobody waits for");
                self.answers += 1;
                // Otherwise another device was silent for too long.
                if let Ok(sum) = answer {
                    self.told(call, before, sum);
                }
            }
            Effect::Busy(ticket) => drop(node.calls.remove(&ticket)),
            Effect::Withdrawn(ticket) => {
                node.calls.remove(&ticket);
                self.withdrawn += 1;
            }
            Effect::Unfit(what) => panic!("seed {}: {what}", self.seed),
            Effect::Stopped(why) => panic!("seed {}: {why:?}", self.seed),
            Effect::Differs(attest) => panic!("seed {}: {attest:?}", self.seed),
        }
    }

    /// A program learns a sum.
    fn told(&mut self, call: Call, before: u64, sum: u64) {
        let (Call::Add(counter) | Call::Read(counter)) = call;
        let counter = usize::from(counter);
        assert!(sum >= before, "seed {}: a stale read", self.seed);
        if let Call::Add(_) = call {
            self.added += 1;
            assert!(sum > before, "seed {}: an addition got lost", self.seed);
            let new = self.sums[counter].insert(sum);
            assert!(new, "seed {}: an update got lost", self.seed);
        }
        self.known[counter] = sum.max(self.known[counter]);
    }

    fn issue(&mut self, at: usize) {
        let mut calls = Vec::new();
        for _ in 0..=self.random(2) {
            let counter = self.random(u64::from(COUNTERS)) as u8;
            let call = match self.random(3) {
                0 => Call::Read(counter),
                _ => Call::Add(counter),
            };
            self.tickets += 1;
            let before = self.known[usize::from(counter)];
            self.nodes[at].calls.insert(self.tickets, (call, before));
            calls.push((self.tickets, call));
        }
        let effects = self.nodes[at].engine.issue(calls);
        self.act(at, effects);
    }

    /// The blocks of a call cannot be stored.
    fn withdraw(&mut self, at: usize) {
        let waiting = self.nodes[at].calls.len() as u64;
        if waiting == 0 {
            return;
        }
        let which = self.random(waiting) as usize;
        let ticket = self.nodes[at].calls.keys().nth(which).copied();
        let effects = self.nodes[at].engine.withdraw(|of, _| of == ticket);
        self.act(at, effects);
    }

    fn connect(&mut self, at: usize) {
        self.disconnect(at);
        let node = &mut self.nodes[at];
        node.connected = true;
        node.up.extend(node.storing.iter().copied().map(Up::Store));
        node.alarm.connected();
        let effects = node.engine.connected();
        self.act(at, effects);
    }

    fn disconnect(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.connected = false;
        node.up.clear();
        node.down.clear();
        self.missing[at].clear();
        self.server.disconnect(device(at as u8));
    }

    fn crash(&mut self, at: usize) {
        self.disconnect(at);
        let power = self.random(2) == 0;
        let node = &mut self.nodes[at];
        if power {
            node.written = node.synced.clone();
        }
        node.calls.clear();
        node.fetching.clear();
        node.shelf.borrow_mut().clear();
        let scheme = node.engine.scheme().clone();
        node.engine = Engine::start(scheme, SETUP, node.written.clone());
        node.alarm = Alarm::new(Delays::default());
        node.alarm.set(self.now_ms, &node.engine);
    }

    fn serve(&mut self, at: usize) {
        let request = match self.nodes[at].up.pop_front() {
            Some(Up::Request(request)) => request,
            // The server may have no room for a block now and then.
            Some(Up::Store(block)) if self.crashes && self.random(10) == 0 => {
                self.missing[at].insert(block);
                return;
            }
            Some(Up::Store(block)) => {
                self.missing[at].remove(&block);
                self.blocks.insert(block);
                return;
            }
            None => return,
        };
        if let Request::Entry(entry) = &request
            && !std::mem::take(&mut self.missing[at]).is_empty()
        {
            self.unstored += 1;
            return match self.server.unstored(device(at as u8), entry) {
                Ok(_) => {}
                Err(_) => self.disconnect(at),
            };
        }
        if let Request::Entry(entry) = &request {
            let named: Vec<_> = ops(entry).iter().filter_map(named).collect();
            let stored = named.iter().all(|block| self.blocks.contains(block));
            assert!(stored, "seed {}: an entry before its blocks", self.seed);
            self.named += named.len();
        }
        match self.server.receive(device(at as u8), &request) {
            Ok(()) => {}
            Err(Turned::NoSession) => self.disconnect(at),
            Err(turned) => panic!("seed {}: {turned:?}", self.seed),
        }
    }

    fn commit(&mut self) {
        if let Some((from, leaves)) = self.server.commit() {
            assert_eq!(from, self.stored.len() as u64);
            self.committing = leaves;
        }
    }

    fn committed(&mut self) {
        if self.committing.is_empty() {
            return;
        }
        self.store();
        self.server.committed();
    }

    fn store(&mut self) {
        for leaf in std::mem::take(&mut self.committing) {
            self.durable.extend(&leaf);
            self.stored.push(leaf);
        }
    }

    /// The server stops; what it was storing may be stored or not.
    fn server_crash(&mut self) {
        if self.random(2) == 0 {
            self.store();
        }
        self.committing.clear();
        let scheme = real(DEVICES, self.seed);
        let log = self.durable.clone();
        self.server = Orderer::start(scheme, Limits::default(), Unlimited, log);
        (0..self.nodes.len()).for_each(|at| self.disconnect(at));
    }

    fn draw(&mut self, at: usize) {
        // A device that does not read gets nothing.
        if !self.nodes[at].connected || self.nodes[at].down.len() > 3 {
            return;
        }
        let Some(delivery) = self.server.draw(device(at as u8)) else {
            return;
        };
        let range = delivery.leaves.start as usize..delivery.leaves.end as usize;
        assert!(range.len() as u64 <= PAGE);
        self.pages += u64::from(delivery.more);
        self.nodes[at].down.push_back(Reply {
            from: delivery.leaves.start,
            leaves: self.stored[range].to_vec(),
            note: delivery.note,
            more: delivery.more,
            attests: delivery.attests,
            asked: delivery.asked,
            refused: delivery.refused,
            unstored: delivery.unstored,
        });
    }

    fn take(&mut self, at: usize) {
        let Some(reply) = self.nodes[at].down.pop_front() else {
            return;
        };
        let node = &mut self.nodes[at];
        node.alarm.replied(&reply);
        let effects = node.engine.deliver(&reply);
        self.act(at, effects);
    }

    /// A block arrives.
    fn fetch(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let Some(block) = node.fetching.pop_front() else {
            return;
        };
        node.shelf.borrow_mut().insert(block);
        let effects = node.engine.supplied();
        self.fetched += 1;
        self.act(at, effects);
    }

    fn tick(&mut self, ms: u64) {
        self.now_ms += ms;
        for at in 0..self.nodes.len() {
            let node = &mut self.nodes[at];
            let next = node.alarm.next(&node.engine);
            if next.is_some_and(|next| next <= self.now_ms) {
                let effects = node.alarm.ring(self.now_ms, &mut node.engine);
                self.act(at, effects);
            }
        }
    }

    fn step(&mut self) {
        let at = self.random(u64::from(DEVICES)) as usize;
        match self.random(100) {
            0..=9 if self.nodes[at].engine.is_running() => self.issue(at),
            10..=39 => self.serve(at),
            40..=47 => self.commit(),
            48..=55 => self.committed(),
            56..=69 => self.draw(at),
            70..=84 => self.take(at),
            85..=89 => self.fetch(at),
            90..=95 => {
                let ms = self.random(30);
                self.tick(ms);
            }
            96 if self.random(4) == 0 => self.server_crash(),
            97 if self.crashes && self.random(3) == 0 => self.crash(at),
            99 if self.withdraws => self.withdraw(at),
            98 => self.server.beat(),
            _ if !self.nodes[at].connected => self.connect(at),
            _ => {}
        }
    }

    /// Everything goes well from now on.
    fn calm(&mut self) {
        self.crashes = false;
        for _ in 0..2000 {
            for at in 0..self.nodes.len() {
                if !self.nodes[at].connected {
                    self.connect(at);
                }
                self.serve(at);
                self.draw(at);
                self.take(at);
                self.fetch(at);
            }
            self.commit();
            self.committed();
            self.tick(1);
            let done = self.nodes.iter().all(|node| {
                let idle = node.calls.is_empty() && node.engine.is_running();
                let all = node.engine.ledger().size() == self.server.published();
                idle && all && node.down.is_empty() && !node.engine.armed(Timer::Attest)
            });
            if done && !self.server.waits() && self.committing.is_empty() {
                return;
            }
        }
        panic!("seed {}: somebody waits for ever", self.seed);
    }

    fn check(&self) {
        let log = self.durable.point();
        assert_eq!(self.server.published(), log.size);
        for node in &self.nodes {
            let ledger = node.engine.ledger();
            assert_eq!(ledger.point(), log, "seed {}", self.seed);
            for (counter, sums) in self.sums.iter().enumerate() {
                let sum = ledger.volume().sum(counter as u8);
                assert!(sums.last().is_none_or(|last| *last <= sum));
            }
        }
    }
}

#[test]
fn machines_with_real_signatures_lose_nothing_over_a_bad_network() {
    let seeds = if crate::exhaustive::long() { 400 } else { 8 };
    let (mut leaves, mut answers, mut fetched, mut named) = (0, 0, 0, 0);
    let mut unstored = 0;
    for seed in 0..seeds {
        let mut net = Net::new(seed);
        for _ in 0..1500 {
            net.step();
        }
        net.calm();
        net.check();
        leaves += net.stored.len();
        answers += net.answers;
        fetched += net.fetched;
        named += net.named;
        unstored += net.unstored;
    }
    println!(
        "{seeds} seeds: {leaves} leaves, {answers} answers, {fetched} blocks, {unstored} entries without them"
    );
    assert!(answers > 30 * seeds && fetched > 10 * seeds && named > 10);
    assert!(unstored > 0);
}

/// The log has what was answered, and nothing that was taken back.
#[test]
fn calls_that_are_taken_back_have_no_effect_and_others_lose_nothing() {
    let seeds = if crate::exhaustive::long() { 400 } else { 8 };
    let (mut added, mut withdrawn) = (0, 0);
    for seed in 5000..5000 + seeds {
        let mut net = Net::new(seed);
        (net.crashes, net.withdraws) = (false, true);
        for _ in 0..1500 {
            net.step();
        }
        net.calm();
        net.check();
        let ledger = net.nodes[0].engine.ledger();
        let sums = (0..COUNTERS).map(|counter| ledger.volume().sum(counter));
        assert_eq!(sums.sum::<u64>(), net.added, "seed {seed}");
        added += net.added;
        withdrawn += net.withdrawn;
    }
    assert!(
        added > 20 * seeds && withdrawn > seeds,
        "{added} {withdrawn}"
    );
}

#[test]
fn device_that_is_far_behind_catches_up_in_pages() {
    let mut net = Net::new(77);
    net.crashes = false;
    let pages = 3;
    while (net.stored.len() as u64) < pages * PAGE + 50 {
        for at in 0..2 {
            if !net.nodes[at].connected {
                net.connect(at);
            }
            if net.nodes[at].engine.is_running() && net.nodes[at].calls.is_empty() {
                net.issue(at);
            }
            net.serve(at);
            net.draw(at);
            net.take(at);
            net.fetch(at);
        }
        net.commit();
        net.committed();
        net.tick(1);
    }
    let before = net.pages;
    net.calm();
    net.check();
    assert_eq!(net.pages, before + pages);
}
