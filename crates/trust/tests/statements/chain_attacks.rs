//! Attacks on the policy chain: rules 1 and 5, and the parts of rules 4 and 6 that concern chains.

use trust::Reject;
use trust::chain::{Chain, MAX_POLICIES};
use trust::error::Class;
use trust::policy::{Genesis, Policy, Revocation, Roles, Successor, VolumeId};
use trust::signatures::Signatures;
use trust::statement::{Body, Signed, Statement};

use crate::world::*;

fn malformed(result: Result<Chain, Reject>, expected: &str) {
    match result.unwrap_err() {
        Reject::Malformed { why, .. } => assert_eq!(why, expected),
        other => panic!("expected `{expected}`, got {other:?}"),
    }
}

fn not_signed<T: std::fmt::Debug>(result: Result<T, Reject>, expected: &str) {
    assert_eq!(
        result.unwrap_err().to_string(),
        format!("not signed as the policy demands: {expected}")
    );
}

/// A world whose newest policy is `successor`, signed by these keys.
fn after(successor: impl FnOnce(&World) -> Successor, signers: &[u8]) -> World {
    let mut world = World::new();
    let policy = successor(&world);
    world.rotate(&policy, signers);
    world
}

#[test]
fn a_chain_without_policies_is_refused() {
    let mut world = World::new();
    world.policies.clear();
    malformed(world.chain(), "no policy");
}

#[test]
fn head_with_too_many_policies_is_refused() {
    let mut world = World::new();
    let shown = |world: &World| {
        Chain::shown(
            world.volume,
            &world.policies,
            None,
            &mut Signatures::default(),
        )
    };
    for _ in 1..MAX_POLICIES {
        world.rotate(&world.successor(None), &[1]);
    }
    assert_eq!(shown(&world).unwrap().newest().number(), 7);
    world.rotate(&world.successor(None), &[1]);
    malformed(shown(&world), "too many policies");
}

#[test]
fn another_volumes_genesis_is_refused() {
    let world = World::new();
    let other = World::with_genesis(roles(), 1, &[1]);
    let chain = Chain::verify(world.volume, &other.policies, &mut Signatures::default());
    assert_eq!(chain.unwrap_err(), Reject::WrongVolume);
}

#[test]
fn a_volume_cannot_begin_with_a_successor() {
    let successor = World::new().successor(None);
    let signed = sign(&successor.statement(VolumeId::UNBORN), &[1]);
    let volume = VolumeId::from_bytes(signed.hash());
    let chain = Chain::verify(volume, &[signed], &mut Signatures::default());
    malformed(chain, "does not begin with a genesis policy");
}

#[test]
fn a_genesis_that_names_a_volume_is_refused() {
    let genesis = Genesis::new("x", [1; 32], [2; 32], roles()).unwrap();
    let claimed = VolumeId::from_bytes([3; 32]);
    let signed = sign(&Statement::new(claimed, &Policy::Genesis(genesis)), &[1]);
    let volume = VolumeId::from_bytes(signed.hash());
    let chain = Chain::verify(volume, &[signed], &mut Signatures::default());
    assert_eq!(chain.unwrap_err(), Reject::WrongVolume);
}

#[test]
fn a_genesis_that_its_owners_did_not_sign_is_refused() {
    not_signed(
        World::with_genesis(roles(), 1, &[2]).chain(),
        "genesis policy",
    );
    not_signed(
        World::with_genesis(roles(), 1, &[]).chain(),
        "genesis policy",
    );
}

#[test]
fn a_second_genesis_is_refused() {
    let mut world = World::new();
    let genesis = Genesis::new("x", [1; 32], [2; 32], roles()).unwrap();
    let statement = Statement::new(world.volume, &Policy::Genesis(genesis));
    world.policies.push(sign(&statement, &[1]));
    malformed(world.chain(), "a second genesis policy");
}

#[test]
fn a_successor_of_another_volume_is_refused() {
    let mut world = World::new();
    let other = VolumeId::from_bytes([5; 32]);
    world
        .policies
        .push(sign(&world.successor(None).statement(other), &[1]));
    assert_eq!(world.chain().unwrap_err(), Reject::WrongVolume);
}

#[test]
fn a_policy_number_that_jumps_is_refused() {
    let jump = |w: &World| Successor {
        number: 2,
        ..w.successor(None)
    };
    malformed(
        after(jump, &[1]).chain(),
        "policy numbers do not count up by one",
    );
}

#[test]
fn a_successor_of_another_policy_is_refused() {
    let stray = |w: &World| Successor {
        previous: [8; 32],
        ..w.successor(None)
    };
    malformed(
        after(stray, &[1]).chain(),
        "a policy does not name the one before it",
    );
}

#[test]
fn new_owners_without_the_old_are_refused() {
    let takeover = |w: &World| Successor {
        roles: Roles {
            owners: threshold(1, &[66]),
            ..roles()
        },
        ..w.successor(None)
    };
    not_signed(after(takeover, &[66]).chain(), "policy, by the old owners");
    assert!(after(takeover, &[1, 66]).chain().is_ok());
}

#[test]
fn old_owners_without_the_new_are_refused() {
    let handover = |w: &World| Successor {
        roles: Roles {
            owners: threshold(2, &[1, 66]),
            ..roles()
        },
        ..w.successor(None)
    };
    not_signed(after(handover, &[1]).chain(), "policy, by the new owners");
}

#[test]
fn one_owner_of_two_is_too_few() {
    let two_of_three = Roles {
        owners: threshold(2, &[1, 3, 4]),
        ..roles()
    };
    let genesis = |signers: &[u8]| World::with_genesis(two_of_three.clone(), 1, signers).chain();
    not_signed(genesis(&[3]), "genesis policy");
    not_signed(genesis(&[3, 99]), "genesis policy");
    assert!(genesis(&[3, 4]).is_ok());
    assert!(genesis(&[1, 3, 4, 99]).is_ok());
}

#[test]
fn a_bad_signature_in_an_owners_name_is_refused_even_beside_enough_good_ones() {
    let one_of_two = Roles {
        owners: threshold(1, &[1, 3]),
        ..roles()
    };
    let mut world = World::with_genesis(one_of_two, 1, &[1, 3]);
    assert!(world.chain().is_ok());
    let mut bytes = world.policies[0].to_bytes();
    *bytes.last_mut().unwrap() ^= 0x04;
    world.policies[0] = Signed::from_bytes(&bytes).unwrap();
    not_signed(world.chain(), "genesis policy");
}

#[test]
fn a_policy_after_a_revocation_is_refused() {
    let mut world = after(revoked, &[1]);
    world.rotate(&world.successor(None), &[1]);
    malformed(world.chain(), "a policy after a revocation");
}

#[test]
fn policy_that_forgets_the_last_record_is_refused() {
    let mut world = World::new();
    let head = world.publish(1);
    world.rotate(&world.successor(None), &[1]);
    world.rotate(&world.successor(Some(&head)), &[1]);
    assert!(world.chain().is_ok());
    world.rotate(&world.successor(None), &[1]);
    malformed(
        world.chain(),
        "a policy without the last record after one with it",
    );
}

#[test]
fn a_log_epoch_that_jumps_or_goes_back_is_refused() {
    let epoch = |log_epoch| {
        move |w: &World| Successor {
            log_epoch,
            ..w.successor(None)
        }
    };
    let why = "log epochs do not count up by at most one";
    malformed(after(epoch(2), &[1]).chain(), why);
    let mut world = after(epoch(1), &[1]);
    assert!(world.chain().is_ok());
    world.rotate(&epoch(0)(&world), &[1]);
    malformed(world.chain(), why);
}

fn revoked(w: &World) -> Successor {
    Successor {
        revoked: Some(Revocation {
            successor: Some(VolumeId::from_bytes([4; 32])),
        }),
        ..w.successor(None)
    }
}

fn until(not_after: u64) -> impl Fn(&World) -> Successor {
    move |w: &World| Successor {
        not_after,
        ..w.successor(None)
    }
}

#[test]
fn two_successors_of_one_policy_are_a_fork() {
    let one = after(until(NOW + 1), &[1]).chain().unwrap();
    let mut two = after(until(NOW + 2), &[1]);
    let fork = one.clone().newer_of(two.chain().unwrap()).unwrap_err();
    assert_eq!(fork.class(), Class::Fork);
    // A longer chain does not outweigh it.
    two.rotate(&two.successor(None), &[1]);
    let fork = one.clone().newer_of(two.chain().unwrap()).unwrap_err();
    assert_eq!(fork.class(), Class::Fork);
    // Beside an older policy it stops nobody.
    let stray = two.chain().unwrap().newer_of(one).unwrap_err();
    assert!(matches!(stray, Reject::StrayPolicy(_)), "{stray}");
}

#[test]
fn a_revocation_under_a_superseded_policy_is_void() {
    let known = after(until(NOW + 1), &[1]).chain().unwrap();
    let revocation = after(revoked, &[1]).chain().unwrap();
    not_signed(
        known.clone().newer_of(revocation.clone()),
        "a revocation under a superseded policy",
    );
    // In the other order it is a fork: a reader that knows the revocation does not accept anything else.
    let fork = revocation.newer_of(known).unwrap_err();
    assert_eq!(fork.class(), Class::Fork);
}

#[test]
fn two_revocations_are_a_fork() {
    let plain = |w: &World| Successor {
        revoked: Some(Revocation { successor: None }),
        ..w.successor(None)
    };
    let one = after(plain, &[1]).chain().unwrap();
    let two = after(revoked, &[1]).chain().unwrap();
    assert_eq!(one.newer_of(two).unwrap_err().class(), Class::Fork);
}

#[test]
fn chains_of_two_volumes_do_not_compare() {
    let one = World::new().chain().unwrap();
    let two = World::with_genesis(roles(), 1, &[1]).chain().unwrap();
    assert_eq!(one.newer_of(two).unwrap_err(), Reject::WrongVolume);
}

#[test]
fn the_longer_of_two_agreeing_chains_counts() {
    let mut world = World::new();
    let short = world.chain().unwrap();
    world.rotate(&world.successor(None), &[1]);
    let long = world.chain().unwrap();
    let newest = |c: Result<Chain, Reject>| c.unwrap().newest().number();
    assert_eq!(newest(short.clone().newer_of(long.clone())), 1);
    assert_eq!(newest(long.newer_of(short)), 1);
}

#[test]
fn timestamp_or_record_is_not_accepted_as_a_policy() {
    let mut world = World::new();
    let head = world.publish(1);
    world.policies.push(head.record.clone());
    assert!(matches!(world.chain(), Err(Reject::Malformed { .. })));
    assert_ne!(Policy::PURPOSE as u8, 2);
}
