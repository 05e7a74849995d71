//! Attacks on a reader through heads: rollback, forks, time, removed keys, timestamps, witnesses.

use trust::Reject;
use trust::error::Class;
use trust::floor::Floor;
use trust::handle::Handle;
use trust::head::Head;
use trust::history::Frontier;
use trust::judge::{Freshness, Offer, Terms};
use trust::policy::{NO_END, Revocation, Roles, Successor, VolumeId};
use trust::root::RootRecord;
use trust::signatures::Signatures;

use crate::world::*;

fn refused_as<T: std::fmt::Debug>(result: Result<T, Reject>, expected: &str) {
    let got = result.unwrap_err().to_string();
    assert!(got.contains(expected), "expected `{expected}`, got `{got}`");
}

fn judge_with(floor: &Floor, head: &Head, terms: Terms) -> Result<Offer, Reject> {
    floor.judge(head, &terms, &mut Signatures::default())
}

// The record's signatures.

#[test]
fn an_unsigned_record_is_refused() {
    let world = World::new();
    let head = world.head_of(&world.record(1), &[]);
    refused_as(judge(&world.floor(), &head), "root record");
}

#[test]
fn a_record_by_an_owner_who_is_no_publisher_is_refused() {
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
fn a_record_under_a_policy_that_nobody_knows_is_refused() {
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
    // Evidence comes before the outage: long expired, it is a rollback still.
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
fn an_expired_record_is_refused_from_the_very_second_on() {
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
    // Also where it is the one adopted: expiry is judged each time.
    let floor = adopted(&world.floor(), &[&head]);
    let late = judge_at(&floor, &head, NOW + WEEK).unwrap_err();
    assert_eq!(late.class(), Class::Expired);
}

#[test]
fn a_validity_beyond_the_end_of_time_does_not_wrap_round() {
    let world = World::new();
    let record = RootRecord {
        duration: u64::MAX,
        ..world.record(1)
    };
    let offer = judge(&world.floor(), &world.head_of(&record, &[2])).unwrap();
    assert_eq!(offer.valid_until, u64::MAX);
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
    // Seen, not adopted: the version does not move, the newest start does.
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

#[test]
fn nothing_is_accepted_under_an_expired_policy() {
    let mut world = World::with_genesis(roles(), NOW + 100, &[1]);
    let head = world.publish(1);
    assert_eq!(judge(&world.floor(), &head).unwrap().valid_until, NOW + 100);
    let late = judge_at(&world.floor(), &head, NOW + 100).unwrap_err();
    assert_eq!(late.class(), Class::Expired);
    // Not by grace either.
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

fn pin(head: &Head, version: u64) -> Terms {
    Terms {
        freshness: Freshness::Pinned {
            version,
            record_hash: head.record.hash(),
        },
        ..Terms::strict(NOW + 100 * WEEK)
    }
}

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
fn a_pinned_reader_takes_no_other_record() {
    let mut world = World::new();
    let (one, two) = (world.publish(1), world.publish(2));
    let floor = world.floor();
    refused_as(judge_with(&floor, &two, pin(&one, 1)), "another version");
    refused_as(judge_with(&floor, &one, pin(&one, 2)), "another version");
    refused_as(judge_with(&floor, &one, pin(&two, 1)), "another record");
}

#[test]
fn a_pin_is_no_signature() {
    let world = World::new();
    let head = world.head_of(&world.record(1), &[66]);
    refused_as(
        judge_with(&world.floor(), &head, pin(&head, 1)),
        "not signed",
    );
}

#[test]
fn a_pinned_policy_must_stand_in_the_chain() {
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

// Rotation: rules 3, 4, 5.

/// A world with one record and a rotation away from publisher 2 to publisher 5.
fn rotated() -> (World, Head) {
    let mut world = World::new();
    let last = world.publish(1);
    let policy = Successor {
        roles: Roles {
            publishers: threshold(1, &[5]),
            ..roles()
        },
        ..world.successor(Some(&last))
    };
    world.rotate(&policy, &[1]);
    let last = Head {
        policies: world.policies.clone(),
        ..last
    };
    (world, last)
}

#[test]
fn the_last_record_survives_a_rotation_without_republishing() {
    let (world, last) = rotated();
    let offer = judge(&world.floor(), &last).unwrap();
    assert_eq!(offer.record.policy_number, 0);
    // The log goes on behind the new policy.
    assert_eq!(last.next_log(world.volume).unwrap().0, world.log);
    let next = world.head_of(&world.record(2), &[5]);
    let floor = adopted(&world.floor(), &[&last, &next]);
    assert_eq!(floor.adopted().unwrap().version, 2);
}

#[test]
fn a_removed_key_signs_nothing_new() {
    let (world, last) = rotated();
    let forged = RootRecord {
        policy_number: 0,
        policy_hash: world.policies[0].hash(),
        ..world.record(2)
    };
    let forged = world.head_of(&forged, &[2]);
    for floor in [world.floor(), adopted(&world.floor(), &[&last])] {
        refused_as(judge(&floor, &forged), "under a superseded policy");
    }
    // Nor under the new policy's name.
    let head = world.head_of(&world.record(2), &[2]);
    refused_as(judge(&world.floor(), &head), "root record");
}

#[test]
fn a_removed_key_cannot_stop_readers_by_a_twin_of_the_last_record() {
    let (world, last) = rotated();
    let floor = adopted(&world.floor(), &[&last]);
    let twin = RootRecord {
        policy_number: 0,
        policy_hash: world.policies[0].hash(),
        root: Handle::from_bytes([99; 32]),
        ..world.record(1)
    };
    let refused = judge(&floor, &world.head_of(&twin, &[2])).unwrap_err();
    assert_eq!(refused.class(), Class::Integrity);
}

#[test]
fn an_old_chain_does_not_hide_the_policy_that_a_reader_knows() {
    let (world, last) = rotated();
    let floor = adopted(&world.floor(), &[&last]);
    // A mirror that lags behind still serves the last record…
    let lagging = Head {
        policies: world.policies[..1].to_vec(),
        ..last.clone()
    };
    assert_eq!(judge(&floor, &lagging).unwrap().chain.newest().number(), 1);
    // …but nothing newer that only the old chain would allow.
    let mut before = World::new();
    before.publish(1);
    let newer = before.publish(2);
    refused_as(judge(&floor, &newer), "under a superseded policy");
}

#[test]
fn a_newcomer_gets_no_record_older_than_the_newest_policys_last() {
    let mut world = World::new();
    let (old, last) = (world.publish(1), world.publish(2));
    world.rotate(&world.successor(Some(&last)), &[1]);
    let old = Head {
        policies: world.policies.clone(),
        ..old
    };
    let refused = judge(&world.floor(), &old).unwrap_err();
    assert_eq!(refused.class(), Class::Rollback);
}

#[test]
fn a_policy_without_last_admits_no_older_record() {
    let mut world = World::new();
    let old = world.publish(1);
    world.rotate(&world.successor(None), &[1]);
    let old = Head {
        policies: world.policies.clone(),
        ..old
    };
    refused_as(judge(&world.floor(), &old), "under a superseded policy");
}

/// A thief published version 2⁶³; the owners went back to version 1 and began the next log.
fn rescued() -> (World, Floor, Head, Head) {
    let mut world = World::new();
    let good = world.publish(1);
    let rescue = Successor {
        log_epoch: 1,
        roles: Roles {
            publishers: threshold(1, &[5]),
            ..roles()
        },
        ..world.successor(Some(&good))
    };
    let evil = world.head_of(&world.record(1 << 63), &[2]);
    let floor = adopted(&world.floor(), &[&good, &evil]);
    assert_eq!(floor.adopted().unwrap().version, 1 << 63);
    world.rotate(&rescue, &[1]);
    let good = Head {
        policies: world.policies.clone(),
        ..good
    };
    (world, floor, good, evil)
}

#[test]
fn a_new_policy_sets_the_floor_downwards_after_a_stolen_key() {
    let (world, floor, good, evil) = rescued();
    let rescued = adopted(&floor, &[&good]);
    assert_eq!(rescued.adopted().unwrap().version, 1);
    let next = world.head_of(&world.record(2), &[5]);
    let rescued = adopted(&rescued, &[&next]);
    assert_eq!(rescued.adopted().unwrap().version, 2);
    refused_as(judge(&rescued, &evil), "under a superseded policy");
    // Straight from the thief's version, without the good one in between.
    assert_eq!(adopted(&floor, &[&next]).adopted().unwrap().version, 2);
}

#[test]
fn the_policy_is_learned_even_where_its_record_is_worth_nothing() {
    let (_, floor, mut good, evil) = rescued();
    good.record = good.record.statement().sign(&[]);
    assert!(judge(&floor, &good).is_err());
    let learned = floor.learn(&good, &mut Signatures::default()).unwrap();
    assert_eq!(learned.policy().unwrap().0, 1);
    assert_eq!(learned.adopted().unwrap().version, 1);
    assert_eq!(learned.adopted().unwrap().root, None);
    refused_as(judge(&learned, &evil), "under a superseded policy");
}

#[test]
fn a_known_policy_does_not_lower_the_floor_a_second_time() {
    let (world, floor, good, _) = rescued();
    let next = world.head_of(&world.record(2), &[5]);
    let floor = adopted(&floor, &[&good, &next]);
    let learned = floor.learn(&good, &mut Signatures::default()).unwrap();
    assert_eq!(learned.adopted().unwrap().version, 2);
    assert_eq!(judge(&floor, &good).unwrap_err().class(), Class::Rollback);
}

#[test]
fn two_successors_of_one_policy_stop_the_reader() {
    let (mut world, last) = rotated();
    let floor = adopted(&world.floor(), &[&last]);
    world.policies.truncate(1);
    world.rotate(&world.successor(Some(&last)), &[1]);
    let forked = Head {
        policies: world.policies.clone(),
        ..last
    };
    assert_eq!(judge(&floor, &forked).unwrap_err().class(), Class::Fork);
    let learned = floor.learn(&forked, &mut Signatures::default());
    assert_eq!(learned.unwrap_err().class(), Class::Fork);
}

#[test]
fn a_revoked_volume_is_refused_and_its_successor_shown() {
    let mut world = World::new();
    let head = world.publish(1);
    let successor = Some(VolumeId::from_bytes([4; 32]));
    let policy = Successor {
        revoked: Some(Revocation { successor }),
        ..world.successor(Some(&head))
    };
    world.rotate(&policy, &[1]);
    let revoked = Head {
        policies: world.policies.clone(),
        ..head.clone()
    };
    let floor = adopted(&world.floor(), &[&head]);
    let refused = judge(&floor, &revoked).unwrap_err();
    assert_eq!(refused, Reject::Revoked { successor });
    assert!(judge_with(&floor, &revoked, pin(&revoked, 1)).is_err());
    // Once learned, a mirror that hides the revocation changes nothing.
    let floor = floor.learn(&revoked, &mut Signatures::default()).unwrap();
    assert_eq!(
        judge(&floor, &head).unwrap_err(),
        Reject::Revoked { successor }
    );
}

#[test]
fn a_void_revocation_does_not_stop_who_knows_the_later_policy() {
    let (mut world, last) = rotated();
    let floor = adopted(&world.floor(), &[&last]);
    world.policies.truncate(1);
    let policy = Successor {
        revoked: Some(Revocation { successor: None }),
        ..world.successor(None)
    };
    world.rotate(&policy, &[1]);
    let void = Head {
        policies: world.policies.clone(),
        ..last.clone()
    };
    let refused = judge(&floor, &void).unwrap_err();
    assert_eq!(refused.class(), Class::Integrity);
    assert!(judge(&floor, &last).is_ok());
}

// Adoption races and mix-ups.

#[test]
fn an_offer_judged_before_the_floor_moved_is_judged_again() {
    let mut world = World::new();
    let (one, two) = (world.publish(1), world.publish(2));
    let early = judge(&world.floor(), &one).unwrap();
    let floor = adopted(&world.floor(), &[&two]);
    let refused = floor.adopt(&early).unwrap_err();
    assert_eq!(refused.class(), Class::Rollback);
}

#[test]
fn an_offer_judged_under_a_policy_since_superseded_is_refused() {
    let (world, last) = rotated();
    let mut before = World::new();
    before.publish(1);
    let newer = before.publish(2);
    let offer = judge(&world.floor(), &newer).unwrap();
    let floor = adopted(&world.floor(), &[&last]);
    refused_as(floor.adopt(&offer), "since superseded");
    refused_as(floor.observe(&offer), "since superseded");
}

#[test]
fn an_offer_under_a_forked_policy_is_not_adopted() {
    let (mut world, last) = rotated();
    let floor = adopted(&world.floor(), &[&last]);
    world.policies.truncate(1);
    world.rotate(&world.successor(Some(&last)), &[1]);
    let forked = Head {
        policies: world.policies.clone(),
        ..last
    };
    let offer = judge(&world.floor(), &forked).unwrap();
    assert_eq!(floor.adopt(&offer).unwrap_err().class(), Class::Fork);
}

#[test]
fn an_offer_of_another_volume_is_not_adopted() {
    let mut world = World::new();
    let offer = judge(&world.floor(), &world.publish(1)).unwrap();
    let other = Floor::new(VolumeId::from_bytes([1; 32]));
    assert_eq!(other.adopt(&offer).unwrap_err(), Reject::WrongVolume);
    assert_eq!(
        judge(&other, &world.publish(2)).unwrap_err(),
        Reject::WrongVolume
    );
}

#[test]
fn observing_never_moves_the_adopted_version() {
    let mut world = World::new();
    let (one, two) = (world.publish(1), world.publish(2));
    let floor = adopted(&world.floor(), &[&one]);
    let seen = floor.observe(&judge(&floor, &two).unwrap()).unwrap();
    assert_eq!(seen.adopted(), floor.adopted());
    assert!(judge(&seen, &one).is_ok());
}
