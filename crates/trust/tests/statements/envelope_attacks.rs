//! Attacks on keys, envelopes, bodies and heads: a second encoding, a wrong purpose or a later format is
//! refused before the content is used.

use bytes::Bytes;
use trust::Reject;
use trust::algorithm::UnknownKey;
use trust::encode::{Decoder, Encoder};
use trust::floor::Floor;
use trust::head::{Head, MAX_HEAD_BYTES};
use trust::key::PublicKey;
use trust::policy::{Genesis, Policy, Revocation, Roles, Successor, Threshold, VolumeId};
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::statement::{Body, MAX_STATEMENT_BYTES, Purpose, Signed, Statement};
use trust::timestamp::Timestamp;

use crate::world::*;

/// An Ed25519 signature entry: algorithm, key and signature, with two lengths.
const ENTRY_BYTES: usize = 1 + 1 + 32 + 1 + 64;

/// The bytes of `statement` with the one at `at` replaced.
fn patched(statement: &Statement, at: usize, byte: u8) -> Result<Statement, Reject> {
    let mut bytes = statement.bytes().to_vec();
    bytes[at] = byte;
    Statement::decode(bytes.into())
}

fn statement() -> Statement {
    let world = World::new();
    world.record(1).statement(world.volume)
}

#[test]
fn a_later_format_is_refused() {
    refused_as(patched(&statement(), 0, 1), "needs a newer bulla: format 1");
    refused_as(
        patched(&statement(), 1, 1),
        "needs a newer bulla: format 256",
    );
}

#[test]
fn an_unknown_incompatible_flag_is_refused_and_a_compatible_one_is_not() {
    refused_as(
        patched(&statement(), 5, 1),
        "needs a newer bulla: flags 0x0001",
    );
    refused_as(patched(&statement(), 6, 0x80), "flags 0x8000");
    let compatible = patched(&statement(), 3, 1).unwrap();
    assert_ne!(compatible.hash(), statement().hash());
    compatible.read::<RootRecord>(World::new().volume).unwrap();
}

#[test]
fn an_unknown_purpose_is_refused() {
    refused_as(
        patched(&statement(), 2, 0),
        "needs a newer bulla: purpose 0",
    );
    for purpose in 4..=31 {
        let refused = patched(&statement(), 2, purpose).unwrap_err();
        assert!(matches!(refused, Reject::Unsupported { .. }), "{refused}");
    }
}

#[test]
fn an_oversize_statement_is_refused() {
    let mut bytes = statement().bytes().to_vec();
    bytes.resize(MAX_STATEMENT_BYTES + 1, 0);
    refused_as(Statement::decode(bytes.into()), "too long");
}

#[test]
fn trailing_bytes_after_a_body_are_refused() {
    let mut bytes = statement().bytes().to_vec();
    bytes.push(0);
    let statement = Statement::decode(bytes.into()).unwrap();
    refused_as(
        statement.read::<RootRecord>(World::new().volume),
        "trailing bytes",
    );
}

#[test]
fn a_purpose_changed_after_signing_voids_the_signature() {
    let signed = sign(&statement(), &[2]);
    let other = patched(&statement(), 2, 3).unwrap();
    let mut signatures = Signatures::default();
    let publisher = threshold(1, &[2]);
    assert!(signatures.require(&signed, &publisher, "x").is_ok());
    let mut e = Encoder::new();
    e.bytes(other.bytes());
    let swapped = [
        e.finish(),
        signed.to_bytes()[signed.to_bytes().len() - ENTRY_BYTES - 1..].to_vec(),
    ]
    .concat();
    let swapped = Signed::from_bytes(&swapped).unwrap();
    refused_as(signatures.require(&swapped, &publisher, "x"), "not signed");
}

/// A timestamp's body under the purpose of a root record.
struct Disguised(Timestamp);

impl Body for Disguised {
    const PURPOSE: Purpose = Purpose::Root;
    fn encode(&self, out: &mut Encoder) {
        self.0.encode(out);
    }
    fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        Timestamp::decode(d).map(Disguised)
    }
}

#[test]
fn statement_of_another_purpose_is_refused_although_its_body_fits() {
    let mut world = World::new();
    let head = world.publish(1);
    let body = Disguised(world.timestamp(&head));
    let statement = Statement::new(world.volume, &body);
    assert!(statement.read::<Disguised>(world.volume).is_ok());
    assert!(statement.read::<Timestamp>(world.volume).is_err());
}

#[test]
fn signature_without_the_statement_domain_is_refused() {
    // Another program made this key sign the same bytes without bulla's domain.
    let signed = sign(&statement(), &[2]);
    let foreign = key(2).sign(statement().bytes());
    let mut bytes = signed.to_bytes();
    let at = bytes.len() - 64;
    bytes[at..].copy_from_slice(&foreign);
    let signed = Signed::from_bytes(&bytes).unwrap();
    let required = Signatures::default().require(&signed, &threshold(1, &[2]), "x");
    refused_as(required, "not signed");
}

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
    let (key, signature) = (vec![7; 1952], vec![8; 3309]);
    let bytes = with_entry(&signed, 2, &key, &signature);
    let more = Signed::from_bytes(&bytes).unwrap();
    assert_eq!(more.to_bytes(), bytes);
    assert_eq!(more.hash(), signed.hash());
    let mut signatures = Signatures::default();
    assert!(signatures.require(&more, &threshold(1, &[2]), "x").is_ok());
    let two = threshold(2, &[2, 3]);
    refused_as(signatures.require(&more, &two, "x"), "not signed");
    // Not with the bytes of a known key either.
    let disguised = with_entry(&sign(&statement(), &[]), 2, key2().as_bytes(), &[1; 64]);
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

// The cache.

#[test]
fn signature_cache_distinguishes_message_key_and_signature() {
    let mut cache = Signatures::default();
    let (one, two) = (key(1), key(2));
    let signature = one.sign(b"message");
    assert!(cache.made(b"message", &one.public(), &signature));
    assert!(cache.made(b"message", &one.public(), &signature));
    assert_eq!(cache.len(), 1);
    assert!(!cache.made(b"massage", &one.public(), &signature));
    assert!(!cache.made(b"message", &two.public(), &signature));
    let mut other = signature;
    other[63] ^= 1;
    assert!(!cache.made(b"message", &one.public(), &other));
    assert_eq!(cache.len(), 1);
}

#[test]
fn the_cache_is_bounded_and_forgets_the_oldest() {
    let mut cache = Signatures::new(2);
    assert!(cache.is_empty());
    for message in [b"a", b"b", b"c", b"c"] {
        assert!(cache.made(message, &key(1).public(), &key(1).sign(message)));
    }
    assert_eq!(cache.len(), 2);
    let mut none = Signatures::new(0);
    assert!(none.made(b"a", &key(1).public(), &key(1).sign(b"a")));
    assert!(none.is_empty());
}

#[test]
fn cached_signature_does_not_give_a_role() {
    let signed = sign(&statement(), &[2]);
    let mut cache = Signatures::default();
    cache.require(&signed, &threshold(1, &[2]), "x").unwrap();
    refused_as(
        cache.require(&signed, &threshold(1, &[3]), "x"),
        "not signed",
    );
    refused_as(
        cache.require(&signed, &threshold(2, &[2, 3]), "x"),
        "not signed",
    );
}

// Keys.

#[test]
fn a_key_under_which_anybody_can_sign_is_refused() {
    let mut identity = [0; 32];
    identity[0] = 1;
    refused_as(PublicKey::from_bytes(identity), "small order");
    refused_as(PublicKey::from_bytes([0; 32]), "small order");
    let mut none = [0; 32];
    none[0] = 2;
    refused_as(PublicKey::from_bytes(none), "not a point");
}

#[test]
fn a_second_encoding_of_a_key_is_refused() {
    // y = p + 3: a point of large order, encoded out of range.
    let mut bytes = [0xff; 32];
    bytes[0] = 0xf0;
    bytes[31] = 0x7f;
    refused_as(PublicKey::from_bytes(bytes), "canonical");
}

#[test]
fn a_mistyped_key_is_refused() {
    let text = key(1).public().to_string();
    assert!(text.starts_with("key1"));
    assert_eq!(text.parse::<PublicKey>().unwrap(), key(1).public());
    assert!(text.replace("key1", "vol1").parse::<PublicKey>().is_err());
    let weak = trust::text::write(trust::text::Noun::Key, &[0; 32]);
    assert!(weak.parse::<PublicKey>().is_err());
    let volume = World::new().volume;
    assert_eq!(volume.to_string().parse::<VolumeId>().unwrap(), volume);
}

#[test]
fn a_secret_key_does_not_print_itself() {
    let shown = format!("{:?}", key(7));
    assert_eq!(shown, format!("SecretKey(of {})", key(7).public()));
    assert_eq!(*key(7).seed(), [7; 32]);
}

// Bodies.

fn decode<B: Body>(bytes: &[u8]) -> Result<B, Reject> {
    B::decode(&mut Decoder::new(bytes, "body"))
}

fn bytes_of<B: Body>(body: &B) -> Vec<u8> {
    let mut e = Encoder::new();
    body.encode(&mut e);
    e.finish()
}

/// Encodes a policy with these roles and decodes it again.
fn policy_with(roles: Roles) -> Result<Policy, Reject> {
    let genesis = Genesis::new("x", [1; 32], [2; 32], roles).unwrap();
    decode(&bytes_of(&Policy::Genesis(genesis)))
}

#[test]
fn policy_that_needs_no_signature_is_refused() {
    let owners = Roles {
        owners: Threshold::none(),
        ..roles()
    };
    refused_as(policy_with(owners), "no owner need sign");
    let publishers = Roles {
        publishers: threshold(0, &[2]),
        ..roles()
    };
    refused_as(policy_with(publishers), "no publisher need sign");
}

#[test]
fn policy_under_which_no_record_is_valid_is_refused() {
    let never = Roles {
        record_max: 0,
        ..roles()
    };
    refused_as(policy_with(never), "no record is valid");
}

#[test]
fn log_keys_of_which_none_need_sign_are_refused() {
    let idle = Roles {
        log: threshold(0, &[8]),
        ..roles()
    };
    refused_as(policy_with(idle), "log keys of which none need sign");
    let log = threshold(1, &[8]);
    let own = Roles {
        log: log.clone(),
        ..roles()
    };
    assert_eq!(*own.log_keys(), log);
    assert_eq!(*roles().log_keys(), threshold(1, &[2]));
}

#[test]
fn timestamp_roles_that_contradict_themselves_are_refused() {
    let idle = Roles {
        timestamps: threshold(0, &[8]),
        timestamp_max: 1,
        ..roles()
    };
    refused_as(policy_with(idle), "none need sign");
    let keys = Roles {
        timestamps: threshold(1, &[8]),
        ..roles()
    };
    refused_as(policy_with(keys), "or keys without it");
    let validity = Roles {
        timestamp_max: 1,
        ..roles()
    };
    refused_as(policy_with(validity), "validity without keys");
}

#[test]
fn a_role_that_no_keys_can_fulfil_is_refused() {
    let keys = |numbers: std::ops::RangeInclusive<u8>| -> Vec<PublicKey> {
        numbers.map(|n| key(n).public()).collect()
    };
    refused_as(Threshold::new(3, keys(1..=2)), "needs more keys");
    refused_as(Threshold::new(1, keys(1..=33)), "too many keys");
    assert!(Threshold::new(32, keys(1..=32)).is_ok());
    let twice = [keys(1..=1), keys(1..=1)].concat();
    refused_as(Threshold::new(2, twice), "one twice");
}

#[test]
fn role_keys_out_of_order_or_twice_are_refused() {
    let two = Roles {
        owners: threshold(1, &[1, 3]),
        ..roles()
    };
    let genesis = Genesis::new("x", [1; 32], [2; 32], two).unwrap();
    let bytes = bytes_of(&Policy::Genesis(genesis));
    // Number, end, threshold and count are 18 bytes; algorithm, length and key are 34.
    let (one, two) = (20..52, 54..86);
    let mut swapped = bytes.clone();
    swapped[one.clone()].copy_from_slice(&bytes[two.clone()]);
    swapped[two.clone()].copy_from_slice(&bytes[one.clone()]);
    refused_as(decode::<Policy>(&swapped), "not sorted");
    let mut twice = bytes.clone();
    twice[two].copy_from_slice(&bytes[one.clone()]);
    refused_as(decode::<Policy>(&twice), "one twice");
    let mut weak = bytes.clone();
    weak[one].copy_from_slice(&[0; 32]);
    refused_as(decode::<Policy>(&weak), "small order");
    let mut short = bytes;
    short.remove(20);
    short[19] = 31;
    refused_as(decode::<Policy>(&short), "of another length");
}

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

#[test]
fn a_hostile_volume_name_is_refused() {
    let named = |name: &str| Genesis::new(name, [1; 32], [2; 32], roles());
    refused_as(named(&"x".repeat(65)), "too long");
    refused_as(named("evil\x1b[2J"), "control characters");
    let mut genesis = named("safe").unwrap();
    genesis.name = "evil\n".into();
    refused_as(
        decode::<Policy>(&bytes_of(&Policy::Genesis(genesis.clone()))),
        "control characters",
    );
    genesis.name = "safe".into();
    let bytes = bytes_of(&Policy::Genesis(genesis));
    let at = bytes.windows(4).position(|w| w == b"safe").unwrap();
    let mut latin = bytes.clone();
    latin[at] = 0xe4;
    refused_as(decode::<Policy>(&latin), "UTF-8");
}

#[test]
fn an_unknown_block_hash_is_refused() {
    let genesis = Genesis::new("", [1; 32], [2; 32], roles()).unwrap();
    let mut bytes = bytes_of(&Policy::Genesis(genesis));
    let at = bytes.len() - 33;
    assert_eq!(bytes[at], 1);
    bytes[at] = 2;
    refused_as(decode::<Policy>(&bytes), "hash algorithm 2");
}

#[test]
fn a_successor_with_unknown_or_contradicting_parts_is_refused() {
    let world = World::new();
    let plain = Policy::Successor(world.successor(None));
    let mut bytes = bytes_of(&plain);
    let at = bytes.len() - 1;
    bytes[at] = 32;
    refused_as(decode::<Policy>(&bytes), "needs a newer bulla");
    bytes[at] = 16;
    for (refused, why) in [
        (&[0][..], "refuses no policy"),
        (&[17], "or too many"),
        (&[1], "truncated"),
        (&[&[2][..], &[7; 64]].concat(), "one twice"),
    ] {
        let bytes = [&bytes, refused].concat();
        refused_as(decode::<Policy>(&bytes), why);
    }
    bytes[at] = 8;
    refused_as(decode::<Policy>(&bytes), "lowers the floor to no record");
    let revoked = Policy::Successor(Successor {
        revoked: Some(Revocation {
            successor: Some(world.volume),
        }),
        ..world.successor(None)
    });
    let mut bytes = bytes_of(&revoked);
    assert_eq!(bytes[at], 6);
    bytes[at] = 4;
    refused_as(decode::<Policy>(&bytes), "without a revocation");
}

#[test]
fn version_0_is_refused() {
    let world = World::new();
    refused_as(
        decode::<RootRecord>(&bytes_of(&world.record(0))),
        "version 0",
    );
}

#[test]
fn hostile_mirror_names_are_refused() {
    let named = |mirrors: Vec<String>| {
        let record = RootRecord {
            mirrors,
            ..World::new().record(1)
        };
        decode::<RootRecord>(&bytes_of(&record))
    };
    assert!(named(vec!["bulla://mirror.example:4000".into(); 16]).is_ok());
    refused_as(named(vec!["x".into(); 17]), "too many mirrors");
    refused_as(named(vec!["x".repeat(256)]), "too long");
    refused_as(named(vec!["a b".into()]), "printable ASCII");
    refused_as(named(vec!["a\x1b".into()]), "printable ASCII");
    refused_as(named(vec!["ä".into()]), "printable ASCII");
    refused_as(named(vec![String::new()]), "printable ASCII");
}

#[test]
fn a_truncated_timestamp_is_refused() {
    let (world, mut other) = (World::new(), World::new());
    let bytes = bytes_of(&world.timestamp(&other.publish(1)));
    assert!(decode::<Timestamp>(&bytes).is_ok());
    refused_as(decode::<Timestamp>(&bytes[..bytes.len() - 1]), "truncated");
}

// Heads and floors.

fn head() -> Head {
    World::new().publish(1)
}

#[test]
fn an_oversize_head_is_refused() {
    let mut bytes = head().encode().unwrap();
    bytes.resize(MAX_HEAD_BYTES + 1, 0);
    refused_as(Head::decode(&bytes), "too long");
    let mut endless = head();
    let mut record = World::new().record(1);
    record.mirrors = vec!["x".repeat(255); 500];
    let big = sign(&record.statement(World::new().volume), &[2]);
    endless.policies = vec![big; 9];
    refused_as(endless.encode(), "too long");
}

#[test]
fn a_head_of_a_later_format_is_refused() {
    for at in 0..4 {
        let mut bytes = head().encode().unwrap();
        bytes[at] = 1;
        refused_as(Head::decode(&bytes), "needs a newer bulla");
    }
}

#[test]
fn a_head_with_too_many_policies_is_refused() {
    let mut long = head();
    long.policies = vec![long.policies[0].clone(); 257];
    refused_as(Head::decode(&long.encode().unwrap()), "too many policies");
}

#[test]
fn a_head_with_an_odd_flag_or_trailing_bytes_is_refused() {
    let head = head();
    let bytes = head.encode().unwrap();
    let trailing = [&bytes[..], &[0]].concat();
    refused_as(Head::decode(&trailing), "trailing bytes");
    // timestamp flag, checkpoint length, frontier size and one hash are at the end
    let at = bytes.len() - 32 - 3;
    assert_eq!(bytes[at], 0);
    let mut odd = bytes;
    odd[at] = 2;
    refused_as(Head::decode(&odd), "with nor without");
}

#[test]
fn an_oversize_checkpoint_is_refused() {
    let mut head = head();
    head.checkpoint = Some(Bytes::from(vec![b'x'; (16 << 10) + 1]));
    refused_as(Head::decode(&head.encode().unwrap()), "too long");
}

#[test]
fn a_damaged_floor_is_refused() {
    let mut world = World::new();
    let floor = adopted(&world.floor(), &[&world.publish(1)]);
    let bytes = floor.encode();
    assert_eq!(Floor::decode(&bytes).unwrap(), floor);
    assert_eq!(
        Floor::decode(&world.floor().encode()).unwrap(),
        world.floor()
    );
    refused_as(Floor::decode(&bytes[..31]), "truncated");
    refused_as(Floor::decode(&bytes[..bytes.len() - 1]), "damaged");
    refused_as(Floor::decode(&vec![0; MAX_HEAD_BYTES + 1025]), "too long");
    for at in 2..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        refused_as(Floor::decode(&flipped), "damaged");
    }
    let mut later = bytes.clone();
    later[0] = 1;
    refused_as(Floor::decode(&later), "needs a newer bulla");
    let (body, _) = bytes.split_last_chunk::<32>().unwrap();
    let trailing = with_checksum([body, &[0]].concat());
    refused_as(Floor::decode(&trailing), "trailing bytes");
    let mut odd = body.to_vec();
    // The root and its flag are before two flags and a count about forks.
    let at = odd.len() - 36;
    assert_eq!(odd[at], 1);
    odd[at] = 2;
    refused_as(Floor::decode(&with_checksum(odd)), "a flag is 0 or 1");
    refused_as(
        Floor::decode(&with_checksum(body[..body.len() - 1].to_vec())),
        "truncated",
    );
}

/// A reader that adopted a record knows the policy that allows it. A floor that lost its policies would take
/// any chain as new and forget the record.
#[test]
fn a_floor_with_a_record_and_no_policy_is_refused() {
    let mut world = World::new();
    let floor = adopted(&world.floor(), &[&world.publish(1)]).encode();
    let fresh = world.floor().encode();
    // The fields before the policies, no policies, and the record unchanged.
    let policies = fresh.len() - 32 - 5;
    let record = floor.len() - 32 - (1 + 8 + 32 + 48 + 1 + 32 + 3);
    let mut body = fresh[..=policies].to_vec();
    body.extend_from_slice(&floor[record..floor.len() - 32]);
    refused_as(Floor::decode(&with_checksum(body)), "no policy allows");
}

#[test]
fn floor_with_policies_of_another_volume_accepts_nothing() {
    let mut world = World::new();
    let head = world.publish(1);
    let bytes = adopted(&world.floor(), &[&head]).encode();
    let other = World::with_genesis(roles(), 1, &[1]);
    let mut body = bytes[..bytes.len() - 32].to_vec();
    body[2..34].copy_from_slice(other.volume.as_bytes());
    let floor = Floor::decode(&with_checksum(body)).unwrap();
    let theirs = Head {
        policies: other.policies,
        ..head
    };
    assert_eq!(judge(&floor, &theirs).unwrap_err(), Reject::WrongVolume);
}
