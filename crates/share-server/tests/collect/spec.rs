//! What a collection must spare, written apart from its code: what each position of the window and each pin shows, and
//! what somebody used within the window.

use std::collections::{BTreeMap, BTreeSet};

use trust::Handle;

/// Length of the window, and how long a client relies on a block, in half ticks.
pub const WINDOW: u64 = 8;
pub const RELIES: u64 = 4;

/// An entry of the log.
#[derive(Debug, Clone)]
pub enum Entry {
    /// A file gets a version with these blocks.
    Set(u64, Vec<Handle>),
    /// The files are in a tree of these blocks.
    Fold(Vec<Handle>),
    /// Nothing about files.
    #[allow(dead_code)] // the explorer has no such entries
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

    /// Positions that were the newest within the window.
    fn window(&self) -> impl Iterator<Item = u64> {
        let old = |(at, _): &&(u64, u64)| *at + WINDOW < self.now;
        let begin = self.sizes.iter().rfind(old).map_or(0, |(_, size)| *size);
        begin..=self.log.len() as u64
    }

    /// Blocks of what a position shows: the newest version of each file, and the last tree.
    fn shown(&self, position: u64, needed: &mut BTreeSet<Handle>) {
        let before = self.log.iter().take(position as usize);
        let mut newest: BTreeMap<u64, &Vec<Handle>> = BTreeMap::new();
        let mut tree = None;
        for entry in before {
            match entry {
                Entry::Set(file, blocks) => drop(newest.insert(*file, blocks)),
                Entry::Fold(blocks) => tree = Some(blocks),
                Entry::Other => {}
            }
        }
        needed.extend(newest.values().copied().chain(tree).flatten());
    }

    /// Everything that must be there.
    pub fn needed(&self) -> BTreeSet<Handle> {
        let mut needed = BTreeSet::new();
        for position in self.window().chain(self.pins.iter().copied()) {
            self.shown(position, &mut needed);
        }
        let young = self.used.iter().filter(|(_, at)| **at + WINDOW >= self.now);
        needed.extend(young.map(|(block, _)| *block));
        needed
    }
}
