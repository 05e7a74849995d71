//! Mounts of shared volumes whose server lies, or is away.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::process::Signal;

use crate::shared_lab::founded;
use crate::shared_mount_lab::{Mount, can_mount, signal, two_devices};
use crate::support::{Home, wait_until};

#[test]
fn mounts_of_a_server_that_forks_turn_read_only_and_keep_what_was_written() {
    if !can_mount() {
        return;
    }
    let (mut orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    fs::write(a.path("plan"), "both know this\n").unwrap();
    assert_eq!(
        fs::read_to_string(b.path("plan")).unwrap(),
        "both know this\n"
    );
    orderer.turn_into_liar(&["repo", "other"]);
    fs::write(a.path("plan"), "the ferry goes at nine\n").unwrap();
    fs::write(b.path("plan"), "the ferry goes at ten\n").unwrap();
    // Each sees its own log, and the commands beside the mounts compare.
    let seen = ada.run(&["share", "compare", "notes"]).ends(0).out;
    fs::write(ben.path("seen"), seen).unwrap();
    let open = fs::File::options()
        .append(true)
        .open(b.path("plan"))
        .unwrap();
    (&open).write_all(b"not yet closed\n").unwrap();
    for name in ["x", "y", "z"] {
        fs::write(b.path(name), "more\n").unwrap();
    }
    ben.run(&["share", "compare", "notes", "seen"]).ends(22);
    wait_until("the read-only mount", || {
        let refused = fs::write(b.path("plan"), "no\n");
        refused.is_err_and(|error| error.raw_os_error() == Some(Errno::ROFS.raw_os_error()))
    });
    let status = b.status();
    let why = status["read_only"]["why"].as_str().unwrap();
    assert!(why.contains("has lied"), "{status}");
    assert!(b.log().contains("read-only"), "{}", b.log());
    // What was verified before stays, with what is dirty over it.
    let shown = fs::read_to_string(b.path("plan")).unwrap();
    assert!(shown.starts_with("the ferry goes at ten\n"), "{shown}");
    drop(open);
    // The other device, too, once it compares.
    let seen = ben.run(&["share", "compare", "notes"]).ends(22).out;
    fs::write(ada.path("seen"), seen).unwrap();
    for name in ["x", "y", "z", "v", "w"] {
        fs::write(a.path(name), "more\n").unwrap();
    }
    ada.run(&["share", "compare", "notes", "seen"]).ends(22);
    wait_until("the other read-only mount", || {
        fs::write(a.path("plan"), "no\n").is_err()
    });
    assert_eq!(
        fs::read_to_string(a.path("plan")).unwrap(),
        "the ferry goes at nine\n"
    );
}

#[test]
fn bytes_that_the_server_does_not_take_are_kept_when_the_mount_ends() {
    if !can_mount() {
        return;
    }
    let (mut orderer, ada) = founded(&[]);
    let a = Mount::of(&ada, &["--deadline", "3s"]);
    fs::write(a.path("f"), "one\n").unwrap();
    let open = fs::File::options().append(true).open(a.path("f")).unwrap();
    orderer.kill();
    let two = format!("two {}\n", "x".repeat(1000));
    (&open).write_all(two.as_bytes()).unwrap();
    let error = open.sync_all().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
    assert_eq!(a.status()["dirty"]["files"], 1);
    drop(open);
    a.end();
    let unsent = kept(&ada);
    assert_eq!(fs::read_to_string(&unsent).unwrap(), format!("one\n{two}"));
    orderer.start();
    let a = Mount::of(&ada, &[]);
    assert_eq!(fs::read_to_string(a.path("f")).unwrap(), "one\n");
}

#[test]
fn bytes_that_were_told_lost_go_beside_what_others_wrote_since() {
    if !can_mount() {
        return;
    }
    let (orderer, ada, ben) = two_devices();
    let a = Mount::of(&ada, &["--deadline", "2s"]);
    fs::write(a.path("f"), "one\n").unwrap();
    let file = fs::File::options().append(true).open(a.path("f")).unwrap();
    signal(orderer.process(), Signal::STOP);
    // More than an inode holds, so that it cannot be in the journal either.
    let two = format!("two {}\n", "x".repeat(1000));
    (&file).write_all(two.as_bytes()).unwrap();
    let lost = file.sync_all().unwrap_err();
    assert_eq!(lost.raw_os_error(), Some(Errno::IO.raw_os_error()));
    // A new process inherits what is open and closes it, which waits for the mount.
    drop(file);
    // The server is back, and the other device comes first.
    let stopped = a.stopped();
    signal(orderer.process(), Signal::CONT);
    fs::write(ben.path("f"), "others\n").unwrap();
    let put = ben.run(&["put", "f", "notes"]);
    drop(stopped);
    put.ends(0);
    let copy = || {
        let names = ben.run(&["ls", "notes"]).ends(0).out;
        let name = names.lines().find(|name| name.contains("(conflict device"));
        name.map(str::to_owned)
    };
    wait_until("the conflict copy", || copy().is_some());
    assert_eq!(ben.run(&["cat", "notes", "f"]).ends(0).out, "others\n");
    let copied = ben.run(&["cat", "notes", &copy().unwrap()]).ends(0).out;
    assert_eq!(copied, format!("one\n{two}"));
    wait_until("nothing dirty", || a.status()["dirty"]["files"] == 0);
    assert_eq!(fs::read_to_string(a.path("f")).unwrap(), "others\n");
}

#[test]
fn each_descriptor_is_told_once_that_bytes_are_lost() {
    if !can_mount() {
        return;
    }
    let (orderer, ada) = founded(&[]);
    let a = Mount::of(&ada, &["--deadline", "2s"]);
    fs::write(a.path("f"), "one\n").unwrap();
    let append = || fs::File::options().append(true).open(a.path("f")).unwrap();
    let (first, second) = (append(), append());
    signal(orderer.process(), Signal::STOP);
    (&first).write_all(b"two\n").unwrap();
    (&second).write_all(b"three\n").unwrap();
    let lost = |file: &fs::File| file.sync_all().unwrap_err().raw_os_error();
    assert_eq!(lost(&first), Some(Errno::IO.raw_os_error()));
    signal(orderer.process(), Signal::CONT);
    // Nobody else wrote: the bytes go where they were to go. No process is begun meanwhile: it would inherit what is open,
    // and be told.
    wait_until("the commit", || first.sync_all().is_ok());
    assert_eq!(lost(&second), Some(Errno::IO.raw_os_error()));
    first.sync_all().unwrap();
    second.sync_all().unwrap();
    assert_eq!(
        fs::read_to_string(a.path("f")).unwrap(),
        "one\ntwo\nthree\n"
    );
}

#[test]
fn mount_says_what_is_wrong() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada) = founded(&[]);
    let a = Mount::of(&ada, &[]);
    fs::create_dir(ada.path("second")).unwrap();
    let told = ada.run(&["--json", "mount", "notes", "second"]).ends(11);
    assert_eq!(told.field("error")["kind"], "locked");
    for flag in [["--at", "3"], ["--refresh", "5s"], ["--owner", "1:2"]] {
        ada.run(&[&["mount", "notes", "second"], &flag[..]].concat())
            .ends(2);
    }
    a.end();
    // The home would be below the mount.
    let state = ada.path(".local");
    ada.run(&["mount", "notes", state.to_str().unwrap()])
        .ends(1);
}

/// The one file that a mount has kept.
fn kept(home: &Home) -> PathBuf {
    let shared = home.path(".local/state/bulla/shared");
    let volume = fs::read_dir(shared).unwrap().next().unwrap().unwrap();
    let mut files = fs::read_dir(volume.path().join("unsent")).unwrap();
    files.next().unwrap().unwrap().path()
}
