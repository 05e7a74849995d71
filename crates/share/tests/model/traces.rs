//! Traces that were found by thinking, because a search meets them too late: three devices and a power cut.

use crate::broken::{Broken, Check};
use crate::explorer::System;
use crate::protocol::Call::{Accept, Append, Read};
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
