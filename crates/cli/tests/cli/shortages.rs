//! A full disk, too few descriptors, and arguments in the wrong place: the hint names what to do.

use std::fs;
use std::process::Command;

use crate::support::{Home, Ran, Tmpfs, skipped};

#[test]
fn full_disk_is_told_as_such_by_every_command_that_writes() {
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    let Some(full) = Tmpfs::of(&home, "full", 4 << 20) else {
        return skipped("a full disk", "tmpfs cannot be mounted");
    };
    fs::create_dir(home.path("full/mnt")).unwrap();
    let args = [
        "protect",
        "enrol",
        "d",
        "--log",
        "full/log",
        "--key-file",
        "k",
    ];
    let enrol = [&args[..], &["--ring", "16MiB"]].concat();
    fs::write(home.path("d"), vec![1; 1 << 20]).unwrap();
    let extract = ["extract", &source, "full/copy"];
    let publish = ["publish", "tree", "full/repo", "--key", "key"];
    let pull = ["pull", &source, "full/pulled"];
    let prove = ["prove", &source, "a", "--out", "full/proof"];
    let key = ["key", "new", "--out", "full/key", "--no-passphrase"];
    let orderer = ["orderer", "new", "--out", "full/o", "--no-passphrase"];
    let mount = ["mount", &source, "full/mnt"];
    let state = "full/state";
    full.leave_free(0);
    for (args, variable) in [
        (&publish[..], None),
        (&pull, None),
        (&extract, None),
        (&prove, None),
        (&key, None),
        (&orderer, None),
        (&enrol, None),
        (&["ls", &source], Some(("BULLA_STATE_DIR", state))),
        (&mount, Some(("BULLA_STATE_DIR", state))),
    ] {
        let mut command = home.command(args);
        command.envs(variable);
        let told = Ran::of(command.output().unwrap());
        assert_ne!(told.code, 0, "{args:?}");
        assert!(
            told.err.contains("free some space"),
            "{args:?}: {}",
            told.err
        );
    }
}

/// Runs the command with a limit of open files.
fn with_files(home: &Home, limit: u32, args: &[&str]) -> Ran {
    let plain = home.command(args);
    let mut shell = Command::new("sh");
    let script = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
    shell
        .args(["-c", &script])
        .arg(plain.get_program())
        .args(plain.get_args())
        .env_clear()
        .current_dir(home.path(""));
    for (name, value) in plain.get_envs() {
        shell.env(name, value.unwrap_or_default());
    }
    Ran::of(shell.output().unwrap())
}

#[test]
fn process_with_too_few_descriptors_says_so() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    let publish = ["publish", "tree", "repo", "--key", "key"];
    let serve = ["serve", "repo", "--listen", "127.0.0.1:0"];
    for args in [&["ls", &source][..], &publish, &serve] {
        for limit in [6, 10, 31] {
            let told = with_files(&home, limit, args).ends(1);
            let hint = "too many files are open";
            assert!(told.err.contains(hint), "{limit} {args:?}: {}", told.err);
        }
    }
    // A limit that may be raised is raised.
    let soft = format!(
        "ulimit -Sn 10; exec {} ls {source}",
        env!("CARGO_BIN_EXE_bulla")
    );
    let mut command = home.command(&["ls"]);
    let variables: Vec<_> = command
        .get_envs()
        .map(|(n, v)| (n.to_owned(), v.unwrap_or_default().to_owned()))
        .collect();
    command = Command::new("sh");
    command.args(["-c", &soft]).env_clear().envs(variables);
    Ran::of(command.output().unwrap()).ends(0);
}

#[test]
fn arguments_in_the_wrong_place_and_addresses_without_a_scheme_are_told() {
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    fs::create_dir(home.path("mnt")).unwrap();
    for flags in [&[][..], &["--foreground"]] {
        let swapped = [&["mount", "mnt", &source], flags].concat();
        let told = home.run(&swapped).ends(2).err;
        let hint = format!("bulla mount {source} mnt");
        assert!(told.contains(&hint), "{told}");
    }
    for host in ["docs.example.org", "localhost:28552"] {
        let told = home.run(&["ls", &format!("{volume}@{host}")]).ends(30);
        let hint = format!("bulla://{host}");
        assert!(told.err.contains(&hint), "{}", told.err);
    }
    let told = home.run(&["ls", &format!("{volume}@repo2/x")]).ends(30);
    assert!(!told.err.contains("bulla://x"), "{}", told.err);
}

#[test]
fn verify_of_small_files_does_not_say_that_nothing_was_verified() {
    let home = Home::new();
    home.published();
    fs::remove_dir_all(home.path("tree/sub/deep")).unwrap();
    let volume = home.publish().ends(0).field("volume");
    let source = home.source(volume.as_str().unwrap(), "repo");
    let told = home.run(&["verify", &source]).ends(0).out;
    assert!(told.contains("content of small files"), "{told}");
    assert!(!told.contains(" 0 "), "{told}");
}
