//! The map tree against its reference model, a `BTreeMap`, and against liars.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use proptest::prelude::*;

use super::split::Sizes;
use super::*;
use crate::handle::{Block, Hasher};

/// Deep trees from few entries: nodes of some hundred bytes.
pub(super) const TINY: Sizes = Sizes {
    target: 200,
    max_body: 1200,
};

/// Hardly a candidate: nearly every cut is one of an over-long run.
pub(super) const LONG_RUNS: Sizes = Sizes {
    target: 6000,
    max_body: 1200,
};

/// Nearly every entry a candidate: nearly no candidate counts.
pub(super) const CROWDED: Sizes = Sizes {
    target: 60,
    max_body: 1200,
};

pub(super) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Default, Clone)]
pub(super) struct Blocks {
    pub map: HashMap<Handle<MapNode>, Bytes>,
    /// Nodes asked for through [`Nodes`].
    pub loads: std::cell::Cell<usize>,
}

pub(super) fn hasher() -> Hasher {
    Hasher::new(&[7; 32])
}

impl Nodes for Blocks {
    type Error = Reject;

    fn node(&self, handle: &Handle<MapNode>) -> Result<Block<MapNode>, Reject> {
        self.loads.set(self.loads.get() + 1);
        self.block(handle).ok_or(Reject::WrongBlock)
    }
}

impl Blocks {
    pub fn block(&self, handle: &Handle<MapNode>) -> Option<Block<MapNode>> {
        let bytes = self.map.get(handle)?.clone();
        Some(hasher().check(handle, bytes).unwrap())
    }

    pub fn node(&self, child: &ChildRef) -> Node {
        let node = Node::decode(&self.block(&child.handle).unwrap()).unwrap();
        node.check(child).unwrap();
        node
    }

    pub fn build(&mut self, sizes: Sizes, salt: Salt, model: &Model) -> Option<MapRoot> {
        let sink = |handle, bytes: &Bytes| {
            self.map.insert(handle, bytes.clone());
        };
        let mut builder = Builder::with_sizes(&hasher(), salt, sizes, 1, sink);
        for (key, value) in model {
            builder.push(key, value).unwrap();
        }
        builder.finish().unwrap()
    }

    pub fn get(&self, root: &MapRoot, key: &[u8]) -> Option<Bytes> {
        let mut at = root.child_ref();
        loop {
            match self.node(&at).find(key, &at.interval) {
                Find::Absent => return None,
                Find::Value(value) => return Some(value),
                Find::Child(child) => at = child,
            }
        }
    }

    pub fn scan(&self, child: &ChildRef, out: &mut Model) {
        for item in self.node(child).items(&child.interval) {
            match item {
                Item::Entry(key, value) => {
                    assert!(out.insert(key.to_vec(), value.to_vec()).is_none());
                }
                Item::Child(child) => self.scan(&child, out),
            }
        }
    }
}

pub(super) fn models(entries: usize) -> impl Strategy<Value = Model> {
    let key = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..20),
        prop::collection::vec(prop::sample::select(vec![b'a', b'b']), 0..10),
    ];
    prop::collection::btree_map(key, prop::collection::vec(any::<u8>(), 0..40), 0..entries)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_tree_holds_what_was_put_into_it(model in models(600), probe in models(20)) {
        let mut blocks = Blocks::default();
        let root = blocks.build(TINY, Salt::default(), &model);
        let Some(root) = root else {
            prop_assert!(model.is_empty());
            return Ok(());
        };
        prop_assert_eq!(root.entries, model.len() as u64);
        let mut scanned = Model::new();
        blocks.scan(&root.child_ref(), &mut scanned);
        prop_assert_eq!(&scanned, &model);
        for key in model.keys().chain(probe.keys()) {
            let found = blocks.get(&root, key);
            prop_assert_eq!(found.as_deref(), model.get(key).map(Vec::as_slice));
        }
    }
}

pub(super) type Edits = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

pub(super) fn apply(model: &mut Model, edits: &Edits) {
    for (key, value) in edits {
        match value {
            Some(value) => {
                model.insert(key.clone(), value.clone());
            }
            None => {
                model.remove(key);
            }
        }
    }
}

/// Edits that hit existing keys as often as not.
fn edits(model: &Model, picks: &[(prop::sample::Index, u8, Vec<u8>)]) -> Edits {
    let keys: Vec<&Vec<u8>> = model.keys().collect();
    let mut edits = Edits::new();
    for (index, what, bytes) in picks {
        let near = keys.get(index.index(keys.len().max(1))).copied().cloned();
        let mut key = near.unwrap_or_default();
        let new = match what % 6 {
            0 | 1 => None,
            2 => Some(bytes.clone()),
            3 => {
                key.extend_from_slice(&bytes[..bytes.len().min(2)]);
                Some(bytes.clone())
            }
            4 => {
                key = bytes[..bytes.len().min(10)].to_vec();
                Some(bytes.clone())
            }
            _ => {
                key.pop();
                None
            }
        };
        edits.insert(key, new);
    }
    edits
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn an_edit_gives_the_root_of_building_anew(
        model in models(700),
        rounds in prop::collection::vec(prop::collection::vec(
            (any::<prop::sample::Index>(), any::<u8>(), prop::collection::vec(any::<u8>(), 0..40)),
            0..12,
        ), 1..4),
        salt in prop_oneof![Just(Salt::default()), any::<Salt>()],
        cut in any::<prop::sample::Index>(),
        sizes in prop::sample::select(vec![TINY, LONG_RUNS, CROWDED]),
    ) {
        let mut model = model;
        let mut blocks = Blocks::default();
        let mut root = blocks.build(sizes, salt, &model);
        for (round, picks) in rounds.iter().enumerate() {
            let mut edits = edits(&model, picks);
            if round == 1 {
                // A whole stretch goes at once.
                let keep = cut.index(model.len().max(1));
                edits.extend(model.keys().skip(keep).map(|key| (key.clone(), None)));
            }
            apply(&mut model, &edits);
            let before = blocks.clone();
            let mut fresh = Vec::new();
            root = edit::edit_sized(&hasher(), root.as_ref(), edits.clone(), &before, sizes, |h, b| {
                fresh.push((h, b.clone()));
            }).unwrap();
            blocks.map.extend(fresh);
            let mut anew = Blocks::default();
            let salt = root.map_or(salt, |root| root.salt);
            prop_assert_eq!(root, anew.build(sizes, salt, &model));
            for (handle, bytes) in &anew.map {
                prop_assert_eq!(blocks.map.get(handle), Some(bytes));
            }
        }
    }
}
