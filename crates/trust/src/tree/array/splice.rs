//! Editing an array tree in place. Overwrite, truncate, punch, append and insert are one operation: replacing
//! a byte range by extents. It touches the nodes along the two edges of the range, so it costs O(height)
//! nodes. Relies on [`super::Node`] for the rules of a node.
//!
//! | edit | range | extents |
//! |---|---|---|
//! | append | `len..len` | the new content; for a write beyond the end a hole first |
//! | truncate | `new_len..len` | none |
//! | overwrite | the bytes written | their content |
//! | punch | the bytes punched | one hole |
//!
//! The range may cut holes, but no data block: the tree has no bytes, so only the caller can read the rest of
//! a cut block and hash it. [`edges`](super::edges) widens a range to whole blocks and names the pieces that
//! the caller has to write again:
//!
//! ```text
//! edges(root, range) -> wider range, leftover pieces at its edges
//! content = left piece + new bytes + right piece, cut into blocks by the caller, who stores them
//! splice(root, wider range, extents of content) -> new root, new nodes
//! ```
//!
//! Shape of the result: there are never two holes in a row; each node but the last of its level has at least
//! a quarter of [`FAN_OUT`] entries; an edit at the end packs nodes from the left. So appending to, or
//! truncating, a tree made by [`super::Builder`] gives the tree that the builder would make. After other
//! edits the same content may have another root.

use std::collections::HashSet;
use std::ops::Range;

use bytes::Bytes;

use super::walk::{Nodes, Place, Tree, broken, check_range, entry};
use super::{
    ArrayRoot, Child, Entry, Extent, FAN_OUT, HOLE, MAX_HEIGHT, MAX_LEN, Node, node_bytes,
};
use crate::error::Reject;
use crate::frame::MAX_BLOCK_BYTES;
use crate::handle::{ArrayNode, Handle, Hasher};

/// Replaces the bytes of `range` by `extents`; the content after the range moves with its end. Returns the
/// new root (`None` for empty content). When everything has succeeded, passes the nodes that the tree did not
/// have to the sink, children before their parents.
///
/// # Errors
/// [`Reject::Malformed`] for a range that is outside of the content or cuts a data block, an extent over 1
/// MiB or content that is too long; [`Reject::BadTree`] when the old tree breaks a rule; any error of
/// `nodes`.
pub fn splice<N, F>(
    hasher: &Hasher,
    base: Option<&ArrayRoot>,
    range: Range<u64>,
    extents: &[Extent],
    nodes: &N,
    sink: F,
) -> Result<Option<ArrayRoot>, N::Error>
where
    N: Nodes,
    F: FnMut(Handle<ArrayNode>, &Bytes),
{
    splice_sized(hasher, base, range, extents, nodes, FAN_OUT, sink)
}

pub(super) fn splice_sized<N, F>(
    hasher: &Hasher,
    base: Option<&ArrayRoot>,
    range: Range<u64>,
    extents: &[Extent],
    nodes: &N,
    fan_out: usize,
    mut sink: F,
) -> Result<Option<ArrayRoot>, N::Error>
where
    N: Nodes,
    F: FnMut(Handle<ArrayNode>, &Bytes),
{
    check_range(base, &range)?;
    let new = entries(base, &range, extents)?;
    if range.is_empty() && new.is_empty() {
        return Ok(base.copied());
    }
    let tree = base.map(|base| Tree::new(base, nodes));
    let mut splicer = Splicer::new(hasher, tree, fan_out);
    let root = match base {
        Some(_) => splicer.run(range, new)?,
        None => splicer.grow(1, new)?,
    };
    splicer
        .made
        .iter()
        .for_each(|(handle, bytes)| sink(*handle, bytes));
    Ok(root)
}

/// The new entries of level 1. Fails when the content would be too long.
fn entries(
    base: Option<&ArrayRoot>,
    range: &Range<u64>,
    extents: &[Extent],
) -> Result<Vec<Entry>, Reject> {
    let removed = range.end.saturating_sub(range.start);
    let mut len = base.map_or(0, |base| base.len).saturating_sub(removed);
    let mut entries = Vec::new();
    for extent in extents.iter().filter(|extent| !extent.is_empty()) {
        if matches!(extent, Extent::Data { len, .. } if *len as usize > MAX_BLOCK_BYTES) {
            return Err(bad("data block over 1 MiB"));
        }
        len = len
            .checked_add(extent.len())
            .filter(|len| *len <= MAX_LEN)
            .ok_or_else(|| bad("content too long"))?;
        entries.push(entry(extent));
    }
    Ok(entries)
}

struct Splicer<'a, N> {
    hasher: &'a Hasher,
    tree: Option<Tree<'a, N>>,
    fan_out: usize,
    made: Vec<(Handle<ArrayNode>, Bytes)>,
    names: HashSet<Handle<ArrayNode>>,
}

/// The old nodes of one level, by the bytes that they cover, and the entries that replace them.
struct Region {
    range: Range<u64>,
    entries: Vec<Entry>,
}

impl<'a, N: Nodes> Splicer<'a, N> {
    fn new(hasher: &'a Hasher, tree: Option<Tree<'a, N>>, fan_out: usize) -> Self {
        Splicer {
            hasher,
            tree,
            fan_out,
            made: Vec::new(),
            names: HashSet::new(),
        }
    }

    /// Works level by level, starting from the extents. The nodes at the edges of the range give the entries
    /// beside it. Those and the new entries make new nodes, which replace the old ones on the next level.
    fn run(
        &mut self,
        mut range: Range<u64>,
        mut new: Vec<Entry>,
    ) -> Result<Option<ArrayRoot>, N::Error> {
        for level in 1..=MAX_HEIGHT {
            let Some(tree) = &mut self.tree else {
                break;
            };
            let len = tree.root.len;
            if range == (0..len) {
                return self.grow(level, new);
            }
            let mut region = tree.region(level, &range, new)?;
            tree.join_holes(level, &mut region)?;
            tree.fill(level, &mut region, self.fan_out / 4)?;
            if region.range == (0..len) {
                return self.grow(level, region.entries);
            }
            let at_end = region.range.end == len;
            new = self.pack(level, &region.entries, at_end);
            range = region.range;
        }
        Err(bad("tree too high").into())
    }

    /// Adds levels above these entries, which have all of the content below them, until one entry remains.
    fn grow(&mut self, first: u8, entries: Vec<Entry>) -> Result<Option<ArrayRoot>, N::Error> {
        let mut entries = match first {
            1 => joined(entries),
            _ => entries,
        };
        for level in first..=MAX_HEIGHT.saturating_add(1) {
            match entries.as_slice() {
                [] => return Ok(None),
                [(len, None)] => return Ok(Some(hole(*len))),
                [(len, Some(top))] => {
                    let root = ArrayRoot {
                        len: *len,
                        height: level.saturating_sub(1),
                        top: *top,
                    };
                    return self.lower(root).map(Some);
                }
                _ if level > MAX_HEIGHT => break,
                _ => entries = self.pack(level, &entries, true),
            }
        }
        Err(bad("tree too high").into())
    }

    /// Removes nodes with a single child from the top.
    fn lower(&mut self, mut root: ArrayRoot) -> Result<ArrayRoot, N::Error> {
        while root.height > 0 {
            let handle = Handle::from_bytes(root.top);
            let made = self.made.iter().rposition(|(made, _)| *made == handle);
            let only = match (made.and_then(|at| self.made.get(at)), &mut self.tree) {
                (Some((_, bytes)), _) => only_child(&Node::parse(bytes).map_err(Reject::signed)?),
                (None, Some(tree)) => only_child(tree.load(&handle, root.height, root.len)?),
                (None, None) => None,
            };
            let Some(only) = only else {
                return Ok(root);
            };
            if let Some(at) = made {
                self.made.remove(at);
            }
            root = match only {
                Child::Extent(Extent::Hole { len }) => return Ok(hole(len)),
                Child::Extent(Extent::Data { handle, len }) => ArrayRoot {
                    len: u64::from(len),
                    height: 0,
                    top: *handle.as_bytes(),
                },
                Child::Node { handle, len, level } => ArrayRoot {
                    len,
                    height: level,
                    top: *handle.as_bytes(),
                },
            };
        }
        Ok(root)
    }

    /// Makes nodes: full ones from the left at the end of the content, equally large ones elsewhere.
    fn pack(&mut self, level: u8, entries: &[Entry], at_end: bool) -> Vec<Entry> {
        let parts = entries.len().div_ceil(self.fan_out).max(1);
        let mut rest = entries;
        let mut above = Vec::with_capacity(parts);
        for part in 0..parts {
            let left = parts.saturating_sub(part);
            let count = match at_end {
                true => self.fan_out.min(rest.len()),
                false => rest.len().div_ceil(left),
            };
            let (node, others) = rest.split_at_checked(count).unwrap_or((rest, &[]));
            rest = others;
            if !node.is_empty() {
                above.push(self.make(level, node));
            }
        }
        above
    }

    fn make(&mut self, level: u8, entries: &[Entry]) -> Entry {
        let bytes = node_bytes(level, entries);
        let (handle, block) = self.hasher.seal::<ArrayNode>(bytes);
        let old = self.tree.as_ref().map(|tree| &tree.loaded);
        let known = old.is_some_and(|loaded| loaded.contains_key(&handle));
        if !known && self.names.insert(handle) {
            self.made.push((handle, block.into_bytes()));
        }
        let len = entries.iter().fold(0u64, |sum, e| sum.saturating_add(e.0));
        (len, Some(*handle.as_bytes()))
    }
}

impl<N: Nodes> Tree<'_, N> {
    /// The nodes of `level` at the edges of `range`, with `new` instead of the range.
    fn region(
        &mut self,
        level: u8,
        range: &Range<u64>,
        new: Vec<Entry>,
    ) -> Result<Region, N::Error> {
        let at_end = self.root.len.saturating_sub(1);
        let first = self.place(level, range.start.min(at_end))?;
        let last = match range.is_empty() {
            true => first.clone(),
            false => self.place(level, range.end.saturating_sub(1))?,
        };
        let mut entries = Vec::with_capacity(first.entries.len() + new.len());
        let mut start = first.start;
        for (len, handle) in first.entries {
            let end = start.saturating_add(len);
            if start < range.start {
                entries.push(kept(level, (len, handle), range.start.min(end) - start)?);
            }
            start = end;
        }
        entries.extend(new);
        let mut start = last.start;
        for (len, handle) in last.entries {
            let end = start.saturating_add(len);
            if end > range.end {
                entries.push(kept(level, (len, handle), end - range.end.max(start))?);
            }
            start = end;
        }
        if level == 1 {
            entries = joined(entries);
        }
        Ok(Region {
            range: first.start..last.end,
            entries,
        })
    }

    /// Takes neighbours into the region when a hole would lie beside one of their holes.
    fn join_holes(&mut self, level: u8, region: &mut Region) -> Result<(), N::Error> {
        if level > 1 {
            return Ok(());
        }
        let is_hole = |entry: Option<&Entry>| matches!(entry, Some((_, None)));
        if is_hole(region.entries.first()) && region.range.start > 0 {
            let before = self.place(1, region.range.start.saturating_sub(1))?;
            if is_hole(before.entries.last()) {
                region.prepend(before);
            }
        }
        if is_hole(region.entries.last()) && region.range.end < self.root.len {
            let after = self.place(1, region.range.end)?;
            if is_hole(after.entries.first()) {
                region.append(after);
            }
        }
        Ok(())
    }

    /// Takes a neighbour into the region when there are too few entries for a node that is not the last.
    fn fill(&mut self, level: u8, region: &mut Region, fewest: usize) -> Result<(), N::Error> {
        let few = !region.entries.is_empty() && region.entries.len() < fewest;
        if few && region.range.end < self.root.len {
            let after = self.place(level, region.range.end)?;
            region.append(after);
            return self.join_holes(level, region);
        }
        Ok(())
    }
}

impl Region {
    fn prepend(&mut self, before: Place) {
        let entries = std::mem::replace(&mut self.entries, before.entries);
        self.entries.extend(entries);
        self.entries = joined(std::mem::take(&mut self.entries));
        self.range.start = before.start;
    }

    fn append(&mut self, after: Place) {
        self.entries.extend(after.entries);
        self.entries = joined(std::mem::take(&mut self.entries));
        self.range.end = after.end;
    }
}

/// The part of an entry that remains when `len` of its bytes remain.
fn kept(level: u8, entry: Entry, len: u64) -> Result<Entry, Reject> {
    match entry {
        (whole, _) if whole == len => Ok(entry),
        (_, None) => Ok((len, None)),
        _ if level == 1 => Err(bad("the range cuts a data block")),
        // The level below ended at the boundary of a node.
        _ => Err(broken()),
    }
}

/// The entries with neighbouring holes merged.
fn joined(entries: Vec<Entry>) -> Vec<Entry> {
    let mut out: Vec<Entry> = Vec::with_capacity(entries.len());
    for entry in entries {
        match (out.last_mut(), entry) {
            (Some((before, None)), (len, None)) => *before = before.saturating_add(len),
            _ => out.push(entry),
        }
    }
    out
}

fn only_child(node: &Node) -> Option<Child> {
    node.child(0).filter(|_| node.count() == 1)
}

fn hole(len: u64) -> ArrayRoot {
    ArrayRoot {
        len,
        height: HOLE,
        top: [0; 32],
    }
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed {
        what: "array edit",
        why,
    }
}

#[cfg(test)]
mod tests;
