//! Volumes whose policies do not fit into a head. A reader learns the policies between in parts, from replicas that
//! may show missing, wrong, swapped or endless ones. It keeps a bounded floor, and comes to the same floor however a
//! chain is cut into parts.

use proptest::collection::vec;
use proptest::prelude::*;
use trust::Reject;
use trust::chain::{Link, MAX_POLICIES};
use trust::error::Class;
use trust::floor::{Floor, MAX_FLOOR_BYTES};
use trust::head::Head;
use trust::judge::Terms;
use trust::policy::Successor;
use trust::request::{Base, Request};
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::statement::Signed;

use crate::world::*;

/// A world with one record and `count` more policies, and the head that rotation made.
fn rotated_times(count: usize) -> (World, Head) {
    let mut world = World::new();
    let mut head = world.publish(1);
    for _ in 0..count {
        rotate(&mut world, &mut head, |_| {});
    }
    (world, head)
}

fn rotate(world: &mut World, head: &mut Head, change: impl FnOnce(&mut Successor)) {
    let mut policy = world.successor(Some(head));
    // The log before the policy, which the head need not show.
    policy.last.as_mut().unwrap().log = world.log;
    policy.log_epoch = world.log.epoch;
    change(&mut policy);
    world.rotate(&policy, &[1]);
    *head = head
        .rotated(world.policies.last().unwrap().clone())
        .unwrap();
}

fn learn(floor: &Floor, parts: &[&[Signed]]) -> (Floor, Vec<Option<Reject>>) {
    floor.learn_parts(parts, NOW, &mut Signatures::default())
}

/// The genesis and the policies from `from` on.
fn part(world: &World, from: usize) -> Vec<Signed> {
    [&world.policies[..1], &world.policies[from.max(1)..]].concat()
}

#[test]
fn rotation_has_no_end_for_newcomers_and_for_readers_that_know_some() {
    let (world, head) = rotated_times(300);
    assert_eq!(head.policies.len(), MAX_POLICIES);
    assert_eq!((head.begins(), head.newest_policy()), (294, 300));
    assert_eq!(Head::decode(&head.encode().unwrap()).unwrap(), head);
    let knows_five = learned(
        &world.floor(),
        &Head {
            policies: world.policies[..6].to_vec(),
            ..head.clone()
        },
    );
    assert_eq!(knows_five.policy().unwrap().0, 5);
    for (floor, from) in [(world.floor(), 1), (knows_five, 6)] {
        let missing = Reject::PoliciesMissing {
            from: 1,
            until: 294,
        };
        let why = judge(&floor, &head).unwrap_err();
        assert_eq!(why.class(), Class::Unavailable, "{why}");
        if from == 1 {
            assert_eq!(why, missing);
        }
        assert_eq!(floor.lacks(&head), Some(from as u64));
        let (floor, wrong) = learn(&floor, &[&part(&world, from)]);
        assert_eq!(wrong, [None]);
        assert_eq!(floor.policy(), Some(world.newest()));
        assert_eq!(floor.lacks(&head), None);
        assert_eq!(floor.policies(), head.policies);
        let floor = floor.adopt(&judge(&floor, &head).unwrap()).unwrap();
        assert_eq!(Floor::decode(&floor.encode()).unwrap(), floor);
        assert!(floor.encode().len() < 5000);
    }
}

#[test]
fn publisher_and_signer_go_on_after_more_rotations_than_a_head_shows() {
    for epochs in [0, 1] {
        let (mut world, mut head) = rotated_times(3);
        let before = head.clone();
        for number in 0..20 {
            rotate(&mut world, &mut head, |policy| {
                policy.log_epoch += epochs * u64::from(number == 2)
            });
        }
        assert_eq!(
            head.next_log(world.volume).unwrap(),
            (world.log, world.frontier.clone())
        );
        // The signer remembers a head from before; the policies between are not shown to it.
        let request = Request {
            base: Base::Head(Box::new(head.clone())),
            record: world.record(2).statement(world.volume).sign(&[]),
        };
        let mut request = Request::decode(&request.encode().unwrap()).unwrap();
        let examined = request.examine(&mut Signatures::default()).unwrap();
        assert_eq!(
            examined.follows(&request.base, &before),
            Err(Reject::Unproved)
        );
        request.sign(&examined, NOW, WEEK, &key(2)).unwrap();
        let next = request.head(&examined);
        assert_eq!(next.later_log, None);
        let (floor, _) = learn(&world.floor(), &[&world.policies]);
        assert_eq!(judge(&floor, &next).unwrap().record.version, 2);
        // A wrong later log is not continued.
        if epochs == 0 {
            let mut wrong = head.clone();
            wrong.later_log = Some(before.frontier.clone());
            assert!(wrong.next_log(world.volume).is_err());
            wrong.later_log = None;
            assert!(wrong.next_log(world.volume).is_err());
            let kept = judge(&floor, &head).unwrap().reduced(&wrong).unwrap();
            assert_eq!(kept.later_log, None);
        }
        let kept = judge(&floor, &head).unwrap().reduced(&head).unwrap();
        assert_eq!(kept, head);
    }
}

#[test]
fn signer_refuses_policies_that_contradict_those_it_signed_under() {
    let (mut world, head) = rotated_times(10);
    let mut other = world.clone();
    let mut shown = head.clone();
    rotate(&mut world, &mut shown, |_| {});
    let mut contrary = head.clone();
    rotate(&mut other, &mut contrary, |policy| policy.not_after -= 1);
    let request = Request {
        base: Base::Head(Box::new(contrary)),
        record: other.record(2).statement(other.volume).sign(&[]),
    };
    let examined = request.examine(&mut Signatures::default()).unwrap();
    let refused = examined.follows(&request.base, &shown);
    assert!(matches!(refused, Err(Reject::Fork(_))), "{refused:?}");
    assert_eq!(examined.follows(&request.base, &head), Ok(()));
}

#[test]
fn record_under_a_policy_that_no_head_shows_counts_only_as_last() {
    let (world, head) = rotated_times(20);
    let (floor, _) = learn(&world.floor(), &[&world.policies]);
    assert!(judge(&floor, &head).is_ok());
    // Another record under the genesis, by its publisher, who is one still.
    let record = RootRecord {
        policy_number: 0,
        policy_hash: world.policies[0].hash(),
        ..World::new().record(2)
    };
    let stale = Head {
        record: sign(&record.statement(world.volume), &[2]),
        frontier: World::new().frontier,
        ..head.clone()
    };
    let why = judge(&floor, &stale).unwrap_err();
    assert!(matches!(why, Reject::Superseded(_)), "{why}");
}

#[test]
fn head_that_lags_further_than_the_floor_reaches_is_old_and_no_lie() {
    let (world, head) = rotated_times(20);
    let (floor, _) = learn(&world.floor(), &[&world.policies]);
    let lagging = Head {
        policies: part(&world, 3)[..8].to_vec(),
        ..head.clone()
    };
    let why = judge(&floor, &lagging).unwrap_err();
    assert!(matches!(why, Reject::Superseded(_)), "{why}");
    assert_eq!(why.class(), Class::Expired);
    // A branch that parts before the kept ones and ends at the oldest of them.
    let mut other = rotated_times(3).0;
    let mut theirs = World::new().publish(1);
    theirs.policies = other.policies.clone();
    for _ in 3..14 {
        rotate(&mut other, &mut theirs, |policy| {
            policy.not_after = NOW + WEEK
        });
    }
    let apart = Head {
        policies: part(&other, 8),
        ..head.clone()
    };
    assert_eq!((apart.begins(), apart.newest_policy()), (8, 14));
    refused_as(judge(&floor, &apart), "apart from the known ones");
    // One that reaches into the kept ones is judged by all of them.
    let behind = Head {
        policies: part(&world, 10)[..8].to_vec(),
        ..head
    };
    assert_eq!(judge(&floor, &behind).unwrap().chain.newest().number(), 20);
}

#[test]
fn head_with_an_impossible_number_is_not_believed() {
    let (mut world, head) = rotated_times(2);
    let (floor, _) = learn(&world.floor(), &[&world.policies]);
    for number in [u64::MAX, 1 << 60, 11] {
        let far = Successor {
            number,
            ..world.successor(Some(&head))
        };
        let mut lie = head.clone();
        lie.policies.truncate(1);
        lie.policies.push(sign(&far.statement(world.volume), &[1]));
        let why = judge(&floor, &lie).unwrap_err();
        assert_eq!(
            why,
            Reject::PoliciesMissing {
                from: 1,
                until: number
            }
        );
        assert_eq!(floor.lacks(&lie), Some(3));
        let (same, wrong) = learn(&floor, &[&lie.policies]);
        assert_eq!((same, wrong), (floor.clone(), vec![None]));
    }
    // Nor one whose first policy does not connect.
    let mut head = head;
    rotate(&mut world, &mut head, |_| {});
    let mut other = World::new();
    let mut theirs = other.publish(1);
    for _ in 0..3 {
        rotate(&mut other, &mut theirs, |policy| {
            policy.not_after = NOW + WEEK
        });
    }
    let mut lie = head.clone();
    lie.policies = vec![lie.policies[0].clone(), other.policies[3].clone()];
    assert!(judge(&floor, &lie).is_err());
}

#[test]
fn wrong_parts_teach_nothing_and_hinder_nobody() {
    let (world, _) = rotated_times(40);
    let good = part(&world, 1);
    let with = |change: &dyn Fn(&mut Vec<Signed>)| {
        let mut part = good.clone();
        change(&mut part);
        part
    };
    let mut sibling = World::new();
    let head = sibling.publish(1);
    sibling.policies = world.policies[..20].to_vec();
    let other = Successor {
        not_after: NOW + WEEK,
        ..sibling.successor(Some(&head))
    };
    let removed_owner = sign(&other.statement(world.volume), &[66]);
    for (name, bad) in [
        ("swapped", with(&|part| part.swap(20, 21))),
        ("left out", with(&|part| drop(part.remove(20)))),
        (
            "not signed",
            with(&|part| part[20] = sign(part[20].statement(), &[7])),
        ),
        (
            "by strangers",
            with(&|part| part[20] = removed_owner.clone()),
        ),
        ("not of the volume", with(&|part| part[0] = part[1].clone())),
        ("a record", with(&|part| part[20] = head.record.clone())),
    ] {
        let (alone, wrong) = learn(&world.floor(), &[&bad]);
        assert!(wrong[0].is_some(), "{name}");
        assert!(
            alone.policy().is_none_or(|(number, _)| number < 20),
            "{name}"
        );
        let (floor, wrong) = learn(&world.floor(), &[&bad, &good]);
        assert_eq!(floor.policy(), Some(world.newest()), "{name}");
        assert!(wrong[0].is_some() && wrong[1].is_none(), "{name}");
    }
}

#[test]
fn second_successor_of_the_newest_policy_is_a_fork_after_many_rotations() {
    let (mut world, mut head) = rotated_times(20);
    let (mut other, mut theirs) = (world.clone(), head.clone());
    rotate(&mut world, &mut head, |_| {});
    rotate(&mut other, &mut theirs, |policy| {
        policy.not_after = NOW + WEEK
    });
    let (floor, _) = learn(&world.floor(), &[&world.policies]);
    let verdict = floor.judge_all(
        &[theirs.clone()],
        &Terms::strict(NOW),
        &mut Signatures::default(),
    );
    assert!(verdict.floor.forks().policies().is_some());
    assert_eq!(verdict.floor.policy(), floor.policy());
    // A part from the newest known policy on shows it too.
    let (forked, _) = learn(&floor, &[&part(&other, 21)]);
    assert_eq!(forked, verdict.floor);
    // The next policy settles it; a sibling of an older policy is nobody's concern.
    rotate(&mut world, &mut head, |_| {});
    let (floor, wrong) = learn(&forked, &[&part(&world, 21), &part(&other, 21)]);
    assert_eq!(floor.policy(), Some(world.newest()));
    assert_eq!(floor.forks().policies(), None);
    let (same, _) = learn(&floor, &[&part(&other, 21)]);
    assert_eq!(same.forks().policies(), None, "{wrong:?}");
    let stray = judge(&floor, &theirs).unwrap_err();
    assert!(matches!(stray, Reject::StrayPolicy(_)), "{stray}");
}

#[test]
fn policy_that_the_user_refused_is_not_learned_from_a_part() {
    let (world, head) = rotated_times(20);
    let (mut a, mut b) = (world.clone(), world.clone());
    rotate(&mut a, &mut head.clone(), |policy| {
        policy.not_after = NOW + WEEK
    });
    rotate(&mut b, &mut head.clone(), |policy| {
        policy.not_after = NOW + 2 * WEEK
    });
    let (forked, _) = learn(&world.floor(), &[&a.policies, &b.policies]);
    assert_eq!(forked.policy(), Some(world.newest()));
    let settled = forked.settle(&a.newest().1).unwrap();
    let (floor, wrong) = learn(&settled, &[&a.policies, &b.policies]);
    assert_eq!(floor.policy(), Some(a.newest()));
    assert!(wrong[0].is_none() && wrong[1].is_some());
}

#[test]
fn floor_with_the_largest_policies_can_be_read_back() {
    let (world, _) = rotated_times(20);
    let (floor, _) = learn(&world.floor(), &[&world.policies]);
    let largest = MAX_POLICIES * trust::statement::MAX_SIGNED_BYTES;
    assert!(floor.encode().len() < largest && largest < MAX_FLOOR_BYTES);
    // Nine policies are none of a floor.
    let bytes = floor.encode();
    let at = 2 + 32 + 8;
    assert_eq!(bytes[at], 8);
    let mut body = bytes[..bytes.len() - 32].to_vec();
    body[at] = 9;
    refused_as(Floor::decode(&with_checksum(body)), "too many policies");
}

/// A trunk, a branch that leaves it, and whether and where one of them refuses the other.
fn branches(
    (len, leaves, branch): (usize, usize, usize),
    refusal: Option<(bool, usize)>,
) -> [World; 2] {
    let mut a = World::new();
    let mut head = a.publish(1);
    let mut worlds = Vec::new();
    for _ in 1..leaves {
        rotate(&mut a, &mut head, |_| {});
    }
    let mut b = a.clone();
    for (world, count, not_after) in [(&mut a, len - leaves, NOW), (&mut b, branch, NOW + WEEK)] {
        let mut head = head.clone();
        for _ in 0..count {
            rotate(world, &mut head, |policy| policy.not_after = not_after);
        }
        worlds.push((world.clone(), count, not_after));
    }
    if let Some((by_a, distance)) = refusal {
        let hashes = [1, 0].map(|i| worlds[i].0.policies[leaves].hash());
        let at = usize::from(!by_a);
        let (world, count, not_after) = &mut worlds[at];
        if (1..*count).contains(&distance) {
            let mut again = World::new();
            let mut head = again.publish(1);
            for number in 1..leaves + *count {
                rotate(&mut again, &mut head, |policy| {
                    if number >= leaves {
                        policy.not_after = *not_after;
                    }
                    if number == leaves + distance {
                        policy.refused = vec![hashes[at]];
                    }
                });
            }
            *world = again;
        }
    }
    [worlds[0].0.clone(), worlds[1].0.clone()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]
    #[test]
    fn chain_given_in_parts_leads_to_the_same_floor(
        shape in (12usize..40, 2usize..11, 1usize..12),
        refusal in prop::option::of((any::<bool>(), 1usize..9)),
        cuts in vec(9usize..14, 1..6),
        turned in any::<bool>(),
    ) {
        let [a, b] = branches(shape, refusal);
        let (whole, _) = learn(&a.floor(), &[&a.policies, &b.policies]);
        let mut floor = a.floor();
        for cut in cuts.iter().cycle() {
            let from = floor.policy().map_or(0, |(number, _)| number as usize);
            let parts = [&a, &b].map(|world| {
                let policies = &world.policies;
                let until = policies.len().min(from + cut);
                [&policies[..1], &policies[from.max(1).min(until)..until]].concat()
            });
            let mut parts: Vec<&[Signed]> = parts.iter().map(Vec::as_slice).collect();
            if turned {
                parts.reverse();
            }
            let (next, _) = learn(&floor, &parts);
            if next.policy() == floor.policy() {
                floor = next;
                break;
            }
            floor = Floor::decode(&next.encode()).unwrap();
        }
        prop_assert_eq!(&floor, &whole);
        // Of two branches one counts only if it alone refuses the other within five policies.
        let (len, leaves, branch) = shape;
        let settles = |of: bool, count: usize| {
            refusal.is_some_and(|(by_a, distance)| by_a == of && distance < count && distance <= 5)
        };
        let newest = match (settles(true, len - leaves), settles(false, branch)) {
            (true, _) => a.newest().0,
            (_, true) => b.newest().0,
            _ => leaves as u64 - 1,
        };
        prop_assert_eq!(floor.policy().unwrap().0, newest);
        prop_assert_eq!(floor.forks().policies().is_some(), newest == leaves as u64 - 1);
        prop_assert!(Link::read(a.volume, floor.policies().last().unwrap()).is_ok());
    }
}
