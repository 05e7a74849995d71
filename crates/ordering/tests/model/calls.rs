//! From a system call to an operation of an entry, or to its answer.

use ordering::volume::{Attempt, PATIENCE};

use crate::protocol::{Answer, Call, Change, Content, Device, Guard, Key, Op};
use crate::rules::{Rule, Rules};
use crate::state::{Asked, Positions, State};

/// What a call comes to in a state.
pub enum Build {
    /// It changes nothing: the answer, and the entries that it rests on.
    Says(Answer, Positions),
    Op(Op),
    /// Somebody else has the lock, and renewed it at this position.
    Blocked(u64),
}

/// A call, and who makes it.
struct Caller<'a> {
    asked: Asked,
    attempt: &'a Attempt<Device>,
    rules: Rules,
}

impl Caller<'_> {
    /// The caller as the holder of a lock.
    fn mine(&self) -> u128 {
        u128::from(self.attempt.device) + 1
    }
}

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
        Call::Close(_) | Call::Admit(_) | Call::Remove(_) | Call::Accept(_)
            if device != state.admin =>
        {
            Build::Says(Answer::Denied, Positions::default())
        }
        Call::Close(file) => done(Vec::new(), vec![Change::Set(Key::Closed(file), 1)]),
        Call::Admit(device) => done(vec![], vec![member(device, true)]),
        Call::Remove(device) => done(vec![], vec![member(device, false)]),
        Call::Accept(device) => done(vec![], vec![Change::Accept(device)]),
        Call::Fold => fold(caller, state),
        Call::Lock(file) => take(file, Change::Lock(file), caller, state),
        Call::Unlock(file) => under_lock(file, vec![given_up(file, caller, state)], caller, state),
        Call::GiveUp(file) => give_up(file, caller, state),
        Call::PutLocked(file) => {
            let content = Content::default().with(caller.asked.call);
            let put = Change::Set(Key::File(file), content.0);
            under_lock(file, vec![put], caller, state)
        }
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

/// Takes a file's lock by a Lock or a Claim, renews it, or takes it over when its holder has not renewed it for its time
/// to live.
fn take(file: u8, change: Change, caller: &Caller<'_>, state: &State) -> Build {
    let lock = state.value(Key::Lock(file));
    let renewed = state.value(Key::Renewed(file));
    let mut guards = vec![Guard {
        key: Key::Lock(file),
        is: lock.is,
    }];
    if lock.is != 0 && lock.is != caller.mine() {
        let last = renewed.is as u64 - 1;
        // A device that may not write the file any more cannot use its lock.
        let useless = !state.may_write((lock.is - 1) as Device, file);
        let lapsed =
            last < caller.attempt.lapsed || useless && caller.rules.has(Rule::ReadersHoldNothing);
        if !lapsed || !caller.rules.has(Rule::Takeover) {
            return Build::Blocked(last);
        }
        if caller.rules.has(Rule::HolderLast) {
            guards.push(Guard {
                key: Key::Renewed(file),
                is: renewed.is,
            });
        }
    }
    Build::Op(Op {
        call: caller.asked.call,
        completes: matches!(change, Change::Lock(_)),
        guards,
        changes: vec![change],
    })
}

/// Takes the lock of a file for one write if nobody has it, and otherwise says that the device waits.
fn claim(file: u8, caller: &Caller<'_>) -> Build {
    Build::Op(Op {
        call: caller.asked.call,
        completes: false,
        guards: Vec::new(),
        changes: vec![Change::Claim(file)],
    })
}

/// Gives a lock to the device that has waited longest, or up.
fn given_up(file: u8, caller: &Caller<'_>, state: &State) -> Change {
    let next = state.next(file).filter(|_| caller.rules.has(Rule::Queue));
    next.map_or(Change::Unlock(file), |to| Change::Pass(file, to))
}

/// Gives on a lock that the device has for one change, and does not use.
fn give_up(file: u8, caller: &Caller<'_>, state: &State) -> Build {
    let lock = state.value(Key::Lock(file));
    if lock.is != caller.mine() || !state.is_brief(file) {
        return Build::Says(Answer::Done, Positions::default());
    }
    Build::Op(Op {
        call: caller.asked.call,
        completes: false,
        guards: vec![Guard {
            key: Key::Lock(file),
            is: lock.is,
        }],
        changes: vec![given_up(file, caller, state)],
    })
}

/// What only the program may do that has a lock.
fn under_lock(file: u8, changes: Vec<Change>, caller: &Caller<'_>, state: &State) -> Build {
    let lock = state.value(Key::Lock(file));
    if lock.is != caller.mine() || state.is_brief(file) {
        return Build::Says(Answer::Lost, lock.rests_on);
    }
    let holds = Guard {
        key: Key::Lock(file),
        is: lock.is,
    };
    let guarded = caller.rules.has(Rule::Holds);
    Build::Op(Op {
        call: caller.asked.call,
        completes: true,
        guards: guarded.then_some(holds).into_iter().collect(),
        changes,
    })
}

/// A Set of a file's content. An append is built on what it found; both stay away from a file that is locked.
fn write(file: u8, caller: &Caller<'_>, state: &State) -> Build {
    let closed = state.value(Key::Closed(file));
    if closed.is != 0 && caller.attempt.device != state.admin {
        return Build::Says(Answer::Denied, closed.rests_on);
    }
    let content = state.value(Key::File(file));
    let lock = state.value(Key::Lock(file));
    let mine = caller.mine();
    if lock.is != 0 && lock.is != mine {
        let queues = caller.rules.has(Rule::Queue);
        let waits = state.waits(file, caller.attempt.device) && caller.rules.has(Rule::ClaimOnce);
        return match take(file, Change::Claim(file), caller, state) {
            Build::Blocked(_) if queues && !waits => claim(file, caller),
            taken => taken,
        };
    }
    let failed = caller.attempt.failed >= PATIENCE && caller.rules.has(Rule::Lock);
    if lock.is == 0 && failed {
        return claim(file, caller);
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
    let gives_up = state.is_brief(file) || !caller.rules.has(Rule::ProgramsLock);
    if lock.is == mine && gives_up {
        op.changes.push(given_up(file, caller, state));
        if !caller.rules.has(Rule::PassHolds) {
            op.guards.retain(|guard| guard.key != Key::Lock(file));
        }
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
