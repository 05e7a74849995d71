//! Editing. Gives the same root as building anew, at the cost of the nodes around each change.
//!
//! Works level by level, from the leaves. Around each change the entries of some old nodes, with the changes
//! merged in, run through the same [`Level`] as in building, until it starts a node where an old node starts.
//! From there on the old nodes stay. The replaced nodes are the changes of the level above. [`Editor::start`]
//! and [`Region::resynced`] say why the two ends of such a *region* are safe; docs/decisions/0004 says why
//! the rules allow it.

use bytes::Bytes;

use super::build::{Builder, check_entry};
use super::node::Item;
use super::split::{Chooser, Context, Finished, Level, Payload, Sizes};
use super::walk::{Cursor, Nodes, Place};
use super::{MIN_ENTRIES, MapRoot, Salt};
use crate::error::Reject;
use crate::handle::{Handle, Hasher, MapNode};

/// Applies `changes` (key and new value, `None` to remove; ascending keys) to the map under `base`.
///
/// The result is the root that building the changed set with the base's salt would give. The sink gets only
/// nodes that the tree did not have. Loads and writes O(changes × height) nodes; memory is proportional to
/// the changes.
///
/// # Errors
/// [`Reject::Malformed`] for changes out of order or too large; [`Reject::BadTree`] when the old tree breaks
/// a rule; any error of `nodes`.
pub fn edit<N, K, V, F>(
    hasher: &Hasher,
    base: Option<&MapRoot>,
    changes: impl IntoIterator<Item = (K, Option<V>)>,
    nodes: &N,
    sink: F,
) -> Result<Option<MapRoot>, N::Error>
where
    N: Nodes,
    K: AsRef<[u8]>,
    V: AsRef<[u8]>,
    F: FnMut(Handle<MapNode>, &Bytes),
{
    edit_sized(hasher, base, changes, nodes, Sizes::FIXED, sink)
}

pub(super) fn edit_sized<N, K, V, F>(
    hasher: &Hasher,
    base: Option<&MapRoot>,
    changes: impl IntoIterator<Item = (K, Option<V>)>,
    nodes: &N,
    sizes: Sizes,
    sink: F,
) -> Result<Option<MapRoot>, N::Error>
where
    N: Nodes,
    K: AsRef<[u8]>,
    V: AsRef<[u8]>,
    F: FnMut(Handle<MapNode>, &Bytes),
{
    let mut list: Vec<Change> = Vec::new();
    for (key, value) in changes {
        let (key, value) = (key.as_ref(), value.as_ref().map(AsRef::as_ref));
        check_entry(key, value.unwrap_or_default())?;
        if list.last().is_some_and(|before| before.key.as_ref() >= key) {
            return Err(bad("changes not sorted").into());
        }
        list.push(Change {
            key: Bytes::copy_from_slice(key),
            new: value.map(|v| New::Value(Bytes::copy_from_slice(v))),
        });
    }
    let Some(base) = base else {
        let mut builder = Builder::with_sizes(hasher, Salt::default(), sizes, 1, sink);
        for change in &list {
            if let Some(new) = &change.new {
                builder.put(0, &change.key, new.payload())?;
            }
        }
        return Ok(builder.finish()?);
    };
    let editor = Editor {
        hasher,
        base,
        nodes,
        sizes,
        sink,
    };
    editor.run(list)
}

/// A change of one level.
#[derive(Debug, Clone)]
struct Change {
    key: Bytes,
    new: Option<New>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum New {
    Value(Bytes),
    Child { handle: Handle<MapNode>, below: u64 },
}

impl New {
    fn payload(&self) -> Payload<'_> {
        match self {
            New::Value(value) => Payload::Value(value),
            New::Child { handle, below } => Payload::Child {
                handle: *handle,
                below: *below,
            },
        }
    }
}

struct Editor<'a, N, F> {
    hasher: &'a Hasher,
    base: &'a MapRoot,
    nodes: &'a N,
    sizes: Sizes,
    sink: F,
}

/// The beginning of a region.
struct Start {
    /// Old nodes from the beginning to the one that contains the first change, the last one first.
    places: Vec<Place>,
    context: Context,
}

impl<N: Nodes, F: FnMut(Handle<MapNode>, &Bytes)> Editor<'_, N, F> {
    fn run(mut self, mut changes: Vec<Change>) -> Result<Option<MapRoot>, N::Error> {
        for level in 1..=self.base.height {
            if changes.is_empty() {
                return Ok(Some(*self.base));
            }
            match self.edit_level(level, changes)? {
                Outcome::Root { handle, entries } => {
                    return Ok(Some(MapRoot {
                        handle,
                        entries,
                        height: level.saturating_sub(1),
                        salt: self.base.salt,
                    }));
                }
                Outcome::Above(above) => changes = above,
            }
        }
        if changes.is_empty() {
            return Ok(Some(*self.base));
        }
        self.finish(changes)
    }

    /// Finishes when the old root node is replaced: its replacements are the first level of the new top.
    fn finish(self, tops: Vec<Change>) -> Result<Option<MapRoot>, N::Error> {
        let tops: Vec<(Bytes, New)> = tops
            .into_iter()
            .filter_map(|change| Some((change.key, change.new?)))
            .collect();
        if let [(_, New::Child { handle, below })] = tops.as_slice() {
            return Ok(Some(MapRoot {
                handle: *handle,
                height: self.base.height,
                entries: *below,
                salt: self.base.salt,
            }));
        }
        let first = self.base.height.saturating_add(1);
        let salt = self.base.salt;
        let mut builder = Builder::with_sizes(self.hasher, salt, self.sizes, first, self.sink);
        for (key, new) in &tops {
            builder.put(0, key, new.payload())?;
        }
        Ok(builder.finish()?)
    }

    fn edit_level(&mut self, level: u8, changes: Vec<Change>) -> Result<Outcome, N::Error> {
        let mut above = Vec::new();
        let mut rest = changes.as_slice();
        let mut cursor: Option<Cursor<'_, N>> = None;
        let mut synced: Option<Bytes> = None;
        while let Some(first) = rest.first() {
            let mut at = match cursor.take() {
                Some(cursor) => cursor.reseek(&first.key)?,
                None => Cursor::seek(self.nodes, self.base, level, &first.key)?,
            };
            let mut start = self.start(&at, &first.key, synced.as_deref())?;
            let mut region = Region::new(self.base.salt, level, self.sizes, start.context);
            let all = rest.len();
            let end = loop {
                if let Some(place) = start.places.pop() {
                    rest = region.feed(&place, rest);
                } else if at.next()? {
                    rest = region.feed(at.here(), rest);
                } else {
                    break None;
                }
                self.emit(&mut region);
                if rest.len() < all
                    && let Some(index) = region.resynced()
                {
                    break Some(index);
                }
            };
            match end {
                Some(index) => {
                    synced = region.old.get(index).map(|old| old.key.clone());
                    region.old.truncate(index);
                }
                None => {
                    if let (2.., Some((handle, entries))) = (level, region.level.only_child()) {
                        return Ok(Outcome::Root { handle, entries });
                    }
                    region.level.finish();
                    self.emit(&mut region);
                }
            }
            region.report(&mut above);
            cursor = Some(at);
        }
        Ok(Outcome::Above(above))
    }

    /// Finds a node at or before the one that contains `key`, such that all nodes before it stay although
    /// entries from `key` on change. The level is cut again from the start of that node.
    ///
    /// There are four such places. The start of the level. The end of the region before (`synced`). A node
    /// that starts at a counted candidate and whose first four entries stay, because rule 2 looks no further.
    /// And the node five nodes before the change: a cut by rule 3 looks at most one window ahead, and four
    /// nodes and four entries fill a window, because each piece of a run is at least a quarter of a window
    /// long.
    fn start(
        &self,
        at: &Cursor<'_, N>,
        key: &[u8],
        synced: Option<&[u8]>,
    ) -> Result<Start, N::Error> {
        let chooser = Chooser::new(&self.base.salt, at.here().child.level, self.sizes);
        let mut left = at.clone();
        let mut places = vec![left.here().clone()];
        loop {
            let node = &left.here().node;
            let first_key = Bytes::copy_from_slice(node.key_at(0));
            let candidate = chooser.is_candidate(chooser.hash(&first_key), node.size_at(0));
            let stays = places.len() > 1 || node.key_at(MIN_ENTRIES - 1) < key;
            if !left.prev()? {
                let context = Context::default();
                return Ok(Start { places, context });
            }
            let context = context_after(&chooser, left.here());
            let counted = candidate && context.recent == 0 && stays;
            if counted || places.len() > 5 || synced == Some(first_key.as_ref()) {
                return Ok(Start { places, context });
            }
            places.push(left.here().clone());
        }
    }

    /// Computes the handles of the nodes that a region has finished, and passes new ones to the sink.
    fn emit(&mut self, region: &mut Region) {
        for node in std::mem::take(&mut region.level.done) {
            let Finished {
                first_key,
                bytes,
                below,
            } = node;
            let (handle, block) = self.hasher.seal::<MapNode>(bytes);
            let key = Bytes::from(first_key);
            let new = New::Child { handle, below };
            let known = region
                .old
                .binary_search_by(|old| old.key.cmp(&key))
                .is_ok_and(|i| region.old.get(i).is_some_and(|old| old.new == new));
            if !known {
                (self.sink)(handle, block.bytes());
            }
            region.new.push(Old { key, new });
        }
    }
}

/// The candidates among the last three entries before a node. All three are in the node before it.
fn context_after(chooser: &Chooser, before: &Place) -> Context {
    let node = &before.node;
    let mut recent = 0;
    for index in node.count().saturating_sub(MIN_ENTRIES - 1)..node.count() {
        let hash = chooser.hash(node.key_at(index));
        recent = recent << 1 | u8::from(chooser.is_candidate(hash, node.size_at(index)));
    }
    Context {
        seen: MIN_ENTRIES as u64,
        recent,
    }
}

enum Outcome {
    /// The level above has one entry, so the tree ends here.
    Root {
        handle: Handle<MapNode>,
        entries: u64,
    },
    /// Changes of the level above.
    Above(Vec<Change>),
}

/// A node and its entry in its parent.
struct Old {
    key: Bytes,
    new: New,
}

/// A stretch of a level that is cut again.
struct Region {
    level: Level,
    /// Old nodes whose entries have been read.
    old: Vec<Old>,
    /// Nodes that replace the old ones.
    new: Vec<Old>,
    /// Indexes in `old` of the nodes after the last change.
    intact: Vec<usize>,
}

impl Region {
    fn new(salt: Salt, level: u8, sizes: Sizes, context: Context) -> Region {
        Region {
            level: Level::resume(&salt, level, sizes, context),
            old: Vec::new(),
            new: Vec::new(),
            intact: Vec::new(),
        }
    }

    /// Adds the entries of an old node, with its changes; returns the changes that remain.
    fn feed<'c>(&mut self, place: &Place, mut changes: &'c [Change]) -> &'c [Change] {
        let Place { child, node } = place;
        self.intact.push(self.old.len());
        self.old.push(Old {
            key: Bytes::copy_from_slice(node.key_at(0)),
            new: New::Child {
                handle: child.handle,
                below: node.entries(),
            },
        });
        for item in node.items(&child.interval) {
            let (key, payload) = match &item {
                Item::Entry(key, value) => (key.clone(), Payload::Value(value)),
                Item::Child(below) => (
                    below.interval.lower.clone().unwrap_or_default(),
                    Payload::Child {
                        handle: below.handle,
                        below: below.entries,
                    },
                ),
            };
            changes = self.apply(changes, |change| change < key.as_ref());
            let before = changes.len();
            changes = self.apply(changes, |change| change == key.as_ref());
            if changes.len() == before {
                self.level.push(&key, payload);
            }
        }
        let upper = child.interval.upper.as_deref();
        self.apply(changes, |change| upper.is_none_or(|u| change < u))
    }

    fn apply<'c>(
        &mut self,
        mut changes: &'c [Change],
        here: impl Fn(&[u8]) -> bool,
    ) -> &'c [Change] {
        while let Some((change, rest)) = changes.split_first() {
            if !here(&change.key) {
                break;
            }
            if let Some(new) = &change.new {
                self.level.push(&change.key, new.payload());
            }
            self.intact.clear();
            changes = rest;
        }
        changes
    }

    /// The index of the old node from which on the old cuts stay: the next node begins where it begins, and
    /// the entries from there on are the old ones. The three entries before it, which rule 2 looks at, may
    /// differ. They only matter for cuts less than four entries after this one, and there are no such cuts,
    /// neither in the old level nor in the new one.
    fn resynced(&self) -> Option<usize> {
        let key = self.level.pending_key()?;
        self.intact
            .iter()
            .copied()
            .find(|index| self.old.get(*index).is_some_and(|old| old.key == key))
    }

    /// Adds the region's changes to those of the level above.
    fn report(self, above: &mut Vec<Change>) {
        let mut old = self.old.into_iter().peekable();
        let mut gone = |until: Option<&Bytes>, above: &mut Vec<Change>| {
            while let Some(node) = old.next_if(|node| until.is_none_or(|u| node.key < *u)) {
                above.push(Change {
                    key: node.key,
                    new: None,
                });
            }
            old.next_if(|node| Some(&node.key) == until)
        };
        for node in self.new {
            let replaced = gone(Some(&node.key), above);
            if replaced.is_none_or(|old| old.new != node.new) {
                above.push(Change {
                    key: node.key,
                    new: Some(node.new),
                });
            }
        }
        gone(None, above);
    }
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed {
        what: "map edit",
        why,
    }
}
