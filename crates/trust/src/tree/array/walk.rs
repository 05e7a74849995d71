//! Reads the nodes of a stored tree from its root down and checks each one against its parent. Also finds the
//! data blocks that the edges of an edit cut.

use std::collections::HashMap;
use std::ops::Range;

use super::{ArrayRoot, Child, Entry, Extent, Node};
use crate::error::Reject;
use crate::handle::{ArrayNode, Data, Handle};

/// The source of a tree's nodes, for callers that have them locally.
pub trait Nodes {
    /// An error of the source, or a malformed tree.
    type Error: From<Reject>;

    /// The node with this handle, decoded from a block that was checked against it.
    ///
    /// # Errors
    /// Any error of the source.
    fn node(&self, handle: &Handle<ArrayNode>) -> Result<Node, Self::Error>;
}

/// A range of whole extents around an edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edges {
    /// The range that [`splice`](super::splice()) can replace, bytes.
    pub range: Range<u64>,
    /// The bytes before the edit of the block that its start cuts.
    pub left: Option<Leftover>,
    /// The bytes after the edit of the block that its end cuts; it may be the same block.
    pub right: Option<Leftover>,
}

/// The part of a block that remains after an edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// The block.
    pub handle: Handle<Data>,
    /// Its length, bytes.
    pub len: u32,
    /// The bytes that remain.
    pub keep: Range<u32>,
}

/// Widens `range` to the boundaries of the data blocks that it cuts. A hole may be cut, so the range is not
/// widened for holes.
///
/// # Errors
/// [`Reject::Malformed`] for a range outside of the content; [`Reject::BadTree`] when the tree breaks a rule;
/// any error of `nodes`.
pub fn edges<N: Nodes>(
    base: Option<&ArrayRoot>,
    range: Range<u64>,
    nodes: &N,
) -> Result<Edges, N::Error> {
    check_range(base, &range)?;
    let mut edges = Edges {
        range: range.clone(),
        left: None,
        right: None,
    };
    let Some(base) = base else {
        return Ok(edges);
    };
    let mut tree = Tree::new(base, nodes);
    for at in [range.start, range.end] {
        if at == 0 || at >= base.len {
            continue;
        }
        let (start, extent) = tree.extent(at)?;
        let Extent::Data { handle, len } = extent else {
            continue;
        };
        let cut = at.saturating_sub(start);
        // A cut inside of a block is less than the block's length, which is a u32.
        let cut = u32::try_from(cut).map_err(|_| broken())?;
        if cut == 0 {
            continue;
        }
        let piece = |keep| Some(Leftover { handle, len, keep });
        if at == range.start {
            edges.range.start = start;
            edges.left = piece(0..cut);
        }
        if at == range.end {
            edges.range.end = start.saturating_add(u64::from(len));
            edges.right = piece(cut..len);
        }
    }
    Ok(edges)
}

pub(super) fn check_range(base: Option<&ArrayRoot>, range: &Range<u64>) -> Result<(), Reject> {
    let len = base.map_or(0, |base| base.len);
    if range.start > range.end || range.end > len {
        return Err(Reject::Malformed {
            what: "array edit",
            why: "a range outside of the content",
        });
    }
    Ok(())
}

/// The old tree; loaded nodes are kept.
pub(super) struct Tree<'a, N> {
    pub root: &'a ArrayRoot,
    nodes: &'a N,
    pub loaded: HashMap<Handle<ArrayNode>, Node>,
}

/// A node and its first byte's offset.
#[derive(Clone)]
pub(super) struct Place {
    pub start: u64,
    pub end: u64,
    pub entries: Vec<Entry>,
}

impl<'a, N: Nodes> Tree<'a, N> {
    pub fn new(root: &'a ArrayRoot, nodes: &'a N) -> Self {
        Tree {
            root,
            nodes,
            loaded: HashMap::new(),
        }
    }

    pub fn load(
        &mut self,
        handle: &Handle<ArrayNode>,
        level: u8,
        len: u64,
    ) -> Result<&Node, N::Error> {
        if !self.loaded.contains_key(handle) {
            let node = self.nodes.node(handle)?;
            self.loaded.insert(*handle, node);
        }
        let node = self.loaded.get(handle).ok_or_else(broken)?;
        node.check(level, len)?;
        Ok(node)
    }

    /// The child at `level` (0: the extent) that holds the byte at `offset`, and the offset at which it
    /// starts.
    fn descend(&mut self, level: u8, offset: u64) -> Result<(u64, Child), N::Error> {
        let (mut start, mut at) = (0u64, self.root.top());
        loop {
            let (handle, len, is) = match at {
                Child::Node {
                    handle,
                    len,
                    level: is,
                } if is > level => (handle, len, is),
                _ => return Ok((start, at)),
            };
            let node = self.load(&handle, is, len)?;
            let inside = offset.checked_sub(start).ok_or_else(broken)?;
            let (index, begin) = node.seek(inside).ok_or_else(broken)?;
            at = node.child(index).ok_or_else(broken)?;
            start = start.saturating_add(begin);
        }
    }

    fn extent(&mut self, offset: u64) -> Result<(u64, Extent), N::Error> {
        match self.descend(0, offset)? {
            (start, Child::Extent(extent)) => Ok((start, extent)),
            (_, Child::Node { .. }) => Err(broken().into()),
        }
    }

    /// The node of `level` that holds the byte at `offset`. Content without nodes is treated as a node of
    /// level 1 with one entry.
    pub fn place(&mut self, level: u8, offset: u64) -> Result<Place, N::Error> {
        match self.descend(level, offset)? {
            (
                start,
                Child::Node {
                    handle,
                    len,
                    level: is,
                },
            ) if is == level => {
                let node = self.load(&handle, level, len)?;
                let mut entries = Vec::with_capacity(node.count());
                let mut before = 0u64;
                for slot in &node.entries {
                    entries.push((slot.end.saturating_sub(before), slot.handle));
                    before = slot.end;
                }
                Ok(Place {
                    start,
                    end: start.saturating_add(len),
                    entries,
                })
            }
            (start, Child::Extent(extent)) if level == 1 => Ok(Place {
                start,
                end: start.saturating_add(extent.len()),
                entries: vec![entry(&extent)],
            }),
            _ => Err(broken().into()),
        }
    }
}

pub(super) fn entry(extent: &Extent) -> Entry {
    match extent {
        Extent::Data { handle, len } => (u64::from(*len), Some(*handle.as_bytes())),
        Extent::Hole { len } => (*len, None),
    }
}

pub(super) fn broken() -> Reject {
    Reject::BadTree {
        what: "array tree",
        why: "its nodes do not fit together",
    }
}
