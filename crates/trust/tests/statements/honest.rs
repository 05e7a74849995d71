//! Honest use that must work: publish, read, renew, rotate.

use trust::Reject;
use trust::head::Head;
use trust::history::Frontier;
use trust::policy::Successor;

use crate::world::*;

#[test]
fn a_first_head_is_believed_and_adopted() {
    let mut world = World::new();
    let head = world.publish(1);
    let head = Head::decode(&head.encode().unwrap()).unwrap();
    let offer = judge(&world.floor(), &head).unwrap();
    assert!(offer.is_new);
    assert!(!offer.stale);
    assert_eq!(offer.valid_until, NOW + WEEK);
    assert_eq!(offer.record.log.size, 1);
    assert_eq!(offer.log_after.size, 2);
    let floor = world.floor().adopt(&offer).unwrap();
    assert_eq!(floor.adopted().unwrap().version, 1);
    assert!(!judge(&floor, &head).unwrap().is_new);
    let next = world.publish(2);
    let floor = adopted(&floor, &[&next]);
    assert_eq!(
        judge(&floor, &head).unwrap_err(),
        Reject::Rollback {
            offered: 1,
            floor: 2
        }
    );
}

#[test]
fn each_statement_is_one_leaf_of_the_log_in_order() {
    let mut world = World::new();
    let mut log = Frontier::new();
    log.push(world.policies[0].statement().bytes()).unwrap();
    let one = world.publish(1);
    log.push(one.record.statement().bytes()).unwrap();
    assert_eq!(one.next_log(world.volume).unwrap().1, log);
    world.rotate(&world.successor(Some(&one)), &[1]);
    log.push(world.policies[1].statement().bytes()).unwrap();
    // The record was made before the policy that is now in its head.
    let beside = Head {
        policies: world.policies.clone(),
        ..one
    };
    assert_eq!(beside.next_log(world.volume).unwrap().1, log);
    let two = world.publish(2);
    log.push(two.record.statement().bytes()).unwrap();
    assert_eq!(two.next_log(world.volume).unwrap(), (log.point(0), log));
}

#[test]
fn policy_of_the_next_epoch_is_leaf_0_of_a_new_log() {
    let mut world = World::new();
    let one = world.publish(1);
    let policy = Successor {
        log_epoch: 1,
        ..world.successor(Some(&one))
    };
    world.rotate(&policy, &[1]);
    let head = Head {
        policies: world.policies.clone(),
        ..one
    };
    let mut log = Frontier::new();
    log.push(world.policies[1].statement().bytes()).unwrap();
    assert_eq!(head.next_log(world.volume).unwrap(), (log.point(1), log));
}

#[test]
fn head_claims_the_volume_of_its_first_policy() {
    let (world, mut head) = rotated();
    assert_eq!(head.volume(), Ok(world.volume));
    head.policies.clear();
    refused_as(head.volume(), "no policy");
}
