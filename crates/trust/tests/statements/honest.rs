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

#[test]
fn signatures_by_strangers_and_needless_parts_do_not_travel_on() {
    let mut world = World::new();
    let plain = world.publish(1);
    let unknown = trust::algorithm::UnknownKey::new(2, vec![5; 1952].into()).unwrap();
    let mut padded = plain.clone();
    let strangers: Vec<u8> = (50..100).collect();
    for signed in padded.policies.iter_mut().chain([&mut padded.record]) {
        for number in &strangers {
            signed.add(&key(*number));
        }
    }
    padded.timestamp = Some(sign(&world.timestamp(&plain).statement(world.volume), &[9]));
    padded.checkpoint = Some(vec![b'x'; 16 << 10].into());
    let padded = Head::decode(&padded.encode().unwrap()).unwrap();
    let offer = judge(&world.floor(), &padded).unwrap();
    assert_eq!(offer.reduced(&padded).unwrap(), plain);
    assert_eq!(offer.chain.signed(), plain.policies);
    assert_eq!(
        adopted(&world.floor(), &[&padded]).policies(),
        plain.policies
    );
    let link = offer.chain.link(0).unwrap();
    let leaf = |signed| trust::earlier::reduced(signed, link);
    assert_eq!(leaf(&padded.record), plain.record);
    assert_eq!(leaf(&padded.policies[0]), plain.policies[0]);
    // Those of role keys stay, also of algorithms that this build does not know.
    let publishers =
        trust::policy::Threshold::with_unknown(1, vec![key(2).public()], vec![unknown]).unwrap();
    let roles = trust::policy::Roles {
        publishers,
        ..roles()
    };
    let world = World::with_genesis(roles, u64::MAX, &[1]);
    let head = world.head_of(&world.record(1), &[2, 50]);
    let mut e = trust::encode::Encoder::new();
    e.bytes(head.record.statement().bytes()).varint(2);
    let by_publisher = head.record.by(&key(2).public()).unwrap();
    e.varint(1)
        .bytes(&by_publisher.key)
        .bytes(&by_publisher.signature);
    e.varint(2).bytes(&[5; 1952]).bytes(&[6; 3309]);
    let both = Head {
        record: trust::statement::Signed::from_bytes(&e.finish()).unwrap(),
        ..head
    };
    let offer = judge(&world.floor(), &both).unwrap();
    assert_eq!(offer.reduced(&both).unwrap(), both);
}
