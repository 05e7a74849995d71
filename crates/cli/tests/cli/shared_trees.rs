//! Trees in shared volumes: hard links, times, and changes that are refused before the first of them is made.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use sim::clock::ShiftedClock;

use crate::shared_lab::{founded, joined};
use crate::support::{Tmpfs, noise, skipped};

/// Sets the time of a file, a directory or a symbolic link.
fn touch(path: &Path, unix_s: u64) {
    let time = format!("@{unix_s}.123456789");
    let touched = Command::new("touch")
        .args(["-h", "-d", &time])
        .arg(path)
        .status();
    assert!(touched.unwrap().success());
}

/// Each path below `top`: kind, mode, time, and how many names it has.
fn listing(top: &Path) -> String {
    let format = "%P %y %m %T@ %n\n";
    let found = Command::new("find")
        .arg(top)
        .args(["-printf", format])
        .output()
        .unwrap();
    assert!(found.status.success());
    let text = String::from_utf8(found.stdout).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

#[test]
fn links_and_times_of_a_tree_come_back() {
    let (_orderer, ada) = founded(&[]);
    let tree = ada.path("tree");
    fs::create_dir_all(tree.join("sub/deep")).unwrap();
    fs::write(tree.join("one"), noise(3, 100_000)).unwrap();
    fs::write(tree.join("alone"), "alone").unwrap();
    fs::hard_link(tree.join("one"), tree.join("sub/two")).unwrap();
    fs::hard_link(tree.join("one"), tree.join("sub/deep/three")).unwrap();
    symlink("one", tree.join("link")).unwrap();
    fs::hard_link(tree.join("link"), tree.join("sub/link")).unwrap();
    for (at, name) in ["one", "alone", "link", "sub/deep", "sub", ""]
        .iter()
        .enumerate()
    {
        touch(&tree.join(name), 1_000_000_000 + at as u64);
    }
    ada.run(&["put", "-r", "tree", "notes"]).ends(0);
    ada.run(&["extract", "notes", "copy"]).ends(0);
    let copy = ada.path("copy/tree");
    assert_eq!(listing(&copy), listing(&tree));
    let number = |name: &str| fs::symlink_metadata(copy.join(name)).unwrap().ino();
    assert_eq!(number("one"), number("sub/two"));
    assert_eq!(number("one"), number("sub/deep/three"));
    assert_eq!(number("link"), number("sub/link"));
    let shown = ada
        .run(&["--json", "stat", "notes", "tree/sub/two"])
        .ends(0);
    assert_eq!(shown.field("links"), 3);

    // Once more over what is there: the names stay one file, and have the new content.
    fs::write(tree.join("one"), noise(4, 90_000)).unwrap();
    ada.run(&["put", "-r", "tree", "notes"]).ends(0);
    let shown = ada
        .run(&["--json", "stat", "notes", "tree/sub/deep/three"])
        .ends(0);
    assert_eq!(
        (shown.field("links"), shown.field("size")),
        (3.into(), 90_000.into())
    );
    assert_eq!(
        ada.run(&["ls", "-R", "notes"]).ends(0).out.lines().count(),
        9
    );
}

/// Few blocks can describe a tree that is larger than any disk.
#[test]
fn tree_that_is_larger_than_the_disk_is_not_extracted() {
    let (_orderer, ada) = founded(&[]);
    fs::create_dir(ada.path("tree")).unwrap();
    fs::write(ada.path("tree/big"), noise(7, 256 << 10).repeat(160)).unwrap();
    ada.run(&["put", "-r", "tree", "notes", "/"]).ends(0);
    let Some(disk) = Tmpfs::of(&ada, "small", 96 << 20) else {
        return skipped("a small disk", "no tmpfs can be mounted");
    };
    let refused = ada.run(&["extract", "notes", "small/copy"]);
    let refused = refused.ends(1);
    for part in ["nearly full", "free some space"] {
        assert!(refused.err.contains(part), "{}", refused.err);
    }
    let written = fs::metadata(ada.path("small/copy/tree/big"))
        .unwrap()
        .blocks()
        * 512;
    assert!(written <= 32 << 20, "{written}");
    disk.leave_free(63 << 20);
    let refused = ada.run(&["extract", "notes", "small/nothing"]);
    let refused = refused.ends(1);
    assert!(refused.err.contains("nearly full"), "{}", refused.err);
    assert_eq!(fs::read_dir(ada.path("small/nothing")).unwrap().count(), 0);
}

#[test]
fn extract_that_was_cut_off_goes_on_with_the_state_of_now() {
    let (_orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    fs::create_dir(ada.path("tree")).unwrap();
    for name in ["a", "b", "c"] {
        let content = noise(u64::from(name.as_bytes()[0]), 256 << 10);
        fs::write(ada.path("tree").join(name), content.repeat(40)).unwrap();
    }
    fs::hard_link(ada.path("tree/a"), ada.path("tree/linked")).unwrap();
    ada.run(&["put", "-r", "tree", "notes", "/"]).ends(0);
    let Some(disk) = Tmpfs::of(&laptop, "small", 160 << 20) else {
        return skipped("a small disk", "no tmpfs can be mounted");
    };
    disk.leave_free(80 << 20);
    let extract = ["--json", "extract", "notes", "small/copy"];
    let refused = laptop.run(&extract).ends(1);
    assert!(refused.out.contains("nearly full"), "{}", refused.out);
    disk.free();
    // Meanwhile the volume changes.
    fs::write(ada.path("b"), "another b\n").unwrap();
    ada.run(&["put", "b", "notes", "tree/b"]).ends(0);
    ada.run(&["rm", "notes", "tree/c"]).ends(0);
    let made = laptop.run(&extract).ends(3);
    assert_eq!(made.field("went_on"), true);
    assert_eq!(
        made.field("extra"),
        1,
        "what is not in the volume any more is told, and stays"
    );
    let copy = laptop.path("small/copy/tree");
    let same = |name: &str| {
        fs::read(copy.join(name)).unwrap() == fs::read(ada.path("tree").join(name)).unwrap()
    };
    assert!(same("a") && same("linked"));
    assert_eq!(fs::read_to_string(copy.join("b")).unwrap(), "another b\n");
    let number = |name: &str| fs::metadata(copy.join(name)).unwrap().ino();
    assert_eq!(number("a"), number("linked"));
}

#[test]
fn files_that_are_named_are_linked_as_those_of_a_tree() {
    let (_orderer, ada) = founded(&[]);
    fs::write(ada.path("one"), "text").unwrap();
    fs::hard_link(ada.path("one"), ada.path("two")).unwrap();
    ada.run(&["put", "one", "two", "notes"]).ends(0);
    let shown = ada.run(&["--json", "stat", "notes", "two"]).ends(0);
    assert_eq!(shown.field("links"), 2);
    ada.run(&["rm", "notes", "one"]).ends(0);
    assert_eq!(ada.run(&["cat", "notes", "two"]).ends(0).out, "text");
}

#[test]
fn put_of_a_tree_leaves_alone_what_is_the_same() {
    let (_orderer, ada) = founded(&[]);
    let tree = ada.path("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    let names = ["long", "sub/short", "sub/other"];
    for (name, bytes) in names.iter().zip([100_000, 20, 3000]) {
        fs::write(tree.join(name), noise(4, bytes)).unwrap();
        touch(&tree.join(name), 1_000_000_000);
    }
    symlink("long", tree.join("link")).unwrap();
    // The time of an entry is that of the server's next note.
    let log = || {
        let told = ada.run(&["log", "notes"]).ends(0).out;
        let lines = told.lines().filter(|line| !line.starts_with("when"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let put = || {
        let ran = ada.run(&["--json", "put", "-r", "tree", "notes"]).ends(0);
        assert_eq!(ran.field("files"), 3);
        assert_eq!(ran.field("bytes"), 103_020);
        log()
    };
    let before = put();
    assert_eq!(put(), before, "nothing has changed");
    // Content that has the same length and time is put; and so is a file of which only the mode or the time is another.
    type Change<'a> = (&'a str, &'a dyn Fn(&Path));
    let changes: [Change<'_>; 4] = [
        ("content", &|path| {
            fs::write(path, noise(5, 100_000)).unwrap();
            touch(path, 1_000_000_000);
        }),
        ("time", &|path| touch(path, 1_000_000_001)),
        ("mode", &|path| {
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        }),
        ("link", &|_| {
            fs::remove_file(tree.join("link")).unwrap();
            symlink("sub", tree.join("link")).unwrap();
        }),
    ];
    let mut last = before;
    for (at, (what, change)) in changes.iter().enumerate() {
        change(&tree.join("long"));
        let now = put();
        assert_ne!(now, last, "{what}");
        last = now;
        let copy = format!("copy{at}");
        ada.run(&["extract", "notes", &copy]).ends(0);
        let copy = ada.path(&copy).join("tree");
        let read = |top: &Path| fs::read(top.join("long")).unwrap();
        assert!(read(&copy) == read(&tree), "{what}");
        let shown = |top: &Path| {
            let mode = fs::metadata(top.join("long")).unwrap();
            let link = fs::read_link(top.join("link")).unwrap();
            (mode.mode(), mode.mtime(), link)
        };
        assert_eq!(shown(&copy), shown(&tree), "{what}");
    }
}

#[test]
fn what_cannot_be_done_is_refused_before_the_first_change() {
    let (_orderer, ada) = founded(&[]);
    fs::create_dir_all(ada.path("tree/sub")).unwrap();
    fs::create_dir_all(ada.path("other")).unwrap();
    fs::write(ada.path("tree/file"), "1").unwrap();
    fs::write(ada.path("other/file"), "2").unwrap();
    fs::write(ada.path("file"), "3").unwrap();
    ada.run(&["put", "-r", "tree", "notes"]).ends(0);
    ada.run(&["mkdir", "notes", "dir"]).ends(0);
    let before = ada.run(&["ls", "-R", "notes"]).ends(0).out;
    for (command, exit) in [
        // The last one cannot be done.
        (&["rm", "-r", "notes", "tree/file", "."][..], 1),
        (&["rm", "-r", "notes", "tree", "/"], 1),
        (&["rm", "-r", "notes", "."], 1),
        (&["rm", "-r", "notes", "tree", "gone"], 10),
        (&["rm", "notes", "tree/file", "tree/sub"], 1),
        (&["mv", "notes", "tree/file", "gone", "dir"], 10),
        (&["mv", "notes", "tree/file", ".", "dir"], 1),
        (&["mv", "notes", "tree/file", "tree", "tree/sub"], 1),
        (&["put", "file", "tree", "notes"], 1),
        (&["put", "file", "gone", "notes"], 10),
        (&["put", "tree/file", "other/file", "notes"], 2),
    ] {
        let ran = ada.run(command).ends(exit);
        assert!(ran.err.starts_with("error: "), "{command:?}: {}", ran.err);
        assert_eq!(
            ada.run(&["ls", "-R", "notes"]).ends(0).out,
            before,
            "{command:?}"
        );
    }
    // The same file twice is removed once.
    ada.run(&["rm", "notes", "tree/file", "tree//file"]).ends(0);
    let left = before.replace("tree/file\n", "");
    assert_eq!(ada.run(&["ls", "-R", "notes"]).ends(0).out, left);
}

#[test]
fn clock_of_the_server_that_is_ahead_or_goes_back_is_told() {
    let (mut orderer, ada) = founded(&[]);
    let shown = ada.run(&["share", "status", "notes"]).ends(0);
    assert!(
        shown.out.contains(", by the server's clock\n"),
        "{}",
        shown.out
    );
    assert!(!shown.err.contains("clock"), "{}", shown.err);
    let clock = ShiftedClock::build(&ada.path("")).unwrap();
    orderer.stop();
    orderer.start_as(&[], |command| clock.shift(command, 365 * 86_400));
    ada.run(&["mkdir", "notes", "ahead"]).ends(0);
    let shown = ada.run(&["share", "status", "notes"]).ends(0);
    assert!(
        shown.err.contains("ahead of this device's clock"),
        "{}",
        shown.err
    );
    let told = ada.run(&["--json", "share", "status", "notes"]).ends(0);
    let ahead = told.field("server_ahead_s").as_u64().unwrap();
    assert!(ahead > 300 * 86_400, "{ahead}");

    orderer.stop();
    orderer.start();
    ada.run(&["mkdir", "notes", "back"]).ends(0);
    let shown = ada.run(&["share", "status", "notes"]).ends(0);
    assert!(
        shown.err.contains("the server's clock went back by"),
        "{}",
        shown.err
    );
    assert!(
        !shown.err.contains("ahead of this device's"),
        "{}",
        shown.err
    );
}
