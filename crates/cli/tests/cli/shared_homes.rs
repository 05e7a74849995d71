//! A device's home on its machine: joining after a kill, forgetting; and what `put`, `mv` and `extract` do beside content.

use std::io::Write;
use std::process::Stdio;

use crate::shared_lab::{Talk, founded};
use crate::support::{Home, skipped};

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

#[test]
fn join_that_was_killed_goes_on_with_the_same_words_and_key() {
    let (_orderer, ada) = founded(&[]);
    let (inviting, line) = invite(&ada);
    let laptop = Home::new();
    let mut killed = join(&laptop, &line);
    let words = killed.record("words", "words");
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    inviting.end().ends(0);

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
    join(&laptop, &line).end().ends(1);
}

#[test]
fn join_that_was_killed_after_its_admission_needs_no_words() {
    let (_orderer, ada) = founded(&[]);
    let (inviting, line) = invite(&ada);
    let laptop = Home::new();
    let mut killed = join(&laptop, &line);
    let words = killed.record("words", "words");
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    inviting.end().ends(0);
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
    let (inviting, line) = invite(&ada);
    let laptop = Home::new();
    let mut joining = join(&laptop, &line);
    let words = joining.record("words", "words");
    inviting.end().ends(0);
    ada.run(&["share", "device", "add", "notes", &words, "--user", "ada"])
        .ends(0);
    joining.end().ends(0);

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
