//! The difference of two maps, at the cost of what differs: nodes with the same handle hold the same entries
//! and are never fetched. Sans-I/O, in waves: the caller fetches the nodes that [`Diff::wants`] names, many
//! at once, supplies the blocks and takes the changes out.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet, VecDeque};

use bytes::Bytes;

use super::MapRoot;
use super::node::{ChildRef, Item, Node};
use crate::error::Reject;
use crate::handle::{Block, Handle, MapNode};

/// Most nodes of one side that are wanted at once. Bounds the memory for leaves.
pub const WAVE: usize = 256;

/// A key whose value differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: Bytes,
    /// Its value in the first map.
    pub old: Option<Bytes>,
    /// Its value in the second map.
    pub new: Option<Bytes>,
}

/// Compares two maps. Changes come out in key order: until [`Diff::is_done`], give the blocks that [`Diff::wants`] names
/// to [`Diff::supply`], and take the changes from [`Diff::next_change`].
#[derive(Debug)]
pub struct Diff {
    sides: [Side; 2],
    changes: VecDeque<Change>,
}

#[derive(Debug, Default)]
struct Side {
    /// Subtrees that are not open yet, in key order, all of one level.
    queue: VecDeque<ChildRef>,
    /// Nodes that arrived before their turn.
    arrived: HashMap<Handle<MapNode>, Node>,
    /// Subtrees found in opened nodes, one level lower.
    opened: VecDeque<ChildRef>,
    /// Entries found in opened nodes and not yet compared.
    entries: VecDeque<(Bytes, Bytes)>,
}

impl Diff {
    /// Compares the map under `old` with the one under `new`.
    pub fn new(old: Option<&MapRoot>, new: Option<&MapRoot>) -> Diff {
        let side = |root: Option<&MapRoot>| Side {
            queue: root.map(MapRoot::child_ref).into_iter().collect(),
            ..Side::default()
        };
        let mut diff = Diff {
            sides: [side(old), side(new)],
            changes: VecDeque::new(),
        };
        diff.drop_equal();
        diff
    }

    /// The nodes to fetch next; empty when nothing more is needed.
    pub fn wants(&self) -> Vec<Handle<MapNode>> {
        let level = self.level();
        self.sides
            .iter()
            .flat_map(|side| side.wanted(level))
            .map(|child| child.handle)
            .collect()
    }

    /// Takes a node. Ignores a node that is not wanted.
    ///
    /// # Errors
    /// [`Reject::BadTree`] when it is malformed or not what its parent claims.
    pub fn supply(
        &mut self,
        handle: &Handle<MapNode>,
        block: &Block<MapNode>,
    ) -> Result<(), Reject> {
        self.supply_node(handle, &Node::decode(block)?)
    }

    /// Like [`Diff::supply`], for a node that was decoded before from the block with that handle.
    ///
    /// # Errors
    /// Those of [`Diff::supply`].
    pub fn supply_node(&mut self, handle: &Handle<MapNode>, node: &Node) -> Result<(), Reject> {
        let level = self.level();
        for side in &mut self.sides {
            let Some(child) = side.wanted(level).find(|child| child.handle == *handle) else {
                continue;
            };
            node.check(child)?;
            side.arrived.insert(*handle, node.clone());
            side.open();
        }
        self.descend();
        self.compare();
        Ok(())
    }

    /// Continues without a wanted node, as if it had no entries. Entries that only this node leads to appear
    /// in no change, or, when the other map has them, as changes that say that this map lacks them.
    pub fn omit(&mut self, handle: &Handle<MapNode>) {
        let level = self.level();
        for side in &mut self.sides {
            if side.level() == level {
                side.queue.retain(|child| child.handle != *handle);
                side.open();
            }
        }
        self.descend();
        self.compare();
    }

    /// Approximate memory of the nodes and entries that wait, bytes.
    pub fn weight_bytes(&self) -> usize {
        self.sides.iter().map(Side::weight_bytes).sum()
    }

    /// The next change in key order, if the nodes supplied so far determine it.
    pub fn next_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// Whether every change has been taken out.
    pub fn is_done(&self) -> bool {
        self.changes.is_empty() && self.level() == 0
    }

    /// The highest level of subtrees to open; 0 when there are none.
    fn level(&self) -> u8 {
        self.sides.iter().map(Side::level).max().unwrap_or(0)
    }

    /// Goes one level down on each side that has opened its level.
    fn descend(&mut self) {
        let mut moved = false;
        for side in &mut self.sides {
            if side.queue.is_empty() && !side.opened.is_empty() {
                side.queue = std::mem::take(&mut side.opened);
                moved = true;
            }
        }
        if moved {
            self.drop_equal();
        }
    }

    /// Drops nodes that both sides have: they are equal, and so is everything below them.
    fn drop_equal(&mut self) {
        let [a, b] = &mut self.sides;
        if a.level() != b.level() || !a.opened.is_empty() || !b.opened.is_empty() {
            return;
        }
        let names = |side: &Side| -> HashSet<_> { side.queue.iter().map(|c| c.handle).collect() };
        let (in_a, in_b) = (names(a), names(b));
        a.queue.retain(|child| !in_b.contains(&child.handle));
        b.queue.retain(|child| !in_a.contains(&child.handle));
    }

    /// Compares the entries before the first key that is not known yet.
    fn compare(&mut self) {
        let [a, b] = &mut self.sides;
        let Some(bound) = a.open_until().and_then(|x| Some(x.min(b.open_until()?))) else {
            return;
        };
        loop {
            let key = |side: &Side| side.entries.front().map(|(key, _)| key.clone());
            let order = match (key(a), key(b)) {
                (Some(x), Some(y)) => x.cmp(&y),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return,
            };
            let old = a
                .entries
                .pop_front_if(|(key, _)| order.is_le() && bound.covers(key));
            let new = b
                .entries
                .pop_front_if(|(key, _)| order.is_ge() && bound.covers(key));
            let (key, old, new) = match (old, new) {
                (Some((key, old)), Some((_, new))) => (key, Some(old), Some(new)),
                (Some((key, old)), None) => (key, Some(old), None),
                (None, Some((key, new))) => (key, None, Some(new)),
                (None, None) => return,
            };
            if old != new {
                self.changes.push_back(Change { key, old, new });
            }
        }
    }
}

/// How far a side has been opened down to its entries.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Until {
    Key(Bytes),
    End,
}

impl Until {
    fn covers(&self, key: &[u8]) -> bool {
        match self {
            Until::Key(until) => key < until.as_ref(),
            Until::End => true,
        }
    }
}

impl Side {
    fn level(&self) -> u8 {
        self.queue.front().map_or(0, |child| child.level)
    }

    fn wanted(&self, level: u8) -> impl Iterator<Item = &ChildRef> {
        let turn = if self.level() == level { WAVE } else { 0 };
        self.queue
            .iter()
            .take(turn)
            .filter(|child| !self.arrived.contains_key(&child.handle))
    }

    fn weight_bytes(&self) -> usize {
        let nodes: usize = self.arrived.values().map(Node::weight_bytes).sum();
        let children = self.queue.len().saturating_add(self.opened.len());
        let references = children.saturating_mul(size_of::<ChildRef>());
        let entries: usize = self.entries.iter().map(|(k, v)| k.len() + v.len()).sum();
        nodes.saturating_add(references).saturating_add(entries)
    }

    /// Opens the nodes at the front of the queue that have arrived.
    fn open(&mut self) {
        while let Some(child) = self.queue.front() {
            let Some(node) = self.arrived.remove(&child.handle) else {
                return;
            };
            for item in node.items(&child.interval) {
                match item {
                    Item::Entry(key, value) => self.entries.push_back((key, value)),
                    Item::Child(child) => self.opened.push_back(child),
                }
            }
            self.queue.pop_front();
        }
    }

    /// `None` while interior nodes, or a root, remain to be opened.
    fn open_until(&self) -> Option<Until> {
        if !self.opened.is_empty() || self.level() > 1 {
            return None;
        }
        match self.queue.front() {
            None => Some(Until::End),
            Some(child) => child.interval.lower.clone().map(Until::Key),
        }
    }
}
