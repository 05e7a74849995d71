//! Evaluates every op in the order of the log, and keeps the values after them: the reference for [`super::replay`].
//! A module of `trust_shared::effect` behind the feature `reference`, because it relies on its `judge` for each op.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::judge::{Placed, is_permitted, judge};
use super::{
    Blocks, Lock, Stop, Times, Values, Volume, answer, folded_entries, folded_entry, folded_inode,
    folded_times,
};
use crate::change::Change;
use crate::fold::{Changes, first_root_directory};
use crate::hold::{Family, Hold};
use crate::itable::{Fold, Known, Tables, attributes};
use crate::key::Key;
use crate::members::Members;
use crate::ops::Body;
use crate::outcome::{NoEffect, Outcome, Written};
use crate::outline::Outline;
use crate::principal::{Device, FileId, Name, Principal, Target};
use trust::tree::inode::{FileKind, Inode};

/// A value and the position of the entry that set it.
type Set<T> = (u64, Option<T>);

/// All values of a volume at the end of a prefix of its log. In memory: what changed since the last folds.
#[derive(Debug, Clone)]
pub struct State {
    volume: Volume,
    /// Size of the prefix.
    size: u64,
    inodes: BTreeMap<FileId, Set<Arc<Inode>>>,
    entries: BTreeMap<(FileId, Name), Set<Target>>,
    /// By how much entries changed the number of entries of directories.
    added: BTreeMap<FileId, Vec<(u64, i64)>>,
    times: BTreeMap<FileId, (u64, Times)>,
    locks: BTreeMap<FileId, Lock>,
    holds: BTreeMap<(FileId, Family, Device), Hold>,
    folds: BTreeMap<Principal, Fold>,
    /// Outcomes of the first ops of an entry for whose other ops something is missing.
    begun: Option<(u64, Vec<Outcome>)>,
}

impl State {
    /// The state before the first entry.
    pub fn new(volume: Volume) -> State {
        State {
            volume,
            size: 0,
            inodes: BTreeMap::new(),
            entries: BTreeMap::new(),
            added: BTreeMap::new(),
            times: BTreeMap::new(),
            locks: BTreeMap::new(),
            holds: BTreeMap::new(),
            folds: BTreeMap::new(),
            begun: None,
        }
    }

    /// The log has at least this size: the leaves from the last entry on are no entries.
    pub fn grow(&mut self, size: u64) {
        if self.begun.is_none() {
            self.size = self.size.max(size);
        }
    }

    /// Size of the prefix whose entries have been applied.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Applies an entry, and says what became of each of its ops. Leaves between entries are left out. `members` are
    /// those after the entry's [`Members::take_effect`].
    ///
    /// # Errors
    /// [`Stop::Missing`] when blocks are missing: the same call then continues with the op that needs them.
    /// [`Stop::NoPosition`] for an entry that is not after the last one, and for another entry than the one that was
    /// begun. [`Stop::Refused`] when a block needs a newer bulla.
    pub fn apply(
        &mut self,
        written: &Written,
        outline: &Outline,
        body: &Body,
        members: &Members,
        blocks: &impl Blocks,
    ) -> Result<Vec<Outcome>, Stop> {
        let begun = self.begun.take();
        let other = begun
            .as_ref()
            .is_some_and(|(at, _)| *at != written.position);
        if written.position < self.size || other {
            self.begun = begun;
            return Err(Stop::NoPosition);
        }
        let mut outcomes = begun.map(|(_, outcomes)| outcomes).unwrap_or_default();
        while let Some(op) = body.ops().get(outcomes.len()) {
            let number = outcomes.len();
            let keys = outline.ops().get(number);
            let keys = keys.map(Vec::as_slice).unwrap_or_default();
            if !is_permitted(members, written, keys) {
                outcomes.push(Outcome::None(NoEffect::NotPermitted));
                continue;
            }
            let listed = |key: &Key| outline.has(number, key);
            let placed = Placed {
                written,
                op,
                listed: &listed,
            };
            match self.evaluate(&placed, members, blocks) {
                Ok(outcome) => outcomes.push(outcome),
                Err(stop) => {
                    self.begun = Some((written.position, outcomes));
                    return Err(stop);
                }
            }
        }
        self.size = written.position.saturating_add(1);
        Ok(outcomes)
    }

    fn evaluate(
        &mut self,
        placed: &Placed<'_>,
        members: &Members,
        blocks: &impl Blocks,
    ) -> Result<Outcome, Stop> {
        let mut view = self.view(blocks);
        let Some(outcome) = judge(&self.volume, members, placed, &mut view) else {
            return answer(Known::NotYet, view.tables, Vec::new());
        };
        if outcome == Outcome::Effect {
            placed
                .changes()
                .for_each(|change| self.take(placed, change));
        }
        Ok(outcome)
    }

    fn take(&mut self, placed: &Placed<'_>, change: &Change) {
        let at = placed.written.position;
        if let Some((directory, added)) = placed.added(change) {
            self.added.entry(directory).or_default().push((at, added));
        }
        match change {
            Change::Set { file, inode } => {
                self.inodes.insert(*file, (at, Some(inode.clone())));
            }
            Change::Remove { file } => {
                self.inodes.insert(*file, (at, None));
            }
            Change::Link {
                directory,
                name,
                target,
            } => {
                let key = (*directory, name.clone());
                self.entries.insert(key, (at, Some(*target)));
            }
            Change::Unlink { directory, name } => {
                self.entries.insert((*directory, name.clone()), (at, None));
            }
            Change::Pass { file, to } => {
                let holder = *to;
                self.locks.insert(*file, Lock { holder, last: at });
            }
            Change::Lock { file } | Change::Claim { file } => {
                let holder = placed.written.device;
                self.locks.insert(*file, Lock { holder, last: at });
            }
            Change::Unlock { file } => {
                self.locks.remove(file);
            }
            Change::Touch {
                directory,
                mtime,
                ctime,
            } => {
                let (mtime, ctime) = (*mtime, Some(*ctime));
                self.times.insert(*directory, (at, Times { mtime, ctime }));
            }
            Change::Hold {
                file,
                family,
                device,
                ranges,
                since,
            } => {
                let hold = Hold {
                    ranges: ranges.clone(),
                    since: since.unwrap_or(at),
                    last: at,
                };
                self.holds.insert((*file, *family, *device), hold);
            }
            Change::Release {
                file,
                family,
                device,
            } => {
                self.holds.remove(&(*file, *family, *device));
            }
            Change::Fold { principal, fold } => self.rebase(*principal, *fold),
            Change::Decide(_) => {}
        }
    }

    /// Values of the principal come from the fold, and from entries after those in it.
    fn rebase(&mut self, principal: Principal, fold: Fold) {
        let stays = |file: &FileId, at: u64| file.principal != principal || at >= fold.upto;
        self.inodes.retain(|file, (at, _)| stays(file, *at));
        self.entries
            .retain(|(directory, _), (at, _)| stays(directory, *at));
        self.times.retain(|file, (at, _)| stays(file, *at));
        self.added.retain(|directory, list| {
            list.retain(|(at, _)| stays(directory, *at));
            !list.is_empty()
        });
        self.folds.insert(principal, fold);
    }

    fn view<'a, B: Blocks>(&'a self, blocks: &'a B) -> View<'a, B> {
        View {
            state: self,
            tables: Tables::new(blocks),
        }
    }

    /// The inode of a file, a directory's with its times and without its entries.
    ///
    /// # Errors
    /// As [`State::inode`].
    pub fn shown(&self, file: &FileId, blocks: &impl Blocks) -> Result<Option<Arc<Inode>>, Stop> {
        let Some(inode) = self.inode(file, blocks)? else {
            return Ok(None);
        };
        Ok(Some(match inode.kind() {
            FileKind::Directory => Arc::new(self.times(file, blocks)?.on(Inode::clone(&inode))),
            _ => inode,
        }))
    }

    fn times(&self, directory: &FileId, blocks: &impl Blocks) -> Result<Times, Stop> {
        let touched = self.times.get(directory).copied();
        let set = match self.inodes.get(directory) {
            Some((at, Some(inode))) => Some((*at, inode.ctime)),
            _ => None,
        };
        let mut tables = Tables::new(blocks);
        let fold = self.folds.get(&directory.principal);
        let folded = match touched {
            Some(_) => Known::Is(Times::default()),
            None => folded_times(&mut tables, &self.volume, fold, directory),
        };
        let folded = answer(folded, tables, Vec::new())?;
        Ok(Times::latest(touched, set, folded))
    }

    /// The inode of a file, a directory's without its entries and times.
    ///
    /// # Errors
    /// As [`State::apply`]; [`Stop::Refused`] when it lies in a malformed tree.
    pub fn inode(&self, file: &FileId, blocks: &impl Blocks) -> Result<Option<Arc<Inode>>, Stop> {
        let mut view = self.view(blocks);
        let found = view.inode(file);
        answer(found, view.tables, Vec::new())
    }

    /// Where a name leads.
    ///
    /// # Errors
    /// As [`State::inode`].
    pub fn entry(
        &self,
        directory: &FileId,
        name: &Name,
        blocks: &impl Blocks,
    ) -> Result<Option<Target>, Stop> {
        let mut view = self.view(blocks);
        let found = view.entry(directory, name);
        answer(found, view.tables, Vec::new())
    }

    /// Number of entries of a directory.
    ///
    /// # Errors
    /// As [`State::inode`].
    pub fn entries(&self, directory: &FileId, blocks: &impl Blocks) -> Result<u64, Stop> {
        let mut view = self.view(blocks);
        let found = view.entries(directory);
        answer(found, view.tables, Vec::new()).map(|count| u64::try_from(count).unwrap_or(0))
    }

    /// The lock of a file.
    pub fn lock(&self, file: &FileId) -> Option<Lock> {
        self.locks.get(file).copied()
    }

    /// What a device holds of a file.
    pub fn hold(&self, file: &FileId, family: Family, device: Device) -> Option<Hold> {
        self.holds.get(&(*file, family, device)).cloned()
    }

    /// The last fold of a principal.
    pub fn last_fold(&self, principal: Principal) -> Option<Fold> {
        self.folds.get(&principal).copied()
    }

    /// What a fold of the principal at the end of this prefix puts into its i-table.
    ///
    /// # Errors
    /// As [`State::inode`].
    pub fn changes(&self, principal: Principal, blocks: &impl Blocks) -> Result<Changes, Stop> {
        let mut changes = Changes::default();
        let first = FileId::first_of(principal);
        if principal == self.volume.root.principal && !self.folds.contains_key(&principal) {
            let root = Arc::new(first_root_directory());
            changes.inodes.insert(self.volume.root.number, Some(root));
        }
        let inodes = self.inodes.range(first..);
        for (file, (_, inode)) in inodes.take_while(|(file, _)| file.principal == principal) {
            let inode = inode.as_deref().cloned().map(attributes);
            if inode
                .as_ref()
                .is_some_and(|inode| inode.kind() == FileKind::Directory)
            {
                let times = self.times(file, blocks)?;
                changes.times.insert(file.number, times);
            }
            changes.inodes.insert(file.number, inode.map(Arc::new));
        }
        let times = self.times.range(first..);
        for (file, _) in times.take_while(|(file, _)| file.principal == principal) {
            let times = self.times(file, blocks)?;
            changes.times.insert(file.number, times);
        }
        let entries = self.entries.range((first, Name::lowest())..);
        for ((directory, name), (_, to)) in entries {
            if directory.principal != principal {
                break;
            }
            let names = changes.entries.entry(directory.number).or_default();
            names.insert(name.clone(), *to);
        }
        Ok(changes)
    }
}

/// The values at the end of the prefix.
struct View<'a, B> {
    state: &'a State,
    tables: Tables<'a, B>,
}

impl<B: Blocks> Values for View<'_, B> {
    fn inode(&mut self, file: &FileId) -> Known<Option<Arc<Inode>>> {
        if let Some((_, inode)) = self.state.inodes.get(file) {
            let inode = inode.as_deref().cloned();
            return Known::Is(inode.map(attributes).map(Arc::new));
        }
        let fold = self.state.folds.get(&file.principal);
        let found = folded_inode(&mut self.tables, &self.state.volume, fold, file);
        found.map(|inode| inode.map(attributes).map(Arc::new))
    }

    fn entry(&mut self, directory: &FileId, name: &Name) -> Known<Option<Target>> {
        let key = (*directory, name.clone());
        if let Some((_, target)) = self.state.entries.get(&key) {
            return Known::Is(*target);
        }
        let fold = self.state.folds.get(&directory.principal);
        folded_entry(&mut self.tables, fold, directory, name)
    }

    fn entries(&mut self, directory: &FileId) -> Known<i64> {
        let fold = self.state.folds.get(&directory.principal);
        let added = self.state.added.get(directory).into_iter().flatten();
        let added: i64 = added.fold(0, |sum, (_, added)| sum.saturating_add(*added));
        folded_entries(&mut self.tables, fold, directory).map(|map| {
            let before = map.map_or(0, |map| i64::try_from(map.entries).unwrap_or(i64::MAX));
            before.saturating_add(added)
        })
    }

    fn lock(&mut self, file: &FileId) -> Known<Option<Lock>> {
        Known::Is(self.state.locks.get(file).copied())
    }

    fn hold(&mut self, file: &FileId, family: Family, device: Device) -> Known<Option<Hold>> {
        Known::Is(self.state.hold(file, family, device))
    }

    fn holders(&mut self, file: &FileId, family: Family) -> Vec<Device> {
        let keys = self.state.holds.keys();
        let of = keys.filter(|(of, family_of, _)| (of, *family_of) == (file, family));
        of.map(|(.., device)| *device).collect()
    }

    fn fold(&mut self, principal: &Principal) -> Known<Option<Fold>> {
        Known::Is(self.state.folds.get(principal).copied())
    }
}
