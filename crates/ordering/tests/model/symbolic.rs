//! Symbolic hashes and signatures for the product's machines, and randomness that the world gives.

use std::rc::Rc;

use ordering::scheme::{DeviceScheme, Notary, Scheme};

use crate::chain::Chain;
use crate::protocol::{Attest, Body, Device, Entry, Heading, Id, Incarnation, Mark, Op, Point};
use crate::rules::{Rule, Rules};
use crate::state::Carries;

/// One device's secrets, or the orderer's.
#[derive(Clone, Copy, Debug, Hash)]
pub struct Symbolic {
    me: Device,
    /// The next incarnation that is drawn.
    fresh: Incarnation,
    /// Marks that were drawn.
    marks: u8,
    /// Where the second epoch began, for a device that has gone over to it.
    start: Option<Point>,
    rules: NoState,
}

/// Rules never change, so that they are no part of a state.
#[derive(Clone, Copy, Debug)]
struct NoState(Rules);

impl std::hash::Hash for NoState {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

impl Symbolic {
    pub fn new(me: Device, rules: Rules) -> Symbolic {
        Symbolic {
            me,
            fresh: 0,
            marks: 0,
            start: None,
            rules: NoState(rules),
        }
    }

    pub fn has(&self, rule: Rule) -> bool {
        self.rules.0.has(rule)
    }

    pub fn as_device(self, me: Device) -> Symbolic {
        Symbolic::new(me, self.rules.0)
    }

    /// Goes over to the second epoch.
    pub fn in_epoch_from(self, start: Point) -> Symbolic {
        Symbolic {
            start: Some(start),
            ..self
        }
    }

    /// The epoch of what it signs.
    fn epoch(&self) -> u8 {
        u8::from(self.start.is_some())
    }

    /// Draws other incarnations from now on.
    pub fn with_fresh(self, fresh: Incarnation) -> Symbolic {
        Symbolic { fresh, ..self }
    }
}

impl Scheme for Symbolic {
    type Device = Device;
    type Hash = Id;
    type Incarnation = Incarnation;
    type Entry = Rc<Entry>;
    type Mark = Mark;
    type Marks = Rc<[Mark]>;
    type Attest = Attest;
    type Note = Point;
    type Log = Chain;
    type Rules = Rules;

    fn rules(&self) -> Rules {
        self.rules.0
    }

    fn author(entry: &Rc<Entry>) -> Device {
        entry.body.device
    }

    fn heading(entry: &Rc<Entry>) -> Heading {
        entry.body.heading
    }

    fn id(entry: &Rc<Entry>) -> Id {
        entry.id
    }

    fn has_mark(marks: &Rc<[Mark]>, mark: &Mark) -> bool {
        marks.contains(mark)
    }

    fn attested(attest: &Attest) -> (Device, Point) {
        let Attest {
            device, size, root, ..
        } = *attest;
        (device, Point { size, root })
    }

    fn noted(note: &Point) -> Point {
        *note
    }

    fn start(&self) -> Option<Point> {
        self.start
    }

    fn has_epoch_of(&self, at: u64, entry: &Rc<Entry>) -> bool {
        let begun = self.start.is_some_and(|start| start.size <= at);
        entry.body.epoch == u8::from(begun)
    }

    fn entry_is_signed(&self, entry: &Rc<Entry>) -> bool {
        entry.body.signed_by == entry.body.device
    }

    fn attest_is_signed(&self, attest: &Attest) -> bool {
        attest.epoch == self.epoch()
    }

    /// The server can sign any.
    fn note_is_signed(&self, _: &Point) -> bool {
        true
    }
}

impl DeviceScheme for Symbolic {
    type Op = Op;

    fn me(&self) -> Device {
        self.me
    }

    fn sign(&self, heading: Heading, ops: Vec<Op>) -> Option<Rc<Entry>> {
        Some(Entry::new(Body {
            epoch: self.epoch(),
            device: self.me,
            signed_by: self.me,
            heading,
            ops,
        }))
    }

    fn attest(&self, seen: Point) -> Option<Attest> {
        Some(Attest {
            epoch: self.epoch(),
            device: self.me,
            size: seen.size,
            root: seen.root,
        })
    }

    fn no_entry(&self) -> Id {
        Id::default()
    }

    fn incarnation(&mut self) -> Incarnation {
        if !self.rules.0.has(Rule::FreshIncarnation) {
            return 0;
        }
        let fresh = self.fresh;
        self.fresh += 1;
        fresh
    }

    fn mark(&mut self) -> Mark {
        self.marks += 1;
        Mark {
            device: self.me,
            number: self.marks - 1,
        }
    }
}

impl Carries for Symbolic {
    fn ops(entry: &Rc<Entry>) -> &[Op] {
        &entry.body.ops
    }
}

impl Notary for Symbolic {
    fn note(&mut self, point: Point) -> Point {
        point
    }

    fn marks(&self, marks: &[Mark]) -> Option<Rc<[Mark]>> {
        (!marks.is_empty()).then(|| Rc::from(marks))
    }
}
