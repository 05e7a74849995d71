//! A device's home on its machine: joining after a kill, forgetting; and what `put`, `mv` and `extract` do beside content.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::shared_lab::{Talk, founded, joined};
use crate::support::{Home, copy, skipped, wait_until};

/// Begins to join with a line.
fn join(home: &Home, line: &str) -> Talk {
    let mut command = home.command(&["--json", "share", "join", "-", "--wait", "120s"]);
    let mut joining = Talk::begin(command.stdin(Stdio::piped()));
    let mut stdin = joining.child.stdin.take().unwrap();
    stdin.write_all(line.as_bytes()).unwrap();
    drop(stdin);
    joining
}

/// An invitation of ada's volume.
fn invite(ada: &Home) -> (Talk, String) {
    let invite = ["--json", "share", "invite", "notes", "--wait", "120s"];
    let mut inviting = Talk::begin(&mut ada.command(&invite));
    let line = inviting.record("invitation", "line");
    (inviting, line)
}

/// An invitation of ada's volume, and a laptop that is killed when it has shown its words.
fn killed_join(ada: &Home) -> (Home, String, String) {
    let (inviting, line) = invite(ada);
    let laptop = Home::new();
    let mut killed = join(&laptop, &line);
    let words = killed.record("words", "words");
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    inviting.end().ends(0);
    (laptop, line, words)
}

#[test]
fn join_that_was_killed_goes_on_with_the_same_words_and_key() {
    let (_orderer, ada) = founded(&[]);
    let (laptop, line, words) = killed_join(&ada);

    let mut again = join(&laptop, &line);
    assert_eq!(again.record("words", "words"), words);
    ada.run(&["share", "device", "add", "notes", &words, "--user", "ada"])
        .ends(0);
    again.end().ends(0);
    laptop.run(&["ls", "notes"]).ends(0);
    let devices = ada.run(&["--json", "share", "device", "list", "notes"]);
    assert_eq!(devices.ends(0).records("device").len(), 2);
    // Nothing is left of the request, and a third time says that this machine has the volume.
    let (_, line) = invite(&ada);
    let there = join(&laptop, &line).end().ends(1);
    assert!(there.err.contains("share forget"), "{}", there.err);
}

#[test]
fn join_that_was_killed_after_its_admission_needs_no_words() {
    let (_orderer, ada) = founded(&[]);
    let (laptop, line, words) = killed_join(&ada);
    ada.run(&["share", "device", "add", "notes", &words, "--user", "ada"])
        .ends(0);
    join(&laptop, &line).end().ends(0);
    laptop.run(&["ls", "notes"]).ends(0);
}

#[test]
fn forgotten_volume_is_gone_from_this_machine_alone() {
    let (orderer, ada) = founded(&[]);
    std::fs::write(ada.path("a"), b"hello\n").unwrap();
    ada.run(&["put", "a", "notes"]).ends(0);
    let laptop = joined(&ada, "ada");
    let asked = laptop.run(&["share", "forget", "notes"]).ends(2);
    assert!(asked.err.contains("nothing was removed"), "{}", asked.err);
    laptop.run(&["cat", "notes", "a"]).ends(0);
    let forgotten = laptop
        .run(&["--json", "--yes", "share", "forget", "notes"])
        .ends(0);
    assert_eq!(forgotten.field("name"), "notes");
    assert_eq!(forgotten.field("unsent"), 0);
    let gone = laptop.run(&["cat", "notes", "a"]).ends(2);
    assert!(
        gone.err.contains("no shared volume of this name"),
        "{}",
        gone.err
    );
    laptop.run(&["--yes", "share", "forget", "notes"]).ends(10);
    let left = std::fs::read_dir(shared_directory(&laptop))
        .unwrap()
        .count();
    assert_eq!(left, 0);
    assert_eq!(ada.run(&["cat", "notes", "a"]).ends(0).out, "hello\n");
    drop(orderer);
}

/// Where the homes of a machine are.
fn shared_directory(home: &Home) -> std::path::PathBuf {
    home.path(".local/state/bulla/shared")
}

/// Whether the file system of the tests has `user.*` attributes.
fn set_attribute(home: &Home, file: &str, name: &str, value: &str) -> bool {
    let path = home.path(file);
    let file = std::fs::File::open(path).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::fsetxattr(&file, name, value.as_bytes(), flags).is_ok()
}

#[test]
fn put_takes_attributes_and_extract_sets_them() {
    let (_orderer, ada) = founded(&[]);
    std::fs::create_dir(ada.path("tree")).unwrap();
    std::fs::write(ada.path("tree/a"), b"hello\n").unwrap();
    let long = "x".repeat(3000);
    if !set_attribute(&ada, "tree/a", "user.short", "1") {
        return skipped(
            "attributes of put",
            "this file system has no user.* attributes",
        );
    }
    assert!(set_attribute(&ada, "tree/a", "user.long", &long));
    assert!(set_attribute(&ada, "tree", "user.of", "directory"));
    ada.run(&["put", "-r", "tree", "notes"]).ends(0);
    let told = ada.run(&["stat", "notes", "tree/a"]).ends(0).out;
    assert!(
        told.contains("user.short = 1\n") && told.contains(&long),
        "{told}"
    );
    ada.run(&["extract", "notes", "copy"]).ends(0);
    for (file, name, value) in [
        ("copy/tree/a", "user.short", "1"),
        ("copy/tree/a", "user.long", &long),
        ("copy/tree", "user.of", "directory"),
    ] {
        let mut read = vec![0; 4096];
        let len = rustix::fs::getxattr(ada.path(file), name, &mut read).unwrap();
        assert_eq!(&read[..len], value.as_bytes(), "{file}");
    }
}

#[test]
fn put_reads_stdin_and_mv_takes_several_files() {
    let (_orderer, ada) = founded(&[]);
    let put = |args: &[&str]| {
        let mut child = ada
            .command(&[&["put", "-", "notes"], args].concat())
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // A command that refuses its arguments does not read.
        let _ = child.stdin.take().unwrap().write_all(b"from a pipe\n");
        child.wait().unwrap().code().unwrap()
    };
    assert_eq!((put(&["one"]), put(&["two"]), put(&[])), (0, 0, 2));
    assert_eq!(
        ada.run(&["cat", "notes", "one"]).ends(0).out,
        "from a pipe\n"
    );
    ada.run(&["mv", "notes", "one", "two", "nowhere"]).ends(10);
    ada.run(&["mv", "notes", "one", "nowhere/"]).ends(10);
    ada.run(&["mkdir", "notes", "d"]).ends(0);
    ada.run(&["mv", "notes", "one", "two", "d"]).ends(0);
    assert_eq!(
        ada.run(&["ls", "-R", "notes"]).ends(0).out,
        "d\nd/one\nd/two\n"
    );
}

/// Waits until a file of the volume is there, for this device.
fn wait_for(home: &Home, path: &str) {
    wait_until("the first file is in the volume", || {
        home.run(&["stat", "notes", path]).code == 0
    });
}

#[test]
fn directory_that_is_swapped_for_a_link_does_not_lead_put_elsewhere() {
    let (_orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    ada.run(&["mkdir", "notes", "d", "private"]).ends(0);
    std::fs::write(ada.path("first"), b"1\n").unwrap();
    std::fs::write(ada.path("last"), b"2\n").unwrap();
    // Long enough for a signal to come between the two others.
    let middle = std::fs::File::create(ada.path("middle")).unwrap();
    middle.set_len(1 << 30).unwrap();
    let put = ["put", "first", "middle", "last", "notes", "d"];
    let mut putting = ada.command(&put).spawn().unwrap();
    wait_for(&laptop, "d/first");
    let signal = |name: &str| {
        let pid = putting.id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status().unwrap();
        assert!(sent.success());
    };
    signal("-STOP");
    laptop.run(&["mv", "notes", "d", "moved"]).ends(0);
    std::fs::create_dir(laptop.path("swap")).unwrap();
    std::os::unix::fs::symlink("private", laptop.path("swap/d")).unwrap();
    laptop.run(&["put", "-r", "swap", "notes"]).ends(0);
    laptop.run(&["mv", "notes", "swap/d", "d"]).ends(0);
    signal("-CONT");
    assert!(putting.wait().unwrap().success());
    assert_eq!(
        laptop.run(&["ls", "-R", "notes"]).ends(0).out,
        "d\nmoved\nmoved/first\nmoved/last\nmoved/middle\nprivate\nswap\n"
    );
}

#[test]
fn damaged_home_is_named_and_in_the_way_of_no_other() {
    let (_orderer, ada) = founded(&[]);
    let homes = shared_directory(&ada);
    let whole = std::fs::read_dir(&homes).unwrap().next().unwrap();
    let whole = whole.unwrap().path();
    // Another volume's home, of which nothing is left but its directory.
    let other = trust::volume_id::VolumeId::from_bytes([7; 32]).to_string();
    std::fs::create_dir(homes.join(&other)).unwrap();
    let listed = ada.run(&["ls", "notes"]).ends(0);
    assert!(listed.err.contains(&other), "{}", listed.err);
    let told = ada.run(&["ls", &other]).ends(1);
    assert!(told.err.contains("about"), "{}", told.err);
    assert!(
        told.err.contains("hint: the state directory"),
        "{}",
        told.err
    );
    std::fs::write(whole.join("device.key"), "").unwrap();
    let told = ada.run(&["ls", "notes"]).ends(1);
    assert!(told.err.contains("device.key"), "{}", told.err);
    assert!(
        told.err.contains("hint: the state directory"),
        "{}",
        told.err
    );
}

#[test]
fn invitation_that_another_device_has_used_says_so() {
    let (_orderer, ada) = founded(&[]);
    let (_laptop, line, _) = killed_join(&ada);
    let late = join(&Home::new(), &line).end().ends(23);
    assert_eq!(late.field("error")["kind"], "refused");
    assert!(
        late.err.contains("has used this invitation"),
        "{}",
        late.err
    );
}

/// A copy of a device's files that writes while the device does not: the server orders what both sign, in turns.
#[test]
fn device_is_told_of_entries_that_a_copy_of_it_made() {
    const TOLD: &str = "of this device that it does not remember";
    let (_orderer, ada) = founded(&[]);
    let write = |home: &Home, name: &str| {
        let ran = home.run(&["mkdir", "notes", name]).ends(0);
        ran.err.contains(TOLD)
    };
    assert!(!write(&ada, "mine"));
    let thief = Home::new();
    copy(&ada.path(".local"), &thief.path(".local"));
    // Its own entries are none to warn of.
    for name in ["more", "still"] {
        assert!(!write(&ada, name), "{name}");
    }
    // The copy does not remember these two.
    assert!(write(&thief, "theirs"));
    assert!(!write(&thief, "again"));

    let listed = ada.run(&["ls", "notes"]).ends(0);
    assert!(
        listed.err.contains("the log has 2 entries"),
        "{}",
        listed.err
    );
    assert!(
        listed.err.contains("share device remove notes"),
        "{}",
        listed.err
    );
    // Once is enough for a command; the status says it for good.
    assert!(!ada.run(&["ls", "notes"]).ends(0).err.contains(TOLD));
    let status = ada.run(&["share", "status", "notes"]).ends(0);
    assert!(
        status.out.contains("unknown   2 entries of this device"),
        "{}",
        status.out
    );
    let status = ada.run(&["--json", "share", "status", "notes"]).ends(0);
    assert_eq!(status.field("forgotten"), 2);
    assert!(!write(&ada, "last"));
}
