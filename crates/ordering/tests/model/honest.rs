//! Devices and an honest server over a network that delivers in order: every speed of every message, crashes of devices
//! and of the server. There is one log and no alarm, every call ends, and none starves.

use std::collections::VecDeque;
use std::fmt;
use std::hash::Hash;
use std::rc::Rc;

use ordering::volume::PATIENCE;

use crate::action::{describe_request, told};
use crate::broken::{Broken, Check};
use crate::engine::{ClientEngine, Crash, Orderer, Output, Timer};
use crate::explorer::System;
use crate::history::Record;
use crate::protocol::{Call, CallId, Device, Id, Reply, Request, leaf_id, letter};
use crate::turns;
use crate::wide::Wide;
use crate::world::World;

#[derive(Clone, Debug)]
pub struct Honest<E, S> {
    pub world: World<E>,
    server: S,
    up: Vec<VecDeque<Request>>,
    down: Vec<VecDeque<Reply>>,
    crashes: u8,
    /// How often the server stops.
    server_crashes: u8,
    /// Devices whose connection broke, as bits.
    reconnect: u8,
    /// Entries that the server refused.
    refused: u8,
    /// Devices that never start again, as bits.
    dead: u8,
    /// Calls whose programs were killed, as bits.
    cancelled: u32,
    /// Messages to the server and Attests take no time, so that more calls can be explored.
    quick: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Action {
    Issue(Device, Call),
    /// The server takes a device's oldest message.
    Serve(Device),
    /// A device takes the server's oldest message.
    Take(Device),
    Timer(Device, Timer),
    Crash(Device, Crash),
    /// The device stops for ever.
    Die(Device),
    /// The program that makes this call is killed.
    Cancel(CallId),
    ServerCrash,
    /// The server syncs what it has taken.
    Commit,
}

impl<E: ClientEngine, S: Orderer> Honest<E, S> {
    pub fn new(world: World<E>, server: S, server_crashes: u8) -> Honest<E, S> {
        let devices = world.clients.len();
        Honest {
            world,
            server,
            up: vec![VecDeque::new(); devices],
            down: vec![VecDeque::new(); devices],
            crashes: 0,
            server_crashes,
            reconnect: 0,
            refused: 0,
            dead: 0,
            cancelled: 0,
            quick: false,
        }
    }

    /// The server takes several messages for one commit.
    pub fn patiently(self) -> Honest<E, S> {
        let server = self.server.patient();
        Honest { server, ..self }
    }

    pub fn quick(self) -> Honest<E, S> {
        Honest {
            quick: true,
            ..self
        }
    }

    /// Lets everything happen that takes no time.
    fn hurry(&mut self) {
        let mut busy = self.quick;
        while busy {
            busy = false;
            for device in self.devices() {
                while self.serve(device) {
                    busy = true;
                }
                let alive = !self.is_dead(device);
                if alive && self.world.clients[usize::from(device)].armed(Timer::Attest) {
                    let client = Rc::make_mut(&mut self.world.clients[usize::from(device)]);
                    let outputs = client.timer(Timer::Attest);
                    self.world.record(device, &outputs);
                    self.send(device, &outputs);
                    busy = true;
                }
            }
        }
    }

    fn devices(&self) -> impl Iterator<Item = Device> + use<E, S> {
        0..self.world.clients.len() as Device
    }

    /// The device is no member, as the log of the administrator says.
    fn expelled(&self, device: Device) -> bool {
        let removed = |record: &Record| record.what == Call::Remove(device);
        self.world.history.records.iter().any(removed)
            || self.world.scope.members >> device & 1 == 0
    }

    fn is_dead(&self, device: Device) -> bool {
        self.dead >> device & 1 == 1
    }

    /// Somebody waits for the answer of this call.
    fn is_open(&self, record: &Record) -> bool {
        let cancelled = self.cancelled & record.call.bit() != 0;
        record.given.is_none() && !cancelled && !self.is_dead(record.call.device())
    }

    fn broken(&self, device: Device) -> bool {
        self.reconnect >> device & 1 == 1
    }

    /// What a device does when something happens to it.
    fn react(&self, action: &Action) -> Option<(Device, E, Vec<Output>)> {
        let engine = |device: Device| E::clone(&self.world.clients[usize::from(device)]);
        let (device, client, outputs);
        match action {
            Action::Issue(by, what) => {
                let mut by_engine = engine(*by);
                let number = self.world.called(*by)?;
                if !by_engine.ready() {
                    return None;
                }
                outputs = by_engine.issue(CallId::new(*by, number), *what);
                (device, client) = (*by, by_engine);
            }
            Action::Take(by) => {
                let reply = self.down[usize::from(*by)].front()?;
                let mut by_engine = engine(*by);
                outputs = by_engine.deliver(reply);
                (device, client) = (*by, by_engine);
            }
            Action::Timer(by, timer) => {
                let mut by_engine = engine(*by);
                if !by_engine.armed(*timer) {
                    return None;
                }
                outputs = by_engine.timer(*timer);
                (device, client) = (*by, by_engine);
            }
            Action::Crash(by, how) => {
                let mut by_engine = engine(*by);
                outputs = by_engine.crash(*how, (self.crashes + 1) * 8);
                (device, client) = (*by, by_engine);
            }
            Action::Serve(_)
            | Action::Die(_)
            | Action::Cancel(_)
            | Action::ServerCrash
            | Action::Commit => {
                return None;
            }
        }
        Some((device, client, outputs))
    }

    fn send(&mut self, device: Device, outputs: &[Output]) {
        let up = &mut self.up[usize::from(device)];
        for output in outputs {
            match output {
                // Asks are coalesced.
                Output::Send(Request::Ask(about)) => {
                    let same = |waiting: &Request| matches!(waiting, Request::Ask(other) if other == about);
                    if !up.iter().any(same) {
                        up.push_back(Request::Ask(*about));
                    }
                }
                Output::Send(request) => up.push_back(request.clone()),
                _ => {}
            }
        }
    }

    fn serve(&mut self, device: Device) -> bool {
        let Some(request) = self.up[usize::from(device)].pop_front() else {
            return false;
        };
        let replies = self.server.receive(device, &request);
        self.push(replies);
        true
    }

    fn push(&mut self, replies: Vec<(Device, Reply)>) {
        for (to, reply) in replies {
            self.refused += u8::from(reply.refused.is_some());
            if let Some(down) = self.down.get_mut(usize::from(to)) {
                down.push_back(reply);
            }
        }
    }

    fn disconnect(&mut self, device: Device) {
        self.server.disconnect(device);
        self.up[usize::from(device)].clear();
        self.down[usize::from(device)].clear();
    }

    /// A device resumes once it has what the server sent, and reconnects before anything else.
    fn timers(&self, device: Device, actions: &mut Vec<Action>) {
        let at = usize::from(device);
        let client = &self.world.clients[at];
        if self.broken(device) {
            actions.push(Action::Timer(device, Timer::Resend));
            return;
        }
        for timer in [Timer::Attest, Timer::Sync] {
            if client.armed(timer) && (timer != Timer::Sync || self.world.scope.powers > 0) {
                actions.push(Action::Timer(device, timer));
            }
        }
        // The dead never attest anything.
        if self.dead != 0 && !self.world.scope.patient && client.armed(Timer::Timeout) {
            actions.push(Action::Timer(device, Timer::Timeout));
        }
        let lapses = self.world.lapses.count() < usize::from(self.world.scope.lapses);
        if lapses && client.armed(Timer::Lapse) {
            actions.push(Action::Timer(device, Timer::Lapse));
        }
        let quiet = self.up[at].is_empty() && self.down[at].is_empty();
        if quiet && client.armed(Timer::Resume) {
            actions.push(Action::Timer(device, Timer::Resume));
        }
    }
}

/// Different for different messages.
fn identity(request: &Request) -> (u8, u128, u128) {
    match request {
        Request::Entry(entry) => (0, entry.id.0, 0),
        Request::Mark(mark) => (1, u128::from(mark.device), u128::from(mark.number)),
        Request::Attest(attest) => (2, Id::of(attest).0, 0),
        Request::Ask(device) => (3, u128::from(*device), 0),
        Request::Open(since) => (4, Id::of(since).0, 0),
    }
}

impl<E: ClientEngine, S: Orderer> System for Honest<E, S> {
    type Action = Action;

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        let scope = &self.world.scope;
        for device in self.devices() {
            let at = usize::from(device);
            let client = &self.world.clients[at];
            if client.stopped() || self.is_dead(device) {
                continue;
            }
            if !self.broken(device) && client.ready() && self.world.called(device).is_some() {
                actions.extend(
                    scope.menus[at]
                        .0
                        .iter()
                        .map(|call| Action::Issue(device, *call)),
                );
            }
            if !self.up[at].is_empty() {
                actions.push(Action::Serve(device));
            }
            if !self.down[at].is_empty() {
                actions.push(Action::Take(device));
            }
            self.timers(device, &mut actions);
            if self.crashes < scope.kills {
                actions.push(Action::Crash(device, Crash::Kill));
            }
            if self.crashes < scope.powers {
                actions.push(Action::Crash(device, Crash::Power));
            }
            if self.dead.count_ones() < u32::from(scope.deaths) {
                actions.push(Action::Die(device));
            }
        }
        if self.cancelled.count_ones() < u32::from(scope.cancels) {
            let open = |record: &&Record| self.is_open(record);
            let open = self.world.history.records.iter().filter(open);
            actions.extend(open.map(|record| Action::Cancel(record.call)));
        }
        if self.server.waits() {
            actions.push(Action::Commit);
        }
        if self.server_crashes > 0 {
            actions.push(Action::ServerCrash);
        }
        actions
    }

    fn step(&self, action: &Action) -> Option<Honest<E, S>> {
        let mut next = self.clone();
        match action {
            Action::Serve(device) => return next.serve(*device).then_some(next),
            Action::Commit => {
                let replies = next.server.commit();
                next.push(replies);
                return Some(next);
            }
            Action::Die(device) => {
                next.disconnect(*device);
                next.dead |= 1 << device;
                return Some(next);
            }
            Action::Cancel(call) => {
                next.cancelled |= call.bit();
                let client = &mut next.world.clients[usize::from(call.device())];
                Rc::make_mut(client).cancel(*call);
                return Some(next);
            }
            Action::ServerCrash => {
                next.server_crashes -= 1;
                next.server.crash();
                for device in self.devices() {
                    next.disconnect(device);
                    next.reconnect |= 1 << device;
                }
                return Some(next);
            }
            _ => {}
        }
        let (device, client, outputs) = self.react(action)?;
        let at = usize::from(device);
        match action {
            Action::Issue(_, what) => next.world.begin(device, *what),
            Action::Take(_) => drop(next.down[at].pop_front()),
            Action::Timer(_, Timer::Lapse) => next.world.lapses.ring(device),
            Action::Timer(_, Timer::Resend) => next.reconnect &= !(1 << device),
            Action::Crash(_, how) => {
                next.crashes += 1;
                next.disconnect(device);
                next.reconnect &= !(1 << device);
                if *how == Crash::Power {
                    let before = &self.world.clients[at];
                    next.world
                        .history
                        .cut(device, before.frontier(), before.kept());
                }
            }
            _ => {}
        }
        next.world.clients[at] = Rc::new(client);
        next.world.record(device, &outputs);
        if next.world.scope.powers == 0 {
            Rc::make_mut(&mut next.world.clients[at]).timer(Timer::Sync);
        }
        next.send(device, &outputs);
        next.hurry();
        Some(next)
    }

    fn fingerprint(&self) -> u128 {
        let mut into = Wide::default();
        self.world.fingerprint().hash(&mut into);
        self.server.state(&mut into);
        for queue in &self.up {
            queue.len().hash(&mut into);
            queue
                .iter()
                .for_each(|request| identity(request).hash(&mut into));
        }
        for queue in &self.down {
            queue.len().hash(&mut into);
            for reply in queue {
                (reply.from, reply.note, reply.more).hash(&mut into);
                (reply.asked, reply.refused, reply.unstored, &reply.attests).hash(&mut into);
                reply.leaves.len().hash(&mut into);
                reply
                    .leaves
                    .iter()
                    .for_each(|leaf| leaf_id(leaf).hash(&mut into));
            }
        }
        (
            self.crashes,
            self.server_crashes,
            self.reconnect,
            self.refused,
            (self.dead, self.cancelled),
        )
            .hash(&mut into);
        into.finish128()
    }

    fn check(&self) -> Result<(), Broken> {
        if let Some(alarm) = self.world.alarms.first() {
            return Err(Check::Alarm.finds(alarm.clone()));
        }
        let undisturbed = self.crashes == 0
            && self
                .world
                .history
                .records
                .iter()
                .all(|record| !matches!(record.what, Call::Remove(_)));
        if self.refused > 0 && undisturbed {
            return Err(Check::Refused.finds("the server refuses an entry"));
        }
        // The tries that fail, a Claim, another one after an Unlock, and the change; as often as programs of one device
        // may stand in each other's way. A takeover costs an entry, and another one when the lock was renewed.
        let lapses = self.world.lapses.count();
        let bound = (usize::from(PATIENCE) + 3) * self.world.scope.programs + 2 * lapses;
        for (device, client) in self.world.clients.iter().enumerate() {
            let log = client.frontier();
            if !self.server.log().contains(log.point()) {
                return Err(Check::Log.finds(format!(
                    "{} has another log than the server",
                    letter(device as Device)
                )));
            }
            if usize::from(client.attempts()) > bound {
                return Err(Check::Attempts.finds(format!(
                    "{} has sent {} entries for one call",
                    letter(device as Device),
                    client.attempts()
                )));
            }
        }
        if self.world.scope.in_turn {
            let log = self.server.log();
            let looked_at = Id::of(&("turns", log.point(), lapses)).0;
            self.world.look_once(looked_at, || {
                let genesis = self.world.scope.genesis();
                turns::check(log, &genesis, self.world.clients.len(), lapses)
            })?;
        }
        self.world.check()
    }

    fn check_end(&self) -> Result<(), Broken> {
        let unanswered = |record: &&Record| self.is_open(record);
        let open = self.world.history.records.iter().find(unanswered);
        if self.world.scope.keeping
            && turns::is_kept(self.server.log(), &self.world.scope.genesis())
        {
            return Ok(());
        }
        if let (0, Some(record)) = (self.crashes, open) {
            return Err(Check::Waits.finds(format!("{:?} waits for ever", record.call)));
        }
        for device in self.devices() {
            let client = &self.world.clients[usize::from(device)];
            let expelled = self.expelled(device);
            if !client.ready() && !expelled && !self.is_dead(device) {
                return Err(Check::Waits.finds(format!("{} waits for ever", letter(device))));
            }
        }
        Ok(())
    }

    fn tell(&self, action: &Action) -> String {
        if let Action::Serve(device) = action {
            let request = self.up[usize::from(*device)].front().map(describe_request);
            return format!("the server takes {}", request.unwrap_or_default());
        }
        let outputs: Vec<_> = self
            .react(action)
            .into_iter()
            .flat_map(|(_, _, outputs)| outputs)
            .collect();
        let outputs: Vec<_> = outputs.iter().filter_map(told).collect();
        let then = if outputs.is_empty() {
            String::new()
        } else {
            format!(" -> {}", outputs.join(", "))
        };
        format!("{action}{then}")
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Issue(device, call) => write!(f, "{} calls {call:?}", letter(*device)),
            Action::Serve(device) => write!(f, "the server takes a message of {}", letter(*device)),
            Action::Take(device) => write!(f, "{} takes a message", letter(*device)),
            Action::Timer(device, timer) => write!(f, "{}: {timer:?}", letter(*device)),
            Action::Crash(device, how) => {
                write!(f, "{}: {how:?}, and starts again", letter(*device))
            }
            Action::Cancel(call) => write!(f, "the program of {call:?} is killed"),
            Action::Die(device) => write!(f, "{} stops for ever", letter(*device)),
            Action::Commit => write!(f, "the server commits"),
            Action::ServerCrash => write!(f, "the server stops, and starts again"),
        }
    }
}
