//! Attacks around a change of policy (rules 3, 4, 5 of the design): removed keys, recovery after a key was
//! stolen, revocation, and offers that are adopted after the policy has changed.

use trust::Reject;
use trust::error::Class;
use trust::floor::Floor;
use trust::handle::Handle;
use trust::head::Head;
use trust::policy::{Revocation, Roles, Successor, VolumeId};
use trust::root::RootRecord;
use trust::signatures::Signatures;

use crate::world::*;

#[test]
fn the_last_record_survives_a_rotation_without_republishing() {
    let (world, last) = rotated();
    let offer = judge(&world.floor(), &last).unwrap();
    assert_eq!(offer.record.policy_number, 0);
    // The log continues after the new policy.
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
    // Nor when it names the new policy.
    let head = world.head_of(&world.record(2), &[2]);
    refused_as(judge(&world.floor(), &head), "root record");
}

#[test]
fn removed_key_cannot_cause_a_fork_with_another_record_of_the_last_version() {
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
fn new_reader_refuses_records_older_than_the_last_of_the_newest_policy() {
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

/// A thief published version 2⁶³. The owners went back to version 1 and began the next log.
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
fn new_policy_lowers_the_floor_after_a_key_was_stolen() {
    let (world, floor, good, evil) = rescued();
    let rescued = adopted(&floor, &[&good]);
    assert_eq!(rescued.adopted().unwrap().version, 1);
    let next = world.head_of(&world.record(2), &[5]);
    let rescued = adopted(&rescued, &[&next]);
    assert_eq!(rescued.adopted().unwrap().version, 2);
    refused_as(judge(&rescued, &evil), "under a superseded policy");
    // Directly from the thief's version, without the good one in between.
    assert_eq!(adopted(&floor, &[&next]).adopted().unwrap().version, 2);
}

#[test]
fn policy_is_learned_even_when_its_record_is_refused() {
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
    // A reader that has learned of the revocation ignores a mirror that hides it.
    let floor = floor.learn(&revoked, &mut Signatures::default()).unwrap();
    assert_eq!(
        judge(&floor, &head).unwrap_err(),
        Reject::Revoked { successor }
    );
}

#[test]
fn void_revocation_does_not_stop_a_reader_of_the_later_policy() {
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
