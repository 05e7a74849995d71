//! Two honest devices, and a member that lies and works with the server. What it writes can lie anywhere, and it can
//! say different things to both; but what honest devices write keeps its promises.

use trust::shared::form::Fault;

use crate::exhaustive::{holds, long};
use crate::protocol::Call::{self, Append, Read};
use crate::rules::{Rule, form};
use crate::world::Scope;

fn two() -> Scope {
    let (append, read): (&[Call], &[Call]) = (&[Append(0)], &[Read(0)]);
    Scope::new(&[(append, 1), (read, 1)])
}

fn both() -> Scope {
    let append: &[Call] = &[Append(0)];
    Scope::new(&[(append, 1), (append, 1)])
}

#[test]
fn member_that_lies_breaks_nothing_between_honest_devices() {
    holds("liar", &both().lies(1).world());
    holds("liar, relaxed", &two().lies(1).relaxed().world());
    if long() {
        holds("liar, impatient", &both().lies(1).impatient().world());
        holds("liar, two entries", &two().lies(2).world());
        holds("liar, kill", &two().lies(1).kills(1).world());
        holds("liar, power", &two().lies(1).powers(1).world());
    }
}

/// The checks that are implied for honest authors: without them a lying member breaks nothing either.
#[test]
fn check_of_form_that_honest_authors_imply_protects_nobody_from_a_liar() {
    let groups: [&[Rule]; 3] = [
        &[form(Fault::Previous), form(Fault::KeptBeyondSeen)],
        &[form(Fault::Number), form(Fault::Incarnation)],
        &[form(Fault::SeenMissesPrevious), form(Fault::ResumeNotAlone)],
    ];
    let scope = Scope { leaves: 7, ..two() }.lies(1);
    let all = holds("liar, few leaves", &scope.world());
    for rules in groups {
        let name = format!("liar without {rules:?}");
        let fewer = holds(&name, &scope.clone().without(rules).world());
        assert!(fewer.states > all.states, "no lie passes without {rules:?}");
    }
}
