//! Locks of programs that devices hold.

use share::files::{Answer, Call, FileRef, Refused};
use trust::inode::Time;
use trust_shared::decision::Decision;
use trust_shared::hold::{Family, Range, Ranges};
use trust_shared::principal::{Device, FileId};

use crate::asks::{regular, text};
use crate::net::Net;

/// How long a lock is believed that nobody renews, with a margin.
const LAPSES_MS: u64 = 31_000;

fn hold(file: FileId, wait: bool) -> Call {
    Call::Hold {
        file: FileRef::File(file),
        family: Family::Flock,
        ranges: Ranges::whole(true),
        wait,
        lapsed: 0,
    }
}

/// Since when the device holds it.
fn held(answer: Answer, file: FileId) -> u64 {
    match answer {
        Answer::Held { file: held, since } if held == file => since,
        other => panic!("{other:?}"),
    }
}

fn release(file: FileId) -> Call {
    Call::Release {
        file: FileRef::File(file),
        family: Family::Flock,
    }
}

fn begun(seed: u64) -> (Net, FileId) {
    let mut net = Net::new(3, seed);
    let made = net.create("f", regular("x"), false);
    let file = net.done(0, made);
    (net, file)
}

const LOCKED: Answer = Answer::Refused(Refused::Locked);

#[test]
fn who_waits_gets_the_lock_when_it_is_given_up() {
    let (mut net, file) = begun(80);
    held(net.call(0, hold(file, false)), file);
    assert_eq!(net.call(1, hold(file, false)), LOCKED);
    let waits = net.issue(1, hold(file, true));
    net.tick(1000);
    net.rest();
    assert!(!net.nodes[1].answers.contains_key(&waits));
    // Others write the file all the same: the lock is advisory.
    let write = net.write("f", "y");
    net.done(2, write);
    net.done(0, release(file));
    held(net.wait(1, waits), file);
    assert_eq!(
        net.call(0, release(file)),
        Answer::Refused(Refused::NotLocked)
    );
}

#[test]
fn lock_that_nobody_renews_is_taken_over() {
    let (mut net, file) = begun(81);
    let since = held(net.call(0, hold(file, false)), file);
    let waits = net.issue(1, hold(file, true));
    net.rest();
    net.tick(LAPSES_MS / 2);
    net.rest();
    // The holder renews it: it holds it since it took it.
    assert_eq!(held(net.call(0, hold(file, false)), file), since);
    net.tick(LAPSES_MS * 2 / 3);
    net.rest();
    assert!(!net.nodes[1].answers.contains_key(&waits));
    net.tick(LAPSES_MS);
    held(net.wait(1, waits), file);
    assert_eq!(
        net.call(0, release(file)),
        Answer::Refused(Refused::NotLocked)
    );
}

#[test]
fn lock_of_a_removed_device_is_taken_over_at_once() {
    let (mut net, file) = begun(82);
    held(net.call(1, hold(file, false)), file);
    assert_eq!(net.call(2, hold(file, false)), LOCKED);
    net.decide(0, Decision::RemoveDevice { device: Device(1) });
    held(net.call(2, hold(file, false)), file);
}

/// Content that is written under a lock.
fn under(file: FileId, since: u64, content: &str) -> Call {
    Call::Under {
        locks: vec![(Family::Flock, since)],
        call: Box::new(Call::SetContent {
            file: FileRef::File(file),
            content: text(content),
            mtime: Time::default(),
            expect: None,
        }),
    }
}

#[test]
fn content_that_was_written_under_a_lost_lock_has_no_effect() {
    let (mut net, file) = begun(83);
    let since = held(net.call(0, hold(file, false)), file);
    assert_eq!(net.call(0, under(file, since, "one")), Answer::Done(file));
    // Another one takes it over, and gives it up again.
    let taken = Call::Hold {
        file: FileRef::File(file),
        family: Family::Flock,
        ranges: Ranges::whole(true),
        wait: false,
        lapsed: since + 1,
    };
    held(net.call(1, taken), file);
    let lost = Answer::Refused(Refused::NotLocked);
    assert_eq!(net.call(0, under(file, since, "two")), lost);
    net.done(1, release(file));
    // Who takes it again writes nothing that rests on what it read before.
    let again = held(net.call(0, hold(file, false)), file);
    assert!(again > since);
    assert_eq!(net.call(0, under(file, since, "two")), lost);
    assert_eq!(net.call(0, under(file, again, "three")), Answer::Done(file));
}

#[test]
fn lock_is_lost_while_the_content_is_on_its_way() {
    let (mut net, file) = begun(84);
    let since = held(net.call(0, hold(file, false)), file);
    net.rest();
    let taken = Call::Hold {
        file: FileRef::File(file),
        family: Family::Flock,
        ranges: Ranges::whole(true),
        wait: false,
        lapsed: since + 1,
    };
    // Its entry waits while the other one takes the lock over.
    let writes = net.issue(0, under(file, since, "two"));
    assert!(net.sends_entry(0));
    net.nodes[0].asleep = true;
    held(net.call(1, taken), file);
    net.nodes[0].asleep = false;
    let lost = Answer::Refused(Refused::NotLocked);
    assert_eq!(net.wait(0, writes), lost);
    assert_eq!(net.call(0, under(file, since, "three")), lost);
}

#[test]
fn hold_whose_program_is_gone_waits_no_more() {
    for given_up in [false, true] {
        let (mut net, file) = begun(85);
        let whole = |wait| hold(file, wait);
        // Both have what the call is built of.
        for at in 0..2 {
            let look = net.lookup("f", false);
            net.call(at, look);
        }
        net.rest();
        // Both are sent, and one is too late. Its program is gone then.
        let first = net.issue(0, whole(false));
        let second = net.issue(1, whole(true));
        assert!(net.sends_entry(0) && net.sends_entry(1));
        if given_up {
            net.nodes[1].engine.cancel(second);
        }
        net.rest();
        let _ = net.wait(0, first);
        let release = release(file);
        if net.call(0, release.clone()) != Answer::Done(file) {
            // The other one was first.
            assert_eq!(net.call(1, release.clone()), Answer::Done(file));
        }
        net.rest();
        let is_held = net.call(1, release) == Answer::Done(file);
        assert_eq!(is_held, !given_up);
    }
}

#[test]
fn more_locks_run_out_than_one_op_takes_over() {
    let mut net = Net::new(20, 86);
    let made = net.create("f", regular("x"), false);
    let file = net.done(0, made);
    for at in 0..19 {
        let byte = |at: u64| Range {
            start: at,
            end: at + 1,
            exclusive: true,
        };
        let hold = Call::Hold {
            file: FileRef::File(file),
            family: Family::Flock,
            ranges: Ranges::new(vec![byte(at as u64)]).unwrap(),
            wait: false,
            lapsed: 0,
        };
        held(net.call(at, hold), file);
    }
    let waits = net.issue(19, hold(file, true));
    net.rest();
    net.tick(LAPSES_MS);
    held(net.wait(19, waits), file);
    assert_eq!(
        net.call(3, release(file)),
        Answer::Refused(Refused::NotLocked)
    );
}
