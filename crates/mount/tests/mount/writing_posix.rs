//! The interesting cases of pjdfstest as tests of our own: names, links, renames, open files without
//! names, permissions, times, holes, extended attributes, on a mount that can be written.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{
    FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink,
};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FallocateFlags, RenameFlags, SeekFrom, XattrFlags, renameat_with};
use rustix::io::Errno;
use sim::memfs::MemFsOptions;

use crate::fixture::{errno, wait_until};
use crate::writable::WritableMount;

fn rename_with(from: &Path, to: &Path, flags: RenameFlags) -> Result<(), Errno> {
    renameat_with(CWD, from, CWD, to, flags)
}

#[tokio::test(flavor = "multi_thread")]
async fn rename_replaces_files_and_empty_directories_only() {
    let m = WritableMount::plain().await;
    for name in ["file", "other"] {
        fs::write(m.path(name), name).unwrap();
    }
    for name in ["empty", "full", "full/inner"] {
        fs::create_dir(m.path(name)).unwrap();
    }
    let refused = |from: &str, to: &str| errno(fs::rename(m.path(from), m.path(to)));
    assert_eq!(refused("file", "empty"), libc::EISDIR);
    assert_eq!(refused("empty", "file"), libc::ENOTDIR);
    assert_eq!(refused("empty", "full"), libc::ENOTEMPTY);
    assert_eq!(refused("full", "full/inner/below"), libc::EINVAL);
    assert_eq!(refused("none", "file"), libc::ENOENT);
    assert_eq!(refused("file", "none/file"), libc::ENOENT);
    assert_eq!(refused("file", &"n".repeat(256)), libc::ENAMETOOLONG);

    // An open file keeps its content when another takes its name.
    let mut old = File::open(m.path("other")).unwrap();
    fs::rename(m.path("file"), m.path("other")).unwrap();
    assert_eq!(fs::read(m.path("other")).unwrap(), b"file");
    let mut content = String::new();
    old.read_to_string(&mut content).unwrap();
    assert_eq!(
        (content.as_str(), old.metadata().unwrap().nlink()),
        ("other", 0)
    );

    // A directory that moves takes its link along, and its `..` follows.
    let links = |name: &str| fs::metadata(m.path(name)).unwrap().nlink();
    assert_eq!((links(""), links("full")), (4, 3));
    fs::rename(m.path("full"), m.path("empty")).unwrap();
    assert_eq!((links(""), links("empty")), (3, 3));
    fs::rename(m.path("empty/inner"), m.path("inner")).unwrap();
    assert_eq!((links(""), links("empty")), (4, 2));
    let above = fs::metadata(m.path("inner/..")).unwrap().ino();
    assert_eq!(above, fs::metadata(m.root()).unwrap().ino());
}

#[tokio::test(flavor = "multi_thread")]
async fn rename_flags_are_honoured() {
    let m = WritableMount::plain().await;
    fs::write(m.path("a"), "a").unwrap();
    fs::create_dir_all(m.path("d/below")).unwrap();
    let (a, d, new) = (m.path("a"), m.path("d"), m.path("new"));
    let keep = RenameFlags::NOREPLACE;
    assert_eq!(rename_with(&a, &d, keep), Err(Errno::EXIST));
    assert_eq!(
        rename_with(&a, &new, RenameFlags::EXCHANGE),
        Err(Errno::NOENT)
    );
    assert_eq!(
        rename_with(&a, &new, RenameFlags::WHITEOUT),
        Err(Errno::INVAL)
    );
    rename_with(&a, &new, keep).unwrap();
    rename_with(&new, &d, RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(&d).unwrap(), b"a");
    assert!(new.join("below").is_dir());
    // Across directories, where links and `..` change sides.
    fs::create_dir(m.path("e")).unwrap();
    fs::write(m.path("e/x"), "x").unwrap();
    rename_with(&m.path("e/x"), &new, RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::metadata(m.path("e")).unwrap().nlink(), 3);
    assert_eq!(fs::metadata(m.root()).unwrap().nlink(), 3);
    let into_itself = rename_with(&m.path("e"), &m.path("e/x/below"), RenameFlags::EXCHANGE);
    assert_eq!(into_itself, Err(Errno::INVAL));
}

#[tokio::test(flavor = "multi_thread")]
async fn hard_links_are_one_file() {
    let m = WritableMount::plain().await;
    fs::write(m.path("a"), "content").unwrap();
    fs::hard_link(m.path("a"), m.path("b")).unwrap();
    let (a, b) = (
        fs::metadata(m.path("a")).unwrap(),
        fs::metadata(m.path("b")).unwrap(),
    );
    assert_eq!((a.ino(), a.nlink(), b.nlink()), (b.ino(), 2, 2));
    fs::write(m.path("b"), "changed").unwrap();
    assert_eq!(fs::read(m.path("a")).unwrap(), b"changed");
    // POSIX: nothing happens, both names stay.
    fs::rename(m.path("a"), m.path("b")).unwrap();
    assert!(m.path("a").exists() && m.path("b").exists());
    assert_eq!(errno(fs::hard_link(m.path("a"), m.path("b"))), libc::EEXIST);
    fs::create_dir(m.path("d")).unwrap();
    assert_eq!(errno(fs::hard_link(m.path("d"), m.path("e"))), libc::EPERM);
    fs::remove_file(m.path("a")).unwrap();
    assert_eq!(fs::metadata(m.path("b")).unwrap().nlink(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_without_names_exists_as_long_as_it_is_open() {
    let m = WritableMount::plain().await;
    let begin = m.fs.counts();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(m.path("f"))
        .unwrap();
    file.write_all(b"first").unwrap();
    fs::remove_file(m.path("f")).unwrap();
    assert_eq!(errno(fs::metadata(m.path("f"))), libc::ENOENT);
    // The name is free for another file.
    fs::write(m.path("f"), "another").unwrap();
    file.write_all(b" second").unwrap();
    file.set_permissions(Permissions::from_mode(0o600)).unwrap();
    file.rewind().unwrap();
    let mut content = String::new();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "first second");
    file.set_len(3).unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!(
        (metadata.nlink(), metadata.len(), metadata.mode() & 0o777),
        (0, 3, 0o600)
    );
    drop(file);
    fs::remove_file(m.path("f")).unwrap();
    wait_until("both are collected", || m.fs.counts() == begin);
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_are_removed_when_empty() {
    let m = WritableMount::plain().await;
    fs::create_dir_all(m.path("a/b")).unwrap();
    assert_eq!(errno(fs::remove_dir(m.path("a"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::remove_file(m.path("a"))), libc::EISDIR);
    fs::write(m.path("f"), "").unwrap();
    assert_eq!(errno(fs::remove_dir(m.path("f"))), libc::ENOTDIR);
    let open = File::open(m.path("a/b")).unwrap();
    fs::remove_dir(m.path("a/b")).unwrap();
    let made = rustix::fs::mkdirat(&open, "new", rustix::fs::Mode::RWXU);
    assert_eq!(
        made,
        Err(Errno::NOENT),
        "nothing is made in a removed directory"
    );
    fs::remove_dir(m.path("a")).unwrap();
    let name = "n".repeat(255);
    fs::write(m.path(&name), "").unwrap();
    let long = errno(fs::write(m.path(&format!("{name}n")), ""));
    assert_eq!(long, libc::ENAMETOOLONG);
    fs::remove_file(m.path(&name)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_shows_each_entry_once_while_others_come_and_go() {
    let m = WritableMount::plain().await;
    for i in 0..3000 {
        File::create(m.path(&format!("stays-{i}"))).unwrap();
        File::create(m.path(&format!("goes-{i}"))).unwrap();
    }
    let mut stayed = 0;
    for (i, entry) in fs::read_dir(m.root()).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        stayed += usize::from(name.starts_with("stays"));
        if name.starts_with("goes") {
            fs::remove_file(m.path(&name)).unwrap();
        }
        if i < 3000 {
            File::create(m.path(&format!("new-{i}"))).unwrap();
        }
    }
    assert_eq!(stayed, 3000);
    fs::read_dir(m.root()).unwrap().for_each(|entry| {
        fs::remove_file(entry.unwrap().path()).unwrap();
    });
    assert_eq!(fs::read_dir(m.root()).unwrap().count(), 0);
    wait_until("the kernel forgets them", || m.fs.counts() == (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn open_flags_create_exclude_truncate_and_append() {
    for m in WritableMount::both().await {
        let path = m.path("f");
        fs::write(&path, "content").unwrap();
        let exclusive = OpenOptions::new().write(true).create_new(true).open(&path);
        assert_eq!(errno(exclusive), libc::EEXIST);
        let mut appending = OpenOptions::new().append(true).open(&path).unwrap();
        appending.write_all(b"+").unwrap();
        // O_APPEND writes at the end, even after another writer moved it, whatever the offset.
        let mut other = OpenOptions::new().append(true).open(&path).unwrap();
        other.write_all(b"other").unwrap();
        appending.write_all_at(b"+", 0).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"content+other+");
        File::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        symlink("f", m.path("link")).unwrap();
        let mut no_follow = OpenOptions::new();
        no_follow.read(true).custom_flags(libc::O_NOFOLLOW);
        assert_eq!(errno(no_follow.open(m.path("link"))), libc::ELOOP);
        let mut directory = OpenOptions::new();
        directory.read(true).custom_flags(libc::O_DIRECTORY);
        assert_eq!(errno(directory.open(&path)), libc::ENOTDIR);
        assert_eq!(errno(File::create(m.root())), libc::EISDIR);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_type_of_file_can_be_made() {
    let m = WritableMount::plain().await;
    let long = "t".repeat(4000);
    symlink(&long, m.path("link")).unwrap();
    assert_eq!(
        fs::read_link(m.path("link")).unwrap().to_str().unwrap(),
        long
    );
    assert_eq!(fs::symlink_metadata(m.path("link")).unwrap().len(), 4000);
    let _socket = std::os::unix::net::UnixListener::bind(m.path("socket")).unwrap();
    assert!(
        fs::metadata(m.path("socket"))
            .unwrap()
            .file_type()
            .is_socket()
    );
    let fifo = m.path("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let writer = std::thread::spawn({
        let fifo = fifo.clone();
        move || fs::write(fifo, "through the pipe")
    });
    assert_eq!(fs::read(&fifo).unwrap(), b"through the pipe");
    writer.join().unwrap().unwrap();
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED device nodes: only root may make them");
    }
    let made = Command::new("mknod")
        .arg(m.path("null"))
        .args(["c", "1", "3"])
        .status();
    assert!(made.unwrap().success());
    let null = fs::metadata(m.path("null")).unwrap();
    assert!(null.file_type().is_char_device());
    assert_eq!(null.rdev(), rustix::fs::makedev(1, 3));
    fs::write(m.path("null"), "swallowed").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn times_follow_the_operation() {
    for m in WritableMount::both().await {
        let path = m.path("f");
        fs::write(&path, "x").unwrap();
        let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_007, 123_456_789);
        let set_old = || {
            File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_modified(old)
        };
        let modified = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        set_old().unwrap();
        assert_eq!(modified(&path), old, "to the nanosecond");
        let changed = |path: &Path| {
            let metadata = fs::metadata(path).unwrap();
            (metadata.ctime(), metadata.ctime_nsec())
        };
        let before = changed(&path);
        // The kernel's clock for times may tick only every few milliseconds.
        std::thread::sleep(Duration::from_millis(20));
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        assert!(changed(&path) > before && modified(&path) == old, "chmod");
        fs::hard_link(&path, m.path("link")).unwrap();
        assert_eq!(modified(&path), old, "link");
        fs::remove_file(m.path("link")).unwrap();
        OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"y")
            .unwrap();
        assert!(modified(&path) > old, "write");
        set_old().unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(1)
            .unwrap();
        assert!(modified(&path) > old, "truncate");
        let directory = modified(m.root());
        std::thread::sleep(Duration::from_millis(20));
        fs::rename(&path, m.path("g")).unwrap();
        assert!(modified(m.root()) > directory, "a name was added");
        let before_1970 = SystemTime::UNIX_EPOCH - Duration::new(5, 500_000_000);
        let file = File::options().write(true).open(m.path("g")).unwrap();
        file.set_modified(before_1970).unwrap();
        assert_eq!(modified(&m.path("g")), before_1970);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_time_can_be_set() {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    for m in WritableMount::both().await {
        fs::write(m.path("f"), "x").unwrap();
        for (tv_sec, tv_nsec) in [
            // The kernel clears the nanoseconds of the first and the last second.
            (i64::MIN, 0),
            (i64::MIN + 1, 999_999_999),
            (-1, 999_999_999),
            (i64::MAX - 1, 999_999_999),
            (i64::MAX, 0),
        ] {
            let time = Timespec { tv_sec, tv_nsec };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            utimensat(CWD, m.path("f"), &times, AtFlags::empty()).unwrap();
            let shown = fs::metadata(m.path("f")).unwrap();
            assert_eq!((shown.mtime(), shown.mtime_nsec()), (tv_sec, tv_nsec));
            assert_eq!((shown.atime(), shown.atime_nsec()), (tv_sec, tv_nsec));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn holes_are_made_found_and_take_no_space() {
    let m = WritableMount::plain().await;
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(m.path("f"));
    let file = file.unwrap();
    file.write_all_at(b"end", 10 << 20).unwrap();
    let blocks = || file.metadata().unwrap().blocks();
    assert_eq!(
        (file.metadata().unwrap().len(), blocks()),
        ((10 << 20) + 3, 8)
    );
    let seek = |at| rustix::fs::seek(&file, at);
    assert_eq!(seek(SeekFrom::Data(0)), Ok(10 << 20));
    assert_eq!(seek(SeekFrom::Hole(0)), Ok(0));
    assert_eq!(seek(SeekFrom::Hole(10 << 20)), Ok((10 << 20) + 3));
    assert_eq!(seek(SeekFrom::Data((10 << 20) + 3)), Err(Errno::NXIO));
    let fallocate = |flags, at, len| rustix::fs::fallocate(&file, flags, at, len);
    let keep = FallocateFlags::KEEP_SIZE;
    fallocate(FallocateFlags::empty(), 0, 1 << 20).unwrap();
    assert_eq!(blocks(), 2048 + 8);
    fallocate(FallocateFlags::PUNCH_HOLE | keep, 0, 512 << 10).unwrap();
    assert_eq!(
        (blocks(), seek(SeekFrom::Data(0))),
        (1024 + 8, Ok(512 << 10))
    );
    fallocate(keep, 20 << 20, 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (10 << 20) + 3);
    let zeroed = FallocateFlags::ZERO_RANGE;
    fallocate(zeroed, 10 << 20, 8192).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (10 << 20) + 8192);
    let mut end = [1; 3];
    file.read_exact_at(&mut end, 10 << 20).unwrap();
    assert_eq!(end, [0; 3]);
    let collapse = fallocate(FallocateFlags::COLLAPSE_RANGE, 0, 4096);
    assert_eq!(collapse, Err(Errno::OPNOTSUPP));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_file_system_is_enospc_until_space_is_freed() {
    for writeback_cache in [false, true] {
        let options = MemFsOptions {
            capacity_bytes: 1 << 20,
            writeback_cache,
            ..MemFsOptions::default()
        };
        let m = WritableMount::new(options).await;
        let mut file = File::create(m.path("big")).unwrap();
        // With the write-back cache, the error comes with fsync at the latest.
        let written = file
            .write_all(&vec![7; 2 << 20])
            .and_then(|()| file.sync_all());
        assert_eq!(errno(written), libc::ENOSPC);
        drop(file);
        fs::remove_file(m.path("big")).unwrap();
        wait_until("the space is free", || m.fs.counts().0 == 1);
        fs::write(m.path("small"), vec![1; 4096]).unwrap();
        let statistics = rustix::fs::statvfs(m.root()).unwrap();
        assert_eq!(statistics.f_blocks, 256);
        let file = File::options().write(true).open(m.path("small")).unwrap();
        let reserved = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 8 << 20);
        assert_eq!(reserved, Err(Errno::NOSPC));
        File::open(m.path("small")).unwrap().sync_all().unwrap();
        assert_eq!(m.fs.content("small").unwrap(), vec![1; 4096]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn extended_attributes_are_set_replaced_listed_and_removed() {
    let m = WritableMount::plain().await;
    let path = m.path("f");
    fs::write(&path, "").unwrap();
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    let get = |name: &str| {
        let mut value = vec![0; 100_000];
        let len = rustix::fs::getxattr(&path, name, &mut value)?;
        value.truncate(len);
        Ok::<_, Errno>(value)
    };
    set("user.a", b"1", XattrFlags::CREATE).unwrap();
    assert_eq!(set("user.a", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.b", b"2", XattrFlags::REPLACE), Err(Errno::NODATA));
    set("user.a", b"two", XattrFlags::REPLACE).unwrap();
    set("user.b", b"", XattrFlags::empty()).unwrap();
    assert_eq!(
        (get("user.a").unwrap(), get("user.b").unwrap()),
        (b"two".to_vec(), Vec::new())
    );
    assert_eq!(get("user.c"), Err(Errno::NODATA));
    let short = rustix::fs::getxattr(&path, "user.a", &mut [0; 2]);
    assert_eq!(short, Err(Errno::RANGE));
    let mut names = vec![0; 100];
    let len = rustix::fs::listxattr(&path, &mut names).unwrap();
    assert_eq!(&names[..len], b"user.a\0user.b\0");
    let big = vec![3; 60 << 10];
    set("user.big", &big, XattrFlags::empty()).unwrap();
    assert!(get("user.big").unwrap() == big);
    assert_eq!(
        set("user.more", &big, XattrFlags::empty()),
        Err(Errno::NOSPC)
    );
    let too_big = set("user.big", &vec![0; (64 << 10) + 1], XattrFlags::empty());
    assert_eq!(too_big, Err(Errno::TOOBIG));
    rustix::fs::removexattr(&path, "user.a").unwrap();
    assert_eq!(rustix::fs::removexattr(&path, "user.a"), Err(Errno::NODATA));
    let acl = set("system.posix_acl_access", b"x", XattrFlags::empty());
    assert!(
        acl.is_err(),
        "access control lists are not taken for stored"
    );
}

/// Runs a script in the mount as a user who owns nothing.
fn as_other(m: &WritableMount, gid: u32, script: &str) -> bool {
    let status = Command::new("sh")
        .args(["-c", script])
        .current_dir(m.root())
        .uid(12_345)
        .gid(gid)
        .stderr(std::process::Stdio::null())
        .status();
    status.unwrap().success()
}

#[tokio::test(flavor = "multi_thread")]
async fn permissions_are_those_of_the_attributes() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED permissions: only root may act as others");
    }
    let m = WritableMount::plain().await;
    let mode = |name: &str, mode| {
        fs::set_permissions(m.path(name), Permissions::from_mode(mode)).unwrap();
    };
    fs::write(m.path("f"), "content").unwrap();
    std::os::unix::fs::chown(m.path("f"), Some(0), Some(777)).unwrap();
    for (bits, reads, writes, reads_as_group) in [
        (0o600, false, false, false),
        (0o640, false, false, true),
        (0o604, true, false, false),
        (0o666, true, true, true),
    ] {
        mode("f", bits);
        assert_eq!(as_other(&m, 12_345, "cat f > /dev/null"), reads, "{bits:o}");
        assert_eq!(as_other(&m, 12_345, "echo x >> f"), writes, "{bits:o}");
        assert_eq!(
            as_other(&m, 777, "cat f > /dev/null"),
            reads_as_group,
            "{bits:o}"
        );
    }
    assert!(!as_other(&m, 777, "chmod 777 f") && !as_other(&m, 777, "chown 12345 f"));
    assert!(!as_other(&m, 12_345, "rm -f f") && !as_other(&m, 12_345, "mv f g"));

    fs::create_dir(m.path("d")).unwrap();
    mode("d", 0o777);
    assert!(as_other(
        &m,
        12_345,
        "echo own > d/own && mkdir d/sub && mv d/own d/sub/own"
    ));
    let own = fs::metadata(m.path("d/sub/own")).unwrap();
    assert_eq!((own.uid(), own.gid()), (12_345, 12_345));
    fs::write(m.path("d/roots"), "").unwrap();
    mode("d", 0o1777);
    assert!(!as_other(&m, 12_345, "rm -f d/roots"), "a sticky directory");
    assert!(
        !as_other(&m, 12_345, "mv d/roots d/taken"),
        "a sticky directory"
    );
    assert!(as_other(&m, 12_345, "rm -r d/sub"), "one's own");
    mode("d", 0o744);
    assert!(as_other(&m, 12_345, "ls d > /dev/null") && !as_other(&m, 12_345, "cat d/roots"));
    mode("d", 0o711);
    assert!(!as_other(&m, 12_345, "ls d > /dev/null") && as_other(&m, 12_345, "cat d/roots"));
}

#[tokio::test(flavor = "multi_thread")]
async fn set_id_bits_are_inherited_by_directories_and_cleared_by_writing() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED set-id bits: only root may act as others");
    }
    for m in WritableMount::both().await {
        fs::create_dir(m.path("d")).unwrap();
        std::os::unix::fs::chown(m.path("d"), Some(0), Some(777)).unwrap();
        fs::set_permissions(m.path("d"), Permissions::from_mode(0o2777)).unwrap();
        assert!(as_other(&m, 12_345, "umask 027; mkdir d/sub; echo x > d/f"));
        let sub = fs::metadata(m.path("d/sub")).unwrap();
        assert_eq!((sub.gid(), sub.mode() & 0o7777), (777, 0o2750));
        let file = fs::metadata(m.path("d/f")).unwrap();
        assert_eq!((file.gid(), file.mode() & 0o7777), (777, 0o640));

        let mode = || fs::metadata(m.path("program")).unwrap().mode() & 0o7777;
        fs::write(m.path("program"), "x").unwrap();
        let set = || fs::set_permissions(m.path("program"), Permissions::from_mode(0o6777));
        set().unwrap();
        assert!(as_other(&m, 12_345, "echo y >> program"));
        assert_eq!(mode(), 0o777, "written by somebody else");
        set().unwrap();
        std::os::unix::fs::chown(m.path("program"), Some(0), Some(5)).unwrap();
        assert_eq!(mode(), 0o777, "given to another group");
    }
}
