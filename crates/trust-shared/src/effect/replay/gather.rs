//! Gathers what a fold puts into an i-table. What is known stays known while the rest is fetched: a fold that had to
//! begin again whenever something came would take as many steps as the square of its changes, and would never end on a
//! device that cannot keep all bodies at once.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Replay, Sources, Version, Waiting};
use crate::effect::{Blocks, Bodies, Missing, Stop};
use crate::fold::{Changes, first_root_directory};
use crate::key::Key;
use crate::principal::{FileId, Name, Principal};
use trust::tree::inode::{FileKind, Inode};

/// What a fold at a position changes, as far as it is known. Values at a position stay the same however the log grows.
#[derive(Debug, Clone)]
pub(super) struct Gathering {
    at: u64,
    principal: Principal,
    /// Keys whose values are not known.
    left: Vec<Key>,
    changes: Arc<Changes>,
}

impl Replay {
    /// What a fold of the principal at the position `at` puts into its i-table. It stays here until an entry folds the
    /// principal, or another fold is asked for.
    ///
    /// # Errors
    /// As [`Replay::inode`]. The same question gets further when what is missing has been fetched.
    pub fn changes<S: Blocks + Bodies>(
        &mut self,
        at: u64,
        principal: Principal,
        from: Sources<'_, S>,
    ) -> Result<Arc<Changes>, Stop> {
        let begun = self.gathering.take();
        let begun = begun.filter(|begun| (begun.at, begun.principal) == (at, principal));
        let mut gathering = match begun {
            Some(begun) => begun,
            None => self.begin_gathering(at, principal, from)?,
        };
        let gathered = self.gather(&mut gathering, from);
        let changes = Arc::clone(&gathering.changes);
        self.gathering = Some(gathering);
        gathered.map(|()| changes)
    }

    /// The position of the fold of a principal whose changes are gathered.
    pub fn gathers(&self, principal: Principal) -> Option<u64> {
        let gathering = self.gathering.as_ref();
        let gathering = gathering.filter(|gathering| gathering.principal == principal);
        gathering.map(|gathering| gathering.at)
    }

    /// Drops what was gathered for a fold that an op makes.
    pub(super) fn drop_gathered(&mut self, keys: &[Key]) {
        let gathering = self.gathering.as_ref();
        let folds = gathering.map(|gathering| Key::Fold(gathering.principal));
        if folds.is_some_and(|folds| keys.contains(&folds)) {
            self.gathering = None;
        }
    }

    /// Drops what was gathered for a fold at a position that is not kept any more.
    pub(super) fn drop_gathered_before(&mut self, position: u64) {
        let is_old = |gathering: &Gathering| gathering.at < position;
        if self.gathering.as_ref().is_some_and(is_old) {
            self.gathering = None;
        }
    }

    fn begin_gathering<S: Blocks + Bodies>(
        &mut self,
        at: u64,
        principal: Principal,
        from: Sources<'_, S>,
    ) -> Result<Gathering, Stop> {
        let before = self.last_fold(at, principal, from)?;
        let since = before.map_or(0, |fold| fold.upto);
        let first = FileId::first_of(principal);
        let mut changes = Changes::default();
        if principal == self.volume.root.principal && before.is_none() {
            let root = Arc::new(first_root_directory());
            changes.inodes.insert(self.volume.root.number, Some(root));
        }
        let inodes = self.changed(Key::Inode(first), principal, since, at);
        let lowest = Key::Entry(first, Name::lowest());
        let entries = self.changed(lowest, principal, since, at);
        let times = self.changed(Key::Times(first), principal, since, at);
        Ok(Gathering {
            at,
            principal,
            left: inodes.into_iter().chain(entries).chain(times).collect(),
            changes: Arc::new(changes),
        })
    }

    /// Asks for what is not known.
    fn gather<S: Blocks + Bodies>(
        &mut self,
        gathering: &mut Gathering,
        from: Sources<'_, S>,
    ) -> Result<(), Stop> {
        let Gathering {
            at, left, changes, ..
        } = gathering;
        if left.is_empty() {
            return Ok(());
        }
        let changes = Arc::make_mut(changes);
        let (mut missing, mut waiting) = (Missing::default(), Waiting::default());
        let mut asked = Ok(());
        left.retain(|key| {
            if asked.is_err() || missing.is_long() {
                return true;
            }
            match self.gather_one(*at, key, &mut waiting, changes, from) {
                Ok(()) => false,
                Err(Stop::Missing(more)) => {
                    missing.add(more);
                    true
                }
                Err(stop) => {
                    asked = Err(stop);
                    true
                }
            }
        });
        asked?;
        missing.or(())
    }

    fn gather_one<S: Blocks + Bodies>(
        &mut self,
        at: u64,
        key: &Key,
        waiting: &mut Waiting,
        changes: &mut Changes,
        from: Sources<'_, S>,
    ) -> Result<(), Stop> {
        match key {
            Key::Inode(file) => {
                let inode = self.inode_in(waiting, at, file, from)?;
                let is_directory = |inode: &Arc<Inode>| inode.kind() == FileKind::Directory;
                if inode.as_ref().is_some_and(is_directory) {
                    let times = self.times_in(waiting, at, file, from)?;
                    changes.times.insert(file.number, times);
                }
                changes.inodes.insert(file.number, inode);
            }
            Key::Times(directory) => {
                let times = self.times_in(waiting, at, directory, from)?;
                changes.times.insert(directory.number, times);
            }
            Key::Entry(directory, name) => {
                let target = self.entry_in(waiting, at, (directory, name), from)?;
                let names = changes.entries.entry(directory.number).or_default();
                names.insert(name.clone(), target);
            }
            // Nothing else is folded.
            _ => {}
        }
        Ok(())
    }

    /// The keys of one kind and one principal that entries from `since` on and before `at` name.
    fn changed(&self, first: Key, principal: Principal, since: u64, at: u64) -> BTreeSet<Key> {
        let named = |versions: &Vec<Version>| {
            let positions = versions.iter().filter_map(|version| self.row(version.op));
            let mut positions = positions.map(|row| row.written.position);
            positions.any(|position| (since..at).contains(&position))
        };
        let keys = self.keys.range(&first..);
        let kind = std::mem::discriminant(&first);
        let keys = keys
            .take_while(|(key, _)| std::mem::discriminant(*key) == kind)
            .take_while(|(key, _)| key.principals().next() == Some(principal))
            .filter(|(_, versions)| named(versions))
            .map(|(key, _)| key.clone());
        let before = self.base.changed(&first, principal, since);
        keys.chain(before).collect()
    }
}
