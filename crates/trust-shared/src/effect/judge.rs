//! The judge of one op: permission, then guards, then the conditions that every change implies. Relies on `shape`
//! for the op alone and on [`Members`] for permission; values come from whoever evaluates.
//!
//! What a change implies: no entries and no times without their directory, no directory that goes with entries, no new
//! directory without times, no file that changes its type, no new file under the number of another device. Without
//! this, values would depend on whether a reader starts from a fold.

use super::{Lock, Values, Volume, shape};
use crate::change::Change;
use crate::guard::Guard;
use crate::hold::{Family, Hold, Ranges};
use crate::itable::Known;
use crate::key::Key;
use crate::members::Members;
use crate::ops::Op;
use crate::outcome::{NoEffect, Outcome, Written};
use crate::principal::{Device, FileId, Target};
use trust::tree::inode::FileKind;

/// An op at its place in the log.
pub(super) struct Placed<'a> {
    pub written: &'a Written,
    pub op: &'a Op,
    /// Whether the outline names the key for this op.
    pub listed: &'a dyn Fn(&Key) -> bool,
}

impl<'a> Placed<'a> {
    /// The changes that exist.
    pub fn changes(&self) -> impl Iterator<Item = &'a Change> {
        let listed = self.listed;
        let changes = self.op.changes.iter();
        changes.filter(move |change| listed(&change.key()))
    }

    /// By how much a change alters the number of entries of its directory. The op's guard says what was there.
    pub fn added(&self, change: &Change) -> Option<(FileId, i64)> {
        let (at, called, after) = match change {
            Change::Link {
                directory, name, ..
            } => (directory, name, 1),
            Change::Unlink { directory, name } => (directory, name, 0),
            _ => return None,
        };
        let before = self.op.guards.iter().find_map(|guard| match guard {
            Guard::EntryIs {
                directory,
                name,
                is,
            } if directory == at && name == called => Some(i64::from(is.is_some())),
            _ => None,
        });
        Some((*at, after - before.unwrap_or(0)))
    }
}

/// What becomes of an op that [`is_permitted`]; `None` when it depends on values that are not known yet.
pub(super) fn judge(
    volume: &Volume,
    members: &Members,
    placed: &Placed<'_>,
    values: &mut impl Values,
) -> Option<Outcome> {
    let written = placed.written;
    if let Some(outcome) = members.judge(written, placed.op, placed.listed) {
        return Some(outcome);
    }
    let changes: Vec<&Change> = placed.changes().collect();
    let guards = placed.op.guards.as_slice();
    if !shape::is_right(guards, &changes, &volume.root) {
        return Some(Outcome::None(NoEffect::Misformed));
    }
    if !may_move(members, written, guards, &changes) {
        return Some(Outcome::None(NoEffect::NotPermitted));
    }
    if !may_pass(members, written, &changes) {
        return Some(Outcome::None(NoEffect::NotPermitted));
    }
    let mut verdict = Verdict::default();
    let judge = Judge {
        volume,
        written,
        guards,
        changes: &changes,
    };
    for guard in guards {
        verdict.add(judge.guard(guard, values));
    }
    for change in &changes {
        verdict.add(judge.change(change, values));
    }
    verdict.outcome()
}

/// Whether the author may change what the outline names for the op.
pub(super) fn is_permitted(members: &Members, written: &Written, keys: &[Key]) -> bool {
    let may = |key| members.may_change(written.device, key, written.position);
    keys.iter().all(may)
}

/// Whether the author may give another parent to the directories that the op moves: their `..` is another one then.
fn may_move(members: &Members, written: &Written, guards: &[Guard], changes: &[&Change]) -> bool {
    let may_write = |principal| members.may_write(written.device, principal, written.position);
    shape::moved(guards, changes).all(|moved| may_write(moved.principal))
}

/// Whether the devices that the op passes locks to may change the files. A lock of a device that may not would stop
/// those that may.
fn may_pass(members: &Members, written: &Written, changes: &[&Change]) -> bool {
    changes.iter().all(|change| match change {
        Change::Pass { file, to } => members.may_write(*to, file.principal, written.position),
        _ => true,
    })
}

/// The first refusal, once everything is known. What is refused first does not depend on what was known first.
#[derive(Default)]
struct Verdict {
    refused: Option<NoEffect>,
    waits: bool,
}

impl Verdict {
    fn add(&mut self, found: Known<Result<(), NoEffect>>) {
        let refusal = match found {
            Known::Is(Ok(())) => return,
            Known::Is(Err(why)) => why,
            Known::Damaged(_) => NoEffect::Damaged,
            Known::NotYet => {
                self.waits = true;
                return;
            }
        };
        self.refused.get_or_insert(refusal);
    }

    /// As a part of another verdict.
    fn held(self) -> Held {
        match (self.waits, self.refused) {
            (true, _) => Known::NotYet,
            (false, Some(why)) => Known::Is(Err(why)),
            (false, None) => Known::Is(Ok(())),
        }
    }

    fn outcome(self) -> Option<Outcome> {
        match (self.waits, self.refused) {
            (true, _) => None,
            (false, Some(why)) => Some(Outcome::None(why)),
            (false, None) => Some(Outcome::Effect),
        }
    }
}

/// Whether a guard says when a device has set what it holds.
fn is_last(guard: &Guard, of: (&FileId, Family, Device)) -> bool {
    matches!(guard, Guard::HoldLast { file, family, device, .. } if (file, *family, *device) == of)
}

struct Judge<'a> {
    volume: &'a Volume,
    written: &'a Written,
    guards: &'a [Guard],
    changes: &'a [&'a Change],
}

/// `Ok` where the condition holds.
type Held = Known<Result<(), NoEffect>>;

fn held(holds: bool, otherwise: NoEffect) -> Result<(), NoEffect> {
    if holds { Ok(()) } else { Err(otherwise) }
}

/// What a guard on a value says: `otherwise` is the refusal when both exist and differ.
fn same<T: PartialEq>(found: Option<T>, is: Option<T>) -> Result<(), NoEffect> {
    match (&found, &is) {
        _ if found == is => Ok(()),
        (Some(_), None) => Err(NoEffect::Exists),
        (None, Some(_)) => Err(NoEffect::NotFound),
        _ => Err(NoEffect::Stale),
    }
}

impl Judge<'_> {
    fn guard(&self, guard: &Guard, values: &mut impl Values) -> Held {
        let author = self.written.device;
        match guard {
            Guard::HashIs { file, is } => values
                .inode(file)
                .map(|found| same(found.map(|inode| self.volume.inode_hash(&inode)), *is)),
            Guard::EntryIs {
                directory,
                name,
                is,
            } => values.entry(directory, name).map(|found| same(found, *is)),
            Guard::Empty { directory } => values
                .entries(directory)
                .map(|count| held(count == 0, NoEffect::NotEmpty)),
            Guard::Linked {
                directory,
                parent,
                name,
            } => values.entry(parent, name).map(|found| {
                let kind = FileKind::Directory;
                let file = *directory;
                let leads = found == Some(Target { file, kind });
                held(leads, NoEffect::Stale)
            }),
            Guard::FoldIs { principal, is } => values
                .fold(principal)
                .map(|found| held(found == *is, NoEffect::Stale)),
            Guard::Unlocked { file } => values
                .lock(file)
                .map(|lock| held(lock.is_none(), NoEffect::Locked)),
            Guard::Holds { file } => values.lock(file).map(|lock| {
                let holds = lock.is_some_and(|lock| lock.holder == author);
                held(holds, NoEffect::LockLost)
            }),
            Guard::HolderLast { file, position } => values.lock(file).map(|lock| {
                let last = lock.map(|lock| lock.last);
                held(last == Some(*position), NoEffect::Stale)
            }),
            Guard::HoldLast {
                file,
                family,
                device,
                position,
            } => values.hold(file, *family, *device).map(|hold| {
                let last = hold.map(|hold| hold.last);
                held(last == Some(*position), NoEffect::Stale)
            }),
            Guard::HeldSince {
                file,
                family,
                device,
                position,
            } => values.hold(file, *family, *device).map(|hold| {
                let since = hold.map(|hold| hold.since);
                held(since == Some(*position), NoEffect::LockLost)
            }),
        }
    }

    fn change(&self, change: &Change, values: &mut impl Values) -> Held {
        match change {
            Change::Set { file, inode } => {
                let author = self.written.device;
                values.inode(file).map(|found| match found {
                    None if !self.begins(file, inode.kind()) => Err(NoEffect::Misformed),
                    None => held(file.number.device == author, NoEffect::NotPermitted),
                    Some(before) => held(before.kind() == inode.kind(), NoEffect::Exists),
                })
            }
            Change::Remove { file } => self.remove(file, values),
            Change::Link { directory, .. } => values.inode(directory).map(|found| match found {
                None => Err(NoEffect::NotFound),
                Some(inode) => held(inode.kind() == FileKind::Directory, NoEffect::NotADirectory),
            }),
            Change::Touch { directory, .. } => values.inode(directory).map(|found| {
                let kind = found
                    .map(|inode| inode.kind())
                    .or_else(|| self.kind_set(directory));
                let kind = kind.ok_or(NoEffect::NotFound)?;
                held(kind == FileKind::Directory, NoEffect::NotADirectory)
            }),
            Change::Hold {
                file,
                family,
                device,
                ranges,
                since,
            } => self.holds((file, *family, *device), ranges, *since, values),
            Change::Release {
                file,
                family,
                device,
            } => values.hold(file, *family, *device).map(|hold| {
                held(hold.is_some(), NoEffect::LockLost)?;
                let lapsed = self
                    .guards
                    .iter()
                    .any(|guard| is_last(guard, (file, *family, *device)));
                held(*device == self.written.device || lapsed, NoEffect::Locked)
            }),
            Change::Lock { file } | Change::Claim { file } => {
                values.lock(file).map(|lock| self.may_lock(file, lock))
            }
            Change::Unlock { file } | Change::Pass { file, .. } => values.lock(file).map(|lock| {
                let mine = lock.is_some_and(|lock| lock.holder == self.written.device);
                held(mine, NoEffect::LockLost)
            }),
            Change::Fold { principal, fold } => values.fold(principal).map(|before| {
                let grows = fold.upto > before.map_or(0, |before| before.upto);
                held(
                    grows && fold.upto <= self.written.attests(),
                    NoEffect::Stale,
                )
            }),
            Change::Unlink { .. } | Change::Decide(_) => Known::Is(Ok(())),
        }
    }

    /// Whether a new directory gets its first times. Without this, one that is made again under the number of a removed
    /// one would have that one's times, unless a fold came between.
    fn begins(&self, file: &FileId, kind: FileKind) -> bool {
        let touches = |change: &&Change| matches!(change, Change::Touch { directory, .. } if directory == file);
        kind != FileKind::Directory || self.changes.iter().any(touches)
    }

    /// The type of a file that the op makes.
    fn kind_set(&self, file: &FileId) -> Option<FileKind> {
        self.changes.iter().find_map(|change| match change {
            Change::Set { file: made, inode } if made == file => Some(inode.kind()),
            _ => None,
        })
    }

    fn remove(&self, file: &FileId, values: &mut impl Values) -> Held {
        if *file == self.volume.root {
            return Known::Is(Err(NoEffect::Needed));
        }
        match (values.inode(file), values.entries(file)) {
            (Known::Is(None), _) => Known::Is(Err(NoEffect::NotFound)),
            (Known::Is(Some(_)), count) => count.map(|count| held(count == 0, NoEffect::NotEmpty)),
            (Known::Damaged(why), _) => Known::Damaged(why),
            (Known::NotYet, _) => Known::NotYet,
        }
    }

    /// What the author's device wants to hold of a file: it says rightly whether it has held some, and no other device
    /// holds what clashes, unless the op releases that.
    fn holds(
        &self,
        (file, family, device): (&FileId, Family, Device),
        ranges: &Ranges,
        since: Option<u64>,
        values: &mut impl Values,
    ) -> Held {
        if device != self.written.device {
            return Known::Is(Err(NoEffect::NotPermitted));
        }
        let mut verdict = Verdict::default();
        let is_there = |inode: Option<_>| held(inode.is_some(), NoEffect::NotFound);
        verdict.add(values.inode(file).map(is_there));
        let own = values.hold(file, family, device);
        verdict.add(own.map(|own| match (own.map(|own| own.since), since) {
            (None, Some(_)) => Err(NoEffect::LockLost),
            (own, since) => held(own == since, NoEffect::Stale),
        }));
        for other in values.holders(file, family) {
            if other == device || self.releases((file, family, other)) {
                continue;
            }
            let clashes = |hold: Option<Hold>| hold.is_some_and(|hold| hold.ranges.clash(ranges));
            let free = |hold| held(!clashes(hold), NoEffect::Locked);
            verdict.add(values.hold(file, family, other).map(free));
        }
        verdict.held()
    }

    fn releases(&self, of: (&FileId, Family, Device)) -> bool {
        self.changes.iter().any(|change| {
            matches!(change, Change::Release { file, family, device }
                if (file, *family, *device) == of)
        })
    }

    /// A lock of another device is taken only with a guard that names its last renewal.
    fn may_lock(&self, file: &FileId, lock: Option<Lock>) -> Result<(), NoEffect> {
        let takes_over = self.guards.iter().any(
            |guard| matches!(guard, Guard::HolderLast { file: guarded, .. } if guarded == file),
        );
        let free = lock.is_none_or(|lock| lock.holder == self.written.device);
        held(free || takes_over, NoEffect::Locked)
    }
}
