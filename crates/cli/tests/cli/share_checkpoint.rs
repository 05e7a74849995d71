//! Checkpoints of shared volumes: made by one device, or by two; new devices begin there; what they cannot know.

use crate::shared_lab::{Admission, founded, join, joined};
use crate::support::Home;

fn put(home: &Home, name: &str, content: &str) {
    std::fs::write(home.path(name), content).unwrap();
    home.run(&["put", name, "notes"]).ends(0);
}

fn cat(home: &Home, name: &str) -> String {
    home.run(&["cat", "notes", name]).ends(0).out
}

/// A new machine that becomes a device of ada with these flags of `share join`. Gives the size of the checkpoint.
fn joined_with(admin: &Home, flags: &[&str]) -> (Home, serde_json::Value) {
    let home = Home::new();
    let admission = Admission::begin_with(admin, &home, flags);
    admission.inviting.end().ends(0);
    let add = ["share", "device", "add", "notes", &admission.words];
    admin.run(&[&add[..], &["--user", "ada"]].concat()).ends(0);
    let joined = admission.joining.end().ends(0);
    let size = joined.field("checkpoint").clone();
    (home, size)
}

#[test]
fn second_device_of_a_user_begins_with_the_checkpoint_of_the_first() {
    let (_orderer, ada) = founded(&["--checkpointer", "this"]);
    put(&ada, "a", "one\n");
    put(&ada, "b", "two\n");
    let none = ada.run(&["share", "checkpoint", "notes", "--check"]);
    none.ends(10);
    let made = ada.run(&["--json", "share", "checkpoint", "notes"]).ends(0);
    assert_eq!(made.field("whole"), true);
    assert_eq!(
        (made.field("signed_by"), made.field("needed")),
        (1.into(), 1.into())
    );
    let size = made.field("size").clone();
    put(&ada, "c", "three\n");
    let key = ada
        .run(&["--json", "share", "device", "list", "notes"])
        .ends(0);
    let key = key.records("device")[0]["key"].as_str().unwrap().to_owned();
    // One signature counts for nobody who does not ask for it.
    let (_, replayed) = joined_with(&ada, &[]);
    assert!(replayed.is_null(), "{replayed}");
    let (laptop, began) = joined_with(&ada, &["--checkpoint-by", &key]);
    assert_eq!(began, size);
    for (name, content) in [("a", "one\n"), ("b", "two\n"), ("c", "three\n")] {
        assert_eq!(cat(&laptop, name), content);
    }
    put(&laptop, "d", "four\n");
    assert_eq!(cat(&ada, "d"), "four\n");
    let status = laptop.run(&["--json", "share", "status", "notes"]).ends(0);
    assert_eq!(status.field("begins"), size);
    assert_eq!(status.field("checkpoint"), size);
    // It does not know what was before.
    let early = laptop.run(&["ls", "notes", "--at", "3"]).ends(10);
    assert!(
        early
            .err
            .contains("this device knows the volume as it was after"),
        "{}",
        early.err
    );
    laptop.run(&["log", "notes"]).ends(0);
    let check = laptop
        .run(&["share", "checkpoint", "notes", "--check"])
        .ends(10);
    assert!(check.err.contains("began with"), "{}", check.err);
    ada.run(&["share", "checkpoint", "notes", "--check"])
        .ends(0);
    // With --replay a device verifies the whole log.
    let (own, replayed) = joined_with(&ada, &["--replay"]);
    assert!(replayed.is_null());
    own.run(&["share", "checkpoint", "notes", "--check"])
        .ends(0);
}

#[test]
fn two_checkpointers_sign_one_prefix_and_everybody_begins_there() {
    let other = Home::new();
    let key = other.run(&["--json", "key", "new", "--out", "second", "--no-passphrase"]);
    let key = key.ends(0).field("key").as_str().unwrap().to_owned();
    let (_orderer, ada) = founded(&["--checkpointer", "this", "--checkpointer", &key]);
    put(&ada, "a", "one\n");
    ada.run(&["share", "user", "add", "notes", "bob"]).ends(0);
    join(&ada, "bob", &other);
    put(&other, "b", "two\n");
    let half = ada.run(&["--json", "share", "checkpoint", "notes"]).ends(0);
    assert_eq!(half.field("whole"), false);
    let carol = joined(&ada, "bob");
    let refused = carol.run(&["share", "checkpoint", "notes"]).ends(23);
    assert!(
        refused
            .err
            .contains("not one of the volume's checkpointers"),
        "{}",
        refused.err
    );
    put(&ada, "c", "three\n");
    let whole = other
        .run(&["--json", "share", "checkpoint", "notes", "--key", "second"])
        .ends(0);
    assert_eq!(whole.field("whole"), true);
    assert_eq!(whole.field("size"), half.field("size"));
    let (laptop, began) = joined_with(&ada, &[]);
    assert_eq!(began, half.field("size"));
    assert_eq!(
        (cat(&laptop, "b"), cat(&laptop, "c")),
        ("two\n".to_owned(), "three\n".to_owned())
    );
}

#[test]
fn volume_without_checkpointers_has_no_checkpoints() {
    let (_orderer, ada) = founded(&[]);
    let refused = ada.run(&["share", "checkpoint", "notes"]).ends(23);
    assert!(
        refused.err.contains("name no checkpointers"),
        "{}",
        refused.err
    );
}
