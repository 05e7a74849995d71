//! Locks that are lost or given up: who is told, and what is not lost with them.

use trust_shared::hold::{END, Family, Range};

use super::device::MAX_FILES;
use super::file::MAX_HANDED;
use super::tests::{All, begun, owned, range, writes};
use super::{Ask, Came, Denied, Key, Owned, Request};

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

#[test]
fn files_are_forgotten_with_their_last_lock_and_are_not_more_than_the_most() {
    let (mut locks, key) = begun(Family::Fcntl);
    has(&mut locks, key, (1, 1), range(0, 10, true));
    is_robbed(&mut locks, key);
    assert_eq!(locks.next(key), None);
    assert_eq!(locks.rows().len(), 1);
    locks.flushed(key.0, 1);
    assert!(!locks.is_to_be_driven(key));
    assert_eq!(locks.rows(), []);
    let lock = owned(1, range(0, 10, true));
    let request = Request { lock, waits: false };
    let of = |counter| {
        let (mut file, family) = key;
        file.number.counter = counter;
        (file, family)
    };
    for counter in 0..MAX_FILES as u64 {
        assert_eq!(locks.lock(of(counter), request, counter).1, []);
    }
    let denied = Err(Denied::TooMany);
    let one_more = of(MAX_FILES as u64);
    assert_eq!(locks.lock(one_more, request, 1).1, [(1, denied)]);
    assert_eq!(locks.lock(of(0), request, 2).1, []);
}

#[test]
fn device_that_has_heard_nothing_for_long_gives_nothing_before_it_has_renewed() {
    for since in [7, 9] {
        let (mut locks, key) = begun(Family::Fcntl);
        has(&mut locks, key, (1, 1), range(0, 10, false));
        locks.doubt(key);
        let lock = owned(2, range(0, 10, false));
        assert_eq!(locks.lock(key, Request { lock, waits: false }, 2).1, []);
        assert!(matches!(
            locks.next(key),
            Some(Some(Ask::Hold { ticket: None, .. }))
        ));
        let answers = locks.came(key, Came::Held(since));
        assert!(matches!(&answers[..], [(2, Ok(_))]), "{answers:?}");
        assert_eq!(locks.is_lost(key.0, 1), since == 9);
    }
}

#[test]
fn programs_that_give_a_lock_to_each_other_leave_other_devices_a_turn() {
    let whole = range(0, END, true);
    let (mut locks, key) = begun(Family::Flock);
    has(&mut locks, key, (1, 1), whole);
    let mut turns = 0;
    while turns < 100 {
        let (owner, next) = (1 + turns % 2, 2 - turns % 2);
        let lock = owned(next, whole);
        let request = Request { lock, waits: true };
        assert_eq!(locks.lock(key, request, next).1, []);
        // A renewal gives nothing up.
        locks.renew(key);
        locks.next(key);
        locks.came(key, Came::Held(7));
        if locks.unlock(key, owner, &whole).is_empty() {
            break;
        }
        turns += 1;
    }
    assert_eq!(turns, u64::from(MAX_HANDED) - 1);
    assert_eq!(locks.next(key), Some(Some(Ask::Release)));
    locks.came(key, Came::Nothing);
    // Now it is asked for as by any device.
    assert!(matches!(
        locks.next(key),
        Some(Some(Ask::Hold {
            ticket: Some(_),
            ..
        }))
    ));
    assert_eq!(locks.came(key, Came::Held(8)).len(), 1);
}
