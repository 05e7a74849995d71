//! Mistakes and accidents of honest users, with the real binary: wrong clocks, unreadable files, a key that
//! signs two histories, dry runs. Design: quality.md, *Adversaries*.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::{Home, Ran, copy, noise, skipped};

/// Runs the binary by another program, if that is installed.
pub fn through(program: &str, words: &[&str], plain: &Command) -> Option<Ran> {
    let mut command = Command::new(program);
    command
        .args(words)
        .arg(plain.get_program())
        .args(plain.get_args())
        .env_clear()
        .current_dir(plain.get_current_dir()?);
    for (name, value) in plain.get_envs() {
        command.env(name, value?);
    }
    match command.output() {
        Ok(output) => Some(Ran::of(output)),
        Err(_) => {
            skipped(
                "what needs another program",
                &format!("{program} is not installed"),
            );
            None
        }
    }
}

/// Runs the binary with a clock that is wrong by `shift`; `None` if faketime is not installed.
fn at(home: &Home, shift: &str, args: &[&str]) -> Option<Ran> {
    let words = ["--exclude-monotonic", "-f", shift];
    through("faketime", &words, &home.command(args))
}

#[test]
fn reader_with_a_wrong_clock_fails_with_the_reason() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    for shift in ["+30d", "-30d"] {
        let Some(ran) = at(&home, shift, &["ls", &source]) else {
            return;
        };
        let ran = ran.ends(24);
        assert!(ran.err.contains("clock"), "{shift}: {}", ran.err);
        assert_eq!(ran.out, "", "nothing is read");
    }
    // With the right clock it works again.
    home.run(&["ls", &source]).ends(0);
    let within = at(&home, "+6d", &["ls", &source]).unwrap();
    within.ends(0);
}

#[test]
fn version_from_a_fast_clock_is_refused_until_it_is_valid() {
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    let publish = ["publish", "tree", "repo", "--key", "key"];
    let Some(ran) = at(&home, "+30d", &publish) else {
        return;
    };
    ran.ends(0);
    // Not valid yet: a reader with the right clock refuses it.
    home.run(&["ls", &source]).ends(24);
    // The next publication fails too: if this clock were behind, its versions would have ended.
    let behind = home.publish().ends(1);
    assert!(behind.err.contains("would begin at"), "{}", behind.err);
    assert!(
        behind.err.contains("set this machine's clock"),
        "{}",
        behind.err
    );
    // It is right, and the publisher says so. This is also how a version that was signed elsewhere is followed.
    let accepted = [&publish[..], &["--accept-clock"]].concat();
    let warned = home.run(&accepted).ends(0).err;
    assert!(warned.contains("this machine's clock says"), "{warned}");
    home.run(&["ls", &source]).ends(0);
    let request = |out| ["publish", "tree", "repo", "--unsigned", "--out", out];
    home.run(&request("request")).ends(0);
    let sign = ["--yes", "sign", "request", "--key", "key", "--out", "early"];
    at(&home, "+30d", &sign).unwrap().ends(0);
    let refused = home.run(&["publish", "--install", "early", "repo"]).ends(1);
    assert!(refused.err.contains("--accept-clock"), "{}", refused.err);
    home.run(&["publish", "--install", "early", "repo", "--accept-clock"])
        .ends(0);
    home.run(&["ls", &source]).ends(24);
    home.run(&["renew", "repo", "--key", "key"]).ends(1);
    home.run(&["renew", "repo", "--key", "key", "--accept-clock"])
        .ends(0);
    home.run(&["ls", &source]).ends(0);
}

#[test]
fn version_from_a_fast_clock_is_confirmed_elsewhere_and_followed() {
    let home = Home::new();
    home.published();
    let new = ["key", "new", "--out", "t", "--no-passphrase"];
    home.run(&new).ends(0);
    let t = home.run(&["key", "show", "t"]).ends(0).out;
    let publish = ["publish", "tree", "stamped", "--key", "key", "--key", "t"];
    let made = [&["--json"], &publish[..], &["--timestamp-key", t.trim()]].concat();
    let volume = home.run(&made).ends(0).field("volume");
    let source = home.source(volume.as_str().unwrap(), "stamped");
    let unsigned = [
        "publish",
        "tree",
        "stamped",
        "--unsigned",
        "--out",
        "request",
    ];
    home.run(&unsigned).ends(0);
    let expect = format!("--expect=timestamps={}", t.trim());
    let sign = ["--yes", "sign", "request", "--key", "key", "--out", "early"];
    let Some(signed) = at(&home, "+30d", &[&sign[..], &[&expect]].concat()) else {
        return;
    };
    signed.ends(0);
    let accept = ["--accept-clock"];
    let install = ["publish", "--install", "early", "stamped"];
    let ask = [&install[..], &["--timestamp-out", "asked"]].concat();
    home.run(&ask).ends(1);
    home.run(&[&ask[..], &accept].concat()).ends(0);
    let confirm = ["--yes", "sign", "asked", "--key", "t", "--out", "confirmed"];
    let confirm = |more: &[&str]| {
        let mut command = home.command(&[&confirm[..], more].concat());
        Ran::of(
            command
                .env("BULLA_STATE_DIR", home.path("elsewhere"))
                .output()
                .unwrap(),
        )
    };
    confirm(&[]).ends(1);
    confirm(&accept).ends(0);
    let install = [&install[..], &["--timestamp", "confirmed"]].concat();
    home.run(&[&install[..], &accept].concat()).ends(0);
    home.run(&["ls", &source]).ends(24);
    home.run(&publish).ends(1);
    home.run(&[&publish[..], &accept].concat()).ends(0);
    home.run(&["ls", &source]).ends(0);
}

/// Runs the binary without root's permission to read everything.
fn unprivileged(home: &Home, args: &[&str]) -> Option<Ran> {
    if !rustix::process::geteuid().is_root() {
        return Some(home.run(args));
    }
    let words = ["--bounding-set=-dac_override,-dac_read_search"];
    through("setpriv", &words, &home.command(args))
}

#[test]
fn unreadable_file_stops_the_publication_unless_it_is_skipped() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    std::fs::write(home.path("tree/secret"), b"not for you").unwrap();
    std::fs::create_dir(home.path("tree/closed")).unwrap();
    std::fs::write(home.path("tree/closed/within"), b"nor this").unwrap();
    for name in ["tree/secret", "tree/closed"] {
        let nobody = PermissionsExt::from_mode(0o000);
        std::fs::set_permissions(home.path(name), nobody).unwrap();
    }
    let publish = ["--json", "publish", "tree", "repo", "--key", "key"];
    let Some(refused) = unprivileged(&home, &publish) else {
        return;
    };
    let refused = refused.ends(1);
    let named = ["closed", "secret"]
        .iter()
        .any(|name| refused.err.contains(name));
    assert!(named, "{}", refused.err);
    assert!(refused.err.contains("--skip-unreadable"), "{}", refused.err);
    let kept = home.run(&["--json", "stat", &source]).ends(0);
    assert_eq!(kept.field("version"), 1, "nothing is published");
    home.run(&["cat", &source, "secret"]).ends(10);

    let mut skip = publish.to_vec();
    skip.push("--skip-unreadable");
    let partial = unprivileged(&home, &skip).unwrap().ends(3);
    assert_eq!(partial.field("skipped"), 2);
    let told: Vec<_> = partial
        .records("skipped")
        .iter()
        .map(|record| record["path"].clone())
        .collect();
    assert_eq!(told, ["closed", "secret"]);
    home.run(&["cat", &source, "a"]).ends(0);
    home.run(&["cat", &source, "secret"]).ends(10);
    for name in ["tree/secret", "tree/closed"] {
        let open = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(home.path(name), open).unwrap();
    }
}

#[test]
fn one_key_that_signs_two_histories_is_a_fork() {
    let home = Home::new();
    let volume = home.published();
    copy(&home.path("repo"), &home.path("twin"));
    for (repo, seed) in [("repo", 5), ("twin", 6)] {
        std::fs::write(home.path("tree/news"), noise(seed, 10_000)).unwrap();
        // Another machine with the same key does not know what the first one has signed.
        let words = ["--json", "publish", "tree", repo, "--key", "key"];
        let mut machine = home.command(&words);
        machine.env("BULLA_STATE_DIR", home.path(&format!("state-of-{repo}")));
        let published = Ran::of(machine.output().unwrap());
        assert_eq!(published.ends(0).field("version"), 2);
    }
    home.run(&["ls", &home.source(&volume, "repo")]).ends(0);
    let twin = home.serve("twin");
    for source in [&home.source(&volume, "twin"), &twin.source] {
        let forked = home.run(&["--json", "ls", source]).ends(22);
        assert_eq!(forked.field("error")["kind"], "fork");
        assert_eq!(forked.records("entry").len(), 0, "nothing is read");
    }
    // A fork is not an outage that a mirror can hide. The version that was seen first stays valid.
    home.run(&[
        "ls",
        &home.source(&volume, "repo"),
        "--mirror",
        twin.location(),
    ])
    .ends(22);
    home.run(&["ls", &home.source(&volume, "repo")]).ends(0);
}

#[test]
fn dry_run_shows_the_difference_and_writes_nothing() {
    let home = Home::new();
    let volume = home.published();
    std::fs::remove_dir_all(home.path("tree/sub/deep")).unwrap();
    std::fs::write(home.path("tree/sub/empty"), b"no more").unwrap();
    std::fs::create_dir(home.path("tree/new")).unwrap();
    std::fs::write(home.path("tree/new/file"), noise(3, 5_000)).unwrap();
    let words = ["publish", "tree", "repo", "--key", "key", "--dry-run"];
    let told = home.run(&words).ends(0);
    let lines: Vec<&str> = told.out.lines().collect();
    for line in [
        "added    new/",
        "added    new/file",
        "changed  sub/empty",
        "removed  sub/deep/",
    ] {
        assert!(lines.contains(&line), "{line:?} in {lines:?}");
    }
    assert!(!lines.iter().any(|line| line.ends_with(" a")), "{lines:?}");
    let mut json = vec!["--json"];
    json.extend(words);
    let told = home.run(&json).ends(0);
    let new = told.records("change");
    let new = new.iter().find(|record| record["path"] == "new").unwrap();
    assert_eq!(
        (&new["difference"], &new["directory"]),
        (&"added".into(), &true.into())
    );
    assert_eq!(told.field("added"), 2);
    assert_eq!(told.field("removed"), 1);
    let source = home.source(&volume, "repo");
    assert_eq!(home.run(&["--json", "stat", &source]).field("version"), 1);
    // A dry run for a new volume creates no repository.
    home.run(&["publish", "tree", "r2", "--key", "key", "--dry-run"])
        .ends(0);
    assert!(!home.path("r2").exists());
}

#[test]
fn missing_key_and_missing_tree_have_different_errors() {
    let home = Home::new();
    home.published();
    for words in [
        &["publish", "tree", "repo", "--key", "nowhere"][..],
        &["key", "show", "nowhere"],
    ] {
        let no_key = home.run(words).ends(10);
        assert!(
            no_key.err.contains("there is no key file nowhere"),
            "{}",
            no_key.err
        );
        assert!(no_key.err.contains("bulla key new"), "{}", no_key.err);
    }
    let no_tree = home.run(&["publish", "nowhere", "repo", "--key", "key"]);
    assert!(!no_tree.ends(10).err.contains("key file"));
}

#[test]
fn mtime_is_one_exact_field() {
    let home = Home::new();
    home.published();
    let odd = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    let early = std::time::UNIX_EPOCH - std::time::Duration::from_millis(4_750);
    for (name, time) in [("a", odd), ("sub/empty", early)] {
        let file = std::fs::File::options()
            .write(true)
            .open(home.path("tree").join(name));
        file.unwrap().set_modified(time).unwrap();
    }
    let volume = home.publish().ends(0).field("volume");
    let source = home.source(volume.as_str().unwrap(), "repo");
    for (name, time) in [
        ("a", "2001-09-09T01:46:40.123456789Z"),
        ("sub/empty", "@-4.750000000"),
    ] {
        let stat = home.run(&["--json", "stat", &source, name]).ends(0);
        assert_eq!(stat.field("mtime"), time);
        assert!(stat.field("mtime_ns").is_null());
        let dated = Command::new("date").args(["-d", time, "+%s.%N"]).output();
        assert!(dated.unwrap().status.success(), "date reads {time}");
    }
}
