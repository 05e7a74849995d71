//! Attacks on what follows a statement's body: its extensions and the list of signatures, of known and of unknown
//! algorithms.

use trust::Reject;
use trust::algorithm::UnknownKey;
use trust::encode::Encoder;
use trust::key::PublicKey;
use trust::policy::{Roles, Threshold};
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::statement::{Signed, Statement};

use crate::envelope_attacks::{ENTRY_BYTES, policy_with, statement};
use crate::world::*;

#[test]
fn key_that_signs_twice_is_refused() {
    let signed = sign(&statement(), &[2]).to_bytes();
    let (body, entry) = signed.split_at(signed.len() - ENTRY_BYTES - 1);
    let one = [body, entry].concat();
    assert!(Signed::from_bytes(&one).is_ok());
    let twice = [body, &[2], &entry[1..], &entry[1..]].concat();
    refused_as(Signed::from_bytes(&twice), "one twice");
}

#[test]
fn signatures_in_another_order_are_refused() {
    let signed = sign(&statement(), &[2, 3]).to_bytes();
    let (rest, entries) = signed.split_at(signed.len() - 2 * ENTRY_BYTES);
    let (one, two) = entries.split_at(ENTRY_BYTES);
    let swapped = [rest, two, one].concat();
    refused_as(Signed::from_bytes(&swapped), "not sorted");
}

/// The bytes of a signed statement with an entry after those that it has.
fn with_entry(signed: &Signed, algorithm: u64, key: &[u8], signature: &[u8]) -> Vec<u8> {
    let bytes = signed.to_bytes();
    let count = signed.signatures().len();
    let (body, entries) = bytes.split_at(bytes.len() - count * ENTRY_BYTES);
    let mut e = Encoder::new();
    e.raw(&body[..body.len() - 1]).varint(count as u64 + 1);
    e.raw(entries);
    e.varint(algorithm).bytes(key).bytes(signature);
    e.finish()
}

#[test]
fn signature_of_an_unknown_algorithm_is_kept_and_does_not_count() {
    let signed = sign(&statement(), &[2]);
    let bytes = with_entry(&signed, 2, &[7; 1952], &[8; 3309]);
    let more = Signed::from_bytes(&bytes).unwrap();
    assert_eq!(more.to_bytes(), bytes);
    assert_eq!(more.hash(), signed.hash());
    let mut signatures = Signatures::default();
    assert!(signatures.require(&more, &threshold(1, &[2]), "x").is_ok());
    let two = threshold(2, &[2, 3]);
    refused_as(signatures.require(&more, &two, "x"), "not signed");
    // A good Ed25519 signature under another algorithm's number does not count either.
    let good = key(2).sign(&statement().signed_message());
    let disguised = with_entry(&sign(&statement(), &[]), 2, key2().as_bytes(), &good);
    let disguised = Signed::from_bytes(&disguised).unwrap();
    let refused = signatures.require(&disguised, &threshold(1, &[2]), "x");
    refused_as(refused, "not signed");
}

fn key2() -> PublicKey {
    key(2).public()
}

#[test]
fn malformed_signature_entries_are_refused() {
    let signed = sign(&statement(), &[2]);
    let refused = |algorithm, key: &[u8], signature: &[u8], why| {
        let bytes = with_entry(&signed, algorithm, key, signature);
        refused_as(Signed::from_bytes(&bytes), why);
    };
    refused(0, &[1], &[1], "signature algorithm 0");
    refused(1, &[0xff; 31], &[1; 64], "of another length");
    refused(1, &[0xff; 32], &[1; 63], "of another length");
    refused(2, &[1; 4097], &[1], "too long");
    refused(2, &[1], &vec![1; (16 << 10) + 1], "too long");
    let longest = with_entry(&signed, 2, &[1; 4096], &vec![1; 16 << 10]);
    assert!(Signed::from_bytes(&longest).is_ok());
}

#[test]
fn statement_that_is_too_long_with_its_signatures_is_refused() {
    let mut bytes = sign(&statement(), &[]).to_bytes();
    bytes.pop();
    let mut e = Encoder::new();
    e.raw(&bytes).varint(16);
    for number in 0..16u8 {
        e.varint(2).bytes(&[number; 32]).bytes(&vec![9; 16 << 10]);
    }
    let bytes = e.finish();
    assert!(bytes.len() > trust::statement::MAX_SIGNED_BYTES);
    refused_as(Signed::from_bytes(&bytes), "too long with its signatures");
}

// Extensions.

/// The statement with other extensions at its end.
fn with_extensions(extensions: &[(u64, &[u8])]) -> Result<RootRecord, Reject> {
    let mut bytes = statement().bytes().to_vec();
    assert_eq!(bytes.pop(), Some(0));
    let mut e = Encoder::new();
    e.raw(&bytes).varint(extensions.len() as u64);
    for (tag, value) in extensions {
        e.varint(*tag).bytes(value);
    }
    let statement = Statement::decode(e.finish().into())?;
    statement.read(World::new().volume)
}

#[test]
fn even_extension_is_ignored_and_an_odd_one_is_unsupported() {
    let plain = with_extensions(&[]).unwrap();
    assert_eq!(with_extensions(&[(2, b"x"), (4, b"")]), Ok(plain));
    for odd in [&[(1, &b"x"[..])][..], &[(2, b"x"), (7, b"y")]] {
        let refused = with_extensions(odd).unwrap_err();
        assert!(matches!(refused, Reject::Unsupported { .. }), "{refused}");
    }
}

#[test]
fn extensions_out_of_order_or_too_many_are_refused() {
    refused_as(with_extensions(&[(4, b""), (2, b"")]), "not sorted");
    refused_as(with_extensions(&[(2, b""), (2, b"")]), "one twice");
    let many: Vec<(u64, &[u8])> = (0..65).map(|n| (2 * n, &b""[..])).collect();
    refused_as(with_extensions(&many), "too many extensions");
    assert!(with_extensions(&many[1..]).is_ok());
}

#[test]
fn too_many_signatures_are_refused() {
    let numbers: Vec<u8> = (1..=81).collect();
    let signed = sign(&statement(), &numbers).to_bytes();
    refused_as(Signed::from_bytes(&signed), "too many signatures");
    assert!(Signed::from_bytes(&sign(&statement(), &numbers[1..]).to_bytes()).is_ok());
}

#[test]
fn trailing_bytes_after_a_signed_statement_are_refused() {
    let mut signed = sign(&statement(), &[2]).to_bytes();
    signed.push(0);
    refused_as(Signed::from_bytes(&signed), "trailing bytes");
}

// Roles.

/// A key of an algorithm that this build does not know.
fn unknown_key(byte: u8) -> UnknownKey {
    UnknownKey::new(2, vec![byte; 1952].into()).unwrap()
}

#[test]
fn role_key_of_an_unknown_algorithm_keeps_its_place_and_does_not_count() {
    let known = vec![key(2).public(), key(3).public()];
    let publishers = |needed| {
        Threshold::with_unknown(needed, known.clone(), vec![unknown_key(1), unknown_key(2)])
    };
    let with = |needed| Roles {
        publishers: publishers(needed).unwrap(),
        ..roles()
    };
    let policy = policy_with(with(2)).unwrap();
    assert_eq!(policy.roles().publishers, publishers(2).unwrap());
    assert!(publishers(5).is_err(), "it needs more keys than it has");
    let head = |needed, signers: &[u8]| {
        let world = World::with_genesis(with(needed), u64::MAX, &[1]);
        let head = world.head_of(&world.record(1), signers);
        judge(&world.floor(), &head)
    };
    assert!(head(2, &[2, 3]).is_ok());
    refused_as(head(2, &[2]), "not signed");
    // Three of these keys cannot be counted by this build.
    for signers in [&[][..], &[2], &[2, 3]] {
        let refused = head(3, signers).unwrap_err();
        assert!(matches!(refused, Reject::Unsupported { .. }), "{refused}");
        assert!(refused.to_string().contains("needs a newer bulla"));
    }
}

#[test]
fn quorum_of_witnesses_with_unknown_algorithms_is_unsupported() {
    let witnesses = Threshold::with_unknown(1, vec![], vec![unknown_key(1)]).unwrap();
    let roles = Roles {
        witnesses,
        ..roles()
    };
    let world = World::with_genesis(roles, u64::MAX, &[1]);
    let mut head = world.head_of(&world.record(1), &[2]);
    head.checkpoint = Some(world.checkpoint(&head, &[20]));
    let refused = judge(&world.floor(), &head).unwrap_err();
    assert!(matches!(refused, Reject::Unsupported { .. }), "{refused}");
}
