//! The map tree against its reference model, a `BTreeMap`, and against malformed trees.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use proptest::prelude::*;

use super::split::Sizes;
use super::*;
use crate::handle::{Block, Hasher};

mod attacks;

/// Deep trees from few entries: nodes of a few hundred bytes.
pub(super) const TINY: Sizes = Sizes {
    target: 200,
    max_body: 1200,
};

/// Almost no candidates: nearly every cut is in an over-long run.
pub(super) const LONG_RUNS: Sizes = Sizes {
    target: 6000,
    max_body: 1200,
};

/// Nearly every entry is a candidate, so nearly no candidate counts.
pub(super) const CROWDED: Sizes = Sizes {
    target: 60,
    max_body: 1200,
};

pub(super) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Default, Clone)]
pub(super) struct Blocks {
    pub map: HashMap<Handle<MapNode>, Bytes>,
    /// Number of nodes loaded through [`Nodes`].
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
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

    #[test]
    fn map_returns_the_entries_that_were_added(model in models(600), probe in models(20)) {
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

/// Edits of which about half hit existing keys.
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
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases * 2))]

    #[test]
    fn an_edit_gives_the_root_of_building_anew(
        model in models(700),
        rounds in prop::collection::vec(prop::collection::vec(
            (any::<prop::sample::Index>(), any::<u8>(), prop::collection::vec(any::<u8>(), 0..40)),
            0..30,
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
                // Removes a whole stretch at once.
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

/// All changes between two maps, and how many nodes were fetched to find them.
fn diff(blocks: &Blocks, old: Option<&MapRoot>, new: Option<&MapRoot>) -> (Vec<Change>, usize) {
    let mut diff = Diff::new(old, new);
    let (mut changes, mut fetched) = (Vec::new(), 0);
    while !diff.is_done() {
        let mut wants = diff.wants();
        // Answers come in reverse order.
        wants.reverse();
        assert!(!wants.is_empty());
        for handle in wants {
            fetched += 1;
            diff.supply(&handle, &blocks.block(&handle).unwrap())
                .unwrap();
        }
        while let Some(change) = diff.next_change() {
            changes.push(change);
        }
    }
    (changes, fetched)
}

fn model_diff(old: &Model, new: &Model) -> Vec<Change> {
    let keys: std::collections::BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let value = |model: &Model, key: &Vec<u8>| model.get(key).cloned().map(Bytes::from);
    keys.into_iter()
        .filter(|key| old.get(*key) != new.get(*key))
        .map(|key| Change {
            key: key.clone().into(),
            old: value(old, key),
            new: value(new, key),
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases * 6 / 5))]

    #[test]
    fn diff_equals_the_difference_of_the_models(
        model in models(700),
        other in models(30),
        picks in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<u8>(), prop::collection::vec(any::<u8>(), 0..40)),
            0..12,
        ),
        salt in prop_oneof![Just(Salt::default()), any::<Salt>()],
        sizes in prop::sample::select(vec![TINY, LONG_RUNS, CROWDED]),
        near in any::<bool>(),
    ) {
        let mut changed = if near { model.clone() } else { other };
        apply(&mut changed, &edits(&model, &picks));
        let mut blocks = Blocks::default();
        let old = blocks.build(sizes, Salt::default(), &model);
        let new = blocks.build(sizes, salt, &changed);
        let none = Model::new();
        let pairs = [
            (old, new, &model, &changed),
            (new, old, &changed, &model),
            (None, old, &none, &model),
            (old, None, &model, &none),
        ];
        for (a, b, m, n) in pairs {
            let (changes, _) = diff(&blocks, a.as_ref(), b.as_ref());
            prop_assert_eq!(changes, model_diff(m, n));
        }
    }

    #[test]
    fn map_proof_shows_only_presence_or_absence(
        model in models(300),
        probe in models(10),
        at in any::<prop::sample::Index>(),
        mask in 1..=255u8,
    ) {
        let mut blocks = Blocks::default();
        let Some(root) = blocks.build(TINY, Salt::default(), &model) else {
            return Ok(());
        };
        let mut small = model.clone();
        small.pop_last();
        let other = blocks.build(TINY, Salt::default(), &small);
        for key in model.keys().step_by(17).chain(probe.keys()) {
            let proof = prove(&root, key, &blocks).unwrap();
            let mut e = Encoder::new();
            proof.encode(&mut e);
            let bytes = e.finish();
            let mut d = Decoder::new(&bytes, "proof");
            prop_assert_eq!(&Proof::decode(&mut d).unwrap(), &proof);
            d.finish().unwrap();
            let shown = proof.verify(&hasher(), &root, key).unwrap();
            prop_assert_eq!(shown.as_deref(), model.get(key).map(Vec::as_slice));
            prop_assert!(proof.verify(&Hasher::new(&[8; 32]), &root, key).is_err());
            if let Some(other) = &other {
                prop_assert!(proof.verify(&hasher(), other, key).is_err());
            }
            let mut damaged = bytes.clone();
            let i = at.index(damaged.len());
            damaged[i] ^= mask;
            if let Ok(bad) = Proof::decode(&mut Decoder::new(&damaged, "proof")) {
                prop_assert!(bad.verify(&hasher(), &root, key).is_err() || bad == proof);
            }
            // One node too few, one node too many.
            let mut short = bytes.clone();
            short[0] -= 1;
            if let Ok(short) = Proof::decode(&mut Decoder::new(&short, "proof")) {
                prop_assert!(short.verify(&hasher(), &root, key).is_err());
            }
            let mut long = bytes.clone();
            long[0] += 1;
            long.extend_from_slice(&[1, 0]);
            let long = Proof::decode(&mut Decoder::new(&long, "proof")).unwrap();
            prop_assert!(long.verify(&hasher(), &root, key).is_err());
        }
    }

    #[test]
    fn arbitrary_node_bytes_are_refused_or_canonical(
        model in models(40), at in any::<prop::sample::Index>(), mask in 1..=255u8,
        noise in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut blocks = Blocks::default();
        blocks.build(TINY, Salt::default(), &model);
        let mut all: Vec<Vec<u8>> = blocks.map.values().map(|bytes| bytes.to_vec()).collect();
        for bytes in &mut all {
            let i = at.index(bytes.len());
            bytes[i] ^= mask;
        }
        for bytes in all.into_iter().chain([noise.clone(), [&[0, 1], &noise[..]].concat()]) {
            let (_, block) = hasher().seal::<MapNode>(Bytes::from(bytes.clone()));
            if let Ok(node) = Node::decode(&block) {
                prop_assert_eq!(attacks::encode(&node), bytes);
            }
        }
    }
}

/// Regions that end and begin close to each other.
#[test]
fn changes_close_together_give_the_root_of_building_anew() {
    let model: Model = (0..300u32)
        .map(|i| {
            (
                format!("{i:05}").into_bytes(),
                vec![i as u8; 8 + i as usize % 25],
            )
        })
        .collect();
    let keys: Vec<&Vec<u8>> = model.keys().collect();
    let mut random = 1u64;
    let mut below = |n: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % n
    };
    let sizes = LONG_RUNS;
    let mut blocks = Blocks::default();
    let root = blocks.build(sizes, Salt::default(), &model);
    for round in 0..1000 {
        let mut edits = Edits::new();
        let mut at = below(100);
        for _ in 0..1 + below(6) {
            at += 1 + below(80);
            if let Some(key) = keys.get(at) {
                let new = (below(2) == 0).then(|| vec![0; below(36)]);
                edits.insert((*key).clone(), new);
            }
        }
        let mut changed = model.clone();
        apply(&mut changed, &edits);
        let edited = edit::edit_sized(&hasher(), root.as_ref(), edits, &blocks, sizes, |_, _| {});
        let anew = Blocks::default().build(sizes, Salt::default(), &changed);
        assert_eq!(edited.unwrap(), anew, "round {round}");
    }
}

/// Cost with the sizes of real trees.
#[test]
fn edits_and_diffs_cost_only_the_changed_nodes() {
    let mut model: Model = (0..60_000u32)
        .map(|i| {
            let name = format!("file-{:08x}", i.wrapping_mul(2_654_435_761));
            (name.into_bytes(), vec![7; 60])
        })
        .collect();
    let mut blocks = Blocks::default();
    let root = blocks.build(Sizes::FIXED, Salt::default(), &model).unwrap();
    let height = usize::from(root.height);
    assert_eq!(height, 2);
    let (mut loads, mut written, mut fetched) = (0, 0, 0);
    for i in 0..50u32 {
        let name = format!("file-{:08x}-new", i.wrapping_mul(3_654_435_761));
        let edits = Edits::from([(name.into_bytes(), Some(vec![7; 60]))]);
        blocks.loads.set(0);
        let mut fresh = Vec::new();
        let new = edit(
            &hasher(),
            Some(&root),
            edits.clone(),
            &blocks,
            |h, b: &Bytes| {
                fresh.push((h, b.clone()));
            },
        );
        let new = new.unwrap().unwrap();
        loads += blocks.loads.get();
        written += fresh.len();
        blocks.map.extend(fresh);
        let (changes, cost) = diff(&blocks, Some(&root), Some(&new));
        assert_eq!(changes.len(), 1);
        fetched += cost;
        apply(&mut model, &edits);
        model.retain(|key, _| !edits.contains_key(key));
    }
    assert!(written <= 50 * (height + 1), "{written} nodes for 50 edits");
    assert!(loads <= 50 * 4 * height, "{loads} loads for 50 edits");
    assert!(
        fetched <= 50 * (2 * height + 2),
        "{fetched} fetched for 50 diffs"
    );
    let (none, cost) = diff(&blocks, Some(&root), Some(&root));
    assert_eq!((none.len(), cost), (0, 0));
}

/// Keys chosen to attack the hash cost more, within bounds, and have no other effect.
#[test]
fn keys_chosen_to_attack_the_hash_give_a_sound_tree() {
    let chooser = split::Chooser::new(&Salt::default(), 1, Sizes::FIXED);
    let value = [7; 60];
    let candidate = |key: &[u8]| chooser.is_candidate(chooser.hash(key), 1 + key.len() + 61);
    let name = |i: u32| format!("{i:010}").into_bytes();
    for want in [false, true] {
        let keys = (0..).map(name).filter(|key| candidate(key) == want);
        let model: Model = keys.take(10_000).map(|key| (key, value.to_vec())).collect();
        let mut blocks = Blocks::default();
        let root = blocks.build(Sizes::FIXED, Salt::default(), &model).unwrap();
        assert_eq!((root.entries, root.height), (10_000, 2));
        let mut scanned = Model::new();
        blocks.scan(&root.child_ref(), &mut scanned);
        assert_eq!(scanned, model);
        // An edit in the middle of the one long run.
        let middle = model.keys().nth(5_000).unwrap().clone();
        blocks.loads.set(0);
        let mut written = 0;
        let edits = [(&middle, None::<&[u8]>)];
        let edited = edit(&hasher(), Some(&root), edits, &blocks, |_, _| written += 1);
        let mut changed = model.clone();
        changed.remove(&middle);
        let anew = Blocks::default().build(Sizes::FIXED, Salt::default(), &changed);
        assert_eq!(edited.unwrap(), anew);
        assert!(blocks.loads.get() <= 20, "{} loads", blocks.loads.get());
        assert!(written <= 6, "{written} nodes");
        // Another salt restores the normal shape.
        let mut salted = Blocks::default();
        salted.build(Sizes::FIXED, [9; 16], &model);
        assert!(salted.map.len() > 20);
    }
}

/// Frozen bytes: docs/formats/trees.md gives the same.
#[test]
fn vectors() {
    let hasher = Hasher::new(&std::array::from_fn(|i| i as u8));
    let build = |count: u32, salt| {
        let mut nodes = Vec::new();
        let mut builder = Builder::new(&hasher, salt, |handle, bytes: &Bytes| {
            nodes.push((handle, bytes.clone()));
        });
        for i in 0..count {
            let value = vec![i as u8; 1 + i as usize % 50];
            builder
                .push(format!("key-{i:06}").as_bytes(), &value)
                .unwrap();
        }
        (builder.finish().unwrap(), nodes)
    };
    let print = |root: Option<MapRoot>| {
        let mut e = Encoder::new();
        root.unwrap().encode(&mut e);
        hex(&e.finish())
    };
    let (root, nodes) = build(2, Salt::default());
    assert_eq!(
        hex(&nodes[0].1),
        "0001020a6b65792d30303030303001000a6b65792d303030303031020101"
    );
    assert_eq!(
        print(root),
        "7b6bd383a109428bf0926b75251e6768ad28a464e86879c8a9276f27637df1e00102"
    );
    let (root, nodes) = build(10_000, Salt::default());
    assert_eq!(nodes.len(), 17);
    assert_eq!(
        print(root),
        "b047d177826caadfd14c7724c7e068384a78337ee4450dcde37309c6dd9f7b5002904e"
    );
    assert_eq!(
        print(build(10_000, [1; 16]).0),
        "4f12c32f8a031d52e20bf5cb3ffc09dc6e0a2a28b2a0d7bb7446dcf67c8b0cb682904e01010101010101010101010101010101"
    );
    assert!(build(0, Salt::default()).0.is_none());
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
