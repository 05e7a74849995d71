//! Shared volumes from the command line: a server and devices as processes of their own.

use crate::shared_lab::{Admission, founded, joined};
use crate::support::{Home, noise};

#[test]
fn first_device_puts_and_reads_files() {
    let (_orderer, ada) = founded(&[]);
    let big = noise(7, 3_000_000);
    std::fs::create_dir_all(ada.path("tree/sub")).unwrap();
    std::fs::write(ada.path("tree/sub/big"), &big).unwrap();
    std::fs::write(ada.path("tree/small"), b"hello\n").unwrap();
    std::fs::write(ada.path("tree/empty"), b"").unwrap();
    std::os::unix::fs::symlink("sub/big", ada.path("tree/link")).unwrap();
    let put = ada.run(&["--json", "put", "-r", "tree", "notes"]).ends(0);
    assert_eq!(put.field("files"), 3);
    assert_eq!(put.field("bytes"), 3_000_006);
    let listed = ada.run(&["ls", "-R", "notes"]).ends(0);
    let names = "tree\ntree/empty\ntree/link\ntree/small\ntree/sub\ntree/sub/big\n";
    assert_eq!(listed.out, names);
    assert_eq!(
        ada.run(&["cat", "notes", "tree/small"]).ends(0).out,
        "hello\n"
    );
    let read = ada
        .command(&["cat", "notes", "tree/link"])
        .output()
        .unwrap();
    assert!(read.status.success() && read.stdout == big);
    let shown = ada
        .run(&["--json", "stat", "notes", "tree/sub/big"])
        .ends(0);
    assert_eq!(shown.field("size"), 3_000_000);
    assert_eq!(shown.field("owner"), "everybody");

    ada.run(&["mkdir", "notes", "other", "other/deep"]).ends(0);
    ada.run(&["mv", "notes", "tree/small", "other/deep"])
        .ends(0);
    assert_eq!(
        ada.run(&["cat", "notes", "other/deep/small"]).ends(0).out,
        "hello\n"
    );
    ada.run(&["cat", "notes", "tree/small"]).ends(10);
    ada.run(&["rm", "notes", "tree"]).ends(1);
    let removed = ada.run(&["--json", "rm", "-r", "notes", "tree"]).ends(0);
    assert_eq!(
        (removed.field("files"), removed.field("directories")),
        (3.into(), 2.into())
    );
    assert_eq!(ada.run(&["ls", "notes"]).ends(0).out, "other\n");
}

#[test]
fn second_device_is_admitted_by_words_and_writes() {
    let (_orderer, ada) = founded(&[]);
    std::fs::write(ada.path("a"), b"from the first\n").unwrap();
    ada.run(&["put", "a", "notes"]).ends(0);
    let laptop = joined(&ada, "ada");
    assert_eq!(
        laptop.run(&["cat", "notes", "a"]).ends(0).out,
        "from the first\n"
    );
    std::fs::write(laptop.path("b"), b"from the second\n").unwrap();
    laptop.run(&["put", "b", "notes"]).ends(0);
    assert_eq!(
        ada.run(&["cat", "notes", "b"]).ends(0).out,
        "from the second\n"
    );
    let devices = ada
        .run(&["--json", "share", "device", "list", "notes"])
        .ends(0);
    let users: Vec<_> = devices
        .records("device")
        .iter()
        .map(|it| it["user"].clone())
        .collect();
    assert_eq!(users, ["ada", "ada"]);
}
