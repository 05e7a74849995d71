//! Members that write what no client writes: readers stay in agreement, and calls have answers.

use std::sync::Arc;

use share::files::{Answer, Call, Place, Refused};
use trust::inode::FileKind;
use trust_shared::calls;
use trust_shared::change::Change;
use trust_shared::decision::Decision;
use trust_shared::guard::Guard;
use trust_shared::ops::Op;
use trust_shared::principal::{Device, FileId, INumber, Target};

use crate::asks::{directory, name, regular, text_of};
use crate::net::Net;
use crate::world::{refused, user};

fn mine(net: &Net, device: u32, counter: u64) -> FileId {
    FileId {
        principal: net.root().principal,
        number: INumber {
            device: Device(device),
            counter,
        },
    }
}

fn entry(directory: FileId, text: &str, is: Option<Target>) -> Guard {
    Guard::EntryIs {
        directory,
        name: name(text),
        is,
    }
}

fn link(directory: FileId, text: &str, target: Target) -> Change {
    Change::Link {
        directory,
        name: name(text),
        target,
    }
}

/// A name that states a kind and leads to a file that may not exist.
fn lie(net: &Net, text: &str, file: FileId, kind: FileKind) -> Op {
    let root = net.root();
    let target = Target { file, kind };
    Op::new(
        vec![entry(root, text, None)],
        vec![link(root, text, target)],
    )
}

#[test]
fn name_that_leads_nowhere_is_listed_and_can_be_removed() {
    let mut net = Net::new(2, 80);
    let nowhere = mine(&net, 1, 99);
    let op = lie(&net, "nowhere", nowhere, FileKind::Regular);
    net.inject(1, vec![op]);
    net.nodes[1].asleep = true;
    net.accept(1);
    let look = net.lookup("nowhere", true);
    assert_eq!(net.call(0, look), refused(Refused::NotFound));
    let call = net.list("", None, 10, true);
    let Answer::Listed { names, .. } = net.call(0, call) else {
        panic!("not listed");
    };
    assert_eq!((names.len(), &names[0].file), (1, &None));
    let gone = net.unlink("nowhere");
    net.done(0, gone);
    assert!(net.names(0, "").is_empty());
}

#[test]
fn name_that_states_another_kind_misleads_nobody_for_ever() {
    let mut net = Net::new(2, 81);
    let make = net.create("f", regular("text"), false);
    let file = net.done(0, make);
    let op = lie(&net, "l", file, FileKind::Symlink);
    net.inject(1, vec![op]);
    net.nodes[1].asleep = true;
    net.accept(1);
    let through = net.lookup("l/x", true);
    assert!(matches!(
        net.call(0, through),
        Answer::Refused(Refused::Damaged(_))
    ));
    let gone = net.unlink("l");
    net.done(0, gone);
    assert_eq!(net.names(0, ""), ["f"]);
}

#[test]
fn circle_of_directories_is_not_made_and_paths_end() {
    let mut net = Net::new(2, 82);
    for path in ["a", "a/b"] {
        let make = net.create(path, directory(), false);
        net.done(0, make);
    }
    let (a, b) = (net.found(0, "a").id, net.found(0, "a/b").id);
    let kind = FileKind::Directory;
    let target = Target { file: a, kind };
    let root = net.root();
    // Moves a below b, without the guards of the way to the root.
    let guards = vec![entry(root, "a", Some(target)), entry(b, "a", None)];
    let gone = Change::Unlink {
        directory: root,
        name: name("a"),
    };
    net.inject(1, vec![Op::new(guards, vec![gone, link(b, "a", target)])]);
    net.nodes[1].asleep = true;
    net.accept(1);
    assert_eq!(net.names(0, "a"), ["b"]);
    assert!(net.names(0, "a/b").is_empty());
}

#[test]
fn ops_without_permission_do_not_hold_anybody_up() {
    let mut net = Net::new(2, 83);
    net.admit(2, None);
    let make = net.create("f", regular("text"), false);
    let file = net.done(0, make);
    let inode = Arc::new(regular("forged"));
    let set = Op::new(Vec::new(), vec![Change::Set { file, inode }]);
    net.inject(2, vec![set]);
    // Device 2 attests nothing, and the body of its entry is asked of nobody.
    net.nodes[2].asleep = true;
    let before = net.fetched;
    assert_eq!(text_of(&net.found(0, "f")), "text");
    assert_eq!(net.fetched, before);
}

#[test]
fn ops_that_fail_on_one_key_are_judged_once() {
    let mut net = Net::new(2, 84);
    let make = net.create("f", regular("text"), false);
    let file = net.done(0, make);
    let wrong = Guard::HashIs { file, is: None };
    let failing = |number: u64| {
        let inode = Arc::new(regular(&format!("{number}")));
        let unlocked = Guard::Unlocked { file };
        Op::new(
            vec![wrong.clone(), unlocked],
            vec![Change::Set { file, inode }],
        )
    };
    for entry in 0..30 {
        net.inject(1, (0..60).map(|op| failing(entry * 60 + op)).collect());
    }
    net.nodes[1].asleep = true;
    net.accept(1);
    assert_eq!(text_of(&net.found(0, "f")), "text");
    let fetched = net.fetched;
    assert_eq!(text_of(&net.found(0, "f")), "text");
    let write = net.write("f", "new");
    net.done(0, write);
    assert!(net.fetched - fetched < 10, "the outcomes are known");
}

#[test]
fn file_under_the_number_of_another_device_is_not_made() {
    let mut net = Net::new(2, 85);
    let file = mine(&net, 0, 4711);
    let inode = Arc::new(regular("early"));
    let guards = vec![
        entry(net.root(), "f", None),
        Guard::HashIs { file, is: None },
    ];
    let kind = FileKind::Regular;
    let changes = vec![
        Change::Set { file, inode },
        link(net.root(), "f", Target { file, kind }),
    ];
    net.inject(1, vec![Op::new(guards, changes)]);
    net.nodes[1].asleep = true;
    net.accept(1);
    assert!(net.names(0, "").is_empty());
    let call = Call::Create {
        place: net.at("f"),
        number: 4711,
        inode: Box::new(regular("mine")),
        owner: None,
        replace: false.into(),
    };
    assert_eq!(net.done(0, call), file);
}

#[test]
fn deep_paths_and_long_chains_of_links_end_with_an_answer() {
    let mut net = Net::new(1, 86);
    for number in 0..45 {
        let target = format!("l{}", number + 1);
        let make = net.create(&format!("l{number}"), crate::asks::symlink(&target), false);
        net.done(0, make);
    }
    let end = net.create("l45", regular("end"), false);
    net.done(0, end);
    let near = net.lookup("l5", true);
    assert!(matches!(net.call(0, near), Answer::Found(_)));
    let far = net.lookup("l4", true);
    assert_eq!(net.call(0, far), refused(Refused::Loop));
    let own = net.create("self", crate::asks::symlink("self"), false);
    net.done(0, own);
    let circle = net.lookup("self", true);
    assert_eq!(net.call(0, circle), refused(Refused::Loop));
    let long = Place {
        start: net.root(),
        path: vec![name("x"); 4000],
    };
    let follow = true;
    let deep = Call::Lookup {
        place: long,
        follow,
    };
    assert_eq!(net.call(0, deep), refused(Refused::NotFound));
}

#[test]
fn decisions_of_members_without_the_right_change_nobody() {
    let mut net = Net::new(2, 87);
    let decisions = [
        Decision::RemoveDevice { device: Device(0) },
        Decision::Grant {
            group: net.root().principal,
            user: user(1),
            role: trust_shared::decision::Role::Admin,
        },
    ];
    for decision in decisions {
        net.inject(1, vec![calls::decide(decision)]);
    }
    // An entry that would attest them.
    net.inject(1, Vec::new());
    let make = net.create("f", regular("still here"), false);
    net.nodes[1].asleep = true;
    net.done(0, make);
    let members = net.files(0).members();
    assert!(members.active(Device(0), u64::MAX));
    assert!(!members.is_admin(Device(1), u64::MAX));
}
