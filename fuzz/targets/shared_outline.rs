//! Arbitrary bytes as the outline of an entry of a shared volume. They are refused, or they are the canonical
//! encoding within the bounds.
#![no_main]

use bulla_fuzz::{plant, shared_bodies};
use libfuzzer_sys::fuzz_target;
use trust_shared::ops::Body;
use trust_shared::outline::{MAX_OP_CHANGES, MAX_OPS, Outline};

fn seeds() -> Vec<Vec<u8>> {
    let bodies = shared_bodies().into_iter();
    let outlines = bodies.map(|body| Body::decode(&body).expect("a body").outline());
    outlines.map(|outline| outline.encode()).collect()
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    let Ok(outline) = Outline::decode(data) else {
        return;
    };
    assert_eq!(outline.encode(), data);
    assert!(outline.ops().len() <= MAX_OPS);
    for (number, keys) in outline.ops().iter().enumerate() {
        assert!((1..=MAX_OP_CHANGES).contains(&keys.len()));
        assert!(keys.iter().all(|key| outline.has(number, key)));
    }
});
