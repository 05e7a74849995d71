//! A node of a map tree: its bytes, and the check against its parent. Relies on [`crate::encode`].
//!
//! ```text
//! node     = format u8 (0) | level u8 | count varint | entry * count
//! leaf     = key length varint | key | value length varint | value          level 1
//! interior = key length varint | key | handle [32] | entries below varint   level 2 to 16
//! ```
//!
//! The interval check makes absence provable. A lookup and a scan of one root reach the same nodes, and no
//! node can hold a key that belongs to another part of the tree.

use std::ops::{Bound, Range};

use bytes::Bytes;

use super::{
    FORMAT, MAX_ENTRY_BYTES, MAX_HEIGHT, MAX_KEY_BYTES, MAX_NODE_BYTES, MIN_ENTRIES, WHAT,
};
use crate::encode::{Decoder, varint_len};
use crate::error::Reject;
use crate::handle::{Block, Handle, MapNode};

/// The keys that belong to a node, inherited from the root: `lower <= key < upper`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interval {
    /// The node's first key, as its parent says; `None` for the root only.
    pub lower: Option<Bytes>,
    /// The first key of the next node; `None` when there is no next node.
    pub upper: Option<Bytes>,
}

impl Interval {
    /// All keys: the root's interval.
    pub fn everything() -> Interval {
        Interval {
            lower: None,
            upper: None,
        }
    }

    /// Whether `key` lies inside.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.lower.as_ref().is_none_or(|l| l.as_ref() <= key)
            && self.upper.as_ref().is_none_or(|u| key < u.as_ref())
    }
}

/// The claims of a parent about a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildRef {
    /// The node.
    pub handle: Handle<MapNode>,
    /// Its level.
    pub level: u8,
    /// Entries of the map below it.
    pub entries: u64,
    /// The keys that belong to it.
    pub interval: Interval,
}

/// The result of looking for a key in a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Find {
    /// The map does not hold it.
    Absent,
    /// The map holds it with this value.
    Value(Bytes),
    /// The search continues in this node.
    Child(ChildRef),
}

/// One entry of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Of a leaf: key and value.
    Entry(Bytes, Bytes),
    /// Of an interior node.
    Child(ChildRef),
}

/// A decoded node: canonical and sorted, but not yet compared with its parent's claims ([`Node::check`]).
/// Keys and values share the block's memory.
#[derive(Debug, Clone)]
pub struct Node {
    bytes: Bytes,
    level: u8,
    slots: Vec<Slot>,
    /// Entries below each child; empty in a leaf.
    counts: Vec<u64>,
    entries: u64,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    key_start: u32,
    key_len: u16,
    /// Where the value or the handle begins.
    value_start: u32,
    value_len: u16,
}

impl Node {
    /// Decodes a node whose bytes match their handle.
    ///
    /// # Errors
    /// [`Reject::BadTree`] unless it is canonical: at most 64 KiB, entries at most 4 KiB, keys ascending and
    /// each once, and counts whose sum does not overflow.
    pub fn decode(block: &Block<MapNode>) -> Result<Node, Reject> {
        Node::parse(block.bytes()).map_err(Reject::signed)
    }

    fn parse(bytes: &Bytes) -> Result<Node, Reject> {
        let mut d = Decoder::new(bytes, WHAT);
        if bytes.len() > MAX_NODE_BYTES {
            return Err(d.bad("over 64 KiB"));
        }
        d.format(FORMAT)?;
        let level = d.u8()?;
        if !(1..=MAX_HEIGHT).contains(&level) {
            return Err(d.bad("impossible level"));
        }
        // An entry takes at least two bytes.
        let count = d.bounded(bytes.len() as u64 / 2, "more entries than bytes")?;
        if count == 0 {
            return Err(d.bad("no entries"));
        }
        let mut node = Node {
            bytes: bytes.clone(),
            level,
            slots: Vec::with_capacity(count as usize),
            counts: Vec::with_capacity(if level > 1 { count as usize } else { 0 }),
            entries: 0,
        };
        node.parse_entries(count, &mut d)?;
        d.finish()?;
        Ok(node)
    }

    fn parse_entries(&mut self, count: u64, d: &mut Decoder<'_>) -> Result<(), Reject> {
        let total = self.bytes.len();
        let mut before: Option<&[u8]> = None;
        for _ in 0..count {
            let start = total - d.remaining();
            let key = d.bytes(MAX_KEY_BYTES)?;
            let key_end = total - d.remaining();
            if before.is_some_and(|b| b >= key) {
                return Err(d.bad("keys not sorted"));
            }
            before = Some(key);
            let (value_len, value_start, below) = if self.level == 1 {
                let value = d.bytes(MAX_ENTRY_BYTES)?;
                let end = total - d.remaining();
                (value.len(), end.saturating_sub(value.len()), 1)
            } else {
                let start = total - d.remaining();
                (d.raw(32)?.len(), start, d.varint()?)
            };
            if below == 0 {
                return Err(d.bad("a child without entries"));
            }
            if total - d.remaining() - start > MAX_ENTRY_BYTES {
                return Err(d.bad("entry over 4 KiB"));
            }
            self.entries = self
                .entries
                .checked_add(below)
                .ok_or_else(|| d.bad("entry count overflows"))?;
            if self.level > 1 {
                self.counts.push(below);
            }
            self.slots.push(Slot {
                key_start: key_end.saturating_sub(key.len()) as u32,
                key_len: key.len() as u16,
                value_start: value_start as u32,
                value_len: value_len as u16,
            });
        }
        Ok(())
    }

    /// Checks that the node is what its parent claims.
    ///
    /// # Errors
    /// [`Reject::BadTree`] when level, number of entries or first key differ, when a key is outside of the
    /// inherited interval, or when the node has fewer entries than the boundary rules allow.
    pub fn check(&self, promised: &ChildRef) -> Result<(), Reject> {
        let root = promised.interval.lower.is_none();
        let fewest = match (root, self.level) {
            (true, 1) => 1,
            (true, _) => 2,
            (false, _) => MIN_ENTRIES,
        };
        let first = self.key_at(0);
        let last = self.key_at(self.slots.len().saturating_sub(1));
        let why = if self.level != promised.level {
            "node of another level than its parent says"
        } else if self.slots.len() < fewest {
            "node with too few entries"
        } else if self.entries != promised.entries {
            "node with another number of entries than its parent says"
        } else if promised
            .interval
            .lower
            .as_deref()
            .is_some_and(|l| l != first)
        {
            "separator is not the first key of the child"
        } else if !promised.interval.contains(last) {
            "key outside the interval of its node"
        } else {
            return Ok(());
        };
        Err(Reject::BadTree { what: WHAT, why })
    }

    /// Looks for `key` among the entries; `interval` is the node's own.
    pub fn find(&self, key: &[u8], interval: &Interval) -> Find {
        let after = self.first_after(key);
        let Some(index) = after.checked_sub(1) else {
            return Find::Absent;
        };
        match self.item(index, interval) {
            Some(Item::Child(child)) => Find::Child(child),
            Some(Item::Entry(found, value)) if found == key => Find::Value(value),
            _ => Find::Absent,
        }
    }

    /// The node's level; 1 is a leaf.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Number of entries in this node.
    pub fn count(&self) -> usize {
        self.slots.len()
    }

    /// Entries of the map below this node.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Memory that the decoded node holds, for caches.
    pub fn weight_bytes(&self) -> usize {
        size_of::<Node>()
            + self.bytes.len()
            + self.slots.capacity() * size_of::<Slot>()
            + self.counts.capacity() * size_of::<u64>()
    }

    /// The entry at `index`; `interval` is the node's own.
    pub fn item(&self, index: usize, interval: &Interval) -> Option<Item> {
        let slot = self.slots.get(index)?;
        let key = self.share(slot.key_range());
        let value = self.share(slot.value_range());
        if self.level == 1 {
            return Some(Item::Entry(key, value));
        }
        let next = index.checked_add(1).and_then(|i| self.slots.get(i));
        Some(Item::Child(ChildRef {
            handle: Handle::from_bytes(value.as_ref().try_into().ok()?),
            level: self.level.checked_sub(1)?,
            entries: *self.counts.get(index)?,
            interval: Interval {
                lower: Some(key),
                upper: match next {
                    Some(slot) => Some(self.share(slot.key_range())),
                    None => interval.upper.clone(),
                },
            },
        }))
    }

    /// All entries in order; `interval` is the node's own.
    pub fn items<'a>(&'a self, interval: &'a Interval) -> impl Iterator<Item = Item> + 'a {
        self.iter_from(Bound::Unbounded, interval)
    }

    /// The entries from a key on: in a leaf the entries at or after it, in an interior node the children that
    /// may hold such entries.
    pub fn iter_from<'a>(
        &'a self,
        from: Bound<&[u8]>,
        interval: &'a Interval,
    ) -> impl Iterator<Item = Item> + 'a {
        let first = match (from, self.level) {
            (Bound::Unbounded, _) => 0,
            (Bound::Included(key), 1) => self.first_at(key),
            (Bound::Excluded(key), 1) => self.first_after(key),
            (Bound::Included(key) | Bound::Excluded(key), _) => self.covering(key),
        };
        (first..self.slots.len()).filter_map(move |i| self.item(i, interval))
    }

    /// The key at `index` (empty beyond the end).
    pub(super) fn key_at(&self, index: usize) -> &[u8] {
        self.slots
            .get(index)
            .map_or(&[], |slot| self.view(slot.key_range()))
    }

    /// The encoded node, as [`Nodes`](super::Nodes) return it to an edit.
    pub fn as_bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The encoded node.
    pub(super) fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Encoded size of the entry at `index`, bytes.
    pub(super) fn size_at(&self, index: usize) -> usize {
        let Some(slot) = self.slots.get(index) else {
            return 0;
        };
        let key = varint_len(u64::from(slot.key_len)) + usize::from(slot.key_len);
        let below = self.counts.get(index).copied();
        let length = varint_len(below.unwrap_or(u64::from(slot.value_len)));
        key + usize::from(slot.value_len) + length
    }

    /// The index of the child whose range contains `key`; the first for keys before all.
    pub(super) fn covering(&self, key: &[u8]) -> usize {
        self.first_after(key).saturating_sub(1)
    }

    fn first_at(&self, key: &[u8]) -> usize {
        self.slots
            .partition_point(|slot| self.view(slot.key_range()) < key)
    }

    fn first_after(&self, key: &[u8]) -> usize {
        self.slots
            .partition_point(|slot| self.view(slot.key_range()) <= key)
    }

    fn view(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or(&[])
    }

    fn share(&self, range: Range<usize>) -> Bytes {
        self.bytes.slice_ref(self.view(range))
    }
}

impl Slot {
    fn key_range(&self) -> Range<usize> {
        let start = self.key_start as usize;
        start..start + usize::from(self.key_len)
    }

    fn value_range(&self) -> Range<usize> {
        let start = self.value_start as usize;
        start..start + usize::from(self.value_len)
    }
}
