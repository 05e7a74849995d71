//! Arbitrary bytes as a leaf of a shared volume's log, as the proof of a mark, as an attest, as a note. They are
//! refused, or they are the canonical encoding; nothing that nobody signed is verified.
#![no_main]

use bulla_fuzz::{key, plant, shared_vectors};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use trust::device::DeviceKey;
use trust::encode::{Decoder, Encoder};
use trust::statement::VolumeId;
use trust_shared::attest::SignedAttest;
use trust_shared::entry::{Entry, MAX_ENTRY_BYTES};
use trust_shared::leaf::Leaf;
use trust_shared::mark::{MarkProof, MarkTree, Nonce};
use trust_shared::note::SignedNote;

/// No vector is of this volume.
const VOLUME: VolumeId = VolumeId::from_bytes([0xee; 32]);

fn seeds() -> Vec<Vec<u8>> {
    let of = |structure: &&str| shared_vectors(structure);
    ["leaf", "mark", "attest", "note"]
        .iter()
        .flat_map(of)
        .collect()
}

fn same(data: &[u8], rest: &Decoder<'_>, encode: impl Fn(&mut Encoder)) {
    let mut e = Encoder::new();
    encode(&mut e);
    assert_eq!(e.finish(), data[..data.len() - rest.remaining()]);
}

fn leaf(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    match Leaf::decode(bytes) {
        Err(_) => {}
        Ok(Leaf::Marks(marks)) => assert_eq!(marks.encode()[..], *data),
        Ok(Leaf::Entry(signed)) => {
            assert!(data.len() <= MAX_ENTRY_BYTES);
            assert!(signed.verify(VOLUME).is_err());
            // The same words of another device are the same bytes, up to key and signature.
            let other = key(1);
            let entry = Entry {
                device: DeviceKey::from(&other.public()),
                ..signed.entry().clone()
            };
            let again = entry.sign(VOLUME, &other).expect("an entry");
            let end = data.len() - 64;
            let differs = |(at, (a, b)): (usize, (&u8, &u8))| (a != b).then_some(at);
            let pairs = data[..end].iter().zip(&again.bytes()[..end]);
            let found: Vec<usize> = pairs.enumerate().filter_map(differs).collect();
            let key_at = data
                .iter()
                .skip(1)
                .position(|byte| byte & 0x80 == 0)
                .unwrap_or(0)
                + 2;
            assert!(found.iter().all(|at| (key_at..key_at + 32).contains(at)));
            assert!(signed.entry().heading().attests() <= signed.entry().seen.size);
        }
    }
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    leaf(data);
    let mut d = Decoder::new(data, "proof");
    if let Ok(proof) = MarkProof::decode(&mut d) {
        same(data, &d, |e| proof.encode(e));
        let tree = MarkTree::new(vec![Nonce::from_bytes([1; 32])]).expect("a mark");
        assert!(!tree.marks().contain(&Nonce::from_bytes([2; 32]), &proof));
    }
    let nonces: Vec<Nonce> = data.as_chunks::<32>().0.iter().map(|n| Nonce::from_bytes(*n)).collect();
    if let Some(tree) = MarkTree::new(nonces.clone()) {
        for nonce in nonces {
            let proof = tree.prove(&nonce).expect("a mark of the tree");
            assert!(tree.marks().contain(&nonce, &proof));
        }
    }
    if let Ok(attest) = SignedAttest::decode(Bytes::copy_from_slice(data)) {
        assert_eq!(attest.bytes(), data);
        assert!(attest.verify(VOLUME).is_err());
    }
    let orderer = key(2).public();
    let mut d = Decoder::new(data, "note");
    if let Ok(note) = SignedNote::decode(&mut d) {
        same(data, &d, |e| note.encode(e));
        assert!(note.verify(VOLUME, &orderer).is_err());
        let text = note.to_text(VOLUME, &orderer);
        assert!(SignedNote::from_text(&text, VOLUME, &orderer).is_err());
    }
    if let Ok(text) = std::str::from_utf8(data) {
        assert!(SignedNote::from_text(text, VOLUME, &orderer).is_err());
    }
});
