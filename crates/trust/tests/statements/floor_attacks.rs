//! Attacks on a reader by heads under one policy: signatures, rollback, forks, time, pins.

use trust::Reject;
use trust::error::Class;
use trust::handle::Handle;
use trust::head::Head;
use trust::history::Frontier;
use trust::judge::{Freshness, Terms};
use trust::policy::{NO_END, Roles, Successor, VolumeId};
use trust::root::RootRecord;

use crate::world::*;

// The record's signatures.

#[test]
fn an_unsigned_record_is_refused() {
    let world = World::new();
    let head = world.head_of(&world.record(1), &[]);
    refused_as(judge(&world.floor(), &head), "root record");
}

#[test]
fn record_signed_by_an_owner_that_is_not_a_publisher_is_refused() {
    let world = World::new();
    let head = world.head_of(&world.record(1), &[1]);
    refused_as(judge(&world.floor(), &head), "root record");
}

#[test]
fn a_record_by_one_of_two_publishers_is_refused() {
    let both = Roles {
        publishers: threshold(2, &[2, 3]),
        ..roles()
    };
    let world = World::with_genesis(both, NO_END, &[1]);
    let head = |signers: &[u8]| world.head_of(&world.record(1), signers);
    refused_as(judge(&world.floor(), &head(&[2])), "root record");
    assert!(judge(&world.floor(), &head(&[2, 3])).is_ok());
}

#[test]
fn a_record_of_another_volume_is_refused() {
    let world = World::new();
    let mut head = world.head_of(&world.record(1), &[2]);
    let elsewhere = VolumeId::from_bytes([6; 32]);
    head.record = sign(&world.record(1).statement(elsewhere), &[2]);
    assert_eq!(
        judge(&world.floor(), &head).unwrap_err(),
        Reject::WrongVolume
    );
}

#[test]
fn a_timestamp_in_the_place_of_the_record_is_refused() {
    let world = World::new();
    let mut head = world.head_of(&world.record(1), &[2]);
    head.record = sign(&world.timestamp(&head).statement(world.volume), &[2]);
    refused_as(judge(&world.floor(), &head), "another purpose");
}

#[test]
fn record_under_an_unknown_policy_is_refused() {
    let world = World::new();
    let record = RootRecord {
        policy_number: 1,
        ..world.record(1)
    };
    refused_as(
        judge(&world.floor(), &world.head_of(&record, &[2])),
        "under an unknown policy",
    );
}

#[test]
fn a_record_under_another_policy_of_that_number_is_refused() {
    let world = World::new();
    let record = RootRecord {
        policy_hash: [1; 32],
        ..world.record(1)
    };
    refused_as(
        judge(&world.floor(), &world.head_of(&record, &[2])),
        "under another policy",
    );
}

#[test]
fn a_record_in_a_log_that_its_policy_did_not_begin_is_refused() {
    let world = World::new();
    let mut record = world.record(1);
    record.log.epoch = 1;
    refused_as(
        judge(&world.floor(), &world.head_of(&record, &[2])),
        "in another log",
    );
}

// Rollback and fork.

#[test]
fn an_older_version_is_a_rollback() {
    let mut world = World::new();
    let (old, new) = (world.publish(1), world.publish(2));
    let floor = adopted(&world.floor(), &[&old, &new]);
    let rollback = Reject::Rollback {
        offered: 1,
        floor: 2,
    };
    assert_eq!(judge(&floor, &old).unwrap_err(), rollback);
    // Evidence comes before the outage: a rollback is reported even long after the expiry.
    let later = judge_at(&floor, &old, NOW + 10 * WEEK).unwrap_err();
    assert_eq!(later, rollback);
}

#[test]
fn another_record_of_the_adopted_version_is_a_fork() {
    let mut world = World::new();
    let other = RootRecord {
        root: Handle::from_bytes([99; 32]),
        ..world.record(1)
    };
    let other = world.head_of(&other, &[2]);
    let floor = adopted(&world.floor(), &[&world.publish(1)]);
    assert_eq!(judge(&floor, &other).unwrap_err().class(), Class::Fork);
}

#[test]
fn a_newer_record_in_a_log_without_the_adopted_one_is_a_fork() {
    let mut world = World::new();
    let behind = world.head_of(&world.record(3), &[2]);
    let floor = adopted(&world.floor(), &[&world.publish(1), &world.publish(2)]);
    let fork = judge(&floor, &behind).unwrap_err();
    assert_eq!(
        fork,
        Reject::Fork("a newer record in a log without the older")
    );
}

#[test]
fn a_newer_record_in_another_log_of_the_same_size_is_a_fork() {
    let (mut world, mut other) = (World::new(), World::new());
    let floor = adopted(&world.floor(), &[&world.publish(1)]);
    let twin = other.head_of(
        &RootRecord {
            duration: 1,
            ..other.record(1)
        },
        &[2],
    );
    other.advance(&twin);
    let fork = judge(&floor, &other.publish(2)).unwrap_err();
    assert_eq!(fork, Reject::Fork("a newer record in another log"));
}

#[test]
fn a_frontier_that_is_not_the_records_log_is_the_mirrors_fault() {
    let mut world = World::new();
    let mut head = world.publish(1);
    head.frontier.push(b"invented").unwrap();
    refused_as(judge(&world.floor(), &head), "frontier");
    refused_as(head.next_log(world.volume), "frontier");
    head.frontier = Frontier::new();
    refused_as(judge(&world.floor(), &head), "frontier");
}

// Time.

#[test]
fn record_is_refused_from_the_second_of_its_expiry() {
    let mut world = World::new();
    let head = world.publish(1);
    assert!(judge_at(&world.floor(), &head, NOW + WEEK - 1).is_ok());
    let late = judge_at(&world.floor(), &head, NOW + WEEK).unwrap_err();
    assert_eq!(
        late,
        Reject::Expired {
            until: NOW + WEEK,
            now: NOW + WEEK
        }
    );
    // The adopted record too: expiry is checked at each judgement.
    let floor = adopted(&world.floor(), &[&head]);
    let late = judge_at(&floor, &head, NOW + WEEK).unwrap_err();
    assert_eq!(late.class(), Class::Expired);
}

#[test]
fn validity_beyond_the_largest_time_does_not_wrap() {
    let roles = Roles {
        record_max: u64::MAX,
        ..roles()
    };
    let world = World::with_genesis(roles, NO_END, &[1]);
    let record = RootRecord {
        duration: u64::MAX,
        ..world.record(1)
    };
    let offer = judge(&world.floor(), &world.head_of(&record, &[2])).unwrap();
    assert_eq!(offer.valid_until, u64::MAX);
}

#[test]
fn record_for_longer_than_the_policy_allows_is_refused() {
    let short = Roles {
        record_max: WEEK,
        ..roles()
    };
    let mut world = World::with_genesis(short, NO_END, &[1]);
    let record = |duration| RootRecord {
        duration,
        ..world.record(1)
    };
    let refused = judge(&world.floor(), &world.head_of(&record(WEEK + 1), &[2]));
    refused_as(refused, "longer than the policy allows");
    let head = world.head_of(&record(WEEK), &[2]);
    assert!(judge(&world.floor(), &head).is_ok());
    // The newest policy bounds it too.
    let shorter = Roles {
        record_max: 3600,
        ..roles()
    };
    let policy = Successor {
        roles: shorter,
        ..world.successor(Some(&head))
    };
    world.rotate(&policy, &[1]);
    let head = Head {
        policies: world.policies.clone(),
        ..head
    };
    let offer = judge(&world.floor(), &head).unwrap();
    assert_eq!(offer.valid_until, NOW + 3600);
}

#[test]
fn a_record_from_the_future_is_refused_and_not_recorded() {
    let mut world = World::new();
    let head = world.publish(1);
    assert!(judge_at(&world.floor(), &head, NOW - 600).is_ok());
    let early = judge_at(&world.floor(), &head, NOW - 601).unwrap_err();
    assert_eq!(
        early,
        Reject::NotYetValid {
            start: NOW,
            now: NOW - 601
        }
    );
}

#[test]
fn a_clock_set_back_does_not_revive_an_expired_record() {
    let mut world = World::new();
    let old = world.publish(1);
    let fresh = RootRecord {
        start: NOW + WEEK + 1,
        ..world.record(2)
    };
    let fresh = world.head_of(&fresh, &[2]);
    let offer = judge_at(&world.floor(), &fresh, NOW + WEEK + 1).unwrap();
    // Seen but not adopted: the version stays, the newest start changes.
    let floor = world.floor().observe(&offer).unwrap();
    assert!(floor.adopted().is_none());
    assert_eq!(floor.newest_start(), NOW + WEEK + 1);
    let revived = judge_at(&floor, &old, NOW).unwrap_err();
    assert_eq!(revived.class(), Class::Expired);
}

#[test]
fn a_stolen_key_cannot_push_the_readers_time_forward() {
    let mut world = World::new();
    let mut floor = world.floor();
    for version in 1..50 {
        let record = RootRecord {
            start: NOW + version * 600,
            ..world.record(version)
        };
        let head = world.head_of(&record, &[2]);
        let Ok(offer) = judge(&floor, &head) else {
            break;
        };
        floor = floor.adopt(&offer).unwrap();
        world.advance(&head);
    }
    assert!(floor.newest_start() <= NOW + 600);
}

/// The reader's time is ahead of the wall clock after a first start was verified.
#[test]
fn start_is_recorded_only_as_far_as_the_wall_clock_allows() {
    let world = World::new();
    let record = RootRecord {
        start: NOW + 1200,
        ..world.record(1)
    };
    let terms = Terms {
        now: NOW + 600,
        ..Terms::strict(NOW)
    };
    let offer = judge_with(&world.floor(), &world.head_of(&record, &[2]), terms).unwrap();
    let floor = world.floor().observe(&offer).unwrap();
    assert_eq!(floor.newest_start(), NOW + 600);
}

#[test]
fn readers_time_is_not_before_its_wall_clock() {
    let mut world = World::new();
    let terms = Terms {
        now: 0,
        ..Terms::strict(NOW + WEEK)
    };
    let late = judge_with(&world.floor(), &world.publish(1), terms).unwrap_err();
    assert_eq!(late.class(), Class::Expired);
}

#[test]
fn nothing_is_accepted_under_an_expired_policy() {
    let mut world = World::with_genesis(roles(), NOW + 100, &[1]);
    let head = world.publish(1);
    assert_eq!(judge(&world.floor(), &head).unwrap().valid_until, NOW + 100);
    let late = judge_at(&world.floor(), &head, NOW + 100).unwrap_err();
    assert_eq!(late.class(), Class::Expired);
    // Grace does not help either.
    let terms = Terms {
        freshness: Freshness::Grace(WEEK),
        ..Terms::strict(NOW + 100)
    };
    assert!(judge_with(&world.floor(), &head, terms).is_err());
}

#[test]
fn owners_renew_an_expired_policy() {
    let mut world = World::with_genesis(roles(), NOW + 100, &[1]);
    let head = world.publish(1);
    world.rotate(&world.successor(Some(&head)), &[1]);
    let head = Head {
        policies: world.policies.clone(),
        ..head
    };
    assert!(judge_at(&world.floor(), &head, NOW + 100).is_ok());
}

#[test]
fn grace_ends_and_is_marked() {
    let mut world = World::new();
    let head = world.publish(1);
    let at = |now| {
        let terms = Terms {
            freshness: Freshness::Grace(60),
            ..Terms::strict(now)
        };
        judge_with(&world.floor(), &head, terms)
    };
    assert!(!at(NOW).unwrap().stale);
    let stale = at(NOW + WEEK).unwrap();
    assert!(stale.stale);
    assert_eq!(stale.valid_until, NOW + WEEK + 60);
    assert_eq!(at(NOW + WEEK + 60).unwrap_err().class(), Class::Expired);
}

#[test]
fn grace_does_not_allow_a_rollback() {
    let mut world = World::new();
    let (old, new) = (world.publish(1), world.publish(2));
    let floor = adopted(&world.floor(), &[&new]);
    let terms = Terms {
        freshness: Freshness::Grace(u64::MAX),
        ..Terms::strict(NOW)
    };
    let refused = judge_with(&floor, &old, terms).unwrap_err();
    assert_eq!(refused.class(), Class::Rollback);
}

// Pins.

#[test]
fn a_pinned_version_ignores_floor_and_expiry_and_moves_nothing() {
    let mut world = World::new();
    let (one, two) = (world.publish(1), world.publish(2));
    let three = world.publish(3);
    let floor = adopted(&world.floor(), &[&two]);
    let offer = judge_with(&floor, &one, pin(&one, 1)).unwrap();
    assert_eq!(floor.adopt(&offer).unwrap(), floor);
    let offer = judge_with(&floor, &three, pin(&three, 3)).unwrap();
    assert_eq!(floor.adopt(&offer).unwrap(), floor);
    assert_eq!(floor.observe(&offer).unwrap(), floor);
}

#[test]
fn a_pinned_reader_keeps_its_floor_under_new_policies_too() {
    let (world, last) = rotated();
    let mut before = World::new();
    let floor = adopted(&world.floor(), &[&before.publish(1)]);
    let offer = judge_with(&floor, &last, pin(&last, 1)).unwrap();
    assert_eq!(offer.chain.newest().number(), 1);
    assert_eq!(floor.observe(&offer).unwrap(), floor);
    assert_eq!(floor.adopt(&offer).unwrap(), floor);
}

#[test]
fn pinned_reader_refuses_other_records() {
    let mut world = World::new();
    let (one, two) = (world.publish(1), world.publish(2));
    let floor = world.floor();
    refused_as(judge_with(&floor, &two, pin(&one, 1)), "another version");
    refused_as(judge_with(&floor, &one, pin(&one, 2)), "another version");
    refused_as(judge_with(&floor, &one, pin(&two, 1)), "another record");
}

#[test]
fn pinned_record_still_needs_signatures() {
    let world = World::new();
    let head = world.head_of(&world.record(1), &[66]);
    refused_as(
        judge_with(&world.floor(), &head, pin(&head, 1)),
        "not signed",
    );
}

#[test]
fn chain_without_the_pinned_policy_is_refused() {
    let mut world = World::new();
    let head = world.publish(1);
    let pinned = |hash| Terms {
        policy_pin: Some(hash),
        ..Terms::strict(NOW)
    };
    let genesis = world.newest().1;
    assert!(judge_with(&world.floor(), &head, pinned(genesis)).is_ok());
    refused_as(
        judge_with(&world.floor(), &head, pinned([1; 32])),
        "pinned policy",
    );
}
