//! Forks of policies and of records: a reader adopts nothing new and never chooses, whatever the order of the
//! mirrors and however often it starts anew. A later policy or the user settles them.

use proptest::prelude::*;
use proptest::sample::Index;
use trust::Reject;
use trust::error::Class;
use trust::floor::Floor;
use trust::handle::Handle;
use trust::head::Head;
use trust::judge::Terms;
use trust::policy::{Roles, Successor};
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::verdict::Verdict;

use crate::world::*;

/// Judges these heads together. The floor goes through the disk, as after a restart.
fn round(floor: &Floor, heads: &[&Head]) -> Verdict {
    let heads: Vec<Head> = heads.iter().map(|h| (*h).clone()).collect();
    let verdict = floor.judge_all(&heads, &Terms::strict(NOW), &mut Signatures::default());
    let floor = Floor::decode(&verdict.floor.encode()).unwrap();
    assert_eq!(floor, verdict.floor);
    verdict
}

/// The floor after a round in which no head passes.
fn refused(floor: &Floor, heads: &[&Head]) -> Floor {
    let verdict = round(floor, heads);
    for offer in &verdict.offers {
        assert_eq!(offer.as_ref().unwrap_err().class(), Class::Fork);
    }
    verdict.floor
}

/// A successor that ends at another time, so that it is another policy.
fn until(world: &World, last: &Head, not_after: u64) -> Successor {
    Successor {
        not_after,
        ..world.successor(Some(last))
    }
}

fn newest_hash(world: &World) -> [u8; 32] {
    world.newest().1
}

/// One record under the genesis, and two worlds that go on from there with policies A and B.
struct Forked {
    world: World,
    head: Head,
    a: World,
    b: World,
}

fn forked() -> Forked {
    let mut world = World::new();
    let head = world.publish(1);
    let (mut a, mut b) = (world.clone(), world.clone());
    a.rotate(&until(&world, &head, NOW + WEEK), &[1]);
    b.rotate(&until(&world, &head, NOW + 2 * WEEK), &[1]);
    Forked { world, head, a, b }
}

#[test]
fn of_two_successors_neither_is_kept_and_silencing_one_mirror_does_not_help() {
    let Forked { world, head, a, b } = forked();
    let (a, b) = (with_policies(&a, &head), with_policies(&b, &head));
    for known in [world.floor(), adopted(&world.floor(), &[&head])] {
        let floor = refused(&known, &[&a, &b]);
        assert_eq!(floor.policy().unwrap().0, 0);
        let hashes = floor.forks().policies().unwrap().hashes;
        assert!(hashes.is_sorted() && hashes.contains(&a.policies[1].hash()));
        for alone in [&a, &b] {
            let again = round(&floor, &[alone]);
            let why = again.offers[0].as_ref().unwrap_err();
            assert!(why.is_unsettled_fork(), "{why}");
            assert_eq!(again.floor, floor);
        }
    }
}

#[test]
fn adopted_version_serves_on_beside_a_fork_of_policies() {
    let Forked {
        mut world,
        head,
        a,
        b,
    } = forked();
    let floor = adopted(&world.floor(), &[&head]);
    let floor = refused(
        &floor,
        &[&with_policies(&a, &head), &with_policies(&b, &head)],
    );
    let offer = judge(&floor, &head).unwrap();
    assert_eq!(floor.adopt(&offer).unwrap().adopted(), floor.adopted());
    let next = world.publish(2);
    let why = judge(&floor, &next).unwrap_err();
    assert!(why.is_unsettled_fork(), "{why}");
    // Nor is what was judged before the fork was seen.
    let before = adopted(&world.floor(), &[&head]);
    let offer = judge(&before, &next).unwrap();
    assert_eq!(floor.adopt(&offer).unwrap_err().class(), Class::Fork);
    // A reader that pins a version needs none of this.
    assert!(judge_with(&floor, &head, pin(&head, 1)).is_ok());
}

#[test]
fn policy_that_refuses_the_other_branch_settles_a_fork() {
    let Forked { world, head, a, b } = forked();
    let (on_a, on_b) = (with_policies(&a, &head), with_policies(&b, &head));
    let floor = refused(&world.floor(), &[&on_a, &on_b]);
    let mut silent = a.clone();
    silent.rotate(&a.successor(Some(&head)), &[1]);
    let silent = with_policies(&silent, &head);
    assert!(round(&floor, &[&silent]).offers[0].is_err());
    assert_eq!(round(&floor, &[&silent]).floor, floor);
    let settle = |own: &World, other: &World| {
        let mut own = own.clone();
        let policy = Successor {
            refused: vec![newest_hash(other)],
            ..own.successor(Some(&head))
        };
        own.rotate(&policy, &[1]);
        with_policies(&own, &head)
    };
    let (for_a, for_b) = (settle(&a, &b), settle(&b, &a));
    for heads in [
        vec![&for_a],
        vec![&on_b, &for_a],
        vec![&for_a, &on_a, &on_b],
    ] {
        let settled = round(&floor, &heads);
        assert!(!settled.floor.forks().stand());
        assert_eq!(settled.floor.policy().unwrap().0, 2);
        // What was branch B is now a policy beside an older one.
        let why = judge(&settled.floor, &on_b).unwrap_err();
        assert!(matches!(why, Reject::StrayPolicy(_)), "{why}");
    }
    // Branches that refuse each other settle nothing.
    let floor = refused(&floor, &[&for_a, &for_b]);
    assert_eq!(floor.policy().unwrap().0, 0);
}

#[test]
fn next_policy_of_the_known_branch_settles_a_fork_at_its_tip() {
    let Forked { world, head, a, b } = forked();
    let (on_a, on_b) = (with_policies(&a, &head), with_policies(&b, &head));
    let knows_a = learned(&world.floor(), &on_a);
    let floor = round(&knows_a, &[&on_b]).floor;
    assert!(floor.forks().stand());
    assert_eq!(floor.policy(), knows_a.policy());
    let mut later = a.clone();
    later.rotate(&a.successor(Some(&head)), &[1]);
    let mut other = b.clone();
    other.rotate(&b.successor(Some(&head)), &[1]);
    let (later, other) = (with_policies(&later, &head), with_policies(&other, &head));
    let still = round(&floor, &[&other]).floor;
    assert_eq!(still, floor, "the known branch is never left");
    let settled = round(&floor, &[&other, &later]);
    assert!(settled.offers[1].is_ok() && !settled.floor.forks().stand());
    assert_eq!(settled.floor.policy().unwrap().0, 2);
}

#[test]
fn removed_owners_cannot_stop_a_reader_beside_an_older_policy() {
    let Forked { world, head, a, b } = forked();
    let mut later = a.clone();
    later.rotate(&a.successor(Some(&head)), &[1]);
    let (later, on_b) = (with_policies(&later, &head), with_policies(&b, &head));
    let floor = learned(&world.floor(), &later);
    let verdict = round(&floor, &[&on_b, &later]);
    let why = verdict.offers[0].as_ref().unwrap_err();
    assert!(matches!(why, Reject::StrayPolicy(_)), "{why}");
    assert_eq!(why.class(), Class::Integrity);
    assert!(verdict.offers[1].is_ok());
    assert!(!verdict.floor.forks().stand());
}

/// Two records of version 2 after one of version 1.
fn twins() -> (World, Head, [Head; 2]) {
    let mut world = World::new();
    let first = world.publish(1);
    let twin = RootRecord {
        root: Handle::from_bytes([99; 32]),
        ..world.record(2)
    };
    let twin = world.head_of(&twin, &[2]);
    let second = world.publish(2);
    (world, first, [second, twin])
}

#[test]
fn two_records_of_one_version_are_remembered_until_a_policy_settles_them() {
    let (mut world, first, [one, two]) = twins();
    let three = world.publish(3);
    let known = adopted(&world.floor(), &[&first]);
    let floor = refused(&known, &[&one, &two, &three]);
    let fork = floor.forks().records().unwrap();
    assert_eq!(fork.version, 2);
    for head in [&one, &two, &three] {
        let again = round(&floor, &[head]);
        let why = again.offers[0].as_ref().unwrap_err();
        assert!(why.is_unsettled_fork(), "{why}");
    }
    assert!(
        judge(&floor, &first).is_ok(),
        "the adopted version serves on"
    );
    let settle = |last: &Head| {
        let mut world = world.clone();
        world.rotate(&world.successor(Some(last)), &[1]);
        world
    };
    // A policy whose last record is older says nothing about version 2.
    let older = with_policies(&settle(&first), &first);
    assert!(round(&floor, &[&older]).floor.forks().stand());
    let settled = settle(&one);
    let [one, two] = [one, two].map(|head| with_policies(&settled, &head));
    let verdict = round(&floor, &[&two, &one]);
    assert!(!verdict.floor.forks().stand());
    assert!(verdict.offers[1].is_ok());
    let why = verdict.offers[0].as_ref().unwrap_err();
    assert!(matches!(why, Reject::NotSigned(_)), "{why}");
}

#[test]
fn another_record_of_the_adopted_version_is_remembered() {
    let (world, first, [one, two]) = twins();
    let floor = adopted(&world.floor(), &[&first, &one]);
    let verdict = round(&floor, &[&one, &two]);
    assert!(verdict.offers[0].is_ok(), "the adopted version serves on");
    assert_eq!(verdict.offers[1].as_ref().unwrap_err().class(), Class::Fork);
    assert!(verdict.floor.forks().records().is_some());
    let mut later = world.clone();
    let next = later.publish(3);
    assert!(
        judge(&verdict.floor, &next)
            .unwrap_err()
            .is_unsettled_fork()
    );
}

#[test]
fn user_settles_a_fork_of_records_in_so_many_words() {
    let (world, first, [one, two]) = twins();
    let known = adopted(&world.floor(), &[&first, &one]);
    let floor = round(&known, &[&one, &two]).floor;
    let next = world.clone().publish(3);
    let kept = floor.settle(&one.record.hash()).unwrap();
    let kept = Floor::decode(&kept.encode()).unwrap();
    assert!(judge(&kept, &next).is_ok());
    refused_as(judge(&kept, &two), "the user refused");
    assert!(!round(&kept, &[&one, &two]).floor.forks().stand());
    // The adopted record may be the wrong one.
    let other = floor.settle(&two.record.hash()).unwrap();
    assert_eq!(other.adopted().unwrap().record_hash, two.record.hash());
    assert!(judge(&other, &two).is_ok());
    refused_as(judge(&other, &one), "the user refused");
    // A reader that shows the refused record stops to do so.
    let mut signatures = Signatures::default();
    assert!(floor.still_allows(&one.record, &mut signatures).is_ok());
    let shown = other.still_allows(&one.record, &mut signatures);
    assert!(matches!(shown, Err(Reject::Refused(_))), "{shown:?}");
    refused_as(floor.settle(&[1; 32]), "no fork has it");
    refused_as(kept.settle(&one.record.hash()), "no fork has it");
}

#[test]
fn user_settles_a_fork_of_policies_in_so_many_words() {
    let Forked { world, head, a, b } = forked();
    let (on_a, on_b) = (with_policies(&a, &head), with_policies(&b, &head));
    let floor = refused(&world.floor(), &[&on_a, &on_b]);
    let knows_a = learned(&world.floor(), &on_a);
    let at_tip = round(&knows_a, &[&on_b]).floor;
    for floor in [floor, at_tip] {
        let keeps = floor.settle(&newest_hash(&b)).unwrap();
        let verdict = round(&keeps, &[&on_a, &on_b]);
        let why = verdict.offers[0].as_ref().unwrap_err();
        assert!(matches!(why, Reject::Refused(_)), "{why}");
        assert!(verdict.offers[1].is_ok());
        assert_eq!(verdict.floor.policy().unwrap().1, newest_hash(&b));
    }
}

#[test]
fn version_under_a_refused_policy_stays_the_floor_until_the_owners_go_back() {
    let Forked {
        world,
        head,
        mut a,
        b,
    } = forked();
    let second = a.publish(2);
    let known = adopted(&world.floor(), &[&head, &second]);
    let on_b = with_policies(&b, &head);
    let forked = round(&known, &[&on_b]).floor;
    let floor = forked.settle(&newest_hash(&b)).unwrap();
    let mut signatures = Signatures::default();
    assert!(floor.still_allows(&head.record, &mut signatures).is_ok());
    let under_a = floor.still_allows(&second.record, &mut signatures);
    assert!(matches!(under_a, Err(Reject::NotSigned(_))), "{under_a:?}");
    let older = judge(&floor, &on_b).unwrap_err();
    assert_eq!(older.class(), Class::Rollback);
    let mut back = b.clone();
    let lower = Successor {
        lower: true,
        ..b.successor(Some(&head))
    };
    back.rotate(&lower, &[1]);
    let back = with_policies(&back, &head);
    assert!(round(&floor, &[&back]).offers[0].is_ok());
}

/// Heads of every sort: branches of policies that go on, settle or end, records that contradict each other, a
/// removed publisher, bad signatures, and starts ahead of the clock.
fn pool() -> (World, Vec<Head>) {
    let Forked { world, head, a, b } = forked();
    let mut heads = vec![head.clone()];
    for branch in [&a, &b] {
        heads.push(with_policies(branch, &head));
        heads.push(branch.clone().publish(2));
        let other = if std::ptr::eq(branch, &a) { &b } else { &a };
        for refused in [vec![], vec![newest_hash(other)]] {
            let mut later = branch.clone();
            let policy = Successor {
                refused,
                roles: Roles {
                    publishers: threshold(1, &[5]),
                    ..roles()
                },
                ..later.successor(Some(&head))
            };
            later.rotate(&policy, &[1]);
            heads.push(with_policies(&later, &head));
            heads.push(later.head_of(&later.record(2), &[5]));
        }
    }
    for (version, root) in [(1, 99), (2, 98), (2, 97), (3, 96)] {
        let record = RootRecord {
            root: Handle::from_bytes([root; 32]),
            start: NOW + u64::from(root),
            ..world.record(version)
        };
        heads.push(world.head_of(&record, &[2]));
    }
    heads.push(world.head_of(&world.record(4), &[66]));
    let ahead = RootRecord {
        start: NOW + 600,
        ..world.record(2)
    };
    heads.push(world.head_of(&ahead, &[2]));
    (world, heads)
}

/// The outcome for a head: what it is refused for, or what it offers.
fn outcome(offer: &Result<trust::judge::Offer, Reject>) -> Result<([u8; 32], u64), Reject> {
    let offer = offer.as_ref().map_err(Clone::clone)?;
    Ok((offer.record_hash, offer.valid_until))
}

proptest! {
    #[test]
    fn order_of_mirrors_decides_nothing(
        picks in prop::collection::vec(any::<Index>(), 1..6),
        order in Just((0..6usize).collect::<Vec<_>>()).prop_shuffle(),
        knows in prop::option::of(any::<Index>()),
    ) {
        let (world, pool) = pool();
        let known = match knows {
            Some(index) => round(&world.floor(), &[index.get(&pool)]).floor,
            None => world.floor(),
        };
        let heads: Vec<&Head> = picks.iter().map(|index| index.get(&pool)).collect();
        let order: Vec<usize> = order.into_iter().filter(|at| *at < heads.len()).collect();
        let shuffled: Vec<&Head> = order.iter().map(|at| heads[*at]).collect();
        let (one, other) = (round(&known, &heads), round(&known, &shuffled));
        prop_assert_eq!(&one.floor, &other.floor);
        for (at, offer) in order.iter().zip(&other.offers) {
            prop_assert_eq!(outcome(&one.offers[*at]), outcome(offer));
        }
        // What a reader knows and has adopted is not taken away.
        if let (Some((_, hash)), Some((number, _))) = (known.policy(), known.policy()) {
            let policies = world_policies(&one.floor);
            prop_assert_eq!(policies.get(number as usize), Some(&hash));
        }
    }
}

/// Hashes of the policies that a floor knows.
fn world_policies(floor: &Floor) -> Vec<[u8; 32]> {
    floor
        .policies()
        .iter()
        .map(|policy| policy.hash())
        .collect()
}
