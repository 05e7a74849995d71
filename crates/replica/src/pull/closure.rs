//! The blocks that must be here before a version is whole: a walk over what differs from a version that
//! is whole already, or over everything. Sans-I/O: [`Closure::next`] names blocks, [`Closure::supply`]
//! takes them.
//!
//! Directories and files that are equal to those of a whole version are not entered: they are here. Each
//! node is entered once, however often it occurs, so a publisher who nests a tree in itself costs no more
//! than the blocks that exist. Content comes before directories, which keeps the queue short.

use std::collections::{HashMap, HashSet};

use trust::array::{self, ArrayRoot, Child, Extent};
use trust::inode::{Content, Entry, FileContent, Inode, Xattrs};
use trust::map::{Change, Diff, MapRoot};
use trust::{ArrayNode, Data, Handle, InodeBlock, MapNode, Reject};

use super::sources::{Claim, Proved, Want};

/// Directories that are compared at a time.
const COMPARED: usize = 512;

/// A directory and what stood in its place in the whole version.
struct Pair {
    old: Option<Box<MapRoot>>,
    new: MapRoot,
    wave: u32,
}

/// A comparison under way.
struct Comparison {
    diff: Diff,
    asked: HashSet<Handle<MapNode>>,
    wave: u32,
}

/// A walk.
#[derive(Default)]
pub(crate) struct Closure {
    seen: HashSet<[u8; 32]>,
    data: Vec<(Handle<Data>, u32, u32)>,
    arrays: Vec<(Handle<ArrayNode>, u64, u8, u32)>,
    inodes: Vec<(Handle<InodeBlock>, Option<Box<Inode>>, u32)>,
    nodes: Vec<(Handle<MapNode>, u32)>,
    directories: Vec<Pair>,
    compared: HashMap<u64, Comparison>,
    waiting: HashMap<Handle<MapNode>, Vec<u64>>,
    next_number: u64,
}

impl Closure {
    /// Adds a file or directory, with what stood in its place.
    pub(crate) fn visit(&mut self, inode: &Inode, old: Option<&Inode>, wave: u32) {
        if let Xattrs::Stored(root) = &inode.xattrs
            && old.is_none_or(|old| old.xattrs != inode.xattrs)
        {
            self.content(root, wave);
        }
        if old.is_some_and(|old| old.content == inode.content) {
            return;
        }
        match &inode.content {
            Content::Regular(FileContent::Array(root)) => self.content(root, wave),
            Content::Directory { map: Some(new), .. } => {
                let old = match old.map(|old| &old.content) {
                    Some(Content::Directory { map, .. }) => map.map(Box::new),
                    _ => None,
                };
                let equal = old.as_ref().is_some_and(|old| old.handle == new.handle);
                if !equal && self.seen.insert(*new.handle.as_bytes()) {
                    let new = *new;
                    self.directories.push(Pair { old, new, wave });
                }
            }
            _ => {}
        }
    }

    /// Adds an inode that has a block of its own.
    pub(crate) fn inode(&mut self, handle: Handle<InodeBlock>, old: Option<Box<Inode>>, wave: u32) {
        if self.seen.insert(*handle.as_bytes()) {
            self.inodes.push((handle, old, wave));
        }
    }

    fn content(&mut self, root: &ArrayRoot, wave: u32) {
        self.child(root.top(), wave);
    }

    fn child(&mut self, child: Child, wave: u32) {
        match child {
            Child::Extent(Extent::Hole { .. }) => {}
            Child::Extent(Extent::Data { handle, len }) => {
                if self.seen.insert(*handle.as_bytes()) {
                    self.data.push((handle, len, wave));
                }
            }
            Child::Node { handle, len, level } => {
                if self.seen.insert(*handle.as_bytes()) {
                    self.arrays.push((handle, len, level, wave));
                }
            }
        }
    }

    /// The next block that must be here; `None` when there is none until more is supplied, or none
    /// at all.
    pub(crate) fn next(&mut self) -> Option<Want> {
        loop {
            if let Some((handle, len, wave)) = self.data.pop() {
                return Some(want(&handle, Claim::Data { len }, wave));
            }
            if let Some((handle, len, level, wave)) = self.arrays.pop() {
                return Some(want(&handle, Claim::Array { len, level }, wave));
            }
            if let Some((handle, old, wave)) = self.inodes.pop() {
                return Some(want(&handle, Claim::Inode { old }, wave));
            }
            if let Some((handle, wave)) = self.nodes.pop() {
                return Some(want(&handle, Claim::Map, wave));
            }
            if self.compared.len() >= COMPARED {
                return None;
            }
            let Pair { old, new, wave } = self.directories.pop()?;
            let number = self.next_number;
            self.next_number += 1;
            let comparison = Comparison {
                diff: Diff::new(old.as_deref(), Some(&new)),
                asked: HashSet::new(),
                wave,
            };
            self.compared.insert(number, comparison);
            self.ask_nodes(number);
        }
    }

    /// Whether everything has been named and supplied.
    pub(crate) fn is_done(&self) -> bool {
        self.data.is_empty()
            && self.arrays.is_empty()
            && self.inodes.is_empty()
            && self.nodes.is_empty()
            && self.directories.is_empty()
            && self.compared.is_empty()
    }

    /// Takes a block that [`Closure::next`] named; `wave` counts the request that brought it.
    ///
    /// # Errors
    /// The publisher signed something that breaks the rules of the trees.
    pub(crate) fn supply(&mut self, want: Want, proved: Proved, wave: u32) -> Result<(), Reject> {
        match (want.claim, proved) {
            (Claim::Data { len: promised }, Proved::Data { len }) => {
                if len as u64 == u64::from(promised) {
                    return Ok(());
                }
                let why = "a data block has another length than its extent";
                Err(Reject::BadTree { what: "file", why })
            }
            (Claim::Array { len, level }, Proved::Array(block)) => {
                let node = array::Node::decode(&block)?;
                node.check(level, len)?;
                node.children().for_each(|child| self.child(child, wave));
                Ok(())
            }
            (Claim::Inode { old }, Proved::Inode(block)) => {
                let inode = Inode::from_block(&block)?;
                self.visit(&inode, old.as_deref(), wave);
                Ok(())
            }
            (Claim::Map, Proved::Map(block)) => {
                let handle = Handle::from_bytes(*want.handle.as_bytes());
                for number in self.waiting.remove(&handle).unwrap_or_default() {
                    let Some(comparison) = self.compared.get_mut(&number) else {
                        continue;
                    };
                    comparison.asked.remove(&handle);
                    comparison.wave = comparison.wave.max(wave);
                    comparison.diff.supply(&handle, &block)?;
                    self.changes(number)?;
                    self.ask_nodes(number);
                }
                Ok(())
            }
            // A block is proved as what it was wanted as.
            _ => Err(Reject::WrongBlock),
        }
    }

    fn changes(&mut self, number: u64) -> Result<(), Reject> {
        while let Some(comparison) = self.compared.get_mut(&number)
            && let Some(change) = comparison.diff.next_change()
        {
            let wave = comparison.wave;
            self.change(change, wave)?;
        }
        Ok(())
    }

    fn change(&mut self, change: Change, wave: u32) -> Result<(), Reject> {
        let Some(new) = change.new else {
            return Ok(());
        };
        // What stood there is only a hint of what need not be looked at.
        let old = match change.old.map(|old| Entry::decode(&old)) {
            Some(Ok(Entry::Inode(inode))) => Some(inode),
            _ => None,
        };
        match Entry::decode(&new)? {
            Entry::Inode(inode) => self.visit(&inode, old.as_ref(), wave),
            Entry::Block(handle) => self.inode(handle, old.map(Box::new), wave),
        }
        Ok(())
    }

    /// Names the nodes that a comparison waits for; puts one away that waits for none.
    fn ask_nodes(&mut self, number: u64) {
        let Some(comparison) = self.compared.get_mut(&number) else {
            return;
        };
        for handle in comparison.diff.wants() {
            if !comparison.asked.insert(handle) {
                continue;
            }
            let waiting = self.waiting.entry(handle).or_default();
            if waiting.is_empty() {
                self.nodes.push((handle, comparison.wave));
            }
            waiting.push(number);
        }
        if comparison.diff.is_done() {
            self.compared.remove(&number);
        }
    }
}

fn want<K>(handle: &Handle<K>, claim: Claim, wave: u32) -> Want {
    Want {
        handle: handle.any(),
        claim,
        wave,
    }
}
