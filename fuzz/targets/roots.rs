//! Arbitrary bytes as the root of a map and of an array. They are refused, or they are the canonical
//! encoding.
#![no_main]

use bulla_fuzz::plant;
use libfuzzer_sys::fuzz_target;
use trust::array::{ArrayRoot, MAX_LEN};
use trust::encode::{Decoder, Encoder};
use trust::map::MapRoot;

fuzz_target!(
    init: plant([vec![1; 34], [vec![9, 1], vec![2; 32]].concat(), vec![200, 1, 255]]),
    |data: &[u8]| {
        let mut d = Decoder::new(data, "root");
        if let Ok(root) = MapRoot::decode(&mut d) {
            let mut again = Encoder::new();
            root.encode(&mut again);
            assert_eq!(again.finish(), data[..data.len() - d.remaining()]);
        }
        let mut d = Decoder::new(data, "root");
        if let Ok(root) = ArrayRoot::decode(&mut d) {
            let mut again = Encoder::new();
            root.encode(&mut again);
            assert_eq!(again.finish(), data[..data.len() - d.remaining()]);
            assert!((1..=MAX_LEN).contains(&root.len));
            assert_eq!(root.top().len(), root.len);
        }
    }
);
