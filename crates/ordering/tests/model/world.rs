//! Devices and a server that does what it likes. Everything that was ever sent stays with the server, and it shows
//! each device any log that can be made of it, one leaf at a time.
//!
//! | what a server may do | how it happens here |
//! |---|---|
//! | order, withhold, die | the next leaf for a device is any that was sent, or never comes |
//! | fork, rejoin, replay | each device has a log of its own; the same leaf may come at different places |
//! | drop attests | an Attest reaches a device by a step of its own, which may never come |
//! | show another log | `Switch`, `Forge`: always refused, unless the rule is left out, so they are tried only then |
//!
//! Steps of a device that nobody else can notice are put off until just before its next step that others can notice:
//! meanwhile it is the device's *turn*. Nothing is lost by that, because what the server holds only grows. At the end
//! each device takes steps that nobody will notice, and rests. A device attests as soon as its entry is in its log: a
//! later Attest says the same of the device's entries and counts on fewer logs. A device stops before its turn, not in
//! it, while a call has no answer, and syncs before a call or with an Attest. (Walks by seed do without these.)
//!
//! A reply of several leaves is the same as several replies of one leaf, because the server can sign a note for any
//! size. A reply that a device refuses leads nowhere: it is the same as no reply for ever.

use std::hash::Hash;
use std::rc::Rc;

use trust_shared::form::Fault;

use crate::action::{Action, Name, told};
use crate::broken::Broken;
use crate::chain::Chain;
use crate::engine::{ClientEngine, Crash, Output, TIMERS, Timer};
use crate::explorer::{Right, System};
use crate::history::History;
use crate::lapses::Lapses;
use crate::liar::{LIED, Lie, lied_attest};
use crate::protocol::{
    Attest, Call, CallId, Device, Entry, Leaf, Mark, Reply, Request, leaf_id, marked,
};
use crate::rules::{Rule, Rules, form};
use crate::wide::Wide;

/// What is tried.
#[derive(Clone, Debug)]
pub struct Scope {
    pub rules: Rules,
    /// What each device's programs may call, and how often in all.
    pub menus: Vec<(Vec<Call>, u8)>,
    pub kills: u8,
    pub powers: u8,
    /// How often the server says of an entry that it cannot be ordered. It may order it all the same.
    pub refusals: u8,
    /// Entries that a lying member writes. It is the device after those that are explored, and works with the server.
    pub lies: u8,
    /// What is wrong with them.
    pub slips: Vec<Lie>,
    /// The calls that they are for.
    pub deeds: Vec<Call>,
    pub admin: Device,
    /// How often the time to live of locks passes while a device waits for one.
    pub lapses: u8,
    /// Devices that begin with a checkpoint.
    pub begins: u8,
    /// Devices that stop for ever.
    pub deaths: u8,
    /// Programs that are killed while a call of theirs waits.
    pub cancels: u8,
    /// No device may overtake another one (`in_turn`). A program may keep a lock for ever, and others wait (`keeping`).
    pub in_turn: bool,
    pub keeping: bool,
    /// Readers wait for ever instead of giving up.
    pub patient: bool,
    pub relaxed: bool,
    /// System calls that programs of one device make at a time.
    pub programs: usize,
    /// The checks count a Resume like any other entry that lies in two logs.
    pub resume_counts: bool,
    /// Leaves of a log at most. Only broken protocols come so far.
    pub leaves: u64,
    /// Devices that the genesis policy admits, as bits.
    pub members: u8,
    /// Leaves out orders of steps that make no difference.
    pub reduced: bool,
    /// The server puts entries that nobody signed into pages that it shows to devices.
    pub forging: bool,
    /// Devices keep snapshots.
    pub snapshots: bool,
    /// The owners begin a second epoch of the log, once.
    pub recovers: bool,
}

impl Scope {
    /// Entries are forged, too where a device would not notice.
    fn forges(&self) -> bool {
        use ordering::ablation::Rule::{Signature, VerifyBeforeUse};
        let checked = [Signature, VerifyBeforeUse].map(Rule::Client);
        self.forging || checked.iter().any(|rule| !self.rules.has(*rule))
    }
}

#[derive(Clone, Debug)]
pub struct World<E> {
    pub scope: Rc<Scope>,
    /// Worlds share the devices to which nothing happened between them.
    pub clients: Vec<Rc<E>>,
    /// Sorted.
    pub entries: Vec<Rc<Entry>>,
    pub marks: Vec<Mark>,
    pub attests: Vec<Attest>,
    /// Prefixes that devices have signed for, in messages or entries.
    pub signed: Vec<(Device, Chain)>,
    /// The same for the second epoch.
    pub signed_later: Vec<(Device, Chain)>,
    pub history: History,
    pub lapses: Lapses,
    pub alarms: Vec<String>,
    pub(crate) called: Vec<u8>,
    kills: u8,
    powers: u8,
    refusals: u8,
    pub(crate) begun: u8,
    /// Size of the log that all devices begin with.
    pub(crate) base: u64,
    pub(crate) lies: u8,
    pub(crate) turn: Option<Device>,
    /// Devices that take no further step, as bits.
    pub(crate) resting: u8,
    /// The prefix with which the second epoch begins.
    pub standing: Option<Chain>,
    /// What the checks look at, of worlds of this search that are right.
    pub(crate) right: Right,
}

impl<E: ClientEngine> World<E> {
    pub fn new(scope: Scope, clients: Vec<E>) -> World<E> {
        let sizes = clients.iter().map(|client| client.frontier().size());
        World {
            base: sizes.max().unwrap_or(0),
            called: vec![0; clients.len()],
            scope: Rc::new(scope),
            clients: clients.into_iter().map(Rc::new).collect(),
            entries: Vec::new(),
            marks: Vec::new(),
            attests: Vec::new(),
            signed: Vec::new(),
            signed_later: Vec::new(),
            history: History::default(),
            lapses: Lapses::default(),
            alarms: Vec::new(),
            kills: 0,
            powers: 0,
            refusals: 0,
            begun: 0,
            lies: 0,
            turn: None,
            resting: 0,
            standing: None,
            right: Right::default(),
        }
    }

    /// Number of the next call of a device, if it has one left.
    pub fn called(&self, device: Device) -> Option<u8> {
        let number = self.called[usize::from(device)];
        (number < self.scope.menus[usize::from(device)].1).then_some(number)
    }

    /// A program of the device makes its next call.
    pub fn begin(&mut self, device: Device, what: Call) {
        let number = &mut self.called[usize::from(device)];
        self.history.begin(CallId::new(device, *number), what);
        *number += 1;
    }

    fn devices(&self) -> impl Iterator<Item = Device> + use<E> {
        0..self.clients.len() as Device
    }

    fn name(&self, at: usize) -> Name {
        let key = |entry: &Entry| {
            (
                entry.body.device,
                entry.body.heading.incarnation,
                entry.body.heading.n,
            )
        };
        let (device, incarnation, n) = key(&self.entries[at]);
        let same = self.entries[..at]
            .iter()
            .filter(|entry| key(entry) == key(&self.entries[at]));
        Name::Entry(device, incarnation, n, same.count() as u8)
    }

    fn find(&self, to: Device, name: Name) -> Option<Leaf> {
        match name {
            Name::Mark(mark) => self.marks.contains(&mark).then(|| marked(mark)),
            Name::Entry(..) => {
                let at = (0..self.entries.len()).find(|at| self.name(*at) == name)?;
                Some(Leaf::Entry(self.entries[at].clone()))
            }
            Name::Forged(author) => self.forge(to, author),
            Name::Lied(lie, deed) => self.lie(to, lie, deed),
        }
    }

    /// Notes what a device has put out.
    pub fn record(&mut self, device: Device, outputs: &[Output]) {
        let log = self.clients[usize::from(device)].frontier().clone();
        self.history.note(outputs);
        let wait = self.clients[usize::from(device)].watched();
        self.lapses.watch(device, wait, &log);
        for output in outputs {
            match output {
                Output::Alarm(what) => self.alarms.push(what.clone()),
                Output::Send(Request::Entry(entry))
                    if !self.entries.iter().any(|known| known.id == entry.id) =>
                {
                    self.sign(device, log.prefix(entry.body.heading.attests()));
                    self.keep(entry);
                }
                Output::Send(Request::Mark(mark)) if !self.marks.contains(mark) => {
                    let place = self.marks.partition_point(|known| known < mark);
                    self.marks.insert(place, *mark);
                }
                Output::Send(Request::Attest(attest)) if !self.attests.contains(attest) => {
                    let place = self.attests.partition_point(|known| known < attest);
                    self.attests.insert(place, *attest);
                    self.sign(device, log.prefix(attest.size));
                }
                _ => {}
            }
        }
    }

    /// The server keeps an entry.
    pub(crate) fn keep(&mut self, entry: &Rc<Entry>) {
        let key = |entry: &Entry| {
            let heading = &entry.body.heading;
            (entry.body.device, heading.incarnation, heading.n, entry.id)
        };
        let place = self
            .entries
            .partition_point(|known| key(known) < key(entry));
        self.entries.insert(place, entry.clone());
    }

    fn leaf_actions(&self, to: Device, actions: &mut Vec<Action>) {
        if !self.is_shown_leaves(to) {
            return;
        }
        let chain = self.clients[usize::from(to)].frontier();
        let lax = |fault: Fault| !self.scope.rules.has(form(fault));
        let again = lax(Fault::Number) || lax(Fault::Incarnation);
        for (at, entry) in self.entries.iter().enumerate() {
            if chain.times(entry.id) <= usize::from(again) {
                actions.push(Action::Leaf(to, self.name(at)));
            }
        }
        if self.refusals < self.scope.refusals {
            let own = |at: &usize| self.entries[*at].body.device == to;
            let sent = (0..self.entries.len()).filter(own);
            let missing = sent.filter(|at| chain.times(self.entries[*at].id) == 0);
            actions.extend(missing.map(|at| Action::Refuse(to, self.name(at))));
        }
        for mark in &self.marks {
            if !chain.has_mark(*mark) {
                actions.push(Action::Leaf(to, Name::Mark(*mark)));
            }
        }
        let client = &self.clients[usize::from(to)];
        for (number, attest) in self
            .attests
            .iter()
            .enumerate()
            .filter(|(_, attest)| attest.device != to)
        {
            // Who makes checkpoints wants to know what is attested.
            if !client.awaits(attest.device) && self.begun >= self.scope.begins {
                continue;
            }
            actions.push(Action::Attest(to, attest.device, number as u8));
        }
        self.lie_actions(to, actions);
        for other in self.devices().filter(|other| *other != to) {
            if !self.scope.rules.has(Rule::Extends) {
                actions.push(Action::Switch(to, other));
            }
            if self.scope.forges() && other != self.scope.admin {
                actions.push(Action::Leaf(to, Name::Forged(other)));
            }
        }
    }

    fn timer_allowed(&self, device: Device, timer: Timer) -> bool {
        match timer {
            Timer::Attest if self.scope.reduced => {
                let last = self.clients[usize::from(device)]
                    .frontier()
                    .backwards()
                    .next();
                matches!(last, Some((Leaf::Entry(entry), _)) if entry.body.device == device)
            }
            Timer::Resend => false,
            Timer::Timeout => !self.scope.patient,
            Timer::Lapse => self.lapses.count() < usize::from(self.scope.lapses),
            // Without power cuts floors are synced at once.
            Timer::Sync if self.scope.reduced => {
                let at = usize::from(device);
                let calls = self.clients[at].ready() && self.called[at] < self.scope.menus[at].1;
                self.scope.powers > 0 && calls
            }
            _ => true,
        }
    }

    /// A reply to a device, if the action is one.
    fn reply(&self, action: &Action) -> Option<(Device, Reply)> {
        let plain = |log: &Chain, from: u64, leaves: Vec<Leaf>| Reply {
            from,
            note: leaves
                .iter()
                .fold(log.clone(), |log, leaf| log.push(leaf.clone()))
                .point(),
            leaves,
            more: false,
            attests: Vec::new(),
            asked: false,
            refused: None,
            unstored: None,
        };
        let log = |to: &Device| self.clients[usize::from(*to)].frontier();
        match action {
            Action::Leaf(to, name) => {
                let leaf = self.find(*to, *name)?;
                let log = log(to);
                let reply = plain(log, log.size(), vec![leaf]);
                let client = &self.clients[usize::from(*to)];
                let start = client.start().map_or(0, |start| start.size);
                // In a page of many the device looks at no signature yet.
                let more = matches!(name, Name::Forged(_)) || reply.note.size < start;
                Some((*to, Reply { more, ..reply }))
            }
            Action::Attest(to, device, LIED) => {
                let attests = vec![lied_attest(*device, log(to))];
                let reply = plain(log(to), log(to).size(), Vec::new());
                Some((*to, Reply { attests, ..reply }))
            }
            Action::Attest(to, device, number) => {
                let attest = self
                    .attests
                    .get(usize::from(*number))
                    .filter(|attest| attest.device == *device)?;
                let log = log(to);
                let attests = vec![*attest];
                let reply = plain(log, log.size(), Vec::new());
                Some((*to, Reply { attests, ..reply }))
            }
            Action::Refuse(to, name) => {
                let leaf = self.find(*to, *name)?;
                let refused = Some(leaf_id(&leaf));
                let log = log(to);
                let reply = plain(log, log.size(), Vec::new());
                Some((*to, Reply { refused, ..reply }))
            }
            Action::Start(to) => {
                let leaves = self.standing.as_ref()?.since(0);
                Some((*to, plain(&Chain::default(), 0, leaves)))
            }
            Action::Switch(to, from) => {
                let leaves = log(from).since(0);
                Some((*to, plain(&Chain::default(), 0, leaves)))
            }
            _ => None,
        }
    }

    /// What the device does, or None if it cannot or refuses.
    fn act(&self, action: &Action) -> Option<(Device, E, Vec<Output>)> {
        if let Some((to, reply)) = self.reply(action) {
            let mut client = E::clone(&self.clients[usize::from(to)]);
            let outputs = client.deliver(&reply);
            let refused = outputs
                .iter()
                .any(|output| matches!(output, Output::Alarm(_)));
            return (!refused).then_some((to, client, outputs));
        }
        let (device, outputs, client);
        match action {
            Action::Issue(by, what) => {
                let number = self.called[usize::from(*by)];
                let before = &self.clients[usize::from(*by)];
                if number >= self.scope.menus[usize::from(*by)].1 || !before.ready() {
                    return None;
                }
                let mut engine = E::clone(before);
                outputs = engine.issue(CallId::new(*by, number), *what);
                (device, client) = (*by, engine);
            }
            Action::Timer(by, timer) => {
                let before = &self.clients[usize::from(*by)];
                if !before.armed(*timer) {
                    return None;
                }
                let mut engine = E::clone(before);
                outputs = engine.timer(*timer);
                (device, client) = (*by, engine);
            }
            Action::Begin(to, from) => {
                if !self.may_begin(*to, *from) {
                    return None;
                }
                let (before, other) = (&self.clients[usize::from(*to)], *from);
                let fresh = (self.begun + 16) * 8;
                (client, outputs) = before.begin(&self.clients[usize::from(other)], fresh)?;
                device = *to;
            }
            Action::Crash(by, how) => {
                let spent = if *how == Crash::Kill {
                    self.kills < self.scope.kills
                } else {
                    self.powers < self.scope.powers
                };
                if !spent || self.clients[usize::from(*by)].stopped() {
                    return None;
                }
                let mut engine = E::clone(&self.clients[usize::from(*by)]);
                outputs = engine.crash(*how, (self.kills + self.powers + 1) * 8);
                (device, client) = (*by, engine);
            }
            Action::Follow(by) => {
                let mut engine = E::clone(&self.clients[usize::from(*by)]);
                let start = self.standing.as_ref()?.point();
                outputs = engine.follow(start, 128);
                (device, client) = (*by, engine);
            }
            _ => return None,
        }
        Some((device, client, outputs))
    }
}

impl<E: ClientEngine> System for World<E> {
    type Action = Action;

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for device in self.devices() {
            let at = usize::from(device);
            let client = &self.clients[at];
            let others =
                self.turn.is_some_and(|turn| turn != device) || self.resting >> device != 0;
            if client.stopped() || others {
                continue;
            }
            if self.turn == Some(device) {
                actions.push(Action::Rest(device));
            }
            if client.ready() && self.called[at] < self.scope.menus[at].1 {
                actions.extend(
                    self.scope.menus[at]
                        .0
                        .iter()
                        .map(|call| Action::Issue(device, *call)),
                );
            }
            // Like a message of the device that makes the checkpoint: it is what that one does in its turn.
            let new = self.devices().filter(|to| self.may_begin(*to, device));
            actions.extend(new.map(|to| Action::Begin(to, device)));
            self.recovery_actions(device, &mut actions);
            self.leaf_actions(device, &mut actions);
            let armed = TIMERS
                .into_iter()
                .filter(|timer| self.timer_allowed(device, *timer) && client.armed(*timer));
            actions.extend(armed.map(|timer| Action::Timer(device, timer)));
            if self.scope.reduced && (self.turn.is_some() || client.ready()) {
                continue;
            }
            if self.kills < self.scope.kills {
                actions.push(Action::Crash(device, Crash::Kill));
            }
            if self.powers < self.scope.powers {
                actions.push(Action::Crash(device, Crash::Power));
            }
        }
        actions
    }

    fn step(&self, action: &Action) -> Option<World<E>> {
        if let Action::Rest(device) = action {
            let resting = self.resting | 1 << device;
            return Some(World {
                turn: None,
                resting,
                ..self.clone()
            });
        }
        if let Action::Recover(device) = action {
            return self.recovered(*device);
        }
        let (device, mut client, outputs) = self.act(action)?;
        let noticed = matches!(
            action,
            Action::Issue(..)
                | Action::Follow(..)
                | Action::Crash(..)
                | Action::Begin(..)
                | Action::Leaf(_, Name::Lied(..))
                | Action::Attest(_, _, LIED)
        ) || outputs.iter().any(noticed);
        if noticed && self.resting != 0 || client.frontier().size() > self.scope.leaves {
            return None;
        }
        let mut next = self.clone();
        next.turn = (self.scope.reduced && !noticed).then_some(device);
        let at = usize::from(device);
        match action {
            Action::Issue(_, what) => next.begin(device, *what),
            Action::Refuse(..) => next.refusals += 1,
            Action::Begin(_, from) => {
                next.begun += 1;
                let log = self.clients[usize::from(*from)].frontier();
                next.sign(*from, Some(log));
            }
            Action::Follow(..) => next.gone_over(device),
            Action::Leaf(to, Name::Lied(lie, deed)) => {
                next.lied(*to, self.lie(*to, *lie, *deed));
            }
            Action::Attest(to, liar, LIED) => {
                let log = self.clients[usize::from(*to)].frontier();
                next.sign(*liar, Some(log));
            }
            Action::Timer(_, Timer::Lapse) => next.lapses.ring(device),
            Action::Crash(_, Crash::Kill) => next.kills += 1,
            Action::Crash(_, Crash::Power) => {
                next.powers += 1;
                let before = &self.clients[at];
                let start = before.start().map_or(0, |start| start.size);
                // Before its log has the start, a device tells nobody anything.
                if before.frontier().size() >= start {
                    next.history.cut(device, before.frontier(), before.kept());
                }
            }
            _ => {}
        }
        let synced = (next.scope.powers == 0).then(|| client.timer(Timer::Sync));
        next.clients[at] = Rc::new(client);
        if let Some(outputs) = synced {
            let alarm = |output: &Output| matches!(output, Output::Alarm(_));
            assert!(outputs.iter().all(alarm), "a sync sends nothing");
            next.record(device, &outputs);
        }
        next.record(device, &outputs);
        Some(next)
    }

    fn fingerprint(&self) -> u128 {
        let mut into = Wide::default();
        self.clients
            .iter()
            .for_each(|client| client.state(&mut into));
        self.entries.len().hash(&mut into);
        self.entries
            .iter()
            .for_each(|entry| entry.id.hash(&mut into));
        (
            &self.marks,
            &self.attests,
            &self.called,
            self.kills,
            self.powers,
            (self.refusals, self.lies, self.begun),
        )
            .hash(&mut into);
        (self.turn, self.resting).hash(&mut into);
        self.standing.as_ref().map(Chain::point).hash(&mut into);
        self.history.hash(&mut into);
        self.lapses.hash(&mut into);
        into.finish128()
    }

    fn check(&self) -> Result<(), Broken> {
        self.look_once(self.aspects(), || crate::checks::check(self))
    }

    fn tell(&self, action: &Action) -> String {
        let result = self.act(action);
        let outputs = result
            .iter()
            .flat_map(|(_, _, outputs)| outputs)
            .filter_map(told);
        let outputs: Vec<_> = outputs.collect();
        let then = if outputs.is_empty() {
            String::new()
        } else {
            format!(" -> {}", outputs.join(", "))
        };
        format!("{action}{then}")
    }
}

/// Others can tell that it happened.
fn noticed(output: &Output) -> bool {
    !matches!(output, Output::Send(Request::Ask(_) | Request::Open(_)))
}
