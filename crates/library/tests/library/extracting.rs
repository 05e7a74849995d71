//! `extract` against a hostile publisher: nothing outside the target, no privileges, no full disk.

use content::room::Room;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bulla::extract::{ExtractError, ExtractOptions, Extracted};
use bytes::Bytes;
use reader::Tally;
use sim::model::{Model, inode};
use trust::array::Extent;
use trust::inode::{Content, FileContent, Inode, Owner, Xattrs};

use crate::support::extract;
use crate::world::{World, noise, now};

type Entries = Vec<(Vec<u8>, Inode)>;

/// Extracts what `make` makes into `out` below a fresh directory.
async fn extracted(
    below: &Path,
    options: &ExtractOptions,
    make: impl FnOnce(&mut Model) -> Entries,
) -> Result<Extracted, ExtractError> {
    let mut world = World::new();
    let entries = make(&mut world.model);
    let root = world.model.directory(entries).unwrap();
    world.head = world.model.publish(&root, now(), 3600).unwrap();
    let volume = world.open(vec![Arc::new(world.replica())]).await.unwrap();
    let snapshot = volume.current().unwrap();
    let tally = Arc::new(Tally::default());
    extract(&volume, &snapshot, b"", &below.join("out"), options, &tally).await
}

fn link(target: &[u8]) -> Inode {
    inode(0o777, Content::Symlink(Bytes::copy_from_slice(target)))
}

fn linked(mut inode: Inode, group: u8) -> Inode {
    inode.links = 2;
    inode.link_group = Some([group; 16]);
    inode
}

#[tokio::test]
async fn nothing_is_written_through_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let target = outside.as_os_str().as_encoded_bytes().to_vec();
    // The names sort so that the link is made first; the second member of the set is then found by path.
    extracted(dir.path(), &ExtractOptions::default(), |model| {
        let file = linked(model.file(b"payload", 8192).unwrap(), 1);
        let below = model
            .directory(vec![(b"f".to_vec(), file.clone())])
            .unwrap();
        vec![
            (b"a".to_vec(), link(&target)),
            (b"b".to_vec(), link(b"../outside/made")),
            (b"d".to_vec(), below),
            (b"e".to_vec(), file),
            (b"self".to_vec(), link(b"self")),
        ]
    })
    .await
    .unwrap();
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    let out = dir.path().join("out");
    assert_eq!(std::fs::read(out.join("d/f")).unwrap(), b"payload");
    let number = |path: &str| out.join(path).metadata().unwrap().ino();
    assert_eq!(number("d/f"), number("e"));
}

#[tokio::test]
async fn a_link_set_never_joins_inodes_that_differ() {
    let dir = tempfile::tempdir().unwrap();
    extracted(dir.path(), &ExtractOptions::default(), |model| {
        let one = linked(model.file(b"one", 8192).unwrap(), 1);
        let two = linked(model.file(b"two", 8192).unwrap(), 1);
        let mut open = one.clone();
        open.mode = 0o666;
        vec![
            (b"1".to_vec(), one),
            (b"2".to_vec(), two),
            (b"3".to_vec(), open),
        ]
    })
    .await
    .unwrap();
    let out = dir.path().join("out");
    for (name, content, mode) in [
        ("1", "one", 0o644),
        ("2", "two", 0o644),
        ("3", "one", 0o666),
    ] {
        let found = out.join(name).metadata().unwrap();
        assert_eq!(std::fs::read_to_string(out.join(name)).unwrap(), content);
        assert_eq!((found.nlink(), found.mode() & 0o7777), (1, mode), "{name}");
    }
}

#[tokio::test]
async fn no_privileges_are_set_without_owners() {
    let dir = tempfile::tempdir().unwrap();
    let made = extracted(dir.path(), &ExtractOptions::default(), |model| {
        let mut program = model.file(b"#!/bin/sh", 8192).unwrap();
        program.mode = 0o6755;
        program.owner = Some(Owner { uid: 12, gid: 34 });
        program.xattrs = Xattrs::Inline(vec![(
            Bytes::from_static(b"security.capability"),
            Bytes::from_static(b"\x01\0\0\x02\xff\xff\xff\xff\0\0\0\0\0\0\0\0\0\0\0\0"),
        )]);
        let mut below = model.directory(Vec::new()).unwrap();
        below.mode = 0o7777;
        vec![(b"d".to_vec(), below), (b"p".to_vec(), program)]
    })
    .await
    .unwrap();
    let own = std::fs::metadata(dir.path()).unwrap();
    for (name, mode) in [("p", 0o755), ("d", 0o1777)] {
        let found = dir.path().join("out").join(name).metadata().unwrap();
        assert_eq!(found.permissions().mode() & 0o7777, mode, "{name}");
        assert_eq!((found.uid(), found.gid()), (own.uid(), own.gid()), "{name}");
    }
    let mut list = [0u8; 64];
    let program = dir.path().join("out/p");
    let capability = rustix::fs::getxattr(&program, "security.capability", &mut list);
    assert_eq!(capability.unwrap_err(), rustix::io::Errno::NODATA);
    let told: Vec<&str> = made.skipped.iter().map(|(_, why)| why.as_str()).collect();
    assert_eq!(told, ["security.capability: set only with --owner"]);
}

#[tokio::test]
async fn no_device_is_made_without_owners() {
    let devices = |_: &mut Model| {
        let (major, minor) = (1, 8);
        vec![
            (
                b"block".to_vec(),
                inode(0o666, Content::BlockDevice { major, minor }),
            ),
            (
                b"char".to_vec(),
                inode(0o666, Content::CharDevice { major, minor }),
            ),
        ]
    };
    let dir = tempfile::tempdir().unwrap();
    let refused = extracted(dir.path(), &ExtractOptions::default(), devices).await;
    assert!(matches!(refused, Err(ExtractError::Special { .. })));
    let skipping = ExtractOptions {
        skip_special: true,
        ..ExtractOptions::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let made = extracted(dir.path(), &skipping, devices).await.unwrap();
    assert_eq!(made.skipped_count, 2);
    for entry in std::fs::read_dir(dir.path().join("out")).unwrap() {
        let kind = entry.unwrap().file_type().unwrap();
        assert!(!kind.is_char_device() && !kind.is_block_device());
    }
}

#[test]
fn file_of_the_greatest_length_takes_neither_space_nor_time_or_is_left_out() {
    // A tmpfs has files of that length, ext4 does not.
    greatest_length(&tempfile::tempdir_in("/dev/shm").unwrap());
    greatest_length(&tempfile::tempdir().unwrap());
}

fn greatest_length(dir: &tempfile::TempDir) {
    let below = dir.path().to_owned();
    let (tell, told) = std::sync::mpsc::channel();
    // On a thread of its own, which the test does not join if it writes without end.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let options = ExtractOptions::default();
        let _ = tell.send(runtime.block_on(extracted(&below, &options, vast)));
    });
    let outcome = told.recv_timeout(Duration::from_secs(60));
    let made = outcome.expect("the extraction does not end").unwrap();
    let out = dir.path().join("out");
    assert_eq!(std::fs::read(out.join("small")).unwrap(), b"content");
    assert!(made.skipped_count == 0 || made.skipped_count == 2);
    // A file system that has no files of that length: both names of it are left out, and are not counted.
    if made.skipped_count == 2 {
        assert_eq!((made.totals.files, made.totals.bytes), (1, 7));
        assert_eq!(std::fs::read_dir(out).unwrap().count(), 1);
        return;
    }
    let vast = out.join("vast").metadata().unwrap();
    assert_eq!(vast.nlink(), 2);
    assert!(vast.blocks() <= 64, "{} sectors", vast.blocks());
}

/// A block and a hole, together as long as a file can be, under two names.
fn vast(model: &mut Model) -> Entries {
    let handle = model.block(&noise(9, 1000)).unwrap();
    let extents = [
        Extent::Data { handle, len: 1000 },
        Extent::Hole {
            len: i64::MAX as u64 - 1000,
        },
    ];
    let root = model.extents(&extents).unwrap().unwrap();
    let file = linked(inode(0o644, Content::Regular(FileContent::Array(root))), 1);
    let content = FileContent::Inline(Bytes::from_static(b"content"));
    vec![
        (b"other".to_vec(), file.clone()),
        (b"small".to_vec(), inode(0o644, Content::Regular(content))),
        (b"vast".to_vec(), file),
    ]
}

/// A file of 256 extents that are all the same block.
fn bomb(model: &mut Model) -> Entries {
    let len = 1 << 20;
    let handle = model.block(&noise(10, len as usize)).unwrap();
    let extents = vec![Extent::Data { handle, len }; 256];
    let root = model.extents(&extents).unwrap().unwrap();
    let file = inode(0o644, Content::Regular(FileContent::Array(root)));
    vec![(b"bomb".to_vec(), file)]
}

#[tokio::test]
async fn a_tree_that_does_not_fit_is_refused_before_the_disk_is_full() {
    // Other processes may free a lot of room meanwhile.
    for _ in 0..10 {
        let dir = tempfile::tempdir().unwrap();
        let room = rustix::fs::statvfs(dir.path()).unwrap();
        let free = room.f_bavail * room.f_frsize;
        // As if 64 MiB were free for 256 MiB, up to what other processes write meanwhile.
        let options = ExtractOptions {
            keep_free: Room {
                bytes: free.saturating_sub(64 << 20),
                ..Room::default()
            },
            ..ExtractOptions::default()
        };
        let outcome = extracted(dir.path(), &options, bomb).await;
        if matches!(outcome, Err(ExtractError::NoRoom { .. })) {
            let written = dir.path().join("out/bomb").metadata().unwrap().blocks() * 512;
            return assert!(written < 200 << 20, "{written}");
        }
    }
    panic!("a tree that does not fit is extracted");
}

#[tokio::test]
async fn more_files_than_the_disk_can_hold_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let room = rustix::fs::statvfs(dir.path()).unwrap();
    let options = ExtractOptions {
        keep_free: Room {
            files: u64::MAX,
            ..Room::default()
        },
        ..ExtractOptions::default()
    };
    let outcome = extracted(dir.path(), &options, |model| {
        vec![(b"empty".to_vec(), model.directory(Vec::new()).unwrap())]
    })
    .await;
    let refused = matches!(outcome, Err(ExtractError::NoRoom { .. }));
    assert_eq!(refused, room.f_files > 0, "{outcome:?}");
}

#[tokio::test]
async fn a_tree_that_is_nested_too_deeply_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = extracted(dir.path(), &ExtractOptions::default(), |model| {
        let mut inner = model.directory(Vec::new()).unwrap();
        for _ in 0..bulla::walk::MAX_DEPTH {
            inner = model.directory(vec![(b"d".to_vec(), inner)]).unwrap();
        }
        vec![(b"d".to_vec(), inner)]
    })
    .await;
    assert!(matches!(outcome, Err(ExtractError::TooDeep { .. })));
}

#[tokio::test]
async fn a_target_that_is_not_empty_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("out")).unwrap();
    std::fs::write(dir.path().join("out/mine"), b"mine").unwrap();
    let outcome = extracted(dir.path(), &ExtractOptions::default(), bomb).await;
    assert!(matches!(outcome, Err(ExtractError::NotEmpty { .. })));
    // Nothing of it, and no mark.
    let left = std::fs::read_dir(dir.path().join("out")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["mine"]);
}
