//! Arbitrary bytes as a proof about a map. The handles between its nodes are corrected first, to reach the
//! code after the hash check. The proof is refused, or its last node holds what it proves.
#![no_main]

use bulla_fuzz::{hasher, map_nodes, plant};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use trust::encode::{Decoder, Encoder};
use trust::map::{Find, Interval, Item, MapRoot, Node, Proof};
use trust::{Kind, MapNode};

fn encoded(nodes: &[Vec<u8>]) -> Vec<u8> {
    let mut e = Encoder::new();
    e.u8(nodes.len() as u8);
    for node in nodes {
        e.bytes(node);
    }
    e.finish()
}

fn seeds() -> Vec<Vec<u8>> {
    let nodes = map_nodes();
    let leaf = nodes.first().cloned().unwrap_or_default();
    let mut all: Vec<Vec<u8>> = nodes
        .iter()
        .map(|n| encoded(std::slice::from_ref(n)))
        .collect();
    all.extend(nodes.last().map(|top| encoded(&[top.clone(), leaf])));
    all
}

fn nodes_of(data: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut d = Decoder::new(data, "proof");
    let count = d.u8().ok()?;
    let node = |_| d.bytes(64 << 10).ok().map(<[u8]>::to_vec);
    (0..count).map(node).collect()
}

fn decoded(bytes: &[u8]) -> Option<Node> {
    let (_, block) = hasher().seal::<MapNode>(Bytes::copy_from_slice(bytes));
    Node::decode(&block).ok()
}

/// Makes the first child of each node the next node.
fn join(nodes: &mut [Vec<u8>]) {
    let mut below: Option<[u8; 32]> = None;
    for bytes in nodes.iter_mut().rev() {
        let first = decoded(bytes).and_then(|node| node.item(0, &Interval::everything()));
        if let (Some(name), Some(Item::Child(child))) = (below, first) {
            let old = child.handle.as_bytes();
            let at = bytes
                .windows(32)
                .position(|w| w == old)
                .expect("its handle");
            bytes[at..at + 32].copy_from_slice(&name);
        }
        below = Some(*hasher().name(Kind::Map, bytes).as_bytes());
    }
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    let mut d = Decoder::new(data, "proof");
    if let Ok(proof) = Proof::decode(&mut d) {
        let mut again = Encoder::new();
        proof.encode(&mut again);
        assert_eq!(again.finish(), data[..data.len() - d.remaining()]);
    }
    let Some(mut nodes) = nodes_of(data) else {
        return;
    };
    join(&mut nodes);
    let joined = encoded(&nodes);
    let Ok(proof) = Proof::decode(&mut Decoder::new(&joined, "proof")) else {
        return;
    };
    let Some(top) = nodes.first().and_then(|bytes| decoded(bytes)) else {
        return;
    };
    let root = MapRoot {
        handle: trust::Handle::from_bytes(*hasher().name(Kind::Map, &nodes[0]).as_bytes()),
        height: top.level(),
        entries: top.entries(),
        salt: [0; 16],
    };
    let all = Interval::everything();
    let last = nodes.last().and_then(|bytes| decoded(bytes));
    let mut keys: Vec<Bytes> = vec![Bytes::from_static(b"name 000001")];
    keys.extend(top.items(&all).take(3).filter_map(|item| match item {
        Item::Entry(key, _) => Some(key),
        Item::Child(child) => child.interval.lower,
    }));
    for key in keys {
        if let Ok(value) = proof.verify(&hasher(), &root, &key) {
            let last = last.as_ref().expect("a proof that holds has sound nodes");
            let found = match last.find(&key, &all) {
                Find::Value(value) => Some(value),
                Find::Absent => None,
                // A proof may stop at an interior node when the key is before all keys: that is `Absent`.
                Find::Child(_) => panic!("a proof that stops above the leaves"),
            };
            assert_eq!(value, found);
        }
    }
});
