//! Versions with the real binary: which are accepted (`--freshness`), how their validity is extended
//! (`renew`), how they are listed (`log`) and compared (`diff`).

use crate::support::{Home, Mounted, Ran, copy, noise, skipped, wait_until};
use serde_json::Value;

/// Publishes a new version of this home's tree. Returns its number and record.
fn publish(home: &Home, valid: &str) -> (u64, String) {
    let args = [
        "--json", "publish", "tree", "repo", "--key", "key", "--valid", valid,
    ];
    let ran = home.run(&args).ends(0);
    let record = ran.field("record").as_str().unwrap().to_owned();
    (ran.field("version").as_u64().unwrap(), record)
}

/// Waits until strict reads are refused because the newest version has expired.
fn wait_until_expired(home: &Home, source: &str) {
    wait_until("the version expires", || {
        cat(home, source, "strict").code == 24
    });
}

/// How often the mount on `dir` has refreshed.
fn refreshes(home: &Home, dir: &str) -> u64 {
    let ran = home.run(&["--json", "status", dir]).ends(0);
    let mount = ran.records("mount").pop().expect("a mount");
    mount["refresh"]["count"].as_u64().expect("a count")
}

fn cat(home: &Home, source: &str, freshness: &str) -> Ran {
    home.run(&["--json", "cat", source, "a", "--freshness", freshness])
}

#[test]
fn expired_version_is_read_only_with_grace_or_a_pin() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    std::fs::write(home.path("tree/a"), "second\n").unwrap();
    let (version, record) = publish(&home, "1s");
    wait_until_expired(&home, &source);
    let strict = cat(&home, &source, "strict").ends(24);
    assert_eq!(strict.field("stale"), Value::Null);
    let grace = cat(&home, &source, "grace=1h").ends(0);
    assert_eq!(grace.field("stale"), true);
    assert!(grace.err.contains("warning: "), "{}", grace.err);
    // The grace ends too.
    wait_until("the grace ends", || {
        cat(&home, &source, "grace=1s").code == 24
    });
    let pinned = cat(&home, &source, &format!("pinned={version}:{record}")).ends(0);
    assert_eq!(pinned.field("stale"), Value::Null);
    // The setting works like the flag. A pin belongs to one volume, so the setting refuses it.
    let by_setting = |value: &str| {
        let mut command = home.command(&["cat", &source, "a"]);
        Ran::of(command.env("BULLA_FRESHNESS", value).output().unwrap())
    };
    assert_eq!(by_setting("grace=1h").ends(0).out, "second\n");
    by_setting(&format!("pinned={version}:{record}")).ends(2);
}

#[test]
fn publication_that_shortens_the_validity_prints_a_note() {
    let home = Home::new();
    home.published();
    let renew = ["--json", "renew", "repo", "--key", "key", "--valid", "30d"];
    let long = home.run(&renew).ends(0).field("valid_until");
    let publish = ["publish", "tree", "repo", "--key", "key"];
    let shorter = home.run(&publish).ends(0);
    let until = long.as_str().unwrap();
    assert!(shorter.err.contains(until), "{}", shorter.err);
    assert!(shorter.err.contains("--valid"), "{}", shorter.err);
    // There is no note if the validity stays at 7 days or becomes longer.
    let same = home.run(&publish).ends(0);
    assert!(!same.err.contains("--valid"), "{}", same.err);
    let longer = home.run(&[&publish[..], &["--valid", "8d"]].concat());
    assert!(!longer.err.contains("--valid"), "{}", longer.err);
    let before = home.run(&["--json", "renew", "repo", "--key", "key"]);
    let before = before.ends(0).field("valid_until");
    assert_eq!(home.publish().ends(0).field("previous_valid_until"), before);
}

#[test]
fn a_pin_reads_an_older_version_and_moves_no_floor() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    let first = home.run(&["--json", "stat", &source]).ends(0);
    let first = first.field("record").as_str().unwrap().to_owned();
    copy(&home.path("repo"), &home.path("old"));
    let mut records = Vec::new();
    for i in 2..=6 {
        std::fs::write(home.path("tree/a"), format!("version {i}\n")).unwrap();
        records.push(publish(&home, "7d").1);
    }
    let server = home.serve("repo");
    for source in [&source, &server.source] {
        for (i, record) in records.iter().enumerate() {
            let version = i + 2;
            let pin = format!("pinned={version}:{record}");
            let ran = home.run(&["cat", source, "a", "--freshness", &pin]).ends(0);
            assert_eq!(ran.out, format!("version {version}\n"));
        }
    }
    let pin = format!("pinned=1:{first}");
    let ran = home
        .run(&["cat", &source, "a", "--freshness", &pin])
        .ends(0);
    assert_eq!(ran.out, "hello\n");
    // Only the pinned record itself is accepted.
    for wrong in [
        format!("pinned=2:{first}"),
        format!("pinned=1:{}", records[0]),
        format!("pinned=7:{first}"),
    ] {
        let ran = home
            .run(&["cat", &source, "a", "--freshness", &wrong])
            .ends(30);
        assert!(ran.err.contains("pinned"), "{}", ran.err);
    }
    // The newest version was seen only now. The pins before did not raise the floor, and those after do not
    // lower it.
    let old = source.replace("repo", "old");
    home.run(&["cat", &old, "a"]).ends(0);
    home.run(&["cat", &source, "a"]).ends(0);
    home.run(&["cat", &old, "a", "--freshness", &pin]).ends(0);
    home.run(&["cat", &old, "a"]).ends(21);
}

#[test]
fn mount_under_grace_works_and_logs_it_once() {
    if !std::path::Path::new("/dev/fuse").exists() {
        return skipped("mount", "no /dev/fuse");
    }
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    let (_, first) = publish(&home, "7d");
    std::fs::write(home.path("tree/a"), "second\n").unwrap();
    publish(&home, "3s");
    for dir in ["grace", "pinned"] {
        std::fs::create_dir(home.path(dir)).unwrap();
    }
    let args = [
        "--json",
        "mount",
        &source,
        "grace",
        "--freshness",
        "grace=1h",
    ];
    let ran = home
        .run(&[&args[..], &["--refresh", "1s"]].concat())
        .ends(0);
    let _grace = Mounted {
        home: &home,
        dir: "grace",
    };
    assert_eq!(ran.field("stale"), Value::Null);
    let log = ran.field("log").as_str().unwrap().to_owned();
    let pin = format!("pinned=2:{first}");
    home.run(&["mount", &source, "pinned", "--freshness", &pin])
        .ends(0);
    let _pinned = Mounted {
        home: &home,
        dir: "pinned",
    };
    let told = || std::fs::read_to_string(&log).unwrap();
    wait_until("the daemon logs that the grace begins", || {
        told().contains("the grace period keeps")
    });
    // Two more refreshes, which could log it again.
    let refreshes = || refreshes(&home, "grace");
    let before = refreshes();
    wait_until("two more refreshes", || refreshes() >= before + 2);
    assert_eq!(std::fs::read(home.path("grace/a")).unwrap(), b"second\n");
    assert_eq!(std::fs::read(home.path("pinned/a")).unwrap(), b"hello\n");
    let told = told();
    assert_eq!(told.matches("the grace period keeps").count(), 1, "{told}");
    // A mount that starts during the grace says so at once.
    std::fs::create_dir(home.path("late")).unwrap();
    let args = [
        "--json",
        "mount",
        &source,
        "late",
        "--freshness",
        "grace=1h",
    ];
    let ran = home.run(&args).ends(0);
    let _late = Mounted {
        home: &home,
        dir: "late",
    };
    assert_eq!(ran.field("stale"), true);
    assert!(ran.err.contains("warning: "), "{}", ran.err);
}

#[test]
fn renew_extends_the_validity_of_the_same_tree() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    let before = home.run(&["--json", "stat", &source]).ends(0);
    publish(&home, "1s");
    wait_until_expired(&home, &source);
    let renew = ["--json", "renew", "repo", "--key", "key", "--valid", "1h"];
    let renewed = home.run(&renew).ends(0);
    assert_eq!(renewed.field("version"), 3);
    assert_eq!(renewed.field("renewed"), "record");
    let after = home.run(&["--json", "stat", &source]).ends(0);
    assert_eq!(after.field("record"), renewed.field("record"));
    assert_eq!(after.field("root"), before.field("root"));
    assert_eq!(home.run(&["cat", &source, "a"]).ends(0).out, "hello\n");
    // The publisher continues from it, and reads no unchanged file again.
    assert_eq!(home.publish().ends(0).field("version"), 4);
    home.run(&["key", "new", "--out", "other", "--no-passphrase"])
        .ends(0);
    home.run(&["renew", "repo", "--key", "other"]).ends(12);
    home.run(&["renew", "nowhere", "--key", "key"]).ends(10);
    // A repository that was set back is not renewed, because its readers have seen a newer version.
    copy(&home.path("repo"), &home.path("old"));
    std::fs::write(home.path("tree/a"), "later\n").unwrap();
    home.publish().ends(0);
    let refused = home.run(&["renew", "old", "--key", "key"]).ends(1);
    assert!(refused.err.contains("version 5"), "{}", refused.err);
}

#[test]
fn log_lists_every_version_and_no_false_content() {
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    let key = home.run(&["key", "show", "key"]).ends(0).out;
    for i in 2..=5 {
        std::fs::write(home.path("tree/a"), format!("version {i}\n")).unwrap();
        publish(&home, "7d");
    }
    let server = home.serve("repo");
    for source in [&source, &server.source] {
        let log = home.run(&["--json", "log", source]).ends(0);
        let entries = log.records("entry");
        let versions: Vec<_> = entries
            .iter()
            .filter_map(|e| e["version"].as_u64())
            .collect();
        assert_eq!(versions, [5, 4, 3, 2, 1], "newest first");
        assert!(
            entries.iter().all(|e| e["standing"] == "proved"),
            "{}",
            log.out
        );
        assert_eq!(entries[0]["signers"][0], key.trim());
        assert_eq!(entries.last().unwrap()["what"], "policy");
        assert_eq!(log.field("versions"), 5);
    }
    let short = home.run(&["--json", "log", &source, "--max", "2"]).ends(0);
    assert_eq!(short.field("versions"), 2);
    assert!(
        home.run(&["log", &source])
            .ends(0)
            .out
            .contains("version  5\nrecord   rec1")
    );
    // Leaf 2 is version 2. Without it, it is listed as missing, and entries that need it as unproved.
    let leaf = home.path("repo/log/0/2");
    let honest = std::fs::read(&leaf).unwrap();
    std::fs::remove_file(&leaf).unwrap();
    let log = home.run(&["--json", "log", &source]).ends(3);
    assert_eq!(log.field("missing"), 1);
    let standing = |log: &Ran, index: u64| {
        let entries = log.records("entry");
        let entry = entries.into_iter().find(|e| e["index"] == index).unwrap();
        entry["standing"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        (standing(&log, 2), standing(&log, 1)),
        ("missing".into(), "unproved".into())
    );
    assert_eq!(
        standing(&log, 5),
        "proved",
        "it stands in a part of its own"
    );
    // Another leaf in its place is signed, but false there.
    std::fs::copy(home.path("repo/log/0/1"), &leaf).unwrap();
    let log = home.run(&["--json", "log", &source]).ends(3);
    assert_eq!(
        (standing(&log, 2), standing(&log, 5)),
        ("false".into(), "proved".into())
    );
    // With one bit changed it is not even signed.
    let mut bent = honest.clone();
    let middle = bent.len() / 2;
    bent[middle] ^= 1;
    std::fs::write(&leaf, bent).unwrap();
    let log = home.run(&["--json", "log", &source]).ends(3);
    assert_eq!(standing(&log, 2), "false");
    std::fs::write(&leaf, vec![b'x'; 1 << 20]).unwrap();
    assert_eq!(
        standing(&home.run(&["--json", "log", &source]).ends(3), 2),
        "false"
    );
}

#[test]
fn diff_shows_the_same_as_a_dry_run() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    let refused = home.run(&["diff", &source]).ends(10);
    assert!(
        refused.err.contains("a version before the newest"),
        "{}",
        refused.err
    );
    let tree = home.path("tree");
    std::fs::create_dir_all(tree.join("new/deep")).unwrap();
    std::fs::write(tree.join("new/deep/file"), noise(5, 9000)).unwrap();
    std::fs::write(tree.join("sub/empty"), "not empty").unwrap();
    std::fs::remove_file(tree.join("link")).unwrap();
    for i in 0..500 {
        std::fs::write(tree.join(format!("new/{i}")), "x").unwrap();
    }
    let dry = [
        "--json",
        "publish",
        "tree",
        "repo",
        "--key",
        "key",
        "--dry-run",
    ];
    let rehearsed = home.run(&dry).ends(0);
    home.publish().ends(0);
    let diff = home.run(&["--json", "diff", &source]).ends(0);
    let sorted = |ran: &Ran| {
        let mut changes: Vec<String> = ran.records("change").iter().map(Value::to_string).collect();
        changes.sort();
        changes
    };
    assert_eq!(sorted(&diff), sorted(&rehearsed));
    for field in ["added", "changed", "removed"] {
        assert_eq!(diff.field(field), rehearsed.field(field), "{field}");
    }
    assert_eq!((diff.field("old"), diff.field("new")), (1.into(), 2.into()));
    // In the other direction, added becomes removed. A version does not differ from itself.
    let back = home.run(&["--json", "diff", &source, "2", "1"]).ends(0);
    assert_eq!(back.field("changed"), diff.field("changed"));
    assert_eq!(
        back.records("change")
            .iter()
            .filter(|c| c["difference"] == "added")
            .count(),
        1
    );
    assert_eq!(home.run(&["diff", &source, "2", "2"]).ends(0).out, "");
    std::fs::remove_file(tree.join("a")).unwrap();
    std::fs::remove_file(tree.join("sub/again")).unwrap();
    home.publish().ends(0);
    let lines = home.run(&["diff", &source]).ends(0).out;
    let removed: Vec<&str> = lines.lines().filter(|l| l.starts_with("removed")).collect();
    assert_eq!(removed, ["removed  a", "removed  sub/again"]);
    home.run(&["diff", &source, "9"]).ends(10);
    home.run(&["diff", &source, "a name"]).ends(2);
    home.run(&["diff", &source, "one"]).ends(10);
}
