//! Attacks by several mirrors at once: answering first must not give an advantage.

use trust::Reject;
use trust::error::Class;
use trust::floor::Floor;
use trust::handle::Handle;
use trust::head::Head;
use trust::judge::Terms;
use trust::policy::{Revocation, Roles, Successor};
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::verdict::Verdict;

use crate::world::*;

fn judge_all(floor: &Floor, heads: &[&Head]) -> Verdict {
    let heads: Vec<Head> = heads.iter().map(|h| (*h).clone()).collect();
    floor.judge_all(&heads, &Terms::strict(NOW), &mut Signatures::default())
}

/// The classes of the refusals, `None` for an offer.
fn classes(verdict: &Verdict) -> Vec<Option<Class>> {
    let class = |o: &Result<_, Reject>| o.as_ref().err().map(Reject::class);
    verdict.offers.iter().map(class).collect()
}

/// Both heads are evidence: they are refused for the contradiction itself, and not only because a fork stands.
fn are_two_records(verdict: &Verdict, heads: [usize; 2]) {
    for at in heads {
        let why = verdict.offers[at].as_ref().unwrap_err();
        assert_eq!(why.to_string(), "fork: two records of one version");
    }
}

#[test]
fn honest_mirrors_of_different_age_agree() {
    let mut world = World::new();
    let (one, two) = (world.publish(1), world.publish(2));
    let verdict = judge_all(&world.floor(), &[&one, &two, &one]);
    assert_eq!(classes(&verdict), [None, None, None]);
    assert!(verdict.floor.adopted().is_none());
    assert_eq!(verdict.floor.newest_start(), NOW);
}

#[test]
fn removed_key_gains_nothing_by_answering_first() {
    let mut world = World::new();
    let last = world.publish(1);
    let forged = world.head_of(&world.record(9), &[2]);
    let policy = Successor {
        roles: Roles {
            publishers: threshold(1, &[5]),
            ..roles()
        },
        ..world.successor(Some(&last))
    };
    world.rotate(&policy, &[1]);
    let honest = world.head_of(&world.record(2), &[5]);
    for heads in [[&forged, &honest], [&honest, &forged]] {
        let verdict = judge_all(&world.floor(), &heads);
        let good: Vec<_> = verdict.offers.iter().flatten().collect();
        assert_eq!(good.len(), 1);
        assert_eq!(good[0].record.version, 2);
        assert!(verdict.floor.adopt(good[0]).is_ok());
    }
}

#[test]
fn a_revocation_counts_for_the_heads_of_all_mirrors() {
    let mut world = World::new();
    let hiding = world.publish(1);
    let policy = Successor {
        revoked: Some(Revocation { successor: None }),
        ..world.successor(Some(&hiding))
    };
    world.rotate(&policy, &[1]);
    let revoked = Head {
        policies: world.policies.clone(),
        ..hiding.clone()
    };
    let verdict = judge_all(&world.floor(), &[&hiding, &revoked]);
    assert_eq!(classes(&verdict), [Some(Class::Expired); 2]);
}

#[test]
fn two_records_of_an_unadopted_version_are_a_fork() {
    let mut world = World::new();
    let twin = RootRecord {
        root: Handle::from_bytes([99; 32]),
        ..world.record(1)
    };
    let twin = world.head_of(&twin, &[2]);
    let (one, bad) = (world.publish(1), world.head_of(&world.record(3), &[66]));
    let verdict = judge_all(&world.floor(), &[&one, &bad, &twin]);
    let (fork, integrity) = (Some(Class::Fork), Some(Class::Integrity));
    assert_eq!(classes(&verdict), [fork, integrity, fork]);
    are_two_records(&verdict, [0, 2]);
}

#[test]
fn two_records_of_a_version_one_after_the_other_are_a_fork() {
    let mut world = World::new();
    let one = world.publish(1);
    let again = RootRecord {
        root: Handle::from_bytes([99; 32]),
        ..world.record(1)
    };
    let again = world.head_of(&again, &[2]);
    let verdict = judge_all(&world.floor(), &[&one, &again]);
    are_two_records(&verdict, [0, 1]);
}

#[test]
fn a_newer_record_whose_log_lacks_the_older_is_a_fork() {
    let mut world = World::new();
    let behind = world.head_of(&world.record(2), &[2]);
    let one = world.publish(1);
    for heads in [[&one, &behind], [&behind, &one]] {
        let verdict = judge_all(&world.floor(), &heads);
        assert_eq!(classes(&verdict), [Some(Class::Fork); 2]);
    }
}

#[test]
fn two_successor_policies_shown_at_once_are_a_fork() {
    let branch = |not_after| {
        let mut world = World::new();
        let policy = Successor {
            not_after,
            ..world.successor(None)
        };
        world.rotate(&policy, &[1]);
        world.publish(1)
    };
    let verdict = judge_all(&World::new().floor(), &[&branch(NOW + 1), &branch(NOW + 2)]);
    assert_eq!(classes(&verdict), [Some(Class::Fork); 2]);
    assert_eq!(verdict.floor.policy().unwrap().0, 0, "neither is kept");
}

#[test]
fn newer_start_at_one_mirror_expires_the_head_of_another() {
    let mut world = World::new();
    let old = world.publish(1);
    let fresh = RootRecord {
        start: NOW + 600,
        ..world.record(2)
    };
    let fresh = world.head_of(&fresh, &[2]);
    let terms = Terms::strict(NOW + WEEK - 1);
    let heads = [old, fresh];
    let verdict = world
        .floor()
        .judge_all(&heads, &terms, &mut Signatures::default());
    assert_eq!(classes(&verdict), [None, None]);
    world.advance(&heads[1]);
    let late = RootRecord {
        start: NOW + WEEK,
        ..world.record(3)
    };
    let late = world.head_of(&late, &[2]);
    let heads = [heads[0].clone(), late];
    let verdict = world
        .floor()
        .judge_all(&heads, &terms, &mut Signatures::default());
    assert_eq!(classes(&verdict), [Some(Class::Expired), None]);
    let judged_at = verdict.offers[1].as_ref().unwrap().judged_at;
    assert_eq!(judged_at, NOW + WEEK);
}
