//! Arbitrary bytes as a node of a map tree, under their own handle. They are refused, or they are the
//! canonical encoding, and every key of the node can be found.
#![no_main]

use bulla_fuzz::{hasher, map_nodes, plant};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use trust::MapNode;
use trust::encode::Encoder;
use trust::map::{ChildRef, Find, Interval, Item, Node};

fuzz_target!(init: plant(map_nodes()), |data: &[u8]| {
    let (handle, block) = hasher().seal::<MapNode>(Bytes::copy_from_slice(data));
    let Ok(node) = Node::decode(&block) else {
        return;
    };
    let all = Interval::everything();
    let mut again = Encoder::new();
    again.u8(0).u8(node.level()).varint(node.count() as u64);
    for item in node.items(&all) {
        match item {
            Item::Entry(key, value) => {
                again.bytes(&key).bytes(&value);
                assert_eq!(node.find(&key, &all), Find::Value(value));
            }
            Item::Child(child) => {
                let key = child.interval.lower.clone().expect("a separator");
                again.bytes(&key).raw(child.handle.as_bytes());
                again.varint(child.entries);
                assert!(child.interval.contains(&key));
                assert_eq!(node.find(&key, &all), Find::Child(child));
            }
        }
    }
    assert_eq!(again.finish(), data);
    assert!(node.weight_bytes() <= 200 + 24 * data.len());
    let promised = |level, entries| ChildRef {
        handle,
        level,
        entries,
        interval: Interval::everything(),
    };
    let lone = node.level() > 1 && node.count() < 2;
    let honest = promised(node.level(), node.entries());
    assert_eq!(node.check(&honest).is_ok(), !lone);
    assert!(node.check(&promised(node.level() + 1, node.entries())).is_err());
    assert!(node.check(&promised(node.level(), node.entries() ^ 1)).is_err());
});
