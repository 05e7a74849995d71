//! A mounted tree is as published: names, attributes, bytes, and nothing can be written.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::process::Command;

use bytes::Bytes;
use mount::{MountOptions, Ownership};
use rustix::fs::{Dir, Mode, OFlags};
use sim::model::inode;
use trust::array::Extent;
use trust::inode::{Content, FileContent, Inode, Owner, Time, Xattrs};

use crate::fixture::{TestMount, World, errno, noise, quick, symlink};

const E: fn(&str, Inode) -> (&str, Inode) = |name, inode| (name, inode);

#[tokio::test(flavor = "multi_thread")]
async fn attributes_are_as_published() {
    let mut world = World::new();
    let mut odd = world.file(b"odd");
    odd.mode = 0o4751;
    odd.mtime = Time {
        seconds: -5,
        nanos: 250_000_000,
    };
    odd.owner = Some(Owner {
        uid: 1234,
        gid: 2345,
    });
    let big = world.file(&noise(1, 1_000_001));
    let linked = {
        let mut linked = world.file(&noise(2, 5000));
        linked.links = 2;
        linked.link_group = Some([3; 16]);
        linked
    };
    let same = world.file(&noise(3, 5000));
    let dir = world.directory(vec![("other-name", linked.clone()), ("twin", same.clone())]);
    world.publish(
        vec![
            E("odd", odd),
            E("big", big),
            E("linked", linked),
            E("twin", same),
            E("dir", dir),
            E("link", symlink("dir/twin")),
            E("fifo", inode(0o600, Content::Fifo)),
            E("socket", inode(0o600, Content::Socket)),
            E(
                "char",
                inode(0o600, Content::CharDevice { major: 1, minor: 3 }),
            ),
            E(
                "block",
                inode(
                    0o600,
                    Content::BlockDevice {
                        major: 8,
                        minor: 257,
                    },
                ),
            ),
        ],
        3600,
    );
    let m = world.mount().await;
    let stat = |name: &str| fs::symlink_metadata(m.path(name)).unwrap();

    let odd = stat("odd");
    assert_eq!((odd.mode() & 0o7777, odd.len()), (0o4751, 3));
    assert_eq!((odd.mtime(), odd.mtime_nsec()), (-5, 250_000_000));
    assert_eq!(odd.uid(), rustix::process::getuid().as_raw(), "synthesised");
    let big = stat("big");
    assert_eq!((big.len(), big.blocks(), big.nlink()), (1_000_001, 1954, 1));
    assert!(big.blksize() >= 64 << 10);
    assert_eq!(stat("linked").ino(), stat("dir/other-name").ino());
    assert_eq!(stat("linked").nlink(), 2);
    assert_ne!(
        stat("twin").ino(),
        stat("dir/twin").ino(),
        "equal files stay distinct"
    );
    assert!(stat("dir").is_dir());
    assert_eq!(
        fs::read_link(m.path("link")).unwrap().to_str(),
        Some("dir/twin")
    );
    assert_eq!(m.read("link"), m.read("twin"));
    assert!(stat("fifo").file_type().is_fifo() && stat("socket").file_type().is_socket());
    assert_eq!(stat("char").rdev(), rustix::fs::makedev(1, 3));
    assert_eq!(stat("block").rdev(), rustix::fs::makedev(8, 257));
    assert_eq!(
        errno(File::open(m.path("char"))),
        libc::EACCES,
        "devices do nothing"
    );
    assert_eq!(fs::metadata(m.path("dir/..")).unwrap().ino(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn published_owners_are_used_only_on_request() {
    let mut world = World::new();
    let mut owned = world.file(b"x");
    owned.owner = Some(Owner {
        uid: 1234,
        gid: 2345,
    });
    let plain = world.file(b"y");
    world.publish(vec![E("owned", owned), E("plain", plain)], 3600);
    for (ownership, owned, plain) in [
        (Ownership::Published, (1234, 2345), (0, 0)),
        (Ownership::Fixed { uid: 7, gid: 8 }, (7, 8), (7, 8)),
        (Ownership::Mounter, (0, 0), (0, 0)),
    ] {
        let options = MountOptions {
            ownership,
            ..quick()
        };
        let m = TestMount::new(world.open().await, options).await;
        let of = |name: &str| {
            let stat = fs::metadata(m.path(name)).unwrap();
            (stat.uid(), stat.gid())
        };
        assert_eq!((of("owned"), of("plain")), (owned, plain), "{ownership:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_are_as_published_at_any_offset() {
    let mut world = World::new();
    let content = noise(4, 3_000_000);
    let (big, tiny, empty) = (world.file(&content), world.file(b"tiny"), world.file(b""));
    world.publish(
        vec![E("big", big), E("tiny", tiny), E("empty", empty)],
        3600,
    );
    let m = world.mount().await;
    let file = File::open(m.path("big")).unwrap();
    for (offset, len) in [
        (2_999_999, 10),
        (65_535, 2),
        (1_234_567, 500_000),
        (3_000_000, 1),
    ] {
        let mut buffer = vec![0; len];
        let got = file.read_at(&mut buffer, offset as u64).unwrap();
        let expected = &content[offset..(offset + len).min(content.len())];
        assert_eq!(
            &buffer[..got.min(expected.len())],
            expected,
            "{offset}+{len}"
        );
        assert_eq!(got, expected.len());
    }
    assert_eq!(m.read("big"), content);
    assert_eq!(
        (m.read("tiny").as_slice(), m.read("empty").len()),
        (&b"tiny"[..], 0)
    );

    let direct = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(m.path("big"));
    let mut whole = Vec::new();
    direct.unwrap().read_to_end(&mut whole).unwrap();
    assert_eq!(whole, content);
}

#[tokio::test(flavor = "multi_thread")]
async fn holes_read_as_zeros() {
    let mut world = World::new();
    let handle = world.model.block::<trust::Data>(&[7; 1000]).unwrap();
    let extents = [
        Extent::Hole { len: 10 << 20 },
        Extent::Data { handle, len: 1000 },
    ];
    let root = world.model.extents(&extents).unwrap().unwrap();
    let sparse = inode(0o644, Content::Regular(FileContent::Array(root)));
    world.publish(vec![E("sparse", sparse)], 3600);
    let m = world.mount().await;
    let content = m.read("sparse");
    assert_eq!(content.len(), (10 << 20) + 1000);
    assert!(content[..10 << 20].iter().all(|b| *b == 0));
    assert!(content[10 << 20..].iter().all(|b| *b == 7));
}

#[tokio::test(flavor = "multi_thread")]
async fn seeking_finds_data_and_holes() {
    use rustix::fs::{SeekFrom, seek};
    use rustix::io::Errno;
    let mut world = World::new();
    let handle = world.model.block::<trust::Data>(&[7; 1000]).unwrap();
    let data = Extent::Data { handle, len: 1000 };
    let mut extents = vec![Extent::Hole { len: 10 << 20 }, data, data];
    extents.push(Extent::Hole { len: 500 });
    // More than one step of data, so that a run is followed across steps.
    extents.extend(vec![data; 40_000]);
    let root = world.model.extents(&extents).unwrap().unwrap();
    let sparse = inode(0o644, Content::Regular(FileContent::Array(root)));
    let plain = world.file(b"plain");
    world.publish(vec![E("plain", plain), E("sparse", sparse)], 3600);
    let m = world.mount().await;
    let file = fs::File::open(m.path("sparse")).unwrap();
    // lseek(2) with SEEK_DATA and SEEK_HOLE.
    let data = |from| seek(&file, SeekFrom::Data(from));
    let hole = |from| seek(&file, SeekFrom::Hole(from));
    let (first, end) = (10 << 20, (10 << 20) + 2500 + 40_000_000);
    assert_eq!((data(0), hole(0)), (Ok(first), Ok(0)));
    assert_eq!(
        (data(first + 1), hole(first)),
        (Ok(first + 1), Ok(first + 2000))
    );
    assert_eq!(data(first + 2000), Ok(first + 2500));
    assert_eq!(hole(first + 2499), Ok(first + 2499));
    assert_eq!(hole(first + 2500), Ok(end));
    assert_eq!((data(end - 1), hole(end - 1)), (Ok(end - 1), Ok(end)));
    assert_eq!((data(end), hole(end)), (Err(Errno::NXIO), Err(Errno::NXIO)));
    let file = fs::File::open(m.path("plain")).unwrap();
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_run_from_the_mount() {
    let mut world = World::new();
    let mut program = world.file(&fs::read("/bin/echo").unwrap());
    program.mode = 0o755;
    let mut script = world.file(b"#!/bin/sh\necho from-script \"$1\"\n");
    script.mode = 0o755;
    let plain = world.file(b"#!/bin/sh\n");
    world.publish(
        vec![E("echo", program), E("script", script), E("plain", plain)],
        3600,
    );
    let m = world.mount().await;
    // execve(2), of a program and of a script.
    let said = Command::new(m.path("echo")).arg("hello").output().unwrap();
    assert_eq!(said.stdout, b"hello\n");
    let said = Command::new(m.path("script")).arg("x").output().unwrap();
    assert_eq!(said.stdout, b"from-script x\n");
    assert_eq!(errno(Command::new(m.path("plain")).spawn()), libc::EACCES);

    let options = MountOptions {
        no_exec: true,
        ..quick()
    };
    let m = TestMount::new(world.open().await, options).await;
    assert_eq!(errno(Command::new(m.path("echo")).spawn()), libc::EACCES);
}

#[tokio::test(flavor = "multi_thread")]
async fn extended_attributes_are_as_published_and_ours_show_the_version() {
    let mut world = World::new();
    let value = Bytes::from_static(b"\x00binary\xff");
    let mut with = world.file(&noise(5, 1000));
    with.xattrs = Xattrs::Inline(vec![(Bytes::from_static(b"user.a"), value.clone())]);
    let dir = world.directory(vec![]);
    world.publish(vec![E("with", with), E("dir", dir)], 3600);
    let m = world.mount().await;
    let get = |path: &str, name: &str| {
        let mut buffer = vec![0u8; 200];
        let len = rustix::fs::getxattr(m.path(path), name, &mut buffer[..])?;
        buffer.truncate(len);
        std::io::Result::Ok(buffer)
    };
    assert_eq!(get("with", "user.a").unwrap(), value);
    assert_eq!(errno(get("with", "user.b")), libc::ENODATA);
    let id = world.model.id().to_string();
    assert_eq!(get("", "user.bulla.volume").unwrap(), id.as_bytes());
    assert_eq!(get("dir", "user.bulla.version").unwrap(), b"1");
    assert!(!get("with", "user.bulla.handle").unwrap().is_empty());
    assert_eq!(errno(get("with", "user.bulla.other")), libc::ENODATA);

    let mut list = [0u8; 100];
    let len = rustix::fs::listxattr(m.path("with"), &mut list[..]).unwrap();
    assert_eq!(&list[..len], b"user.a\0", "ours are not listed");
    let short = rustix::fs::getxattr(m.path("with"), "user.a", &mut [0u8; 2][..]);
    assert_eq!(short, Err(rustix::io::Errno::RANGE));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_can_be_written() {
    let mut world = World::new();
    let file = world.file(b"x");
    world.publish(vec![E("file", file)], 3600);
    let m = world.mount().await;
    let file = m.path("file");
    let results = [
        errno(OpenOptions::new().write(true).open(&file)),
        errno(File::create(m.path("new"))),
        errno(fs::create_dir(m.path("new"))),
        errno(fs::remove_file(&file)),
        errno(fs::rename(&file, m.path("new"))),
        errno(fs::hard_link(&file, m.path("new"))),
        errno(std::os::unix::fs::symlink("x", m.path("new"))),
        errno(fs::set_permissions(
            &file,
            std::os::unix::fs::PermissionsExt::from_mode(0o777),
        )),
        errno(
            rustix::fs::setxattr(&file, "user.x", b"y", rustix::fs::XattrFlags::empty())
                .map_err(Into::into),
        ),
    ];
    assert!(results.iter().all(|e| *e == libc::EROFS), "{results:?}");
    assert_eq!(m.read("file"), b"x");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_names_are_enoent_and_long_names_are_too_long() {
    let mut world = World::new();
    let file = world.file(b"x");
    world.publish(vec![E("file", file)], 3600);
    let m = world.mount().await;
    for _ in 0..3 {
        assert_eq!(errno(fs::metadata(m.path("nothing"))), libc::ENOENT);
    }
    assert_eq!(errno(fs::metadata(m.path("file/x"))), libc::ENOTDIR);
    assert_eq!(
        errno(fs::metadata(m.path(&"n".repeat(256)))),
        libc::ENAMETOOLONG
    );
    assert_eq!(errno(fs::metadata(m.path(&"n".repeat(255)))), libc::ENOENT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_names_are_listed_once_each_and_seekable() {
    const NAMES: usize = 100_000;
    let mut world = World::new();
    let file = world.file(b"x");
    let names: Vec<String> = (0..NAMES).map(|i| format!("name-{i:06}")).collect();
    let many = names.iter().map(|n| (n.as_str(), file.clone())).collect();
    let many = world.directory(many);
    world.publish(vec![E("many", many)], 3600);
    let m = world.mount().await;
    let listed: Vec<_> = fs::read_dir(m.path("many"))
        .unwrap()
        .map(|e| e.unwrap())
        .collect();
    assert_eq!(listed.len(), NAMES);
    let unique: BTreeSet<_> = listed.iter().map(|e| e.file_name()).collect();
    assert_eq!(unique.len(), NAMES);
    for entry in listed.iter().step_by(9973) {
        let stat = fs::symlink_metadata(entry.path()).unwrap();
        assert_eq!(std::os::unix::fs::DirEntryExt::ino(entry), stat.ino());
    }

    let fd = rustix::fs::open(
        m.path("many"),
        OFlags::RDONLY | OFlags::DIRECTORY,
        Mode::empty(),
    );
    let mut dir = Dir::new(fd.unwrap()).unwrap();
    let mut places = Vec::new();
    while let Some(entry) = dir.read() {
        let entry = entry.unwrap();
        places.push((entry.offset(), entry.file_name().to_owned()));
    }
    assert_eq!(places.len(), NAMES + 2);
    for at in [50_000, 3, 99_999, 0, 70_001, 1] {
        dir.seek(places[at].0).unwrap();
        let next = dir.read().unwrap().unwrap();
        assert_eq!(next.file_name(), places[at + 1].1.as_c_str(), "after {at}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_opaque_directory_lists_the_names_looked_up() {
    let mut world = World::new();
    let (a, b) = (world.file(b"a"), world.file(b"b"));
    let mut hidden = world.directory(vec![("a", a), ("b", b)]);
    if let Content::Directory { opaque, .. } = &mut hidden.content {
        *opaque = true;
    }
    world.publish(vec![E("hidden", hidden)], 3600);
    let m = world.mount().await;
    let list = || {
        let names = fs::read_dir(m.path("hidden")).unwrap();
        names
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect::<Vec<_>>()
    };
    assert!(list().is_empty());
    assert_eq!(m.read("hidden/b"), b"b");
    assert!(fs::metadata(m.path("hidden/nothing")).is_err());
    assert_eq!(list(), ["b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn diff_and_find_agree_with_a_tree_on_disk() {
    let disk = tempfile::tempdir().unwrap();
    let mut world = World::new();
    let mut top = Vec::new();
    for d in 0..5u64 {
        let name = format!("d{d}");
        fs::create_dir(disk.path().join(&name)).unwrap();
        let mut files = Vec::new();
        for f in 0..40u64 {
            let (file_name, content) = (format!("f{f}"), noise(d * 100 + f, (f * f * 97) as usize));
            fs::write(disk.path().join(&name).join(&file_name), &content).unwrap();
            files.push((file_name.into_bytes(), world.file(&content)));
        }
        top.push((name.into_bytes(), world.model.directory(files).unwrap()));
    }
    let root = world.model.directory(top).unwrap();
    world.publish_root(&root, 3600);
    let m = world.mount().await;
    let diff = Command::new("diff")
        .arg("-r")
        .arg(disk.path())
        .arg(m.path(""))
        .output()
        .unwrap();
    assert!(
        diff.status.success(),
        "{}",
        String::from_utf8_lossy(&diff.stdout)
    );
    let find = Command::new("find")
        .arg(m.path(""))
        .args(["-type", "f"])
        .output()
        .unwrap();
    assert_eq!(find.stdout.split(|b| *b == b'\n').count() - 1, 200);
}
