//! The real binary from end to end: results, exit codes and hints.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::support::{Home, Mounted, Ran, copy, damage_largest, noise, skipped, wait_until};

#[test]
fn a_tree_goes_through_publish_serve_and_mount_unchanged() {
    let home = Home::new();
    let volume = home.published();
    let server = home.serve("repo");
    assert!(server.source.starts_with(&volume));
    if !std::path::Path::new("/dev/fuse").exists() {
        return skipped("mount", "no /dev/fuse");
    }
    std::fs::create_dir(home.path("mnt")).unwrap();
    let mount = home
        .run(&["--json", "mount", &server.source, "mnt"])
        .ends(0);
    let _mounted = Mounted {
        home: &home,
        dir: "mnt",
    };
    assert_eq!(mount.field("version"), 1);
    let same = Command::new("diff")
        .args(["-r", "--no-dereference"])
        .args([home.path("tree"), home.path("mnt")])
        .status();
    assert!(same.unwrap().success());
    home.run(&["mount", &server.source, "nowhere"]).ends(31);
    home.run(&["umount", "mnt"]).ends(0);
    home.run(&["umount", "mnt"]).ends(31);
}

#[test]
fn extract_gives_back_every_attribute_and_nothing_else() {
    let home = Home::new();
    home.published();
    let tree = home.path("tree");
    let name = std::ffi::OsStr::from_bytes(b"not utf-8 \xff\x1b[2J");
    std::fs::write(tree.join(name), b"odd").unwrap();
    let sparse = std::fs::File::create(tree.join("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, tree.join("pipe"), 0o600.into()).unwrap();
    let volume = home.publish().ends(0).field("volume");
    let source = home.source(volume.as_str().unwrap(), "repo");
    home.run(&["extract", &source, "out"]).ends(0);
    let out = home.path("out");
    for path in [
        "a",
        "sub",
        "sub/deep/big",
        "sub/empty",
        "sub/again",
        "link",
        "sparse",
        "pipe",
    ] {
        let was = tree.join(path).symlink_metadata().unwrap();
        let is = out.join(path).symlink_metadata().unwrap();
        assert_eq!(was.mode(), is.mode(), "{path}");
        assert_eq!(
            (was.mtime(), was.mtime_nsec()),
            (is.mtime(), is.mtime_nsec()),
            "{path}"
        );
        if !was.is_dir() {
            assert_eq!((was.len(), was.nlink()), (is.len(), is.nlink()), "{path}");
        }
    }
    assert_eq!(
        out.join("a").metadata().unwrap().ino(),
        out.join("sub/again").metadata().unwrap().ino()
    );
    assert_eq!(
        std::fs::read(out.join("sub/deep/big")).unwrap(),
        noise(1, 700_000)
    );
    assert_eq!(std::fs::read(out.join(name)).unwrap(), b"odd");
    assert_eq!(
        out.join("sparse").metadata().unwrap().blocks(),
        0,
        "a hole stays a hole"
    );
    // In a pipe a name is written unchanged, one per line; in a record it is lossless.
    let listed = home.command(&["ls", &source]).output().unwrap().stdout;
    assert!(
        listed
            .split(|byte| *byte == b'\n')
            .any(|line| line == name.as_bytes())
    );
    let records = home.run(&["--json", "ls", &source]).ends(0).out;
    assert!(records.contains("path_base64"), "{records}");
    // `extract` refuses a directory that is not empty.
    home.run(&["extract", &source, "out"]).ends(1);
    // Of a path it takes what is in the directory, or the file.
    home.run(&["extract", &source, "below", "/sub/"]).ends(0);
    assert!(home.path("below/deep/big").exists() && !home.path("below/a").exists());
    home.run(&["extract", &source, "single", "sub/deep/big"])
        .ends(0);
    let names = std::fs::read_dir(home.path("single")).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["big"]);
    home.run(&["extract", &source, "absent", "sub/none"])
        .ends(10);
    assert!(!home.path("absent").exists());
}

#[test]
fn cat_stat_ls_and_verify_show_the_published_tree() {
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    assert_eq!(home.run(&["cat", &source, "/a"]).ends(0).out, "hello\n");
    let big = home
        .command(&["cat", &source, "link"])
        .output()
        .unwrap()
        .stdout;
    assert_eq!(big, noise(1, 700_000), "cat follows links");
    let stat = home.run(&["--json", "stat", &source, "sub/again"]).ends(0);
    assert_eq!(stat.field("links"), 2);
    assert_eq!(stat.field("volume"), volume);
    let ls = home.run(&["ls", "-R", &source]).ends(0).out;
    assert_eq!(
        ls.lines().collect::<Vec<_>>(),
        [
            "a",
            "link",
            "sub",
            "sub/again",
            "sub/deep",
            "sub/deep/big",
            "sub/empty"
        ]
    );
    let verified = home.run(&["--json", "verify", &source]).ends(0);
    assert_eq!(
        (verified.field("files"), verified.field("other")),
        (4.into(), 1.into())
    );
    assert_eq!(verified.field("damages"), 0);
    home.run(&["cat", &source, "nothing"]).ends(10);
    home.run(&["cat", &source, "sub"]).ends(1);
    let failed = home.run(&["--json", "cat", &source, "nothing"]).ends(10);
    assert_eq!(failed.field("ok"), false);
    assert_eq!(failed.field("error")["kind"], "not-found");
}

#[test]
fn a_server_outlives_a_hangup_and_then_has_the_new_version() {
    let home = Home::new();
    home.published();
    let mut server = home.serve("repo");
    let first = home.run(&["cat", &server.source, "sub/again"]).ends(0);
    assert_eq!(first.out, "hello\n");
    std::fs::write(home.path("tree").join("a"), b"again\n").unwrap();
    home.publish().ends(0);
    server.hang_up();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while home.run(&["cat", &server.source, "a"]).ends(0).out != "again\n" {
        assert!(std::time::Instant::now() < until, "still the old version");
    }
    assert!(server.lives());
    // Absence is proved; the server's claim is not enough.
    home.run(&["stat", &server.source, "sub/nothing"]).ends(10);
}

#[test]
fn nothing_is_read_without_the_right_volume_id() {
    let home = Home::new();
    let volume = home.published();
    let server = home.serve("repo");
    let repo = home.path("repo").display().to_string();
    for place in [repo.as_str(), server.location()] {
        let refused = home.run(&["ls", place]).ends(2);
        assert!(
            refused.err.contains(&format!("{volume}@{place}")),
            "{}",
            refused.err
        );
        assert_eq!(refused.out, "", "nothing was read");
    }
    let mut mistyped = volume.clone().into_bytes();
    mistyped[10] = if mistyped[10] == b'q' { b'p' } else { b'q' };
    let mistyped = String::from_utf8(mistyped).unwrap();
    home.run(&["ls", &format!("{mistyped}@{repo}")]).ends(2);
    // A valid id of another volume: the location does not have it.
    let other = Home::new();
    let stranger = other.published();
    assert_ne!(stranger, volume);
    let both = home.serve_both("repo");
    let (_, web) = both.sources[1].split_once('@').unwrap();
    let refusals = [repo.as_str(), server.location(), web].map(|place| {
        let refused = home.run(&["--json", "ls", &format!("{stranger}@{place}")]);
        let refused = refused.ends(30);
        let error = refused.err.replace(place, "PLACE");
        assert_eq!(error.lines().count(), 2, "one error and its hint: {error}");
        error
    });
    assert!(refusals[0].contains("PLACE does not have this volume"));
    assert_eq!(refusals[0], refusals[1], "a directory and a server");
    assert_eq!(refusals[0], refusals[2], "a directory and a web root");
}

#[test]
fn lies_and_outages_have_different_exit_codes() {
    let home = Home::new();
    let volume = home.published();
    copy(&home.path("repo"), &home.path("old"));
    std::fs::write(home.path("tree/new"), noise(7, 300_000)).unwrap();
    home.publish().ends(0);
    home.run(&["ls", &home.source(&volume, "repo")]).ends(0);
    let rolled = home
        .run(&["--json", "ls", &home.source(&volume, "old")])
        .ends(21);
    assert_eq!(rolled.field("error")["kind"], "rollback");
    copy(&home.path("repo"), &home.path("bad"));
    damage_largest(&home.path("bad/segments"));
    let bad = home.serve("bad");
    let mut honest = home.serve("repo");
    home.run(&["verify", &bad.source]).ends(20);
    // One honest mirror is enough, in any order.
    home.run(&["verify", &bad.source, "--mirror", honest.location()])
        .ends(0);
    home.run(&["verify", &honest.source, "--mirror", bad.location()])
        .ends(0);
    // Evidence takes precedence over an outage.
    honest.kill();
    home.run(&[
        "verify",
        &bad.source,
        "--mirror",
        honest.location(),
        "--deadline",
        "2s",
    ])
    .ends(20);
    home.run(&["ls", &honest.source, "--deadline", "2s"])
        .ends(30);
}

#[test]
fn an_expired_version_is_refused() {
    let home = Home::new();
    let volume = home.published();
    home.run(&["publish", "tree", "repo", "--key", "key", "--valid", "1s"])
        .ends(0);
    let source = home.source(&volume, "repo");
    wait_until("the version expires", || {
        home.run(&["ls", &source]).code == 24
    });
    home.publish().ends(0);
    home.run(&["ls", &home.source(&volume, "repo")]).ends(0);
}

#[test]
fn unusable_and_wrong_keys_are_refused() {
    let home = Home::new();
    home.published();
    home.run(&["key", "new", "--out", "key", "--no-passphrase"])
        .ends(1);
    home.run(&["key", "new", "--out", "other", "--no-passphrase"])
        .ends(0);
    home.run(&["publish", "tree", "repo", "--key", "other"])
        .ends(12);
    home.run(&["publish", "tree", "repo", "--key", "nowhere"])
        .ends(10);
    home.run(&["publish", "tree", "repo"]).ends(2);
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(home.path("other"), open).unwrap();
    home.run(&["key", "show", "other"]).ends(12);
    std::fs::write(home.path("pass"), "correct horse\n").unwrap();
    home.run(&["key", "new", "--out", "locked", "--passphrase-file", "pass"])
        .ends(0);
    home.run(&["publish", "tree", "r2", "--key", "locked", "--no-input"])
        .ends(2);
    let wrong = [
        "publish",
        "tree",
        "r2",
        "--key",
        "locked",
        "--passphrase-command",
        "echo battery",
    ];
    home.run(&wrong).ends(12);
    assert!(
        !home.path("r2").exists(),
        "nothing is made before the key is good"
    );
    home.run(&[
        "publish",
        "tree",
        "r2",
        "--key",
        "locked",
        "--passphrase-file",
        "pass",
    ])
    .ends(0);
}

#[test]
fn second_publisher_fails_at_once() {
    let home = Home::new();
    home.published();
    let lock = std::fs::File::open(home.path("repo/lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    home.publish().ends(11);
    // Closing alone does not unlock it: a process that another test is starting may still have it open.
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::Unlock).unwrap();
    home.publish().ends(0);
}

#[test]
fn wrong_arguments_are_usage_errors_in_text_and_in_records() {
    let home = Home::new();
    for words in [
        &["nonsense"][..],
        &["ls"],
        &["publish", "a", "b", "--valid", "7"],
        &["ls", "x@y", "--deadline", "0s"],
        &["serve", "nowhere", "--listen", "no address"],
        &["--config", "nowhere.toml", "config", "show"],
    ] {
        let code = home.run(words).code;
        assert_eq!(code, 2, "{words:?}");
        let mut json = vec!["--json"];
        json.extend(words);
        let ran = home.run(&json).ends(2);
        assert_eq!(ran.field("exit_code"), 2, "{words:?}");
    }
    std::fs::write(home.path("c.toml"), "dedline = \"2s\"\n").unwrap();
    home.run(&["--config", "c.toml", "version"]).ends(2);
    home.run(&["serve", "nowhere"]).ends(10);
    for later in ["gateway", "vol", "disk"] {
        home.run(&[later]).ends(2);
    }
}

#[test]
fn zero_is_refused_as_a_count() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    for args in [
        &["serve", "repo", "--max-connections", "0"][..],
        &["serve", "repo", "--max-per-client", "0"],
        &["prune", "repo", "--keep", "0"],
        &["pull", &source, "copy", "--keep", "0"],
        &["log", &source, "--max", "0"],
    ] {
        let mut command = home.command(args);
        // If the server starts by mistake, it must end at once.
        let ran = command.env("BULLA_LISTEN", "nowhere").output().unwrap();
        let ran = Ran::of(ran).ends(2);
        assert!(ran.err.contains("`0` is not a number"), "{}", ran.err);
    }
}

#[test]
fn empty_config_variable_counts_as_unset() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    let with = |value: &str| {
        let mut command = home.command(&["ls", &source]);
        Ran::of(command.env("BULLA_CONFIG", value).output().unwrap())
    };
    with("").ends(0);
    with("nowhere").ends(2);
}

#[test]
fn a_name_from_the_configuration_stands_for_a_source() {
    let home = Home::new();
    let volume = home.published();
    let text = format!(
        "deadline = \"9s\"\n[sources.docs]\nsource = \"{}\"\n",
        home.source(&volume, "repo")
    );
    std::fs::create_dir_all(home.path(".config/bulla")).unwrap();
    std::fs::write(home.path(".config/bulla/config.toml"), text).unwrap();
    assert_eq!(home.run(&["cat", "docs", "a"]).ends(0).out, "hello\n");
    let shown = home.run(&["config", "show"]).ends(0).out;
    let line = shown
        .lines()
        .find(|line| line.starts_with("deadline"))
        .unwrap();
    assert!(
        line.contains("9s") && line.contains(".config/bulla/config.toml"),
        "{line}"
    );
    let mut command = home.command(&["config", "show"]);
    let shown = command.env("BULLA_DEADLINE", "4s").output().unwrap().stdout;
    assert!(String::from_utf8(shown).unwrap().contains("BULLA_DEADLINE"));
}

#[test]
fn manual_and_completions_have_every_command() {
    let home = Home::new();
    home.run(&["man", "--out", "pages"]).ends(0);
    for page in [
        "bulla.1",
        "bulla-publish.1",
        "bulla-key-new.1",
        "bulla-mount.1",
    ] {
        assert!(home.path("pages").join(page).exists(), "{page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            home.run(&["completions", shell])
                .ends(0)
                .out
                .contains("extract")
        );
    }
    assert!(home.run(&["version"]).ends(0).out.starts_with("bulla "));
}

#[test]
fn an_error_about_a_path_names_the_path() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    for (command, path, why) in [
        ("cat", "sub", "not a regular file"),
        ("cat", "a/x", "not a directory"),
        ("ls", "a/x", "not a directory"),
        ("stat", "a/x", "not a directory"),
        ("verify", "a/x", "not a directory"),
    ] {
        let refused = home.run(&[command, &source, path]).ends(1);
        let expected = format!("error: {path}: {why}");
        assert!(
            refused.err.contains(&expected),
            "{command}: {}",
            refused.err
        );
    }
}

#[test]
fn unused_name_of_an_existing_volume_is_reported() {
    let home = Home::new();
    home.published();
    let words = ["publish", "tree", "repo", "--key", "key", "--name", "other"];
    let told = home.run(&words).ends(0);
    assert!(told.err.contains("--name was not used"), "{}", told.err);
    let plain = home.run(&words[..5]).ends(0);
    assert!(!plain.err.contains("--name"), "{}", plain.err);
}

/// After any failure, JSON ends with a result that agrees with the exit code; `ends` checks error and hint.
#[test]
fn every_failure_ends_its_json_with_a_result() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    std::fs::write(home.path("bad.toml"), "x = 1\n").unwrap();
    let none = source.replace("repo", "none");
    let gone = format!("{}@bulla://127.0.0.1:1", source.split('@').next().unwrap());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let later = format!("{}@bulla://{address}", source.split('@').next().unwrap());
    std::thread::spawn(move || {
        // A server of a later protocol. It keeps its connections: the system would answer a request that nobody has
        // read with a reset, and the reset can overtake the hello.
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = std::io::Write::write_all(&mut stream, b"bulla\x09\0\0");
            open.push(stream);
        }
    });
    for (code, kind, words) in [
        (2, "usage", &["frobnicate"][..]),
        (2, "usage", &["ls"]),
        (2, "usage", &["ls", "repo"]),
        (2, "usage", &["ls", "vol1xyz@repo"]),
        (2, "usage", &["ls", &source, "--deadline", "5"]),
        (2, "usage", &["config", "show", "--config", "bad.toml"]),
        (2, "usage", &["key", "new", "--out", "k2", "--no-input"]),
        (
            2,
            "usage",
            &["publish", "tree", "tree/repo", "--key", "key"],
        ),
        (2, "usage", &["serve", "repo", "--listen", "nowhere"]),
        (
            1,
            "failed",
            &["key", "new", "--out", "key", "--no-passphrase"],
        ),
        (1, "failed", &["extract", &source, "tree"]),
        (
            10,
            "not-found",
            &["publish", "none", "repo", "--key", "key"],
        ),
        (10, "not-found", &["cat", &source, "none"]),
        (10, "not-found", &["serve", "none"]),
        (10, "not-found", &["man", "--out", "/proc/none"]),
        (12, "wrong-key", &["key", "show", "tree"]),
        (13, "unsupported", &["ls", &later, "--deadline", "9s"]),
        (30, "unavailable", &["ls", &none]),
        (30, "unavailable", &["ls", &gone, "--deadline", "2s"]),
        (31, "mount", &["mount", &source, "none"]),
        (31, "mount", &["umount", "tree"]),
    ] {
        let mut json = vec!["--json"];
        json.extend(words);
        let told = home.run(&json).ends(code);
        assert_eq!(told.field("exit_code"), code, "{words:?}");
        assert_eq!(told.field("ok"), false, "{words:?}");
        let error = told.field("error");
        assert_eq!(error["kind"], kind, "{words:?}");
        for part in ["message", "hint"] {
            let text = error[part].as_str().unwrap();
            assert!(
                text.len() > 5 && !text.starts_with(':'),
                "{words:?}: {error}"
            );
        }
        assert!(error["causes"].is_array(), "{words:?}");
    }
}
