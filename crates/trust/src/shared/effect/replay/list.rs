//! Names of directories: those of the last fold, and those that entries since then name.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::{Replay, Sources};
use crate::shared::effect::{Blocks, Bodies, Missing, Stop, Values, folded_names};
use crate::shared::key::Key;
use crate::shared::principal::{FileId, Name, Target};

/// Some names of a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// The names, ascending, and where they lead.
    pub names: Vec<(Name, Target)>,
    /// There are more after these.
    pub more: bool,
}

impl Replay {
    /// Names of a directory before the position `at`: at most `most` of those after `after`.
    ///
    /// # Errors
    /// As [`Replay::inode`].
    pub fn list<S: Blocks + Bodies>(
        &mut self,
        at: u64,
        directory: &FileId,
        after: Option<&Name>,
        most: usize,
        from: Sources<'_, S>,
    ) -> Result<Names, Stop> {
        let wanted = most.saturating_add(1);
        let mut found = Names::default();
        let mut after = after.cloned();
        loop {
            let folded = self.ask(at, from, |view| {
                let fold = view.fold(&directory.principal);
                fold.then(|fold| {
                    let tables = &mut view.tables;
                    folded_names(tables, fold.as_ref(), directory, after.as_ref(), wanted)
                })
            })?;
            // Between the first and the last of these names the fold has no others.
            let last = folded.last().filter(|_| folded.len() >= wanted);
            let mut last = last.map(|(name, _)| name.clone());
            let mut names: BTreeMap<Name, Option<Target>> = folded
                .into_iter()
                .map(|(name, target)| (name, Some(target)))
                .collect();
            let named = self.named(at, directory, after.as_ref(), last.as_ref(), wanted);
            if named.len() > wanted {
                // Of many names only some are looked at in one round.
                last = named.last().cloned();
                let within = |name: &Name| last.as_ref().is_none_or(|last| name <= last);
                names.retain(|name, _| within(name));
            }
            self.overlay(
                at,
                directory,
                &named,
                &mut names,
                (found.names.len(), wanted),
                from,
            )?;
            let present = names
                .into_iter()
                .filter_map(|(name, target)| Some((name, target?)));
            found.names.extend(present);
            if last.is_none() || found.names.len() >= wanted {
                found.more = found.names.len() > most;
                found.names.truncate(most);
                return Ok(found);
            }
            after = last;
        }
    }

    /// The first names of a directory that entries name, between two names: one more than `most`, or all.
    fn named(
        &self,
        at: u64,
        directory: &FileId,
        after: Option<&Name>,
        last: Option<&Name>,
        most: usize,
    ) -> BTreeSet<Name> {
        let key = |name: &Name| Key::Entry(*directory, name.clone());
        let begin = match after {
            Some(name) => Bound::Excluded(key(name)),
            None => Bound::Included(key(&Name::lowest())),
        };
        let before = self.first_op_at(at);
        let keys = self.keys.range((begin, Bound::Unbounded));
        let keys = keys.map_while(|(key, versions)| match key {
            Key::Entry(of, name) if of == directory => Some((name, versions)),
            _ => None,
        });
        let keys = keys
            .take_while(|(name, _)| last.is_none_or(|last| *name <= last))
            .filter(|(_, versions)| versions.first().is_some_and(|first| first.op < before))
            .map(|(name, _)| name.clone())
            .take(most.saturating_add(1));
        let within = |name: &&Name| last.is_none_or(|last| *name <= last);
        let based = self.base.names(directory, after).take_while(within);
        let mut names: BTreeSet<Name> = based.take(most.saturating_add(1)).cloned().collect();
        names.extend(keys);
        while names.len() > most.saturating_add(1) {
            names.pop_last();
        }
        names
    }

    /// Puts the values of names that entries name over those of the fold, until there are enough.
    fn overlay<S: Blocks + Bodies>(
        &mut self,
        at: u64,
        directory: &FileId,
        named: &BTreeSet<Name>,
        names: &mut BTreeMap<Name, Option<Target>>,
        (before, wanted): (usize, usize),
        from: Sources<'_, S>,
    ) -> Result<(), Stop> {
        let mut missing = Missing::default();
        let mut present = before;
        let all: BTreeSet<Name> = names.keys().chain(named).cloned().collect();
        for name in all {
            if present >= wanted {
                // What comes after is not answered. It is not known either.
                drop(names.split_off(&name));
                break;
            }
            if named.contains(&name) {
                match self.entry(at, directory, &name, from) {
                    Ok(target) => {
                        names.insert(name.clone(), target);
                    }
                    Err(Stop::Missing(more)) => {
                        missing.add(more);
                        if missing.is_long() {
                            break;
                        }
                    }
                    Err(stop) => return Err(stop),
                }
            }
            present += usize::from(names.get(&name).is_some_and(Option::is_some));
        }
        match missing.is_empty() {
            true => Ok(()),
            false => Err(Stop::Missing(missing)),
        }
    }
}
