//! Arbitrary bytes as messages of a shared volume's server: parts of a delivery, each a type and a length before its
//! body; and answers. What is accepted is within its limits, and leaves come back as they were.
#![no_main]

use bulla_fuzz::{plant, shared_vectors};
use libfuzzer_sys::fuzz_target;
use trust::encode::Encoder;
use wire::shared::answer::{decode_bodies, decode_have, decode_policies, encode_have};
use wire::shared::delivery::{
    Delivery, Gather, LeavesPart, SentLeaf, decode_attests, decode_leaves,
};
use wire::shared::enter::Welcome;
use wire::shared::{MAX_LEAVES, MAX_NAMES, kind};

/// A part as this target reads it.
fn part(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(body.len()).unwrap_or(u16::MAX).to_le_bytes();
    [&[kind], &len[..], body].concat()
}

fn seeds() -> Vec<Vec<u8>> {
    let mut leaves = LeavesPart::new(5);
    for leaf in shared_vectors("leaf")
        .iter()
        .filter(|leaf| leaf.len() < 1000)
    {
        leaves.push(leaf, None, &[]);
        leaves.push(leaf, Some(b"body"), &[]);
    }
    let mut attests = Encoder::new();
    for attest in shared_vectors("attest") {
        attests.bytes(&attest);
    }
    let leaves = part(kind::LEAVES_PART, &leaves.finish());
    let attests = part(kind::ATTESTS, &attests.finish());
    let notes = shared_vectors("note").into_iter().map(|note| {
        let end = [&[5, 0, 0, 0, 0, 0, 0, 0, 3], &note[..]].concat();
        [&leaves, &attests, &part(kind::DELIVERY, &end)[..]].concat()
    });
    notes.collect()
}

fn examine(delivery: &Delivery) {
    assert!(delivery.leaves.len() <= MAX_LEAVES);
    if delivery.leaves.is_empty() {
        return;
    }
    let mut part = LeavesPart::new(delivery.from);
    for leaf in &delivery.leaves {
        match leaf {
            SentLeaf::Entry { entry, body } => part.push(entry.bytes(), body.as_deref(), &[]),
            SentLeaf::Marks { marks, proofs } => part.push(&marks.encode(), None, proofs),
        }
    }
    let again = decode_leaves(&part.finish());
    assert_eq!(again, Ok((delivery.from, delivery.leaves.clone())));
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    let mut gather = Gather::default();
    let mut rest = data;
    while let Some(([kind, low, high], after)) = rest.split_first_chunk::<3>() {
        let len = usize::from(u16::from_le_bytes([*low, *high]));
        let Some((body, after)) = after.split_at_checked(len) else {
            break;
        };
        match gather.take(*kind, body) {
            Ok(Some(delivery)) => examine(&delivery),
            Ok(None) => {}
            Err(_) => break,
        }
        rest = after;
    }
    let _ = decode_attests(data);
    let _ = decode_policies(data);
    if let Ok(bodies) = decode_bodies(data) {
        assert!((1..=MAX_NAMES).contains(&bodies.len()));
    }
    if let Ok(have) = decode_have(data, data.len() * 8) {
        assert_eq!(encode_have(&have), data);
    }
    if let Ok(welcome) = Welcome::decode(data) {
        assert_eq!(welcome.encode(), data);
    }
});
