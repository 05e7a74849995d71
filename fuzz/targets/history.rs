//! Arbitrary bytes as proofs about a log, made of hashes of the true log. An accepted proof shows a true
//! statement. Also as a frontier: refused, or the canonical encoding.
#![no_main]

use bulla_fuzz::plant;
use libfuzzer_sys::fuzz_target;
use trust::encode::{Decoder, Encoder};
use trust::history::{
    Frontier, LogPoint, leaf_hash, node_hash, verify_consistency, verify_inclusion,
};

/// The true log of `size` leaves; leaf n is the byte n.
fn log(size: u8) -> Frontier {
    let mut frontier = Frontier::new();
    (0..size).for_each(|n| frontier.push(&[n]).expect("a leaf"));
    frontier
}

/// Every hash of a perfect subtree of the true log, lowest first, and one hash that is not in it.
fn hashes(size: u8) -> Vec<[u8; 32]> {
    let mut all = vec![[9; 32]];
    let mut row: Vec<[u8; 32]> = (0..size).map(|n| leaf_hash(&[n])).collect();
    while !row.is_empty() {
        all.extend(&row);
        row = row
            .chunks_exact(2)
            .filter_map(|pair| Some(node_hash(pair.first()?, pair.get(1)?)))
            .collect();
    }
    all
}

fuzz_target!(
    init: plant([
        // Leaf 2 of 4: its sibling 3, then the node above 0 and 1.
        vec![4, 2, 2, 4, 5],
        // 3 leaves within 4.
        vec![4, 0, 3, 3, 4, 5],
        vec![3; 65],
    ]),
    |data: &[u8]| {
        let mut d = Decoder::new(data, "frontier");
        if let Ok(frontier) = Frontier::decode(&mut d) {
            let mut again = Encoder::new();
            frontier.encode(&mut again);
            assert_eq!(again.finish(), data[..data.len() - d.remaining()]);
            let mut longer = frontier.clone();
            if longer.push(b"leaf").is_ok() {
                assert_eq!(longer.size(), frontier.size() + 1);
                assert_ne!(longer.root(), frontier.root());
            }
        }
        let [size, leaf, at, picks @ ..] = data else {
            return;
        };
        let size = size % 33;
        let pool = hashes(size);
        let pick = |p: &u8| pool.get(usize::from(*p) % pool.len()).copied();
        let proof: Vec<[u8; 32]> = picks.iter().take(12).filter_map(pick).collect();
        let true_log = log(size);
        let root = true_log.root();
        if verify_inclusion(&[*leaf], u64::from(*at), u64::from(size), &root, &proof).is_ok() {
            assert!(leaf == at && *at < size, "a leaf that is not there");
        }
        let new = true_log.point(0);
        let old_root = picks.last().and_then(pick).unwrap_or_default();
        for root in [old_root, log(*at % 33).root()] {
            let old = LogPoint { epoch: 0, size: u64::from(*at % 33), root };
            if verify_consistency(&old, &new, &proof).is_ok() && old.size > 0 {
                assert_eq!(root, log(*at % 33).root(), "a log that was never there");
                assert!(old.size <= new.size);
            }
        }
    }
);
