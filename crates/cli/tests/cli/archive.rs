//! `bulla publish - REPO`: a tar stream on stdin, through the real binary.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::{Home, Ran};

/// Publishes `archive` from stdin.
fn publish(home: &Home, archive: &[u8]) -> Ran {
    let mut child = home
        .command(&["--json", "publish", "-", "repo", "--key", "key"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let archive = archive.to_vec();
    // The command may end before it has read everything.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&archive)));
    let ran = Ran::of(child.wait_with_output().unwrap());
    writer.join().unwrap();
    ran
}

fn tar(home: &Home, args: &[&str]) -> Vec<u8> {
    let mut command = Command::new("tar");
    let made = command.arg("-C").arg(home.path("tree")).args(args).output();
    made.unwrap().stdout
}

#[test]
fn an_archive_that_is_refused_leaves_no_repository() {
    let home = Home::new();
    home.run(&["key", "new", "--out", "key", "--no-passphrase"])
        .ends(0);
    publish(&home, b"this is no archive").ends(1);
    assert!(!home.path("repo").exists());
}

#[test]
fn an_archive_is_published_as_its_tree() {
    let home = Home::new();
    let volume = home.published();
    let archive = tar(&home, &["--format=pax", "-cf", "-", "."]);
    let ran = publish(&home, &archive).ends(0);
    assert_eq!(
        (ran.field("unchanged"), ran.field("version")),
        (true.into(), 2.into())
    );
    assert_eq!(ran.field("files"), 4);
    let source = home.source(&volume, "repo");
    home.run(&["verify", &source]).ends(0);
    let compressed = tar(&home, &["-czf", "-", "."]);
    let refused = publish(&home, &compressed).ends(1);
    assert!(refused.err.contains("zcat"), "{}", refused.err);
    let cut = publish(&home, &archive[..archive.len() / 2]).ends(1);
    assert!(cut.err.contains("cut off"), "{}", cut.err);
    let upwards = tar(&home, &["-Pcf", "-", "--transform=s,^a$,../a,", "a"]);
    let refused = publish(&home, &upwards).ends(1);
    assert!(refused.err.contains("../a"), "{}", refused.err);
    publish(&home, b"").ends(1);
    assert_eq!(
        home.run(&["--json", "stat", &source])
            .ends(0)
            .field("version"),
        2
    );
}
