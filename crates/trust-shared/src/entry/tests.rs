//! Tests of entries: changed bytes, signatures, bounds, sizes.

use proptest::prelude::*;

use super::super::leaf::Leaf;
use super::super::samples::{VOLUME, device, entry, key, refuses_cuts, refuses_flips, signed};
use super::*;

fn decode(bytes: &[u8]) -> Result<(), Reject> {
    SignedEntry::decode(Bytes::copy_from_slice(bytes)).map(drop)
}

fn accept(bytes: &[u8]) -> Result<(), Reject> {
    let Leaf::Entry(signed) = Leaf::decode(Bytes::copy_from_slice(bytes))? else {
        return Err(bad("marks"));
    };
    signed.verify(VOLUME).map(drop)
}

#[test]
fn entry_with_any_bit_or_length_changed_is_refused() {
    for n in [0, 1, 300] {
        let signed = signed(1, &entry(1, 3, n));
        refuses_cuts(signed.bytes(), decode);
        refuses_flips(signed.bytes(), accept);
    }
}

#[test]
fn entry_comes_back_as_it_was_signed() {
    let entry = entry(1, 3, 5);
    let signed = signed(1, &entry);
    let verified = signed.verify(VOLUME).unwrap();
    assert_eq!(verified.entry(), &entry);
    assert_eq!(verified.hash(), leaf_hash(signed.bytes()));
    assert_eq!(signed.signed_part().len() + 64, signed.bytes().len());
    assert_eq!(verified.signed(), &signed);
}

#[test]
fn signature_holds_for_one_volume_one_device_and_one_use() {
    let signed = signed(1, &entry(1, 3, 5));
    let elsewhere = VolumeId::from_bytes([8; 32]);
    assert!(signed.verify(elsewhere).is_err());
    // The bytes of the entry, signed as if they were an attest.
    let part = signed.signed_part().to_vec();
    let other = device::sign(b"bulla attest signature 0\n", VOLUME, part, &key(1));
    assert!(accept(&other).is_err());
    // Signed by another key than the entry names.
    let part = signed.signed_part().to_vec();
    let other = device::sign(SIGNING_DOMAIN, VOLUME, part, &key(2));
    assert_eq!(
        accept(&other),
        Err(Reject::NotSigned("the device's signature is bad"))
    );
}

#[test]
fn bytes_that_are_no_key_are_refused_when_the_signature_is_verified() {
    let mut small_order = signed(1, &entry(1, 3, 5)).bytes().to_vec();
    small_order[2..34].copy_from_slice(&[0; 32]);
    assert_eq!(decode(&small_order), Ok(()));
    assert!(accept(&small_order).is_err());
}

#[test]
fn entry_that_no_encoding_can_say_is_not_signed() {
    let sign = |entry: &Entry| entry.sign(VOLUME, &key(1)).map(drop);
    let good = entry(1, 3, 5);
    assert_eq!(sign(&good), Ok(()));
    let keeps_more = Entry {
        kept: 301,
        ..good.clone()
    };
    assert!(sign(&keeps_more).is_err());
    let by_another = Entry {
        device: device(2),
        ..good.clone()
    };
    assert!(sign(&by_another).is_err());
    let with_ops = |change: fn(&mut Ops)| {
        let Content::Ops(mut ops) = good.content.clone() else {
            unreachable!()
        };
        change(&mut ops);
        Entry {
            content: Content::Ops(ops),
            ..good.clone()
        }
    };
    assert!(sign(&with_ops(|ops| ops.n = 0)).is_err());
    let longest = with_ops(|ops| ops.outline = vec![1; MAX_OPS_BYTES].into());
    assert_eq!(sign(&longest), Ok(()));
    let longer = with_ops(|ops| ops.outline = vec![1; MAX_OPS_BYTES + 1].into());
    assert!(sign(&longer).is_err());
}

#[test]
fn floor_beyond_what_was_seen_has_no_encoding() {
    let mut e = Encoder::new();
    e.u8(RESUME).varint(0).raw(device(1).as_bytes());
    e.raw(&[3; 16]).varint(5).raw(&[9; 32]).varint(6);
    let bytes = device::sign(SIGNING_DOMAIN, VOLUME, e.finish(), &key(1));
    assert_eq!(decode(&bytes), Err(bad("keeps more than it has seen")));
}

#[test]
fn body_is_the_one_that_was_hashed_and_short_enough() {
    let ops = |outline: usize, body: &[u8]| Ops {
        n: 1,
        previous: [0; 32],
        outline: vec![1; outline].into(),
        body_hash: body_hash(body),
    };
    let body = vec![2; 100];
    assert_eq!(ops(7, &body).check_body(&body), Ok(()));
    assert_eq!(ops(7, &body).check_body(b""), Err(Reject::WrongBlock));
    assert_eq!(ops(MAX_OPS_BYTES - 100, &body).check_body(&body), Ok(()));
    let too_long = ops(MAX_OPS_BYTES - 99, &body).check_body(&body);
    assert_eq!(too_long, Err(bad("outline and body are too long")));
}

#[test]
fn heading_says_what_the_entry_says() {
    let heading = entry(1, 3, 5).heading();
    assert_eq!((heading.n, heading.resume, heading.alone), (5, false, true));
    assert_eq!((heading.previous, heading.kept), ([5; 32], 290));
    assert_eq!(heading.seen.size, 300);
    let resume = entry(1, 3, 0).heading();
    assert_eq!((resume.n, resume.resume, resume.alone), (0, true, true));
}

/// Figure 21 asks for at most 400 bytes an entry with a small operation: outline and body included.
#[test]
fn entry_with_a_small_operation_is_small() {
    let mut small = entry(1, 3, 1 << 20);
    small.seen.size = 1 << 30;
    small.kept = small.seen.size - 1000;
    let Content::Ops(ops) = &mut small.content else {
        unreachable!()
    };
    ops.outline = Bytes::new();
    let bytes = signed(1, &small).bytes().len();
    assert!(bytes <= 230, "{bytes} bytes beside outline and body");
    let resume = signed(1, &entry(1, 3, 0)).bytes().len();
    assert!(resume <= 160, "{resume} bytes of a Resume");
}

#[test]
fn overlong_entry_is_refused_before_it_is_read() {
    let long = vec![OPS; MAX_ENTRY_BYTES + 1];
    assert_eq!(decode(&long), Err(bad("too long")));
}

#[test]
fn leaf_of_a_later_kind_is_unsupported_and_accuses_nobody() {
    let later = Leaf::decode(Bytes::from_static(&[4; 40]));
    assert!(
        matches!(later, Err(Reject::Unsupported { .. })),
        "{later:?}"
    );
    assert!(Leaf::decode(Bytes::new()).is_err());
    assert!(decode(&[3; 33]).is_err());
}

proptest! {
    #[test]
    fn entries_have_one_encoding(
        epoch: u64, size: u64, forgets: u64, n in 1u64.., outline in prop::collection::vec(any::<u8>(), 0..200),
        resume: bool, random: [u8; 32], incarnation: [u8; 16],
    ) {
        let ops = Ops { n, previous: random, outline: outline.into(), body_hash: body_hash(&random) };
        let made = Entry {
            epoch,
            device: device(1),
            incarnation: Incarnation::from_bytes(incarnation),
            seen: Prefix { size, root: random },
            kept: size.saturating_sub(forgets),
            content: if resume { Content::Resume } else { Content::Ops(ops) },
        };
        let signed = made.sign(VOLUME, &key(1)).unwrap();
        prop_assert_eq!(signed.entry(), &made);
        let read = SignedEntry::decode(signed.bytes().clone()).unwrap();
        prop_assert_eq!(&read, &signed);
        prop_assert!(read.verify(VOLUME).is_ok());
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_canonical(bytes in prop::collection::vec(any::<u8>(), 0..400), kind in 1u8..4) {
        let bytes = [vec![kind], bytes].concat();
        if let Ok(signed) = SignedEntry::decode(bytes.clone().into()) {
            let again = signed.entry().sign(VOLUME, &key(1));
            // The content alone gives the same bytes, up to the signature.
            if let Ok(again) = again {
                prop_assert_eq!(again.signed_part(), signed.signed_part());
            }
        }
    }
}
