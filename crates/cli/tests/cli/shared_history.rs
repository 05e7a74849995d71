//! The log of a shared volume, and the volume as it was: `log`, `diff`, `--at`.

use serde_json::Value;

use crate::shared_lab::{Orderer, founded, joined};
use crate::support::{Home, Ran, noise};

fn put(home: &Home, name: &str, content: &str, to: &str) {
    std::fs::write(home.path(name), content).unwrap();
    home.run(&["put", name, "notes", to]).ends(0);
}

/// The ops of a list of entries, newest first, as `OP PATH [TO]`.
fn told(log: &Ran) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let mut told = Vec::new();
    for entry in log.records("entry") {
        for op in entry["ops"].as_array().unwrap() {
            assert_eq!(op["effect"], true, "{op}");
            let about = match op.get("path") {
                Some(path) => text(path),
                None => text(&op["about"]),
            };
            let to = op
                .get("to")
                .map_or(String::new(), |to| format!(" {}", text(to)));
            told.push(format!("{} {about}{to}", text(&op["op"])));
        }
    }
    told
}

fn log(home: &Home, args: &[&str]) -> Ran {
    home.run(&[&["--json", "log", "notes"], args].concat())
        .ends(0)
}

/// The number of the newest entry.
pub fn newest(home: &Home) -> u64 {
    let log = log(home, &["--max", "1"]);
    log.records("entry")[0]["entry"].as_u64().unwrap()
}

#[test]
fn log_says_who_did_what_and_when_with_the_names_of_that_time() {
    let (_orderer, ada) = founded(&[]);
    ada.run(&["mkdir", "notes", "docs", "docs/old", "gone"])
        .ends(0);
    put(&ada, "a", "one\n", "docs/old");
    put(&ada, "b", "two\n", "gone");
    ada.run(&["share", "user", "add", "notes", "bob"]).ends(0);
    let bob = joined(&ada, "bob");
    bob.run(&["mv", "notes", "docs/old", "docs/new"]).ends(0);
    put(&bob, "a", "three\n", "docs/new");
    bob.run(&["mv", "notes", "docs", "texts"]).ends(0);
    bob.run(&["rm", "-r", "notes", "gone"]).ends(0);
    let all = log(&ada, &[]);
    let expected = [
        "rmdir gone",
        "rm gone/b",
        "mv docs texts",
        "put docs/new/a",
        "mv docs/old docs/new",
        "device add 1 of bob",
        "grant bob the role of writer in everybody",
        "user add bob",
        "put gone/b",
        "put docs/old/a",
        "mkdir gone",
        "mkdir docs/old",
        "mkdir docs",
    ];
    assert_eq!(told(&all), expected);
    let entries = all.records("entry");
    assert_eq!(
        (&entries[0]["user"], &entries[0]["device"]),
        (&"bob".into(), &1.into())
    );
    let last = entries.last().unwrap();
    assert_eq!((&last["user"], &last["device"]), (&"ada".into(), &0.into()));
    // This device wrote the first one itself: it knows the second in which it was ordered.
    assert!(last["not_after"].is_string(), "{last}");
    let plain = ada.run(&["log", "notes"]).ends(0).out;
    assert!(plain.contains("author   bob, device 1\n"), "{plain}");
    assert!(plain.contains("mv       docs/old to docs/new\n"), "{plain}");
    assert!(plain.contains("put      docs/new/a (6 B)\n"), "{plain}");

    let below = log(&ada, &["docs/old"]);
    let expected = ["mv docs/old docs/new", "put docs/old/a", "mkdir docs/old"];
    assert_eq!(told(&below), expected);
    let first = log(&ada, &["--max", "2"]);
    assert_eq!(told(&first), ["rmdir gone", "rm gone/b"]);
    let next = first.field("next").as_u64().unwrap().to_string();
    let second = log(&ada, &["--max", "2", "--before", &next]);
    assert_eq!(told(&second), ["mv docs texts", "put docs/new/a"]);
    assert_eq!(told(&log(&ada, &["--since", "1h"])).len(), 13);
}

#[test]
fn log_hides_names_from_who_may_not_read_them() {
    let (_orderer, ada) = founded(&[]);
    ada.run(&["share", "user", "add", "notes", "bob"]).ends(0);
    ada.run(&["share", "group", "add", "notes", "family"])
        .ends(0);
    ada.run(&["mkdir", "notes", "family", "--group", "family"])
        .ends(0);
    put(&ada, "secret", "x\n", "family");
    let bob = joined(&ada, "bob");
    let told = told(&log(&bob, &[]));
    assert!(told.contains(&"mkdir family".to_owned()), "{told:?}");
    let hidden = "put (a file of family, which this user may not read)";
    assert!(told.contains(&hidden.to_owned()), "{told:?}");
    let at = newest(&ada).to_string();
    bob.run(&["cat", "notes", "family/secret", "--at", &at])
        .ends(23);
    bob.run(&["key", "new", "--out", "publisher", "--no-passphrase"])
        .ends(0);
    let exported = export(&bob, &[]).ends(3);
    assert_eq!(exported.records("skipped").len(), 1);
    // A hidden file with the name of the mark does not stop an extraction.
    ada.run(&["mv", "notes", "family/secret", ".bulla-extract"])
        .ends(0);
    let extracted = bob.run(&["--json", "extract", "notes", "out/copy"]).ends(0);
    assert_eq!(extracted.field("hidden"), 2);
    let verified = bob.run(&["verify", "notes"]).ends(0);
    assert!(
        verified.err.contains("2 names are left out"),
        "{}",
        verified.err
    );
}

#[test]
fn volume_is_read_as_it_was_and_compared() {
    let (_orderer, ada) = founded(&[]);
    ada.run(&["mkdir", "notes", "docs", "gone"]).ends(0);
    put(&ada, "a", "one\n", "docs");
    put(&ada, "same", "same\n", "docs");
    put(&ada, "b", "two\n", "gone");
    let then = newest(&ada);
    let at = then.to_string();
    put(&ada, "a", "changed\n", "docs");
    put(&ada, "c", "new\n", "docs");
    ada.run(&["rm", "-r", "notes", "gone"]).ends(0);
    let read = |args: &[&str]| ada.run(args).ends(0).out;
    assert_eq!(read(&["cat", "notes", "docs/a", "--at", &at]), "one\n");
    assert_eq!(read(&["cat", "notes", "docs/a"]), "changed\n");
    let names = "docs\ndocs/a\ndocs/same\ngone\ngone/b\n";
    assert_eq!(read(&["ls", "-R", "notes", "--at", &at]), names);
    read(&["extract", "notes", "copy", "--at", &at]);
    assert_eq!(std::fs::read(ada.path("copy/gone/b")).unwrap(), b"two\n");
    ada.run(&["verify", "notes", "--at", &at]).ends(0);
    let stat = ada
        .run(&["--json", "stat", "notes", "docs/a", "--at", &at])
        .ends(0);
    assert_eq!(stat.field("size"), 4);

    let expected = "changed  docs/a\nadded    docs/c\nremoved  gone/\n";
    assert_eq!(read(&["diff", "notes", &at]), expected);
    let now = newest(&ada).to_string();
    assert_eq!(read(&["diff", "notes", &at, &now]), expected);
    let back = "added    gone/\nadded    gone/b\nchanged  docs/a\nremoved  docs/c\n";
    let mut lines: Vec<String> = read(&["diff", "notes", &now, &at])
        .lines()
        .map(String::from)
        .collect();
    lines.sort();
    assert_eq!(lines.join("\n") + "\n", back);
    assert_eq!(read(&["diff", "notes", &at, &at]), "");

    let beyond = (then + 10_000).to_string();
    let refused = ada.run(&["ls", "notes", "--at", &beyond]).ends(10);
    assert!(
        refused.err.contains("the log ends before that entry"),
        "{}",
        refused.err
    );
    ada.run(&["diff", "notes"]).ends(2);
}

#[test]
fn snapshot_is_read_by_its_name_until_it_is_removed() {
    let (_orderer, ada) = founded(&[]);
    ada.run(&["share", "user", "add", "notes", "bob"]).ends(0);
    let bob = joined(&ada, "bob");
    put(&ada, "a", "one\n", "a");
    let then = newest(&ada);
    put(&ada, "a", "two\n", "a");
    let made = ada.run(&[
        "--json",
        "share",
        "snapshot",
        "notes",
        "first",
        "--at",
        &then.to_string(),
    ]);
    assert_eq!(made.ends(0).field("entry"), then);
    ada.run(&["share", "snapshot", "notes", "second"]).ends(0);
    put(&ada, "a", "three\n", "a");
    // Another device knows the names, too.
    let read = |home: &Home, args: &[&str]| home.run(args).ends(0).out;
    assert_eq!(read(&bob, &["cat", "notes", "a", "--at", "first"]), "one\n");
    assert_eq!(
        read(&bob, &["cat", "notes", "a", "--at", "second"]),
        "two\n"
    );
    read(&bob, &["extract", "notes", "copy", "--at", "first"]);
    assert_eq!(
        std::fs::read_to_string(bob.path("copy/a")).unwrap(),
        "one\n"
    );
    let changed = read(&ada, &["diff", "notes", "first", "second"]);
    assert!(changed.contains('a'), "{changed}");
    let listed = read(&bob, &["share", "snapshots", "notes"]);
    assert!(listed.starts_with(&format!("first  after entry {then}\nsecond  after entry ")));
    // These names are refused.
    let taken = ada.run(&["share", "snapshot", "notes", "first"]).ends(1);
    assert!(
        taken.err.contains("snapshot `first` already"),
        "{}",
        taken.err
    );
    ada.run(&["share", "snapshot", "notes", "later", "--at", "100000"])
        .ends(10);
    ada.run(&["share", "snapshot", "notes", "7"]).ends(2);
    bob.run(&["share", "snapshot", "notes", "mine"]).ends(23);
    let none = bob.run(&["cat", "notes", "a", "--at", "third"]).ends(10);
    assert!(none.err.contains("bulla share snapshots"), "{}", none.err);
    ada.run(&["share", "snapshot", "notes", "first", "--remove"])
        .ends(0);
    ada.run(&["share", "snapshot", "notes", "first", "--remove"])
        .ends(10);
    bob.run(&["cat", "notes", "a", "--at", "first"]).ends(10);
    // The log says who did it, and the name is free again.
    let log = read(&ada, &["log", "notes"]);
    assert!(
        log.contains("snapshot remove") && log.contains("snapshot"),
        "{log}"
    );
    ada.run(&["share", "snapshot", "notes", "first"]).ends(0);
    assert_eq!(
        read(&bob, &["cat", "notes", "a", "--at", "first"]),
        "three\n"
    );
}

#[test]
fn published_volume_refuses_what_is_for_shared_ones() {
    let home = Home::new();
    let source = format!("{}@repo", trust_id());
    for args in [
        &["log", &source, "docs"][..],
        &["log", &source, "--before", "3"],
        &["log", &source, "--since", "1h"],
    ] {
        let told = home.run(args).ends(2);
        assert!(told.err.contains("is for shared volumes"), "{}", told.err);
    }
}

/// Some id of a volume.
fn trust_id() -> String {
    trust::statement::VolumeId::from_bytes([7; 32]).to_string()
}

/// What `stat` says of the root directory's attribute that names the export.
fn origin(home: &Home, source: &str) -> String {
    let stat = home.run(&["stat", source]).ends(0).out;
    let line = stat.lines().find(|line| line.contains("user.bulla-export"));
    line.expect("no origin").to_owned()
}

/// Exports the volume into `repo`.
fn export(home: &Home, args: &[&str]) -> Ran {
    let export = [
        "--json",
        "share",
        "export",
        "notes",
        "repo",
        "--key",
        "publisher",
    ];
    home.run(&[&export, args].concat())
}

/// A volume with a tree, and a key to publish it. Gives the number of the newest entry too.
fn with_tree() -> (Orderer, Home, u64) {
    let (orderer, ada) = founded(&[]);
    std::fs::create_dir_all(ada.path("tree/sub")).unwrap();
    std::fs::write(ada.path("tree/sub/big"), noise(7, 3_000_000)).unwrap();
    std::fs::write(ada.path("tree/empty"), b"").unwrap();
    std::os::unix::fs::symlink("sub/big", ada.path("tree/link")).unwrap();
    ada.run(&["put", "-r", "tree", "notes"]).ends(0);
    ada.run(&["key", "new", "--out", "publisher", "--no-passphrase"])
        .ends(0);
    let newest = newest(&ada);
    (orderer, ada, newest)
}

fn source(exported: &Ran) -> String {
    format!("{}@repo", exported.field("volume").as_str().unwrap())
}

#[test]
fn key_file_is_exported_only_when_that_is_asked_for() {
    let (_orderer, ada, _) = with_tree();
    let put = ["put", "publisher", "notes", "--publish-keys"];
    ada.run(&put).ends(0);
    let refused = export(&ada, &[]).ends(2);
    assert!(refused.err.contains("publisher"), "{}", refused.err);
    assert!(refused.err.contains("--publish-keys"), "{}", refused.err);
    let exported = export(&ada, &["--publish-keys"]).ends(0);
    let listed = ada.run(&["ls", &source(&exported)]).ends(0).out;
    assert!(listed.lines().any(|name| name == "publisher"), "{listed}");
}

#[test]
fn export_is_a_published_volume_that_names_its_origin() {
    let (_orderer, ada, then) = with_tree();
    let first = export(&ada, &[]).ends(0);
    assert_eq!(first.field("new_volume"), true);
    assert_eq!(first.field("version"), 1);
    assert_eq!(first.field("shared")["entry"], then);
    let source = source(&first);
    ada.run(&["verify", &source]).ends(0);
    ada.run(&["extract", &source, "copy"]).ends(0);
    let same = std::process::Command::new("diff")
        .args(["-r", "--no-dereference"])
        .args([ada.path("tree"), ada.path("copy/tree")])
        .status();
    assert!(same.unwrap().success());
    let told = origin(&ada, &source);
    assert!(told.contains(&format!("entry {then}\\nroot ")), "{told}");
    let root = first.field("shared")["root"].as_str().unwrap().to_owned();
    assert!(root.len() == 64 && told.contains(&root), "{told}");
}

#[test]
fn later_exports_are_versions_and_one_without_changes_is_none() {
    let (_orderer, ada, then) = with_tree();
    let first = export(&ada, &[]).ends(0);
    let source = source(&first);
    // Reading adds to the log, and nothing to the volume.
    ada.run(&["cat", "notes", "tree/empty"]).ends(0);
    assert_eq!(export(&ada, &[]).ends(0).field("unchanged"), true);
    put(&ada, "new", "new\n", "tree");
    let second = export(&ada, &[]).ends(0);
    assert_eq!(second.field("new_volume"), false);
    assert_eq!(second.field("unchanged"), false);
    let changes = ada.run(&["diff", &source]).ends(0).out;
    let is_small = changes.contains("added    tree/new\n") && !changes.contains("big");
    assert!(is_small, "{changes}");
    let past = export(&ada, &["--at", &then.to_string()]).ends(0);
    assert_eq!(past.field("shared"), first.field("shared"));
    let names = ada.run(&["ls", "-R", &source]).ends(0).out;
    assert!(!names.contains("new"), "{names}");
    export(&ada, &["tree/sub"]).ends(0);
    assert_eq!(ada.run(&["ls", &source]).ends(0).out, "big\n");
}

#[test]
fn export_that_is_refused_leaves_the_last_version() {
    let (_orderer, ada, _) = with_tree();
    let source = source(&export(&ada, &[]).ends(0));
    export(&ada, &["tree/empty"]).ends(1);
    export(&ada, &["nowhere"]).ends(10);
    export(&ada, &["--at", "100000"]).ends(10);
    ada.run(&["key", "new", "--out", "other", "--no-passphrase"])
        .ends(0);
    let other = ["share", "export", "notes", "repo", "--key", "other"];
    ada.run(&other).ends(12);
    ada.run(&["verify", &source]).ends(0);
}

#[test]
fn export_that_loses_its_server_publishes_nothing() {
    let (mut orderer, ada) = founded(&[]);
    std::fs::write(ada.path("big"), noise(9, 9_000_000)).unwrap();
    ada.run(&["put", "big", "notes"]).ends(0);
    ada.run(&["key", "new", "--out", "publisher", "--no-passphrase"])
        .ends(0);
    orderer.kill();
    let export = [
        "share",
        "export",
        "notes",
        "repo",
        "--key",
        "publisher",
        "--deadline",
        "2s",
    ];
    ada.run(&export).ends(30);
    assert!(!ada.path("repo/head").exists());
    orderer.start();
    let export = ["share", "export", "notes", "repo", "--key", "publisher"];
    ada.run(&export).ends(0);
}
