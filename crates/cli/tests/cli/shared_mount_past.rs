//! Mounts of a shared volume as it was: beside a mount of now, with the real binary and a real server.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::io::Errno;

use crate::shared_mount::run;
use crate::shared_mount_lab::{Mount, can_mount, two_devices};

/// Paths below a directory.
fn names(directory: &Path) -> String {
    run(directory, "find . | LC_ALL=C sort | tr '\\n' ' '")
}

#[test]
fn mount_at_a_snapshot_shows_that_state_beside_a_mount_that_writes() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let now = Mount::of(&ada, &[]);
    let make = "mkdir -p d/e && echo one > d/f && echo gone > d/e/g && ln -s f d/l && ln d/f h && chmod 640 d/f && \
                for i in $(seq 300); do echo $i > d/e/n$i; done";
    run(&now.path(""), make);
    let before = names(&now.path(""));
    let was = fs::metadata(now.path("d/f")).unwrap();
    ben.run(&["share", "snapshot", "notes", "before"]).ends(0);
    run(
        &now.path(""),
        "echo two >> d/f && rm d/e/g && mv d/e d/k && echo new > new && rm h",
    );
    // What this mount has not committed yet stays where it is.
    let mut dirty = fs::File::create(now.path("dirty")).unwrap();
    dirty.write_all(b"not in the log yet").unwrap();

    let past = Mount::on(&ada, "past", &["--at", "before"]);
    assert_eq!(names(&past.path("")), before);
    assert_eq!(
        run(&past.path(""), "cat d/f d/l h d/e/g d/e/n299"),
        "one\none\none\ngone\n299\n"
    );
    let is = fs::metadata(past.path("d/f")).unwrap();
    assert_eq!(
        (is.size(), is.mtime(), is.mtime_nsec(), is.nlink()),
        (was.size(), was.mtime(), was.mtime_nsec(), 2)
    );
    assert_eq!(is.permissions().mode() & 0o7777, 0o640);
    assert!(!past.path("new").exists() && !past.path("dirty").exists());
    // Nothing changes in it.
    for refused in [
        fs::write(past.path("d/f"), "x"),
        fs::write(past.path("made"), "x"),
        fs::remove_file(past.path("d/f")),
        fs::rename(past.path("d"), past.path("c")),
    ] {
        let errno = refused.unwrap_err().raw_os_error();
        assert_eq!(errno, Some(Errno::ROFS.raw_os_error()));
    }
    run(&now.path(""), "echo later > later && echo three > d/f");
    assert_eq!(names(&past.path("")), before);
    assert_eq!(run(&past.path(""), "cat d/f"), "one\n");
    assert!(past.status()["at"].is_u64());
    assert!(now.status()["at"].is_null());

    // It ends while the other mount goes on, which has kept everything.
    past.end();
    drop(dirty);
    assert_eq!(run(&now.path(""), "cat dirty"), "not in the log yet");
    let shown = ben.run(&["cat", "notes", "dirty"]).ends(0).out;
    assert_eq!(shown, "not in the log yet");
    now.end();

    // Alone, of another device, by the number of an entry; as a daemon.
    let listed = ben.run(&["--json", "share", "snapshots", "notes"]).ends(0);
    let entry = listed.records("snapshot")[0]["entry"].to_string();
    fs::create_dir(ben.path("past")).unwrap();
    let mounted = ben.run(&["mount", "notes", "past", "--at", &entry]).ends(0);
    let said = format!("as it was after entry {entry}, read-only,");
    assert!(mounted.err.contains(&said), "{}", mounted.err);
    assert_eq!(names(&ben.path("past")), before);
    assert_eq!(run(&ben.path("past"), "cat d/e/g"), "gone\n");
    ben.run(&["umount", "past"]).ends(0);
}

#[test]
fn state_that_never_was_is_not_mounted() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, _ben) = two_devices();
    fs::create_dir(ada.path("past")).unwrap();
    let unknown = ada
        .run(&["mount", "notes", "past", "--at", "nosuch"])
        .ends(10);
    assert!(unknown.err.contains("nosuch"), "{}", unknown.err);
    let beyond = ada
        .run(&["mount", "notes", "past", "--at", "100000"])
        .ends(10);
    assert!(beyond.err.contains("entry"), "{}", beyond.err);
    assert!(fs::read_dir(ada.path("past")).unwrap().next().is_none());
}
