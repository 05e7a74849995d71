//! Times of files and directories: nobody waits for anybody because of them.

use share::files::{Answer, Attributes, Call, FileRef};
use trust::inode::{Inode, Time};

use crate::asks::{directory, regular};
use crate::conflicts::at_once;
use crate::net::Net;

const OLD: Time = Time {
    seconds: -7,
    nanos: 11,
};

fn utimes(net: &Net, path: &str, mtime: Time) -> Call {
    Call::SetAttributes {
        file: FileRef::Place(net.at(path)),
        attributes: Attributes {
            mtime: Some(mtime),
            ..Attributes::default()
        },
        expect: None,
    }
}

/// The inode of a file as a device sees it.
fn shown(net: &mut Net, at: usize, path: &str) -> Inode {
    Inode::clone(&net.found(at, path).inode)
}

#[test]
fn devices_that_make_files_in_one_directory_need_one_entry_each() {
    const DEVICES: usize = 16;
    let mut net = Net::new(DEVICES, 70);
    let made = net.create("d", directory(), false);
    net.done(0, made);
    let calls: Vec<(usize, Call)> = (0..DEVICES)
        .map(|at| (at, net.create(&format!("d/{at}"), regular("x"), false)))
        .collect();
    net.rest();
    let before = net.entries;
    let answers = at_once(&mut net, calls);
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Answer::Done(_)))
    );
    assert_eq!(net.entries - before, DEVICES as u64);
    let times: Vec<Inode> = (0..DEVICES).map(|at| shown(&mut net, at, "d")).collect();
    assert!(times.iter().all(|inode| inode == &times[0]), "{times:?}");
    assert!(times[0].mtime.seconds >= 0 && times[0].ctime == Some(times[0].mtime));
}

#[test]
fn files_that_one_device_makes_in_one_directory_go_into_one_entry() {
    let mut net = Net::new(1, 71);
    let calls = (0..20)
        .map(|number| net.create(&format!("f{number}"), regular("x"), false))
        .collect();
    net.rest();
    let before = net.entries;
    for ticket in net.issue_all(0, calls) {
        assert!(matches!(net.wait(0, ticket), Answer::Done(_)));
    }
    assert_eq!(net.entries - before, 1);
}

#[test]
fn time_that_a_program_sets_stays_until_a_name_changes() {
    let mut net = Net::new(2, 72);
    let made = net.create("d", directory(), false);
    net.done(0, made);
    net.tick(1000);
    let set = utimes(&net, "d", OLD);
    net.done(1, set);
    let after = shown(&mut net, 0, "d");
    assert_eq!(after.mtime, OLD);
    assert!(after.ctime > Some(OLD), "{after:?}");
    // A change of the mode is none of the time.
    net.tick(1000);
    let chmod = net.chmod("d", 0o700);
    net.done(0, chmod);
    let changed = shown(&mut net, 1, "d");
    assert_eq!((changed.mtime, changed.mode), (OLD, 0o700));
    assert!(changed.ctime > after.ctime, "{changed:?}");
    for (number, change) in [
        net.create("d/f", regular("x"), false),
        net.rename("d/f", "d/g", share::files::Over::Refuse),
        net.link("d/g", "d/h"),
        net.unlink("d/g"),
        net.create("d/e", directory(), false),
        net.rmdir("d/e"),
    ]
    .into_iter()
    .enumerate()
    {
        let set = utimes(&net, "d", OLD);
        net.done(0, set);
        assert_eq!(shown(&mut net, 1, "d").mtime, OLD);
        net.tick(1000);
        net.done(1, change);
        let now = shown(&mut net, 0, "d");
        assert!(now.mtime > OLD, "{number}: {now:?}");
        assert_eq!(now.ctime, Some(now.mtime), "{number}");
    }
}

#[test]
fn mode_and_name_that_change_at_a_time_are_both_there() {
    let mut net = Net::new(2, 73);
    let made = net.create("d", directory(), false);
    net.done(0, made);
    let first = shown(&mut net, 0, "d");
    net.tick(1000);
    let (chmod, create) = (
        net.chmod("d", 0o711),
        net.create("d/f", regular("x"), false),
    );
    net.rest();
    let before = net.entries;
    at_once(&mut net, vec![(0, chmod), (1, create)]);
    assert_eq!(net.entries - before, 2, "one of them was sent again");
    let last = shown(&mut net, 0, "d");
    assert_eq!(last.mode, 0o711);
    assert!(
        last.mtime > first.mtime && last.ctime > first.ctime,
        "{last:?}"
    );
    assert_eq!(last, shown(&mut net, 1, "d"));
}

#[test]
fn time_of_change_grows_although_clocks_do_not() {
    let mut net = Net::new(2, 74);
    let made = net.create("f", regular("x"), false);
    net.done(0, made);
    let mut before = shown(&mut net, 0, "f").ctime;
    assert!(before.is_some());
    net.now_ms = 0;
    for (at, change) in [
        (1, net.write("f", "y")),
        (0, net.chmod("f", 0o600)),
        (1, utimes(&net, "f", OLD)),
        (0, net.link("f", "g")),
        (1, net.unlink("g")),
    ] {
        net.done(at, change);
        let after = shown(&mut net, at, "f").ctime;
        assert!(after > before, "{after:?}, {before:?}");
        before = after;
    }
    assert_eq!(shown(&mut net, 0, "f").mtime, OLD);
}
