//! Attacks around a change of policy (rules 3, 4, 5 of the design): removed keys, recovery after a key was
//! stolen, revocation, and offers that are adopted after the policy has changed.

use trust::Reject;
use trust::error::Class;
use trust::floor::Floor;
use trust::handle::Handle;
use trust::head::Head;
use trust::policy::{NO_END, Revocation, Roles, Successor, VolumeId};
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
    let superseded = judge(&floor, &newer).unwrap_err();
    assert!(matches!(superseded, Reject::Superseded(_)), "{superseded}");
    assert_eq!(superseded.class(), Class::Expired, "it blames nobody");
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
    let policy = Successor {
        roles: publishers(1, &[5]),
        ..world.successor(None)
    };
    world.rotate(&policy, &[1]);
    let old = with_policies(&world, &old);
    refused_as(judge(&world.floor(), &old), "under a superseded policy");
}

/// The roles of [`roles`] with other publishers.
fn publishers(needed: u8, numbers: &[u8]) -> Roles {
    Roles {
        publishers: threshold(needed, numbers),
        ..roles()
    }
}

#[test]
fn record_counts_after_a_rotation_while_enough_of_its_signers_are_publishers() {
    let mut world = World::with_genesis(publishers(1, &[2, 3]), NO_END, &[1]);
    let first = world.publish(1);
    let [stays, removed, both] =
        [&[2][..], &[3], &[2, 3]].map(|signers| world.head_of(&world.record(2), signers));
    let policy = Successor {
        roles: publishers(1, &[2, 5]),
        ..world.successor(Some(&first))
    };
    world.rotate(&policy, &[1]);
    // A newcomer and a reader of the last record, from a mirror that has the policy and one that lags behind.
    for floor in [
        world.floor(),
        learned(&world.floor(), &with_policies(&world, &first)),
    ] {
        assert!(judge(&floor, &with_policies(&world, &stays)).is_ok());
        let refused = judge(&floor, &with_policies(&world, &removed));
        refused_as(refused, "under a superseded policy");
    }
    let policy = Successor {
        roles: publishers(2, &[2, 3, 5]),
        ..world.successor(Some(&first))
    };
    world.rotate(&policy, &[1]);
    let few = judge(&world.floor(), &with_policies(&world, &stays));
    refused_as(few, "under a superseded policy");
    assert!(judge(&world.floor(), &with_policies(&world, &both)).is_ok());
}

#[test]
fn mirror_that_lags_behind_a_rotation_is_not_accused() {
    let (mut world, first) = (World::new(), World::new().publish(1));
    world.advance(&first);
    let second = world.publish(2);
    let policy = Successor {
        roles: publishers(1, &[5]),
        ..world.successor(Some(&first))
    };
    world.rotate(&policy, &[1]);
    let floor = learned(&world.floor(), &with_policies(&world, &first));
    let lags = judge(&floor, &second).unwrap_err();
    assert!(matches!(lags, Reject::Superseded(_)), "{lags}");
    // A head that shows the policy and the record that it leaves out is no such mirror's.
    let shows = judge(&floor, &with_policies(&world, &second)).unwrap_err();
    assert!(matches!(shows, Reject::NotSigned(_)), "{shows}");
    // Nor is a record that never was good under the policies beside it.
    let policy = Successor {
        roles: publishers(1, &[5]),
        ..world.successor(Some(&first))
    };
    world.rotate(&policy, &[1]);
    let floor = learned(&world.floor(), &with_policies(&world, &first));
    let shows = Head {
        policies: world.policies[..2].to_vec(),
        ..second
    };
    let shows = judge(&floor, &shows).unwrap_err();
    assert!(matches!(shows, Reject::NotSigned(_)), "{shows}");
}

#[test]
fn policy_without_lower_never_lowers_the_floor() {
    let mut world = World::new();
    let (one, two) = (world.publish(1), world.publish(2));
    let floor = adopted(&world.floor(), &[&one, &two]);
    // Owners are offline: the last record that they know of is not the newest.
    world.rotate(&world.successor(Some(&one)), &[1]);
    let (one, two) = (with_policies(&world, &one), with_policies(&world, &two));
    let known = learned(&floor, &two);
    assert_eq!(known.adopted(), floor.adopted());
    assert_eq!(judge(&known, &one).unwrap_err().class(), Class::Rollback);
    assert!(judge(&known, &two).is_ok());
    // It raises the floor of a reader that is behind.
    assert_eq!(learned(&world.floor(), &one).adopted().unwrap().version, 1);
}

#[test]
fn record_that_a_policy_goes_back_from_stays_refused_although_its_publisher_stays() {
    let mut world = World::new();
    let (one, two) = (world.publish(1), world.publish(2));
    let floor = adopted(&world.floor(), &[&one, &two]);
    let policy = Successor {
        lower: true,
        ..world.successor(Some(&one))
    };
    world.rotate(&policy, &[1]);
    let mut cache = Signatures::default();
    let known = learned(&floor, &with_policies(&world, &one));
    assert_eq!(known.adopted().unwrap().version, 1);
    assert!(known.still_allows(&one.record, &mut cache).is_ok());
    assert!(known.still_allows(&two.record, &mut cache).is_err());
    refused_as(
        judge(&known, &with_policies(&world, &two)),
        "under a superseded policy",
    );
    // A later policy that goes back no further does not let it in again.
    world.rotate(&world.successor(Some(&one)), &[1]);
    let later = with_policies(&world, &two);
    refused_as(judge(&known, &later), "under a superseded policy");
}

#[test]
fn policies_learned_at_once_or_one_after_another_give_the_same_floor() {
    let mut world = World::new();
    let (one, two, three) = (world.publish(1), world.publish(2), world.publish(3));
    let floor = adopted(&world.floor(), &[&one, &two, &three]);
    let lower = Successor {
        lower: true,
        ..world.successor(Some(&one))
    };
    world.rotate(&lower, &[1]);
    let first = with_policies(&world, &one);
    world.rotate(&world.successor(Some(&two)), &[1]);
    let both = with_policies(&world, &two);
    let at_once = learned(&floor, &both);
    assert_eq!(at_once.adopted().unwrap().version, 2);
    assert_eq!(at_once, learned(&learned(&floor, &first), &both));
}

#[test]
fn only_a_policy_with_lower_caps_the_readers_time() {
    let mut world = World::new();
    let head = world.publish(1);
    // The clock was a week ahead when the reader saw the record's successor.
    let ahead = RootRecord {
        start: NOW + WEEK,
        ..world.record(2)
    };
    let ahead = judge_at(&world.floor(), &world.head_of(&ahead, &[2]), NOW + WEEK).unwrap();
    let floor = world.floor().observe(&ahead).unwrap();
    assert_eq!(floor.newest_start(), NOW + WEEK);
    for (lower, newest_start) in [(false, NOW + WEEK), (true, NOW + 600)] {
        let mut world = World {
            policies: world.policies.clone(),
            leaves: world.leaves.clone(),
            frontier: world.frontier.clone(),
            ..world
        };
        let policy = Successor {
            lower,
            ..world.successor(Some(&head))
        };
        world.rotate(&policy, &[1]);
        let head = with_policies(&world, &head);
        assert_eq!(learned(&floor, &head).newest_start(), newest_start);
        let judged = judge(&floor, &head);
        assert_eq!(judged.is_ok(), lower, "{judged:?}");
    }
}

/// A thief published version 2⁶³. The owners went back to version 1 and began the next log.
fn rescued() -> (World, Floor, Head, Head) {
    let mut world = World::new();
    let good = world.publish(1);
    let rescue = Successor {
        log_epoch: 1,
        lower: true,
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
    let refused = judge(&rescued, &evil).unwrap_err();
    assert!(matches!(refused, Reject::Superseded(_)), "{refused}");
    // Directly from the thief's version, without the good one in between.
    assert_eq!(adopted(&floor, &[&next]).adopted().unwrap().version, 2);
}

#[test]
fn policy_is_learned_even_when_its_record_is_refused() {
    let (_, floor, mut good, evil) = rescued();
    good.record = good.record.statement().sign(&[]);
    assert!(judge(&floor, &good).is_err());
    let learned = learned(&floor, &good);
    assert_eq!(learned.policy().unwrap().0, 1);
    assert_eq!(learned.adopted().unwrap().version, 1);
    assert_eq!(learned.adopted().unwrap().root, None);
    assert!(judge(&learned, &evil).is_err());
}

#[test]
fn a_known_policy_does_not_lower_the_floor_a_second_time() {
    let (world, floor, good, _) = rescued();
    let next = world.head_of(&world.record(2), &[5]);
    let floor = adopted(&floor, &[&good, &next]);
    assert_eq!(learned(&floor, &good).adopted().unwrap().version, 2);
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
    let learned = learned(&floor, &forked);
    assert_eq!(learned.policies(), floor.policies());
    assert!(learned.forks().stand());
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
    let floor = learned(&floor, &revoked);
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
