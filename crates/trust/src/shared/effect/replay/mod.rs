//! Keeps the outline of every entry, and evaluates only what a question depends on. Relies on `judge` for each op;
//! `view` finds the values before an op, `work` evaluates what they depend on, `list` lists directories, `rests` says
//! which entries a value rests on, `forget` drops what is folded.
//!
//! The value of a key at a position is what the last op before it that names the key and has effect made of it, or
//! what the last fold says. So evaluation reads the bodies of entries that name the key, and of those that name the
//! keys of their guards. It is no recursion: a list of tasks and a table of what is known. Each op is judged once, and
//! the time is proportional to the guards and changes of the ops that a question depends on, however they refer to
//! one another.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::judge::is_permitted;
use super::{Blocks, Bodies, Lock, Stop, Values, Volume, answer};
use crate::shared::fold::{Changes, first_root_directory};
use crate::shared::itable::{Fold, Known};
use crate::shared::key::Key;
use crate::shared::members::Members;
use crate::shared::outcome::{NoEffect, Outcome, Written};
use crate::shared::outline::Outline;
use crate::shared::principal::{Device, FileId, Name, Principal, Target};
use crate::tree::inode::Inode;

mod forget;
mod list;
mod rests;
mod view;
mod work;

pub use list::Names;
pub use rests::About;
use view::View;

/// Most ops that are kept at a time.
pub const MAX_KEPT_OPS: usize = 1 << 26;

/// What evaluation reads beside the outlines.
#[derive(Debug)]
pub struct Sources<'a, S> {
    /// The members at every position that is evaluated.
    pub members: &'a Members,
    /// Bodies and blocks.
    pub stored: &'a S,
}

impl<S> Clone for Sources<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S> Copy for Sources<'_, S> {}

/// One step of evaluation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Task {
    /// Judge an op.
    Op(u32),
    /// Find the last version that counts, among a key's versions up to one.
    Last(Key, u32),
    /// Count the entries that ops up to one added to a directory.
    Sum(FileId, u32),
}

/// What an op with effect made of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Made {
    /// The op has no effect, or only its outline names the key.
    Nothing,
    Put,
    Gone,
}

/// The last version that counts, up to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Unknown,
    None,
    Version(u32),
}

/// An op that names a key.
#[derive(Debug, Clone, Copy)]
struct Version {
    op: u32,
    made: Made,
    last: Last,
}

/// An op that names entries of a directory.
#[derive(Debug, Clone, Copy)]
struct Step {
    op: u32,
    /// Entries that the op added, if it has effect.
    added: i64,
    /// Entries that this and all earlier ops added.
    sum: Option<i64>,
}

#[derive(Debug, Clone, Copy)]
struct OpRow {
    /// Its entry.
    row: u32,
    outcome: Option<Outcome>,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    written: Written,
    first_op: u32,
}

/// The outlines of a log since the last folds, and what is known of their ops.
#[derive(Debug, Clone)]
pub struct Replay {
    volume: Volume,
    /// Positions from which on questions have answers.
    from: u64,
    size: u64,
    rows: Vec<Row>,
    ops: Vec<OpRow>,
    keys: BTreeMap<Key, Vec<Version>>,
    directories: BTreeMap<FileId, Vec<Step>>,
    /// Folds that have effect, by op.
    folds: BTreeMap<u32, Fold>,
    /// Of ops that were forgotten.
    old_folds: BTreeMap<Principal, Fold>,
    old_locks: BTreeMap<FileId, Lock>,
    steps: u64,
}

impl Replay {
    /// Before the first entry.
    pub fn new(volume: Volume) -> Replay {
        Replay {
            volume,
            from: 0,
            size: 0,
            rows: Vec::new(),
            ops: Vec::new(),
            keys: BTreeMap::new(),
            directories: BTreeMap::new(),
            folds: BTreeMap::new(),
            old_folds: BTreeMap::new(),
            old_locks: BTreeMap::new(),
            steps: 0,
        }
    }

    /// Adds the outline of the next entry. Leaves that are no entries are left out. `members` are those at its position.
    ///
    /// # Errors
    /// [`Stop::NoPosition`] for an entry that is not after the last one; [`Stop::Full`] when [`MAX_KEPT_OPS`] are
    /// kept.
    pub fn push(
        &mut self,
        written: &Written,
        outline: &Outline,
        members: &Members,
    ) -> Result<(), Stop> {
        if written.position < self.size {
            return Err(Stop::NoPosition);
        }
        if self.ops.len().saturating_add(outline.ops().len()) > MAX_KEPT_OPS {
            return Err(Stop::Full);
        }
        let (row, first_op) = (self.rows.len() as u32, self.ops.len() as u32);
        for keys in outline.ops() {
            let op = self.ops.len() as u32;
            let denied = Outcome::None(NoEffect::NotPermitted);
            let outcome = (!is_permitted(members, written, keys)).then_some(denied);
            self.ops.push(OpRow { row, outcome });
            // No value rests on an op without permission. If it were found by its keys, a member that may only read
            // could make every question long, and name files of a principal that nobody folds: then nothing before
            // could be forgotten.
            if outcome.is_none() {
                keys.iter().for_each(|key| self.index(key, op));
            }
        }
        self.rows.push(Row {
            written: *written,
            first_op,
        });
        self.size = written.position.saturating_add(1);
        Ok(())
    }

    fn index(&mut self, key: &Key, op: u32) {
        let version = Version {
            op,
            made: Made::Nothing,
            last: Last::Unknown,
        };
        self.keys.entry(key.clone()).or_default().push(version);
        let Key::Entry(directory, _) = key else {
            return;
        };
        let steps = self.directories.entry(*directory).or_default();
        if steps.last().is_none_or(|step| step.op != op) {
            let (added, sum) = (0, None);
            steps.push(Step { op, added, sum });
        }
    }

    /// The log has at least this size: the leaves from the last entry on are no entries.
    pub fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Size of the prefix whose outlines were added.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The author of the entry at a position.
    pub fn author(&self, position: u64) -> Option<Device> {
        let row = self.rows.get(self.row_before(position))?;
        (row.written.position == position).then_some(row.written.device)
    }

    /// Steps of evaluation so far. Grows with what questions depend on, and only the first time.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The positions of the entries before `at` that name a key, for fetching their bodies together.
    pub fn positions(&self, at: u64, key: &Key) -> Vec<u64> {
        let versions = self.keys.get(key).into_iter().flatten();
        let positions = versions.filter_map(|version| Some(self.row(version.op)?.written.position));
        positions.take_while(|position| *position < at).collect()
    }

    /// The inode of a file before the position `at`, a directory's without its entries.
    ///
    /// # Errors
    /// [`Stop::Missing`] when bodies or blocks are missing; [`Stop::Refused`] when the inode lies in a malformed
    /// tree, or something needs a newer bulla; [`Stop::NoPosition`] when the position is not kept.
    pub fn inode<S: Blocks + Bodies>(
        &mut self,
        at: u64,
        file: &FileId,
        from: Sources<'_, S>,
    ) -> Result<Option<Arc<Inode>>, Stop> {
        self.ask(at, from, |view| view.inode(file))
    }

    /// Where a name leads before the position `at`.
    ///
    /// # Errors
    /// As [`Replay::inode`].
    pub fn entry<S: Blocks + Bodies>(
        &mut self,
        at: u64,
        directory: &FileId,
        name: &Name,
        from: Sources<'_, S>,
    ) -> Result<Option<Target>, Stop> {
        self.ask(at, from, |view| view.entry(directory, name))
    }

    /// Number of entries of a directory before the position `at`.
    ///
    /// # Errors
    /// As [`Replay::inode`].
    pub fn entries<S: Blocks + Bodies>(
        &mut self,
        at: u64,
        directory: &FileId,
        from: Sources<'_, S>,
    ) -> Result<u64, Stop> {
        let count = self.ask(at, from, |view| view.entries(directory))?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// The lock of a file before the position `at`.
    ///
    /// # Errors
    /// As [`Replay::inode`].
    pub fn lock<S: Blocks + Bodies>(
        &mut self,
        at: u64,
        file: &FileId,
        from: Sources<'_, S>,
    ) -> Result<Option<Lock>, Stop> {
        self.ask(at, from, |view| view.lock(file))
    }

    /// The last fold of a principal before the position `at`.
    ///
    /// # Errors
    /// As [`Replay::inode`].
    pub fn last_fold<S: Blocks + Bodies>(
        &mut self,
        at: u64,
        principal: Principal,
        from: Sources<'_, S>,
    ) -> Result<Option<Fold>, Stop> {
        self.ask(at, from, |view| view.fold(&principal))
    }

    /// What became of an op of the entry at `position`.
    ///
    /// # Errors
    /// As [`Replay::inode`]; [`Stop::NoPosition`] too when the entry has no such op.
    pub fn outcome<S: Blocks + Bodies>(
        &mut self,
        position: u64,
        op: usize,
        from: Sources<'_, S>,
    ) -> Result<Outcome, Stop> {
        let index = self.row_before(position);
        let row = self.rows.get(index).copied().ok_or(Stop::NoPosition)?;
        let next = self.rows.get(index + 1);
        let end = next.map_or(self.ops.len(), |next| next.first_op as usize);
        let found = (row.first_op as usize).saturating_add(op);
        if row.written.position != position || found >= end {
            return Err(Stop::NoPosition);
        }
        self.work(Task::Op(found as u32), from)?;
        let row = self.ops.get(found);
        row.and_then(|row| row.outcome).ok_or(Stop::NoPosition)
    }

    /// What a fold of the principal at the position `at` puts into its i-table.
    ///
    /// # Errors
    /// As [`Replay::inode`].
    pub fn changes<S: Blocks + Bodies>(
        &mut self,
        at: u64,
        principal: Principal,
        from: Sources<'_, S>,
    ) -> Result<Changes, Stop> {
        let before = self.last_fold(at, principal, from)?;
        let since = before.map_or(0, |fold| fold.upto);
        let first = FileId::first_of(principal);
        let mut changes = Changes::default();
        if principal == self.volume.root.principal && before.is_none() {
            let root = Arc::new(first_root_directory());
            changes.inodes.insert(self.volume.root.number, Some(root));
        }
        for key in self.changed(Key::Inode(first), principal, since, at) {
            if let Key::Inode(file) = key {
                let inode = self.inode(at, &file, from)?;
                changes.inodes.insert(file.number, inode);
            }
        }
        for key in self.changed(Key::Entry(first, Name::lowest()), principal, since, at) {
            if let Key::Entry(directory, name) = key {
                let target = self.entry(at, &directory, &name, from)?;
                let names = changes.entries.entry(directory.number).or_default();
                names.insert(name, target);
            }
        }
        Ok(changes)
    }

    /// The keys of one kind and one principal that entries from `since` on and before `at` name.
    fn changed(&self, first: Key, principal: Principal, since: u64, at: u64) -> Vec<Key> {
        let named = |versions: &Vec<Version>| {
            let positions = versions.iter().filter_map(|version| self.row(version.op));
            let mut positions = positions.map(|row| row.written.position);
            positions.any(|position| (since..at).contains(&position))
        };
        let keys = self.keys.range(&first..);
        let kind = std::mem::discriminant(&first);
        keys.take_while(|(key, _)| std::mem::discriminant(*key) == kind)
            .take_while(|(key, _)| key.principals().next() == Some(principal))
            .filter(|(_, versions)| named(versions))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Asks for a value, and works until it is known.
    fn ask<S: Blocks + Bodies, T>(
        &mut self,
        at: u64,
        from: Sources<'_, S>,
        question: impl Fn(&mut View<'_, S>) -> Known<T>,
    ) -> Result<T, Stop> {
        if !(self.from..=self.size).contains(&at) {
            return Err(Stop::NoPosition);
        }
        let row = self.rows.get(self.row_before(at));
        let before = row.map_or(self.ops.len() as u32, |row| row.first_op);
        self.ask_before(before, from, question)
    }

    /// Asks for a value before an op.
    fn ask_before<S: Blocks + Bodies, T>(
        &mut self,
        before: u32,
        from: Sources<'_, S>,
        question: impl Fn(&mut View<'_, S>) -> Known<T>,
    ) -> Result<T, Stop> {
        loop {
            let mut view = View::new(self, before, from);
            let found = question(&mut view);
            if view.tasks.is_empty() {
                return answer(found, view.tables, view.bodies);
            }
            for task in view.tasks {
                self.work(task, from)?;
            }
        }
    }

    /// The index of the first entry at or after a position.
    fn row_before(&self, at: u64) -> usize {
        self.rows.partition_point(|row| row.written.position < at)
    }

    fn row(&self, op: u32) -> Option<&Row> {
        let row = self.ops.get(op as usize)?.row;
        self.rows.get(row as usize)
    }
}
