//! The rows of docs/semantics.md about refusals: makes every system call that would write, on a mount.

use std::fs::{self, File};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, Timestamps, XattrFlags,
};
use rustix::io::Errno;

use crate::fixture::{TestMount, World};

async fn mounted() -> TestMount {
    let mut world = World::new();
    let file = world.file(b"x");
    let dir = world.directory(vec![("inside", file.clone())]);
    world.publish(vec![("dir", dir), ("file", file)], 3600);
    world.mount().await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_can_be_opened_for_writing() {
    let m = mounted().await;
    let mode = Mode::from_raw_mode(0o644);
    let attempts = [
        ("file", OFlags::WRONLY),
        ("file", OFlags::RDWR),
        ("file", OFlags::WRONLY | OFlags::APPEND),
        ("file", OFlags::RDONLY | OFlags::TRUNC),
        ("new", OFlags::RDONLY | OFlags::CREATE),
        ("new", OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL),
        // creat(2)
        ("new", OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC),
        ("dir", OFlags::RDWR | OFlags::TMPFILE),
    ];
    for (name, flags) in attempts {
        let opened = rustix::fs::open(m.path(name), flags, mode).map(drop);
        assert_eq!(opened, Err(Errno::ROFS), "open {name} {flags:?}");
    }
    // The flags' own names, as the document has them: O_CREAT is CREATE, O_TRUNC is TRUNC.
    let exclusive = OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL;
    let existing = rustix::fs::open(m.path("file"), exclusive, mode).map(drop);
    assert_eq!(existing, Err(Errno::EXIST), "existence is checked first");
    let file = File::open(m.path("file")).unwrap();
    assert_eq!(rustix::io::write(&file, b"y"), Err(Errno::BADF));
    assert_eq!(m.read("file"), b"x");
    assert_eq!(fs::read_dir(m.path("")).unwrap().count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_that_changes_something_is_erofs() {
    let m = mounted().await;
    let (file, new, dir) = (m.path("file"), m.path("new"), m.path("dir"));
    let mode = Mode::from_raw_mode(0o644);
    let at = AtFlags::empty();
    let me = Some(rustix::process::getuid());
    let times = Timestamps {
        last_access: rustix::fs::Timespec {
            tv_sec: 1,
            tv_nsec: 1,
        },
        last_modification: rustix::fs::Timespec {
            tv_sec: 1,
            tv_nsec: 1,
        },
    };
    let open = File::open(&file).unwrap();
    let plain = FileType::RegularFile;
    let outside = tempfile::NamedTempFile::new().unwrap();
    let truncate = fs::OpenOptions::new().write(true).open(&file);
    let attempts = [
        ("mkdir", rustix::fs::mkdir(&new, mode)),
        ("mknod", rustix::fs::mknodat(CWD, &new, plain, mode, 0)),
        ("symlink", rustix::fs::symlink("x", &new)),
        ("link", rustix::fs::link(&file, &new)),
        ("unlink", rustix::fs::unlink(&file)),
        ("unlink, absent", rustix::fs::unlink(&new)),
        ("rmdir", rustix::fs::rmdir(&dir)),
        ("rename", rustix::fs::rename(&file, &new)),
        (
            "rename, exchanging",
            rustix::fs::renameat_with(CWD, &file, CWD, &dir, RenameFlags::EXCHANGE),
        ),
        ("chmod", rustix::fs::chmod(&file, mode)),
        ("fchmod", rustix::fs::fchmod(&open, mode)),
        ("chown", rustix::fs::chown(&file, me, None)),
        ("fchown", rustix::fs::fchown(&open, me, None)),
        ("utimensat", rustix::fs::utimensat(CWD, &file, &times, at)),
        ("futimens", rustix::fs::futimens(&open, &times)),
        (
            "setxattr",
            rustix::fs::setxattr(&file, "user.x", b"y", XattrFlags::empty()),
        ),
        ("removexattr", rustix::fs::removexattr(&file, "user.x")),
    ];
    for (call, result) in attempts {
        assert_eq!(result, Err(Errno::ROFS), "{call}");
    }
    assert_eq!(truncate.unwrap_err().raw_os_error(), Some(libc::EROFS));
    // These take a descriptor for writing, which cannot be opened: EBADF or EINVAL from the kernel.
    let on_descriptors = [
        (
            "fallocate",
            rustix::fs::fallocate(&open, FallocateFlags::empty(), 0, 10),
        ),
        ("ftruncate", rustix::fs::ftruncate(&open, 0)),
        (
            "copy_file_range",
            rustix::fs::copy_file_range(outside.as_file(), None, &open, None, 1).map(drop),
        ),
    ];
    for (call, result) in on_descriptors {
        let error = result.unwrap_err();
        assert!(
            [Errno::BADF, Errno::INVAL].contains(&error),
            "{call}: {error}"
        );
    }
    let truncated = std::process::Command::new("truncate")
        .args(["--no-create", "--size=0"])
        .arg(&file)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&truncated.stderr).into_owned();
    assert!(told.contains("Read-only file system"), "truncate: {told}");
    let across = rustix::fs::rename(outside.path(), &new);
    assert!([Err(Errno::XDEV), Err(Errno::ROFS)].contains(&across));
    assert_eq!(m.read("file"), b"x");
    assert_eq!(fs::read_dir(m.path("")).unwrap().count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_cannot_be_made_writable() {
    let m = mounted().await;
    let remounted = std::process::Command::new("mount")
        .args(["-o", "remount,rw"])
        .arg(m.path(""))
        .output();
    // Whether or not the kernel accepts it, writing is still refused.
    drop(remounted);
    let refused = rustix::fs::mkdir(m.path("new"), Mode::from_raw_mode(0o755));
    assert_eq!(refused, Err(Errno::ROFS));
    let refused = fs::OpenOptions::new().write(true).open(m.path("file"));
    let refused = refused.and_then(|mut file| std::io::Write::write_all(&mut file, b"y"));
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EROFS));
    assert_eq!(m.read("file"), b"x");
}
