//! A mount shows what lies at the limits of docs/formats/limits.md, as the other readers do.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};

use bytes::Bytes;
use rustix::fs::OFlags;
use sim::model::inode;
use trust::array::Extent;
use trust::inode::{Content, FileContent, Owner, Xattrs};

use crate::fixture::{World, noise};

const NAMES: usize = 252;
const LARGE: usize = 17;

#[tokio::test(flavor = "multi_thread")]
async fn entries_at_the_limits_are_shown() {
    let mut world = World::new();
    let handle = world.model.block(b"end").unwrap();
    let vast = [
        Extent::Hole {
            len: i64::MAX as u64 - 3,
        },
        Extent::Data { handle, len: 3 },
    ];
    let vast = world.model.extents(&vast).unwrap().unwrap();
    let vast = inode(0o644, Content::Regular(FileContent::Array(vast)));
    let target = Bytes::from("t".repeat(4095));
    let link = inode(0o777, Content::Symlink(target.clone()));
    let device = inode(
        0o600,
        Content::CharDevice {
            major: 4095,
            minor: (1 << 20) - 1,
        },
    );
    let mut owned = world.file(b"owned");
    owned.owner = Some(Owner {
        uid: u32::MAX - 1,
        gid: u32::MAX - 1,
    });
    let mut with = |list: Vec<(Bytes, Bytes)>| {
        let encoded = trust::inode::encode_xattrs(&list);
        let root = world.model.array(&encoded, 1 << 20).unwrap().unwrap();
        let mut file = world.file(b"content");
        file.xattrs = Xattrs::Stored(root);
        file
    };
    let name = |i: usize| Bytes::from(format!("user.{}{i:04}", "n".repeat(246)));
    let names = with((0..NAMES).map(|i| (name(i), Bytes::new())).collect());
    let large = |i: usize| {
        (
            Bytes::from(format!("user.{i:02}")),
            Bytes::from(noise(2, 60_000)),
        )
    };
    let large = with((0..LARGE).map(large).collect());
    let long = noise(3, 64 << 10);
    let value = with(vec![(name(0), Bytes::from(long.clone()))]);
    let file_name = "m".repeat(255);
    // 15 names of 255 bytes and a last one: a path of 4,095 bytes. 255 names and a last one: a path of 256.
    let mut by_bytes = world.file(b"by bytes");
    let mut by_names = world.file(b"by names");
    for _ in 0..15 {
        by_bytes = world.directory(vec![(&file_name, by_bytes)]);
    }
    for _ in 0..255 {
        by_names = world.directory(vec![("d", by_names)]);
    }
    let last = "p".repeat(255);
    let entries = vec![
        ("device", device),
        ("d", by_names),
        ("large", large),
        ("link", link),
        ("names", names),
        ("owned", owned),
        (&last, by_bytes),
        ("value", value),
        ("vast", vast),
    ];
    world.publish(entries, 3600);
    let m = world.mount().await;

    let vast = fs::File::open(m.path("vast")).unwrap();
    assert_eq!(vast.metadata().unwrap().len(), i64::MAX as u64);
    let mut end = [1; 4];
    let at = i64::MAX as u64 - 4;
    vast.read_exact_at(&mut end, at).unwrap();
    assert_eq!(&end, b"\0end");
    assert_eq!(
        fs::read_link(m.path("link")).unwrap().as_os_str().len(),
        4095
    );
    let device = fs::symlink_metadata(m.path("device")).unwrap();
    assert!(device.file_type().is_char_device());
    let rdev = device.rdev();
    let number = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    assert_eq!(number, (4095, (1 << 20) - 1));
    assert_eq!(fs::read(m.path("owned")).unwrap(), b"owned");

    let listed = |path: &str| {
        let mut names = vec![0; 64 << 10];
        let len = rustix::fs::listxattr(m.path(path), &mut names[..]).unwrap();
        names[..len].iter().filter(|byte| **byte == 0).count()
    };
    let got = |path: &str, name: &[u8]| {
        let mut value = vec![0; 64 << 10];
        let len = rustix::fs::getxattr(m.path(path), name, &mut value[..]).unwrap();
        value.truncate(len);
        value
    };
    assert_eq!(listed("names"), NAMES);
    assert!(got("names", &name(NAMES - 1)).is_empty());
    assert_eq!(listed("large"), LARGE);
    assert_eq!(got("large", b"user.16"), noise(2, 60_000));
    assert_eq!(got("value", &name(0)), long);

    for (first, name, names, content) in [
        ("d", "d", 256, &b"by names"[..]),
        (&last, &file_name, 16, b"by bytes"),
    ] {
        // Beside the mount's own path, the whole is longer than the system takes at once.
        let flags = OFlags::RDONLY;
        let mut here: OwnedFd = fs::File::open(m.path(first)).unwrap().into();
        for _ in 1..names {
            here = rustix::fs::openat(&here, name, flags, 0.into()).unwrap();
        }
        let mut read = vec![0; content.len() + 1];
        let len = rustix::io::read(&here, &mut read).unwrap();
        assert_eq!(&read[..len], content);
    }
}
