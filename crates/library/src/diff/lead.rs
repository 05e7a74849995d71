//! Compares directories before the comparison comes to them, so that it finds their nodes in memory: two versions far
//! away are compared in about as many round trips as their trees are deep, and not in one for each directory.
//!
//! It finds which directories differ as the comparison does, and fetches nothing else. The directories that the comparison
//! wants first are compared first, many in one wave of requests. What it brings is verified like any block. An error is
//! dropped: the comparison meets the block too and reports it. Bounds: nodes that the comparison has not passed, nodes
//! of one directory, and directories that wait.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::future::join_all;
use reader::{Blocks, Fetch};
use tokio::sync::Notify;
use trust::inode::Entry;
use trust::map::{Diff, Node};
use trust::{Handle, InodeBlock, MapNode};

use super::pair::{Pair, below};
use crate::path::join;

/// Most nodes of one wave.
const WAVE_NODES: usize = 1024;
/// Most nodes of one request.
const REQUEST_NODES: usize = 256;
/// Nodes of directories that the comparison has not passed, bytes.
const MOST_AHEAD_BYTES: usize = 16 << 20;
/// Most nodes of one directory. The comparison itself fetches those of a larger one many at a time.
const MOST_NODES: usize = 256;
/// Most directories that wait. Those that the comparison wants last are forgotten; it meets them again.
const MAX_WAITING: usize = 1 << 14;

/// What runs before a comparison.
pub(super) struct Lead<'a> {
    blocks: &'a Blocks,
    most_bytes: usize,
    /// The comparison is here.
    at: Mutex<Place>,
    moved: Notify,
}

/// Orders directories as the comparison comes to them: names from the top, each with a zero behind it.
type Place = Vec<u8>;

/// Work that is known.
#[derive(Default)]
struct Known {
    waiting: BTreeMap<Place, Pair>,
    open: BTreeMap<Place, Open>,
    /// Nodes of directories that the comparison has not passed, bytes.
    ahead: BTreeMap<Place, usize>,
}

/// Two directories that are being compared.
struct Open {
    path: Bytes,
    diff: Diff,
    nodes: usize,
}

/// Two entries of one name.
struct Change {
    path: Bytes,
    old: Option<Entry>,
    new: Option<Entry>,
}

fn place_of(path: &[u8]) -> Place {
    let zero = |byte: &u8| if *byte == b'/' { 0 } else { *byte };
    let mut place: Place = path.iter().map(zero).collect();
    if !place.is_empty() {
        place.push(0);
    }
    place
}

impl<'a> Lead<'a> {
    pub(super) fn new(blocks: &'a Blocks) -> Lead<'a> {
        let (_, cache_bytes) = blocks.memory_bytes();
        let share = usize::try_from(cache_bytes / 4).unwrap_or(usize::MAX);
        Lead {
            blocks,
            most_bytes: MOST_AHEAD_BYTES.min(share),
            at: Mutex::default(),
            moved: Notify::new(),
        }
    }

    /// The comparison has come to this directory.
    pub(super) fn reached(&self, path: &[u8]) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = place_of(path);
        self.moved.notify_one();
    }

    fn at(&self) -> Place {
        let at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        at.clone()
    }

    /// Compares what is below `top`, before the comparison. Ends when it knows no directory any more.
    pub(super) async fn run(&self, top: Pair, how: impl Fn() -> Fetch) {
        let mut known = Known::default();
        known.waiting.insert(place_of(&top.path), top);
        loop {
            known.pass(&self.at());
            if known.waiting.is_empty() && known.open.is_empty() {
                return;
            }
            let wanted = known.wanted(self.most_bytes);
            if wanted.is_empty() {
                self.moved.notified().await;
                continue;
            }
            let nodes = self.fetch::<MapNode>(&wanted, &how).await;
            let mut changes = known.supply(&wanted, &nodes);
            let inodes: HashSet<Handle<InodeBlock>> = changes
                .iter()
                .flat_map(|change| [&change.old, &change.new])
                .filter_map(|entry| match entry {
                    Some(Entry::Block(handle)) => Some(*handle),
                    _ => None,
                })
                .collect();
            let inodes: Vec<_> = inodes.into_iter().collect();
            let inodes = self.fetch(&inodes, &how).await;
            for change in &mut changes {
                for entry in [&mut change.old, &mut change.new] {
                    if let Some(Entry::Block(handle)) = entry {
                        let inode = inodes.get(handle.as_bytes());
                        *entry = inode.map(|inode| Entry::Inode(inode.as_ref().clone()));
                    }
                }
            }
            known.add(changes);
        }
    }

    /// Those of the blocks that come.
    async fn fetch<K: reader::Decode>(
        &self,
        handles: &[Handle<K>],
        how: impl Fn() -> Fetch,
    ) -> HashMap<[u8; 32], K::Decoded> {
        let requests = handles.chunks(REQUEST_NODES);
        let requests = requests.map(|some| {
            let how = how();
            async move { (some, self.blocks.get_many(some, how).await) }
        });
        let mut fetched = HashMap::new();
        for (some, blocks) in join_all(requests).await {
            let names = some.iter().map(|handle| *handle.as_bytes());
            fetched.extend(names.zip(blocks.unwrap_or_default()));
        }
        fetched
    }
}

impl Known {
    /// Forgets what the comparison has passed.
    fn pass(&mut self, at: &Place) {
        fn drop_before<T>(map: &mut BTreeMap<Place, T>, at: &Place) {
            while let Some(first) = map.first_entry() {
                if first.key() >= at {
                    break;
                }
                first.remove();
            }
        }
        drop_before(&mut self.waiting, at);
        drop_before(&mut self.open, at);
        drop_before(&mut self.ahead, at);
    }

    /// The nodes that the next directories need; none if there is no room for more.
    fn wanted(&mut self, most_bytes: usize) -> Vec<Handle<MapNode>> {
        if self.ahead.values().sum::<usize>() >= most_bytes {
            return Vec::new();
        }
        let mut wanted = Vec::new();
        for open in self.open.values() {
            wanted.extend(open.diff.wants());
        }
        while wanted.len() < WAVE_NODES
            && let Some((place, pair)) = self.waiting.pop_first()
        {
            let diff = Diff::new(pair.old.as_ref(), pair.new.as_ref());
            if diff.is_done() {
                continue;
            }
            wanted.extend(diff.wants());
            let (path, nodes) = (pair.path, 0);
            self.open.insert(place, Open { path, diff, nodes });
        }
        let mut seen = HashSet::new();
        wanted.retain(|handle| seen.insert(*handle));
        wanted.truncate(WAVE_NODES);
        wanted
    }

    /// Gives the comparisons what they want, as far as it was `asked` for. One whose node did not come is given up. Gives
    /// the changes that are known now.
    fn supply(
        &mut self,
        asked: &[Handle<MapNode>],
        nodes: &HashMap<[u8; 32], Arc<Node>>,
    ) -> Vec<Change> {
        let asked: HashSet<_> = asked.iter().collect();
        let mut changes = Vec::new();
        let ahead = &mut self.ahead;
        self.open.retain(|place, open| {
            for handle in open.diff.wants() {
                if !asked.contains(&handle) {
                    continue;
                }
                let Some(node) = nodes.get(handle.as_bytes()) else {
                    return false;
                };
                if open.diff.supply_node(&handle, node).is_err() {
                    return false;
                }
                open.nodes += 1;
                *ahead.entry(place.clone()).or_default() += node.weight_bytes();
            }
            while let Some(found) = open.diff.next_change() {
                let entry = |value: Option<Bytes>| value.and_then(|v| Entry::decode(&v).ok());
                changes.push(Change {
                    path: join(&open.path, &found.key),
                    old: entry(found.old),
                    new: entry(found.new),
                });
            }
            !open.diff.is_done() && open.nodes < MOST_NODES
        });
        changes
    }

    /// Adds the directories that these changes lead to.
    fn add(&mut self, changes: Vec<Change>) {
        for Change { path, old, new } in changes {
            let inode = |entry| match entry {
                Some(Entry::Inode(inode)) => Some(inode),
                _ => None,
            };
            let (old, new) = (inode(old), inode(new));
            if let Some(pair) = below(path, old.as_ref(), new.as_ref()) {
                self.waiting.insert(place_of(&pair.path), pair);
            }
        }
        while self.waiting.len() > MAX_WAITING {
            self.waiting.pop_last();
        }
    }
}

#[cfg(test)]
mod tests {
    use trust::inode::{Content, Inode, Time};
    use trust::map::MapRoot;

    use super::*;

    fn root(number: usize) -> MapRoot {
        let mut handle = [0; 32];
        handle[..8].copy_from_slice(&number.to_le_bytes());
        MapRoot {
            handle: Handle::from_bytes(handle),
            height: 1,
            entries: 1,
            salt: Default::default(),
        }
    }

    #[test]
    fn nodes_that_the_comparison_has_not_passed_are_bounded() {
        let mut known = Known::default();
        let path = Bytes::from_static(b"b");
        let (old, new) = (None, Some(root(1)));
        known
            .waiting
            .insert(place_of(&path), Pair { path, old, new });
        known.ahead.insert(place_of(b"a"), 100);
        assert_eq!(known.wanted(100), []);
        // The comparison has passed it.
        known.pass(&place_of(b"a-"));
        assert_eq!(known.wanted(100), [root(1).handle]);
    }

    #[test]
    fn directories_that_wait_are_bounded_and_the_nearest_stay() {
        let mut known = Known::default();
        let changes = (0..MAX_WAITING + 10).rev().map(|number| {
            let content = Content::Directory {
                map: Some(root(number)),
                opaque: false,
            };
            let inode = Inode::new(0o755, Time::default(), content);
            Change {
                path: format!("{number:08}").into(),
                old: None,
                new: Some(Entry::Inode(inode)),
            }
        });
        known.add(changes.collect());
        assert_eq!(known.waiting.len(), MAX_WAITING);
        assert!(known.waiting.contains_key(&place_of(b"00000000")));
        assert_eq!(known.wanted(1).len(), WAVE_NODES);
    }

    #[test]
    fn places_are_in_the_order_of_the_comparison() {
        let order = ["", "a", "a/b", "a/b/c", "a/c", "a b", "a-", "a.b/c", "ab"];
        let places: Vec<Place> = order.iter().map(|path| place_of(path.as_bytes())).collect();
        assert!(places.is_sorted(), "{places:?}");
    }
}
