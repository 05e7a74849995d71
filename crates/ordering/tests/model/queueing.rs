//! The rules by which the log is a queue (decision 0061), left out one at a time, with an honest server: the explorer must
//! find who waits too long. And what the queue is not needed for.

use crate::broken::Check;
use crate::device::Client;
use crate::exhaustive::holds;
use crate::explorer::{System, after};
use crate::honest::Honest;
use crate::mutants::{found, refuse};
use crate::protocol::Call::{self, Append, Close, Lock, Put, PutLocked, Unlock};
use crate::rules::Rule;
use crate::server::Server;
use crate::world::Scope;

const APPEND: &[Call] = &[Append(0)];

/// Programs that lock and unlock.
const PROGRAM: &[Call] = &[Append(0), Lock(0), Unlock(0)];

fn refuses(rules: &[Rule], start: &impl System, check: Check) {
    let failure = found(start);
    let failure = failure.unwrap_or_else(|| panic!("nothing goes wrong without {rules:?}"));
    println!("without {rules:?}: {failure}\n");
    assert_eq!(failure.broken.check, check, "without {rules:?}");
}

/// B gives its lock up before it knows that A waits, and may take it again.
fn busy(rules: &[Rule]) -> Honest<Client, Server> {
    let program: &[Call] = &[Lock(0), Unlock(0)];
    let scope = Scope::new(&[(APPEND, 1), (program, 5)]).in_turn().keeping();
    let steps = [
        "B calls Lock(0)",
        "B takes a message*",
        "A takes a message*",
        "A calls Append(0)",
        "B calls Unlock(0)",
    ];
    after(scope.without(rules).honest(0).quick(), &steps)
}

#[test]
fn place_that_ends_with_one_unlock_lets_others_pass_again_and_again() {
    holds("busy", &busy(&[]));
    let rules = &[Rule::PlaceStays];
    refuses(rules, &busy(rules), Check::Overtaken);
}

/// D gives its lock up, for which A, B and C wait, and claims it again.
fn four(rules: &[Rule]) -> Honest<Client, Server> {
    let scope = Scope::new(&[(APPEND, 1), (APPEND, 1), (APPEND, 2), (PROGRAM, 3)]);
    let steps = [
        "D calls Lock(0)",
        "D takes a message*",
        "A takes a message*",
        "B takes a message*",
        "C takes a message*",
        "A calls Append(0)",
        "B calls Append(0)",
        "C calls Append(0)",
        "D takes a message*",
        "D calls Unlock(0)",
        "D takes a message*",
        "D calls Append(0)",
        "C takes a message*",
        "C calls Append(0)",
        "B takes a message*",
    ];
    let scope = scope.programs(2).in_turn().without(rules);
    after(scope.honest(0).quick(), &steps)
}

#[test]
fn queue_that_begins_at_its_end_lets_others_pass_again_and_again() {
    let rules = &[Rule::FirstOfQueue];
    refuses(rules, &four(rules), Check::Overtaken);
}

#[test]
fn call_that_claims_again_and_again_never_ends() {
    let (lock, rules): (&[Call], _) = (&[Lock(0)], &[Rule::ClaimOnce]);
    let scope = Scope::new(&[(lock, 1), (APPEND, 1)]);
    let start = scope.without(rules).honest(0).quick();
    refuses(rules, &start, Check::Attempts);
}

/// A gives its lock to B, whose program is killed before the lock is there.
fn killed(rules: &[Rule]) -> Honest<Client, Server> {
    let scope = Scope::new(&[(PROGRAM, 3), (APPEND, 1)]).cancels(1);
    let steps = [
        "A calls Lock(0)",
        "A takes a message*",
        "B takes a message*",
        "B calls Append(0)",
        "B takes a message*",
        "A takes a message*",
        "A calls Unlock(0)",
        "the program of B1 is killed",
        "A takes a message*",
        "A calls Append(0)",
    ];
    after(scope.without(rules).honest(0).quick(), &steps)
}

#[test]
fn lock_that_nobody_uses_stops_the_others() {
    holds("killed", &killed(&[]));
    let rules = &[Rule::Leftover];
    refuses(rules, &killed(rules), Check::Waits);
}

/// B may not write the file any more, and has its lock, or is given it. It gives it on, and if it does not, others take it
/// over at once. So an honest device never keeps it; that a lock is not passed to a reader is for members that lie (tests
/// of `trust`).
#[test]
fn lock_of_a_reader_is_given_on_or_taken_over() {
    let writes: &[Call] = &[Append(0), Close(0)];
    let scope = Scope::new(&[(writes, 3), (APPEND, 1)]);
    let each = [Rule::Leftover, Rule::ReadersHoldNothing];
    for rules in [
        [each[0], Rule::PassToWriters],
        [each[1], Rule::PassToWriters],
    ] {
        let start = scope.clone().without(&rules).honest(0).quick();
        holds(&format!("without {rules:?}"), &start);
    }
    let start = scope.without(&each).honest(0).quick();
    refuses(&each, &start, Check::Waits);
}

#[test]
fn programs_lock_that_a_write_gives_up_is_lost_to_the_program() {
    let program: &[Call] = &[Lock(0), Put(0), PutLocked(0)];
    let alone = Scope::new(&[(program, 3), (&[], 0)]);
    refuse(&[(&[Rule::ProgramsLock], alone, Check::Answers)]);
}

/// A has the lock. B claims it in vain and stops for ever, and nothing attests its Claim.
fn waits_for_the_dead(rules: &[Rule]) -> Honest<Client, Server> {
    let holder: &[Call] = &[Lock(0), Append(0)];
    let scope = Scope::new(&[(holder, 2), (APPEND, 1)]).deaths(1);
    let steps = [
        "A calls Lock(0)",
        "A takes a message",
        "B takes a message",
        "B calls Append(0)",
        "B stops for ever",
    ];
    after(scope.without(rules).honest(0).quick(), &steps)
}

#[test]
fn answer_that_rests_on_who_waits_never_comes() {
    holds("dead in the queue", &waits_for_the_dead(&[]));
    let rules = &[Rule::RestsOnNoWait];
    refuses(rules, &waits_for_the_dead(rules), Check::Waits);
}

/// Devices that pass locks in another order lose nothing, beside any server.
#[test]
fn queue_decides_nothing() {
    let rules = &[Rule::FirstOfQueue, Rule::PlaceStays, Rule::Leftover];
    let scope = Scope::new(&[(APPEND, 2), (APPEND, 1)]).without(rules);
    holds("another queue", &scope.world());
}
