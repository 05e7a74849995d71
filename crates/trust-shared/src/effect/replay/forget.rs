//! Forgets what came before a position, and keeps what later values can come from.
//!
//! A value after the position comes from the last op with effect that names its key, unless the last fold has that
//! op. So of all ops before the position those stay that are the last of their key and lie after the fold of their
//! principal, and those that count the entries of a directory since then. All others go, however many there were. No
//! principal has to be folded for that: what nobody folds takes memory for each changed key, not for each op.
//!
//! What stays is the state at the position, so every value from there on is the same as with all entries. In
//! particular a wrong fold means the same: an op after the position that a later fold does not have yet is judged by
//! what stayed.

use std::collections::BTreeMap;

use super::{Last, Replay, Sources, Task, Version, Waiting};
use crate::effect::{Blocks, Bodies, Lock, Missing, Stop, Values};
use crate::hold::{Family, Hold};
use crate::itable::Fold;
use crate::key::Key;
use crate::principal::{Device, FileId, Principal};

/// Work that comes before forgetting. It is done in parts, because bodies are fetched between them.
#[derive(Debug, Clone)]
pub(super) struct Settling {
    position: u64,
    tasks: Vec<Task>,
}

/// The lowest principal in the order of keys.
const LOWEST: Principal = Principal::from_bytes([0; 32]);

/// What may be held by whom.
type HoldKey = (FileId, Family, Device);

/// The last folds at a position, by principal.
type Folds = BTreeMap<Principal, Fold>;

impl Replay {
    /// Forgets what came before `position`. Questions about positions from there on have the answers that they had;
    /// those about earlier ones have none any more.
    ///
    /// Entries before `position` are not named any more by [`Replay::rests_on`]: their authors must have attested them.
    ///
    /// # Errors
    /// [`Stop::NoPosition`] for a position that is not kept, or beyond the end; otherwise as [`Replay::inode`], because
    /// the values at the position are evaluated first. Then nothing is forgotten, and the same call gets further when what is
    /// missing has been fetched.
    pub fn forget_before<S: Blocks + Bodies>(
        &mut self,
        position: u64,
        from: Sources<'_, S>,
    ) -> Result<(), Stop> {
        if !(self.from..=self.size).contains(&position) {
            return Err(Stop::NoPosition);
        }
        let cut = self.first_op_at(position);
        let folds = self.folds_before(cut, from)?;
        self.settle(position, &folds, from)?;
        let (locks, holds) = (self.locks_before(cut, from)?, self.holds_before(cut, from)?);
        for (file, lock) in locks {
            match lock {
                Some(lock) => self.old_locks.insert(file, lock),
                None => self.old_locks.remove(&file),
            };
        }
        for (key, hold) in holds {
            match hold {
                Some(hold) => self.old_holds.insert(key, hold),
                None => self.old_holds.remove(&key),
            };
        }
        self.drop_before(cut, &folds);
        self.old_folds = folds;
        self.from = position;
        self.drop_gathered_before(position);
        Ok(())
    }

    /// The position after the last entry before `limit` that folds with effect. Where none is kept: the first position that
    /// is. To forget what came before it takes the least work, because little is not folded there.
    ///
    /// # Errors
    /// As [`Replay::inode`].
    pub fn after_fold<S: Blocks + Bodies>(
        &mut self,
        limit: u64,
        from: Sources<'_, S>,
    ) -> Result<u64, Stop> {
        let before = self.first_op_at(limit);
        let mut after = self.from;
        for key in self.keys_before(before, Key::Fold(LOWEST)) {
            let last = self.ask_before(before, &mut Waiting::default(), from, |view| {
                view.version(&key, 0)
            })?;
            let row = last.and_then(|version| self.row(version.op));
            let found = row.map_or(0, |row| row.written.position.saturating_add(1));
            after = after.max(found);
        }
        Ok(after)
    }

    /// The first position about which questions have answers.
    pub fn begins(&self) -> u64 {
        self.from
    }

    /// Number of ops from [`Replay::begins`] on.
    pub fn ops_since_begin(&self) -> usize {
        self.kept_ops().saturating_sub(self.ops_before(self.from))
    }

    /// The keys from one on, of its kind, that ops before one name.
    fn keys_before(&self, before: u32, first: Key) -> Vec<Key> {
        let kind = std::mem::discriminant(&first);
        self.keys
            .range(first..)
            .take_while(|(key, _)| std::mem::discriminant(*key) == kind)
            .filter(|(_, versions)| versions.first().is_some_and(|first| first.op < before))
            .map(|(key, _)| key.clone())
            .collect()
    }

    fn folds_before<S: Blocks + Bodies>(
        &mut self,
        cut: u32,
        from: Sources<'_, S>,
    ) -> Result<Folds, Stop> {
        let mut folds = self.old_folds.clone();
        let (mut missing, mut waiting) = (Missing::default(), Waiting::default());
        for key in self.keys_before(cut, Key::Fold(LOWEST)) {
            let Key::Fold(principal) = key else { continue };
            let fold = self.ask_before(cut, &mut waiting, from, |view| view.fold(&principal));
            let fold = missing.unless(fold)?.flatten();
            folds.extend(fold.map(|fold| (principal, fold)));
        }
        missing.or(folds)
    }

    fn locks_before<S: Blocks + Bodies>(
        &mut self,
        cut: u32,
        from: Sources<'_, S>,
    ) -> Result<Vec<(FileId, Option<Lock>)>, Stop> {
        let mut locks = Vec::new();
        let (mut missing, mut waiting) = (Missing::default(), Waiting::default());
        for key in self.keys_before(cut, Key::Lock(FileId::first_of(LOWEST))) {
            let Key::Lock(file) = key else { continue };
            let lock = self.ask_before(cut, &mut waiting, from, |view| view.lock(&file));
            locks.extend(missing.unless(lock)?.map(|lock| (file, lock)));
        }
        missing.or(locks)
    }

    fn holds_before<S: Blocks + Bodies>(
        &mut self,
        cut: u32,
        from: Sources<'_, S>,
    ) -> Result<Vec<(HoldKey, Option<Hold>)>, Stop> {
        let mut holds = Vec::new();
        let (mut missing, mut waiting) = (Missing::default(), Waiting::default());
        let first = Key::Hold(FileId::first_of(LOWEST), Family::Flock, Device(0));
        for key in self.keys_before(cut, first) {
            let Key::Hold(file, family, device) = key else {
                continue;
            };
            let hold = self.ask_before(cut, &mut waiting, from, |view| {
                view.hold(&file, family, device)
            });
            let found = missing.unless(hold)?;
            holds.extend(found.map(|hold| ((file, family, device), hold)));
        }
        missing.or(holds)
    }

    /// Judges the ops before a position on which later values depend.
    fn settle<S: Blocks + Bodies>(
        &mut self,
        position: u64,
        folds: &Folds,
        from: Sources<'_, S>,
    ) -> Result<(), Stop> {
        let begun = self.settling.take();
        let begun = begun.filter(|settling| settling.position == position);
        let tasks = begun.map(|settling| settling.tasks);
        let tasks = tasks.unwrap_or_else(|| self.unsettled(position, folds));
        let (mut left, mut missing) = (Vec::new(), Missing::default());
        let mut waiting = Waiting::default();
        for task in tasks {
            if missing.is_long() {
                left.push(task);
                continue;
            }
            match self.work(task.clone(), &mut waiting, from) {
                Ok(()) => {}
                Err(Stop::Missing(more)) => {
                    missing.add(more);
                    left.push(task);
                }
                Err(stop) => return Err(stop),
            }
        }
        if !left.is_empty() {
            let tasks = left;
            self.settling = Some(Settling { position, tasks });
        }
        missing.or(())
    }

    /// What is not known of the values at a position.
    fn unsettled(&self, position: u64, folds: &Folds) -> Vec<Task> {
        let cut = self.first_op_at(position);
        let mut tasks = Vec::new();
        for (key, versions) in &self.keys {
            let Some(owner) = folded_with(key) else {
                continue;
            };
            let since = self.first_op_at(upto(folds, &owner));
            let after = versions.partition_point(|version| version.op < cut);
            let floor = versions.partition_point(|version| version.op < since);
            let newest = after.checked_sub(1).filter(|newest| *newest >= floor);
            let Some(newest) = newest else { continue };
            let unknown = |version: &Version| version.last() == Last::UNKNOWN;
            if versions.get(newest).is_some_and(unknown) {
                tasks.push(Task::Last(key.clone(), newest as u32, floor as u32));
            }
        }
        for (directory, steps) in &self.directories {
            let since = self.first_op_at(upto(folds, &directory.principal));
            let ops = steps.iter().map(|step| step.op);
            let counted = ops.filter(|op| (since..cut).contains(op));
            let unknown = counted.filter(|op| self.rows.outcome(*op).is_none());
            tasks.extend(unknown.map(Task::Op));
        }
        tasks
    }

    /// Drops the ops before one that begins an entry, but for those that later values can come from.
    fn drop_before(&mut self, cut: u32, folds: &Folds) {
        let rows = &self.rows;
        let is_folded = |op: u32, owner: &Principal| {
            let position = rows.of(op).map_or(0, |row| row.written.position);
            position < upto(folds, owner)
        };
        let mut stay: Vec<u32> = Vec::new();
        self.keys.retain(|key, versions| {
            let owner = folded_with(key);
            let is_folded = |op| owner.is_none_or(|owner| is_folded(op, &owner));
            stay.extend(keep_last(versions, cut, is_folded));
            !versions.is_empty()
        });
        self.directories.retain(|directory, steps| {
            let old = steps.partition_point(|step| step.op < cut);
            let folded = steps
                .get(..old)
                .unwrap_or_default()
                .partition_point(|step| is_folded(step.op, &directory.principal));
            let before = folded
                .checked_sub(1)
                .and_then(|last| steps.get(last)?.sum)
                .unwrap_or(0);
            steps.drain(..folded);
            steps.retain(|step| step.op >= cut || step.added != 0);
            for step in steps.iter_mut() {
                step.sum = step.sum.map(|sum| sum.saturating_sub(before));
            }
            steps.shrink_to(steps.len() / 8 * 9);
            let old = steps.iter().map(|step| step.op);
            stay.extend(old.filter(|op| *op < cut));
            !steps.is_empty()
        });
        let keys = &self.keys;
        let has_changed = |key: &Key| {
            let first = keys.get(key).and_then(|versions| versions.first());
            first.is_some_and(|first| first.op < cut)
        };
        self.base.forget(|owner| upto(folds, owner), has_changed);
        stay.sort_unstable();
        let moved = self.rows.keep(cut, &stay);
        let versions = self.keys.values_mut().flatten();
        versions.for_each(|version| version.op = moved.of(version.op));
        let steps = self.directories.values_mut().flatten();
        steps.for_each(|step| step.op = moved.of(step.op));
        let folds = self.folds.split_off(&cut);
        let folds = folds.into_iter();
        self.folds = folds.map(|(op, fold)| (moved.of(op), fold)).collect();
    }
}

/// Drops the versions of a key before an op, but for the last one that counts, unless it is folded. Gives that one's op.
fn keep_last(
    versions: &mut Vec<Version>,
    cut: u32,
    is_folded: impl Fn(u32) -> bool,
) -> Option<u32> {
    let old = versions.partition_point(|version| version.op < cut);
    let newest = old.checked_sub(1).and_then(|newest| versions.get(newest));
    let last = newest.and_then(|newest| newest.last().index());
    let last = last.and_then(|last| versions.get(last as usize).copied());
    let last = last.filter(|last| !is_folded(last.op));
    versions.drain(..old);
    let kept = usize::from(last.is_some());
    for version in versions.iter_mut() {
        let Some(index) = version.last().index() else {
            continue;
        };
        let index = index as usize;
        version.set_last(match index.checked_sub(old) {
            Some(later) => Last((later + kept) as u32),
            None if kept == 1 => Last(0),
            None => Last::NONE,
        });
    }
    if let Some(mut last) = last {
        last.set_last(Last(0));
        versions.insert(0, last);
    }
    versions.shrink_to(versions.len() / 8 * 9);
    last.map(|last| last.op)
}

/// The principal whose folds have the values of a key.
fn folded_with(key: &Key) -> Option<Principal> {
    match key {
        Key::Inode(file) | Key::Entry(file, _) | Key::Times(file) => Some(file.principal),
        _ => None,
    }
}

fn upto(folds: &Folds, principal: &Principal) -> u64 {
    folds.get(principal).map_or(0, |fold| fold.upto)
}
