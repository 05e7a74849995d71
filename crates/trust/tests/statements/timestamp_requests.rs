//! Requests of a timestamp: signed by timestamp keys on machines of their own, and the reasons to refuse each.

use trust::Reject;
use trust::head::Head;
use trust::policy::{NO_END, Roles};
use trust::signatures::Signatures;
use trust::timestamp::Timestamp;
use trust::timestamp_request::{ExaminedTimestamp, TimestampRequest};

use crate::world::*;

const HOUR: u64 = 3600;

/// Owner 1, publisher 2, timestamp keys 3 and 4 of whom both must sign.
fn begun() -> World {
    let roles = Roles {
        timestamps: threshold(2, &[3, 4]),
        timestamp_max: HOUR,
        ..roles()
    };
    World::with_genesis(roles, NO_END, &[1])
}

fn request(world: &World, head: &Head, issued: u64) -> TimestampRequest {
    let chain = world.floor().known_chain(head, &mut Signatures::default());
    let chain = chain.unwrap();
    TimestampRequest::new(head, (chain.newest(), chain.newest_hash()), issued, HOUR).unwrap()
}

fn examine(request: &TimestampRequest) -> Result<ExaminedTimestamp, Reject> {
    request.examine(&mut Signatures::default())
}

/// What a signer that confirmed `last` says at the time `wall`.
fn follows(request: &TimestampRequest, last: Option<&Head>, wall: u64) -> Result<(), Reject> {
    let examined = examine(request).unwrap();
    request.follows(&examined, last, (wall, false), &mut Signatures::default())
}

#[test]
fn copies_that_two_keys_signed_make_a_head_that_readers_believe() {
    let mut world = begun();
    let mut head = world.publish(1);
    let asked = request(&world, &head, NOW);
    let bytes = asked.encode().unwrap();
    assert_eq!(TimestampRequest::decode(&bytes).unwrap(), asked);
    assert!(TimestampRequest::is_claimed_by(&bytes));
    let copy = |number: u8| {
        let mut copy = asked.clone();
        let examined = examine(&copy).unwrap();
        follows(&copy, None, NOW).unwrap();
        copy.sign(&examined, &key(number)).unwrap();
        copy
    };
    let (mut both, other) = (copy(3), copy(4));
    assert_eq!(examine(&both).unwrap().missing().len(), 1);
    both.merge(&other).unwrap();
    let examined = examine(&both).unwrap();
    assert!(examined.missing().is_empty());
    assert!(judge(&world.floor(), &head).is_err(), "without a timestamp");
    head.timestamp = Some(both.reduced(&examined));
    let offer = judge(&world.floor(), &head).unwrap();
    assert_eq!(offer.valid_until, NOW + HOUR);
    // Another request of the same version is another timestamp.
    let later = request(&world, &head, NOW + 1);
    assert!(both.merge(&later).is_err());
}

/// A key that has confirmed a version confirms no older one. So it confirms only a version that readers can be shown.
#[test]
fn version_without_its_cosignatures_is_not_confirmed() {
    let roles = Roles {
        timestamps: threshold(1, &[3]),
        timestamp_max: HOUR,
        witnesses: threshold(2, &[20, 21, 22]),
        ..roles()
    };
    let mut world = World::with_genesis(roles, NO_END, &[1]);
    let mut head = world.publish(1);
    let log = world.clone();
    for (witnesses, good) in [(&[][..], false), (&[20], false), (&[20, 22], true)] {
        head.checkpoint = Some(log.checkpoint(&head, witnesses));
        let judged = follows(&request(&world, &head, NOW), None, NOW);
        match good {
            true => judged.unwrap(),
            false => refused_as(judged, "too few witnesses"),
        }
    }
    head.checkpoint = None;
    let judged = follows(&request(&world, &head, NOW), None, NOW);
    refused_as(judged, "checkpoint is missing");
}

/// The publisher's clock was ahead. Another version can follow only one that is shown, so it is confirmed if the signer says so.
#[test]
fn version_that_begins_later_is_confirmed_only_if_that_is_accepted() {
    let mut world = begun();
    let head = world.publish(1);
    let early = NOW - 30 * 24 * HOUR;
    let judged = |issued: u64, wall: u64, accepts_early: bool| {
        let request = request(&world, &head, issued);
        let examined = examine(&request).unwrap();
        request.follows(
            &examined,
            None,
            (wall, accepts_early),
            &mut Signatures::default(),
        )
    };
    assert!(matches!(
        judged(early, early, false),
        Err(Reject::NotYetValid { .. })
    ));
    judged(early, early, true).unwrap();
    // The timestamp itself is judged by the signer's clock all the same.
    assert!(matches!(
        judged(NOW, early, true),
        Err(Reject::NotYetValid { .. })
    ));
    assert!(matches!(
        judged(early, early + HOUR, true),
        Err(Reject::Expired { .. })
    ));
    // A version that has ended is not one that begins later.
    let late = NOW + 52 * WEEK;
    assert!(matches!(
        judged(late, late, true),
        Err(Reject::Expired { .. })
    ));
}

#[test]
fn only_timestamp_keys_sign() {
    let mut world = begun();
    let head = world.publish(1);
    let mut asked = request(&world, &head, NOW);
    let before = asked.clone();
    let examined = examine(&asked).unwrap();
    for stranger in [1, 2, 7] {
        let refused = asked.sign(&examined, &key(stranger));
        assert!(refused.is_err_and(is_refused));
    }
    let tired = asked.sign(&examined, &Tired::after(0, key(3)));
    assert!(tired.is_err());
    assert_eq!(asked, before);
    // A stranger's signature does not travel on.
    asked.timestamp.add(&key(7));
    asked.sign(&examined, &key(3)).unwrap();
    assert_eq!(asked.timestamp.signatures().len(), 1);
}

#[test]
fn request_that_does_not_fit_its_head_is_refused() {
    let mut world = begun();
    let head = world.publish(1);
    let good = request(&world, &head, NOW);
    let timestamp: Timestamp = good.timestamp.statement().read(world.volume).unwrap();
    let with = |change: fn(&mut Timestamp)| {
        let mut timestamp = timestamp.clone();
        change(&mut timestamp);
        TimestampRequest {
            timestamp: timestamp.statement(world.volume).sign(&[]),
            ..good.clone()
        }
    };
    examine(&with(|_| {})).unwrap();
    for bad in [
        with(|t| t.record_hash = [1; 32]),
        with(|t| t.policy_hash = [1; 32]),
        with(|t| t.policy_number = 1),
        with(|t| t.until = t.issued + HOUR + 1),
        with(|t| t.until = t.issued),
        with(|t| t.until = t.issued - 1),
    ] {
        let refused = examine(&bad);
        assert!(matches!(refused, Err(Reject::Malformed { .. })));
    }
    let mut stamped = good.clone();
    stamped.head.timestamp = Some(good.timestamp.clone());
    assert!(examine(&stamped).is_err());
    // A record that no publisher has signed.
    let mut unsigned = good.clone();
    unsigned.head.record = good.head.record.statement().sign(&[&key(7)]);
    assert!(matches!(examine(&unsigned), Err(Reject::NotSigned(_))));
    let mut plain = World::new();
    let head = plain.publish(1);
    let nobody = examine(&request(&plain, &head, NOW));
    assert!(
        matches!(nobody, Err(Reject::Malformed { why, .. }) if why.contains("no timestamp keys"))
    );
    let bytes = good.encode().unwrap();
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        assert!(TimestampRequest::decode(&bytes).is_err(), "byte {at}");
    }
}

#[test]
fn signer_confirms_no_older_version_and_no_other_record() {
    let mut world = begun();
    let first = world.publish(1);
    let other = world.clone();
    let second = world.publish(2);
    world.publish(3);
    let fourth = world.publish(4);
    let (one, two, four) = (
        request(&world, &first, NOW),
        request(&world, &second, NOW),
        request(&world, &fourth, NOW),
    );
    follows(&one, Some(&first), NOW).unwrap();
    follows(&two, Some(&first), NOW).unwrap();
    let old = follows(&one, Some(&second), NOW);
    assert!(matches!(old, Err(Reject::Rollback { .. })), "{old:?}");
    // Nothing in the head shows that its log contains the version that was confirmed.
    let skipped = follows(&four, Some(&second), NOW);
    assert!(matches!(skipped, Err(Reject::Unproved)), "{skipped:?}");
    let mut record = other.record(2);
    record.totals.files += 1;
    let fork = other.head_of(&record, &[2]);
    let fork = follows(&request(&other, &fork, NOW), Some(&second), NOW);
    assert!(matches!(fork, Err(Reject::Fork(_))), "{fork:?}");
}

#[test]
fn signer_confirms_only_what_readers_believe_now() {
    let mut world = begun();
    let head = world.publish(1);
    let asked = request(&world, &head, NOW);
    follows(&asked, None, NOW + HOUR - 1).unwrap();
    let over = follows(&asked, None, NOW + HOUR);
    assert!(matches!(over, Err(Reject::Expired { .. })), "{over:?}");
    let early = follows(&request(&world, &head, NOW + 601), None, NOW);
    assert!(
        matches!(early, Err(Reject::NotYetValid { .. })),
        "{early:?}"
    );
    follows(&request(&world, &head, NOW + 600), None, NOW).unwrap();
    let ended = follows(&request(&world, &head, NOW + WEEK), None, NOW + WEEK);
    assert!(matches!(ended, Err(Reject::Expired { .. })), "{ended:?}");
}
