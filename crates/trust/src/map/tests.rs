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

pub(super) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Default, Clone)]
pub(super) struct Blocks {
    pub map: HashMap<Handle<MapNode>, Bytes>,
}

pub(super) fn hasher() -> Hasher {
    Hasher::new(&[7; 32])
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
