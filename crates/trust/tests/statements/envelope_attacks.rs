//! Attacks on keys, envelopes, bodies and heads: a second encoding, a wrong purpose or a later format is
//! refused before the content is used.

use bytes::Bytes;
use trust::Reject;
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
pub const ENTRY_BYTES: usize = 1 + 1 + 32 + 1 + 64;

/// The bytes of `statement` with the one at `at` replaced.
fn patched(statement: &Statement, at: usize, byte: u8) -> Result<Statement, Reject> {
    let mut bytes = statement.bytes().to_vec();
    bytes[at] = byte;
    Statement::decode(bytes.into())
}

pub fn statement() -> Statement {
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
pub fn policy_with(roles: Roles) -> Result<Policy, Reject> {
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
    long.policies = vec![long.policies[0].clone(); 9];
    refused_as(Head::decode(&long.encode().unwrap()), "too many policies");
}

#[test]
fn a_head_with_an_odd_flag_or_trailing_bytes_is_refused() {
    let head = head();
    let bytes = head.encode().unwrap();
    let trailing = [&bytes[..], &[0]].concat();
    refused_as(Head::decode(&trailing), "trailing bytes");
    // timestamp flag, checkpoint length, frontier size, one hash and the flag of the later log are at the end
    let at = bytes.len() - 1 - 32 - 3;
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
    refused_as(
        Floor::decode(&vec![0; trust::floor::MAX_FLOOR_BYTES + 1]),
        "too long",
    );
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
