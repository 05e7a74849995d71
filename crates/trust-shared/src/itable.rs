//! The i-table: all files of a principal as a map tree, i-number → inode; directories are map trees of their own.
//! Relies on [`trust::tree::map`] for the trees and on [`trust::reach`] for wanted blocks.
//!
//! ```text
//! key of an i-table      = device u32, big-endian | counter u64, big-endian
//! value of an i-table    = inode | 0xff, handle of an inode block [32]
//! value of a directory   = 0xf0 | kind u8 | principal [32] | device u32, big-endian | counter u64, big-endian
//! fold                   = upto varint | 0, or 1 and the map root of the i-table
//! ```

use std::ops::Bound;

use super::principal::{Device, FileId, INumber, Name, Principal, Target, kind_byte, kind_of};
use trust::encode::{Decoder, Encoder};
use trust::error::Reject;
use trust::handle::{Handle, InodeBlock};
use trust::reach::{Found, Wanted};
use trust::tree::inode::{Content, Entry, Inode, Time};
use trust::tree::map::{ChildRef, Find, Item, MapRoot, Node};

/// Longest content in an inode that lies in an i-table or in a Set, bytes.
pub const MAX_TABLE_INLINE_BYTES: usize = 512;
/// Nodes of a directory that are asked for at a time, beside the one that a listing needs next.
const NODES_AHEAD: usize = 16;
/// Nodes before one that changes which an edit reads, most often.
const BEFORE: usize = 2;
/// Blocks that an edit asks for at a time, roughly.
const MOST_MISSING: usize = 256;
/// First byte of a directory's entry in a shared volume.
const SHARED: u8 = 0xf0;
const WHAT: &str = "directory entry of a shared volume";

/// All files of a principal as they were before a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fold {
    /// The position: entries before it are in the tree.
    pub upto: u64,
    /// The i-table; none without files.
    pub root: Option<MapRoot>,
}

impl Fold {
    pub(super) fn encode(&self, e: &mut Encoder) {
        e.varint(self.upto).u8(u8::from(self.root.is_some()));
        if let Some(root) = &self.root {
            root.encode(e);
        }
    }

    pub(super) fn decode(d: &mut Decoder<'_>) -> Result<Fold, Reject> {
        let upto = d.varint()?;
        let root = match d.flag()? {
            true => Some(MapRoot::decode(d)?),
            false => None,
        };
        Ok(Fold { upto, root })
    }
}

impl INumber {
    /// The key in an i-table.
    pub fn to_key(&self) -> [u8; 12] {
        let mut key = [0; 12];
        let (device, counter) = key.split_at_mut(4);
        device.copy_from_slice(&self.device.0.to_be_bytes());
        counter.copy_from_slice(&self.counter.to_be_bytes());
        key
    }

    fn decode_key(d: &mut Decoder<'_>) -> Result<INumber, Reject> {
        Ok(INumber {
            device: Device(u32::from_be_bytes(d.array()?)),
            counter: u64::from_be_bytes(d.array()?),
        })
    }
}

impl Target {
    /// The value of a directory's entry.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.u8(SHARED).u8(kind_byte(self.kind));
        e.raw(self.file.principal.as_bytes());
        e.raw(&self.file.number.to_key());
        e.finish()
    }

    /// Reads the value of a directory's entry.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for another kind of entry, or bytes that are none.
    pub fn decode(bytes: &[u8]) -> Result<Target, Reject> {
        let mut d = Decoder::new(bytes, WHAT);
        if d.u8()? != SHARED {
            return Err(d.bad("not the entry of a shared volume"));
        }
        let byte = d.u8()?;
        let kind = kind_of(byte).ok_or_else(|| d.bad("an unknown kind of file"))?;
        let principal = Principal::from_bytes(d.array()?);
        let number = INumber::decode_key(&mut d)?;
        d.finish()?;
        let file = FileId { principal, number };
        Ok(Target { file, kind })
    }
}

/// The blocks that evaluation reads. It never waits: what is not here is fetched by the caller.
pub trait Blocks {
    /// The block, if it is here.
    ///
    /// # Errors
    /// Those of [`Wanted::prove`] for a block that matches its handle and breaks a rule: a member signed it.
    fn block(&self, wanted: &Wanted) -> Result<Option<Found>, Reject>;
}

/// The answer to a question about the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Known<T> {
    /// It is this.
    Is(T),
    /// It lies in a tree that breaks a rule.
    Damaged(Reject),
    /// It depends on something that is not known yet.
    NotYet,
}

impl<T> Known<T> {
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Known<U> {
        match self {
            Known::Is(value) => Known::Is(f(value)),
            Known::Damaged(why) => Known::Damaged(why),
            Known::NotYet => Known::NotYet,
        }
    }

    pub fn then<U>(self, f: impl FnOnce(T) -> Known<U>) -> Known<U> {
        match self {
            Known::Is(value) => f(value),
            Known::Damaged(why) => Known::Damaged(why),
            Known::NotYet => Known::NotYet,
        }
    }

    fn of(result: Result<T, Reject>) -> Known<T> {
        match result {
            Ok(value) => Known::Is(value),
            Err(why) => Known::Damaged(why),
        }
    }
}

/// A node of a map, and those of some keys that lie below it.
type Part<'k, 'a> = (ChildRef, &'k [&'a [u8]]);

/// The children of a node, each with its keys.
fn parts<'k, 'a>(node: &Node, child: &ChildRef, keys: &'k [&'a [u8]]) -> Vec<Part<'k, 'a>> {
    let mut rest = keys;
    let children = node.items(&child.interval).filter_map(|item| match item {
        Item::Child(below) => Some(below),
        _ => None,
    });
    let part = |below: ChildRef| {
        let upper = below.interval.upper.as_deref();
        let here = rest.partition_point(|key| upper.is_none_or(|upper| *key < upper));
        let (here, after) = rest.split_at_checked(here).unwrap_or_default();
        rest = after;
        (below, here)
    };
    children.map(part).collect()
}

/// The nodes with keys, and those beside them.
fn around_keys<'k, 'a>(level: Vec<Part<'k, 'a>>) -> Vec<Part<'k, 'a>> {
    let has_keys: Vec<bool> = level.iter().map(|(_, keys)| !keys.is_empty()).collect();
    let is_near = |index: usize| {
        let near = has_keys.get(index.saturating_sub(1)..).unwrap_or_default();
        let first = index.min(1);
        near.iter().take(first + 1 + BEFORE).any(|has| *has)
    };
    let level = level.into_iter().enumerate();
    let near = level.filter(|(index, _)| is_near(*index));
    near.map(|(_, part)| part).collect()
}

/// Looks into i-tables and directories, and notes the blocks that are not here.
pub(super) struct Tables<'a, B> {
    pub blocks: &'a B,
    pub missing: Vec<Wanted>,
    /// A block of a later format. Nothing is decided then.
    pub unsupported: Option<Reject>,
}

impl<'a, B: Blocks> Tables<'a, B> {
    pub fn new(blocks: &'a B) -> Self {
        Tables {
            blocks,
            missing: Vec::new(),
            unsupported: None,
        }
    }

    fn block(&mut self, wanted: Wanted) -> Known<Found> {
        match self.blocks.block(&wanted) {
            Ok(Some(found)) => Known::Is(found),
            Ok(None) => {
                if !self.missing.contains(&wanted) {
                    self.missing.push(wanted);
                }
                Known::NotYet
            }
            Err(why @ Reject::Unsupported { .. }) => {
                self.unsupported = Some(why);
                Known::NotYet
            }
            Err(why) => Known::Damaged(why),
        }
    }

    /// So much is missing that it is fetched first.
    pub fn misses_much(&self) -> bool {
        self.missing.len() >= MOST_MISSING
    }

    /// Looks at the nodes of a map that an edit of these keys reads, so that those which are not here are fetched
    /// together: level by level those of the keys, and [`BEFORE`] nodes before and one after them, also below another
    /// parent. An edit seldom reads more; that it asks for itself, one after the other. The keys ascend.
    pub fn prepare(&mut self, root: Option<&MapRoot>, keys: &[&[u8]]) {
        let mut level: Vec<(ChildRef, &[&[u8]])> = Vec::new();
        level.extend(root.map(|root| (root.child_ref(), keys)));
        while !level.is_empty() {
            let mut below = Vec::new();
            for (child, keys) in level {
                if self.misses_much() {
                    return;
                }
                // The edit tells what is wrong with a node.
                if let Known::Is(node) = self.node(&child) {
                    below.extend(parts(&node, &child, keys));
                }
            }
            level = around_keys(below);
        }
    }

    /// A node of a map, which is what its parent says.
    fn node(&mut self, child: &ChildRef) -> Known<Node> {
        let found = self.block(Wanted::Map(child.handle));
        found.then(|found| match found {
            Found::Map(node) => Known::of(node.check(child).map(|()| node)),
            _ => Known::Damaged(Reject::WrongBlock),
        })
    }

    /// The value of a key in a map.
    fn find(&mut self, root: Option<&MapRoot>, key: &[u8]) -> Known<Option<bytes::Bytes>> {
        let Some(root) = root else {
            return Known::Is(None);
        };
        let mut child = root.child_ref();
        loop {
            let node = match self.node(&child) {
                Known::Is(node) => node,
                Known::Damaged(why) => return Known::Damaged(why),
                Known::NotYet => return Known::NotYet,
            };
            match node.find(key, &child.interval) {
                Find::Absent => return Known::Is(None),
                Find::Value(value) => return Known::Is(Some(value)),
                Find::Child(below) => child = below,
            }
        }
    }

    /// The inode of a file, a directory's with its entries.
    pub fn inode(&mut self, table: Option<&MapRoot>, number: &INumber) -> Known<Option<Inode>> {
        let value = self.find(table, &number.to_key());
        value.then(|value| {
            let Some(value) = value else {
                return Known::Is(None);
            };
            match Entry::decode_within(&value, MAX_TABLE_INLINE_BYTES) {
                Ok(Entry::Inode(inode)) => Known::Is(Some(inode)),
                Ok(Entry::Block(handle)) => self.inode_block(handle).map(Some),
                Err(why @ Reject::Unsupported { .. }) => {
                    self.unsupported = Some(why);
                    Known::NotYet
                }
                Err(why) => Known::Damaged(why.signed()),
            }
        })
    }

    /// The inode in a block of its own.
    pub fn inode_block(&mut self, handle: Handle<InodeBlock>) -> Known<Inode> {
        self.block(Wanted::Inode(handle)).then(|found| match found {
            Found::Inode(inode) => Known::Is(inode),
            _ => Known::Damaged(Reject::WrongBlock),
        })
    }

    /// Where a name leads. No directory has no entries.
    pub fn entry(
        &mut self,
        table: Option<&MapRoot>,
        directory: &INumber,
        name: &Name,
    ) -> Known<Option<Target>> {
        let map = self.directory(table, directory);
        map.then(|map| self.find(map.as_ref(), name.as_bytes()))
            .then(|value| {
                let target = value.map(|value| Target::decode(&value)).transpose();
                Known::of(target.map_err(Reject::signed))
            })
    }

    /// The names of a directory after one of them, ascending: `most`, or all that there are.
    pub fn names(
        &mut self,
        table: Option<&MapRoot>,
        directory: &INumber,
        after: Option<&Name>,
        most: usize,
    ) -> Known<Vec<(Name, Target)>> {
        let map = match self.directory(table, directory) {
            Known::Is(map) => map,
            Known::Damaged(why) => return Known::Damaged(why),
            Known::NotYet => return Known::NotYet,
        };
        let from = after.map_or(Bound::Unbounded, |name| Bound::Excluded(name.as_bytes()));
        let mut children: Vec<ChildRef> = map.iter().map(MapRoot::child_ref).collect();
        let mut names = Vec::new();
        while let Some(child) = children.pop() {
            if names.len() >= most {
                break;
            }
            let node = match self.node(&child) {
                Known::Is(node) => node,
                Known::Damaged(why) => return Known::Damaged(why),
                Known::NotYet => {
                    // The next nodes will be needed too.
                    for next in children.iter().rev().take(NODES_AHEAD) {
                        self.node(next);
                    }
                    return Known::NotYet;
                }
            };
            let below = children.len();
            for item in node.iter_from(from, &child.interval) {
                match item {
                    Item::Child(child) => children.push(child),
                    Item::Entry(name, value) => match named(&name, &value) {
                        Ok(entry) => names.push(entry),
                        Err(why) => return Known::Damaged(why.signed()),
                    },
                }
            }
            if let Some(new) = children.get_mut(below..) {
                new.reverse();
            }
        }
        names.truncate(most);
        Known::Is(names)
    }

    /// The entries of a directory as a tree.
    pub fn directory(
        &mut self,
        table: Option<&MapRoot>,
        directory: &INumber,
    ) -> Known<Option<MapRoot>> {
        self.inode(table, directory)
            .map(|inode| match inode.map(|inode| inode.content) {
                Some(Content::Directory { map, .. }) => map,
                _ => None,
            })
    }
}

fn named(name: &[u8], value: &[u8]) -> Result<(Name, Target), Reject> {
    Ok((Name::new(name)?, Target::decode(value)?))
}

/// The times of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// Last change of its names, or what a program set.
    pub mtime: Time,
    /// Last change of names, attributes or times.
    pub ctime: Option<Time>,
}

impl Times {
    /// The inode of a directory with these times.
    pub fn on(self, inode: Inode) -> Inode {
        let Times { mtime, ctime } = self;
        Inode {
            mtime,
            ctime,
            ..inode
        }
    }

    pub(super) fn of(inode: &Inode) -> Times {
        Times {
            mtime: inode.mtime,
            ctime: inode.ctime,
        }
    }

    /// The times of a directory. `touched`: the last Touch since its principal's last fold, by position; `set`: the same
    /// of its attributes, with their ctime; `folded`: the times in that fold. The ctime is that of the later one, of a
    /// Touch where both are in one entry.
    pub(super) fn latest(
        touched: Option<(u64, Times)>,
        set: Option<(u64, Option<Time>)>,
        folded: Times,
    ) -> Times {
        let mtime = touched.map_or(folded.mtime, |(_, times)| times.mtime);
        let ctime = match (touched, set) {
            (Some((touched, times)), Some((set, _))) if touched >= set => times.ctime,
            (_, Some((_, ctime))) => ctime,
            (Some((_, times)), None) => times.ctime,
            (None, None) => folded.ctime,
        };
        Times { mtime, ctime }
    }
}

/// The inode of a file as guards look at it: of a directory, without its entries and without times. Those are values of
/// their own, so that a change of names does not meet a change of attributes.
pub(super) fn attributes(mut inode: Inode) -> Inode {
    if let Content::Directory { map, .. } = &mut inode.content {
        *map = None;
        inode.size = 0;
        inode.mtime = Time::default();
        inode.ctime = None;
    }
    inode
}
