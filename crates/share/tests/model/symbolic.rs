//! Symbolic hashes and signatures for the product's machines, and randomness that the world gives.

use std::rc::Rc;

use share::scheme::{Notary, Scheme, Signer};

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
            rules: NoState(rules),
        }
    }

    pub fn has(&self, rule: Rule) -> bool {
        self.rules.0.has(rule)
    }

    pub fn as_device(self, me: Device) -> Symbolic {
        Symbolic::new(me, self.rules.0)
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
        let Attest { device, size, root } = *attest;
        (device, Point { size, root })
    }

    fn noted(note: &Point) -> Point {
        *note
    }

    fn entry_is_signed(&self, entry: &Rc<Entry>) -> bool {
        entry.body.signed_by == entry.body.device
    }

    fn attest_is_signed(&self, _: &Attest) -> bool {
        true
    }

    /// The server can sign any.
    fn note_is_signed(&self, _: &Point) -> bool {
        true
    }
}

impl Signer for Symbolic {
    type Op = Op;

    fn me(&self) -> Device {
        self.me
    }

    fn sign(&self, heading: Heading, ops: Vec<Op>) -> Option<Rc<Entry>> {
        Some(Entry::new(Body {
            device: self.me,
            signed_by: self.me,
            heading,
            ops,
        }))
    }

    fn attest(&self, seen: Point) -> Option<Attest> {
        Some(Attest {
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
