//! The array tree: the content of a file as ordered blocks with their lengths. One rule replaces SFSRO
//! 3.2.1's direct, indirect, double and triple indirect blocks. Relies on [`crate::encode`] and
//! [`crate::handle`]; bytes in docs/formats/trees.md, reasons in docs/decisions/0005.
//!
//! ```text
//! node  = format u8 (0) | level u8 | count varint | entry * count
//! entry = varint (length << 1 | hole) | handle [32] unless a hole
//! ```
//!
//! Level 1 lists extents, level n lists nodes of level n - 1. The builder packs interior nodes from the left,
//! [`FAN_OUT`] children each, so one list of extents has one tree. A tree that was edited in place
//! ([`splice`]) has nodes that are not full; every reader accepts it.

use bytes::Bytes;

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::frame::MAX_BLOCK_BYTES;
use crate::handle::{ArrayNode, Block, Data, Handle, Hasher};

mod splice;
mod walk;

pub use splice::splice;
pub use walk::{Edges, Leftover, Nodes, edges};

/// Children of a full node.
pub const FAN_OUT: usize = 256;
/// Longest encoded node, bytes: a full one with the longest lengths.
pub const MAX_NODE_BYTES: usize = 16 << 10;
/// Levels of interior nodes that a tree may have.
pub const MAX_HEIGHT: u8 = 16;
/// Longest content, bytes: what a signed 64-bit file offset can reach.
pub const MAX_LEN: u64 = i64::MAX as u64;
/// The height that means: the whole content is one hole.
pub const HOLE: u8 = 255;

const FORMAT: u8 = 0;
const WHAT: &str = "array node";

fn bad(why: &'static str) -> Reject {
    Reject::Malformed {
        what: "array tree",
        why,
    }
}

/// A stretch of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The content of one block.
    Data {
        /// The block.
        handle: Handle<Data>,
        /// Its length, bytes: 1 to 1 MiB.
        len: u32,
    },
    /// Zeros that are not stored in a block.
    Hole {
        /// Their number, bytes.
        len: u64,
    },
}

impl Extent {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Extent::Data { len, .. } => u64::from(*len),
            Extent::Hole { len } => *len,
        }
    }

    /// Whether the extent has no bytes. No tree has such an extent.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A child of a node or of a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Child {
    /// A subtree.
    Node {
        /// Its node.
        handle: Handle<ArrayNode>,
        /// Content below it, bytes.
        len: u64,
        /// The level that the node must have.
        level: u8,
    },
    /// A stretch of content.
    Extent(Extent),
}

impl Child {
    /// Content below, bytes.
    pub fn len(&self) -> u64 {
        match self {
            Child::Node { len, .. } => *len,
            Child::Extent(extent) => extent.len(),
        }
    }

    /// Whether there is no content below. No tree has such a child.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The root of an array tree, as an inode holds it. Empty content has no root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArrayRoot {
    /// Content, bytes; at least 1.
    pub len: u64,
    /// 0: `top` is the only data block. 1 to 16: `top` is a node of that level. [`HOLE`]: all zeros.
    pub height: u8,
    /// The handle of the top block; zeros for a hole.
    pub top: [u8; 32],
}

impl ArrayRoot {
    /// Appends `len varint | height u8 | top [32]` (no `top` for a hole).
    pub fn encode(&self, e: &mut Encoder) {
        e.varint(self.len).u8(self.height);
        if self.height != HOLE {
            e.raw(&self.top);
        }
    }

    /// Reads what [`ArrayRoot::encode`] wrote.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for an empty or over-long content or an impossible height.
    pub fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        let len = d.bounded(MAX_LEN, "content too long")?;
        let height = d.u8()?;
        if len == 0 {
            return Err(d.bad("empty content has no tree"));
        }
        if height == 0 && len > MAX_BLOCK_BYTES as u64 {
            return Err(d.bad("one block cannot hold this content"));
        }
        if height > MAX_HEIGHT && height != HOLE {
            return Err(d.bad("tree too high"));
        }
        let top = if height == HOLE { [0; 32] } else { d.array()? };
        Ok(ArrayRoot { len, height, top })
    }

    /// The top of the tree, where every read starts.
    pub fn top(&self) -> Child {
        match self.height {
            HOLE => Child::Extent(Extent::Hole { len: self.len }),
            0 => Child::Extent(Extent::Data {
                handle: Handle::from_bytes(self.top),
                // The decoder and the builder limit a single block to 1 MiB.
                len: u32::try_from(self.len).unwrap_or(u32::MAX),
            }),
            level => Child::Node {
                handle: Handle::from_bytes(self.top),
                len: self.len,
                level,
            },
        }
    }
}

/// A decoded interior node.
#[derive(Debug, Clone)]
pub struct Node {
    level: u8,
    entries: Vec<Slot>,
}

#[derive(Debug, Clone)]
struct Slot {
    end: u64,
    handle: Option<[u8; 32]>,
}

impl Node {
    /// Decodes a node whose bytes match their handle.
    ///
    /// # Errors
    /// [`Reject::BadTree`] unless it is canonical: 1 to 256 entries, lengths positive and within
    /// bounds, no two holes in a row, holes on level 1 only.
    pub fn decode(block: &Block<ArrayNode>) -> Result<Node, Reject> {
        Node::parse(block.bytes()).map_err(Reject::signed)
    }

    fn parse(bytes: &[u8]) -> Result<Node, Reject> {
        let mut d = Decoder::new(bytes, WHAT);
        d.format(FORMAT)?;
        let level = d.u8()?;
        if !(1..=MAX_HEIGHT).contains(&level) {
            return Err(d.bad("impossible level"));
        }
        let count = d.bounded(FAN_OUT as u64, "too many entries")?;
        if count == 0 {
            return Err(d.bad("no entries"));
        }
        let mut entries = Vec::with_capacity(count as usize);
        let (mut end, mut after_hole) = (0u64, false);
        for _ in 0..count {
            let tag = d.varint()?;
            let (len, hole) = (tag >> 1, tag & 1 == 1);
            if len == 0 {
                return Err(d.bad("empty extent"));
            }
            if hole && (level > 1 || after_hole) {
                return Err(d.bad("hole where none is allowed"));
            }
            if level == 1 && !hole && len > MAX_BLOCK_BYTES as u64 {
                return Err(d.bad("data block over 1 MiB"));
            }
            end = end
                .checked_add(len)
                .filter(|end| *end <= MAX_LEN)
                .ok_or_else(|| d.bad("content too long"))?;
            let handle = if hole { None } else { Some(d.array()?) };
            entries.push(Slot { end, handle });
            after_hole = hole;
        }
        d.finish()?;
        Ok(Node { level, entries })
    }

    /// Checks that the node has the level and length that its parent gives.
    ///
    /// # Errors
    /// [`Reject::BadTree`] when level or length differ.
    pub fn check(&self, level: u8, len: u64) -> Result<(), Reject> {
        let why = if self.level != level {
            "node of another level than its parent says"
        } else if self.len_bytes() != len {
            "node of another length than its parent says"
        } else {
            return Ok(());
        };
        Err(Reject::BadTree { what: WHAT, why })
    }

    /// Content below the node, bytes.
    pub fn len_bytes(&self) -> u64 {
        self.entries.last().map_or(0, |slot| slot.end)
    }

    /// Number of children.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Memory that the decoded node holds, for caches.
    pub fn weight_bytes(&self) -> usize {
        size_of::<Node>() + self.entries.capacity() * size_of::<Slot>()
    }

    /// The child at `index`.
    pub fn child(&self, index: usize) -> Option<Child> {
        let slot = self.entries.get(index)?;
        let len = slot.end.checked_sub(self.start(index))?;
        Some(match slot.handle {
            None => Child::Extent(Extent::Hole { len }),
            Some(bytes) if self.level == 1 => Child::Extent(Extent::Data {
                handle: Handle::from_bytes(bytes),
                len: u32::try_from(len).ok()?,
            }),
            Some(bytes) => Child::Node {
                handle: Handle::from_bytes(bytes),
                len,
                level: self.level.checked_sub(1)?,
            },
        })
    }

    /// All children, in order.
    pub fn children(&self) -> impl Iterator<Item = Child> + '_ {
        (0..self.entries.len()).filter_map(|i| self.child(i))
    }

    /// The child that holds the byte at `offset`: its index and the offset at which it starts,
    /// both relative to this node. `None` at or beyond the end.
    pub fn seek(&self, offset: u64) -> Option<(usize, u64)> {
        let index = self.entries.partition_point(|slot| slot.end <= offset);
        (index < self.entries.len()).then(|| (index, self.start(index)))
    }

    fn start(&self, index: usize) -> u64 {
        let before = index.checked_sub(1).and_then(|i| self.entries.get(i));
        before.map_or(0, |slot| slot.end)
    }
}

/// Builds the tree of a list of extents. Keeps a few nodes in memory.
///
/// Passes each finished node to the sink once; children come before their parents.
pub struct Builder<F> {
    hasher: Hasher,
    sink: F,
    len: u64,
    last: Option<Extent>,
    levels: Vec<Row>,
}

/// Length of an extent or subtree, and its handle; a hole has none.
type Entry = (u64, Option<[u8; 32]>);

#[derive(Default)]
struct Row {
    entries: Vec<Entry>,
    flushed: bool,
}

impl<F: FnMut(Handle<ArrayNode>, &Bytes)> Builder<F> {
    /// Starts with empty content.
    pub fn new(hasher: &Hasher, sink: F) -> Self {
        Builder {
            hasher: hasher.clone(),
            sink,
            len: 0,
            last: None,
            levels: Vec::new(),
        }
    }

    /// Appends an extent; empty ones are ignored, neighbouring holes become one.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for a block over 1 MiB or a content over [`MAX_LEN`].
    pub fn push(&mut self, extent: Extent) -> Result<(), Reject> {
        if extent.is_empty() {
            return Ok(());
        }
        if matches!(extent, Extent::Data { len, .. } if len as usize > MAX_BLOCK_BYTES) {
            return Err(bad("data block over 1 MiB"));
        }
        self.len = self
            .len
            .checked_add(extent.len())
            .filter(|len| *len <= MAX_LEN)
            .ok_or_else(|| bad("content too long"))?;
        match (self.last.take(), extent) {
            (Some(Extent::Hole { len: a }), Extent::Hole { len: b }) => {
                // Cannot overflow: their sum is part of `self.len`, which was just bounded.
                self.last = Some(Extent::Hole {
                    len: a.saturating_add(b),
                });
            }
            (before, extent) => {
                if let Some(before) = before {
                    self.settle(before)?;
                }
                self.last = Some(extent);
            }
        }
        Ok(())
    }

    /// The root, or `None` for an empty content.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when the tree would be higher than [`MAX_HEIGHT`].
    pub fn finish(mut self) -> Result<Option<ArrayRoot>, Reject> {
        let Some(last) = self.last.take() else {
            return Ok(None);
        };
        let len = self.len;
        if last.len() == len {
            let (height, top) = match last {
                Extent::Hole { .. } => (HOLE, [0; 32]),
                Extent::Data { handle, .. } => (0, *handle.as_bytes()),
            };
            return Ok(Some(ArrayRoot { len, height, top }));
        }
        self.settle(last)?;
        let mut level = 0;
        while level < self.levels.len() {
            let single = match self.levels.get(level) {
                Some(row) if level > 0 && !row.flushed && row.entries.len() == 1 => {
                    row.entries.first().and_then(|(_, handle)| *handle)
                }
                _ => None,
            };
            if let Some(top) = single {
                let height = level as u8;
                return Ok(Some(ArrayRoot { len, height, top }));
            }
            self.flush(level)?;
            level += 1;
        }
        Err(bad("tree too high"))
    }

    fn settle(&mut self, extent: Extent) -> Result<(), Reject> {
        let handle = match extent {
            Extent::Data { handle, .. } => Some(*handle.as_bytes()),
            Extent::Hole { .. } => None,
        };
        self.put(0, extent.len(), handle)
    }

    /// Adds an entry to the row of nodes of level `row + 1`. A full row is written out only when another
    /// entry comes. Otherwise a last full node could not be recognised as the only one.
    fn put(&mut self, row: usize, len: u64, handle: Option<[u8; 32]>) -> Result<(), Reject> {
        if row > usize::from(MAX_HEIGHT) {
            return Err(bad("tree too high"));
        }
        if row >= self.levels.len() {
            self.levels.resize_with(row + 1, Row::default);
        }
        let full = self
            .levels
            .get(row)
            .is_some_and(|r| r.entries.len() >= FAN_OUT);
        if full {
            self.flush(row)?;
        }
        if let Some(r) = self.levels.get_mut(row) {
            r.entries.push((len, handle));
        }
        Ok(())
    }

    fn flush(&mut self, row: usize) -> Result<(), Reject> {
        if row >= usize::from(MAX_HEIGHT) {
            return Err(bad("tree too high"));
        }
        let Some(r) = self.levels.get_mut(row) else {
            return Ok(());
        };
        r.flushed = true;
        let entries = std::mem::take(&mut r.entries);
        let sum = entries.iter().fold(0u64, |sum, e| sum.saturating_add(e.0));
        let bytes = node_bytes(row as u8 + 1, &entries);
        let (handle, block) = self.hasher.seal::<ArrayNode>(bytes);
        (self.sink)(handle, block.bytes());
        self.put(row + 1, sum, Some(*handle.as_bytes()))
    }
}

/// Encodes a node. The caller has checked the bounds.
fn node_bytes(level: u8, entries: &[Entry]) -> Bytes {
    let mut e = Encoder::new();
    e.u8(FORMAT).u8(level).varint(entries.len() as u64);
    for (len, handle) in entries {
        e.varint(len << 1 | u64::from(handle.is_none()));
        if let Some(bytes) = handle {
            e.raw(bytes);
        }
    }
    e.finish().into()
}

#[cfg(test)]
mod tests;
