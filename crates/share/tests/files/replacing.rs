//! A file replaces what its caller has seen, and who changed a file last.

use share::files::{Answer, Call, Changed, Over, Refused, Replace, Seen};
use trust_shared::decision::{Decision, Label, Role};
use trust_shared::principal::{Device, Principal};

use crate::asks::{file_of, regular, text_of};
use crate::conflicts::{at_once, refusals};
use crate::net::Net;
use crate::world::{refused, user};

/// What a device sees under a name.
fn seen(net: &mut Net, at: usize, path: &str) -> Seen {
    let call = net.lookup(path, false);
    match net.call(at, call) {
        Answer::Found(file) => Seen(Some((file.id, file.inode.content.clone()))),
        _ => Seen(None),
    }
}

/// A file that replaces what was seen.
fn put(net: &mut Net, path: &str, content: &str, seen: &Seen) -> Call {
    let mut call = net.create(path, regular(content), true);
    if let Call::Create { replace, .. } = &mut call {
        *replace = Replace::Seen(seen.clone());
    }
    call
}

#[test]
fn what_was_seen_is_replaced_and_nothing_else() {
    let mut net = Net::new(2, 51);
    let nothing = Seen(None);
    let first = put(&mut net, "f", "one", &nothing);
    net.done(0, first);
    let one = seen(&mut net, 1, "f");
    let again = put(&mut net, "f", "x", &nothing);
    assert_eq!(net.call(1, again), refused(Refused::Stale));
    // Attributes are no content.
    let chmod = net.chmod("f", 0o600);
    net.done(0, chmod);
    let second = put(&mut net, "f", "two", &one);
    net.done(1, second);
    // Another file has the name.
    let old = put(&mut net, "f", "x", &one);
    assert_eq!(net.call(0, old), refused(Refused::Stale));
    // The same file has other content.
    let two = seen(&mut net, 0, "f");
    let write = net.write("f", "three");
    net.done(1, write);
    let old = put(&mut net, "f", "x", &two);
    assert_eq!(net.call(0, old), refused(Refused::Stale));
    // Another file with the same content is another file.
    let three = seen(&mut net, 0, "f");
    let same = net.create("f", regular("three"), true);
    net.done(1, same);
    let old = put(&mut net, "f", "x", &three);
    assert_eq!(net.call(0, old), refused(Refused::Stale));
    // The file that was seen is as it was, and has another name.
    let same = seen(&mut net, 0, "f");
    let moved = net.rename("f", "g", Over::Replace);
    net.done(1, moved);
    let other = net.create("f", regular("four"), false);
    net.done(1, other);
    let old = put(&mut net, "f", "x", &same);
    assert_eq!(net.call(0, old), refused(Refused::Stale));
    // Nothing has the name.
    let (last, gone) = (seen(&mut net, 0, "f"), net.unlink("f"));
    net.done(1, gone);
    let old = put(&mut net, "f", "x", &last);
    assert_eq!(net.call(0, old), refused(Refused::Stale));
    let new = put(&mut net, "f", "four", &nothing);
    net.done(0, new);
    assert_eq!(text_of(&net.found(1, "f")), "four");
}

#[test]
fn rename_replaces_what_was_seen_and_nothing_else() {
    let mut net = Net::new(2, 52);
    for (path, content) in [("a", "new"), ("f", "one")] {
        let make = net.create(path, regular(content), false);
        net.done(0, make);
    }
    let one = seen(&mut net, 0, "f");
    let write = net.write("f", "two");
    net.done(1, write);
    for wrong in [one, Seen(None)] {
        let call = net.rename("a", "f", Over::Seen(wrong));
        assert_eq!(net.call(0, call), refused(Refused::Stale));
    }
    let two = seen(&mut net, 0, "f");
    let call = net.rename("a", "f", Over::Seen(two));
    let Answer::Replaced(_, changed) = net.call(0, call) else {
        panic!("nobody is told whose file was replaced");
    };
    assert_eq!(changed.device, Device(1));
    assert_eq!(text_of(&net.found(1, "f")), "new");
}

#[test]
fn one_of_two_devices_replaces_what_both_have_seen() {
    let mut net = Net::new(2, 53);
    for round in 0..8 {
        // A new name, and then the file of the round before.
        let path = format!("f{}", round / 2);
        let there = seen(&mut net, 0, &path);
        assert_eq!(there.0.is_some(), round % 2 == 1);
        let one = put(&mut net, &path, &format!("{round} by 0"), &there);
        let two = put(&mut net, &path, &format!("{round} by 1"), &there);
        let answers = at_once(&mut net, vec![(0, one), (1, two)]);
        assert_eq!(refusals(&answers, &Refused::Stale), 1, "{answers:?}");
        let winner = answers.iter().position(|it| file_of(it).is_some());
        let text = format!("{round} by {}", winner.unwrap());
        assert_eq!(text_of(&net.found(0, &path)), text);
        // A write of the content meets a new file in the same way.
        let there = seen(&mut net, 0, &path);
        let mut write = net.write(&path, "written");
        if let Call::SetContent { expect, .. } = &mut write {
            *expect = there.0.as_ref().map(|(_, content)| content.clone());
        }
        let put = put(&mut net, &path, "put", &there);
        let answers = at_once(&mut net, vec![(round % 2, put), (1 - round % 2, write)]);
        assert_eq!(refusals(&answers, &Refused::Stale), 1, "{answers:?}");
    }
    net.rest();
    net.check();
}

/// The op of somebody who may not write a file has no guard on its content, so it must not say that it was seen.
#[test]
fn file_of_another_owner_is_not_replaced_as_seen() {
    let mut net = Net::new(3, 54);
    let (group, label) = (Principal::from_bytes([50; 32]), Label::new("team").unwrap());
    net.decide(0, Decision::AddGroup { group, label });
    for (number, role) in [(1, Role::Writer), (2, Role::Reader)] {
        let user = user(number);
        net.decide(0, Decision::Grant { group, user, role });
    }
    let ours = Call::Create {
        place: net.at("ours"),
        number: 7,
        inode: Box::new(regular("the team's")),
        owner: Some(group),
        replace: false.into(),
    };
    net.done(1, ours);
    let there = seen(&mut net, 2, "ours");
    assert!(there.0.is_some());
    let call = put(&mut net, "ours", "x", &there);
    assert_eq!(net.call(2, call), refused(Refused::NotPermitted));
    let call = put(&mut net, "ours", "of the team", &there);
    net.done(1, call);
}

#[test]
fn who_changed_a_name_last_is_known_until_a_fold_has_it() {
    let mut net = Net::new(2, 55);
    let changed = |net: &mut Net, path: &str| {
        let place = net.at(path);
        match net.call(0, Call::Changed { place }) {
            Answer::Changed(changed) => changed,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(changed(&mut net, "f"), None);
    let make = net.create("f", regular("one"), false);
    net.done(0, make);
    let made = changed(&mut net, "f").unwrap();
    assert_eq!(made.device, Device(0));
    let write = net.write("f", "two");
    net.done(1, write);
    let written = changed(&mut net, "f").unwrap();
    assert!(written.at > made.at && written.device == Device(1));
    // A put of the same device replaces its own content, and a put of another one does not.
    let own = net.create("f", regular("three"), true);
    assert!(matches!(net.call(1, own), Answer::Done(_)));
    let Changed { at, device } = changed(&mut net, "f").unwrap();
    let other = net.create("f", regular("four"), true);
    let answer = net.call(0, other);
    let file = file_of(&answer).unwrap();
    assert_eq!(answer, Answer::Replaced(file, Changed { at, device }));
    let gone = net.unlink("f");
    net.done(1, gone);
    assert_eq!(changed(&mut net, "f").unwrap().device, Device(1));
    let again = net.create("f", regular("five"), false);
    net.done(1, again);
    // Each device attests what it wrote before: a fold goes so far.
    for at in [1, 0] {
        let make = net.create(&format!("of {at}"), regular(""), false);
        net.done(at, make);
    }
    net.rest();
    let fold = Call::Fold(net.root().principal);
    assert_eq!(net.call(0, fold), Answer::Settled);
    assert_eq!(changed(&mut net, "f"), None);
    let over = net.create("f", regular("six"), true);
    assert!(matches!(net.call(0, over), Answer::Done(_)));
}
