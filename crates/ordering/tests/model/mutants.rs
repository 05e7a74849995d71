//! The checks are checked: each rule is left out in turn, and the explorer must find what goes wrong. A rule that is
//! implied by the others as long as authors are honest is listed as such; it needs a test with a lying member.

use ordering::ablation::Rule as Client;
use trust_shared::form::Fault;

use crate::action::{Action, Name};
use crate::broken::Check;
use crate::engine::{Crash, Timer};
use crate::exhaustive::{FILE, holds, long};
use crate::explorer::{Failure, Limit, System, depth};
use crate::judged::Judged;
use crate::protocol::Call::{
    self, Accept, Admit, Append, Close, Fold, Lock, Move, Put, PutLocked, Read, Remove,
};
use crate::rules::{Rule, form};
use crate::world::Scope;

/// A failure is found within so many states.
const SOON: u64 = 1_000_000;

pub fn found(start: &impl System) -> Option<Box<Failure>> {
    depth(start, Limit::states(SOON)).err()
}

/// Each row: rules that are left out, where it shows, and the check that must find it.
pub fn refuse(rows: &[(&[Rule], Scope, Check)]) {
    for (rules, scope, check) in rows {
        let failure = found(&scope.clone().without(rules).world());
        let failure = failure.unwrap_or_else(|| panic!("nothing goes wrong without {rules:?}"));
        println!("without {rules:?}: {failure}\n");
        assert_eq!(failure.broken.check, *check, "without {rules:?}");
    }
}

fn files(first: u8, second: u8) -> Scope {
    Scope::new(&[(FILE, first), (FILE, second)])
}

fn append_each() -> Scope {
    let append: &[Call] = &[Append(0)];
    Scope::new(&[(append, 1), (append, 1)])
}

/// One device that a forger shows few leaves, and that is killed at any moment: also in its turn, where nobody can tell
/// what it has done (a reduced search leaves that out), and once more while it catches up, before it looks at signatures.
pub fn any_moment(leaves: u64) -> Scope {
    let scope = Scope {
        reduced: false,
        leaves,
        ..Scope::new(&[(&[Read(0)], 1), (&[], 0)])
    };
    scope.forging().snapshots().kills(2)
}

/// Logs of few leaves: some broken protocols go on for ever.
fn short(scope: Scope) -> Scope {
    Scope { leaves: 8, ..scope }
}

#[test]
fn client_without_a_check_is_deceived() {
    refuse(&[
        (
            &[Rule::Extends],
            Scope {
                leaves: 4,
                ..append_each()
            },
            Check::Whole,
        ),
        (
            &[Rule::Client(Client::Signature)],
            short(files(2, 1)),
            Check::Support,
        ),
        (
            &[Rule::Client(Client::VerifyBeforeUse)],
            short(files(2, 1)),
            Check::Support,
        ),
        (
            &[Rule::Client(Client::AttestOnChain)],
            files(2, 1),
            Check::Support,
        ),
        (
            &[Rule::Client(Client::AttestByAuthor)],
            files(2, 2),
            Check::Support,
        ),
        (
            &[form(Fault::SeenElsewhere)],
            short(files(2, 1)),
            Check::Crossed,
        ),
        (
            &[form(Fault::Inactive)],
            Scope::new(&[(&[Remove(1), Append(0)], 1), (&[Append(0)], 2)]).impatient(),
            Check::Members,
        ),
    ]);
}

#[test]
fn author_without_a_rule_can_be_put_into_two_logs() {
    refuse(&[
        (
            &[Rule::Client(Client::Kept)],
            files(2, 1).powers(1),
            Check::Tree,
        ),
        (
            &[Rule::Client(Client::AttestAfterSync)],
            files(2, 1).powers(1),
            Check::Tree,
        ),
        (
            &[Rule::FreshIncarnation],
            Scope::new(&[(&[Append(0)], 1), (&[], 0)]).kills(2),
            Check::Once,
        ),
        (
            &[Rule::Client(Client::RerunAfterReceipt)],
            files(1, 1).kills(1),
            Check::Twice,
        ),
        (
            &[Rule::Client(Client::FloorBeforeAnswer)],
            Scope::new(&[(&[Append(0)], 2), (&[], 0)])
                .kills(1)
                .powers(1),
            Check::Whole,
        ),
        (
            &[Rule::Client(Client::ResumeAlone)],
            files(1, 1).kills(1).relaxed(),
            Check::Crossed,
        ),
    ]);
}

#[test]
fn resume_that_misses_a_resume_crosses_beside_it_or_stops_its_device() {
    let append: &[Call] = &[Append(0)];
    let alone = Scope::new(&[(append, 1), (&[], 0)]).kills(2);
    let both = Scope::new(&[(append, 1), (append, 1)]).kills(2);
    let rules: &[Rule] = &[form(Fault::ResumeMissesResume)];
    refuse(&[(rules, alone, Check::Resumes), (rules, both, Check::Stops)]);
}

#[test]
fn reader_without_a_rule_sees_what_never_was() {
    refuse(&[
        (
            &[Rule::Client(Client::MarkForReads)],
            files(1, 1),
            Check::Time,
        ),
        (
            &[Rule::Client(Client::MarkNotInFlight)],
            files(2, 1).programs(2),
            Check::Time,
        ),
        (
            &[Rule::Client(Client::ReadsWait)],
            files(2, 1),
            Check::Support,
        ),
        (
            &[Rule::Client(Client::OutcomesWait)],
            files(2, 1),
            Check::Support,
        ),
        (&[Rule::Guards], files(1, 1), Check::Answers),
        (
            &[Rule::MovePath],
            Scope::new(&[(&[Move(1, 2)], 1), (&[Move(2, 1)], 1)]),
            Check::Answers,
        ),
        (
            &[Rule::Client(Client::FoldAttested)],
            Scope::new(&[(&[Fold, Read(0)], 2), (&[Append(0)], 1)]),
            Check::Support,
        ),
    ]);
}

/// The reader begins with a checkpoint that its checkpointer should not have signed, or that it should not have taken.
#[test]
fn checkpoint_without_a_rule_deceives_who_begins_with_it() {
    let append: &[Call] = &[Append(0)];
    let reads: &[Call] = &[Read(0)];
    let three = Scope::new(&[(append, 1), (&[], 0), (reads, 1)]).begins(1);
    let alone = Scope::new(&[(append, 1), (reads, 1)]).begins(1);
    let seen = Scope::new(&[(append, 1), (append, 1)]).begins(1);
    let first = |device| Action::Leaf(device, Name::Entry(device, 0, 1, 0));
    // The first device knows that the second one attests what both began with.
    let attested = [Action::Timer(1, Timer::Attest), Action::Attest(0, 1, 0)];
    let unattested = vec![
        Action::Issue(0, Append(0)),
        Action::Leaf(1, Name::Entry(0, 0, 1, 0)),
        Action::Begin(2, 1),
    ];
    let unkept = [
        &attested[..],
        &[Action::Issue(0, Append(0)), first(0), Action::Begin(1, 0)],
        &[Action::Crash(0, Crash::Power)],
    ];
    let again = [
        &attested[..],
        &[Action::Issue(0, Append(0)), first(0)],
        &[Action::Issue(1, Append(0)), first(1), Action::Begin(1, 0)],
    ];
    for (rule, scope, steps, check) in [
        (Rule::CheckpointAttested, three, unattested, Check::Support),
        (
            Rule::CheckpointKept,
            alone.powers(1),
            unkept.concat(),
            Check::Tree,
        ),
        (Rule::BeginsNew, seen, again.concat(), Check::Whole),
    ] {
        let begin = |step: &Action| matches!(step, Action::Begin(..));
        let last = steps.iter().position(begin).expect("a checkpoint");
        let mut world = scope.clone().world();
        for step in &steps[..last] {
            let next = world.step(step);
            world = next.unwrap_or_else(|| panic!("cannot be done: {step}"));
        }
        assert!(
            world.step(&steps[last]).is_none(),
            "{rule:?} forbids nothing"
        );
        let mut world = scope.without(&[rule]).world();
        for step in &steps {
            let next = world.step(step);
            world = next.unwrap_or_else(|| panic!("cannot be done without {rule:?}: {step}"));
        }
        let failure = found(&world);
        let failure = failure.unwrap_or_else(|| panic!("nothing goes wrong without {rule:?}"));
        println!("without {rule:?}: {failure}\n");
        assert_eq!(failure.broken.check, check, "without {rule:?}");
    }
}

/// A device is killed between two pages. It has a snapshot, and has looked at no signature yet.
#[test]
fn snapshot_that_does_not_say_what_nobody_has_verified_deceives_the_next_start() {
    let scope = any_moment(6);
    refuse(&[(&[Rule::SnapshotUnverified], scope, Check::Support)]);
}

#[test]
fn lock_without_a_rule_is_taken_or_used_wrongly() {
    let append: &[Call] = &[Append(0)];
    let holder: &[Call] = &[Lock(0), PutLocked(0)];
    let (renews, two): (&[Call], &[Call]) = (&[Lock(0)], &[Lock(0), Lock(1)]);
    let appends: &[Call] = &[Append(0), Append(1)];
    refuse(&[
        (
            &[Rule::Holds],
            Scope::new(&[(holder, 2), (append, 1)]).lapses(1),
            Check::Answers,
        ),
        (
            &[Rule::HolderLast],
            Scope::new(&[(renews, 2), (append, 1)]).lapses(1),
            Check::Lapse,
        ),
        (
            &[Rule::PassHolds],
            Scope::new(&[(append, 1), (&[Put(0), Lock(0)], 2)]).lapses(1),
            Check::Answers,
        ),
    ]);
    let dies = Scope::new(&[(renews, 1), (append, 1)]).lapses(2);
    let dies = dies.deaths(1).impatient();
    let many = Scope::new(&[(two, 2), (appends, 2)]).lapses(4).programs(2);
    for (rule, scope, check) in [
        (Rule::Takeover, dies, Check::Waits),
        (Rule::Client(Client::LapseFromWatch), many, Check::Lapse),
    ] {
        let failure = found(&scope.without(&[rule]).honest(0).quick());
        let failure = failure.unwrap_or_else(|| panic!("nothing goes wrong without {rule:?}"));
        println!("without {rule:?}: {failure}\n");
        assert_eq!(failure.broken.check, check, "without {rule:?}");
    }
}

#[test]
fn decision_of_an_administrator_without_a_rule_counts_too_early() {
    let accept = Scope::new(&[(&[Accept(1), Read(0)], 2), (&[Append(0)], 1)]);
    let admit = Scope::new(&[(&[Admit(1)], 1), (&[Append(0)], 1)]).members(1);
    refuse(&[
        (&[Rule::LateEffectKept], admit.powers(1), Check::Members),
        (
            &[Rule::LateEffect],
            Scope::new(&[(&[Admit(1)], 1), (&[Append(0)], 1)]).members(1),
            Check::Members,
        ),
        (&[Rule::AcceptSeen], accept, Check::Support),
    ]);
}

#[test]
fn honest_server_without_a_rule_fails_its_devices() {
    let closed =
        Scope::new(&[(&[Close(0)], 1), (&[Append(0)], 1)]).without(&[Rule::PermissionIsNoForm]);
    let starving = Scope::new(&[(&[Append(0)], 1), (&[Put(0)], 5)]).without(&[Rule::Lock]);
    let eager = Scope::new(&[(&[Append(0)], 2), (&[Read(0)], 1)])
        .programs(2)
        .without(&[Rule::Client(Client::OneInFlight)]);
    for (scope, check) in [
        (closed, Check::Alarm),
        (starving, Check::Attempts),
        (eager, Check::Refused),
    ] {
        let honest = scope.honest(0);
        let honest = if scope.rules.has(Rule::Lock) {
            honest
        } else {
            honest.quick()
        };
        let failure = found(&honest).unwrap_or_else(|| panic!("nothing goes wrong: {scope:?}"));
        println!("without {:?}: {failure}\n", scope.rules.without);
        assert_eq!(failure.broken.check, check, "{failure}");
    }
}

#[test]
fn resume_crosses_a_fork_beside_the_entry_before_it() {
    let scope = Scope {
        resume_counts: true,
        ..files(1, 1).kills(1).relaxed()
    };
    let failure = found(&scope.world()).expect("the Resume never crosses");
    println!("with Resumes counted: {failure}\n");
    assert_eq!(failure.broken.check, Check::Crossed);
}

/// These are implied for honest authors: without them nothing changes in these scopes. Each needs a test with a member
/// that lies (and decision 0040 says by which rules it is implied). Devices without several checks accept all that
/// devices without one of them accept, so a group says more than its checks one by one.
#[test]
fn check_that_only_a_lying_member_needs_changes_nothing() {
    // Either `seen` covers the author's previous entry, or the number and `previous` follow.
    let by_seen: &[Rule] = &[
        form(Fault::Previous),
        form(Fault::Number),
        form(Fault::Incarnation),
        form(Fault::KeptBeyondSeen),
        form(Fault::ResumeNotAlone),
    ];
    let by_number: &[Rule] = &[form(Fault::SeenMissesPrevious)];
    for rules in [by_seen, by_number] {
        for scope in [files(2, 1), files(1, 1).kills(1), files(1, 1).powers(1)] {
            holds(&format!("without {rules:?}"), &scope.without(rules).world());
        }
    }
}

/// As above: a device that joins sends a Resume when it sees its admission, and `seen` is on this log.
#[test]
fn first_entry_of_an_honest_device_is_a_resume_that_covers_its_admission() {
    let rules: &[Rule] = &[form(Fault::SeenMissesAdmission), form(Fault::NoResume)];
    let members: &[Call] = &[Admit(1), Remove(1)];
    let joins = |calls| Scope::new(&[(members, calls), (&[Append(0)], 1)]).members(1);
    let mut scopes = vec![joins(2), joins(1).kills(1), joins(1).powers(1)];
    if long() {
        scopes.extend([joins(3), joins(1).powers(2)]);
    }
    for scope in scopes {
        holds(&format!("without {rules:?}"), &scope.without(rules).world());
    }
}

#[test]
fn search_without_positions_refuses_too() {
    let world = files(1, 2)
        .without(&[Rule::Client(Client::MarkForReads)])
        .world();
    let failure = found(&Judged::new(world, false)).expect("the search accepts stale reads");
    println!("search, without marks: {failure}\n");
    assert_eq!(failure.broken.check, Check::Search);
}
