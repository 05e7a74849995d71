//! Any bytes as a node of an array tree: refused, or sought in without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trust::array::Node;
use trust::{ArrayNode, Hasher};

fuzz_target!(|data: &[u8]| {
    let hasher = Hasher::new(&[1; 32]);
    let (_, block) = hasher.seal::<ArrayNode>(bytes::Bytes::copy_from_slice(data));
    if let Ok(node) = Node::decode(&block) {
        let children: u64 = node.children().map(|child| child.len()).sum();
        assert_eq!(children, node.len_bytes());
        assert!(node.seek(node.len_bytes() / 2).is_some());
        assert!(node.seek(node.len_bytes()).is_none());
    }
});
