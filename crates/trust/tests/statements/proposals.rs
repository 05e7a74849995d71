//! Proposals of a next policy: signed by owners old and new on machines of their own, and the reasons to refuse each.

use trust::Reject;
use trust::floor::Floor;
use trust::head::Head;
use trust::policy::{Last, Revocation, Roles, Successor};
use trust::proposal::{Decided, ExaminedProposal, Proposal, installed};
use trust::signatures::Signatures;
use trust::statement::Signed;

use crate::world::*;

/// Owners 1, 3, 4 of whom two must sign, publisher 2.
fn three_owners() -> Roles {
    Roles {
        owners: threshold(2, &[1, 3, 4]),
        ..roles()
    }
}

fn begun() -> (World, Head) {
    let mut world = World::with_genesis(three_owners(), u64::MAX, &[1, 3]);
    let head = world.publish(1);
    (world, head)
}

fn decided(roles: Roles) -> Decided {
    Decided {
        roles,
        not_after: NOW + 99 * WEEK,
        lower: false,
        revoked: None,
        refused: Vec::new(),
    }
}

/// Owner 4 leaves, 6 comes; publisher 2 is replaced by 5.
fn rotation() -> Roles {
    Roles {
        owners: threshold(2, &[1, 3, 6]),
        publishers: threshold(1, &[5]),
        ..roles()
    }
}

fn propose(head: &Head, decided: Decided) -> Proposal {
    Proposal::new(head.clone(), decided, &mut Signatures::default()).unwrap()
}

fn examine(proposal: &Proposal) -> Result<ExaminedProposal, Reject> {
    proposal.examine(&mut Signatures::default())
}

fn signed(proposal: &Proposal, numbers: &[u8]) -> Proposal {
    let mut proposal = proposal.clone();
    for number in numbers {
        let examined = examine(&proposal).unwrap();
        proposal.sign(&examined, &key(*number)).unwrap();
    }
    proposal
}

fn install(world: &World, shown: &Head, proposal: &Proposal) -> Result<Head, Reject> {
    let signatures = &mut Signatures::default();
    installed(
        &Floor::new(world.volume),
        shown,
        &proposal.policy,
        signatures,
    )
}

/// The proposal with another policy, unsigned.
fn with(proposal: &Proposal, world: &World, change: impl FnOnce(&mut Successor)) -> Proposal {
    let mut policy = examine(proposal).unwrap().policy;
    change(&mut policy);
    Proposal {
        base: proposal.base.clone(),
        policy: policy.statement(world.volume).sign(&[]),
    }
}

#[test]
fn policy_counts_when_enough_old_and_new_owners_have_signed() {
    let (world, head) = begun();
    let proposal = propose(&head, decided(rotation()));
    // Two of the old owners, of whom one stays: one more of the new ones is missing.
    let half = signed(&proposal, &[1, 4]);
    let missing = examine(&half).unwrap().missing();
    assert_eq!(missing.len(), 1);
    assert_eq!(
        missing[0].waiting,
        examine(&half).unwrap().new_owners.waiting
    );
    assert!(install(&world, &head, &half).is_err());
    // Copies of others are merged.
    let mut whole = half.clone();
    whole.merge(&signed(&proposal, &[6])).unwrap();
    assert!(examine(&whole).unwrap().missing().is_empty());
    let bytes = whole.encode().unwrap();
    assert_eq!(Proposal::decode(&bytes).unwrap(), whole);
    let rotated = install(&world, &head, &whole).unwrap();
    let floor = adopted(&world.floor(), &[&head]);
    let offer = judge(&floor, &rotated).unwrap();
    assert_eq!(offer.chain.newest_hash(), whole.policy.hash());
    // New owners alone are not enough.
    let new_alone = signed(&proposal, &[1, 6]);
    assert!(install(&world, &head, &new_alone).is_err());
}

#[test]
fn same_owners_are_told_once() {
    let (_, head) = begun();
    let proposal = propose(&head, decided(three_owners()));
    let examined = examine(&signed(&proposal, &[3])).unwrap();
    assert_eq!(examined.owners().len(), 1);
    assert_eq!(examined.missing()[0].signed, [key(3).public()]);
}

#[test]
fn only_owners_sign_a_proposal() {
    let (_, head) = begun();
    let mut proposal = propose(&head, decided(rotation()));
    let before = proposal.clone();
    let examined = examine(&proposal).unwrap();
    // The publishers, before and after, and a stranger.
    for stranger in [2, 5, 7] {
        let refused = proposal.sign(&examined, &key(stranger));
        assert!(refused.is_err_and(is_refused));
        assert_eq!(proposal, before);
    }
    // An owner whose key does not answer.
    let refused = proposal.sign(&examined, &Tired::after(0, key(1)));
    assert!(refused.is_err());
    assert_eq!(proposal, before);
    // A signature in an owner's name that another key made.
    let genuine = signed(&proposal, &[1]);
    let entry = genuine.policy.by(&key(1).public()).unwrap();
    for named in [3, 6] {
        let mut e = trust::encode::Encoder::new();
        e.bytes(genuine.policy.statement().bytes()).varint(1);
        e.varint(1)
            .bytes(key(named).public().as_bytes())
            .bytes(&entry.signature);
        let forged = Proposal {
            base: genuine.base.clone(),
            policy: Signed::from_bytes(&e.finish()).unwrap(),
        };
        assert!(matches!(examine(&forged), Err(Reject::NotSigned(_))));
    }
}

#[test]
fn proposal_must_be_the_next_policy_of_what_it_builds_on() {
    let (world, head) = begun();
    let good = propose(&head, decided(rotation()));
    let refused = |change: &dyn Fn(&mut Successor)| {
        assert!(examine(&with(&good, &world, change)).is_err());
    };
    refused(&|p| p.number = 2);
    refused(&|p| p.previous = [9; 32]);
    refused(&|p| p.log_epoch = 1);
    refused(&|p| p.lower = true);
    refused(&|p| p.last = None);
    let bent = |change: &dyn Fn(&mut Last)| refused(&|p| change(p.last.as_mut().unwrap()));
    bent(&|last| last.version = 2);
    bent(&|last| last.record_hash = [9; 32]);
    bent(&|last| last.log.root = [9; 32]);
    let mut lowering = decided(rotation());
    lowering.lower = true;
    let lowering = propose(&head, lowering);
    assert_eq!(examine(&lowering).unwrap().policy.log_epoch, 1);
    assert!(examine(&with(&lowering, &world, |p| p.log_epoch = 0)).is_err());
    // The base must be signed.
    let mut unsigned = head.clone();
    unsigned.record = head.record.statement().sign(&[]);
    let unproved = Proposal {
        base: Box::new(unsigned),
        policy: good.policy.clone(),
    };
    assert!(matches!(examine(&unproved), Err(Reject::NotSigned(_))));
    // A copy of another policy is not merged.
    let other = with(&good, &world, |p| p.not_after += 1);
    assert!(good.clone().merge(&other).is_err());
}

#[test]
fn damaged_proposal_is_refused() {
    let (_, head) = begun();
    let bytes = propose(&head, decided(rotation())).encode().unwrap();
    for at in 0..bytes.len() {
        let mut bent = bytes.clone();
        bent[at] ^= 0x10;
        assert!(Proposal::decode(&bent).is_err(), "byte {at}");
        assert!(Proposal::decode(&bytes[..at]).is_err(), "cut at {at}");
    }
    let body = bytes[..bytes.len() - 32].to_vec();
    assert!(Proposal::decode(&with_checksum(body.clone())).is_ok());
    let mut later = body.clone();
    later[8] = 1;
    let later = Proposal::decode(&with_checksum(later));
    assert!(matches!(later, Err(Reject::Unsupported { .. })));
    let mut trailing = body;
    trailing.push(0);
    assert!(Proposal::decode(&with_checksum(trailing)).is_err());
}

#[test]
fn owner_does_not_sign_two_policies_of_one_number_unnoticed() {
    let (mut world, head) = begun();
    let first = propose(&head, decided(rotation()));
    let second = with(&first, &world, |p| p.not_after += 1);
    let examined = examine(&second).unwrap();
    assert_eq!(examine(&first).unwrap().follows(&first.policy), Ok(()));
    assert!(matches!(
        examined.follows(&first.policy),
        Err(Reject::Fork(_))
    ));
    // A policy after another one than the one that was signed.
    let rotate = |world: &mut World, policy: &Successor| world.rotate(policy, &[1, 3]);
    let keep = world.successor(Some(&head));
    let keep = Successor {
        roles: three_owners(),
        ..keep
    };
    rotate(&mut world, &keep);
    let shown = with_policies(&world, &head);
    let next = propose(&shown, decided(three_owners()));
    let examined = examine(&next).unwrap();
    assert!(matches!(
        examined.follows(&first.policy),
        Err(Reject::Fork(_))
    ));
    assert_eq!(examined.follows(&world.policies[1]), Ok(()));
    let refused = examine(&first).unwrap().follows(&next.policy);
    assert!(matches!(refused, Err(Reject::Rollback { .. })));
    // The head carries the newest seven policies. Nothing here proves what lies between.
    for _ in 0..8 {
        let policy = Successor {
            roles: three_owners(),
            ..world.successor(Some(&head))
        };
        let log = world.log;
        let last = policy.last.clone().map(|last| Last { log, ..last });
        rotate(&mut world, &Successor { last, ..policy });
    }
    let signed_long_ago = world.policies[1].clone();
    let mut shown = head;
    for policy in &world.policies[1..] {
        shown = shown.rotated(policy.clone()).unwrap();
    }
    let late = propose(&shown, decided(three_owners()));
    let refused = examine(&late).unwrap().follows(&signed_long_ago);
    assert_eq!(refused, Err(Reject::Unproved));
}

#[test]
fn policy_is_installed_on_a_newer_version_only_if_that_one_counts_under_it() {
    let (mut world, head) = begun();
    let keeps = signed(&propose(&head, decided(three_owners())), &[1, 3]);
    let replaces = signed(&propose(&head, decided(rotation())), &[1, 3]);
    let mut lowering = decided(three_owners());
    lowering.lower = true;
    let lowers = signed(&propose(&head, lowering), &[1, 3]);
    let mut ending = decided(three_owners());
    ending.revoked = Some(Revocation { successor: None });
    let ends = signed(&propose(&head, ending), &[1, 3]);
    let newer = world.publish(2);
    let floor = adopted(&world.floor(), &[&head]);
    let shown = install(&world, &newer, &keeps).unwrap();
    assert_eq!(judge(&floor, &shown).unwrap().record.version, 2);
    // Its publisher is not one any more, or readers are to go back before it.
    for proposal in [&replaces, &lowers] {
        let refused = install(&world, &newer, proposal);
        assert!(matches!(refused, Err(Reject::NotSigned(_))), "{refused:?}");
        assert!(install(&world, &head, proposal).is_ok());
    }
    // A volume ends whatever is published.
    let ended = install(&world, &newer, &ends).unwrap();
    assert!(matches!(judge(&floor, &ended), Err(Reject::Revoked { .. })));
    // A repository that was set back does not get the policy.
    let later = signed(&propose(&newer, decided(three_owners())), &[1, 3]);
    assert!(install(&world, &head, &later).is_err());
}
