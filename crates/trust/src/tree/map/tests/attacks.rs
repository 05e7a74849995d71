//! Malformed trees with valid signatures: one check refuses each of them.

use super::*;
use crate::encode::varint_len;

/// The bytes of a node, written by hand so that any rule can be broken.
pub(super) fn raw(level: u8, entries: &[(Vec<u8>, Payload)]) -> Vec<u8> {
    let mut e = Encoder::new();
    e.u8(FORMAT).u8(level).varint(entries.len() as u64);
    for (key, payload) in entries {
        e.bytes(key);
        match payload {
            Payload::Value(value) => e.bytes(value),
            Payload::Child(handle, below) => e.raw(handle.as_bytes()).varint(*below),
        };
    }
    e.finish()
}

#[derive(Clone)]
pub(super) enum Payload {
    Value(Vec<u8>),
    Child(Handle<MapNode>, u64),
}

pub(super) fn encode(node: &Node) -> Vec<u8> {
    let everything = Interval::everything();
    let entries: Vec<_> = node
        .items(&everything)
        .map(|item| match item {
            Item::Entry(key, value) => (key.to_vec(), Payload::Value(value.to_vec())),
            Item::Child(child) => (
                child.interval.lower.unwrap().to_vec(),
                Payload::Child(child.handle, child.entries),
            ),
        })
        .collect();
    raw(node.level(), &entries)
}

impl Blocks {
    fn put(&mut self, bytes: Vec<u8>) -> Handle<MapNode> {
        let (handle, block) = hasher().seal::<MapNode>(bytes.into());
        self.map.insert(handle, block.into_bytes());
        handle
    }

    fn leaf(&mut self, keys: &[&str]) -> (Vec<u8>, Payload) {
        let handle = self.put(raw(1, &values(keys)));
        let first = keys.first().map(|k| k.as_bytes().to_vec());
        let below = keys.len() as u64;
        (first.unwrap_or_default(), Payload::Child(handle, below))
    }

    /// Walks the whole tree as a scan does.
    fn verify(&self, child: &ChildRef) -> Result<u64, Reject> {
        let node = Node::decode(&self.block(&child.handle).unwrap())?;
        node.check(child)?;
        let mut entries = 0;
        for item in node.items(&child.interval) {
            entries += match item {
                Item::Entry(..) => 1,
                Item::Child(child) => self.verify(&child)?,
            };
        }
        Ok(entries)
    }
}

fn values(keys: &[&str]) -> Vec<(Vec<u8>, Payload)> {
    let value = |key: &&str| (key.as_bytes().to_vec(), Payload::Value(b"v".to_vec()));
    keys.iter().map(value).collect()
}

fn decode(bytes: Vec<u8>) -> Result<Node, Reject> {
    Node::decode(&hasher().seal::<MapNode>(bytes.into()).1)
}

fn refused<T: std::fmt::Debug>(result: Result<T, Reject>) -> &'static str {
    match result {
        Err(Reject::BadTree { why, .. }) => why,
        other => panic!("believed: {other:?}"),
    }
}

fn root(handle: Handle<MapNode>, height: u8, entries: u64) -> MapRoot {
    MapRoot {
        handle,
        height,
        entries,
        salt: Salt::default(),
    }
}

const FIRST: [&str; 4] = ["a", "b", "c", "d"];
const SECOND: [&str; 4] = ["m", "n", "o", "p"];

#[test]
fn malformed_map_nodes_are_refused() {
    assert!(decode(raw(1, &values(&FIRST))).is_ok());
    assert_eq!(refused(decode(raw(1, &[]))), "no entries");
    let unsorted = values(&["b", "a", "c", "d"]);
    assert_eq!(refused(decode(raw(1, &unsorted))), "keys not sorted");
    let double = values(&["a", "b", "b", "c"]);
    assert_eq!(refused(decode(raw(1, &double))), "keys not sorted");
    for level in [0, 17, 255] {
        let bytes = raw(level, &values(&FIRST));
        assert_eq!(refused(decode(bytes)), "impossible level");
    }
    let long = vec![(vec![b'k'; MAX_KEY_BYTES + 1], Payload::Value(vec![]))];
    assert_eq!(refused(decode(raw(1, &long))), "string too long");
    let fits = MAX_ENTRY_BYTES - 1 - 1 - varint_len(4090);
    let large = |len| vec![(b"k".to_vec(), Payload::Value(vec![0; len]))];
    assert!(decode(raw(1, &large(fits))).is_ok());
    assert_eq!(
        refused(decode(raw(1, &large(fits + 1)))),
        "entry over 4 KiB"
    );
    let many: Vec<_> = (0..20u8)
        .map(|i| (vec![i], Payload::Value(vec![0; 4000])))
        .collect();
    assert_eq!(refused(decode(raw(1, &many))), "over 64 KiB");
    let handle = Handle::from_bytes([1; 32]);
    let empty = vec![(b"k".to_vec(), Payload::Child(handle, 0))];
    assert_eq!(refused(decode(raw(2, &empty))), "a child without entries");
    let sum: Vec<_> = [b'a', b'b']
        .map(|k| (vec![k], Payload::Child(handle, u64::MAX)))
        .to_vec();
    assert_eq!(refused(decode(raw(2, &sum))), "entry count overflows");
    let mut trailing = raw(1, &values(&FIRST));
    trailing.push(0);
    assert_eq!(refused(decode(trailing)), "trailing bytes");
    let mut newer = raw(1, &values(&FIRST));
    newer[0] = 1;
    assert!(matches!(decode(newer), Err(Reject::Unsupported { .. })));
    let bomb = [&[0, 1][..], &[0xff; 9], &[1]].concat();
    assert_eq!(refused(decode(bomb)), "more entries than bytes");
}

#[test]
fn children_that_contradict_their_parent_are_refused() {
    let mut blocks = Blocks::default();
    let (first, second) = (blocks.leaf(&FIRST), blocks.leaf(&SECOND));
    let Payload::Child(second_handle, _) = second.1.clone() else {
        unreachable!()
    };
    let stray = blocks.leaf(&["a", "b", "c", "n"]);
    let single = blocks.leaf(&["m"]);
    let inner = blocks.put(raw(2, &[first.clone(), second.clone()]));
    let mut says = |entries: &[(Vec<u8>, Payload)], height, count| {
        let handle = blocks.put(raw(2, entries));
        blocks.verify(&root(handle, height, count).child_ref())
    };
    assert_eq!(says(&[first.clone(), second.clone()], 2, 8), Ok(8));
    let why = refused(says(&[stray, second.clone()], 2, 8));
    assert_eq!(why, "key outside the interval of its node");
    let swapped = [
        (b"a".to_vec(), second.1.clone()),
        (b"m".to_vec(), first.1.clone()),
    ];
    let separator = "separator is not the first key of the child";
    assert_eq!(refused(says(&swapped, 2, 8)), separator);
    for wrong in ["l", "mm"] {
        let entries = [first.clone(), (wrong.into(), second.1.clone())];
        assert_eq!(refused(says(&entries, 2, 8)), separator);
    }
    let lower = [(b"0".to_vec(), first.1.clone()), second.clone()];
    assert_eq!(refused(says(&lower, 2, 8)), separator);
    let count = "node with another number of entries than its parent says";
    assert_eq!(refused(says(&[first.clone(), second.clone()], 2, 9)), count);
    let inflated = [
        first.clone(),
        (b"m".to_vec(), Payload::Child(second_handle, 5)),
    ];
    assert_eq!(refused(says(&inflated, 2, 9)), count);
    let few = "node with too few entries";
    assert_eq!(refused(says(&[first.clone(), single], 2, 5)), few);
    assert_eq!(refused(says(std::slice::from_ref(&first), 2, 4)), few);
    let level = "node of another level than its parent says";
    let tall = refused(says(&[first.clone(), second.clone()], 3, 8));
    assert_eq!(tall, level);
    let nested = [first, (b"m".to_vec(), Payload::Child(inner, 8))];
    assert_eq!(refused(says(&nested, 2, 12)), level);
}

/// Without the interval check this tree would list a name that a lookup reports as absent.
#[test]
fn one_name_is_never_both_present_and_absent() {
    let mut blocks = Blocks::default();
    let lying = blocks.leaf(&["a", "b", "c", "x"]);
    let second = blocks.leaf(&SECOND);
    let top = blocks.put(raw(2, &[lying, second]));
    let root = root(top, 2, 8);
    // The valid path to `x` leads through the second leaf, which does not hold it.
    let shown = prove(&root, b"x", &blocks).unwrap();
    assert_eq!(shown.verify(&hasher(), &root, b"x"), Ok(None));
    // A scan, a diff or a lookup that reads the stray entry refuses the tree.
    assert!(blocks.verify(&root.child_ref()).is_err());
    assert!(prove(&root, b"a", &blocks).is_err());
    let mut diff = Diff::new(None, Some(&root));
    diff.supply(&top, &blocks.block(&top).unwrap()).unwrap();
    let results: Vec<_> = diff
        .wants()
        .iter()
        .map(|handle| diff.supply(handle, &blocks.block(handle).unwrap()))
        .collect();
    assert_eq!(results.iter().filter(|result| result.is_err()).count(), 1);
}

#[test]
fn a_proof_through_a_stray_node_is_refused() {
    let mut blocks = Blocks::default();
    let (lying, second) = (blocks.leaf(&["a", "b", "c", "x"]), blocks.leaf(&SECOND));
    let Payload::Child(below, _) = lying.1.clone() else {
        unreachable!()
    };
    let top = blocks.put(raw(2, &[lying, second]));
    let mut e = Encoder::new();
    e.u8(2);
    for handle in [top, below] {
        e.bytes(blocks.block(&handle).unwrap().bytes());
    }
    let bytes = e.finish();
    let proof = Proof::decode(&mut Decoder::new(&bytes, "proof")).unwrap();
    let why = refused(proof.verify(&hasher(), &root(top, 2, 8), b"a"));
    assert_eq!(why, "key outside the interval of its node");
}

#[test]
fn impossible_roots_are_refused() {
    let read = |height: u8, entries: u64, salt: &[u8]| {
        let mut e = Encoder::new();
        e.raw(&[1; 32]).u8(height).varint(entries).raw(salt);
        let bytes = e.finish();
        let mut d = Decoder::new(&bytes, "root");
        MapRoot::decode(&mut d).and_then(|root| d.finish().map(|()| root))
    };
    assert!(read(16, 9, &[]).is_ok());
    assert!(read(0x81, 9, &[1; 16]).is_ok());
    assert!(read(0, 9, &[]).is_err());
    assert!(read(17, 9, &[]).is_err());
    assert!(read(1, 0, &[]).is_err());
    assert!(read(0x81, 9, &[0; 16]).is_err());
    assert!(read(0x81, 9, &[1; 15]).is_err());
    assert!(read(1, 9, &[1; 16]).is_err());
}

#[test]
fn impossible_map_entries_are_refused_when_built_and_edited() {
    let mut builder = Builder::new(&hasher(), Salt::default(), |_, _: &Bytes| {});
    builder.push(b"b", b"").unwrap();
    assert!(builder.push(b"b", b"").is_err());
    assert!(builder.push(b"a", b"").is_err());
    assert!(builder.push(&[b'c'; MAX_KEY_BYTES + 1], b"").is_err());
    assert!(builder.push(b"c", &[0; MAX_ENTRY_BYTES - 3]).is_err());
    builder.push(b"c", &[0; MAX_ENTRY_BYTES - 4]).unwrap();
    let sorted = edit(
        &hasher(),
        None,
        [("b", Some("")), ("a", Some(""))],
        &Blocks::default(),
        |_, _| {},
    );
    assert!(sorted.is_err());
}
