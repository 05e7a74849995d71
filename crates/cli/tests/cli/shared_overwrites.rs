//! What `put` replaces: files that another device has changed, with and without `--expect`.

use std::fs;
use std::process::Stdio;

use crate::shared_lab::{Orderer, founded, joined};
use crate::support::{Home, Ran};

/// The devices of ada and ben.
fn two() -> (Orderer, Home, Home) {
    let (orderer, ada) = founded(&[]);
    ada.run(&["share", "user", "add", "notes", "ben"]).ends(0);
    let ben = joined(&ada, "ben");
    (orderer, ada, ben)
}

/// Puts a file with this content.
fn put(home: &Home, name: &str, content: &str, flags: &[&str]) -> Ran {
    fs::write(home.path(name), content).unwrap();
    home.run(&[&["put", name, "notes"], flags].concat())
}

fn read(home: &Home, name: &str) -> String {
    home.run(&["cat", "notes", name]).ends(0).out
}

/// The newest entry.
fn newest(home: &Home) -> String {
    let ran = home.run(&["--json", "log", "notes", "--max", "1"]).ends(0);
    ran.records("entry")[0]["entry"].to_string()
}

#[test]
fn put_tells_whose_file_it_has_replaced() {
    let (_orderer, ada, ben) = two();
    assert_eq!(put(&ada, "plan", "by ada\n", &[]).ends(0).err, "");
    assert_eq!(put(&ada, "plan", "by ada again\n", &[]).ends(0).err, "");
    let told = put(&ben, "plan", "by ben\n", &[]).ends(0);
    assert!(
        told.err.contains("plan: ada (device 0) changed it"),
        "{}",
        told.err
    );
    assert!(!told.err.contains("warning"), "{}", told.err);
    let entry = newest(&ada);
    let told = put(&ada, "plan", "by ada\n", &[]).ends(0);
    let words = "Replaced what another device had written: plan: ben (device 1) changed it";
    assert!(told.err.contains(words), "{}", told.err);
    assert!(
        told.err.contains(&format!("(entry {entry}).")),
        "{}",
        told.err
    );
    let was = ada.run(&["cat", "notes", "plan", "--at", &entry]).ends(0);
    assert_eq!(was.out, "by ben\n");
    // Its own content now.
    assert_eq!(put(&ada, "plan", "by ada again\n", &[]).ends(0).err, "");

    put(&ben, "plan", "by ben\n", &[]).ends(0);
    assert_eq!(put(&ada, "plan", "quietly\n", &["-q"]).ends(0).err, "");
    put(&ben, "plan", "by ben\n", &[]).ends(0);
    let entry = newest(&ben);
    let told = put(&ada, "plan", "by ada\n", &["--json"]).ends(0);
    assert_eq!((told.err.as_str(), told.field("replaced")), ("", 1.into()));
    let record = &told.records("replaced")[0];
    assert_eq!(
        (&record["path"], &record["user"]),
        (&"plan".into(), &"ben".into())
    );
    assert_eq!(
        (&record["device"], record["entry"].to_string()),
        (&1.into(), entry)
    );
    assert!(record["not_after"].is_string() || record["not_after"].is_null());

    // A name that leads nowhere is replaced by nobody.
    ben.run(&["rm", "notes", "plan"]).ends(0);
    assert_eq!(put(&ada, "plan", "new\n", &[]).ends(0).err, "");
    // Another device of the same user is another device.
    let laptop = joined(&ada, "ada");
    let told = put(&laptop, "plan", "on the laptop\n", &[]).ends(0);
    assert!(told.err.contains("ada (device 0)"), "{}", told.err);
}

#[test]
fn put_of_a_tree_counts_what_it_has_replaced_and_names_the_first() {
    let (_orderer, ada, ben) = two();
    for home in [&ada, &ben] {
        fs::create_dir(home.path("tree")).unwrap();
        for n in 0..12 {
            let content = format!("{n} of {}", home.path("").display());
            fs::write(home.path("tree").join(format!("f{n:02}")), content).unwrap();
        }
        fs::hard_link(home.path("tree/f00"), home.path("tree/g")).unwrap();
    }
    assert_eq!(ben.run(&["put", "-r", "tree", "notes"]).ends(0).err, "");
    let told = ada.run(&["put", "-r", "tree", "notes"]).ends(0);
    assert!(
        told.err.contains("Replaced 12 files that other"),
        "{}",
        told.err
    );
    assert!(told.err.contains("; and 9 more"), "{}", told.err);
    assert_eq!(
        told.err.matches("ben (device 1)").count(),
        3,
        "{}",
        told.err
    );
    assert_eq!(ada.run(&["put", "-r", "tree", "notes"]).ends(0).err, "");
}

#[test]
fn put_with_expect_replaces_only_what_was_there() {
    let (_orderer, ada, ben) = two();
    put(&ada, "plan", "one\n", &[]).ends(0);
    let entry = newest(&ada);
    // Attributes of others are no reason, and neither is what the same content was read as later.
    let told = put(&ben, "plan", "two\n", &["--expect", &entry]).ends(0);
    assert_eq!(told.err, "");
    let changed = newest(&ada);
    let refused = put(&ada, "plan", "lost\n", &["--expect", &entry]).ends(14);
    let words = format!("changed after entry {entry}, and left as it is: plan: ben (device 1)");
    assert!(refused.err.contains(&words), "{}", refused.err);
    assert!(
        refused.err.contains(&format!("(entry {changed})")),
        "{}",
        refused.err
    );
    assert!(refused.err.contains("--expect"), "{}", refused.err);
    // Nothing was changed, not even the log.
    assert_eq!(
        (newest(&ada), read(&ada, "plan").as_str()),
        (changed.clone(), "two\n")
    );
    put(&ada, "plan", "three\n", &["--expect", &changed]).ends(0);

    let entry = newest(&ada);
    let json = ["--json", "--expect", &entry];
    // Nothing was there.
    put(&ben, "new", "by ben\n", &[]).ends(0);
    let refused = put(&ada, "new", "lost\n", &json).ends(14);
    assert_eq!(refused.field("error")["kind"], "conflict");
    assert_eq!(
        (refused.field("conflicts"), refused.field("files")),
        (1.into(), 0.into())
    );
    assert_eq!(refused.records("conflict")[0]["user"], "ben");
    // It was removed, or moved away.
    ben.run(&["rm", "notes", "plan"]).ends(0);
    put(&ada, "plan", "lost\n", &json).ends(14);
    ben.run(&["mv", "notes", "new", "plan"]).ends(0);
    put(&ada, "plan", "lost\n", &json).ends(14);
    assert_eq!(ada.run(&["ls", "notes"]).ends(0).out, "plan\n");
    assert_eq!(read(&ada, "plan"), "by ben\n");
    // Still nothing is there.
    put(&ada, "new", "by ada\n", &json).ends(0);
    let refused = ada
        .run(&["put", "-", "notes", "new", "--expect", &entry])
        .ends(14);
    assert!(
        refused.err.contains("new: ada (device 0)"),
        "{}",
        refused.err
    );
    assert_eq!(read(&ben, "new"), "by ada\n");
    // An entry that the log does not have.
    put(&ada, "other", "lost\n", &["--expect", "1000000"]).ends(10);
    put(&ada, "other", "lost\n", &["--expect", "-1"]).ends(2);
    assert_eq!(ada.run(&["ls", "notes"]).ends(0).out, "new\nplan\n");
}

#[test]
fn put_of_a_tree_with_expect_leaves_changed_files_alone_and_puts_the_others() {
    let (_orderer, ada, ben) = two();
    fs::create_dir_all(ada.path("tree/deep")).unwrap();
    for name in ["a", "b", "c", "deep/d", "x"] {
        fs::write(ada.path("tree").join(name), "one\n").unwrap();
    }
    fs::hard_link(ada.path("tree/x"), ada.path("tree/y")).unwrap();
    fs::hard_link(ada.path("tree/x"), ada.path("tree/z")).unwrap();
    ada.run(&["put", "-r", "tree", "notes"]).ends(0);
    let entry = newest(&ada);
    for path in ["tree/b", "tree/deep/d", "tree/y", "tree/c"] {
        put(&ben, "mine", path, &[path]).ends(0);
    }
    ben.run(&["rm", "notes", "tree/z"]).ends(0);
    // A file that is the same already is no conflict.
    fs::write(ada.path("c"), "").unwrap();
    ada.run(&["extract", "notes", "there"]).ends(0);
    fs::rename(ada.path("there/tree/c"), ada.path("tree/c")).unwrap();
    for name in ["a", "b", "deep/d", "x"] {
        fs::write(ada.path("tree").join(name), "two\n").unwrap();
    }
    let flags = ["put", "-r", "tree", "notes", "--expect", &entry];
    let told = ada.run(&flags).ends(14);
    for path in ["tree/b", "tree/deep/d", "tree/y", "tree/z"] {
        assert_eq!(
            told.err.matches(&format!("{path}: ")).count(),
            1,
            "{path}: {}",
            told.err
        );
    }
    assert!(
        told.err.contains("4 files were changed after entry"),
        "{}",
        told.err
    );
    for (path, content) in [
        ("tree/a", "two\n"),
        ("tree/b", "tree/b"),
        ("tree/c", "tree/c"),
        ("tree/deep/d", "tree/deep/d"),
        ("tree/x", "two\n"),
        ("tree/y", "tree/y"),
    ] {
        assert_eq!(read(&ben, path), content, "{path}");
    }
    let names = ben.run(&["ls", "notes", "tree"]).ends(0).out;
    assert_eq!(names, "a\nb\nc\ndeep\nx\ny\n");
}

#[test]
fn one_of_two_devices_with_the_same_expect_replaces_a_file() {
    let (_orderer, ada, ben) = two();
    let long = std::env::var_os("BULLA_LONG").is_some();
    for round in 0..if long { 200 } else { 20 } {
        // A name that leads nowhere, and then the file of the round before.
        let name = format!("plan{}", round / 2);
        let entry = newest(&ada);
        let begun: Vec<_> = [&ada, &ben]
            .into_iter()
            .enumerate()
            .map(|(who, home)| {
                fs::write(home.path(&name), format!("{round} by {who}")).unwrap();
                let mut command = home.command(&["put", &name, "notes", "--expect", &entry]);
                let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
                command.spawn().unwrap()
            })
            .collect();
        let ended = begun.into_iter().map(|it| it.wait_with_output().unwrap());
        let ended: Vec<Ran> = ended.map(Ran::of).collect();
        let winner = ended.iter().position(|ran| ran.code == 0);
        let winner = winner.unwrap_or_else(|| panic!("{}{}", ended[0].err, ended[1].err));
        assert_eq!(ended[1 - winner].code, 14, "{}", ended[1 - winner].err);
        let refused = &ended[1 - winner].err;
        let other = ["ada (device 0)", "ben (device 1)"][winner];
        assert!(refused.contains(other), "{refused}");
        for home in [&ada, &ben] {
            assert_eq!(read(home, &name), format!("{round} by {winner}"));
        }
    }
}
