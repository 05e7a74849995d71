//! Names of directories: those of the last fold, and those that entries since then name.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::{Replay, Sources, Waiting};
use crate::effect::{Blocks, Bodies, Missing, Stop, Values, folded_names};
use crate::key::Key;
use crate::principal::{FileId, Name, Target};

/// Names that are looked at in one round, at least.
const ROUND: usize = 256;
/// Names after which a listing ends, whether or not they still exist. So it has an end soon in a directory from which
/// many names were removed since the last fold.
const MOST_LOOKED_AT: usize = 4096;

/// Some names of a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// The names, ascending, and where they lead.
    pub names: Vec<(Name, Target)>,
    /// There may be more after this name, which need not exist. None: these are the last ones.
    pub next: Option<Name>,
}

impl Replay {
    /// Names of a directory before the position `at`: at most `most` of those after `after`. They may be fewer, and even
    /// none, although there are more: see [`Names::next`].
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
        let round = wanted.max(ROUND);
        let mut looked_at = 0usize;
        let mut found = Names::default();
        let mut after = after.cloned();
        loop {
            let folded = self.ask(at, from, |view| {
                let fold = view.fold(&directory.principal);
                fold.then(|fold| {
                    let tables = &mut view.tables;
                    folded_names(tables, fold.as_ref(), directory, after.as_ref(), round)
                })
            })?;
            // Between the first and the last of these names the fold has no others.
            let last = folded.last().filter(|_| folded.len() >= round);
            let mut last = last.map(|(name, _)| name.clone());
            let mut names: BTreeMap<Name, Option<Target>> = folded
                .into_iter()
                .map(|(name, target)| (name, Some(target)))
                .collect();
            let named = self.named(at, directory, after.as_ref(), last.as_ref(), round);
            if named.len() > round {
                // Of many names only some are looked at in one round.
                last = named.last().cloned();
                let within = |name: &Name| last.as_ref().is_none_or(|last| name <= last);
                names.retain(|name, _| within(name));
            }
            let gone = named.iter().filter(|name| !names.contains_key(*name));
            looked_at = looked_at.saturating_add(names.len() + gone.count());
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
            if found.names.len() >= wanted {
                found.names.truncate(most);
                let last = found.names.last().map(|(name, _)| name.clone());
                found.next = last.or(after);
                return Ok(found);
            }
            if last.is_none() || looked_at >= MOST_LOOKED_AT {
                found.next = last;
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
        let (mut missing, mut waiting) = (Missing::default(), Waiting::default());
        let mut present = before;
        let all: BTreeSet<Name> = names.keys().chain(named).cloned().collect();
        for name in all {
            if present >= wanted {
                // What comes after is not answered. It is not known either.
                drop(names.split_off(&name));
                break;
            }
            if named.contains(&name) {
                match self.entry_in(&mut waiting, at, (directory, &name), from) {
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
