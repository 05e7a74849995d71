//! Keeps the outline of every entry, and evaluates only what a question depends on. Relies on `judge` for each op;
//! `view` finds the values before an op, `work` evaluates what they depend on, `list` lists directories, `gather` gathers
//! what a fold changes, `queue` tells who waits for a lock, `rests` says which entries a value rests on, `forget` drops what
//! is folded, `checkpoint` gives the state as rows, and `base` is what a replay has that begins with them. `stored` is all of it as bytes, for a restart.
//!
//! The value of a key at a position is what the last op before it that names the key and has effect made of it, or
//! what the last fold says. So evaluation reads the bodies of entries that name the key, and of those that name the
//! keys of their guards. It is no recursion: a list of tasks and a table of what is known. Each op is judged once, and
//! the time is proportional to the guards and changes of the ops that a question depends on, however they refer to
//! one another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::judge::is_permitted;
use super::{Blocks, Bodies, Lock, Stop, Times, Values, Volume, answer};
use crate::hold::{Family, Hold};
use crate::itable::{Fold, Known};
use crate::key::Key;
use crate::members::Members;
use crate::outcome::{NoEffect, Outcome, Written};
use crate::outline::Outline;
use crate::principal::{Device, FileId, Name, Principal, Target};
use trust::tree::inode::Inode;

mod base;
mod checkpoint;
mod chunks;
mod forget;
mod gather;
mod list;
mod queue;
mod rests;
mod rows;
mod stored;
mod view;
mod work;

pub use base::Base;
pub use checkpoint::Page;
use forget::Settling;
use gather::Gathering;
pub use list::Names;
pub use queue::Queue;
use queue::Queues;
pub use rests::About;
use rows::{Row, Rows};
pub use stored::{Sink, Source};
use view::View;
use work::Waiting;

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
    /// Find the last version that counts, among a key's versions up to one. What lies before a second one is not asked
    /// for.
    Last(Key, u32, u32),
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
    /// A lock was given to another device.
    Passed,
}

/// The index of the last version that counts, up to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Last(u32);

impl Last {
    const UNKNOWN: Last = Last((1 << LAST_BITS) - 1);
    const NONE: Last = Last((1 << LAST_BITS) - 2);

    /// None where it is unknown, or there is none.
    fn index(self) -> Option<u32> {
        (self != Last::UNKNOWN && self != Last::NONE).then_some(self.0)
    }
}

/// There are fewer versions than kept ops.
const LAST_BITS: u32 = 30;
const _: () = assert!(MAX_KEPT_OPS < (1 << LAST_BITS) - 2);

/// An op that names a key. In eight bytes, because a log has many: what it made of the key lies above the last version.
#[derive(Debug, Clone, Copy)]
struct Version {
    op: u32,
    state: u32,
}

impl Version {
    fn new(op: u32) -> Version {
        let mut version = Version { op, state: 0 };
        version.set_last(Last::UNKNOWN);
        version
    }

    fn made(self) -> Made {
        match self.state >> LAST_BITS {
            0 => Made::Nothing,
            1 => Made::Put,
            2 => Made::Gone,
            _ => Made::Passed,
        }
    }

    fn last(self) -> Last {
        Last(self.state & ((1 << LAST_BITS) - 1))
    }

    fn set_made(&mut self, made: Made) {
        let made = match made {
            Made::Nothing => 0,
            Made::Put => 1,
            Made::Gone => 2,
            Made::Passed => 3,
        };
        self.state = made << LAST_BITS | self.last().0;
    }

    fn set_last(&mut self, last: Last) {
        self.state = self.state >> LAST_BITS << LAST_BITS | last.0;
    }
}

/// What devices hold of files.
type Holds = BTreeMap<(FileId, Family, Device), Hold>;

/// An op that names entries of a directory.
#[derive(Debug, Clone, Copy)]
struct Step {
    op: u32,
    /// Entries that the op added, if it has effect.
    added: i64,
    /// Entries that this and all earlier ops added.
    sum: Option<i64>,
}

/// The outlines of a log from some position on, what is left of those before it, and what is known of their ops.
#[derive(Debug, Clone)]
pub struct Replay {
    volume: Volume,
    /// Positions from which on questions have answers.
    from: u64,
    size: u64,
    rows: Rows,
    keys: BTreeMap<Key, Vec<Version>>,
    directories: BTreeMap<FileId, Vec<Step>>,
    /// Folds that have effect, by op.
    folds: BTreeMap<u32, Fold>,
    /// Of ops that were forgotten.
    old_folds: BTreeMap<Principal, Fold>,
    old_locks: BTreeMap<FileId, Lock>,
    old_holds: Holds,
    queues: Queues,
    /// What changed since the last folds, before the first entry that was added.
    base: Base,
    settling: Option<Settling>,
    gathering: Option<Gathering>,
    steps: u64,
}

impl Replay {
    /// Before the first entry.
    pub fn new(volume: Volume) -> Replay {
        Replay {
            volume,
            from: 0,
            size: 0,
            rows: Rows::default(),
            keys: BTreeMap::new(),
            directories: BTreeMap::new(),
            folds: BTreeMap::new(),
            old_folds: BTreeMap::new(),
            old_locks: BTreeMap::new(),
            old_holds: Holds::new(),
            queues: Queues::new(),
            base: Base::default(),
            settling: None,
            gathering: None,
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
        let full = self.kept_ops().saturating_add(outline.ops().len()) > MAX_KEPT_OPS;
        if full || !self.rows.push(written) {
            return Err(Stop::Full);
        }
        for keys in outline.ops() {
            let op = self.kept_ops() as u32;
            let permitted = is_permitted(members, written, keys);
            let denied = Outcome::None(NoEffect::NotPermitted);
            self.rows.push_op((!permitted).then_some(denied));
            // No value rests on an op without permission. If it were found by its keys, a member that may only read
            // could make every question long, and take memory for names of a principal that nobody folds.
            if permitted {
                keys.iter().for_each(|key| self.index(key, op));
                self.drop_gathered(keys);
            }
        }
        self.size = written.position.saturating_add(1);
        Ok(())
    }

    fn index(&mut self, key: &Key, op: u32) {
        let version = Version::new(op);
        let versions = self.keys.entry(key.clone()).or_default();
        if versions.len() == versions.capacity() {
            // Many keys have one version, and some have most of the log.
            versions.reserve_exact((versions.len() / 8).max(1));
        }
        versions.push(version);
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

    /// Number of ops that are kept: those of entries that are not forgotten.
    pub fn kept_ops(&self) -> usize {
        self.rows.ops()
    }

    /// Number of those of entries before a position.
    pub fn ops_before(&self, position: u64) -> usize {
        self.first_op_at(position) as usize
    }

    /// The position of the entry that has the op so many ops after a position. None: there are not so many.
    pub fn position_after(&self, position: u64, ops: u32) -> Option<u64> {
        let op = self.first_op_at(position).checked_add(ops)?;
        self.row(op).map(|row| row.written.position)
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

    /// The attributes of a file before the position `at`: its inode, a directory's without its entries and times.
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
        self.inode_in(&mut Waiting::default(), at, file, from)
    }

    fn inode_in<S: Blocks + Bodies>(
        &mut self,
        waiting: &mut Waiting,
        at: u64,
        file: &FileId,
        from: Sources<'_, S>,
    ) -> Result<Option<Arc<Inode>>, Stop> {
        self.ask_in(waiting, at, from, |view| view.inode(file))
    }

    /// The inode of a file before the position `at` as programs see it: a directory's with its times, and without its
    /// entries.
    ///
    /// # Errors
    /// As [`Replay::inode`].
    pub fn shown<S: Blocks + Bodies>(
        &mut self,
        at: u64,
        file: &FileId,
        from: Sources<'_, S>,
    ) -> Result<Option<Arc<Inode>>, Stop> {
        self.ask(at, from, |view| view.shown(file))
    }

    fn times_in<S: Blocks + Bodies>(
        &mut self,
        waiting: &mut Waiting,
        at: u64,
        directory: &FileId,
        from: Sources<'_, S>,
    ) -> Result<Times, Stop> {
        self.ask_in(waiting, at, from, |view| view.times(directory))
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
        self.entry_in(&mut Waiting::default(), at, (directory, name), from)
    }

    fn entry_in<S: Blocks + Bodies>(
        &mut self,
        waiting: &mut Waiting,
        at: u64,
        (directory, name): (&FileId, &Name),
        from: Sources<'_, S>,
    ) -> Result<Option<Target>, Stop> {
        self.ask_in(waiting, at, from, |view| view.entry(directory, name))
    }

    /// The last entry before the position `at` that changed where a name leads, or the inode of a file, and its author.
    /// None: nobody has, the last fold has the change, or its entry lies before those that were added here.
    ///
    /// # Errors
    /// As [`Replay::inode`].
    pub fn last_change<S: Blocks + Bodies>(
        &mut self,
        at: u64,
        (directory, name): (&FileId, &Name),
        file: Option<&FileId>,
        from: Sources<'_, S>,
    ) -> Result<Option<(u64, Device)>, Stop> {
        let position = self.ask(at, from, |view| {
            let of_name = view.entry_since(directory, name);
            let of_file = match file {
                Some(file) => view
                    .inode_since(file)
                    .map(|(_, since)| since.map(|(at, _)| at)),
                None => Known::Is(None),
            };
            of_name.then(|(_, since)| of_file.map(|of_file| since.map(|(at, _)| at).max(of_file)))
        })?;
        Ok(position.and_then(|position| Some((position, self.author(position)?))))
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

    /// What a device holds of a file before the position `at`.
    ///
    /// # Errors
    /// As [`Replay::inode`].
    pub fn hold<S: Blocks + Bodies>(
        &mut self,
        at: u64,
        (file, family, device): (&FileId, Family, Device),
        from: Sources<'_, S>,
    ) -> Result<Option<Hold>, Stop> {
        self.ask(at, from, |view| view.hold(file, family, device))
    }

    /// The devices that may hold something of a file: all that do at some kept position, and some that did.
    pub fn holders(&self, file: &FileId, family: Family) -> BTreeSet<Device> {
        let (first, last) = (Device(0), Device(u32::MAX));
        let keys = Key::Hold(*file, family, first)..=Key::Hold(*file, family, last);
        let kept = self.keys.range(keys).filter_map(|(key, _)| match key {
            Key::Hold(.., device) => Some(*device),
            _ => None,
        });
        let old = (*file, family, first)..=(*file, family, last);
        let old = self.old_holds.range(old);
        kept.chain(old.map(|((.., device), _)| *device)).collect()
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
        let row = self.rows.get(index).ok_or(Stop::NoPosition)?;
        let next = self.rows.get(index.saturating_add(1));
        let end = next.map_or(self.kept_ops(), |next| next.first_op as usize);
        let found = (row.first_op as usize).saturating_add(op);
        if row.written.position != position || found >= end || position < self.from {
            return Err(Stop::NoPosition);
        }
        self.work(Task::Op(found as u32), &mut Waiting::default(), from)?;
        self.rows.outcome(found as u32).ok_or(Stop::NoPosition)
    }

    /// Asks for a value, and works until it is known.
    fn ask<S: Blocks + Bodies, T>(
        &mut self,
        at: u64,
        from: Sources<'_, S>,
        question: impl Fn(&mut View<'_, S>) -> Known<T>,
    ) -> Result<T, Stop> {
        self.ask_in(&mut Waiting::default(), at, from, question)
    }

    /// As [`Replay::ask`], of one value among those that a question is about.
    fn ask_in<S: Blocks + Bodies, T>(
        &mut self,
        waiting: &mut Waiting,
        at: u64,
        from: Sources<'_, S>,
        question: impl Fn(&mut View<'_, S>) -> Known<T>,
    ) -> Result<T, Stop> {
        if !(self.from..=self.size).contains(&at) {
            return Err(Stop::NoPosition);
        }
        self.ask_before(self.first_op_at(at), waiting, from, question)
    }

    /// Asks for a value before an op.
    fn ask_before<S: Blocks + Bodies, T>(
        &mut self,
        before: u32,
        waiting: &mut Waiting,
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
                self.work(task, waiting, from)?;
            }
        }
    }

    /// The index of the first entry at or after a position.
    fn row_before(&self, at: u64) -> usize {
        self.rows.before(at)
    }

    fn row(&self, op: u32) -> Option<Row> {
        self.rows.of(op)
    }
}
