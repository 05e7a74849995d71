//! Many devices that change one file: each gets its turn, and nothing is lost.

use ordering::signed::Entry;
use share::files::{Answer, Attributes, Call, FileRef};
use trust::inode::Xattrs;
use trust_shared::calls;
use trust_shared::change::Change;
use trust_shared::decision::Decision;
use trust_shared::principal::{Device, FileId};

use crate::asks::regular;
use crate::net::Net;
use crate::world::{device, ops};

/// A device that changes the file again and again.
struct Writer {
    at: usize,
    number: usize,
    ticket: u64,
    /// Changes of all that were answered when the call began.
    before: usize,
}

fn change(net: &mut Net, at: usize, file: FileId, number: usize) -> u64 {
    let name = format!("user.{at}.{number}").into();
    let call = Call::SetAttributes {
        file: FileRef::File(file),
        attributes: Attributes {
            xattrs: vec![(name, Some("x".into()))],
            ..Attributes::default()
        },
        expect: None,
    };
    net.issue(at, call)
}

/// What a race came to.
#[derive(Debug, Default)]
struct Race {
    changes: usize,
    /// Most changes of others that were answered while one call waited.
    overtaken: usize,
    turns: usize,
    /// Times that everybody waited for the time to live of locks.
    lapses: usize,
}

/// These devices change the file so many times each, as fast as they can.
fn race(net: &mut Net, devices: &[usize], each: usize, file: FileId, first: usize) -> Race {
    let mut race = Race::default();
    let mut writers: Vec<Writer> = Vec::new();
    for at in devices {
        let ticket = change(net, *at, file, first);
        writers.push(Writer {
            at: *at,
            number: first,
            ticket,
            before: 0,
        });
    }
    let mut still = 0;
    while !writers.is_empty() {
        net.turn();
        race.turns += 1;
        still += 1;
        let mut left = Vec::new();
        for mut writer in writers {
            let answer = net.nodes[writer.at].answers.get(&writer.ticket);
            let Some((answer, _)) = answer else {
                left.push(writer);
                continue;
            };
            assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
            race.overtaken = race.overtaken.max(race.changes - writer.before);
            race.changes += 1;
            still = 0;
            writer.number += 1;
            if writer.number < first + each {
                writer.before = race.changes;
                writer.ticket = change(net, writer.at, file, writer.number);
                left.push(writer);
            }
        }
        writers = left;
        if still > 400 {
            assert!(race.lapses < 10, "nobody goes on");
            race.lapses += 1;
            still = 0;
            net.tick(31_000);
        }
    }
    race
}

fn with_file(devices: usize, seed: u64) -> (Net, FileId) {
    let mut net = Net::new(devices, seed);
    let make = net.create("f", regular(""), false);
    let file = net.done(0, make);
    net.rest();
    (net, file)
}

/// Number of attributes of the file.
fn attributes(net: &mut Net, at: usize) -> usize {
    match net.found(at, "f").inode.xattrs.clone() {
        Xattrs::Inline(list) => list.len(),
        other => panic!("{other:?}"),
    }
}

/// A program that does not wait gets the lock.
fn is_free(net: &mut Net, at: usize, file: FileId) {
    let file = FileRef::File(file);
    net.done(at, Call::Lock { file, wait: false });
}

fn every_call_gets_its_turn(devices: usize, each: usize) {
    let (mut net, file) = with_file(devices, 60 + devices as u64);
    net.whole = true;
    let all: Vec<usize> = (0..devices).collect();
    let alone = race(&mut net, &[0], 4, file, 1000);
    let race = race(&mut net, &all, each, file, 0);
    assert_eq!(race.lapses, 0, "{race:?}");
    assert!(race.overtaken <= devices + 2, "{devices}: {race:?}");
    // One change takes little longer than that of a device that is alone.
    let per_change = race.turns as f64 / race.changes as f64;
    let alone = alone.turns as f64 / alone.changes as f64;
    assert!(
        per_change * 0.7 <= alone,
        "{per_change} turns, alone {alone}"
    );
    assert_eq!(attributes(&mut net, 0), devices * each + 4);
    net.rest();
    assert!(!net.locked(file));
    net.check();
}

#[test]
fn each_of_3_writers_gets_its_turn() {
    every_call_gets_its_turn(3, 16);
}

#[test]
fn each_of_4_writers_gets_its_turn() {
    every_call_gets_its_turn(4, 12);
}

#[test]
fn each_of_8_writers_gets_its_turn() {
    every_call_gets_its_turn(8, 6);
}

#[test]
fn each_of_16_writers_gets_its_turn() {
    every_call_gets_its_turn(16, 3);
}

#[test]
fn device_that_dies_in_the_queue_delays_the_others_once() {
    let (mut net, file) = with_file(5, 61);
    // Device 0 has the lock, and the others wait.
    let lock = |wait| Call::Lock {
        file: FileRef::File(file),
        wait,
    };
    net.done(0, lock(true));
    change(&mut net, 4, file, 0);
    for _ in 0..100 {
        net.turn();
    }
    net.nodes[4].asleep = true;
    let unlock = Call::Unlock {
        file: FileRef::File(file),
    };
    net.issue(0, unlock);
    let first = race(&mut net, &[0, 1, 2, 3], 3, file, 10);
    assert_eq!(first.lapses, 1, "{first:?}");
    let second = race(&mut net, &[0, 1, 2, 3], 3, file, 20);
    assert_eq!(second.lapses, 0, "{second:?}");
    assert_eq!(attributes(&mut net, 1), 24);
    // It comes back, and its call is done at last.
    net.nodes[4].asleep = false;
    net.rest();
    assert_eq!(attributes(&mut net, 1), 25);
    is_free(&mut net, 1, file);
}

#[test]
fn device_that_dies_with_the_lock_delays_the_others_once() {
    let (mut net, file) = with_file(4, 62);
    let lock = Call::Lock {
        file: FileRef::File(file),
        wait: true,
    };
    net.done(3, lock);
    net.rest();
    net.nodes[3].asleep = true;
    let race = race(&mut net, &[0, 1, 2], 4, file, 0);
    assert_eq!(race.lapses, 1, "{race:?}");
    assert_eq!(attributes(&mut net, 1), 12);
    net.rest();
    // Who took it over has given it up.
    is_free(&mut net, 0, file);
}

#[test]
fn lock_that_comes_when_its_call_is_gone_goes_on_at_once() {
    for restarts in [false, true] {
        let (mut net, file) = with_file(3, 63);
        let lock = Call::Lock {
            file: FileRef::File(file),
            wait: true,
        };
        net.done(0, lock);
        let gone = change(&mut net, 1, file, 0);
        for _ in 0..60 {
            net.turn();
        }
        let waits = change(&mut net, 2, file, 0);
        for _ in 0..60 {
            net.turn();
        }
        match restarts {
            true => net.crash(1, false),
            false => net.nodes[1].engine.cancel(gone),
        }
        let unlock = Call::Unlock {
            file: FileRef::File(file),
        };
        net.done(0, unlock);
        // No time to live passes.
        assert!(matches!(net.wait(2, waits), Answer::Done(_)), "{restarts}");
        net.rest();
        assert!(!net.locked(file));
    }
}

#[test]
fn programs_lock_is_not_given_up_with_a_change() {
    let (mut net, file) = with_file(3, 64);
    let which = FileRef::File(file);
    let lock = |wait| Call::Lock {
        file: which.clone(),
        wait,
    };
    net.done(0, lock(true));
    // Programs of two devices wait in the queue, and one that does not wait is refused.
    let first = net.issue(1, lock(true));
    for _ in 0..60 {
        net.turn();
    }
    let second = net.issue(2, lock(true));
    for _ in 0..60 {
        net.turn();
    }
    for number in 0..5 {
        let ticket = change(&mut net, 0, file, number);
        assert!(matches!(net.wait(0, ticket), Answer::Done(_)));
    }
    assert!(net.locked(file));
    let unlock = Call::Unlock {
        file: which.clone(),
    };
    net.done(0, unlock.clone());
    assert!(matches!(net.wait(1, first), Answer::Done(_)));
    for _ in 0..200 {
        net.turn();
    }
    assert!(!net.nodes[2].answers.contains_key(&second), "it waits");
    let ticket = change(&mut net, 1, file, 0);
    assert!(matches!(net.wait(1, ticket), Answer::Done(_)));
    assert!(net.locked(file), "a program has it");
    net.done(1, unlock.clone());
    assert!(matches!(net.wait(2, second), Answer::Done(_)));
    net.done(2, unlock);
    net.rest();
    assert!(!net.locked(file));
}

#[test]
fn device_that_waits_claims_once() {
    let (mut net, file) = with_file(3, 65);
    let lock = Call::Lock {
        file: FileRef::File(file),
        wait: true,
    };
    net.done(0, lock);
    change(&mut net, 1, file, 0);
    for _ in 0..60 {
        net.turn();
    }
    let before = net.entries;
    // Others write, and the device that waits sees it.
    for number in 0..5 {
        let make = net.create(&format!("n{number}"), regular(""), false);
        net.done(2, make);
    }
    assert_eq!(net.entries, before + 5);
}

#[test]
fn next_device_may_be_removed_while_the_lock_goes_to_it() {
    let (mut net, file) = with_file(3, 66);
    net.whole = true;
    let lock = Call::Lock {
        file: FileRef::File(file),
        wait: true,
    };
    net.done(1, lock);
    change(&mut net, 2, file, 0);
    for _ in 0..60 {
        net.turn();
    }
    // Device 1 gives the lock to device 2, and its entry comes after the removal.
    net.nodes[1].asleep = true;
    let unlock = Call::Unlock {
        file: FileRef::File(file),
    };
    let gives_up = net.issue(1, unlock);
    assert!(net.sends_entry(1));
    net.nodes[2].asleep = true;
    net.decide(0, Decision::RemoveDevice { device: Device(2) });
    net.nodes[1].asleep = false;
    assert!(matches!(net.wait(1, gives_up), Answer::Done(_)));
    is_free(&mut net, 0, file);
}

fn lock_of(file: FileId) -> Call {
    let file = FileRef::File(file);
    Call::Lock { file, wait: true }
}

fn some_turns(net: &mut Net) {
    (0..60).for_each(|_| net.turn());
}

/// A member that takes the lock for a change, confirms that, and changes nothing.
#[test]
fn member_that_claims_and_never_passes_costs_a_time_to_live_each_time() {
    let (mut net, file) = with_file(4, 67);
    net.nodes[3].asleep = true;
    for first in [0, 10] {
        net.inject(3, vec![calls::claim(file, None)]);
        net.vouch(3);
        let race = race(&mut net, &[0, 1, 2], 3, file, first);
        assert_eq!(race.lapses, 1, "{race:?}");
    }
    assert_eq!(attributes(&mut net, 1), 18);
}

#[test]
fn member_that_claims_every_file_costs_one_time_to_live() {
    let (mut net, first) = with_file(2, 68);
    let mut files = vec![first];
    for number in 0..40 {
        let make = net.create(&format!("n{number}"), regular(""), false);
        files.push(net.done(0, make));
    }
    net.nodes[1].asleep = true;
    let claims = files.iter().map(|file| calls::claim(*file, None));
    net.inject(1, claims.collect());
    net.vouch(1);
    let changes: Vec<u64> = files
        .iter()
        .map(|file| change(&mut net, 0, *file, 0))
        .collect();
    some_turns(&mut net);
    assert!(net.nodes[0].answers.keys().all(|it| !changes.contains(it)));
    net.tick(31_000);
    for ticket in changes {
        assert!(matches!(net.wait(0, ticket), Answer::Done(_)));
    }
    assert_eq!(net.now_ms / 31_000, 1, "no other time to live");
}

#[test]
fn flood_of_claims_is_one_place_in_the_queue() {
    let (mut net, file) = with_file(3, 69);
    net.done(0, lock_of(file));
    net.rest();
    net.nodes[2].asleep = true;
    for _ in 0..20 {
        let claims = (0..100).map(|_| calls::claim(file, None));
        net.inject(2, claims.collect());
    }
    net.vouch(2);
    let before = net.fetched;
    let waits = change(&mut net, 1, file, 0);
    some_turns(&mut net);
    let unlock = Call::Unlock {
        file: FileRef::File(file),
    };
    // The lock goes to the member that floods, once, and then to who waits behind it.
    net.done(0, unlock);
    some_turns(&mut net);
    net.tick(31_000);
    assert!(matches!(net.wait(1, waits), Answer::Done(_)));
    let race = race(&mut net, &[0, 1], 3, file, 10);
    assert_eq!(race.lapses, 0, "{race:?}");
    let fetched = net.fetched - before;
    assert!(fetched < 100, "{fetched} bodies: each is judged once");
}

#[test]
fn lock_of_a_removed_device_is_taken_over_at_once() {
    let (mut net, file) = with_file(3, 70);
    net.done(2, lock_of(file));
    net.rest();
    net.nodes[2].asleep = true;
    let waits = change(&mut net, 1, file, 0);
    some_turns(&mut net);
    assert!(!net.nodes[1].answers.contains_key(&waits));
    net.decide(0, Decision::RemoveDevice { device: Device(2) });
    let race = race(&mut net, &[0, 1], 3, file, 10);
    assert_eq!(race.lapses, 0, "{race:?}");
    assert!(matches!(net.wait(1, waits), Answer::Done(_)));
}

/// Its own time to live is over early, so it takes locks from devices that use them.
#[test]
fn device_whose_clock_runs_ahead_loses_no_update_of_others() {
    let (mut net, file) = with_file(4, 71);
    let tickets: Vec<(usize, u64)> = (0..4)
        .flat_map(|at| (0..6).map(move |number| (at, number)))
        .map(|(at, number)| (at, change(&mut net, at, file, number)))
        .collect();
    let mut early = 0;
    for _ in 0..600 {
        net.turn();
        early += usize::from(net.hurry(3));
    }
    assert!(early > 0, "it never waited");
    for (at, ticket) in tickets {
        assert!(matches!(net.wait(at, ticket), Answer::Done(_)));
    }
    assert_eq!(attributes(&mut net, 0), 24);
    net.rest();
    net.check();
}

/// The server shows a device late that the lock is its own, or shows the others late what it does with it.
#[test]
fn change_of_a_device_whose_lock_was_taken_over_is_made_again() {
    let (mut net, file) = with_file(3, 72);
    net.done(0, lock_of(file));
    let late = change(&mut net, 1, file, 0);
    some_turns(&mut net);
    let unlock = Call::Unlock {
        file: FileRef::File(file),
    };
    net.issue(0, unlock);
    while !net.sends_entry(1) {
        net.turn();
    }
    net.nodes[1].asleep = true;
    let race = race(&mut net, &[0, 2], 3, file, 10);
    assert_eq!(race.lapses, 1, "{race:?}");
    net.nodes[1].asleep = false;
    assert!(matches!(net.wait(1, late), Answer::Done(_)));
    assert_eq!(attributes(&mut net, 1), 7);
    net.rest();
    assert!(!net.locked(file));
}

/// Whether an entry says that its author waits for its turn.
fn claims(net: &Net, at: u64) -> bool {
    let ops = ops(&net.body(at));
    let mut changes = ops.iter().flat_map(|op| &op.changes);
    changes.any(|change| matches!(change, Change::Claim { .. }))
}

/// The answers of others rest on what a device writes that changes what they change. When it claims its next turn, it attests
/// that.
#[test]
fn device_that_meets_others_attests_before_its_next_turn() {
    let (mut net, file) = with_file(2, 72);
    net.whole = true;
    let mut looked = net.stored_entries().len();
    let mut calls: Vec<u64> = (0..2).map(|at| change(&mut net, at, file, 0)).collect();
    // Where the last entry of each lies that made a call, and is to be attested by the next claim.
    let mut wrote = [None; 2];
    let mut attested = 0;
    for number in 1..200 {
        net.turn();
        let entries = net.stored_entries();
        for (position, entry) in entries.iter().skip(looked) {
            let by = (0..2).find(|at| entry.signed().entry().device == device(*at));
            let by = by.expect("one of the two");
            if claims(&net, *position)
                && let Some(wrote) = wrote[by].take()
            {
                let kept = entry.signed().entry().kept;
                assert!(kept > wrote, "it attests {kept}, and wrote at {wrote}");
                attested += 1;
            }
        }
        looked = entries.len();
        for at in 0..2 {
            if net.nodes[at].answers.contains_key(&calls[at]) {
                let own = |(_, entry): &&(u64, Entry)| entry.signed().entry().device == device(at);
                wrote[at] = entries
                    .iter()
                    .rev()
                    .find(own)
                    .map(|(position, _)| *position);
                calls[at] = change(&mut net, at, file, number);
            }
        }
    }
    assert!(attested > 5, "{attested} claims after a change");
}
