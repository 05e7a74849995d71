//! Whether an entry has room for one more op.

use std::collections::{BTreeSet, HashSet};

use trust_shared::change::Change;
use trust_shared::effect::About;
use trust_shared::guard::Guard;
use trust_shared::key::Key;
use trust_shared::ops::{MAX_GUARDS, Op};
use trust_shared::outline::{MAX_OPS, MAX_OPS_BYTES};
use trust_shared::principal::Principal;

/// Most bytes of a file: a reference to its principal, and its number.
const FILE_BYTES: usize = 3 + 5 + 10;
/// Most bytes of a device's number.
const DEVICE_BYTES: usize = 5;
/// Most bytes of a family of locks and a device.
const HELD_BYTES: usize = 1 + DEVICE_BYTES;
/// Most bytes of a range of a lock: two offsets and a flag.
const RANGE_BYTES: usize = 10 + 10 + 1;
/// Most bytes of a point in time.
const TIME_BYTES: usize = 10 + 5;
/// Most bytes of a tag, a kind and a length.
const TAG_BYTES: usize = 4;
/// Most bytes of a fold: a position, and a root.
const FOLD_BYTES: usize = 128;
/// Most bytes of a decision, with its key: a key, principals, a label.
const DECISION_BYTES: usize = 256;

/// Whether the entry stays within its bounds, and its ops do not look at each other's changes: an op is built on
/// values before the entry, so it would have no effect.
pub(super) fn has_room(ops: &[Op], next: &Op) -> bool {
    let all = || ops.iter().chain([next]);
    let guards: usize = all().map(|op| op.guards.len()).sum();
    if ops.len() >= MAX_OPS || guards > MAX_GUARDS {
        return false;
    }
    let principals: BTreeSet<Principal> = all().flat_map(principals).collect();
    // The table is in the body and in the outline.
    let bytes: usize = all().map(most_bytes).sum::<usize>() + 2 * 32 * principals.len() + 64;
    let looks = looks_at(next);
    bytes <= MAX_OPS_BYTES && !ops.iter().any(|op| meets(op, &looks))
}

/// The values that an op depends on, and those that it changes. On the times of a directory nothing depends, and the
/// last ones stay.
fn looks_at(op: &Op) -> HashSet<About> {
    let changed = op.changes.iter().map(Change::key);
    let changed = changed.filter(|key| !matches!(key, Key::Times(_)));
    let looks = About::op(op).into_iter();
    looks.chain(changed.map(About::Key)).collect()
}

/// Whether an op changes what another one looks at.
fn meets(op: &Op, looks: &HashSet<About>) -> bool {
    op.changes.iter().any(|change| {
        let key = change.key();
        let counted = match &key {
            Key::Entry(directory, _) => looks.contains(&About::Entries(*directory)),
            Key::Hold(file, family, _) => looks.contains(&About::Holds(*file, *family)),
            _ => false,
        };
        counted || looks.contains(&About::Key(key))
    })
}

fn principals(op: &Op) -> impl Iterator<Item = Principal> + '_ {
    let guards = op.guards.iter().flat_map(Guard::principals);
    guards.chain(op.changes.iter().flat_map(Change::principals))
}

/// At least the bytes that an op has in the body and in the outline, without principals.
fn most_bytes(op: &Op) -> usize {
    let guards: usize = op.guards.iter().map(guard_bytes).sum();
    let changes: usize = op.changes.iter().map(change_bytes).sum();
    guards + changes + 3 * TAG_BYTES
}

fn guard_bytes(guard: &Guard) -> usize {
    let more = match guard {
        Guard::HashIs { .. } => 32,
        Guard::EntryIs { name, .. } | Guard::Linked { name, .. } => {
            name.as_bytes().len() + FILE_BYTES + TAG_BYTES
        }
        Guard::FoldIs { .. } => FOLD_BYTES,
        Guard::HolderLast { .. } => 10,
        Guard::HoldLast { .. } | Guard::HeldSince { .. } => HELD_BYTES + 10,
        Guard::Empty { .. } | Guard::Unlocked { .. } | Guard::Holds { .. } => 0,
    };
    FILE_BYTES + TAG_BYTES + more
}

fn change_bytes(change: &Change) -> usize {
    let more = match change {
        Change::Set { inode, .. } => inode.encode().len(),
        Change::Link { name, .. } => 2 * name.as_bytes().len() + FILE_BYTES + 2 * TAG_BYTES,
        Change::Unlink { name, .. } => 2 * name.as_bytes().len() + 2 * TAG_BYTES,
        Change::Fold { .. } => FOLD_BYTES,
        Change::Decide(_) => DECISION_BYTES,
        Change::Pass { .. } => DEVICE_BYTES,
        Change::Touch { .. } => 2 * TIME_BYTES,
        Change::Hold { ranges, .. } => 2 * HELD_BYTES + 10 + RANGE_BYTES * ranges.iter().count(),
        Change::Release { .. } => 2 * HELD_BYTES,
        Change::Remove { .. }
        | Change::Lock { .. }
        | Change::Unlock { .. }
        | Change::Claim { .. } => 0,
    };
    // The key is in the outline too.
    2 * (FILE_BYTES + TAG_BYTES) + more
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use trust::handle::Handle;
    use trust::key::SecretKey;
    use trust::tree::inode::{Content, FileContent, FileKind, Inode, Time};
    use trust_shared::calls::decide;
    use trust_shared::decision::{Decision, Label};
    use trust_shared::itable::Fold;
    use trust_shared::ops::Body;
    use trust_shared::principal::{Device, FileId, INumber, Name, Target};

    use super::*;

    fn principal(number: u64) -> Principal {
        Principal::from_bytes([number as u8; 32])
    }

    /// Files whose bytes are the most that files have.
    fn file(owner: u64, number: u64) -> FileId {
        FileId {
            principal: principal(owner),
            number: INumber {
                device: Device(u32::MAX),
                counter: u64::MAX - number,
            },
        }
    }

    fn name(number: u64, bytes: usize) -> Name {
        let text = format!("{number:0bytes$}");
        Name::new(text.as_bytes()).unwrap()
    }

    /// Op number `number` with names of so many bytes, every kind of guard and change in turn.
    fn op(number: u64, bytes: usize, owners: u64) -> Op {
        let one = file(number % owners, number);
        let directory = file((number + 1) % owners, 1 << 20);
        let name = name(number, bytes.max(4));
        let kind = FileKind::Regular;
        let target = Target { file: one, kind };
        let is = Some(target);
        let text = Content::Regular(FileContent::Inline(vec![7; 512].into()));
        let inode = Arc::new(Inode::new(0o644, Time::default(), text));
        let entry = Guard::EntryIs {
            directory,
            name: name.clone(),
            is,
        };
        match number % 5 {
            0 => Op::new(
                vec![
                    entry,
                    Guard::HashIs {
                        file: one,
                        is: Some(Handle::from_bytes([9; 32])),
                    },
                    Guard::Linked {
                        directory,
                        parent: one,
                        name: name.clone(),
                    },
                ],
                vec![
                    Change::Set { file: one, inode },
                    Change::Link {
                        directory,
                        name,
                        target,
                    },
                ],
            ),
            1 => Op::new(
                vec![
                    entry,
                    Guard::Holds { file: one },
                    Guard::HolderLast {
                        file: one,
                        position: u64::MAX,
                    },
                ],
                vec![
                    Change::Unlink { directory, name },
                    Change::Remove { file: one },
                    Change::Unlock { file: one },
                ],
            ),
            2 => decide(Decision::AdmitDevice {
                device: Device(u32::MAX - number as u32),
                key: SecretKey::from_seed(&[1; 32]).public(),
                user: principal(number % owners),
            }),
            3 => decide(Decision::AddUser {
                user: principal(number),
                label: Label::new(&"x".repeat(64)).unwrap(),
            }),
            _ => Op::new(
                vec![
                    Guard::FoldIs {
                        principal: principal(number),
                        is: Some(Fold {
                            upto: u64::MAX,
                            root: None,
                        }),
                    },
                    Guard::Unlocked { file: one },
                    Guard::Empty { directory: one },
                ],
                vec![Change::Lock { file: one }],
            ),
        }
    }

    #[test]
    fn entry_that_is_filled_can_always_be_signed() {
        for (bytes, owners) in [(4, 1), (4, 200), (255, 1), (255, 200), (60, 3)] {
            let mut ops = Vec::new();
            for number in 0..2000 {
                let next = op(number, bytes, owners);
                if has_room(&ops, &next) {
                    ops.push(next);
                }
            }
            let body = Body::new(ops.clone());
            let body = body.unwrap_or_else(|why| panic!("{bytes}, {owners}: {why}"));
            let used = body.encode().len() + body.outline().encode().len();
            let guards: usize = ops.iter().map(|op| op.guards.len()).sum();
            let full = used * 2 > MAX_OPS_BYTES || guards + 3 > MAX_GUARDS;
            assert!(full, "{bytes}, {owners}: {used} bytes, {guards} guards");
        }
    }

    #[test]
    fn entry_has_no_more_guards_than_it_may_have() {
        let mut ops = Vec::new();
        for number in 0..100 {
            let file = file(1, number);
            let guards = vec![Guard::Unlocked { file }; 10];
            let next = Op::new(guards, vec![Change::Lock { file }]);
            if has_room(&ops, &next) {
                ops.push(next);
            }
        }
        assert_eq!(ops.len(), MAX_GUARDS / 10);
        assert!(Body::new(ops).is_ok());
    }

    #[test]
    fn ops_that_look_at_each_other_do_not_go_together() {
        let (one, two) = (file(1, 1), file(1, 2));
        let lock = |file| Op::new(vec![Guard::Unlocked { file }], vec![Change::Lock { file }]);
        assert!(!has_room(&[lock(one)], &lock(one)));
        assert!(has_room(&[lock(one)], &lock(two)));
        let (directory, name) = (two, name(1, 4));
        let make = Op::new(Vec::new(), vec![Change::Unlink { directory, name }]);
        let empty = Op::new(
            vec![Guard::Empty { directory }],
            vec![Change::Remove { file: directory }],
        );
        assert!(!has_room(&[make], &empty));
    }
}
