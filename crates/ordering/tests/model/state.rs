//! The content of a small volume, for the product's machines: values of keys, and members. Each value knows the entries
//! that it rests on.

use std::convert::Infallible;

use ordering::scheme::DeviceScheme;
use ordering::volume::{Attempt, Basis, Build, Leftover, Outcome, Roll, Volume};

use crate::calls;
use crate::protocol::{Answer, CALLS, Call, CallId, Change, Content, Device, Key, Op};
use crate::rules::{Rule, Rules};
use crate::turns::Turns;

/// Devices in any model: three that are explored, and one that lies.
pub const DEVICES: usize = 4;

/// A scheme whose entries have operations of this model.
pub trait Carries: DeviceScheme<Device = Device, Op = Op> {
    fn ops(entry: &Self::Entry) -> &[Op];
}

/// A call of a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Asked {
    pub call: CallId,
    pub what: Call,
}

/// A set of positions, by the authors of their entries.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Positions([u64; DEVICES]);

impl Positions {
    pub fn one(at: u64, author: Device) -> Positions {
        let mut positions = Positions::default();
        positions.0[usize::from(author)] = 1 << at;
        positions
    }

    #[must_use]
    pub fn and(self, other: Positions) -> Positions {
        Positions(std::array::from_fn(|author| {
            self.0[author] | other.0[author]
        }))
    }

    /// As bits.
    pub fn all(self) -> u64 {
        self.0.into_iter().fold(0, |all, by| all | by)
    }

    /// Those from `upto` on.
    fn since(self, upto: u64) -> Positions {
        Positions(self.0.map(|by| by >> upto << upto))
    }
}

impl Basis<Device> for Positions {
    fn filter(&self, mut keep: impl FnMut(u64, Device) -> bool) -> Positions {
        let mut kept = Positions::default();
        for (author, by) in self.0.into_iter().enumerate() {
            let mut rest = by;
            while rest != 0 {
                let at = u64::from(rest.trailing_zeros());
                rest &= rest - 1;
                if keep(at, author as Device) {
                    kept.0[author] |= 1 << at;
                }
            }
        }
        kept
    }

    fn is_empty(&self) -> bool {
        self.all() == 0
    }
}

#[derive(Clone, Copy, Default, Debug)]
pub struct Value {
    pub is: u128,
    pub rests_on: Positions,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    active: bool,
    since: u64,
}

/// A change that waits for its author's next entry.
#[derive(Clone, Debug)]
struct Late {
    at: u64,
    author: Device,
    seen: u64,
    change: Change,
}

/// What became of an operation.
#[derive(Clone, Copy, Debug)]
struct Result {
    completes: bool,
    effect: bool,
    /// The change waits for its author's next entry.
    late: bool,
    rests_on: Positions,
    /// What the op set first.
    set: u128,
}

#[derive(Clone, Debug)]
pub struct State {
    pub(crate) rules: Rules,
    pub admin: Device,
    values: Vec<(Key, Value)>,
    members: [Member; DEVICES],
    late: Vec<Late>,
    accepted: [u64; DEVICES],
    pub(crate) turns: Turns,
    /// What became of the operations of the last entry.
    results: Vec<Result>,
}

impl State {
    /// State before the first leaf. `members`: devices that the genesis policy admits.
    pub fn genesis(rules: Rules, members: u8, admin: Device) -> State {
        State {
            rules,
            admin,
            values: Vec::new(),
            members: std::array::from_fn(|device| Member {
                active: members >> device & 1 == 1,
                since: 0,
            }),
            late: Vec::new(),
            accepted: [0; DEVICES],
            turns: Turns::default(),
            results: Vec::new(),
        }
    }

    pub fn value(&self, key: Key) -> Value {
        self.values
            .iter()
            .find(|(at, _)| *at == key)
            .map_or(Value::default(), |(_, value)| *value)
    }

    /// Whether a device may write a file.
    pub fn may_write(&self, device: Device, file: u8) -> bool {
        let open = self.value(Key::Closed(file)).is == 0 || device == self.admin;
        open && self.members[usize::from(device)].active
    }

    /// Whether the author may make all changes of the op, and what that rests on.
    fn permitted(&self, author: Device, op: &Op) -> (bool, Positions) {
        let mut rests_on = Positions::default();
        let mut permitted = true;
        for change in &op.changes {
            match change {
                Change::Set(Key::File(file), _) => {
                    let closed = self.value(Key::Closed(*file));
                    rests_on = rests_on.and(closed.rests_on);
                    permitted &= closed.is == 0 || author == self.admin;
                }
                Change::Claim(file) => {
                    rests_on = rests_on.and(self.value(Key::Closed(*file)).rests_on);
                    permitted &= self.may_write(author, *file);
                }
                Change::Pass(file, to) if self.rules.has(Rule::PassToWriters) => {
                    rests_on = rests_on.and(self.value(Key::Closed(*file)).rests_on);
                    permitted &= self.may_write(*to, *file);
                }
                Change::Set(Key::Closed(_), _) | Change::Member { .. } | Change::Accept(_) => {
                    permitted &= author == self.admin;
                }
                _ => {}
            }
        }
        (permitted, rests_on)
    }

    /// Changes that this entry's author has made before, and attests with it.
    fn take_effect(&mut self, author: Device, (seen, attests): (u64, u64), at: u64) {
        for late in std::mem::take(&mut self.late) {
            let rule = match late.change {
                Change::Accept(_) => Rule::AcceptKept,
                _ => Rule::LateEffectKept,
            };
            let covers = if self.rules.has(rule) { attests } else { seen };
            if late.author == author && late.at < covers {
                self.decide(&late.change, late.seen, at);
            } else {
                self.late.push(late);
            }
        }
    }

    fn decide(&mut self, change: &Change, seen: u64, at: u64) {
        match change {
            Change::Member { device, active } => {
                self.members[usize::from(*device)] = Member {
                    active: *active,
                    since: at + 1,
                };
            }
            Change::Accept(device) => {
                let accepted = &mut self.accepted[usize::from(*device)];
                *accepted = seen.max(*accepted);
            }
            Change::Set(..)
            | Change::Fold { .. }
            | Change::Lock(_)
            | Change::Unlock(_)
            | Change::Pass(..)
            | Change::Claim(_) => {}
        }
    }

    /// Permission, guards, effect.
    fn evaluate(&mut self, author: Device, seen: u64, op: &Op, at: u64) -> Result {
        let (permitted, rests_on) = self.permitted(author, op);
        let mut rests_on = rests_on.and(Positions::one(at, author));
        let mut effect = permitted;
        for guard in &op.guards {
            let value = self.value(guard.key);
            rests_on = rests_on.and(value.rests_on);
            effect &= value.is == guard.is || !self.rules.has(Rule::Guards);
        }
        if let Some(file) = self.claims_in_vain(author, op).filter(|_| effect) {
            return self.wait(file, author, rests_on);
        }
        if let [Change::Claim(file)] = op.changes[..] {
            rests_on = rests_on.and(self.value(Key::Lock(file)).rests_on);
        }
        let mut result = Result {
            completes: op.completes,
            effect,
            late: false,
            rests_on,
            set: 0,
        };
        for change in &op.changes {
            match change {
                Change::Set(key, is) => self.set(*key, *is, effect, rests_on, &mut result),
                Change::Fold { upto } if effect => self.fold(*upto, Positions::one(at, author)),
                Change::Fold { .. } => {}
                Change::Lock(_) | Change::Unlock(_) | Change::Claim(_) | Change::Pass(..) => {
                    for (key, is) in self
                        .turn(change, (author, at), effect)
                        .into_iter()
                        .flatten()
                    {
                        self.set(key, is, effect, rests_on, &mut result);
                    }
                }
                _ if !effect => {}
                Change::Member { .. } | Change::Accept(_) => {
                    self.make(
                        Late {
                            at,
                            author,
                            seen,
                            change: *change,
                        },
                        &mut result,
                    );
                }
            }
        }
        result
    }

    /// A Claim in vain. No value rests on it.
    fn wait(&mut self, file: u8, author: Device, rests_on: Positions) -> Result {
        self.join(file, author);
        let lock = self.values.iter_mut().find(|it| it.0 == Key::Lock(file));
        if let Some((_, lock)) = lock.filter(|_| !self.rules.has(Rule::RestsOnNoWait)) {
            lock.rests_on = lock.rests_on.and(rests_on);
        }
        Result {
            completes: false,
            effect: false,
            late: false,
            rests_on,
            set: 0,
        }
    }

    fn set(&mut self, key: Key, is: u128, effect: bool, rests_on: Positions, result: &mut Result) {
        if !self.values.iter().any(|(at, _)| *at == key) {
            self.values.push((key, Value::default()));
        }
        let found = self.values.iter_mut().find(|(at, _)| *at == key);
        let Some((_, value)) = found else { return };
        if effect {
            *value = Value { is, rests_on };
            if result.set == 0 {
                result.set = is;
            }
        } else {
            // That the op had no effect is something that readers must know.
            value.rests_on = value.rests_on.and(rests_on);
        }
    }

    /// All values rest on the fold instead of what is folded.
    fn fold(&mut self, upto: u64, fold: Positions) {
        for (_, value) in &mut self.values {
            let since = value.rests_on.since(upto);
            if since != value.rests_on {
                value.rests_on = since.and(fold);
            }
        }
    }

    fn make(&mut self, late: Late, result: &mut Result) {
        let seen = if self.rules.has(Rule::AcceptSeen) {
            late.seen
        } else {
            late.at
        };
        if self.rules.has(Rule::LateEffect) {
            result.late = true;
            self.late.push(Late { seen, ..late });
        } else {
            self.decide(&late.change, seen, late.at);
        }
    }
}

impl<S: Carries> Roll<S> for State {
    fn active(&self, device: Device) -> bool {
        self.members[usize::from(device)].active
    }

    fn admitted(&self, device: Device) -> u64 {
        self.members[usize::from(device)].since
    }

    fn malformed(&self, entry: &S::Entry) -> Option<&'static str> {
        if self.rules.has(Rule::PermissionIsNoForm) {
            return None;
        }
        let permitted = |op: &Op| self.permitted(S::author(entry), op).0;
        let all = S::ops(entry).iter().all(permitted);
        (!all).then_some("an entry whose author has no permission")
    }

    fn extend(&mut self, at: u64, entry: &S::Entry) {
        let (author, heading) = (S::author(entry), S::heading(entry));
        let sizes = (heading.seen.size, heading.attests());
        self.take_effect(author, sizes, at);
        let results = S::ops(entry)
            .iter()
            .map(|op| self.evaluate(author, heading.seen.size, op, at));
        self.results = results.collect();
    }
}

impl<S: Carries> Volume<S> for State {
    type Call = Asked;
    type Answer = Answer;
    type Basis = Positions;
    type Missing = Infallible;
    type Block = Infallible;

    fn accepted(&self, device: Device) -> u64 {
        self.accepted[usize::from(device)]
    }

    fn build(&self, call: &Asked, attempt: &Attempt<Device>) -> Build<S, State> {
        match calls::build(*call, attempt, self.rules, self) {
            calls::Build::Says(answer, rests_on) => Build::Says(answer, rests_on),
            calls::Build::Op(op) => Build::Op(op, Vec::new()),
            calls::Build::Blocked(last) => Build::Blocked(last),
        }
    }

    fn outcome(&self, _: u64, op: usize, asked: &Asked) -> Outcome<S, State> {
        let result = self.results[op];
        if result.late {
            return Outcome::Late(Answer::Done);
        }
        if !result.effect || !result.completes {
            return Outcome::Again;
        }
        let answer = match asked.what {
            Call::Append(_) => Answer::Content(Content(result.set)),
            _ => Answer::Done,
        };
        Outcome::Done(answer, result.rests_on)
    }

    fn leftover(&self, device: Device, wanted: &[Op]) -> Leftover<Infallible, Asked> {
        let gives_up = |file| Asked {
            // No program makes it.
            call: CallId::new(device, CALLS - 1),
            what: Call::GiveUp(file),
        };
        self.unused(device, wanted)
            .map_or(Leftover::Nothing, |file| Leftover::Call(gives_up(file)))
    }

    fn has_room(&self, _: &[Op], _: &Op) -> bool {
        true
    }

    fn silent(_: &Positions) -> Answer {
        Answer::Io
    }
}
