//! Drops outlines of entries that every reader takes from folds.

use std::collections::BTreeMap;

use super::{Last, Made, Replay, Sources, Task, Version};
use crate::shared::effect::{Blocks, Bodies, Lock, Stop, Values};
use crate::shared::key::Key;
use crate::shared::principal::{FileId, Principal};

impl Replay {
    /// Forgets the entries before `position`. Questions about positions before the last folds have no answers
    /// afterwards.
    ///
    /// # Errors
    /// [`Stop::NoPosition`] when the last fold of some principal does not reach the position; otherwise as
    /// [`Replay::inode`], because locks are evaluated first.
    pub fn forget_before<S: Blocks + Bodies>(
        &mut self,
        position: u64,
        from: Sources<'_, S>,
    ) -> Result<(), Stop> {
        let cut = self.first_op_at(position);
        let old = |versions: &Vec<Version>| versions.first().is_some_and(|first| first.op < cut);
        let keys = self.keys.iter().filter(|(_, versions)| old(versions));
        let keys: Vec<Key> = keys.map(|(key, _)| key.clone()).collect();
        let (mut locks, mut settled): (Vec<(FileId, Option<Lock>)>, u32) = (Vec::new(), cut);
        for key in &keys {
            match key {
                Key::Inode(file) | Key::Entry(file, _) => {
                    let after = self.folded_at(file.principal, position, from)?;
                    settled = settled.max(after);
                }
                Key::Lock(file) => {
                    locks.push((*file, self.ask_before(cut, from, |view| view.lock(file))?));
                }
                Key::Fold(principal) => {
                    self.ask_before(cut, from, |view| view.fold(principal))?;
                }
                _ => {}
            }
        }
        // Ops before the folds rest on what is forgotten.
        for op in cut..settled {
            self.work(Task::Op(op), from)?;
        }
        for (file, lock) in locks {
            match lock {
                Some(lock) => self.old_locks.insert(file, lock),
                None => self.old_locks.remove(&file),
            };
        }
        let last = settled.checked_sub(1).and_then(|op| self.row(op));
        let after = last.map_or(0, |row| row.written.position.saturating_add(1));
        self.from = self.from.max(after).max(position.min(self.size));
        self.drop_before(cut);
        Ok(())
    }

    /// The largest position that [`Replay::forget_before`] can forget up to: what changed before it is in the last fold of
    /// its principal.
    ///
    /// # Errors
    /// As [`Replay::inode`].
    pub fn forgettable<S: Blocks + Bodies>(&mut self, from: Sources<'_, S>) -> Result<u64, Stop> {
        let mut begins: BTreeMap<Principal, u64> = BTreeMap::new();
        for (key, versions) in &self.keys {
            let (Key::Inode(file) | Key::Entry(file, _)) = key else {
                continue;
            };
            let Some(row) = versions.first().and_then(|first| self.row(first.op)) else {
                continue;
            };
            let first = row.written.position;
            let known = begins.entry(file.principal).or_insert(first);
            *known = first.min(*known);
        }
        let (mut upto, end) = (self.size, self.kept_ops() as u32);
        for (principal, first) in begins {
            let fold = self.ask_before(end, from, |view| view.fold(&principal))?;
            upto = upto.min(fold.map_or(first, |fold| fold.upto.max(first)));
        }
        Ok(upto)
    }

    /// The first position about which questions have answers.
    pub fn begins(&self) -> u64 {
        self.from
    }

    /// The op after the last fold of a principal, which must reach the position.
    fn folded_at<S: Blocks + Bodies>(
        &mut self,
        principal: Principal,
        position: u64,
        from: Sources<'_, S>,
    ) -> Result<u32, Stop> {
        let end = self.kept_ops() as u32;
        let fold = self.ask_before(end, from, |view| view.fold(&principal))?;
        if fold.is_none_or(|fold| fold.upto < position) {
            return Err(Stop::NoPosition);
        }
        let versions = self.keys.get(&Key::Fold(principal)).into_iter().flatten();
        let mut made = versions.filter(|version| version.made() == Made::Put);
        Ok(made
            .next_back()
            .map_or(0, |version| version.op.saturating_add(1)))
    }

    fn drop_before(&mut self, cut: u32) {
        for (key, versions) in &mut self.keys {
            let gone = versions.partition_point(|version| version.op < cut);
            if let Key::Fold(principal) = key {
                let last = versions
                    .get(..gone)
                    .and_then(|old| old.iter().rev().find(|v| v.made() == Made::Put));
                if let Some(fold) = last.and_then(|version| self.folds.get(&version.op)) {
                    self.old_folds.insert(*principal, *fold);
                }
            }
            versions.drain(..gone);
            for version in versions {
                version.op = version.op.saturating_sub(cut);
                if let Some(last) = version.last().index() {
                    version.set_last(last.checked_sub(gone as u32).map_or(Last::NONE, Last));
                }
            }
        }
        self.keys.retain(|_, versions| !versions.is_empty());
        for steps in self.directories.values_mut() {
            let gone = steps.partition_point(|step| step.op < cut);
            let before = gone
                .checked_sub(1)
                .and_then(|last| steps.get(last)?.sum)
                .unwrap_or(0);
            steps.drain(..gone);
            for step in steps {
                step.op = step.op.saturating_sub(cut);
                step.sum = step.sum.map(|sum| sum.saturating_sub(before));
            }
        }
        self.directories.retain(|_, steps| !steps.is_empty());
        let folds = self.folds.split_off(&cut);
        self.folds = folds
            .into_iter()
            .map(|(op, fold)| (op.saturating_sub(cut), fold))
            .collect();
        self.rows.drop_before(cut);
    }
}
