//! Missing bodies and blocks, a shelf with little room, restarts, replies without what they must have.

use ordering::engine::{Record, Reply};
use ordering::roster::Product;
use ordering::scheme::Leaf;
use ordering::signed::Entry;
use share::files::{Answer, Call};
use trust_shared::decision::Role;

use crate::asks::{directory, regular, text_of};
use crate::net::Net;

/// A volume whose devices have hardly any room for what they fetch.
fn narrow(devices: usize, seed: u64) -> Net {
    let mut net = Net::founded(seed, 1);
    (1..devices).for_each(|number| net.admit(number, Some(Role::Writer)));
    net
}

#[test]
fn every_call_is_answered_by_a_device_with_no_room_on_its_shelf() {
    let mut net = narrow(2, 60);
    let deep = ["a", "a/b", "a/b/c", "a/b/c/d"];
    for path in deep {
        let make = net.create(path, directory(), false);
        net.done(0, make);
    }
    for number in 0..8 {
        let path = format!("a/b/c/d/f{number}");
        let make = net.create(&path, regular(&path), false);
        net.done(number % 2, make);
    }
    // Several questions at a time, each of which needs many bodies.
    let calls: Vec<Call> = (0..8)
        .map(|number| net.lookup(&format!("a/b/c/d/f{number}"), true))
        .chain([net.list("a/b/c/d", None, 100, true)])
        .collect();
    let tickets = net.issue_all(1, calls);
    for ticket in &tickets[..8] {
        assert!(matches!(net.wait(1, *ticket), Answer::Found(_)));
    }
    let Answer::Listed { names, .. } = net.wait(1, tickets[8]) else {
        panic!("not listed");
    };
    assert_eq!(names.len(), 8);
    net.rest();
    // Nothing is kept for questions that have their answers.
    let left = net.files(1).shelf().weight_bytes();
    assert!(left < 2000, "{left} bytes");
    net.check();
}

#[test]
fn question_that_is_given_up_does_not_keep_others_from_their_answers() {
    let mut net = narrow(2, 61);
    for number in 0..6 {
        let path = format!("f{number}");
        let make = net.create(&path, regular(&path), false);
        net.done(0, make);
    }
    net.rest();
    // Its bodies never come: the program ends before.
    let list = net.list("", None, 100, true);
    let ticket = net.issue(1, list);
    for _ in 0..200 {
        net.turn_without_fetching();
    }
    net.nodes[1].engine.cancel(ticket);
    for number in 0..6 {
        let path = format!("f{number}");
        assert_eq!(text_of(&net.found(1, &path)), path);
    }
    // While nothing else is missing, what it needed may stay.
    for number in 0..40 {
        let path = format!("g{number}");
        let make = net.create(&path, regular(&path), false);
        net.done(0, make);
        net.found(1, &path);
    }
    let left = net.files(1).shelf().weight_bytes();
    assert!(left < 2000, "{left} bytes");
}

#[test]
fn device_that_starts_again_has_the_same_files() {
    let mut net = Net::new(2, 62);
    let make = net.create("d", directory(), false);
    net.done(0, make);
    for number in 0..5 {
        let make = net.create(&format!("d/f{number}"), regular("x"), false);
        net.done(1, make);
    }
    for power in [false, true] {
        // A call is on its way when the device stops.
        let write = net.write("d/f1", "after");
        net.issue(1, write);
        net.turn();
        net.crash(1, power);
        net.rest();
        net.check();
        assert_eq!(net.names(1, "d").len(), 5);
    }
    // After a kill the journaled call runs again.
    assert_eq!(text_of(&net.found(0, "d/f1")), "after");
}

#[test]
fn journaled_call_has_effect_once_after_a_kill_at_any_turn() {
    for turns in 0..25 {
        let mut net = Net::new(2, 100 + turns);
        let make = net.create("f", regular("text"), false);
        net.issue(1, make);
        (0..turns).for_each(|_| net.turn());
        net.crash(1, false);
        net.rest();
        net.check();
        let made = net.names(0, "");
        assert_eq!(made, ["f"], "after {turns} turns");
        let made = creations(&net);
        assert_eq!(made, 1, "after {turns} turns");
    }
}

/// Creations in the log that had effect: the names that are there.
fn creations(net: &Net) -> usize {
    let mut made = 0;
    for (at, entry) in net.stored_entries() {
        if entry.body().is_some() {
            let ops = crate::world::ops(&net.body(at));
            let sets = ops.iter().flat_map(|op| &op.changes);
            let sets =
                sets.filter(|change| matches!(change, trust_shared::change::Change::Set { .. }));
            made += sets.count();
        }
    }
    made
}

#[test]
fn decision_without_its_body_is_the_senders_fault() {
    let mut net = Net::new(2, 64);
    net.rest();
    let note = *net.nodes[0].engine.ledger().note().unwrap();
    let size = note.note().prefix().size as usize;
    let bare = |leaf: &Leaf<Product>| match leaf {
        Leaf::Entry(entry) => Leaf::Entry(Entry::new(entry.signed().clone())),
        Leaf::Marks(_) => leaf.clone(),
    };
    let reply = Reply {
        from: 0,
        leaves: net.stored[..size].iter().map(bare).collect(),
        note,
        more: false,
        attests: Vec::new(),
        asked: false,
        refused: None,
        unstored: None,
    };
    let fresh = net.start();
    net.deliver(fresh, &reply);
    let node = &net.nodes[fresh];
    let why = node.stopped.clone().expect("the reply was taken");
    assert!(why.contains("without its body"), "{why}");
    assert!(!node.engine.is_stopped(), "nobody lied");
    assert_eq!(node.engine.ledger().volume().roster().lost(), None);
}

#[test]
fn journal_has_the_bodies_of_decisions() {
    let mut net = Net::new(3, 65);
    net.rest();
    let records = net.journal(1);
    let decisions = records.iter().flat_map(|record| match record {
        Record::Floor { leaves, .. } => leaves.as_slice(),
        _ => &[],
    });
    let bodies =
        decisions.filter(|leaf| matches!(leaf, Leaf::Entry(entry) if entry.body().is_some()));
    // Two devices, each with a user, a device and a role; and what this device wrote.
    assert!(bodies.count() >= 6);
    net.crash(1, false);
    net.rest();
    assert_eq!(net.files(1).roster().lost(), None);
    assert_eq!(net.files(1).members().devices(u64::MAX).count(), 3);
}
