//! Tests of marks and their tree.

use proptest::prelude::*;

use super::super::samples::{refuses_cuts, refuses_flips};
use super::*;

/// A nonce of which the first byte is chosen.
fn nonce(first: u8, rest: u8) -> Nonce {
    let mut bytes = [rest; 32];
    bytes[0] = first;
    Nonce(bytes)
}

fn many(count: u16) -> Vec<Nonce> {
    let nonce = |n: u16| Nonce(leaf_hash(&n.to_le_bytes()));
    (0..count).map(nonce).collect()
}

fn encoded(proof: &MarkProof) -> Vec<u8> {
    let mut e = Encoder::new();
    proof.encode(&mut e);
    e.finish()
}

fn decoded(bytes: &[u8]) -> Result<MarkProof, Reject> {
    let mut d = Decoder::new(bytes, "proof");
    let proof = MarkProof::decode(&mut d)?;
    d.finish()?;
    Ok(proof)
}

#[test]
fn every_mark_of_a_group_commit_is_proved() {
    for count in [1, 2, 3, 64, 1000] {
        let tree = MarkTree::new(many(count)).unwrap();
        let marks = Marks::decode(&tree.marks().encode()).unwrap();
        for nonce in many(count) {
            let proof = decoded(&encoded(&tree.prove(&nonce).unwrap())).unwrap();
            assert!(marks.contain(&nonce, &proof), "{count}");
        }
        let foreign = nonce(1, 2);
        assert!(tree.prove(&foreign).is_none());
        let proof = tree.prove(&many(count)[0]).unwrap();
        assert!(!marks.contain(&foreign, &proof));
    }
    assert!(MarkTree::new(Vec::new()).is_none());
}

#[test]
fn nonce_that_comes_twice_is_in_the_tree_once() {
    let twice = [many(5), many(5)].concat();
    let tree = MarkTree::new(twice).unwrap();
    assert_eq!(tree.marks(), MarkTree::new(many(5)).unwrap().marks());
}

/// A tree in which a nonce has two leaves proves it at none but the place of its bits.
#[test]
fn nonce_has_one_place() {
    let (low, high) = (nonce(0x00, 1), nonce(0x80, 1));
    let proof = |sibling: [u8; 32]| MarkProof {
        siblings: vec![sibling],
    };
    let twice = node_hash(&leaf_hash(&low.0), &leaf_hash(&low.0));
    let marks = Marks { root: twice };
    assert!(marks.contain(&low, &proof(leaf_hash(&low.0))));
    // The same nonce to the right: its first bit says left, so nothing shows it there.
    let right_only = Marks {
        root: node_hash(&leaf_hash(&high.0), &leaf_hash(&low.0)),
    };
    assert!(!right_only.contain(&low, &proof(leaf_hash(&high.0))));
    assert!(!right_only.contain(&high, &proof(leaf_hash(&low.0))));
}

#[test]
fn nonces_that_agree_in_all_bits_but_one_are_proved() {
    let (mut a, mut b) = ([5; 32], [5; 32]);
    a[31] = 0;
    b[31] = 1;
    let tree = MarkTree::new(vec![Nonce(a), Nonce(b), nonce(0xff, 0)]).unwrap();
    for bytes in [a, b] {
        let proof = tree.prove(&Nonce(bytes)).unwrap();
        assert_eq!(proof.siblings.len(), BITS);
        assert!(tree.marks().contain(&Nonce(bytes), &proof));
        assert_eq!(decoded(&encoded(&proof)), Ok(proof));
    }
}

#[test]
fn changed_proof_is_refused() {
    let tree = MarkTree::new(many(20)).unwrap();
    let nonce = many(20)[7];
    let bytes = encoded(&tree.prove(&nonce).unwrap());
    let bad = Reject::WrongBlock;
    refuses_cuts(&bytes, |bytes| decoded(bytes).map(drop));
    refuses_flips(&bytes, |bytes| {
        let proof = decoded(bytes)?;
        let found = tree.marks().contain(&nonce, &proof);
        found.then_some(()).ok_or(bad.clone())
    });
    let mut deeper = Encoder::new();
    deeper.varint(BITS as u64 + 1).raw(&[1; 32 * (BITS + 1)]);
    assert!(decoded(&deeper.finish()).is_err());
}

#[test]
fn leaf_of_marks_has_one_encoding() {
    let leaf = MarkTree::new(many(3)).unwrap().marks().encode();
    refuses_cuts(&leaf, |bytes| Marks::decode(bytes).map(drop));
    assert!(Marks::decode(&[1; 33]).is_err());
    let nobody = [&[MARKS][..], &NOBODY].concat();
    assert!(Marks::decode(&nobody).is_err());
}

/// Figure 21 asks for at most 40 bytes a mark in the log.
#[test]
fn mark_costs_few_bytes_of_the_log() {
    let leaf = MarkTree::new(many(1)).unwrap().marks().encode();
    assert!(leaf.len() <= 40);
}

proptest! {
    #[test]
    fn tree_does_not_depend_on_the_order_of_nonces(mut nonces in prop::collection::vec(any::<[u8; 32]>(), 1..40), seed: usize) {
        let made = |nonces: &[[u8; 32]]| MarkTree::new(nonces.iter().map(|n| Nonce(*n)).collect()).unwrap();
        let before = made(&nonces);
        let middle = seed % nonces.len();
        nonces.rotate_left(middle);
        prop_assert_eq!(before.marks(), made(&nonces).marks());
        for nonce in &nonces {
            let proof = before.prove(&Nonce(*nonce)).unwrap();
            prop_assert!(before.marks().contain(&Nonce(*nonce), &proof));
        }
    }
}
