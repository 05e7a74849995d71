//! What a collection must spare, written apart from its code: what each position of the window and each pin shows, and
//! what somebody used within the window.

use std::collections::{BTreeMap, BTreeSet};

use trust::Handle;
use trust_shared::principal::{FileId, Principal};

/// Length of the window, and how long a client relies on a block, in half ticks.
pub const WINDOW: u64 = 8;
pub const RELIES: u64 = 4;

/// An entry of the log.
#[derive(Debug, Clone)]
pub enum Entry {
    /// A file gets a version with these blocks.
    Set(FileId, Vec<Handle>),
    /// The files of a user as they were at a position, or as it says, are in a tree of these blocks.
    Fold(Principal, u64, Vec<Handle>),
    /// Nothing about files.
    Other,
}

#[derive(Debug, Clone, Default)]
pub struct Spec {
    pub log: Vec<Entry>,
    pub pins: BTreeSet<u64>,
    pub now: u64,
    /// How long the log was from each time on.
    sizes: Vec<(u64, u64)>,
    used: BTreeMap<Handle, u64>,
}

impl Spec {
    pub fn append(&mut self, entry: Entry) {
        self.log.push(entry);
        self.sizes.push((self.now, self.log.len() as u64));
    }

    pub fn used(&mut self, block: Handle) {
        self.used.insert(block, self.now);
    }

    /// Its holder gave the block up.
    pub fn given_up(&mut self, block: &Handle) {
        self.used.remove(block);
    }

    /// The first position that was the newest within the window. All later ones were, too.
    fn begin(&self) -> u64 {
        let old = |(at, _): &&(u64, u64)| *at + WINDOW < self.now;
        self.sizes.iter().rfind(old).map_or(0, |(_, size)| *size)
    }

    /// Blocks of what positions show: the newest version of each file, and the last tree of each user.
    fn shown(&self) -> BTreeSet<Handle> {
        let mut newest: BTreeMap<FileId, (u64, &Vec<Handle>)> = BTreeMap::new();
        let mut trees: BTreeMap<Principal, &Vec<Handle>> = BTreeMap::new();
        let (mut needed, begin) = (BTreeSet::new(), self.begin());
        for (position, entry) in (0..).zip(self.log.iter().map(Some).chain([None])) {
            if position == begin || self.pins.contains(&position) {
                needed.extend(newest.values().flat_map(|(_, blocks)| *blocks));
                needed.extend(trees.values().copied().flatten());
            }
            let (Some(Entry::Set(_, blocks)) | Some(Entry::Fold(.., blocks))) = entry else {
                continue;
            };
            if position >= begin {
                needed.extend(blocks);
            }
            match entry {
                Some(Entry::Set(file, blocks)) => {
                    newest.insert(*file, (position, blocks));
                }
                Some(Entry::Fold(user, upto, blocks)) => {
                    // What was set before is shown as the tree has it.
                    newest.retain(|file, (at, _)| file.principal != *user || *at >= *upto);
                    trees.insert(*user, blocks);
                }
                _ => {}
            }
        }
        needed
    }

    /// Everything that must be there.
    pub fn needed(&self) -> BTreeSet<Handle> {
        let mut needed = self.shown();
        let young = self.used.iter().filter(|(_, at)| **at + WINDOW >= self.now);
        needed.extend(young.map(|(block, _)| *block));
        needed
    }
}
