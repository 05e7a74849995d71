//! Entries that no engine writes: forged ones, and those of a member that lies and works with the server. The member
//! signs whatever suits a log, also different things for two logs.

use std::rc::Rc;

use crate::action::{Action, Name};
use crate::chain::Chain;
use crate::engine::ClientEngine;
use crate::protocol::{
    Attest, Body, CALLS, Call, CallId, Change, Content, Device, Entry, Heading, Id, Key, Leaf, Op,
    Point,
};
use crate::world::World;

/// Instead of an Attest's number: the lying member attests the log of the device that gets it.
pub const LIED: u8 = u8::MAX;

/// What is wrong with an entry of the lying member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// Nothing here; but another log may have another entry with its number.
    Right,
    /// It says that its author keeps nothing.
    KeepsNothing,
    /// It has the number of the author's last entry.
    SameNumber,
    /// Its number skips one.
    NextNumber,
    /// `previous` is no entry.
    Previous,
    /// Its author has not seen its own last entry.
    Blind,
    /// Its author keeps more than it has seen.
    KeepsMore,
    /// A Resume beside an operation.
    LoadedResume,
    /// An incarnation that no Resume has begun.
    Incarnation,
}

pub const LIES: [Lie; 9] = [
    Lie::Right,
    Lie::KeepsNothing,
    Lie::SameNumber,
    Lie::NextNumber,
    Lie::Previous,
    Lie::Blind,
    Lie::KeepsMore,
    Lie::LoadedResume,
    Lie::Incarnation,
];

/// The lying member attests a log.
pub fn lied_attest(liar: Device, log: &Chain) -> Attest {
    let Point { size, root } = log.point();
    Attest {
        epoch: 0,
        device: liar,
        size,
        root,
    }
}

/// The last entry of a device, and its position.
fn last(log: &Chain, device: Device) -> Option<(Rc<Entry>, u64)> {
    log.backwards().find_map(|(leaf, point)| match leaf {
        Leaf::Entry(entry) if entry.body.device == device => Some((entry.clone(), point.size - 1)),
        _ => None,
    })
}

/// The operation of a call that looks at nothing.
fn op(call: CallId, deed: Call) -> Op {
    let change = match deed {
        Call::Close(file) => Change::Set(Key::Closed(file), 1),
        Call::Admit(device) | Call::Remove(device) => Change::Member {
            device,
            active: matches!(deed, Call::Admit(_)),
        },
        Call::Accept(device) => Change::Accept(device),
        Call::Put(file) => Change::Set(Key::File(file), Content::default().with(call).0),
        _ => Change::Set(Key::File(0), Content::default().with(call).0),
    };
    Op {
        call,
        completes: true,
        guards: Vec::new(),
        changes: vec![change],
    }
}

/// The call that such an operation is for.
pub fn deed(op: &Op) -> Call {
    match op.changes.first() {
        Some(Change::Set(Key::Closed(file), _)) => Call::Close(*file),
        Some(Change::Member {
            device,
            active: true,
        }) => Call::Admit(*device),
        Some(Change::Member { device, .. }) => Call::Remove(*device),
        Some(Change::Accept(device)) => Call::Accept(*device),
        Some(Change::Set(Key::File(file), _)) => Call::Put(*file),
        _ => Call::Put(0),
    }
}

/// A heading of right form after the author's last entry.
fn heading(log: &Chain, last: &Entry) -> Heading {
    Heading {
        n: last.body.heading.n + 1,
        previous: last.id,
        seen: log.point(),
        kept: log.size(),
        resume: false,
        alone: true,
        incarnation: last.body.heading.incarnation,
    }
}

impl<E: ClientEngine> World<E> {
    fn liar(&self) -> Option<Device> {
        (self.scope.lies > 0).then_some(self.clients.len() as Device)
    }

    /// Whether a device is the lying member.
    pub fn is_liar(&self, device: Device) -> bool {
        self.liar() == Some(device)
    }

    /// A write in the name of a device, of right form on the log of `to`. The next one is to another file, so it attests
    /// what this one wrote, and does not replace it.
    pub fn forge(&self, to: Device, author: Device) -> Option<Leaf> {
        let log = self.clients[usize::from(to)].frontier();
        let (last, _) = last(log, author)?;
        let file = u8::from(last.body.signed_by != author);
        Some(Leaf::Entry(Entry::new(Body {
            epoch: 0,
            device: author,
            signed_by: author + 100,
            heading: heading(log, &last),
            ops: vec![op(CallId::new(author, CALLS - 1), Call::Put(file))],
        })))
    }

    /// The next leaf for `to`, by the lying member.
    pub fn lie(&self, to: Device, lie: Lie, deed: Call) -> Option<Leaf> {
        let liar = self.liar()?;
        let log = self.clients[usize::from(to)].frontier();
        let (last, last_at) = last(log, liar)?;
        let right = heading(log, &last);
        let heading = match lie {
            Lie::Right => right,
            Lie::KeepsNothing => Heading { kept: 0, ..right },
            Lie::SameNumber => Heading {
                n: last.body.heading.n,
                ..right
            },
            Lie::NextNumber => Heading {
                n: right.n + 1,
                ..right
            },
            Lie::Previous => Heading {
                previous: Id(7),
                ..right
            },
            Lie::Blind => Heading {
                seen: log.prefix(last_at)?.point(),
                kept: last_at,
                ..right
            },
            Lie::KeepsMore => Heading {
                kept: right.kept + 1,
                ..right
            },
            Lie::LoadedResume => Heading {
                resume: true,
                alone: false,
                n: 0,
                incarnation: right.incarnation + 1,
                ..right
            },
            Lie::Incarnation => Heading {
                incarnation: right.incarnation + 1,
                ..right
            },
        };
        Some(Leaf::Entry(Entry::new(Body {
            epoch: 0,
            device: liar,
            signed_by: liar,
            heading,
            ops: vec![op(CallId::new(liar, self.lies), deed)],
        })))
    }

    pub fn lie_actions(&self, to: Device, actions: &mut Vec<Action>) {
        let Some(liar) = self.liar() else { return };
        if self.lies < self.scope.lies {
            for deed in &self.scope.deeds {
                let lies = self.scope.slips.iter().map(|lie| Name::Lied(*lie, *deed));
                actions.extend(lies.map(|lie| Action::Leaf(to, lie)));
            }
        }
        if self.clients[usize::from(to)].awaits(liar) {
            actions.push(Action::Attest(to, liar, LIED));
        }
    }

    /// The lying member has written this for `to`. The server keeps it, and may show it to others too.
    pub fn lied(&mut self, to: Device, leaf: Option<Leaf>) {
        self.lies += 1;
        if let Some(Leaf::Entry(entry)) = leaf {
            let log = self.clients[usize::from(to)].frontier().clone();
            self.sign(entry.body.device, log.prefix(entry.body.heading.attests()));
            self.keep(&entry);
        }
    }
}
