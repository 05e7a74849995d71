//! Devices that change the same things at a time.

use share::files::{Answer, Call, File, FileRef, Over, Place, Refused};
use trust::inode::Time;
use trust_shared::principal::{Device, FileId};

use crate::asks::{directory, file_of, place, regular, symlink, text, text_of};
use crate::net::Net;
use crate::world::refused;

/// Calls of several devices that none of them knows of when it makes its own.
pub fn at_once(net: &mut Net, calls: Vec<(usize, Call)>) -> Vec<Answer> {
    net.rest();
    let issued: Vec<(usize, u64)> = calls
        .into_iter()
        .map(|(at, call)| (at, net.issue(at, call)))
        .collect();
    let answers = issued.into_iter().map(|(at, ticket)| net.wait(at, ticket));
    answers.collect()
}

pub fn refusals(answers: &[Answer], why: &Refused) -> usize {
    let refused = |answer: &&Answer| **answer == Answer::Refused(why.clone());
    answers.iter().filter(refused).count()
}

#[test]
fn one_of_two_devices_makes_a_name() {
    let mut net = Net::new(3, 30);
    let calls: Vec<(usize, Call)> = (0..3)
        .map(|at| (at, net.create("f", regular(&format!("by {at}")), false)))
        .collect();
    let answers = at_once(&mut net, calls);
    assert_eq!(refusals(&answers, &Refused::Exists), 2, "{answers:?}");
    let winner = answers
        .iter()
        .position(|answer| matches!(answer, Answer::Done(_)));
    let text = format!("by {}", winner.unwrap());
    assert_eq!(text_of(&net.found(1, "f")), text);
}

#[test]
fn replaced_file_is_the_one_that_was_there_last() {
    let mut net = Net::new(2, 31);
    let make = net.create("f", regular("old"), false);
    net.done(0, make);
    let puts: Vec<(usize, Call)> = (0..2)
        .map(|at| (at, net.create("f", regular(&format!("by {at}")), true)))
        .collect();
    let answers = at_once(&mut net, puts);
    let files: Vec<FileId> = answers.iter().filter_map(file_of).collect();
    assert_eq!(files.len(), 2, "{answers:?}");
    let last = net.found(0, "f");
    // The other one had the name in between, and is gone. Who replaced it is told whose it was.
    let winner = files.iter().position(|file| *file == last.id).unwrap();
    let (own, other) = (&answers[winner], &files[1 - winner]);
    let Answer::Replaced(_, changed) = own else {
        panic!("{answers:?}");
    };
    assert_eq!(changed.device, Device(1 - winner as u32));
    let place = share::files::Place {
        start: *other,
        path: Vec::new(),
    };
    let follow = false;
    let look = Call::Lookup { place, follow };
    assert_eq!(net.call(1, look), refused(Refused::Stale));
}

#[test]
fn directories_are_not_moved_into_each_other() {
    let mut net = Net::new(2, 32);
    for path in ["a", "b"] {
        let make = net.create(path, directory(), false);
        net.done(0, make);
    }
    let into_b = net.rename("a", "b/a", Over::Replace);
    let into_a = net.rename("b", "a/b", Over::Replace);
    let answers = at_once(&mut net, vec![(0, into_b), (1, into_a)]);
    let done = |answer: &&Answer| matches!(answer, Answer::Done(_));
    assert_eq!(answers.iter().filter(done).count(), 1, "{answers:?}");
    assert_eq!(refusals(&answers, &Refused::NotFound), 1, "{answers:?}");
    let top = net.names(0, "");
    assert_eq!(top.len(), 1);
    let other = if top == ["a"] { "b" } else { "a" };
    assert_eq!(net.names(1, &top[0]), [other]);
}

#[test]
fn nothing_is_made_in_a_directory_that_is_being_removed() {
    race_with_rmdir(33, |net, top| {
        let inside = format!("{top}/f");
        net.create(&inside, regular("x"), false)
    });
}

/// No guard can be about the name of such a directory: its inode is gone when it was removed.
#[test]
fn nothing_is_made_in_a_directory_by_its_number_that_is_being_removed() {
    race_with_rmdir(37, |net, top| {
        let place = inside(net.found(0, top).id);
        let number = net.random(1 << 48);
        net.create_at(place, number, regular("x"))
    });
    race_with_rmdir(38, |net, top| {
        let (to, over) = (inside(net.found(0, top).id), Over::Replace);
        let from = net.at("kept");
        Call::Rename { from, to, over }
    });
    race_with_rmdir(39, |net, top| {
        let to = inside(net.found(0, top).id);
        let file = FileRef::Place(net.at("kept"));
        Call::Link { file, to }
    });
}

fn inside(directory: FileId) -> Place {
    place(directory, "f")
}

fn race_with_rmdir(seed: u64, makes: impl Fn(&mut Net, &str) -> Call) {
    let mut net = Net::new(2, seed);
    let (mut made, mut removed) = (0, 0);
    for round in 0..8 {
        let top = format!("d{round}");
        let make = net.create(&top, directory(), false);
        net.done(0, make);
        if !net.names(0, "").contains(&"kept".to_owned()) {
            let make = net.create("kept", regular("kept"), false);
            net.done(0, make);
        }
        let inside = makes(&mut net, &top);
        let gone = net.rmdir(&top);
        // Whose entry comes first is up to the order of turns: let it differ.
        let calls = match round % 2 {
            0 => vec![(0, inside), (1, gone)],
            _ => vec![(0, gone), (1, inside)],
        };
        let answers = at_once(&mut net, calls);
        let exists = net.names(0, "").contains(&top);
        match exists {
            true => {
                assert_eq!(refusals(&answers, &Refused::NotEmpty), 1, "{answers:?}");
                made += 1;
            }
            false => {
                assert_eq!(refusals(&answers, &Refused::NotFound), 1, "{answers:?}");
                removed += 1;
            }
        }
    }
    assert!(made > 0 && removed > 0, "{made} made, {removed} removed");
}

/// What `put -r` and `rm -r` rely on.
#[test]
fn file_goes_into_the_directory_with_a_number_whatever_its_name_leads_to() {
    let mut net = Net::new(2, 40);
    for path in ["d", "private"] {
        let make = net.create(path, directory(), false);
        net.done(0, make);
    }
    let looked_at = net.found(0, "d").id;
    // Another member swaps the directory for a link.
    let call = net.rename("d", "moved", Over::Refuse);
    net.done(1, call);
    let make = net.create("d", symlink("private"), false);
    net.done(1, make);
    let number = net.random(1 << 48);
    let make = net.create_at(inside(looked_at), number, regular("x"));
    net.done(0, make);
    assert_eq!(net.names(0, "moved"), ["f"]);
    assert_eq!(net.names(0, "private"), [""; 0]);
}

/// One more line, made of what the program has read, as a client does it.
struct Appender {
    at: usize,
    line: String,
    ticket: u64,
    reads: bool,
    tries: usize,
}

impl Appender {
    fn new(net: &mut Net, at: usize, number: usize) -> Appender {
        let look = net.lookup("log", true);
        Appender {
            at,
            line: format!("{at}.{number} "),
            ticket: net.issue(at, look),
            reads: true,
            tries: 0,
        }
    }

    /// Goes on when there is an answer. True: the line is in the file.
    fn step(&mut self, net: &mut Net) -> bool {
        let Some((answer, _)) = net.nodes[self.at].answers.remove(&self.ticket) else {
            return false;
        };
        let call = match (self.reads, answer) {
            (true, Answer::Found(File { id, inode })) => {
                let file = File { id, inode };
                let before = text_of(&file);
                Call::SetContent {
                    file: FileRef::File(id),
                    content: text(&format!("{before}{}", self.line)),
                    mtime: Time::default(),
                    expect: Some(file.inode.content.clone()),
                }
            }
            (false, Answer::Done(_)) => return true,
            (false, Answer::Refused(Refused::Stale)) => {
                self.tries += 1;
                net.lookup("log", true)
            }
            (_, other) => panic!("{other:?}"),
        };
        self.reads = !self.reads;
        self.ticket = net.issue(self.at, call);
        false
    }
}

#[test]
fn appends_of_several_devices_are_all_in_the_file() {
    for seed in 0..3 {
        let mut net = Net::new(3, 40 + seed);
        let make = net.create("log", regular(""), false);
        net.done(0, make);
        let (per_device, mut stale) = (4, 0);
        let mut appenders: Vec<Appender> = (0..3)
            .flat_map(|at| (0..per_device).map(move |number| (at, number)))
            .map(|(at, number)| Appender::new(&mut net, at, number))
            .collect();
        for _ in 0..60_000 {
            if appenders.is_empty() {
                break;
            }
            net.step();
            appenders.retain_mut(|appender| {
                let done = appender.step(&mut net);
                stale += usize::from(done) * appender.tries;
                !done
            });
        }
        assert!(appenders.is_empty(), "somebody never gets through");
        assert!(stale > 0, "they never met");
        let text = text_of(&net.found(1, "log"));
        let mut lines: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(lines.len(), 3 * per_device);
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), 3 * per_device, "a line twice: {text}");
        net.rest();
        net.check();
    }
}

#[test]
fn attributes_that_devices_set_at_a_time_are_all_set() {
    let mut net = Net::new(3, 50);
    let make = net.create("f", regular(""), false);
    let file = FileRef::File(net.done(0, make));
    let calls: Vec<(usize, Call)> = (0..3)
        .flat_map(|at| (0..4).map(move |number| (at, number)))
        .map(|(at, number)| {
            let name = format!("user.{at}.{number}").into();
            let attributes = share::files::Attributes {
                xattrs: vec![(name, Some("x".into()))],
                ..Default::default()
            };
            let (file, expect) = (file.clone(), None);
            let call = Call::SetAttributes {
                file,
                attributes,
                expect,
            };
            (at, call)
        })
        .collect();
    let answers = at_once(&mut net, calls);
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Answer::Done(_)))
    );
    let inode = net.found(2, "f").inode;
    let trust::inode::Xattrs::Inline(list) = &inode.xattrs else {
        panic!("no attributes");
    };
    assert_eq!(list.len(), 12);
    // Whoever failed often took the lock of the file, and gave it up again.
    net.rest();
    let lock = Call::Lock { file, wait: false };
    assert!(matches!(net.call(0, lock), Answer::Done(_)));
}

#[test]
fn call_that_failed_takes_the_lock_of_its_file() {
    let mut net = Net::new(2, 51);
    net.whole = true;
    let make = net.create("f", regular("0"), false);
    let file = net.done(0, make);
    net.rest();
    let slow = net.chmod("f", 0o600);
    let ticket = net.issue(0, slow);
    let (mut writes, mut locked) = (0, false);
    while !net.nodes[0].answers.contains_key(&ticket) {
        if net.sends_entry(0) {
            // Device 1 is always first.
            net.nodes[0].asleep = true;
            let write = net.write("f", &format!("w{writes}"));
            net.issue(1, write);
            (0..40).for_each(|_| net.turn());
            net.nodes[0].asleep = false;
            writes += 1;
            assert!(writes < 10, "device 0 starves");
        }
        net.turn();
        locked |= net.locked(file);
    }
    // Once in vain, the lock, the change.
    assert_eq!((writes, locked), (3, true));
    net.rest();
    assert!(!net.locked(file), "the lock is given up with the change");
    assert_eq!(net.found(1, "f").inode.mode, 0o600);
    // The write that waited for the lock came after it.
    assert_eq!(text_of(&net.found(0, "f")), "w2");
}

#[test]
fn lock_keeps_others_out_until_it_is_given_up() {
    let mut net = Net::new(2, 52);
    let make = net.create("f", regular("0"), false);
    let file = FileRef::File(net.done(0, make));
    let lock = |wait| Call::Lock {
        file: file.clone(),
        wait,
    };
    net.done(0, lock(false));
    net.done(0, lock(false));
    assert_eq!(net.call(1, lock(false)), refused(Refused::Locked));
    let give_up = Call::Unlock { file: file.clone() };
    assert_eq!(net.call(1, give_up.clone()), refused(Refused::NotLocked));
    let mine = net.write("f", "mine");
    net.done(0, mine);
    let write = net.write("f", "yours");
    let ticket = net.issue(1, write);
    for _ in 0..300 {
        net.turn();
    }
    assert!(!net.nodes[1].answers.contains_key(&ticket), "it waits");
    net.done(0, give_up);
    assert!(matches!(net.wait(1, ticket), Answer::Done(_)));
    assert_eq!(text_of(&net.found(0, "f")), "yours");
}

#[test]
fn lock_of_a_silent_device_is_taken_over_after_its_time_to_live() {
    let mut net = Net::new(2, 53);
    let make = net.create("f", regular("0"), false);
    let file = FileRef::File(net.done(0, make));
    let lock = Call::Lock { file, wait: true };
    net.done(0, lock.clone());
    net.rest();
    net.nodes[0].asleep = true;
    let write = net.write("f", "after");
    let ticket = net.issue(1, write);
    for _ in 0..200 {
        net.turn();
    }
    assert!(!net.nodes[1].answers.contains_key(&ticket));
    net.tick(31_000);
    assert!(matches!(net.wait(1, ticket), Answer::Done(_)));
    assert_eq!(text_of(&net.found(1, "f")), "after");
    // The holder learns that it has lost the lock.
    net.nodes[0].asleep = false;
    let give_up = match lock {
        Call::Lock { file, .. } => Call::Unlock { file },
        _ => panic!("not a lock"),
    };
    assert_eq!(net.call(0, give_up), refused(Refused::NotLocked));
}

#[test]
fn calls_of_one_device_that_meet_go_in_entries_of_their_own() {
    let mut net = Net::new(1, 54);
    let make = net.create("f", regular(""), false);
    net.done(0, make);
    net.rest();
    let before = net.entries;
    let calls = (0..5)
        .map(|mode| net.chmod("f", 0o600 + mode))
        .collect::<Vec<_>>();
    let tickets = net.issue_all(0, calls);
    for ticket in tickets {
        assert!(matches!(net.wait(0, ticket), Answer::Done(_)));
    }
    // No op was sent in vain.
    assert_eq!(net.entries, before + 5);
    let calls = (0..20)
        .map(|number| net.create(&format!("n{number}"), regular(""), false))
        .collect::<Vec<_>>();
    net.rest();
    let before = net.entries;
    for ticket in net.issue_all(0, calls) {
        assert!(matches!(net.wait(0, ticket), Answer::Done(_)));
    }
    assert_eq!(
        net.entries,
        before + 1,
        "calls that do not meet go together"
    );
}

#[test]
fn silent_author_is_named_to_whom_it_concerns_and_nobody_else() {
    let mut net = Net::new(3, 55);
    for path in ["f", "g"] {
        let make = net.create(path, regular(path), false);
        net.done(0, make);
    }
    net.rest();
    // The entry of device 1 is in the log, and the device falls asleep before it attests anything.
    let write = net.write("f", "new");
    net.issue(1, write);
    let size = net.stored.len();
    while net.stored.len() == size {
        net.turn();
    }
    net.nodes[1].asleep = true;
    assert_eq!(text_of(&net.found(0, "g")), "g");
    let look = net.lookup("f", true);
    let ticket = net.issue(0, look.clone());
    for _ in 0..100 {
        net.turn();
    }
    assert!(!net.nodes[0].answers.contains_key(&ticket), "it waits");
    net.tick(5001);
    let silent = crate::world::device(1);
    let answer = net.wait(0, ticket);
    let Answer::Silent { device, .. } = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(device, silent);
    // An administrator counts what the device wrote.
    let number = net.files(0).roster().number(silent).unwrap();
    let accept = trust_shared::decision::Decision::Accept { device: number };
    net.decide(0, accept);
    assert_eq!(text_of(&net.found(0, "f")), "new");
}

#[test]
fn outcome_of_an_op_waits_for_the_authors_that_it_rests_on() {
    let mut net = Net::new(2, 56);
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
    // Device 0 changes the file as device 1 left it.
    let chmod = net.chmod("f", 0o600);
    let ticket = net.issue(0, chmod);
    let size = net.stored.len();
    for _ in 0..200 {
        net.turn();
    }
    assert!(net.stored.len() > size, "the change is in the log");
    assert!(!net.nodes[0].answers.contains_key(&ticket), "it waits");
    net.nodes[1].asleep = false;
    assert!(matches!(net.wait(0, ticket), Answer::Done(_)));
    let inode = net.found(1, "f").inode;
    assert_eq!((inode.mode, inode.size), (0o600, 3));
}
