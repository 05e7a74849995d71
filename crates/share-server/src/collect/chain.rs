//! What a device that begins with the log's first leaf needs beside the values of the window: to know what an entry did
//! that the last fold does not have, it evaluates that entry, and the entries that this one's guards look at. Some of
//! them came before that fold, so it looks into older folds. Without input or output.
//!
//! Entries are taken from the newest to the oldest. Only paths in older folds are kept for this, not their files. Locks
//! are left out: what they rest on may be as old as the log.

use std::collections::{BTreeMap, BTreeSet};

use trust::map::MapRoot;
use trust_shared::effect::replay::About;
use trust_shared::key::Key;
use trust_shared::members::Members;
use trust_shared::ops::{Body, Op};
use trust_shared::outcome::Written;
use trust_shared::principal::{FileId, INumber, Name, Principal};

use super::needed::{Folds, Spans, is_permitted};

/// A value in a fold that an entry looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// The fold's i-table.
    pub table: MapRoot,
    /// The file.
    pub number: INumber,
    /// The name in it, if it is a directory and the value is where a name leads.
    pub name: Option<Name>,
}

/// See the head of this file.
pub struct Chain<'a> {
    folds: &'a Folds,
    spans: &'a Spans,
    /// Values that a later entry looks at: entries that change them are evaluated from these positions on.
    wanted: BTreeMap<Key, u64>,
    /// The same for all names of a directory.
    listed: BTreeMap<FileId, u64>,
    told: BTreeSet<(Principal, u64, Key)>,
}

impl<'a> Chain<'a> {
    /// Before the newest entry.
    pub fn new(folds: &'a Folds, spans: &'a Spans) -> Chain<'a> {
        Chain {
            folds,
            spans,
            wanted: BTreeMap::new(),
            listed: BTreeMap::new(),
            told: BTreeSet::new(),
        }
    }

    /// Whether no entry before this position is evaluated. Forgets values that nobody looks at there.
    pub fn is_done(&mut self, position: u64) -> bool {
        self.wanted.retain(|_, since| *since < position);
        self.listed.retain(|_, since| *since < position);
        self.wanted.is_empty() && self.listed.is_empty() && position <= self.spans.reads_from()
    }

    /// Takes the entry before the one that was taken last. Gives what it looks at in older folds.
    pub fn entry(&mut self, written: &Written, body: &Body, members: &Members) -> Vec<Path> {
        let mut paths = Vec::new();
        let permitted = |op: &&Op| is_permitted(members, written, op);
        for op in body.ops().iter().filter(permitted) {
            if op
                .changes
                .iter()
                .any(|change| self.is_evaluated(&change.key(), written.position))
            {
                for about in About::op(op) {
                    paths.extend(self.look(about, written.position));
                }
            }
        }
        paths
    }

    /// Whether an op that changes this value is evaluated.
    fn is_evaluated(&self, key: &Key, position: u64) -> bool {
        let wants = |since: Option<&u64>| since.is_some_and(|since| *since <= position);
        let listed = match key {
            Key::Entry(directory, _) => self.listed.get(directory),
            _ => None,
        };
        let in_span = match key {
            Key::Inode(file) | Key::Entry(file, _) => self.spans.has(&file.principal, position),
            _ => false,
        };
        in_span || wants(self.wanted.get(key)) || wants(listed)
    }

    /// An op at this position looks at a value.
    fn look(&mut self, about: About, position: u64) -> Option<Path> {
        let (file, name, key) = match about {
            About::Key(Key::Inode(file)) => (file, None, Key::Inode(file)),
            About::Key(Key::Entry(file, name)) => {
                (file, Some(name.clone()), Key::Entry(file, name))
            }
            About::Entries(file) => (file, None, Key::Times(file)),
            _ => return None,
        };
        let fold = self.folds.before(&file.principal, position);
        let since = fold.map_or(0, |folded| folded.fold.upto);
        if !self.spans.has_all(&file.principal, since, position) {
            let wanted = match &key {
                Key::Times(_) => self.listed.entry(file).or_insert(since),
                key => self.wanted.entry(key.clone()).or_insert(since),
            };
            *wanted = since.min(*wanted);
        }
        let folded = fold?;
        let table = folded.fold.root?;
        let is_new = !self.spans.has_whole(&file.principal, folded.at)
            && self.told.insert((file.principal, folded.at, key));
        is_new.then_some(Path {
            table,
            number: file.number,
            name,
        })
    }
}
