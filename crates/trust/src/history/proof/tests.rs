//! Tests of proofs, against RFC 6962 for all sizes of small logs.

use proptest::prelude::*;

use super::*;
use crate::history::{leaf_hash, verify_consistency, verify_inclusion};

fn leaf(n: u64) -> Vec<u8> {
    n.to_le_bytes().to_vec()
}

/// A log of `size` leaves: its roots at every size, and the hashes of its full blocks.
struct Log {
    roots: Roots,
    blocks: Vec<Vec<[u8; 32]>>,
    at: Vec<[u8; 32]>,
}

impl Log {
    fn new(size: u64) -> Log {
        let (mut roots, mut blocks) = (Roots::new(), Vec::new());
        let mut frontier = Frontier::new();
        let mut at = vec![frontier.root()];
        for n in 0..size {
            frontier.push(&leaf(n)).unwrap();
            at.push(frontier.root());
            blocks.extend(roots.push(leaf_hash(&leaf(n))));
        }
        assert_eq!(roots.size(), size);
        Log { roots, blocks, at }
    }

    fn block(&self) -> impl Fn(u64) -> Option<Vec<[u8; 32]>> {
        |block| self.blocks.get(block as usize).cloned()
    }

    fn point(&self, size: u64) -> LogPoint {
        LogPoint {
            epoch: 0,
            size,
            root: self.at[size as usize],
        }
    }
}

#[test]
fn proofs_hold_for_all_sizes_of_small_logs() {
    let log = Log::new(40);
    for size in 0..=40 {
        assert_eq!(
            log.roots.root_at(size, log.block()),
            Some(log.at[size as usize])
        );
        for index in 0..=size {
            let of = log.point(size);
            if index < size {
                let proof = log.roots.inclusion(index, size, log.block()).unwrap();
                let root = &of.root;
                assert_eq!(
                    verify_inclusion(&leaf(index), index, size, root, &proof),
                    Ok(())
                );
            }
            let proof = log.roots.prefix(index, size, log.block()).unwrap();
            assert_eq!(prefix_root(index, &of, &proof), Ok(log.at[index as usize]));
            // Without its first node it is the consistency proof of RFC 6962 for powers of two.
            let rfc = match index.is_power_of_two() && !proof.is_empty() {
                true => &proof[1..],
                false => &proof,
            };
            assert_eq!(verify_consistency(&log.point(index), &of, rfc), Ok(()));
        }
        assert_eq!(log.roots.inclusion(size, size, log.block()), None);
        assert_eq!(log.roots.prefix(size + 1, size, log.block()), None);
    }
    assert_eq!(log.roots.root_at(41, log.block()), None);
}

#[test]
fn proof_of_a_prefix_holds_for_its_log_alone() {
    let log = Log::new(40);
    let of = log.point(40);
    for size in 1..40 {
        let proof = log.roots.prefix(size, 40, log.block()).unwrap();
        for at in 0..proof.len() {
            let mut changed = proof.clone();
            changed[at][0] ^= 1;
            assert!(prefix_root(size, &of, &changed).is_err());
            assert!(prefix_root(size, &of, &proof[..at]).is_err());
        }
        let longer = [proof.as_slice(), &[[0; 32]]].concat();
        assert!(prefix_root(size, &of, &longer).is_err());
        assert!(prefix_root(41, &of, &proof).is_err());
        assert!(prefix_root(40, &of, &proof).is_err());
        assert!(prefix_root(0, &of, &proof).is_err());
    }
    assert!(prefix_root(41, &of, &[]).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 6))]

    #[test]
    fn proofs_hold_across_blocks(size in 1u64..1500, prefix: u64, index: u64) {
        let log = Log::new(size);
        let (prefix, index) = (prefix % (size + 1), index % size);
        let of = log.point(size);
        prop_assert_eq!(log.roots.root_at(prefix, log.block()), Some(log.at[prefix as usize]));
        let proof = log.roots.prefix(prefix, size, log.block()).unwrap();
        prop_assert_eq!(prefix_root(prefix, &of, &proof), Ok(log.at[prefix as usize]));
        let proof = log.roots.inclusion(index, size, log.block()).unwrap();
        prop_assert_eq!(verify_inclusion(&leaf(index), index, size, &of.root, &proof), Ok(()));
        // Without the block that the proof goes into there is none.
        let place = log.roots.place(index >> BLOCK_HEIGHT);
        if place.is_some_and(|place| place < log.roots.blocks.len()) {
            prop_assert_eq!(log.roots.inclusion(index, size, |_| None), None);
        }
    }
}
