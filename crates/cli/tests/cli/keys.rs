//! `bulla key list`, and the prompt for a passphrase.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::support::{Home, Ran, skipped, wait_until};

/// File names in the records of a kind.
fn names(ran: &Ran, kind: &str) -> Vec<String> {
    let name = |record: &serde_json::Value| {
        let path = record["path"].as_str().unwrap().to_owned();
        path.rsplit_once('/')
            .map_or(path.clone(), |(_, name)| name.to_owned())
    };
    ran.records(kind).iter().map(name).collect()
}

fn make(home: &Home, file: &str) -> String {
    let made = home.run(&["--json", "key", "new", "--out", file, "--no-passphrase"]);
    made.ends(0).field("key").as_str().unwrap().to_owned()
}

#[test]
fn directory_is_listed_with_its_unreadable_files() {
    let home = Home::new();
    let keys = home.path("keys");
    std::fs::create_dir_all(keys.join("below")).unwrap();
    let first = make(&home, "keys/b");
    make(&home, "keys/below/hidden");
    std::fs::write(home.path("pass"), "correct horse\n").unwrap();
    let locked = ["key", "new", "--out", "keys/a", "--passphrase-file", "pass"];
    home.run(&locked).ends(0);
    std::fs::write(keys.join("README"), "bulla-key is not all of it").unwrap();
    std::fs::write(keys.join("empty"), "").unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, keys.join("pipe"), 0o600.into()).unwrap();
    let listed = home.run(&["--json", "key", "list", "keys"]).ends(0);
    assert_eq!(names(&listed, "key"), ["a", "b"]);
    assert_eq!(
        (listed.field("keys"), listed.field("unreadable")),
        (2.into(), 0.into())
    );
    let records = listed.records("key");
    let locked: Vec<_> = records
        .iter()
        .map(|one| one["passphrase"].clone())
        .collect();
    assert_eq!(locked, [true, false]);
    assert_eq!(records[1]["key"], first);
    assert_eq!(records[1]["kind"], "ed25519");
    assert!(!listed.out.contains("secret"));

    std::fs::write(keys.join("cut"), "bulla-key-1\npublic key1").unwrap();
    std::fs::set_permissions(keys.join("b"), PermissionsExt::from_mode(0o644)).unwrap();
    std::os::unix::fs::symlink("nowhere", keys.join("dangling")).unwrap();
    let listed = home.run(&["--json", "key", "list", "keys"]).ends(3);
    assert_eq!(names(&listed, "key"), ["a"]);
    assert_eq!(names(&listed, "unreadable"), ["b", "cut", "dangling"]);
    let told = home.run(&["key", "list", "keys"]).ends(3);
    assert_eq!(told.out.lines().count(), 1);
    for name in ["keys/b", "keys/cut", "keys/dangling"] {
        assert!(told.err.contains(name), "{}", told.err);
    }
    // A file that is named itself is reported even if it is not a key.
    home.run(&["key", "list", "keys/README"]).ends(3);
    home.run(&["key", "list", "keys/below/hidden", "keys/a"])
        .ends(0);
    home.run(&["key", "list", "nowhere"]).ends(3);
}

#[test]
fn without_a_path_the_users_own_keys_are_listed() {
    let home = Home::new();
    let none = home.run(&["--json", "key", "list"]).ends(0);
    assert_eq!(none.field("keys"), 0);
    assert!(!home.path(".config").exists(), "looking makes nothing");
    std::fs::create_dir_all(home.path(".config/bulla/keys")).unwrap();
    make(&home, ".config/bulla/keys/mine");
    make(&home, "elsewhere");
    let listed = home.run(&["--json", "key", "list"]).ends(0);
    assert_eq!(names(&listed, "key"), ["mine"]);
    let mut command = home.command(&["--json", "key", "list"]);
    command.env("BULLA_KEY", home.path("elsewhere"));
    let listed = Ran::of(command.output().unwrap()).ends(0);
    assert_eq!(names(&listed, "key"), ["mine", "elsewhere"]);
    let mut command = home.command(&["--json", "key", "list"]);
    command.env("BULLA_KEY_DIR", home.path("no-such-directory"));
    let listed = Ran::of(command.output().unwrap()).ends(0);
    assert_eq!(listed.field("keys"), 0);
}

#[test]
fn ctrl_c_at_the_prompt_restores_the_echo() {
    let home = Home::new();
    // The shell survives the Ctrl-C of its terminal.
    let inside = format!(
        "trap : INT; tty > terminal; {} key new --out key; echo code $?; stty -a",
        env!("CARGO_BIN_EXE_bulla")
    );
    let mut command = Command::new("script");
    command.args(["-qec", &inside, "/dev/null"]);
    for (name, value) in home.command::<&str>(&[]).get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let (stdin, stdout) = (Stdio::piped(), Stdio::piped());
    let started = command
        .current_dir(home.path(""))
        .stdin(stdin)
        .stdout(stdout)
        .spawn();
    let Ok(mut child) = started else {
        return skipped("the prompt", "no script(1)");
    };
    let mut told = child.stdout.take().unwrap();
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(b": ") && told.read(&mut byte).unwrap() == 1 {
        seen.push(byte[0]);
    }
    let mut keyboard = child.stdin.take().unwrap();
    let terminal = std::fs::read_to_string(home.path("terminal")).unwrap();
    wait_until("the echo is off", || {
        let mut stty = Command::new("stty");
        let told = stty.args(["-F", terminal.trim(), "-a"]).output().unwrap();
        String::from_utf8_lossy(&told.stdout).contains(" -echo ")
    });
    keyboard.write_all(b"\x03").unwrap();
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    drop(keyboard);
    child.wait().unwrap();
    assert!(rest.contains("code 130"), "{rest}");
    assert!(rest.contains("interrupted"), "{rest}");
    assert!(rest.contains(" echo "), "{rest}");
    assert!(!rest.contains(" -echo "), "{rest}");
    assert!(!home.path("key").exists());
}
