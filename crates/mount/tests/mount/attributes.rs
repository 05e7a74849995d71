//! The rows of docs/semantics.md, *Attributes*, that no other file tests, by stat(2) and statx(2).

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use sim::model::inode;
use trust::array::Extent;
use trust::inode::{Content, Extension, FileContent, Inode, Time};

use crate::fixture::{World, noise, symlink};

#[tokio::test(flavor = "multi_thread")]
async fn file_numbers_are_the_same_in_the_next_mount() {
    let mut world = World::new();
    let (file, twin) = (world.file(&noise(1, 9000)), world.file(&noise(1, 9000)));
    let changing = world.file(b"before");
    let dir = world.directory(vec![("twin", twin)]);
    let entries = vec![
        ("changing", changing),
        ("dir", dir.clone()),
        ("file", file.clone()),
    ];
    world.publish(entries, 3600);
    let numbers = |m: &crate::fixture::TestMount| {
        ["", "file", "dir", "dir/twin", "changing"]
            .map(|name| fs::metadata(m.path(name)).unwrap().ino())
    };
    let first = numbers(&world.mount().await);
    let second_mount = world.mount().await;
    assert_eq!(numbers(&second_mount), first, "st_ino in another mount");
    assert_ne!(first[1], first[3], "equal files at two paths");

    let changing = world.file(b"after");
    world.publish(
        vec![("changing", changing), ("dir", dir), ("file", file)],
        3600,
    );
    second_mount.wait_for(2);
    crate::fixture::wait_until("the update", || second_mount.read("changing") == b"after");
    let after = numbers(&second_mount);
    assert_eq!(after[..4], first[..4], "st_ino of what did not change");
    assert_ne!(after[4], first[4], "st_ino of what did");
}

#[tokio::test(flavor = "multi_thread")]
async fn sizes_blocks_and_links_are_as_documented() {
    let mut world = World::new();
    let handle = world.model.block::<trust::Data>(&[7; 1000]).unwrap();
    let extents = [
        Extent::Hole { len: 10 << 20 },
        Extent::Data { handle, len: 1000 },
    ];
    let root = world.model.extents(&extents).unwrap().unwrap();
    let sparse = inode(0o644, Content::Regular(FileContent::Array(root)));
    let file = world.file(&noise(2, 1025));
    let sub = world.directory(vec![]);
    let dir = world.directory(vec![("a", sub.clone()), ("b", sub), ("c", file.clone())]);
    let entries = vec![
        ("dir", dir),
        ("file", file),
        ("link", symlink("dir/c")),
        ("sparse", sparse),
    ];
    world.publish(entries, 3600);
    let m = world.mount().await;
    let stat = |name: &str| rustix::fs::lstat(m.path(name)).unwrap();
    let (dir, file, sparse) = (stat("dir"), stat("file"), stat("sparse"));
    assert_eq!((dir.st_size, file.st_size), (3, 1025), "st_size");
    assert_eq!(stat("").st_size, 4, "st_size of the root");
    assert_eq!(stat("link").st_size, 5, "st_size of a link");
    assert_eq!((file.st_blocks, dir.st_blocks), (3, 0), "st_blocks");
    let whole = ((10 << 20) + 1000_i64).div_euclid(512) + 1;
    assert_eq!(sparse.st_blocks, whole, "st_blocks with its holes");
    assert_eq!((dir.st_nlink, file.st_nlink), (1, 1), "st_nlink");
    for stat in [dir, file, sparse] {
        assert_eq!(stat.st_blksize, 131_072, "st_blksize");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_times_are_the_exact_mtime() {
    let mut world = World::new();
    let mut entries = Vec::new();
    let times = [
        ("epoch", 0, 0),
        ("early", -62_135_596_800, 999_999_999),
        ("now", 1_700_000_000, 123_456_789),
        ("late", 253_402_300_800, 1),
    ];
    for (name, seconds, nanos) in times {
        let mut file = world.file(name.as_bytes());
        file.mtime = Time { seconds, nanos };
        entries.push((name, file));
    }
    entries.sort_by_key(|(name, _)| *name);
    world.publish(entries, 3600);
    let m = world.mount().await;
    for (name, seconds, nanos) in times {
        let stat = rustix::fs::stat(m.path(name)).unwrap();
        let (nanos, mtime) = (u64::from(nanos), (stat.st_mtime, stat.st_mtime_nsec));
        assert_eq!(mtime, (seconds, nanos), "st_mtime of {name}");
        assert_eq!((stat.st_atime, stat.st_atime_nsec), mtime, "st_atime");
        assert_eq!((stat.st_ctime, stat.st_ctime_nsec), mtime, "st_ctime");
        // Reading changes none of them.
        m.read(name);
        assert_eq!(rustix::fs::stat(m.path(name)).unwrap().st_atime, seconds);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn modes_come_with_all_their_bits() {
    let mut world = World::new();
    let modes = [
        0o0000, 0o0444, 0o0666, 0o0777, 0o1777, 0o2755, 0o4755, 0o7777,
    ];
    let mut entries = Vec::new();
    let names = modes.map(|mode| format!("f{mode:04o}"));
    for (name, mode) in names.iter().zip(modes) {
        let mut file = world.file(b"x");
        file.mode = mode;
        entries.push((name.as_str(), file));
    }
    let mut sticky = world.directory(vec![]);
    sticky.mode = 0o3777;
    entries.push(("sticky", sticky));
    world.publish(entries, 3600);
    let m = world.mount().await;
    for (name, mode) in names.iter().zip(modes) {
        let st_mode = fs::metadata(m.path(name)).unwrap().mode();
        assert_eq!(st_mode, 0o100_000 | u32::from(mode), "st_mode of {name}");
    }
    assert_eq!(fs::metadata(m.path("sticky")).unwrap().mode(), 0o43_777);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_stat_calls_give_the_same_attributes() {
    let mut world = World::new();
    let mut file = world.file(&noise(3, 5000));
    file.mtime = Time {
        seconds: 1_600_000_000,
        nanos: 42,
    };
    world.publish(vec![("file", file), ("link", symlink("file"))], 3600);
    let m = world.mount().await;
    let stat = rustix::fs::stat(m.path("file")).unwrap();
    let lstat = rustix::fs::lstat(m.path("file")).unwrap();
    let open = fs::File::open(m.path("file")).unwrap();
    let fstat = rustix::fs::fstat(&open).unwrap();
    let followed = rustix::fs::stat(m.path("link")).unwrap();
    for other in [lstat, fstat, followed] {
        assert_eq!(
            (other.st_ino, other.st_size, other.st_mtime_nsec),
            (stat.st_ino, stat.st_size, stat.st_mtime_nsec)
        );
        assert_eq!((other.st_dev, other.st_mode), (stat.st_dev, stat.st_mode));
    }
    let statx = rustix::fs::statx(
        CWD,
        m.path("file"),
        AtFlags::empty(),
        StatxFlags::BASIC_STATS,
    )
    .unwrap();
    assert_eq!((statx.stx_ino, statx.stx_size), (stat.st_ino, 5000));
    assert_eq!(statx.stx_mtime.tv_nsec, 42);
    assert_eq!(u32::from(statx.stx_mode), stat.st_mode);
    let root = rustix::fs::statx(CWD, m.path(""), AtFlags::empty(), StatxFlags::BASIC_STATS);
    let is_root = StatxAttributes::MOUNT_ROOT;
    assert!(root.unwrap().stx_attributes.contains(is_root));
    assert_ne!(
        rustix::fs::lstat(m.path("link")).unwrap().st_ino,
        stat.st_ino
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_extensions_change_nothing_in_the_mount() {
    let mut world = World::new();
    let later = |mut inode: Inode| {
        let value = "later".into();
        inode.extensions.push(Extension { tag: 0x80, value });
        inode
    };
    let (file, plain) = (world.file(&noise(4, 9000)), world.file(b"plain"));
    let apart = Content::Regular(FileContent::Inline(noise(5, 4096).into()));
    let inside = later(world.file(b"inside"));
    let dir = world.directory(vec![("inside", inside)]);
    let entries = vec![
        ("apart", inode(0o644, apart)),
        ("dir", later(dir)),
        ("file", later(file)),
        ("plain", plain),
    ];
    world.publish(entries, 3600);
    let m = world.mount().await;
    let names = |path: &str| {
        let names = fs::read_dir(m.path(path)).unwrap();
        let mut names: Vec<String> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(""), ["apart", "dir", "file", "plain"]);
    assert_eq!(names("dir"), ["inside"]);
    assert_eq!(m.read("file"), noise(4, 9000));
    assert_eq!(m.read("dir/inside"), b"inside");
    assert_eq!(m.read("apart"), noise(5, 4096));
    assert_eq!(fs::metadata(m.path("apart")).unwrap().len(), 4096);
    assert_eq!(fs::metadata(m.path("file")).unwrap().mode(), 0o100_644);
}
