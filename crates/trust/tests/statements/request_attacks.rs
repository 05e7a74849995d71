//! Signing requests and earlier records: the reasons to refuse each.

use trust::chain::Link;
use trust::earlier::Leaf;
use trust::error::Class;
use trust::head::Head;
use trust::judge::{Freshness, Terms};
use trust::policy::{Genesis, Roles, Threshold, VolumeId};
use trust::request::{Base, Request};
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::signer::SignError;
use trust::statement::{Signed, Statement};
use trust::{Handle, Reject};

use crate::world::{NOW, Tired, WEEK, World, is_refused, judge, key, sign, threshold};

fn unsigned(statement: &Statement) -> Signed {
    statement.sign(&[])
}

/// The request for the version after `head`.
fn after(world: &World, head: &Head, version: u64) -> Request {
    Request {
        base: Base::Head(Box::new(head.clone())),
        record: unsigned(&world.record(version).statement(world.volume)),
    }
}

/// The request for a new volume of key 1, and its id.
fn first() -> (Request, VolumeId, RootRecord) {
    let roles = Roles::single(key(1).public());
    let genesis = Genesis::new("new", [1; 32], [2; 32], roles).unwrap();
    let policy = unsigned(&genesis.statement());
    let (log, _) = trust::head::first_log(&policy).unwrap();
    let record = RootRecord {
        policy_hash: policy.hash(),
        log,
        ..World::new().record(1)
    };
    let volume = genesis.volume_id();
    let request = Request {
        base: Base::Genesis(policy),
        record: unsigned(&record.statement(volume)),
    };
    (request, volume, record)
}

fn examine(request: &Request) -> Result<trust::request::Examined, Reject> {
    request.examine(&mut Signatures::default())
}

/// `request` with a changed record.
fn with(request: &Request, volume: VolumeId, change: impl FnOnce(&mut RootRecord)) -> Request {
    let mut record: RootRecord = request.record.statement().read(volume).unwrap();
    change(&mut record);
    Request {
        base: request.base.clone(),
        record: unsigned(&record.statement(volume)),
    }
}

#[test]
fn signed_request_makes_a_head() {
    let (mut request, volume, _) = first();
    let examined = examine(&request).unwrap();
    assert_eq!((examined.volume, examined.name.as_str()), (volume, "new"));
    assert!(examined.previous.is_none());
    request.sign(&examined, NOW + 5, WEEK, &key(1)).unwrap();
    let bytes = request.encode().unwrap();
    let request = Request::decode(&bytes).unwrap();
    assert_eq!(request.encode().unwrap(), bytes);
    let examined = examine(&request).unwrap();
    assert_eq!(examined.publishers.signed, [key(1).public()]);
    assert!(examined.missing().is_empty());
    let head = request.head(&examined);
    let offer = judge(&trust::floor::Floor::new(volume), &head).unwrap();
    assert_eq!((offer.record.version, offer.record.start), (1, NOW + 5));

    let mut world = World::new();
    let one = world.publish(1);
    let mut request = after(&world, &one, 2);
    let examined = examine(&request).unwrap();
    assert_eq!(examined.previous.as_ref().unwrap().1, one.record.hash());
    request.sign(&examined, NOW, WEEK, &key(2)).unwrap();
    let examined = examine(&request).unwrap();
    let floor = crate::world::adopted(&world.floor(), &[&one]);
    let offer = judge(&floor, &request.head(&examined)).unwrap();
    assert_eq!(offer.record.version, 2);
    // A second signer leaves the record unchanged.
    let hash = request.record.hash();
    request.sign(&examined, NOW + 99, 7, &key(2)).unwrap();
    assert_eq!(request.record.hash(), hash);
}

#[test]
fn damaged_request_is_refused() {
    let (request, ..) = first();
    let bytes = request.encode().unwrap();
    for at in 0..bytes.len() {
        let mut bent = bytes.clone();
        bent[at] ^= 0x10;
        assert!(Request::decode(&bent).is_err(), "byte {at}");
        assert!(Request::decode(&bytes[..at]).is_err(), "cut at {at}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(Request::decode(&longer).is_err());
    let resealed = |mut body: Vec<u8>| {
        body.extend_from_slice(blake3::hash(&body.clone()).as_bytes());
        Request::decode(&body)
    };
    let body = bytes[..bytes.len() - 32].to_vec();
    assert!(resealed(body.clone()).is_ok());
    let mut later = body.clone();
    later[8] = 1;
    assert!(matches!(resealed(later), Err(Reject::Unsupported { .. })));
    let mut neither = body.clone();
    neither[12] = 2;
    assert!(resealed(neither).is_err());
    let mut trailing = body;
    trailing.push(0);
    assert!(resealed(trailing).is_err());
}

#[test]
fn a_request_must_be_the_next_version_of_what_it_builds_on() {
    let mut world = World::new();
    let one = world.publish(1);
    let good = after(&world, &one, 2);
    assert!(examine(&good).is_ok());
    for version in [1, 3, u64::MAX] {
        let bad = with(&good, world.volume, |r| r.version = version);
        assert!(examine(&bad).is_err(), "version {version}");
    }
    let forked = with(&good, world.volume, |r| r.log.root = [9; 32]);
    assert!(matches!(examine(&forked), Err(Reject::BadHistory(_))));
    let shorter = with(&good, world.volume, |r| r.log.size = 1);
    assert!(matches!(examine(&shorter), Err(Reject::BadHistory(_))));
    let epoch = with(&good, world.volume, |r| r.log.epoch = 1);
    assert!(examine(&epoch).is_err());
    let policy = with(&good, world.volume, |r| r.policy_hash = [3; 32]);
    assert!(examine(&policy).is_err());
    let number = with(&good, world.volume, |r| r.policy_number = 1);
    assert!(examine(&number).is_err());
    // The base must be signed, by a publisher, for this volume.
    let mut base = one.clone();
    base.record = unsigned(one.record.statement());
    let unproved = after(&world, &base, 2);
    assert!(matches!(examine(&unproved), Err(Reject::NotSigned(_))));
    base.record = sign(one.record.statement(), &[5]);
    assert!(examine(&after(&world, &base, 2)).is_err());
    let foreign = Request {
        base: Base::Head(Box::new(one.clone())),
        record: first().0.record,
    };
    assert_eq!(examine(&foreign).unwrap_err(), Reject::WrongVolume);
    // A revoked volume has no next version.
    let mut end = world.successor(Some(&one));
    end.revoked = Some(trust::policy::Revocation { successor: None });
    world.rotate(&end, &[1]);
    let mut ended = one.clone();
    ended.policies = world.policies.clone();
    assert!(matches!(
        examine(&after(&world, &ended, 2)),
        Err(Reject::Revoked { .. })
    ));
}

#[test]
fn a_first_version_must_fit_its_genesis() {
    let (good, volume, _) = first();
    assert!(examine(&with(&good, volume, |r| r.version = 2)).is_err());
    assert!(examine(&with(&good, volume, |r| r.policy_hash = [3; 32])).is_err());
    assert!(examine(&with(&good, volume, |r| r.log.root = [3; 32])).is_err());
    let world = World::new();
    let other = Request {
        base: Base::Genesis(world.policies[0].clone()),
        ..good
    };
    assert_eq!(examine(&other).unwrap_err(), Reject::WrongVolume);
}

#[test]
fn request_stays_unsigned_when_its_key_signs_only_a_part() {
    let (mut request, ..) = first();
    let before = request.clone();
    // The owner is the publisher too: the policy is signed, and the record is not.
    for signatures in [0, 1] {
        let examined = examine(&request).unwrap();
        let tired = Tired::after(signatures, key(1));
        let refused = request.sign(&examined, NOW, WEEK, &tired).unwrap_err();
        assert!(matches!(refused, SignError::NoSignature(_)), "{refused}");
        assert_eq!(request, before, "after {signatures} signatures");
    }
    let examined = examine(&request).unwrap();
    let willing = Tired::after(2, key(1));
    request.sign(&examined, NOW, WEEK, &willing).unwrap();
    assert!(examine(&request).unwrap().missing().is_empty());
}

#[test]
fn only_a_publisher_signs_and_later_changes_void_the_signature() {
    let mut world = World::new();
    let one = world.publish(1);
    let mut request = after(&world, &one, 2);
    let examined = examine(&request).unwrap();
    for stranger in [1, 7] {
        let refused = request.sign(&examined, NOW, WEEK, &key(stranger));
        assert!(refused.is_err_and(is_refused));
    }
    assert!(request.record.signatures().is_empty());
    request.sign(&examined, NOW, WEEK, &key(2)).unwrap();
    // The root is changed after the signer has looked at it.
    let altered = with(&request, world.volume, |r| {
        r.root = Handle::from_bytes([9; 32])
    });
    let mut bytes = altered.record.statement().bytes().to_vec();
    let mut e = trust::encode::Encoder::new();
    e.bytes(&bytes).varint(1);
    let genuine = request.record.by(&key(2).public()).unwrap();
    e.varint(1).bytes(&genuine.key).bytes(&genuine.signature);
    bytes = e.finish();
    let forged = Request {
        base: request.base.clone(),
        record: Signed::from_bytes(&bytes).unwrap(),
    };
    assert_eq!(examine(&forged).unwrap_err().class(), Class::Integrity);
}

#[test]
fn signer_refuses_requests_that_do_not_follow_the_version_signed_before() {
    let mut world = World::new();
    let one = world.publish(1);
    let two = world.publish(2);
    let three = after(&world, &two, 3);
    let examined = examine(&three).unwrap();
    assert_eq!(examined.follows(&three.base, &two), Ok(()));
    assert_eq!(examined.follows(&three.base, &one), Ok(()));
    // The same version twice, and a lower version.
    let mut again = World::new();
    let first = again.publish(1);
    let other_two = after(&again, &first, 2);
    let examined = examine(&other_two).unwrap();
    let refused = examined.follows(&other_two.base, &two).unwrap_err();
    assert_eq!(refused.class(), Class::Fork);
    let later = world.publish(3);
    let refused = examined.follows(&other_two.base, &later).unwrap_err();
    assert_eq!(refused.class(), Class::Rollback);
    // A log without the record that was signed.
    let mut forked = World::new();
    forked.publish(1);
    let mut record = forked.record(2);
    record.root = Handle::from_bytes([0xee; 32]);
    let other = forked.head_of(&record, &[2]);
    forked.advance(&other);
    let three = after(&forked, &other, 3);
    let examined = examine(&three).unwrap();
    let refused = examined.follows(&three.base, &two).unwrap_err();
    assert_eq!(refused.class(), Class::Fork);
    // Other policies than those of the signed version.
    let mut rotated = World::new();
    rotated.publish(1);
    let base = rotated.publish(2);
    rotated.rotate(&rotated.successor(Some(&base)), &[1]);
    let mut known = rotated.publish(3);
    known.policies = rotated.policies.clone();
    let mut plain = World::new();
    for version in 1..=5 {
        plain.publish(version);
    }
    let last = plain.publish(6);
    let seven = after(&plain, &last, 7);
    let examined = examine(&seven).unwrap();
    let refused = examined.follows(&seven.base, &known).unwrap_err();
    assert_eq!(refused.class(), Class::Fork);
}

#[test]
fn signer_that_skipped_versions_refuses_a_log_that_nothing_proves() {
    let mut world = World::new();
    world.publish(1);
    let two = world.publish(2);
    world.publish(3);
    let four = world.publish(4);
    let five = after(&world, &four, 5);
    let examined = examine(&five).unwrap();
    assert_eq!(examined.follows(&five.base, &four), Ok(()));
    // The frontier of five leaves does not show which three come first.
    let refused = examined.follows(&five.base, &two);
    assert_eq!(refused, Err(Reject::Unproved));
    // The attack: another version 2, and two versions on top of it.
    let mut forked = World::new();
    forked.publish(1);
    let mut record = forked.record(2);
    record.root = Handle::from_bytes([0xee; 32]);
    let other = forked.head_of(&record, &[2]);
    forked.advance(&other);
    forked.publish(3);
    let four = forked.publish(4);
    let five = after(&forked, &four, 5);
    let examined = examine(&five).unwrap();
    assert!(examined.follows(&five.base, &two).is_err());
}

#[test]
fn refused_signer_leaves_no_signature_and_each_role_signs_its_part() {
    let roles = Roles {
        publishers: Threshold::single(key(2).public()),
        ..Roles::single(key(1).public())
    };
    let genesis = Genesis::new("new", [1; 32], [2; 32], roles).unwrap();
    let policy = unsigned(&genesis.statement());
    let (log, _) = trust::head::first_log(&policy).unwrap();
    let record = RootRecord {
        policy_hash: policy.hash(),
        log,
        ..World::new().record(1)
    };
    let mut request = Request {
        base: Base::Genesis(policy),
        record: unsigned(&record.statement(genesis.volume_id())),
    };
    let before = request.clone();
    let examined = examine(&request).unwrap();
    let refused = request.sign(&examined, NOW, WEEK, &key(7));
    assert!(refused.is_err_and(is_refused));
    assert_eq!(request, before);
    // An owner who is no publisher signs the policy and not the record; the publisher the record alone.
    request.sign(&examined, NOW, WEEK, &key(1)).unwrap();
    assert!(request.record.signatures().is_empty());
    let examined = examine(&request).unwrap();
    assert_eq!(
        examined.missing(),
        std::slice::from_ref(&examined.publishers)
    );
    request.sign(&examined, NOW, WEEK, &key(2)).unwrap();
    let Base::Genesis(policy) = &request.base else {
        panic!("a new volume");
    };
    assert_eq!(policy.signatures().len(), 1);
    let examined = examine(&request).unwrap();
    assert!(examined.missing().is_empty());
    let head = request.head(&examined);
    judge(&trust::floor::Floor::new(genesis.volume_id()), &head).unwrap();
}

/// The request for a new volume of owners 1, 2, 3 (two must sign) and publishers 4, 5, 6 (two must sign).
fn gathering() -> Request {
    let roles = Roles {
        owners: threshold(2, &[1, 2, 3]),
        publishers: threshold(2, &[4, 5, 6]),
        ..Roles::single(key(1).public())
    };
    let genesis = Genesis::new("new", [1; 32], [2; 32], roles).unwrap();
    let policy = unsigned(&genesis.statement());
    let (log, _) = trust::head::first_log(&policy).unwrap();
    let record = RootRecord {
        policy_hash: policy.hash(),
        log,
        ..World::new().record(1)
    };
    Request {
        base: Base::Genesis(policy),
        record: unsigned(&record.statement(genesis.volume_id())),
    }
}

fn signed_by(request: &Request, number: u8) -> Request {
    let mut request = request.clone();
    let examined = examine(&request).unwrap();
    request.sign(&examined, NOW + 99, 7, &key(number)).unwrap();
    request
}

#[test]
fn copies_that_different_keys_have_signed_are_merged() {
    let request = gathering();
    let mut merged = signed_by(&request, 1);
    for number in [3, 5, 6] {
        assert!(!examine(&merged).unwrap().missing().is_empty());
        let copy = signed_by(&request, number);
        let (own, their) = (examine(&merged).unwrap(), examine(&copy).unwrap());
        merged.merge(&own, &copy, &their).unwrap();
    }
    let examined = examine(&merged).unwrap();
    assert!(examined.missing().is_empty());
    // Nobody has changed the validity: the request asks for it.
    assert_eq!(
        (examined.record.start, examined.record.duration),
        (NOW, WEEK)
    );
    let head = merged.head(&examined);
    judge(&trust::floor::Floor::new(examined.volume), &head).unwrap();
}

#[test]
fn copy_of_another_request_is_not_merged() {
    let request = gathering();
    let volume = examine(&request).unwrap().volume;
    let refused = |other: &Request| {
        let mut merged = signed_by(&request, 4);
        let (own, their) = (examine(&merged).unwrap(), examine(other).unwrap());
        merged.merge(&own, other, &their).unwrap_err()
    };
    let other_root = with(&request, volume, |r| r.root = Handle::from_bytes([9; 32]));
    assert!(matches!(refused(&other_root), Reject::Malformed { .. }));
    let longer = with(&request, volume, |r| r.duration += 1);
    assert!(matches!(refused(&signed_by(&longer, 5)), Reject::Fork(_)));
    assert_eq!(refused(&first().0), Reject::WrongVolume);
}

#[test]
fn a_bad_signature_in_the_name_of_a_role_is_not_counted() {
    let good = signed_by(&gathering(), 4);
    let genuine = good.record.by(&key(4).public()).unwrap();
    for claimed in [5, 4] {
        let mut e = trust::encode::Encoder::new();
        e.bytes(good.record.statement().bytes()).varint(1);
        let mut signature = genuine.signature;
        signature[40] ^= u8::from(claimed == 4);
        let key = *key(claimed).public().as_bytes();
        e.varint(1).bytes(&key).bytes(&signature);
        let forged = Request {
            base: good.base.clone(),
            record: Signed::from_bytes(&e.finish()).unwrap(),
        };
        assert!(matches!(examine(&forged), Err(Reject::NotSigned(_))));
    }
    let Base::Genesis(policy) = &good.base else {
        panic!("a new volume");
    };
    let mut e = trust::encode::Encoder::new();
    e.bytes(policy.statement().bytes()).varint(1);
    let key = *key(1).public().as_bytes();
    e.varint(1).bytes(&key).bytes(&genuine.signature);
    let forged = Request {
        base: Base::Genesis(Signed::from_bytes(&e.finish()).unwrap()),
        record: good.record.clone(),
    };
    assert!(matches!(examine(&forged), Err(Reject::NotSigned(_))));
}

#[test]
fn signer_that_kept_a_partly_signed_genesis_goes_on_from_it() {
    let request = gathering();
    let partly = signed_by(&request, 4);
    let kept = partly.head(&examine(&partly).unwrap());
    let mut whole = partly;
    for number in [1, 2, 5] {
        whole = signed_by(&whole, number);
    }
    let examined = examine(&whole).unwrap();
    let head = whole.head(&examined);
    let next = RootRecord {
        version: 2,
        log: head.next_log(examined.volume).unwrap().0,
        ..examined.record.clone()
    };
    let next = Request {
        base: Base::Head(Box::new(head)),
        record: unsigned(&next.statement(examined.volume)),
    };
    let examined = examine(&next).unwrap();
    assert_eq!(examined.follows(&next.base, &kept), Ok(()));
}

#[test]
fn an_earlier_record_is_believed_for_its_own_signatures() {
    let mut world = World::new();
    let one = world.publish(1);
    let two = world.publish(2);
    let floor = crate::world::adopted(&world.floor(), &[&one, &two]);
    let genesis = Link::read(world.volume, &world.policies[0]).unwrap();
    let judge = |earlier: &Signed, freshness| {
        let terms = Terms {
            freshness,
            ..Terms::strict(NOW + 99 * WEEK)
        };
        let signatures = &mut Signatures::default();
        floor.judge_earlier(&two, earlier, &genesis, &terms, signatures)
    };
    let pin = |version, record_hash| Freshness::Pinned {
        version,
        record_hash,
    };
    let offer = judge(&one.record, pin(1, one.record.hash())).unwrap();
    assert_eq!(offer.record.version, 1);
    // It does not show which version is current.
    assert_eq!(floor.adopt(&offer).unwrap(), floor);
    assert_eq!(floor.observe(&offer).unwrap(), floor);
    assert!(judge(&one.record, Freshness::Strict).is_ok());
    for wrong in [pin(2, one.record.hash()), pin(1, two.record.hash())] {
        assert!(matches!(
            judge(&one.record, wrong),
            Err(Reject::NotPinned(_))
        ));
    }
    let bare = unsigned(one.record.statement());
    let refused = judge(&bare, pin(1, bare.hash()));
    assert!(matches!(refused, Err(Reject::NotSigned(_))), "{refused:?}");
    let stranger = sign(one.record.statement(), &[7]);
    assert!(judge(&stranger, Freshness::Strict).is_err());
    assert!(
        judge(&two.record, Freshness::Strict).is_err(),
        "not earlier"
    );
    assert!(judge(&world.policies[0], Freshness::Strict).is_err());
    // Nor under a policy other than the pinned one, nor for a revoked volume.
    let pinned = Terms {
        policy_pin: Some([5; 32]),
        ..Terms::strict(NOW)
    };
    let signatures = &mut Signatures::default();
    let refused = floor.judge_earlier(&two, &one.record, &genesis, &pinned, signatures);
    assert!(matches!(refused, Err(Reject::NotPinned(_))));
    let mut end = world.successor(Some(&two));
    end.revoked = Some(trust::policy::Revocation { successor: None });
    let mut ended = two.clone();
    ended
        .policies
        .push(sign(&end.statement(world.volume), &[1]));
    let refused = floor.judge_earlier(
        &ended,
        &one.record,
        &genesis,
        &Terms::strict(NOW),
        &mut Signatures::default(),
    );
    assert!(matches!(refused, Err(Reject::Revoked { .. })));
    // The head beside it must be valid too.
    let mut forged = two.clone();
    forged.record = unsigned(two.record.statement());
    let terms = Terms::strict(NOW);
    let signatures = &mut Signatures::default();
    let refused = floor.judge_earlier(&forged, &one.record, &genesis, &terms, signatures);
    assert!(refused.is_err());
}

#[test]
fn a_leaf_is_a_signed_record_or_a_policy_of_the_chain() {
    let mut world = World::new();
    let one = world.publish(1);
    let genesis = Link::read(world.volume, &world.policies[0]).unwrap();
    let read =
        |signed: &Signed| Leaf::read(signed, world.volume, &genesis, &mut Signatures::default());
    let Leaf::Record { signers, .. } = read(&one.record).unwrap() else {
        panic!("a record");
    };
    assert_eq!(signers, [key(2).public()]);
    assert!(matches!(
        read(&world.policies[0]),
        Ok(Leaf::Policy { number: 0, .. })
    ));
    assert!(read(&unsigned(one.record.statement())).is_err());
    let other = sign(&world.successor(None).statement(world.volume), &[1]);
    assert!(matches!(read(&other), Err(Reject::NotSigned(_))));
    let stamp = sign(&world.timestamp(&one).statement(world.volume), &[2]);
    assert!(read(&stamp).is_err());
}
