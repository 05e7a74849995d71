//! Folds.

use std::sync::Arc;

use share::files::{Answer, Call, Over, Refused};
use trust_shared::change::Change;
use trust_shared::decision::Role;
use trust_shared::ops::Body;

use crate::asks::{directory, regular, text_of};
use crate::net::Net;
use crate::world::{device, refused};

fn folds(net: &Net) -> usize {
    positions_of_folds(net).count()
}

/// Positions of the entries that fold, and the position up to which each one does.
fn positions_of_folds(net: &Net) -> impl Iterator<Item = (u64, u64)> {
    let entries = net.stored_entries().into_iter();
    let entries = entries.filter(|(_, entry)| entry.body().is_some());
    entries.flat_map(|(at, _)| {
        let changes = crate::world::ops(&net.body(at)).into_iter();
        let changes = changes.flat_map(|op| op.changes);
        changes.filter_map(move |change| match change {
            Change::Fold { fold, .. } => Some((at, fold.upto)),
            _ => None,
        })
    })
}

#[test]
fn files_are_the_same_before_and_after_a_fold() {
    let mut net = Net::new(2, 70);
    let make = net.create("d", directory(), false);
    net.done(0, make);
    for number in 0..40 {
        let path = format!("d/f{number:02}");
        let make = net.create(&path, regular(&path), false);
        net.done(number % 2, make);
    }
    let gone = net.unlink("d/f07");
    net.done(1, gone);
    net.rest();
    let owner = net.root().principal;
    let before = net.names(0, "d");
    assert_eq!(net.call(1, Call::Fold(owner)), Answer::Settled);
    assert!(!net.blocks.is_empty());
    // Changes after the fold, over what is in it.
    let write = net.write("d/f03", "new");
    net.done(0, write);
    let rename = net.rename("d/f05", "d/z", Over::Replace);
    net.done(1, rename);
    // A device that has fetched nothing yet reads the fold's blocks.
    net.admit(2, Some(Role::Reader));
    let mut names = net.names(2, "d");
    assert_eq!(names.pop().as_deref(), Some("z"));
    let kept: Vec<String> = before.into_iter().filter(|name| name != "f05").collect();
    assert_eq!(names, kept);
    assert_eq!(text_of(&net.found(2, "d/f03")), "new");
    assert_eq!(text_of(&net.found(2, "d/z")), "d/f05");
    assert_eq!(text_of(&net.found(2, "d/f04")), "d/f04");
    assert_eq!(net.call(0, Call::Fold(owner)), Answer::Settled);
    assert_eq!(text_of(&net.found(2, "d/z")), "d/f05");
    net.rest();
    net.check();
    assert!(folds(&net) >= 2);
}

#[test]
fn listing_goes_through_folded_and_newer_names_in_order() {
    let mut net = Net::new(1, 71);
    let owner = net.root().principal;
    let names: Vec<String> = (0..30).map(|number| format!("n{number:02}")).collect();
    for name in names.iter().step_by(2) {
        let make = net.create(name, regular(""), false);
        net.done(0, make);
    }
    net.rest();
    assert_eq!(net.call(0, Call::Fold(owner)), Answer::Settled);
    for name in names.iter().skip(1).step_by(2) {
        let make = net.create(name, regular(""), false);
        net.done(0, make);
    }
    // Gone: three folded names together, and a newer one.
    for name in ["n10", "n12", "n13", "n14"] {
        let gone = net.unlink(name);
        net.done(0, gone);
    }
    let gone = ["n10", "n12", "n13", "n14"];
    let left: Vec<String> = names
        .into_iter()
        .filter(|name| !gone.contains(&name.as_str()))
        .collect();
    assert_eq!(net.names(0, ""), left);
}

#[test]
fn only_a_writer_folds_and_only_what_has_changed() {
    let mut net = Net::new(2, 72);
    net.admit(2, Some(Role::Reader));
    let make = net.create("f", regular(""), false);
    net.done(0, make);
    net.rest();
    let owner = net.root().principal;
    assert_eq!(
        net.call(2, Call::Fold(owner)),
        refused(Refused::NotPermitted)
    );
    let other = crate::world::user(1);
    assert_eq!(
        net.call(0, Call::Fold(other)),
        refused(Refused::NotPermitted)
    );
}

#[test]
fn fold_leaves_out_what_nobody_attests() {
    let mut net = Net::new(2, 73);
    let make = net.create("f", regular("old"), false);
    net.done(0, make);
    net.rest();
    let write = net.write("f", "new");
    net.issue(1, write);
    let size = net.stored.len();
    while net.stored.len() == size {
        net.turn();
    }
    net.nodes[1].asleep = true;
    let owner = net.root().principal;
    assert_eq!(net.call(0, Call::Fold(owner)), Answer::Settled);
    for (at, upto) in positions_of_folds(&net) {
        assert!(upto <= size as u64, "the fold at {at} goes beyond {size}");
    }
    net.nodes[1].asleep = false;
    assert_eq!(text_of(&net.found(0, "f")), "new");
}

/// A device forgets what it may. Blocks are not needed for that here.
fn forget(net: &Net, at: usize) {
    let attested = net.nodes[at].engine.foldable();
    while let Err(missing) = net.files(at).forget(device(at), attested, 1) {
        assert!(missing.blocks.is_empty());
        for position in missing.bodies {
            let body = Body::decode(&net.body(position)).map(Arc::new);
            net.files(at).shelf().put_body(position, body);
        }
    }
}

#[test]
fn what_nobody_attests_is_not_forgotten() {
    let mut net = Net::new(2, 75);
    let make = net.create("f", regular("old"), false);
    net.done(0, make);
    for number in 0..4 {
        let make = net.create(&format!("f{number}"), regular(""), false);
        net.done(0, make);
    }
    net.rest();
    let attested = net.stored.len() as u64;
    let write = net.write("f", "new");
    net.issue(1, write);
    while net.stored.len() as u64 == attested {
        net.turn();
    }
    net.nodes[1].asleep = true;
    // The fold comes after the new version, and does not have it.
    let owner = net.root().principal;
    assert_eq!(net.call(0, Call::Fold(owner)), Answer::Settled);
    forget(&net, 0);
    let look = net.lookup("f", true);
    let ticket = net.issue(0, look);
    for _ in 0..200 {
        net.turn();
        let answer = net.nodes[0].answers.get(&ticket);
        assert!(answer.is_none(), "nobody speaks for it: {answer:?}");
    }
    net.nodes[1].asleep = false;
    net.rest();
    assert_eq!(text_of(&net.found(0, "f")), "new");
    let kept = net.files(0).kept_ops();
    forget(&net, 0);
    assert!(net.files(0).kept_ops() < kept, "{kept} ops are kept");
    assert_eq!(text_of(&net.found(0, "f")), "new");
    assert_eq!(net.names(0, "").len(), 5);
}

#[test]
fn fold_goes_no_further_than_the_floor_on_disk() {
    let mut net = Net::new(1, 74);
    let owner = net.root().principal;
    for number in 0..5 {
        let make = net.create(&format!("f{number}"), regular(""), false);
        net.done(0, make);
    }
    // The floor is behind: nothing was synced since the first of these entries.
    let size = net.nodes[0].engine.ledger().size();
    assert!(net.nodes[0].engine.kept() < size);
    let before = net.entries;
    assert_eq!(net.call(0, Call::Fold(owner)), Answer::Settled);
    assert!(net.entries <= before + 2, "it tries once more at most");
    assert_eq!(net.names(0, "").len(), 5);
    assert!(folds(&net) > 0);
}

#[test]
fn calls_end_soon_beside_a_fold_that_needs_more_than_the_shelf_has() {
    const FILES: u64 = 120;
    let mut net = Net::founded(76, 64 << 10);
    net.admit(1, Some(Role::Writer));
    let owner = net.root().principal;
    let names: Vec<String> = (0..FILES).map(|number| format!("f{number:03}")).collect();
    for name in &names {
        let make = net.create(name, regular(name), false);
        net.done(1, make);
    }
    net.rest();
    assert_eq!(net.call(1, Call::Fold(owner)), Answer::Settled);
    for name in &names {
        let write = net.write(name, "new");
        net.done(1, write);
    }
    // The other device has what it needs to write this file.
    let last = names.last().unwrap();
    let write = net.write(last, "newer");
    net.done(0, write);
    net.rest();
    // It has to fetch all other bodies and blocks, and has room for a quarter of them.
    net.blocks_ms = 40;
    let (before, began, size) = (net.fetched, net.now_ms, net.stored.len());
    let fold = net.issue(0, Call::Fold(owner));
    // The log grows while the fold waits.
    for number in 0..4 {
        let write = net.write(last, &format!("newer {number}"));
        net.done(0, write);
    }
    for name in &names {
        let began = net.now_ms;
        let gone = net.unlink(name);
        net.done(0, gone);
        let took = net.now_ms - began;
        assert!(took < 1000, "{name}: {took} turns");
    }
    assert_eq!(net.wait(0, fold), Answer::Settled);
    let (fetched, took) = (net.fetched - before, net.now_ms - began);
    // Two versions of each file and its name, some blocks, and again what others have pushed out.
    assert!(fetched < 10 * FILES, "{fetched} things in {took} turns");
    // It goes to where the log ended when it began.
    let first = positions_of_folds(&net).find(|(at, _)| *at >= size as u64);
    let (_, upto) = first.expect("a fold");
    assert!(upto <= size as u64, "begun at {size}, goes up to {upto}");
    net.rest();
    net.check();
    assert!(net.names(0, "").is_empty());
}
