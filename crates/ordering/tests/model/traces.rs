//! Traces that were found by thinking or by seed, because a search of all states meets them too late.

use ordering::ablation::Rule as Client;

use crate::broken::{Broken, Check};
use crate::explorer::System;
use crate::protocol::Call::{Accept, Append, Put, Read};
use crate::rules::Rule;
use crate::world::Scope;

/// Takes these steps, as traces print them.
fn follow(scope: Scope, steps: &[&str]) -> Result<(), Broken> {
    let scope = Scope {
        reduced: false,
        ..scope
    };
    let mut world = scope.world();
    for step in steps {
        let mut actions = world.actions().into_iter();
        let action = actions.find(|action| action.to_string() == *step);
        let action = action.unwrap_or_else(|| panic!("{step} cannot happen"));
        let next = world.step(&action);
        world = next.unwrap_or_else(|| panic!("{step} is refused"));
        world.check()?;
    }
    Ok(())
}

/// C is the administrator. It accepts what A wrote, and its power is cut. Later it signs that it has seen the Accept,
/// with a floor that does not have it. So C can be shown a log without it, and B must not use what A wrote.
#[test]
fn accept_that_its_administrator_may_forget_counts_for_nobody() {
    let scope = Scope::new(&[(&[Append(0)], 1), (&[Read(0)], 1), (&[Accept(0)], 1)]);
    let scope = scope.admin(2).powers(1);
    let steps = [
        "A calls Append(0)",
        "C is shown entry A0.1",
        "C calls Accept(0)",
        "C: Power, and starts again",
        "C is shown entry A0.1",
        "C is shown entry C0.1",
        "C: Resume",
        "B is shown entry A0.1",
        "B is shown entry C0.1",
        "B is shown entry C8.0",
        "B calls Read(0)",
        "B is shown mark B0",
    ];
    let held = follow(scope.clone(), &steps);
    assert!(held.is_ok(), "{held:?}");
    let broken = follow(scope.without(&[Rule::AcceptKept]), &steps);
    assert_eq!(broken.map_err(|broken| broken.check), Err(Check::Support));
}

/// B's append has no effect, because A wrote before it. B takes the lock and tries again, and its power is cut: the disk
/// has the first entry and no later one, and the server orders all of them. The append must not run a third time.
#[test]
fn call_whose_second_entry_a_power_cut_took_has_effect_once() {
    let scope = Scope::new(&[(&[Put(0)], 1), (&[Append(0), Read(0)], 2)]).powers(1);
    let before = [
        "A calls Put(0)",
        "B calls Append(0)",
        "B is shown entry A0.1",
        "B: Sync",
        "B is shown entry B0.1",
        "B is shown entry B0.2",
        "B: Power, and starts again",
        "B is shown entry B0.1",
        "B: Resume",
        "B is shown entry B0.2",
        "B is shown entry B0.3",
        "B is shown entry B8.0",
    ];
    let after = ["B calls Read(0)", "B is shown mark B0", "B: Timeout"];
    let relaxed = scope.relaxed();
    let held = follow(relaxed.clone(), &[&before[..], &after].concat());
    assert!(held.is_ok(), "{held:?}");
    let again = [&before[..], &["B is shown entry B8.1"], &after].concat();
    let without = Rule::Client(Client::ForgottenRunOnce);
    let broken = follow(relaxed.without(&[without]), &again);
    assert_eq!(broken.map_err(|broken| broken.check), Err(Check::Twice));
}

/// The same with a Resume in between. A's append is journaled and not ordered. A is killed, resumes, and sends it again.
/// Then its power is cut, and the disk has neither the Resume nor the second entry.
#[test]
fn call_that_ran_again_before_a_power_cut_has_effect_once() {
    let scope = Scope::new(&[(&[Append(0), Read(0)], 2), (&[], 0)]);
    let scope = scope.kills(1).powers(1);
    let before = [
        "A calls Append(0)",
        "A: Kill, and starts again",
        "A: Resume",
        "A is shown entry A8.0",
        "A: Power, and starts again",
        "A is shown entry A8.0",
        "A: Resume",
        "A is shown entry A8.1",
        "A is shown entry A16.0",
    ];
    let after = ["A calls Read(0)", "A is shown mark A0"];
    let held = follow(scope.clone(), &[&before[..], &after].concat());
    assert!(held.is_ok(), "{held:?}");
    let again = [&before[..], &["A is shown entry A16.1"], &after].concat();
    let without = Rule::Client(Client::ForgottenRunOnce);
    let broken = follow(scope.without(&[without]), &again);
    assert_eq!(broken.map_err(|broken| broken.check), Err(Check::Twice));
}
