//! Cases of judgements.txt about policies: forks of them, rotations, `lower`, revocations.

use trust::floor::Floor;
use trust::handle::Handle;
use trust::head::Head;
use trust::judge::Terms;
use trust::policy::{NO_END, Revocation, Roles, Successor, VolumeId};
use trust::root::RootRecord;

use super::cases::with_roles;
use super::judgements::Case;
use crate::world::*;

pub fn all() -> Vec<Case> {
    let groups = [policy_forks(), rotations(), lowered(), revoked()];
    groups.into_iter().flatten().collect()
}

fn policy_forks() -> Vec<Case> {
    let mut world = World::new();
    let head = world.publish(1);
    let a = rotate_until(&world, &head, NOW + WEEK);
    let b = rotate_until(&world, &head, NOW + 2 * WEEK);
    let later = rotate_until(&a, &head, NO_END);
    let mut settled = a.clone();
    let refuses = Successor {
        refused: vec![b.newest().1],
        ..a.successor(Some(&head))
    };
    settled.rotate(&refuses, &[1]);
    let shown = |world: &World| with_policies(world, &head);
    let [on_a, on_b, on_later, on_settled] = [&a, &b, &later, &settled].map(shown);
    let floor = adopted(&world.floor(), &[&head]);
    let knows_a = learned(&floor, &on_a);
    let knows_later = learned(&floor, &on_later);
    let judge = |floor: &Floor, heads: &[Head]| {
        floor
            .judge_all(heads, &Terms::strict(NOW), &mut Default::default())
            .floor
    };
    let forked = judge(&floor, &[on_a.clone(), on_b.clone()]);
    let tip = judge(&knows_a, std::slice::from_ref(&on_b));
    let chosen = forked.settle(&a.newest().1).unwrap();
    let two = world.publish(2);
    vec![
        Case::new(
            "two-successors",
            &floor,
            &[(&on_a, "fork"), (&on_b, "fork")],
        ),
        Case::new(
            "two-successors-for-a-new-reader",
            &world.floor(),
            &[(&on_b, "fork"), (&on_a, "fork")],
        ),
        Case::new(
            "two-successors-beside-the-adopted",
            &floor,
            &[(&on_a, "fork"), (&on_b, "fork"), (&head, "good")],
        ),
        Case::new("remembered-fork-of-policies", &forked, &[(&on_a, "fork")]),
        Case::new("adopted-version-beside-a-fork", &forked, &[(&head, "good")]),
        Case::new("new-version-beside-a-fork", &forked, &[(&two, "fork")]),
        Case::new(
            "fork-at-the-tip",
            &knows_a,
            &[(&on_b, "fork"), (&on_a, "good")],
        ),
        Case::new("known-branch-goes-on", &tip, &[(&on_later, "good")]),
        Case::new(
            "later-policy-does-not-settle-for-others",
            &forked,
            &[(&on_later, "fork")],
        ),
        Case::new("refusal-settles", &forked, &[(&on_settled, "good")]),
        Case::new(
            "refusal-settles-at-once",
            &floor,
            &[(&on_b, "stray-policy"), (&on_settled, "good")],
        ),
        Case::new(
            "beside-an-older-policy",
            &knows_later,
            &[(&on_b, "stray-policy"), (&on_later, "good")],
        ),
        Case::new(
            "the-users-choice-of-policies",
            &chosen,
            &[(&on_a, "good"), (&on_b, "refused")],
        ),
    ]
}

fn rotate_until(world: &World, last: &Head, not_after: u64) -> World {
    let mut world = world.clone();
    let policy = Successor {
        not_after,
        ..world.successor(Some(last))
    };
    world.rotate(&policy, &[1]);
    world
}

fn rotations() -> Vec<Case> {
    let (world, last) = rotated();
    let floor = world.floor();
    let knows = adopted(&floor, &[&last]);
    let next = world.head_of(&world.record(2), &[5]);
    let by_removed = world.head_of(&world.record(2), &[2]);
    let under_old = RootRecord {
        policy_number: 0,
        policy_hash: world.policies[0].hash(),
        ..world.record(2)
    };
    let under_old = world.head_of(&under_old, &[2]);
    let mut before = World::new();
    let lagging = before.publish(1);
    let old_next = before.publish(2);
    let twin = RootRecord {
        policy_number: 0,
        policy_hash: world.policies[0].hash(),
        root: Handle::from_bytes([99; 32]),
        ..world.record(1)
    };
    let twin = world.head_of(&twin, &[2]);
    let mut cases = vec![
        Case::new("last-record-after-a-rotation", &floor, &[(&last, "good")]),
        Case::new("new-publisher", &knows, &[(&next, "good")]),
        Case::new("removed-publisher", &knows, &[(&by_removed, "not-signed")]),
        Case::new(
            "removed-publisher-under-the-old-policy",
            &knows,
            &[(&under_old, "not-signed")],
        ),
        Case::new(
            "removed-publisher-and-the-last-version",
            &knows,
            &[(&twin, "not-signed")],
        ),
        Case::new(
            "mirror-that-lags-with-the-last-record",
            &knows,
            &[(&lagging, "good")],
        ),
        Case::new(
            "mirror-that-lags-with-a-later-record",
            &knows,
            &[(&old_next, "superseded")],
        ),
        Case::new(
            "policy-of-one-mirror-counts-for-all",
            &floor,
            &[(&old_next, "superseded"), (&next, "good")],
        ),
    ];
    cases.extend(kept_publisher());
    cases.push(earlier_log());
    cases.extend(broken_chains());
    cases
}

/// A rotation that keeps publisher 2 and removes 3.
fn kept_publisher() -> Vec<Case> {
    let mut world = with_roles(publishers(&[2, 3]));
    let first = world.publish(1);
    let [kept, removed] = [&[2], &[3]].map(|by: &[u8; 1]| world.head_of(&world.record(2), by));
    let policy = Successor {
        roles: publishers(&[2, 5]),
        ..world.successor(Some(&first))
    };
    world.rotate(&policy, &[1]);
    let [kept, removed] = [kept, removed].map(|head| with_policies(&world, &head));
    let knows = learned(&world.floor(), &kept);
    vec![
        Case::new(
            "record-of-a-publisher-who-stays",
            &knows,
            &[(&kept, "good")],
        ),
        Case::new(
            "record-of-a-publisher-who-goes",
            &knows,
            &[(&removed, "not-signed")],
        ),
    ]
}

/// A policy began log 1, and a publisher who stays goes on in log 0.
fn earlier_log() -> Case {
    let mut world = World::new();
    let first = world.publish(1);
    let before = world.clone();
    let policy = Successor {
        log_epoch: 1,
        ..world.successor(Some(&first))
    };
    world.rotate(&policy, &[1]);
    let second = world.publish(2);
    let first = with_policies(&world, &first);
    let back = with_policies(&world, &before.head_of(&before.record(3), &[2]));
    let floor = adopted(&world.floor(), &[&first, &second]);
    Case::new("newer-record-in-an-earlier-log", &floor, &[(&back, "fork")])
}

fn broken_chains() -> Vec<Case> {
    let mut world = World::new();
    let head = world.publish(1);
    let floor = world.floor();
    let case = |name, change: fn(&mut Successor), signers: &[u8], verdict| {
        let mut world = world.clone();
        let mut policy = world.successor(Some(&head));
        change(&mut policy);
        world.rotate(&policy, signers);
        Case::new(name, &floor, &[(&with_policies(&world, &head), verdict)])
    };
    let new_owner = |policy: &mut Successor| policy.roles.owners = threshold(1, &[6]);
    let mut forgetful = world.clone();
    with_lower(&mut forgetful, &head, false);
    let policy = forgetful.successor(None);
    forgetful.rotate(&policy, &[1]);
    let mut none = head.clone();
    none.policies.clear();
    let mut twice = head.clone();
    twice.policies.push(head.policies[0].clone());
    vec![
        case("old-and-new-owners", new_owner, &[1, 6], "good"),
        case("old-owners-alone", new_owner, &[1], "not-signed"),
        case("new-owners-alone", new_owner, &[6], "not-signed"),
        case("policy-by-a-publisher", |_| (), &[2], "not-signed"),
        case(
            "number-jumps",
            |policy| policy.number = 2,
            &[1],
            "policies-missing",
        ),
        case(
            "another-previous",
            |policy| policy.previous = [1; 32],
            &[1],
            "malformed",
        ),
        case("next-epoch", |policy| policy.log_epoch = 1, &[1], "good"),
        case(
            "epoch-jumps",
            |policy| policy.log_epoch = 2,
            &[1],
            "malformed",
        ),
        Case::new(
            "last-forgotten",
            &floor,
            &[(&with_policies(&forgetful, &head), "malformed")],
        ),
        Case::new("no-policy", &floor, &[(&none, "malformed")]),
        Case::new("two-genesis-policies", &floor, &[(&twice, "wrong-volume")]),
    ]
}

fn lowered() -> Vec<Case> {
    let mut world = World::new();
    let good = world.publish(1);
    let thief = world.clone();
    let stolen = RootRecord {
        start: NOW + 600,
        ..thief.record(1 << 63)
    };
    let stolen = thief.head_of(&stolen, &[2]);
    let floor = adopted(&world.floor(), &[&good, &stolen]);
    let mut plain = world.clone();
    let without = with_lower(&mut plain, &good, false);
    let rescued = with_lower(&mut world, &good, true);
    let knows = learned(&floor, &rescued);
    let stolen_again = with_policies(&world, &stolen);
    let next = world.head_of(&world.record(2), &[2]);
    vec![
        Case::new(
            "version-2-63",
            &adopted(&world.floor(), &[&good]),
            &[(&stolen, "good")],
        ),
        Case::new("policy-without-lower", &floor, &[(&without, "rollback")]),
        Case::new("policy-with-lower", &floor, &[(&rescued, "good")]),
        Case::new(
            "lowered-record-comes-again",
            &knows,
            &[(&stolen_again, "not-signed")],
        ),
        Case::new(
            "lowered-record-of-a-mirror-that-lags",
            &knows,
            &[(&stolen, "superseded")],
        ),
        Case::new("next-version-after-lower", &knows, &[(&next, "good")]),
        Case::new("lower-caps-the-time", &floor, &[(&rescued, "good")]).at(NOW - 300),
    ]
}

fn revoked() -> Vec<Case> {
    let mut world = World::new();
    let head = world.publish(1);
    let ends = |world: &World, successor: Option<VolumeId>| {
        let mut world = world.clone();
        let policy = Successor {
            revoked: Some(Revocation { successor }),
            ..world.successor(Some(&head))
        };
        world.rotate(&policy, &[1]);
        world
    };
    let revoked = ends(&world, None);
    let shown = with_policies(&revoked, &head);
    let elsewhere = ends(&world, Some(VolumeId::from_bytes([5; 32])));
    let elsewhere = with_policies(&elsewhere, &head);
    let goes_on = rotate_until(&world, &head, NO_END);
    let on = with_policies(&goes_on, &head);
    let knows = learned(&world.floor(), &on);
    let after = rotate_until(&revoked, &head, NO_END);
    let after = with_policies(&after, &head);
    vec![
        Case::new("revoked", &world.floor(), &[(&shown, "revoked")]),
        Case::new(
            "revoked-for-another-volume",
            &world.floor(),
            &[(&elsewhere, "revoked")],
        ),
        Case::new(
            "revoked-at-one-mirror",
            &world.floor(),
            &[(&head, "revoked"), (&shown, "revoked")],
        ),
        Case::new(
            "revocation-is-remembered",
            &learned(&world.floor(), &shown),
            &[(&head, "revoked")],
        ),
        Case::new(
            "void-revocation",
            &knows,
            &[(&shown, "not-signed"), (&on, "good")],
        ),
        Case::new(
            "policy-after-a-revocation",
            &world.floor(),
            &[(&after, "malformed")],
        ),
        Case::new("pinned-but-revoked", &world.floor(), &[(&shown, "revoked")]).on(pin(&shown, 1)),
    ]
}

fn publishers(numbers: &[u8]) -> Roles {
    Roles {
        publishers: threshold(1, numbers),
        ..roles()
    }
}

/// The world with a policy more that names `last`, and the head of `last` with it.
pub fn with_lower(world: &mut World, last: &Head, lower: bool) -> Head {
    let policy = Successor {
        lower,
        ..world.successor(Some(last))
    };
    world.rotate(&policy, &[1]);
    with_policies(world, last)
}
