//! Commands whose stderr cannot be written, because the disk is full or the reader has closed the pipe. They
//! work as usual and end with the same exit code.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;

use crate::support::{Home, Mounted, damage_largest, skipped};

/// A stderr that cannot be written: 0 is a full disk, 1 a closed pipe.
fn deaf(which: usize) -> Stdio {
    if which == 0 {
        return File::options()
            .write(true)
            .open("/dev/full")
            .unwrap()
            .into();
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[track_caller]
fn ends_with(home: &Home, args: &[&str], which: usize, code: i32) {
    let mut command = home.command(args);
    let status = command.stderr(deaf(which)).stdout(Stdio::null()).status();
    let ended = status.unwrap().code();
    assert_eq!(ended, Some(code), "{args:?}, stderr {which}");
}

#[track_caller]
fn ends(home: &Home, args: &[&str], code: i32) {
    for which in 0..2 {
        ends_with(home, args, which, code);
    }
}

#[test]
fn failure_keeps_its_exit_code() {
    let home = Home::new();
    ends(&home, &[], 2);
    ends(&home, &["ls", "nosuch"], 2);
    ends(&home, &["ls", "--sunshine"], 2);
    ends(&home, &["key", "show", "nosuch"], 10);
    let source = home.source(&home.published(), "repo");
    damage_largest(&home.path("repo/segments"));
    ends(&home, &["verify", &source], 20);
    // With log messages too, in both formats.
    ends(&home, &["-vvv", "verify", &source], 20);
    ends(
        &home,
        &["-vvv", "--log-format", "json", "verify", &source],
        20,
    );
}

#[test]
fn successful_commands_still_succeed() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    for which in 0..2 {
        let key = format!("key{which}");
        let new = ["key", "new", "--no-passphrase", "--out", &key];
        ends_with(&home, &new, which, 0);
        // A new volume prints what readers need.
        let repo = format!("repo{which}");
        let publish = ["-v", "publish", "tree", &repo, "--key", "key"];
        ends_with(&home, &publish, which, 0);
    }
    ends(&home, &["pull", &source, "copy", "--path", "sub"], 0);
    ends(&home, &["prune", "repo"], 0);
    ends(&home, &["key", "list", "nowhere"], 3);
}

#[test]
fn mount_and_umount_still_work() {
    if !Path::new("/dev/fuse").exists() {
        return skipped("mount", "no /dev/fuse");
    }
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    std::fs::create_dir(home.path("mnt")).unwrap();
    for which in 0..2 {
        let _mounted = Mounted {
            home: &home,
            dir: "mnt",
        };
        ends_with(&home, &["mount", &source, "mnt"], which, 0);
        ends_with(&home, &["umount", "mnt"], which, 0);
    }
}
