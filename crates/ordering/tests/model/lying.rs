//! Two honest devices, and a member that lies and works with the server. What it writes can lie anywhere, and it can
//! say different things to both; but what honest devices write keeps its promises.

use ordering::ablation::Rule as Client;
use trust_shared::form::Fault;

use crate::broken::Check;
use crate::exhaustive::{BLIND, FILE, holds, long, walks, wander};
use crate::liar::Lie;
use crate::mutants::refuse;
use crate::protocol::Call::{self, Accept, Admit, Append, Close, Put, Read, Remove};
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

/// An administrator that works with the server, beside two honest devices.
fn administered(slips: &[Lie], deeds: &[Call]) -> Scope {
    two().lying_admin(slips, deeds).lies(2)
}

/// The administrator admits, removes, accepts and closes in one log and not in another, and its decisions come into
/// effect or not, as it likes.
#[test]
fn administrator_that_lies_breaks_nothing_between_honest_devices() {
    let slips = [Lie::Right, Lie::KeepsNothing];
    let admits = administered(&slips, &[Admit(1), Put(0)]).members(0b101);
    holds("administrator admits", &admits.world());
    let right = |deeds: &[Call]| administered(&[Lie::Right], deeds);
    holds("administrator accepts", &right(&[Accept(0)]).world());
    holds("administrator removes", &right(&[Remove(0)]).world());
    holds("administrator closes", &right(&[Close(0)]).world());
    if long() {
        let (append, file): (&[Call], &[Call]) = (&[Append(0)], &[Append(0), Read(0)]);
        let base = |deeds: &[Call]| {
            let scope = Scope::new(&[(append, 1), (file, 1)]);
            scope.lying_admin(&slips, deeds).lies(2)
        };
        let accepts = base(&[Accept(0), Put(0)]);
        holds("administrator accepts and writes", &accepts.world());
        let removes = base(&[Remove(1), Put(0)]);
        holds("administrator removes and writes", &removes.world());
        let closes = base(&[Close(0), Put(0)]).impatient();
        holds("administrator closes and writes", &closes.world());
        let changes = base(&[Admit(1), Remove(1)]).lies(3).members(0b101);
        holds("administrator admits and removes", &changes.world());
    }
}

#[test]
fn device_without_a_rule_believes_an_administrator_that_decided_nothing() {
    let slips = [Lie::Right, Lie::KeepsNothing];
    let admits = || administered(&slips, &[Admit(1), Put(0)]).members(0b101);
    let removes = administered(&[Lie::Right], &[Remove(0)]);
    let accepts = || administered(&slips, &[Accept(0), Put(0)]);
    refuse(&[
        (&[Rule::LateEffect], admits(), Check::Members),
        (&[Rule::LateEffectKept], admits(), Check::Members),
        (&[Rule::AcceptKept], accepts(), Check::Support),
        (&[Rule::AcceptSeen], accepts(), Check::Support),
        (&[form(Fault::Inactive)], removes, Check::Members),
    ]);
}

/// Three honest devices, and a member or an administrator that lies.
fn three(seed: u64) -> Scope {
    let base = Scope::new(&[(FILE, 3), (FILE, 3), (BLIND, 3)]);
    let deeds = [Accept(0), Accept(1), Remove(2), Admit(2), Close(0), Put(0)];
    let administrator = |scope: Scope| scope.lying_admin(&[Lie::Right, Lie::KeepsNothing], &deeds);
    match seed % 4 {
        0 => base.lies(3).impatient(),
        1 => base.lies(3).powers(1).kills(1).relaxed(),
        2 => administrator(base).lies(4).impatient(),
        _ => administrator(base).lies(4).powers(1).relaxed(),
    }
}

#[test]
fn three_honest_devices_beside_a_liar_break_nothing_by_seed() {
    walks(if long() { 100_000 } else { 2000 }, three);
}

/// The walks above meet what they look for: without a rule they find it.
#[test]
fn walks_beside_a_liar_find_rules_that_are_left_out() {
    for (rule, which, check) in [
        (Rule::Client(Client::ReadsWait), 0, Check::Support),
        (Rule::Client(Client::AttestOnChain), 0, Check::Support),
        (Rule::LateEffectKept, 2, Check::Members),
    ] {
        let seeds = (which..40_000).step_by(4);
        let scope = |seed| three(seed).without(&[rule]);
        let mut failures = seeds.filter_map(|seed| wander(scope(seed), seed).err());
        let failure = failures.find(|failure| failure.broken.check == check);
        let failure = failure.unwrap_or_else(|| panic!("nothing goes wrong without {rule:?}"));
        println!("without {rule:?}: {failure}\n");
    }
}
