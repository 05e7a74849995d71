//! What a lock of a program shows of what was written before, on two devices with real mounts.

use std::fs;

use crate::shared_locks::{NONE, Program};
use crate::shared_mount_lab::{Mount, can_mount, two_devices};

#[test]
fn lock_shows_the_newest_version_under_more_than_a_move_takes() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    fs::write(a.path("f"), "0").unwrap();
    let mut p = Program::begin(&a.path(""));
    let mut q = Program::begin(&b.path(""));
    for program in [&mut p, &mut q] {
        assert_eq!(program.does("fd = op('f')"), "ok");
    }
    assert_eq!(q.does("fl(fd, EX)"), NONE);
    assert_eq!(q.does("os.pwrite(fd, b'1', 0)"), "1");
    // More than 16 MiB that are not committed yet lie over the version before.
    let many = "sum(os.pwrite(fd, bytes(1 << 20), 4096 + (at << 20)) for at in range(17))";
    assert_eq!(p.does(many), (17 << 20).to_string());
    assert_eq!(q.does("fl(fd, UN)"), NONE);
    assert_eq!(p.does("fl(fd, EX)"), NONE);
    assert_eq!(p.does("os.pread(fd, 1, 0).decode()"), "1");
    assert_eq!(p.does("os.pwrite(fd, b'2', 0)"), "1");
    assert_eq!(p.does("fl(fd, UN)"), NONE);
    assert_eq!(q.does("fl(fd, SH)"), NONE);
    assert_eq!(q.does("os.pread(fd, 1, 0).decode()"), "2");
    let bytes = 4096 + (17 << 20);
    assert_eq!(q.does("os.fstat(fd).st_size"), bytes.to_string());
}

#[test]
fn lock_that_becomes_one_of_readers_shows_them_what_was_written() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    fs::write(a.path("f"), "0").unwrap();
    let mut p = Program::begin(&a.path(""));
    let mut q = Program::begin(&b.path(""));
    for program in [&mut p, &mut q] {
        assert_eq!(program.does("fd = op('f')"), "ok");
    }
    for (turn, [take, lower, give], read) in [
        (
            "1",
            ["fl(fd, EX)", "fl(fd, SH)", "fl(fd, UN)"],
            "fl(fd, SH)",
        ),
        (
            "2",
            ["lk(fd, W)", "lk(fd, R, 0, 9)", "lk(fd, U)"],
            "lk(fd, R, 0, 9, True)",
        ),
    ] {
        assert_eq!(p.does(take), NONE);
        assert_eq!(p.does(&format!("os.pwrite(fd, b'{turn}', 0)")), "1");
        assert_eq!(p.does(lower), NONE);
        assert_eq!(q.does(read), NONE);
        assert_eq!(q.does("os.pread(fd, 1, 0).decode()"), turn);
        assert_eq!(p.does(give), NONE);
        assert_eq!(q.does(give), NONE);
    }
}
