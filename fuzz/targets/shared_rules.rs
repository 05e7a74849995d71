//! Arbitrary bytes as a file of rules of a shared volume. They are refused, or they are policies that have one file.
#![no_main]

use bulla_fuzz::{plant, shared_vectors};
use libfuzzer_sys::fuzz_target;
use share::home::{decode_rules, encode_rules};

fuzz_target!(init: plant(shared_vectors("policies")), |data: &[u8]| {
    let Ok(rules) = decode_rules(data) else {
        return;
    };
    let file = encode_rules(&rules);
    // The genesis policy alone may come without the count.
    let is_genesis = rules.len() == 1 && file.get(1..) == Some(data);
    assert!(is_genesis || file == data);
    assert!(decode_rules(&file).expect("its own file") == rules);
});
