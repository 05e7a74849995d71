//! Locks of programs that devices hold.

use share::files::{Answer, Call, FileRef, Refused};
use trust_shared::decision::Decision;
use trust_shared::hold::{Family, Ranges};
use trust_shared::principal::{Device, FileId};

use crate::asks::regular;
use crate::net::Net;

/// How long a lock is believed that nobody renews, with a margin.
const LAPSES_MS: u64 = 31_000;

fn hold(file: FileId, wait: bool) -> Call {
    Call::Hold {
        file: FileRef::File(file),
        family: Family::Flock,
        ranges: Ranges::whole(true),
        wait,
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
    assert_eq!(net.done(0, hold(file, false)), file);
    assert_eq!(net.call(1, hold(file, false)), LOCKED);
    let waits = net.issue(1, hold(file, true));
    net.tick(1000);
    net.rest();
    assert!(!net.nodes[1].answers.contains_key(&waits));
    // Others write the file all the same: the lock is advisory.
    let write = net.write("f", "y");
    net.done(2, write);
    net.done(0, release(file));
    assert_eq!(net.wait(1, waits), Answer::Done(file));
    assert_eq!(
        net.call(0, release(file)),
        Answer::Refused(Refused::NotLocked)
    );
}

#[test]
fn lock_that_nobody_renews_is_taken_over() {
    let (mut net, file) = begun(81);
    net.done(0, hold(file, false));
    let waits = net.issue(1, hold(file, true));
    net.rest();
    net.tick(LAPSES_MS / 2);
    net.rest();
    // The holder renews it.
    net.done(0, hold(file, false));
    net.tick(LAPSES_MS * 2 / 3);
    net.rest();
    assert!(!net.nodes[1].answers.contains_key(&waits));
    net.tick(LAPSES_MS);
    assert_eq!(net.wait(1, waits), Answer::Done(file));
    assert_eq!(
        net.call(0, release(file)),
        Answer::Refused(Refused::NotLocked)
    );
}

#[test]
fn lock_of_a_removed_device_is_taken_over_at_once() {
    let (mut net, file) = begun(82);
    net.done(1, hold(file, false));
    assert_eq!(net.call(2, hold(file, false)), LOCKED);
    net.decide(0, Decision::RemoveDevice { device: Device(1) });
    assert_eq!(net.call(2, hold(file, false)), Answer::Done(file));
}
