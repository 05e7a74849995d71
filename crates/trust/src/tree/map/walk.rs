//! Moves along one level of a stored tree, node by node. Relies on `node` for the rules; every loaded node is
//! checked against its parent's claims.

use super::MapRoot;
use super::node::{ChildRef, Item, Node};
use crate::error::Reject;
use crate::handle::{Block, Handle, MapNode};

/// The source of a tree's nodes, for callers that have them locally.
pub trait Nodes {
    /// An error of the source, or a malformed tree.
    type Error: From<Reject>;

    /// The node with this handle.
    ///
    /// # Errors
    /// Any error of the source.
    fn node(&self, handle: &Handle<MapNode>) -> Result<Block<MapNode>, Self::Error>;
}

/// A node and its parent's claims about it.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub child: ChildRef,
    pub node: Node,
}

/// Loads a node and checks it.
pub(super) fn load<N: Nodes>(nodes: &N, child: ChildRef) -> Result<Place, N::Error> {
    let node = Node::decode(&nodes.node(&child.handle)?)?;
    node.check(&child)?;
    Ok(Place { child, node })
}

/// A position on one level: the node there and its ancestors.
pub(super) struct Cursor<'a, N> {
    nodes: &'a N,
    level: u8,
    /// Ancestors, each with the index of the child taken; the root first.
    above: Vec<(Place, usize)>,
    here: Place,
}

impl<N> Clone for Cursor<'_, N> {
    fn clone(&self) -> Self {
        Cursor {
            nodes: self.nodes,
            level: self.level,
            above: self.above.clone(),
            here: self.here.clone(),
        }
    }
}

impl<'a, N: Nodes> Cursor<'a, N> {
    /// At the node of `level` whose range contains `key`; at the first node for keys before all.
    pub fn seek(nodes: &'a N, root: &MapRoot, level: u8, key: &[u8]) -> Result<Self, N::Error> {
        let mut cursor = Cursor {
            nodes,
            level,
            above: Vec::new(),
            here: load(nodes, root.child_ref())?,
        };
        while cursor.here.child.level > level {
            let index = cursor.here.node.covering(key);
            cursor.descend(index)?;
        }
        Ok(cursor)
    }

    /// Moves to the node that contains `key`. Keeps the ancestors that contain it too.
    pub fn reseek(mut self, key: &[u8]) -> Result<Self, N::Error> {
        while !self.here.child.interval.contains(key) {
            match self.above.pop() {
                Some((place, _)) => self.here = place,
                None => break,
            }
        }
        while self.here.child.level > self.level {
            let index = self.here.node.covering(key);
            self.descend(index)?;
        }
        Ok(self)
    }

    pub fn here(&self) -> &Place {
        &self.here
    }

    /// Moves to the next node of the level; `false`, without moving, when there is none.
    pub fn next(&mut self) -> Result<bool, N::Error> {
        self.step(
            |node, index| Some(index + 1).filter(|i| *i < node.count()),
            |_| 0,
        )
    }

    /// Moves to the previous node; `false`, without moving, when there is none.
    pub fn prev(&mut self) -> Result<bool, N::Error> {
        self.step(
            |_, index| index.checked_sub(1),
            |node| node.count().saturating_sub(1),
        )
    }

    fn step(
        &mut self,
        sideways: impl Fn(&Node, usize) -> Option<usize>,
        edge: impl Fn(&Node) -> usize,
    ) -> Result<bool, N::Error> {
        let turn = self
            .above
            .iter()
            .enumerate()
            .rev()
            .find_map(|(depth, (place, index))| Some((depth, sideways(&place.node, *index)?)));
        let Some((depth, index)) = turn else {
            return Ok(false);
        };
        self.above.truncate(depth + 1);
        if let Some((place, _)) = self.above.pop() {
            self.here = place;
        }
        self.descend(index)?;
        while self.here.child.level > self.level {
            let index = edge(&self.here.node);
            self.descend(index)?;
        }
        Ok(true)
    }

    fn descend(&mut self, index: usize) -> Result<(), N::Error> {
        let Some(Item::Child(child)) = self.here.node.item(index, &self.here.child.interval) else {
            return Err(missing().into());
        };
        let below = load(self.nodes, child)?;
        let parent = std::mem::replace(&mut self.here, below);
        self.above.push((parent, index));
        Ok(())
    }
}

fn missing() -> Reject {
    Reject::BadTree {
        what: super::WHAT,
        why: "a child is missing",
    }
}
