//! The log against the recursive definitions of RFC 6962, and against wrong proofs.

use trust::Reject;
use trust::encode::{Decoder, Encoder};
use trust::error::Class;
use trust::history::{
    Frontier, LogPoint, leaf_hash, node_hash, verify_consistency, verify_inclusion,
};

type Hash = [u8; 32];

const SIZES: usize = 40;

fn leaf(index: usize) -> Vec<u8> {
    format!("leaf {index}").into_bytes()
}

fn split(n: usize) -> usize {
    n.next_power_of_two() / 2
}

/// MTH(D[a:b]), RFC 6962, 2.1.
fn mth(a: usize, b: usize) -> Hash {
    match b - a {
        0 => Frontier::new().root(),
        1 => leaf_hash(&leaf(a)),
        n => node_hash(&mth(a, a + split(n)), &mth(a + split(n), b)),
    }
}

/// PATH(m, D[a:b]), RFC 6962, 2.1.1.
fn path(m: usize, a: usize, b: usize) -> Vec<Hash> {
    if b - a == 1 {
        return vec![];
    }
    let k = a + split(b - a);
    let (mut rest, sibling) = if m < k {
        (path(m, a, k), mth(k, b))
    } else {
        (path(m, k, b), mth(a, k))
    };
    rest.push(sibling);
    rest
}

/// SUBPROOF(m, D[a:b], whole), RFC 6962, 2.1.2.
fn subproof(m: usize, a: usize, b: usize, whole: bool) -> Vec<Hash> {
    if m == b {
        return if whole { vec![] } else { vec![mth(a, b)] };
    }
    let k = a + split(b - a);
    let (mut rest, sibling) = if m <= k {
        (subproof(m, a, k, whole), mth(k, b))
    } else {
        (subproof(m, k, b, false), mth(a, k))
    };
    rest.push(sibling);
    rest
}

fn point(size: usize) -> LogPoint {
    LogPoint {
        epoch: 0,
        size: size as u64,
        root: mth(0, size),
    }
}

#[test]
fn frontier_has_the_merkle_tree_hash_at_every_size() {
    let mut frontier = Frontier::new();
    for size in 0..SIZES {
        assert_eq!(frontier.point(0), point(size));
        let mut e = Encoder::new();
        frontier.encode(&mut e);
        let bytes = e.finish();
        let read = Frontier::decode(&mut Decoder::new(&bytes, "frontier"));
        assert_eq!(read.unwrap(), frontier);
        frontier.push(&leaf(size)).unwrap();
    }
}

#[test]
fn full_log_refuses_another_leaf() {
    let mut e = Encoder::new();
    e.varint(u64::MAX);
    e.raw(&[0; 64 * 32]);
    let bytes = e.finish();
    let mut frontier = Frontier::decode(&mut Decoder::new(&bytes, "frontier")).unwrap();
    assert!(frontier.push(b"one more").is_err());
}

#[test]
fn inclusion_proof_holds_only_for_its_leaf() {
    for size in 1..SIZES {
        let root = mth(0, size);
        for index in 0..size {
            let proof = path(index, 0, size);
            let (i, n) = (index as u64, size as u64);
            verify_inclusion(&leaf(index), i, n, &root, &proof).unwrap();
            let liar = |leaf: &[u8], i, n, root: &Hash, proof: &[Hash]| {
                assert!(verify_inclusion(leaf, i, n, root, proof).is_err());
            };
            liar(b"another leaf", i, n, &root, &proof);
            liar(&leaf(index), i + 1, n, &root, &proof);
            liar(&leaf(index), i, n, &[0; 32], &proof);
            let (long, high) = longer(&proof, &root);
            liar(&leaf(index), i, n, &root, &long);
            // Even when the root fits the longer path: a log of that size has no such path.
            liar(&leaf(index), i, n, &high, &long);
            if let Some((short, low)) = shorter(&leaf(index), &proof) {
                liar(&leaf(index), i, n, &low, &short);
            }
        }
        let beyond = verify_inclusion(&leaf(0), 1, 1, &mth(0, 1), &[]);
        assert!(beyond.is_err());
    }
}

/// A path that is one step too long, and the root that it leads to.
fn longer(proof: &[Hash], root: &Hash) -> (Vec<Hash>, Hash) {
    let extra = [7; 32];
    ([proof, &[extra]].concat(), node_hash(&extra, root))
}

/// The empty path, with the root that a log of one leaf would have.
fn shorter(leaf: &[u8], proof: &[Hash]) -> Option<(Vec<Hash>, Hash)> {
    (!proof.is_empty()).then(|| (vec![], leaf_hash(leaf)))
}

#[test]
fn consistency_proof_holds_only_for_its_pair_of_logs() {
    for new in 1..SIZES {
        for old in 1..=new {
            let proof = subproof(old, 0, new, true);
            verify_consistency(&point(old), &point(new), &proof).unwrap();
            let other = |size| LogPoint {
                root: [9; 32],
                ..point(size)
            };
            assert!(verify_consistency(&other(old), &point(new), &proof).is_err());
            assert!(verify_consistency(&point(old), &other(new), &proof).is_err());
            let epoch = LogPoint {
                epoch: 1,
                ..point(new)
            };
            assert!(verify_consistency(&point(old), &epoch, &proof).is_err());
            let extra = [&proof[..], &[[7; 32]]].concat();
            assert!(verify_consistency(&point(old), &point(new), &extra).is_err());
            if old < new {
                let low = &proof[..proof.len() - 1];
                assert!(verify_consistency(&point(old), &point(new), low).is_err());
                let back = verify_consistency(&point(new), &point(old), &proof);
                assert_eq!(back.unwrap_err().class(), Class::Fork);
            }
        }
        verify_consistency(&point(0), &point(new), &[]).unwrap();
        assert!(verify_consistency(&point(0), &point(new), &[[0; 32]]).is_err());
    }
}

#[test]
fn consistency_proof_of_another_length_is_refused() {
    // Roots that fit a path one step too long.
    let proof = subproof(3, 0, 7, true);
    let lift = |p: LogPoint| LogPoint {
        root: node_hash(&[7; 32], &p.root),
        ..p
    };
    let long = [&proof[..], &[[7; 32]]].concat();
    let lifted = verify_consistency(&lift(point(3)), &lift(point(7)), &long);
    assert!(matches!(lifted, Err(Reject::BadHistory(_))));
    // And a path that is one step too short: the roots at an inner node.
    let low = LogPoint {
        root: mth(0, 4),
        ..point(7)
    };
    let short = &proof[..proof.len() - 1];
    assert!(verify_consistency(&point(3), &low, short).is_err());
}

#[test]
fn two_logs_of_one_size_are_a_fork() {
    let other = LogPoint {
        root: [9; 32],
        ..point(5)
    };
    let fork = verify_consistency(&point(5), &other, &[]).unwrap_err();
    assert_eq!(fork.class(), Class::Fork);
    verify_consistency(&point(5), &point(5), &[]).unwrap();
}

#[test]
fn an_empty_proof_of_an_imperfect_log_is_refused() {
    assert!(verify_consistency(&point(3), &point(7), &[]).is_err());
    assert!(verify_consistency(&point(4), &point(7), &[]).is_err());
}
