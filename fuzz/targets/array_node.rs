//! Arbitrary bytes as a node of an array tree, under their own handle. They are refused, or they are the
//! canonical encoding of the decoded node, and its offsets add up.
#![no_main]

use bulla_fuzz::{hasher, plant};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use trust::array::{Builder, Child, Extent, Node};
use trust::encode::Encoder;
use trust::{ArrayNode, Handle};

fn seeds() -> Vec<Vec<u8>> {
    let mut nodes = Vec::new();
    let mut builder = Builder::new(&hasher(), |_, bytes: &Bytes| nodes.push(bytes.to_vec()));
    for n in 0..600u32 {
        let data = Extent::Data {
            handle: Handle::from_bytes([n as u8; 32]),
            len: n + 1,
        };
        builder.push(data).expect("an extent");
        if n % 50 == 0 {
            builder.push(Extent::Hole { len: 1 << 20 }).expect("a hole");
        }
    }
    builder.finish().expect("an array");
    nodes
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    let (_, block) = hasher().seal::<ArrayNode>(Bytes::copy_from_slice(data));
    let Ok(node) = Node::decode(&block) else {
        return;
    };
    let level = *data.get(1).expect("a level");
    let mut again = Encoder::new();
    again.u8(0).u8(level).varint(node.count() as u64);
    let mut at = 0;
    for (index, child) in node.children().enumerate() {
        assert_eq!(node.seek(at), Some((index, at)));
        at += child.len();
        assert_eq!(node.seek(at - 1).map(|(i, _)| i), Some(index));
        match child {
            Child::Node { handle, len, .. } => again.varint(len << 1).raw(handle.as_bytes()),
            Child::Extent(Extent::Data { handle, len }) => {
                again.varint(u64::from(len) << 1).raw(handle.as_bytes())
            }
            Child::Extent(Extent::Hole { len }) => again.varint(len << 1 | 1),
        };
    }
    assert_eq!(again.finish(), data);
    assert_eq!((node.len_bytes(), node.seek(at)), (at, None));
    assert!(node.check(level, at).is_ok());
    assert!(node.check(level, at + 1).is_err());
    assert!(node.check(level + 1, at).is_err());
    assert!(node.weight_bytes() <= 256 * 64);
});
