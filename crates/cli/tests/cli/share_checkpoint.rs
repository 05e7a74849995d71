//! Checkpoints of shared volumes: made by one device, or by two; new devices begin there; what they cannot know.

use std::time::{Duration, Instant};

use share::client::{Client, Options, Signable};
use trust_shared::checkpoint::Posted;

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

/// Proposes a state that the log does not come to, as this device with this key.
fn propose_wrongly(home: &Home, key: &str) {
    let state = home.path(".local/state/bulla");
    let volume = share::home::Home::find(&state, "notes").unwrap().unwrap();
    let key = keys::keyfile::load(&home.path(key), || Err("no passphrase")).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let soon = || Instant::now() + Duration::from_secs(60);
        let client = Client::start(&volume, Options::default(), soon());
        let client = client.await.unwrap();
        client.running(soon()).await.unwrap();
        let Signable::Yes(note) = client.signable(None, soon()).await.unwrap() else {
            panic!("somebody is silent");
        };
        let size = note.note().log.size;
        let patience = Duration::from_secs(60);
        let made = client.state_at(&volume, size, true, patience, |_| ());
        let mut made = made.await.unwrap();
        made.state.entries += 1;
        let signed = made.statement(volume.volume()).sign(&[&key]);
        let posted = Posted {
            note: *note,
            signed,
        };
        client.post_checkpoint(&posted, soon()).await.unwrap();
        client.close(soon()).await.unwrap();
    });
}

#[test]
fn wrong_proposal_keeps_nobody_from_a_right_one() {
    let (other, third) = (Home::new(), Home::new());
    let [second, last] = [&other, &third].map(|home| {
        let key = home.run(&["--json", "key", "new", "--out", "own", "--no-passphrase"]);
        key.ends(0).field("key").as_str().unwrap().to_owned()
    });
    let flags = [&second, &last].map(|key| ["--checkpointer", key.as_str()]);
    let flags = flags.concat();
    let (_orderer, ada) = founded(&[&["--checkpointer", "this"], &flags[..]].concat());
    put(&ada, "a", "one\n");
    for (home, name) in [(&other, "of second"), (&third, "of third")] {
        join(&ada, "ada", home);
        put(home, name, "here\n");
    }
    propose_wrongly(&other, "own");
    let refused = ada.run(&["--json", "share", "checkpoint", "notes"]);
    let refused = refused.ends(20);
    assert!(
        refused.err.contains(&second) && refused.err.contains("--anew"),
        "{}",
        refused.err
    );
    put(&ada, "b", "two\n");
    let anew = ada.run(&["--json", "share", "checkpoint", "notes", "--anew"]);
    let anew = anew.ends(0);
    assert_eq!(
        (anew.field("signed_by"), anew.field("wrong")),
        (1.into(), 1.into())
    );
    assert!(anew.err.contains(&second), "{}", anew.err);
    // The third one signs what is right, although the second one proposes something wrong again, about a longer log.
    put(&other, "c", "three\n");
    propose_wrongly(&other, "own");
    let whole = third.run(&["--json", "share", "checkpoint", "notes", "--key", "own"]);
    let whole = whole.ends(0);
    assert_eq!(
        (
            whole.field("whole"),
            whole.field("size"),
            whole.field("wrong")
        ),
        (true.into(), anew.field("size").clone(), 1.into())
    );
    let (laptop, began) = joined_with(&ada, &[]);
    assert_eq!(began, anew.field("size"));
    assert_eq!(cat(&laptop, "c"), "three\n");
}

#[test]
fn device_begins_with_a_checkpoint_of_a_later_epoch() {
    let (mut orderer, ada) = founded(&["--checkpointer", "this"]);
    put(&ada, "a", "one\n");
    ada.run(&["share", "checkpoint", "notes"]).ends(0);
    let recover = ["share", "recover", "notes", "--owner-key", "owner"];
    ada.run(&[&recover[..], &["--out", "rules"]].concat())
        .ends(0);
    orderer.stop();
    let rules = ada.path("rules");
    orderer.start_with(&["--accept", rules.to_str().unwrap()]);
    put(&ada, "b", "two\n");
    let key = ada
        .run(&["--json", "share", "device", "list", "notes"])
        .ends(0);
    let key = key.records("device")[0]["key"].as_str().unwrap().to_owned();
    // That of the epoch before counts for nobody.
    ada.run(&["share", "checkpoint", "notes", "--check"])
        .ends(10);
    let (phone, replayed) = joined_with(&ada, &["--checkpoint-by", &key]);
    assert!(replayed.is_null(), "{replayed}");
    put(&phone, "p", "also here\n");
    let made = ada.run(&["--json", "share", "checkpoint", "notes"]).ends(0);
    let (laptop, began) = joined_with(&ada, &["--checkpoint-by", &key]);
    assert_eq!(began, made.field("size"));
    put(&laptop, "c", "three\n");
    for home in [&ada, &laptop] {
        assert_eq!(
            cat(home, "a") + &cat(home, "b") + &cat(home, "c"),
            "one\ntwo\nthree\n"
        );
    }
    let status = laptop.run(&["--json", "share", "status", "notes"]).ends(0);
    assert_eq!(
        (status.field("epoch"), status.field("begins")),
        (1.into(), made.field("size"))
    );
}
