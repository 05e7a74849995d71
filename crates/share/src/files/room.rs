//! Whether an entry has room for one more op.

use std::collections::{BTreeSet, HashSet};

use trust::shared::change::Change;
use trust::shared::effect::About;
use trust::shared::guard::Guard;
use trust::shared::key::Key;
use trust::shared::ops::{MAX_GUARDS, Op};
use trust::shared::outline::{MAX_OPS, MAX_OPS_BYTES};
use trust::shared::principal::Principal;

/// Most bytes of a file: a reference to its principal, and its number.
const FILE_BYTES: usize = 3 + 5 + 10;
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
    bytes <= MAX_OPS_BYTES && !ops.iter().any(|op| meets(op, next))
}

/// Whether the second op depends on what the first one changes.
fn meets(first: &Op, second: &Op) -> bool {
    let looks: HashSet<About> = About::op(second)
        .into_iter()
        .chain(second.changes.iter().map(|change| About::Key(change.key())))
        .collect();
    first.changes.iter().any(|change| {
        let key = change.key();
        let directory = match &key {
            Key::Entry(directory, _) => Some(*directory),
            _ => None,
        };
        let counted = directory.is_some_and(|at| looks.contains(&About::Entries(at)));
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
        Change::Remove { .. } | Change::Lock { .. } | Change::Unlock { .. } => 0,
    };
    // The key is in the outline too.
    2 * (FILE_BYTES + TAG_BYTES) + more
}
