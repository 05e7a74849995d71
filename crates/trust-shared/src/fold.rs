//! Folds: the changes since a principal's last fold, put into its i-table and its directories. Relies on
//! [`super::itable`] for what these trees hold and on [`trust::tree::map`] for editing them.
//!
//! A fold has one result: whoever folds the same log up to the same position gets the same root.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::itable::{Blocks, Fold, Known, MAX_TABLE_INLINE_BYTES, Tables, Times};
use super::principal::{INumber, Name, Target};
use trust::error::Reject;
use trust::handle::{Any, Block, Handle, Hasher, Kind, MapNode};
use trust::reach::{Found, Wanted};
use trust::tree::inode::{Content, Entry, Inode, Time};
use trust::tree::map::{self, MapRoot, Nodes};

/// What has changed of a principal's files, as it is at the position of the fold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Inodes, a directory's without its entries and times; none for a file that is gone.
    pub inodes: BTreeMap<INumber, Option<Arc<Inode>>>,
    /// Entries of directories; none for a name that is gone.
    pub entries: BTreeMap<INumber, BTreeMap<Name, Option<Target>>>,
    /// Times of directories. A directory whose inode is here has its times here.
    pub times: BTreeMap<INumber, Times>,
}

impl Changes {
    /// The files that have changed, some more than once.
    fn files(&self) -> impl Iterator<Item = &INumber> {
        let files = self.inodes.keys().chain(self.entries.keys());
        files.chain(self.times.keys())
    }
}

/// Why a fold was not computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfolded {
    /// Blocks are not here. Fetch them, and fold again.
    #[error("blocks are missing")]
    Missing(Vec<Wanted>),
    /// A block of the last fold breaks a rule.
    #[error(transparent)]
    Refused(#[from] Reject),
}

/// The root directory of a volume before anything has changed it.
pub fn first_root_directory() -> Inode {
    let content = Content::Directory {
        map: None,
        opaque: false,
    };
    Inode::new(0o755, Time::default(), content)
}

/// Computes the i-table of a principal at the position `upto`.
///
/// `before` is the i-table of its last fold, and `changes` what has changed since. `sink` gets the blocks that the
/// new tree has and the old one did not have, children before their parents.
///
/// # Errors
/// [`Unfolded::Missing`] when a block of the last fold is not here; [`Unfolded::Refused`] when one breaks a rule.
pub fn fold<B: Blocks>(
    hasher: &Hasher,
    before: Option<&MapRoot>,
    changes: &Changes,
    upto: u64,
    blocks: &B,
    mut sink: impl FnMut(Kind, Handle<Any>, &Bytes),
) -> Result<Fold, Unfolded> {
    let nodes = Stored { hasher, blocks };
    let mut values: BTreeMap<INumber, Option<Vec<u8>>> = BTreeMap::new();
    let mut before_them = old_inodes(before, changes, blocks)?;
    for number in changes.files() {
        if values.contains_key(number) {
            continue;
        }
        let old = before_them.remove(number).flatten();
        let new = match changes.inodes.get(number) {
            Some(inode) => inode.as_deref().cloned(),
            None => old.clone(),
        };
        let Some(mut new) = new else {
            values.insert(*number, None);
            continue;
        };
        if let Content::Directory { map, .. } = &mut new.content {
            let entries = changes.entries.get(number);
            let edits = entries.into_iter().flatten();
            let edits = edits.map(|(name, to)| (name.as_bytes(), to.map(|to| to.encode())));
            let old = old.and_then(|inode| entries_of(&inode));
            *map = map::edit(hasher, old.as_ref(), edits, &nodes, |handle, bytes| {
                sink(Kind::Map, handle.any(), bytes);
            })?;
            new.size = new.content.size();
            if let Some(times) = changes.times.get(number) {
                new = times.on(new);
            }
        }
        let (value, block) =
            Entry::place_within(&number.to_key(), &new, hasher, MAX_TABLE_INLINE_BYTES);
        if let Some((handle, bytes)) = block {
            sink(Kind::Inode, handle.any(), &bytes);
        }
        values.insert(*number, Some(value));
    }
    let edits = values
        .iter()
        .map(|(number, value)| (number.to_key(), value.clone()));
    let root = map::edit(hasher, before, edits, &nodes, |handle, bytes| {
        sink(Kind::Map, handle.any(), bytes);
    })?;
    Ok(Fold { upto, root })
}

fn entries_of(inode: &Inode) -> Option<MapRoot> {
    match &inode.content {
        Content::Directory { map, .. } => *map,
        _ => None,
    }
}

/// The directories that change, as the last fold has them. Reads what edits will read, so that what is missing is named
/// together, and not one block for each fold that is tried.
fn old_inodes<B: Blocks>(
    before: Option<&MapRoot>,
    changes: &Changes,
    blocks: &B,
) -> Result<BTreeMap<INumber, Option<Inode>>, Unfolded> {
    let touched: BTreeSet<INumber> = changes.files().copied().collect();
    let mut tables = Tables::new(blocks);
    let keys: Vec<[u8; 12]> = touched.iter().map(INumber::to_key).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
    tables.prepare(before, &keys);
    // Of other files it does not matter what they were.
    let is_directory = |number: &INumber| {
        let inode = changes.inodes.get(number).and_then(Option::as_ref);
        inode.is_some_and(|inode| matches!(inode.content, Content::Directory { .. }))
            || changes.entries.contains_key(number)
            || changes.times.contains_key(number)
    };
    let mut found = BTreeMap::new();
    for number in touched.into_iter().filter(is_directory) {
        if tables.misses_much() {
            break;
        }
        match tables.inode(before, &number) {
            Known::Is(inode) => drop(found.insert(number, inode)),
            Known::Damaged(why) => return Err(why.into()),
            Known::NotYet => {}
        }
    }
    for (number, entries) in &changes.entries {
        if tables.misses_much() {
            break;
        }
        let inode = found.get(number).and_then(Option::as_ref);
        let names: Vec<&[u8]> = entries.keys().map(Name::as_bytes).collect();
        tables.prepare(inode.and_then(entries_of).as_ref(), &names);
    }
    match tables.unsupported {
        Some(why) => Err(why.into()),
        None if tables.missing.is_empty() => Ok(found),
        None => Err(Unfolded::Missing(tables.missing)),
    }
}

/// The blocks of the last fold, as an edit reads them.
struct Stored<'a, B> {
    hasher: &'a Hasher,
    blocks: &'a B,
}

impl<B: Blocks> Nodes for Stored<'_, B> {
    type Error = Unfolded;

    fn node(&self, handle: &Handle<MapNode>) -> Result<Block<MapNode>, Unfolded> {
        let wanted = Wanted::Map(*handle);
        match self.blocks.block(&wanted)? {
            Some(Found::Map(node)) => Ok(self.hasher.check(handle, node.as_bytes().clone())?),
            Some(_) => Err(Reject::WrongBlock.into()),
            None => Err(Unfolded::Missing(vec![wanted])),
        }
    }
}
