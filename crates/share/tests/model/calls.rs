//! From a system call to an operation of an entry, or to its answer.

use share::volume::Attempt;

use crate::protocol::{ADMIN, Answer, Call, Change, Content, Device, Guard, Key, Op};
use crate::rules::{Rule, Rules};
use crate::state::{Asked, Positions, State};

/// What a call comes to in a state.
pub enum Build {
    /// It changes nothing: the answer, and the entries that it rests on.
    Says(Answer, Positions),
    Op(Op),
    /// Somebody else has the lock.
    Blocked,
}

/// A call, and who makes it.
struct Caller<'a> {
    asked: Asked,
    attempt: &'a Attempt<Device>,
    rules: Rules,
}

/// Failures after which an operation takes the file's lock.
const PATIENCE: u8 = 3;

pub fn build(asked: Asked, attempt: &Attempt<Device>, rules: Rules, state: &State) -> Build {
    let caller = &Caller {
        asked,
        attempt,
        rules,
    };
    let device = attempt.device;
    let done = |guards, changes| {
        Build::Op(Op {
            call: caller.asked.call,
            completes: true,
            guards,
            changes,
        })
    };
    match asked.what {
        Call::Read(file) => {
            let value = state.value(Key::File(file));
            Build::Says(Answer::Content(Content(value.is)), value.rests_on)
        }
        Call::Append(file) | Call::Put(file) => write(file, caller, state),
        Call::Create(name) => {
            let value = state.value(Key::Name(name));
            if value.is != 0 {
                return Build::Says(Answer::Exists, value.rests_on);
            }
            done(
                vec![Guard {
                    key: Key::Name(name),
                    is: 0,
                }],
                vec![Change::Set(Key::Name(name), 1)],
            )
        }
        Call::Move(directory, to) => relocate(directory, to, caller, state),
        Call::Close(_) | Call::Admit(_) | Call::Remove(_) | Call::Accept(_) if device != ADMIN => {
            Build::Says(Answer::Denied, Positions::default())
        }
        Call::Close(file) => done(Vec::new(), vec![Change::Set(Key::Closed(file), 1)]),
        Call::Admit(device) => done(vec![], vec![member(device, true)]),
        Call::Remove(device) => done(vec![], vec![member(device, false)]),
        Call::Accept(device) => done(vec![], vec![Change::Accept(device)]),
        Call::Fold => fold(caller, state),
    }
}

fn member(device: Device, active: bool) -> Change {
    Change::Member { device, active }
}

fn fold(caller: &Caller<'_>, state: &State) -> Build {
    let folded = state.value(Key::Folded);
    let upto = caller.attempt.foldable;
    if u128::from(upto) <= folded.is {
        return Build::Says(Answer::Done, folded.rests_on);
    }
    Build::Op(Op {
        call: caller.asked.call,
        completes: true,
        guards: vec![Guard {
            key: Key::Folded,
            is: folded.is,
        }],
        changes: vec![
            Change::Set(Key::Folded, u128::from(upto)),
            Change::Fold { upto },
        ],
    })
}

/// A Set of a file's content. An append is built on what it found; both stay away from a file that is locked.
fn write(file: u8, caller: &Caller<'_>, state: &State) -> Build {
    let closed = state.value(Key::Closed(file));
    if closed.is != 0 && caller.attempt.device != ADMIN {
        return Build::Says(Answer::Denied, closed.rests_on);
    }
    let content = state.value(Key::File(file));
    let lock = state.value(Key::Lock(file));
    let mine = u128::from(caller.attempt.device) + 1;
    if lock.is != 0 && lock.is != mine {
        return Build::Blocked;
    }
    let mut op = Op {
        call: caller.asked.call,
        completes: true,
        guards: vec![Guard {
            key: Key::Lock(file),
            is: lock.is,
        }],
        changes: Vec::new(),
    };
    if lock.is == 0 && caller.attempt.failed >= PATIENCE && caller.rules.has(Rule::Lock) {
        op.completes = false;
        op.changes.push(Change::Set(Key::Lock(file), mine));
        return Build::Op(op);
    }
    let before = if matches!(caller.asked.what, Call::Put(_)) {
        Content::default()
    } else {
        Content(content.is)
    };
    if !matches!(caller.asked.what, Call::Put(_)) {
        op.guards.push(Guard {
            key: Key::File(file),
            is: content.is,
        });
    }
    op.changes.push(Change::Set(
        Key::File(file),
        before.with(caller.asked.call).0,
    ));
    if lock.is == mine {
        op.changes.push(Change::Set(Key::Lock(file), 0));
    }
    Build::Op(op)
}

fn relocate(directory: u8, to: u8, caller: &Caller<'_>, state: &State) -> Build {
    let source = state.value(Key::Parent(directory));
    let mut guards = vec![Guard {
        key: Key::Parent(directory),
        is: source.is,
    }];
    let mut rests_on = source.rests_on;
    let mut above = to;
    for _ in 0..=u8::MAX {
        if above == directory {
            return Build::Says(Answer::Invalid, rests_on);
        }
        if above == 0 {
            break;
        }
        let parent = state.value(Key::Parent(above));
        rests_on = rests_on.and(parent.rests_on);
        if caller.rules.has(Rule::MovePath) {
            guards.push(Guard {
                key: Key::Parent(above),
                is: parent.is,
            });
        }
        above = parent.is as u8;
    }
    if source.is == u128::from(to) {
        return Build::Says(Answer::Done, rests_on);
    }
    let changes = vec![Change::Set(Key::Parent(directory), u128::from(to))];
    Build::Op(Op {
        call: caller.asked.call,
        completes: true,
        guards,
        changes,
    })
}
