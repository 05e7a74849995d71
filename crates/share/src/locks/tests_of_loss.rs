//! Locks that are lost: who is told, and what is not lost with them.

use trust_shared::hold::{END, Family, Range};

use super::tests::{All, begun, owned, range, writes};
use super::{Ask, Came, Key, Owned, Request};

/// A program has a lock through an open file.
fn has(locks: &mut All, key: Key, (owner, handle): (u64, u64), range: Range) {
    let lock = Owned {
        handle,
        ..owned(owner, range)
    };
    locks.lock(key, Request { lock, waits: false }, owner);
    locks.next(key);
    locks.came(key, Came::Held(7));
}

/// Another device has taken over what this one held.
fn is_robbed(locks: &mut All, key: Key) {
    locks.renew(key);
    locks.next(key);
    locks.came(key, Came::Locked);
    locks.next(key);
    locks.came(key, Came::Nothing);
}

#[test]
fn only_the_owner_of_a_lost_lock_takes_the_mark_off_its_open_file() {
    let whole = range(0, END, true);
    // Two ranges, of which one is given up.
    let (mut locks, key) = begun(Family::Fcntl);
    has(&mut locks, key, (1, 9), range(0, 5, true));
    has(&mut locks, key, (1, 9), range(10, 15, true));
    is_robbed(&mut locks, key);
    locks.unlock(key, 1, &range(0, 10, true));
    assert!(locks.is_lost(key.0, 9));
    // A child closes the descriptor that it has inherited, another process unlocks.
    locks.flushed(key.0, 2);
    locks.unlock(key, 2, &whole);
    assert!(locks.is_lost(key.0, 9) && !locks.has(key, 2, &whole));
    // The process has locked some of it again, through another descriptor, and that is lost, too.
    has(&mut locks, key, (1, 8), range(10, 12, true));
    is_robbed(&mut locks, key);
    assert!(locks.is_lost(key.0, 8) && locks.is_lost(key.0, 9));
    assert!(locks.has(key, 1, &range(14, 15, true)));
    locks.closed(key, 9);
    assert!(locks.is_lost(key.0, 8) && !locks.is_lost(key.0, 9));
    locks.flushed(key.0, 1);
    assert!(!locks.is_lost(key.0, 8) && !locks.has_any(key.0, 8));
    // A lock of an open file: a process closes one of its descriptors.
    let (mut locks, key) = begun(Family::Fcntl);
    has(&mut locks, key, (100, 9), whole);
    is_robbed(&mut locks, key);
    locks.flushed(key.0, 1);
    assert!(locks.is_lost(key.0, 9));
    locks.unlock(key, 100, &whole);
    assert!(!locks.is_lost(key.0, 9));
}

#[test]
fn lock_that_is_taken_anew_is_not_lost_with_what_was_written_under_the_one_before() {
    let whole = range(0, END, true);
    let (mut locks, key) = begun(Family::Flock);
    has(&mut locks, key, (1, 1), whole);
    writes(&mut locks, key, 1);
    assert!(!locks.is_under_older(key.0));
    is_robbed(&mut locks, key);
    assert!(locks.is_under_older(key.0));
    let lock = owned(2, whole);
    locks.lock(key, Request { lock, waits: false }, 2);
    locks.next(key);
    locks.came(key, Came::Held(9));
    assert!(locks.is_under_older(key.0));
    writes(&mut locks, key, 2);
    // The log refuses a commit with both. The newer lock is renewed, and is still there.
    locks.lost(key.0);
    assert!(!locks.is_lost(key.0, 2));
    assert!(matches!(
        locks.next(key),
        Some(Some(Ask::Hold { ticket: None, .. }))
    ));
    locks.came(key, Came::Held(9));
    assert!(!locks.is_lost(key.0, 2) && locks.has(key, 2, &whole));
    // If it is the only one, it is lost.
    locks.clean(key.0);
    writes(&mut locks, key, 2);
    locks.lost(key.0);
    assert!(locks.is_lost(key.0, 2));
}

#[test]
fn lock_that_is_lost_while_its_program_writes_is_still_the_guard_of_what_it_writes() {
    let whole = range(0, END, true);
    let (mut locks, key) = begun(Family::Flock);
    has(&mut locks, key, (1, 1), whole);
    let guards = locks.guards(key.0, 1).unwrap();
    assert_eq!(guards, [(Family::Flock, 7)]);
    is_robbed(&mut locks, key);
    locks.wrote(key.0, guards);
    assert_eq!(locks.under(key.0), [(Family::Flock, 7)]);
    assert_eq!(locks.guards(key.0, 1), None);
    assert_eq!(locks.guards(key.0, 2), Some(Vec::new()));
}

#[test]
fn program_that_does_not_take_a_lock_has_what_it_had_before() {
    let (mut locks, key) = begun(Family::Fcntl);
    let (reads, more) = (range(0, 10, false), range(5, 15, true));
    has(&mut locks, key, (1, 1), reads);
    let lock = owned(1, more);
    locks.lock(key, Request { lock, waits: false }, 1);
    locks.next(key);
    let answers = locks.came(key, Came::Held(7));
    let [(1, Ok(granted))] = &answers[..] else {
        panic!("{answers:?}");
    };
    let had = granted.had.clone();
    assert_eq!(had, [owned(1, range(5, 10, false))]);
    locks.give_back(key, (1, &more), &had);
    assert_eq!(locks.rows()[0].locks, [owned(1, reads)]);
    assert!(!locks.is_lost(key.0, 1));
    // The device has given up what was exclusive.
    let (mut locks, key) = begun(Family::Fcntl);
    has(&mut locks, key, (1, 1), range(0, 10, true));
    let lock = owned(1, range(0, 10, false));
    let (_, answers) = locks.lock(key, Request { lock, waits: false }, 1);
    assert!(matches!(&answers[..], [(1, Ok(_))]));
    assert!(matches!(locks.next(key), Some(Some(Ask::Hold { .. }))));
    locks.give_back(key, (1, &lock.range), &[owned(1, range(0, 10, true))]);
    assert!(locks.is_lost(key.0, 1));
}
