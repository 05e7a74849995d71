//! Earlier versions with `--at`, and `log --compare` between two readers, with the real binary.

use serde_json::Value;

use crate::support::{Home, Mounted, Ran, copy, noise, skipped};

/// A home whose version N has `a` with the line "version N".
fn published(versions: u64) -> (Home, String) {
    let home = Home::new();
    let volume = home.published();
    for version in 2..=versions {
        std::fs::write(home.path("tree/a"), format!("version {version}\n")).unwrap();
        home.publish().ends(0);
    }
    (home, volume)
}

fn at(home: &Home, words: &[&str], version: &str) -> Ran {
    home.run(&[words, &["--at", version]].concat())
}

#[test]
fn every_reading_command_reads_a_version_that_is_kept() {
    let (home, volume) = published(4);
    std::fs::write(home.path("tree/late"), noise(3, 9000)).unwrap();
    home.publish().ends(0);
    let server = home.serve("repo");
    for source in [&home.source(&volume, "repo"), &server.source] {
        for version in 2..=4 {
            let cat = at(&home, &["cat", source, "a"], &version.to_string()).ends(0);
            assert_eq!(cat.out, format!("version {version}\n"));
            let told = "the newest is version 5";
            assert!(cat.err.contains(told), "{}", cat.err);
        }
        assert_eq!(at(&home, &["cat", source, "a"], "1").ends(0).out, "hello\n");
        at(&home, &["cat", source, "late"], "4").ends(10);
        let ls = at(&home, &["--json", "ls", source], "2").ends(0);
        assert_eq!(ls.field("newest"), 5);
        assert!(
            !ls.records("entry")
                .iter()
                .any(|entry| entry["path"] == "late")
        );
        let stat = at(&home, &["--json", "stat", source, "a"], "3").ends(0);
        assert_eq!(
            (stat.field("version"), stat.field("newest")),
            (3.into(), 5.into())
        );
        assert!(
            stat.field("valid_until")
                .as_str()
                .unwrap()
                .starts_with("20")
        );
        let verified = at(&home, &["--json", "verify", source], "1").ends(0);
        assert_eq!(verified.field("version"), 1);
        // Without the flag it is the newest version, and the result does not name another.
        assert_eq!(
            home.run(&["--json", "ls", source]).ends(0).field("newest"),
            Value::Null
        );
    }
    let source = home.source(&volume, "repo");
    at(&home, &["extract", &source, "out"], "2").ends(0);
    assert_eq!(std::fs::read(home.path("out/a")).unwrap(), b"version 2\n");
    let cache = ["prefetch", &server.source, "--cache", "cache"];
    assert_eq!(
        at(&home, &[&["--json"], &cache[..]].concat(), "3")
            .ends(0)
            .field("version"),
        3
    );
    let diff = home.run(&["--json", "diff", &source, "2", "3"]).ends(0);
    assert_eq!((diff.field("old"), diff.field("new")), (2.into(), 3.into()));
}

#[test]
fn reading_the_past_lowers_no_floor_and_needs_a_valid_present() {
    let (home, volume) = published(3);
    copy(&home.path("repo"), &home.path("before"));
    home.publish().ends(0);
    let (source, before) = (home.source(&volume, "repo"), home.source(&volume, "before"));
    at(&home, &["cat", &source, "a"], "1").ends(0);
    // Version 4 has been seen, so a mirror that ends with version 3 is refused, also by who asks for version 2.
    at(&home, &["cat", &before, "a"], "2").ends(21);
    home.run(&["cat", &before, "a"]).ends(21);
    // With a good mirror beside it the old one may give the leaves.
    let both = ["cat", &source, "a", "--mirror", "before"];
    assert_eq!(at(&home, &both, "2").ends(0).out, "version 2\n");
    let renew = ["renew", "repo", "--key", "key", "--valid", "1s"];
    home.run(&renew).ends(0);
    crate::support::wait_until("the newest version expires", || {
        home.run(&["ls", &source]).code == 24
    });
    at(&home, &["cat", &source, "a"], "2").ends(24);
    let grace = ["cat", &source, "a", "--freshness", "grace=1h"];
    let late = at(&home, &grace, "2").ends(0);
    assert!(late.err.contains("warning: "), "{}", late.err);
}

#[test]
fn version_that_is_not_kept_is_not_found_and_the_hint_tells_which_are() {
    let (home, volume) = published(3);
    let source = home.source(&volume, "repo");
    for (version, told) in [("9", "the newest is version 3"), ("0", "no version 0")] {
        let missing = at(&home, &["cat", &source, "a"], version).ends(10);
        assert!(missing.err.contains(told), "{}", missing.err);
        assert!(missing.err.contains("3, 2, 1"), "{}", missing.err);
    }
    // A replica that has the newest version alone.
    home.run(&["pull", &source, "replica", "--keep", "1"])
        .ends(0);
    let replica = home.source(&volume, "replica");
    let missing = at(&home, &["--json", "cat", &replica, "a"], "1").ends(10);
    assert!(
        missing.err.contains("no location keeps version 1"),
        "{}",
        missing.err
    );
    assert!(missing.err.contains("can be read: 3;"), "{}", missing.err);
    at(&home, &["cat", &source, "a"], "a name").ends(2);
    let stat = home.run(&["--json", "stat", &source]).ends(0);
    let pin = format!("pinned=3:{}", stat.field("record").as_str().unwrap());
    at(&home, &["cat", &source, "a", "--freshness", &pin], "2").ends(2);
    home.run(&["diff", &replica, "1", "3"]).ends(10);
}

#[test]
fn named_version_is_read_by_its_name() {
    let (home, volume) = published(2);
    let tagged = |text: &str, tag: &str| {
        std::fs::write(home.path("tree/a"), text).unwrap();
        let args = [
            "--json", "publish", "tree", "repo", "--key", "key", "--tag", tag,
        ];
        home.run(&args)
    };
    assert_eq!(tagged("one\n", "1.0").ends(0).field("tag"), "1.0");
    home.publish().ends(0);
    tagged("two\n", "stable").ends(0);
    tagged("three\n", "stable").ends(0);
    home.publish().ends(0);
    for bad in ["7", "", "a b", "-x", "a/b"] {
        tagged("bad\n", bad).ends(2);
    }
    let server = home.serve("repo");
    for source in [&home.source(&volume, "repo"), &server.source] {
        assert_eq!(at(&home, &["cat", source, "a"], "1.0").ends(0).out, "one\n");
        // The newer of two versions with one name.
        assert_eq!(
            at(&home, &["cat", source, "a"], "stable").ends(0).out,
            "three\n"
        );
        let stat = at(&home, &["--json", "stat", source], "stable").ends(0);
        assert_eq!(
            (stat.field("version"), stat.field("tag")),
            (6.into(), "stable".into())
        );
        let missing = at(&home, &["cat", source, "a"], "2.0").ends(10);
        assert!(
            missing.err.contains("no version has the name `2.0`"),
            "{}",
            missing.err
        );
        let diff = home
            .run(&["--json", "diff", source, "1.0", "stable"])
            .ends(0);
        assert_eq!((diff.field("old"), diff.field("new")), (3.into(), 6.into()));
    }
    let source = home.source(&volume, "repo");
    let log = home.run(&["--json", "log", &source]).ends(0);
    let tags: Vec<_> = log
        .records("entry")
        .iter()
        .map(|entry| entry["tag"].clone())
        .collect();
    assert_eq!(
        tags.iter().filter(|tag| **tag == "stable").count(),
        2,
        "{tags:?}"
    );
    assert!(
        home.run(&["log", &source])
            .ends(0)
            .out
            .contains("tag      1.0")
    );
    // A log with a hole may hide a newer version with the name.
    std::fs::remove_file(home.path("repo/log/0/6")).unwrap();
    at(&home, &["cat", &source, "a"], "1.0").ends(30);
    let both = ["cat", &source, "a", "--mirror", server.location()];
    at(&home, &both, "3").ends(0);
}

#[test]
fn name_goes_with_a_request_and_its_signer_sees_it() {
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    std::fs::write(home.path("tree/a"), "named\n").unwrap();
    let unsigned = [
        "publish",
        "tree",
        "repo",
        "--unsigned",
        "--out",
        "request",
        "--tag",
        "v2",
    ];
    home.run(&unsigned).ends(0);
    let signed = home
        .run(&[
            "sign", "request", "--key", "key", "--out", "signed", "--yes",
        ])
        .ends(0);
    assert!(
        format!("{}{}", signed.out, signed.err).contains("v2"),
        "{}",
        signed.out
    );
    // Another name is another record of the version, and no name too.
    for tag in [&["--tag", "v2.0"][..], &[]] {
        let again = ["publish", "tree", "repo", "--unsigned", "--out", "other"];
        let mut again = home.command(&[&again[..], tag].concat());
        // The machine with the tree has not heard of the signature.
        again.env("BULLA_STATE_DIR", home.path("state-of-the-tree"));
        Ran::of(again.output().unwrap()).ends(0);
        let sign = ["sign", "other", "--key", "key", "--out", "x", "--yes"];
        home.run(&sign).ends(22);
    }
    home.run(&["publish", "--install", "signed", "repo"])
        .ends(0);
    assert_eq!(
        at(&home, &["cat", &source, "a"], "v2").ends(0).out,
        "named\n"
    );
}

#[test]
fn mount_at_a_version_stays_there() {
    if !std::path::Path::new("/dev/fuse").exists() {
        return skipped("mount", "no /dev/fuse");
    }
    let (home, volume) = published(3);
    let source = home.source(&volume, "repo");
    std::fs::create_dir(home.path("mnt")).unwrap();
    let ran = at(&home, &["--json", "mount", &source, "mnt"], "2").ends(0);
    let _mounted = Mounted {
        home: &home,
        dir: "mnt",
    };
    assert_eq!(
        (ran.field("version"), ran.field("newest")),
        (2.into(), 3.into())
    );
    assert_eq!(std::fs::read(home.path("mnt/a")).unwrap(), b"version 2\n");
    home.publish().ends(0);
    assert_eq!(std::fs::read(home.path("mnt/a")).unwrap(), b"version 2\n");
    let status = home.run(&["--json", "status", "mnt"]).ends(0);
    assert_eq!(status.records("mount")[0]["version"], 2);
}

/// What a reader with a state of its own says it has seen.
fn seen(home: &Home, source: &str, state: &str, out: &str) {
    let ran = home
        .command(&["log", source, "--seen"])
        .env("BULLA_STATE_DIR", home.path(state))
        .output()
        .unwrap();
    std::fs::write(home.path(out), Ran::of(ran).ends(0).out).unwrap();
}

fn compare(home: &Home, source: &str, state: &str, text: &str) -> Ran {
    let mut command = home.command(&["--json", "log", source, "--compare", text]);
    Ran::of(
        command
            .env("BULLA_STATE_DIR", home.path(state))
            .output()
            .unwrap(),
    )
}

#[test]
fn readers_of_one_log_find_that_it_is_one() {
    let (home, volume) = published(2);
    let source = home.source(&volume, "repo");
    seen(&home, &source, "ada", "early");
    for _ in 0..3 {
        home.publish().ends(0);
    }
    let same = compare(&home, &source, "eve", "early").ends(0);
    assert_eq!(
        (
            same.field("version"),
            same.field("theirs")["version"].clone()
        ),
        (5.into(), 2.into())
    );
    seen(&home, &source, "eve", "late");
    compare(&home, &source, "ada", "late").ends(0);
    let lines = home
        .run(&["log", &source, "--compare", "early"])
        .ends(0)
        .out;
    assert!(lines.contains("the same log"), "{lines}");
    // No text, that of another volume, and a changed one.
    std::fs::write(home.path("none"), "hello\n").unwrap();
    compare(&home, &source, "eve", "none").ends(2);
    let other = Home::new();
    let foreign = other.published();
    seen(&other, &other.source(&foreign, "repo"), "ada", "foreign");
    std::fs::copy(other.path("foreign"), home.path("foreign")).unwrap();
    compare(&home, &source, "eve", "foreign").ends(2);
    compare(&home, &source, "eve", "nowhere").ends(10);
    home.run(&["log", &source, "--seen", "--compare", "early"])
        .ends(2);
}

#[test]
fn readers_of_two_logs_get_evidence_that_anybody_checks() {
    let (home, volume) = published(2);
    copy(&home.path("repo"), &home.path("twin"));
    // The same key on a machine that does not know of the other.
    std::fs::write(home.path("tree/a"), "for ada\n").unwrap();
    home.publish().ends(0);
    for text in ["1", "2", "3", "4", "5", "for eve again\n"] {
        std::fs::write(home.path("tree/a"), text).unwrap();
        let ran = home
            .command(&["publish", "tree", "twin", "--key", "key"])
            .env("BULLA_STATE_DIR", home.path("other machine"))
            .output()
            .unwrap();
        Ran::of(ran).ends(0);
    }
    let (repo, twin) = (home.source(&volume, "repo"), home.source(&volume, "twin"));
    seen(&home, &repo, "ada", "ada.txt");
    seen(&home, &twin, "eve", "eve.txt");
    // The reader that has seen less cannot tell, and is told what to do.
    let less = compare(&home, &repo, "ada", "eve.txt").ends(30);
    assert!(less.err.contains("the other way round"), "{}", less.err);
    let split = compare(&home, &twin, "eve", "ada.txt").ends(22);
    let file = split.field("evidence").as_str().unwrap().to_owned();
    let stranger = Home::new();
    std::fs::copy(&file, stranger.path("evidence")).unwrap();
    let key = home.run(&["key", "show", "key"]).ends(0).out;
    let told = stranger.run(&["--json", "check", "evidence"]).ends(0);
    assert_eq!(told.field("what"), "split-view");
    assert_eq!(told.field("volume"), volume.as_str());
    assert_eq!(told.field("first")["version"], 3);
    assert_eq!(told.field("second")["version"], 8);
    for side in ["first", "second"] {
        assert_eq!(told.field(side)["signers"][0], key.trim());
    }
    let lines = stranger
        .run(&["check", "evidence", "--volume", &volume])
        .ends(0)
        .out;
    assert!(lines.contains("the publishers signed two logs"), "{lines}");
    stranger.run(&["check", "evidence", "--path", "a"]).ends(2);
    let foreign = Home::new().published();
    stranger
        .run(&["check", "evidence", "--volume", &foreign])
        .ends(2);
    let bytes = std::fs::read(stranger.path("evidence")).unwrap();
    for at in (0..bytes.len()).step_by(bytes.len() / 24) {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        std::fs::write(stranger.path("changed"), &changed).unwrap();
        let code = stranger.run(&["check", "changed"]).code;
        // A changed first byte makes it another kind of file, a changed number a later format.
        assert!(matches!(code, 20 | 13), "byte {at}: {code}");
    }
    // What was seen stays readable.
    let cat = home
        .command(&["cat", &twin, "a"])
        .env("BULLA_STATE_DIR", home.path("eve"))
        .output()
        .unwrap();
    assert_eq!(Ran::of(cat).ends(0).out, "for eve again\n");
}

#[test]
fn version_of_a_log_that_the_owners_have_ended_is_read() {
    let (home, volume) = published(2);
    std::fs::write(home.path("tree/a"), "version 3\n").unwrap();
    let publish = ["publish", "tree", "repo", "--key", "key", "--tag"];
    home.run(&[&publish[..], &["three"]].concat()).ends(0);
    copy(&home.path("repo"), &home.path("good"));
    // A thief of the key publishes version 4, and the owner takes readers back to version 3.
    std::fs::write(home.path("tree/a"), "stolen\n").unwrap();
    let mut stolen = home.command(&[&publish[..], &["stolen"]].concat());
    stolen.env("BULLA_STATE_DIR", home.path("thief"));
    Ran::of(stolen.output().unwrap()).ends(0);
    let new = ["policy", "new", "good", "--lower", "--out", "next"];
    home.run(&new).ends(0);
    let sign = ["--yes", "policy", "sign", "next", "--key", "key"];
    home.run(
        &[
            &sign[..],
            &["--out", "signed", "--expect-drastic", "--expect-last=3"],
        ]
        .concat(),
    )
    .ends(0);
    home.run(&["policy", "install", "signed", "good"]).ends(0);
    for version in [4, 5] {
        std::fs::write(home.path("tree/a"), format!("right {version}\n")).unwrap();
        home.run(&["publish", "tree", "good", "--key", "key"])
            .ends(0);
    }
    let source = home.source(&volume, "good");
    for (version, text) in [
        ("1", "hello\n"),
        ("2", "version 2\n"),
        ("3", "version 3\n"),
        ("three", "version 3\n"),
        ("4", "right 4\n"),
        ("5", "right 5\n"),
    ] {
        let cat = at(&home, &["cat", &source, "a"], version).ends(0);
        assert_eq!(cat.out, text, "{version}");
    }
    // The thief's version does not count, whatever its name.
    at(&home, &["cat", &source, "a"], "stolen").ends(10);
    // Tiles of another log, and none.
    let tiles: Vec<_> = std::fs::read_dir(home.path("good/log/0/tiles"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(!tiles.is_empty());
    for tile in &tiles {
        let mut bytes = std::fs::read(tile).unwrap();
        bytes[0] ^= 1;
        std::fs::write(tile, bytes).unwrap();
    }
    at(&home, &["cat", &source, "a"], "2").ends(20);
    for tile in &tiles {
        std::fs::remove_file(tile).unwrap();
    }
    at(&home, &["cat", &source, "a"], "2").ends(30);
    at(&home, &["cat", &source, "a"], "4").ends(0);
}
