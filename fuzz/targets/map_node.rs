//! Any bytes as a node of a map tree: refused, or walked without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trust::map::Node;
use trust::{Hasher, MapNode};

fuzz_target!(|data: &[u8]| {
    let hasher = Hasher::new(&[1; 32]);
    let (_, block) = hasher.seal::<MapNode>(bytes::Bytes::copy_from_slice(data));
    if let Ok(node) = Node::decode(&block) {
        assert!(node.weight_bytes() >= 1);
    }
});
