//! The array tree against its reference model, a list of extents, and against malformed nodes.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn hasher() -> Hasher {
    Hasher::new(&[7; 32])
}

type Blocks = HashMap<Handle<ArrayNode>, Bytes>;

fn build(extents: &[Extent]) -> (Option<ArrayRoot>, Blocks) {
    let mut blocks = Blocks::new();
    let mut builder = Builder::new(&hasher(), |handle, bytes: &Bytes| {
        blocks.insert(handle, bytes.clone());
    });
    for extent in extents {
        builder.push(*extent).unwrap();
    }
    let root = builder.finish().unwrap();
    (root, blocks)
}

fn node(blocks: &Blocks, handle: &Handle<ArrayNode>) -> Node {
    let block = hasher().check(handle, blocks[handle].clone()).unwrap();
    Node::decode(&block).unwrap()
}

fn walk(blocks: &Blocks, child: Child, out: &mut Vec<Extent>) {
    match child {
        Child::Extent(extent) => out.push(extent),
        Child::Node { handle, len, level } => {
            let node = node(blocks, &handle);
            node.check(level, len).unwrap();
            for child in node.children() {
                walk(blocks, child, out);
            }
        }
    }
}

/// The extent at `offset` and where it starts, by descending.
fn seek(blocks: &Blocks, root: &ArrayRoot, offset: u64) -> Option<(u64, Extent)> {
    let (mut at, mut base) = (root.top(), 0);
    if offset >= root.len {
        return None;
    }
    loop {
        match at {
            Child::Extent(extent) => return Some((base, extent)),
            Child::Node { handle, .. } => {
                let node = node(blocks, &handle);
                let (index, start) = node.seek(offset - base)?;
                base += start;
                at = node.child(index)?;
            }
        }
    }
}

fn merged(extents: &[Extent]) -> Vec<Extent> {
    let mut out: Vec<Extent> = Vec::new();
    for extent in extents.iter().filter(|e| !e.is_empty()) {
        match (out.last_mut(), extent) {
            (Some(Extent::Hole { len: a }), Extent::Hole { len: b }) => *a += b,
            _ => out.push(*extent),
        }
    }
    out
}

fn data(i: u64, len: u32) -> Extent {
    let handle = Handle::from_bytes(*hasher().handle::<Data>(&i.to_le_bytes()).as_bytes());
    Extent::Data { handle, len }
}

fn extents(max: usize) -> impl Strategy<Value = Vec<Extent>> {
    let extent = prop_oneof![
        5 => (any::<u64>(), 1..=1u32 << 20).prop_map(|(i, len)| data(i, len)),
        2 => (0..1u64 << 40).prop_map(|len| Extent::Hole { len }),
    ];
    prop::collection::vec(extent, 0..max)
}

fn check_against_model(list: &[Extent], offsets: &[u64]) {
    let (root, blocks) = build(list);
    let model = merged(list);
    let Some(root) = root else {
        assert!(model.is_empty());
        return;
    };
    assert_eq!(root.len, model.iter().map(Extent::len).sum::<u64>());
    let mut walked = Vec::new();
    walk(&blocks, root.top(), &mut walked);
    assert_eq!(walked, model);
    let mut e = Encoder::new();
    root.encode(&mut e);
    let bytes = e.finish();
    let mut d = Decoder::new(&bytes, "root");
    assert_eq!(ArrayRoot::decode(&mut d), Ok(root));
    d.finish().unwrap();
    assert_eq!(seek(&blocks, &root, root.len), None);
    for offset in offsets {
        let offset = offset % root.len;
        let mut start = 0;
        let expected = model
            .iter()
            .find_map(|extent| {
                let here = start;
                start += extent.len();
                (offset < start).then_some((here, *extent))
            })
            .unwrap();
        assert_eq!(seek(&blocks, &root, offset), Some(expected));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

    #[test]
    fn array_tree_returns_the_extents_that_were_added(
        list in extents(1200),
        offsets in prop::collection::vec(any::<u64>(), 8),
    ) {
        check_against_model(&list, &offsets);
    }

    #[test]
    fn arbitrary_node_bytes_are_refused_or_canonical(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        honest in any::<bool>(),
    ) {
        if honest && bytes.len() >= 3 {
            let count = bytes[2] % 4 + 1;
            bytes[..3].copy_from_slice(&[0, 1, count]);
        }
        if let Ok(node) = Node::parse(&bytes) {
            prop_assert_eq!(encode(&node), bytes);
        }
    }

    #[test]
    fn a_damaged_node_is_another_node_or_refused(
        list in extents(20), at in any::<prop::sample::Index>(), mask in 1..=255u8,
    ) {
        let (_, blocks) = build(&list);
        for bytes in blocks.values() {
            let mut bad = bytes.to_vec();
            let i = at.index(bad.len());
            bad[i] ^= mask;
            if let Ok(node) = Node::parse(&bad) {
                prop_assert_eq!(encode(&node), bad);
            }
        }
    }
}

fn encode(node: &Node) -> Vec<u8> {
    let mut e = Encoder::new();
    e.u8(FORMAT).u8(node.level).varint(node.count() as u64);
    for child in node.children() {
        let handle = match child {
            Child::Node { handle, .. } => Some(*handle.as_bytes()),
            Child::Extent(Extent::Data { handle, .. }) => Some(*handle.as_bytes()),
            Child::Extent(Extent::Hole { .. }) => None,
        };
        e.varint(child.len() << 1 | u64::from(handle.is_none()));
        if let Some(bytes) = handle {
            e.raw(&bytes);
        }
    }
    e.finish()
}

#[test]
fn trees_around_full_nodes_have_the_expected_shape() {
    for count in [1, 2, 255, 256, 257, 511, 512, 513, 65_535, 65_536, 65_537] {
        let list: Vec<Extent> = (0..count).map(|i| data(i, 1 + i as u32 % 9)).collect();
        check_against_model(&list, &[0, 1, count, u64::MAX]);
        let (root, blocks) = build(&list);
        let height = root.unwrap().height;
        let expected = match count {
            1 => 0,
            2..=256 => 1,
            257..=65_536 => 2,
            _ => 3,
        };
        assert_eq!(height, expected, "{count} extents");
        let rows = [count.div_ceil(256), count.div_ceil(65_536), 1];
        let nodes: u64 = rows.iter().take(usize::from(height)).sum();
        assert_eq!(blocks.len() as u64, nodes, "{count} extents");
    }
}

#[test]
fn one_hole_needs_no_block() {
    let (root, blocks) = build(&[Extent::Hole { len: 5 }, Extent::Hole { len: MAX_LEN - 5 }]);
    assert!(blocks.is_empty());
    let root = root.unwrap();
    assert_eq!((root.height, root.len), (HOLE, MAX_LEN));
    assert_eq!(root.top(), Child::Extent(Extent::Hole { len: MAX_LEN }));
}

#[test]
fn impossible_content_is_refused_when_built() {
    let mut builder = Builder::new(&hasher(), |_, _: &Bytes| {});
    assert!(builder.push(data(1, (1 << 20) + 1)).is_err());
    builder.push(Extent::Hole { len: MAX_LEN }).unwrap();
    assert!(builder.push(data(1, 1)).is_err());
    assert!(builder.push(Extent::Hole { len: u64::MAX }).is_err());
}

#[test]
fn malformed_array_nodes_are_refused() {
    let handle = [5u8; 32];
    let make = |level: u8, entries: &[(u64, bool)]| {
        let mut e = Encoder::new();
        e.u8(FORMAT).u8(level).varint(entries.len() as u64);
        for (len, hole) in entries {
            e.varint(len << 1 | u64::from(*hole));
            if !hole {
                e.raw(&handle);
            }
        }
        Node::parse(&e.finish())
    };
    let why = |result: Result<Node, Reject>| match result {
        Err(Reject::Malformed { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(make(1, &[(9, false), (5, true), (1 << 20, false)]).is_ok());
    assert_eq!(why(make(1, &[])), "no entries");
    assert_eq!(why(make(1, &[(0, false)])), "empty extent");
    assert_eq!(why(make(1, &[(0, true)])), "empty extent");
    let adjacent = [(1, true), (1, true)];
    assert_eq!(why(make(1, &adjacent)), "hole where none is allowed");
    assert_eq!(why(make(2, &[(1, true)])), "hole where none is allowed");
    let large = [((1 << 20) + 1, false)];
    assert_eq!(why(make(1, &large)), "data block over 1 MiB");
    assert_eq!(why(make(0, &[(1, false)])), "impossible level");
    assert_eq!(why(make(17, &[(1, false)])), "impossible level");
    let overflow = [(MAX_LEN, false), (1, false)];
    assert_eq!(why(make(2, &overflow)), "content too long");
    assert_eq!(why(make(1, &[(1, false); 257])), "too many entries");
    let node = make(2, &[(9, false), (5, false)]).unwrap();
    assert!(node.check(2, 14).is_ok());
    assert!(node.check(1, 14).is_err());
    assert!(node.check(2, 13).is_err());
    assert!(matches!(
        Node::parse(&[1, 1, 1, 3]),
        Err(Reject::Unsupported { .. })
    ));
}

#[test]
fn impossible_roots_are_refused() {
    let read = |len: u64, height: u8| {
        let mut e = Encoder::new();
        e.varint(len).u8(height).raw(&[1; 32]);
        ArrayRoot::decode(&mut Decoder::new(&e.finish(), "root"))
    };
    assert!(read(1 << 20, 0).is_ok());
    assert!(read(0, 1).is_err());
    assert!(read((1 << 20) + 1, 0).is_err());
    assert!(read(9, 17).is_err());
    assert!(read(9, 254).is_err());
    assert!(read(MAX_LEN + 1, 3).is_err());
}

/// Frozen bytes: docs/formats/trees.md gives the same.
#[test]
fn vectors() {
    let hasher = Hasher::new(&std::array::from_fn(|i| i as u8));
    let print = |list: &[Extent]| {
        let mut nodes = Vec::new();
        let mut builder = Builder::new(&hasher, |_, bytes: &Bytes| nodes.push(bytes.clone()));
        for extent in list {
            builder.push(*extent).unwrap();
        }
        let root = builder.finish().unwrap().unwrap();
        let mut e = Encoder::new();
        root.encode(&mut e);
        (hex(&e.finish()), nodes.first().map(|bytes| hex(bytes)))
    };
    let data = |text: &[u8]| Extent::Data {
        handle: hasher.handle::<Data>(text),
        len: text.len() as u32,
    };
    let hole = Extent::Hole { len: 65_536 };
    assert_eq!(
        print(&[data(b"bulla")]),
        (
            "0500e63b7c8e56163e62ee730951dbc7f7dc9f54a515dd109e86e911948438abf24b".into(),
            None
        )
    );
    assert_eq!(print(&[hole]), ("808004ff".into(), None));
    let mixed = [data(b"bulla"), hole, data(b"seal")];
    assert_eq!(print(&mixed), ("8980040181ade6686b029b1aca6e161ba6d1486f10b15118b25c51ccd923504e96fc9b1e".into(), Some("0001030ae63b7c8e56163e62ee730951dbc7f7dc9f54a515dd109e86e911948438abf24b8180080805a1f37b57880b54d4ca162c1f7ae4c06748b4c2d1c4ae471ae5fa1ac254002a".into())));
    assert_eq!(
        print(&vec![data(b"bulla"); 1000]).0,
        "88270271bcaec247fe270a61ba71459fbe9b5f9a20122d6077670fe972c0432de1d4d1"
    );
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
