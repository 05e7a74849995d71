//! Chains of entries that are made to exhaust the stack or the time of evaluation.

use std::sync::Arc;

use trust::inode::FileKind;
use trust_shared::change::Change;
use trust_shared::effect::replay::Sources;
use trust_shared::effect::{Replay, State};
use trust_shared::guard::Guard;
use trust_shared::key::Key;
use trust_shared::ops::{Body, Op};

use crate::world::*;

/// Entries of a chain.
const LONG: u64 = 100_000;
/// Entries of chains that are linear if this many are.
const SHORTER: u64 = 20_000;

/// Puts a chain of ops into a log, and asks about a key at its end on a small stack. Gives the number of steps.
fn steps_of(ops: impl Iterator<Item = Op> + Send + 'static, key: Key) -> (u64, Option<String>) {
    let work = move || {
        let store = Store::default();
        let members = members();
        let mut replay = Replay::new(volume());
        for (at, op) in (BEGIN..).zip(ops) {
            let body = Body::new(vec![op]).unwrap();
            replay
                .push(&written(0, at, at), &body.outline(), &members)
                .unwrap();
            store.entries.borrow_mut().insert(at, Arc::new(body));
        }
        let from = Sources {
            members: &members,
            stored: &store,
        };
        let end = replay.size();
        let found = match key {
            Key::Inode(file) => replay
                .inode(end, &file, from)
                .unwrap()
                .map(|inode| crate::devices::text_of(&inode.content)),
            Key::Entry(directory, _) => {
                Some(replay.entries(end, &directory, from).unwrap().to_string())
            }
            _ => None,
        };
        (replay.steps(), found)
    };
    let small = std::thread::Builder::new().stack_size(512 << 10);
    small.spawn(work).unwrap().join().unwrap()
}

#[test]
fn chain_of_guards_on_one_another_needs_no_stack_and_linear_time() {
    // Each op makes a file and changes the one before it, which it guards.
    let volume = volume();
    let hash = move |text: &str| Some(volume.inode_hash(&regular(text)));
    let set = |number, text: &str| Change::Set {
        file: file(EVERYBODY, 0, number),
        inode: Arc::new(regular(text)),
    };
    let ops = (1..=LONG).map(move |number| {
        let before = file(EVERYBODY, 0, number - 1);
        let mut guards = vec![Guard::HashIs {
            file: file(EVERYBODY, 0, number),
            is: None,
        }];
        let mut changes = vec![set(number, "new")];
        if number > 1 {
            let is = hash("new");
            guards.push(Guard::HashIs { file: before, is });
            changes.push(set(number - 1, "old"));
        }
        Op::new(guards, changes)
    });
    let last = Key::Inode(file(EVERYBODY, 0, LONG));
    let (steps, found) = steps_of(ops, last);
    assert_eq!(found.as_deref(), Some("new"));
    assert!(steps < 20 * LONG, "{steps} steps");
}

#[test]
fn chain_of_ops_that_fail_on_one_key_takes_linear_time() {
    let volume = volume();
    let hash = move |text: &str| Some(volume.inode_hash(&regular(text)));
    let one = file(EVERYBODY, 0, 1);
    let ops = (0..SHORTER).map(move |number| {
        let is = if number == 0 { None } else { hash("never") };
        let change = Change::Set {
            file: one,
            inode: Arc::new(regular(if number == 0 { "first" } else { "later" })),
        };
        Op::new(vec![Guard::HashIs { file: one, is }], vec![change])
    });
    let (steps, found) = steps_of(ops, Key::Inode(one));
    assert_eq!(found.as_deref(), Some("first"));
    assert!(steps < 20 * SHORTER, "{steps} steps");
}

#[test]
fn chain_of_rmdirs_of_one_directory_takes_linear_time() {
    let in_question = file(EVERYBODY, 0, 1);
    let at = below(&root(), "d", in_question);
    let store = Store::default();
    let state = State::new(volume());
    let volume = volume();
    let ops = (0..SHORTER).map(move |number| {
        let calls = trust_shared::calls::Calls {
            volume: &volume,
            time: crate::world::TIME,
        };
        if number == 0 {
            let spot = spot(&state, &store, &root(), "d");
            return calls.create(&spot, in_question, directory()).unwrap();
        }
        if number % 2 == 1 {
            let text = format!("f{number}");
            let spot = spot(&state, &store, &at, &text);
            let new = file(EVERYBODY, 0, 1 + number);
            return calls.create(&spot, new, regular("")).unwrap();
        }
        let mut spot = spot(&state, &store, &root(), "d");
        spot.found = Some(target(in_question, FileKind::Directory));
        calls.rmdir(&spot, true).unwrap()
    });
    let (steps, found) = steps_of(ops, Key::Entry(in_question, name("f")));
    assert_eq!(found, Some((SHORTER / 2).to_string()));
    assert!(steps < 20 * SHORTER, "{steps} steps");
}
