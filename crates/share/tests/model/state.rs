//! State of the volume after a prefix of a log: values of keys, rows of devices, members. Each value knows the
//! entries that it rests on.

use trust::shared::form::{Faults, Standing, faults};

use crate::chain::Chain;
use crate::protocol::{ADMIN, Author, Body, CallId, Change, Device, Key, Leaf, Op};
use crate::rules::{Rule, Rules};

/// Devices in any model.
pub const DEVICES: usize = 3;
const NOBODY: Device = Device::MAX;

/// Set of positions.
pub type Positions = u64;

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
pub struct Outcome {
    pub call: CallId,
    pub completes: bool,
    pub effect: bool,
    /// The change waits for its author's next entry.
    pub late: bool,
    pub rests_on: Positions,
    /// What the op set first.
    pub set: u128,
}

#[derive(Clone, Debug)]
pub struct State {
    rules: Rules,
    values: Vec<(Key, Value)>,
    authors: [Option<Author>; DEVICES],
    members: [Member; DEVICES],
    late: Vec<Late>,
    accepted: [u64; DEVICES],
    /// Author of each leaf; nobody for marks.
    wrote: Vec<Device>,
    /// Calls that had effect.
    pub executed: u32,
}

impl State {
    /// State before the first leaf. `members`: devices that the genesis policy admits.
    pub fn genesis(rules: Rules, members: u8) -> State {
        State {
            rules,
            values: Vec::new(),
            authors: [None; DEVICES],
            members: std::array::from_fn(|device| Member {
                active: members >> device & 1 == 1,
                since: 0,
            }),
            late: Vec::new(),
            accepted: [0; DEVICES],
            wrote: Vec::new(),
            executed: 0,
        }
    }

    pub fn value(&self, key: Key) -> Value {
        self.values
            .iter()
            .find(|(at, _)| *at == key)
            .map_or(Value::default(), |(_, value)| *value)
    }

    pub fn author(&self, device: Device) -> Option<&Author> {
        self.authors[usize::from(device)].as_ref()
    }

    pub fn active(&self, device: Device) -> bool {
        self.members[usize::from(device)].active
    }

    /// Entries of `device` before this position count by an administrator's decision.
    pub fn accepted(&self, device: Device) -> u64 {
        self.accepted[usize::from(device)]
    }

    /// Author of the leaf at a position. None: a mark.
    pub fn wrote(&self, at: u64) -> Option<Device> {
        self.wrote
            .get(at as usize)
            .copied()
            .filter(|device| *device != NOBODY)
    }

    pub fn size(&self) -> u64 {
        self.wrote.len() as u64
    }

    /// Faults of an entry as the next leaf of `chain`, whose state this is.
    pub fn faults(&self, chain: &Chain, body: &Body) -> Faults {
        let member = self.members[usize::from(body.device)];
        let standing = Standing {
            author: self.author(body.device),
            active: member.active,
            admitted: member.since,
        };
        faults(&standing, &body.heading, |size| chain.root_at(size)).without(self.rules.ignored())
    }

    /// Whether the author may make all changes of the op, and what that rests on.
    pub fn permitted(&self, author: Device, op: &Op) -> (bool, Positions) {
        let mut rests_on = 0;
        let mut permitted = true;
        for change in &op.changes {
            match change {
                Change::Set(Key::File(file), _) => {
                    let closed = self.value(Key::Closed(*file));
                    rests_on |= closed.rests_on;
                    permitted &= closed.is == 0 || author == ADMIN;
                }
                Change::Set(Key::Closed(_), _) | Change::Member { .. } | Change::Accept(_) => {
                    permitted &= author == ADMIN;
                }
                _ => {}
            }
        }
        (permitted, rests_on)
    }

    /// Adds a leaf that was found right.
    pub fn extend(&mut self, leaf: &Leaf) -> Vec<Outcome> {
        let at = self.size();
        let Leaf::Entry(entry) = leaf else {
            self.wrote.push(NOBODY);
            return Vec::new();
        };
        let body = &entry.body;
        let device = usize::from(body.device);
        self.wrote.push(body.device);
        let row = Author::after(self.authors[device].as_ref(), &body.heading, entry.id, at);
        self.authors[device] = Some(row);
        self.take_effect(body, at);
        body.ops
            .iter()
            .map(|op| self.evaluate(body, op, at))
            .collect()
    }

    /// Changes that this entry's author has made before, and attests with it.
    fn take_effect(&mut self, body: &Body, at: u64) {
        let covers = if self.rules.has(Rule::LateEffectKept) {
            body.heading.attests()
        } else {
            body.heading.seen.size
        };
        for late in std::mem::take(&mut self.late) {
            if late.author == body.device && late.at < covers {
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
            Change::Set(..) | Change::Fold { .. } => {}
        }
    }

    /// Permission, guards, effect.
    fn evaluate(&mut self, body: &Body, op: &Op, at: u64) -> Outcome {
        let (permitted, mut rests_on) = self.permitted(body.device, op);
        rests_on |= 1 << at;
        let mut effect = permitted;
        for guard in &op.guards {
            let value = self.value(guard.key);
            rests_on |= value.rests_on;
            effect &= value.is == guard.is || !self.rules.has(Rule::Guards);
        }
        let mut outcome = Outcome {
            call: op.call,
            completes: op.completes,
            effect,
            late: false,
            rests_on,
            set: 0,
        };
        for change in &op.changes {
            match change {
                Change::Set(key, is) => self.set(*key, *is, effect, rests_on, &mut outcome),
                Change::Fold { upto } if effect => self.fold(*upto, at),
                Change::Fold { .. } => {}
                _ if !effect => {}
                Change::Member { .. } | Change::Accept(_) => {
                    self.make(body, change, at, &mut outcome)
                }
            }
        }
        if effect && op.completes {
            self.executed |= op.call.bit();
        }
        outcome
    }

    fn set(
        &mut self,
        key: Key,
        is: u128,
        effect: bool,
        rests_on: Positions,
        outcome: &mut Outcome,
    ) {
        if !self.values.iter().any(|(at, _)| *at == key) {
            self.values.push((key, Value::default()));
        }
        let found = self.values.iter_mut().find(|(at, _)| *at == key);
        let Some((_, value)) = found else { return };
        if effect {
            *value = Value { is, rests_on };
            if outcome.set == 0 {
                outcome.set = is;
            }
        } else {
            // That the op had no effect is something that readers must know.
            value.rests_on |= rests_on;
        }
    }

    /// All values rest on the fold instead of what is folded.
    fn fold(&mut self, upto: u64, at: u64) {
        let folded = (1 << upto) - 1;
        for (_, value) in &mut self.values {
            if value.rests_on & folded != 0 {
                value.rests_on = value.rests_on & !folded | 1 << at;
            }
        }
    }

    fn make(&mut self, body: &Body, change: &Change, at: u64, outcome: &mut Outcome) {
        let seen = if self.rules.has(Rule::AcceptSeen) {
            body.heading.seen.size
        } else {
            at
        };
        if self.rules.has(Rule::LateEffect) {
            outcome.late = true;
            self.late.push(Late {
                at,
                author: body.device,
                seen,
                change: *change,
            });
        } else {
            self.decide(change, seen, at);
        }
    }
}
