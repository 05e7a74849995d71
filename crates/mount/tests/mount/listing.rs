//! Listings (docs/semantics.md, `opendir` and `telldir`): the version at `opendir`, each name once, in
//! byte order, and exact positions for `seekdir`.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{Dir, Mode, OFlags};

use crate::fixture::{TestMount, World, errno, wait_until};

/// As opendir(3).
fn opendir(m: &TestMount, name: &str) -> Dir {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let fd = rustix::fs::open(m.path(name), flags, Mode::empty()).unwrap();
    Dir::new(fd).unwrap()
}

/// As readdir(3) to the end: each name with the place after it (telldir(3)).
fn readdir(dir: &mut Dir) -> Vec<(CString, i64)> {
    let mut entries = Vec::new();
    while let Some(entry) = dir.read() {
        let entry = entry.unwrap();
        entries.push((entry.file_name().to_owned(), entry.offset()));
    }
    entries
}

#[tokio::test(flavor = "multi_thread")]
async fn names_come_once_in_byte_order_after_the_dots() {
    let mut world = World::new();
    let file = world.file(b"x");
    let mut names: Vec<Vec<u8>> = ["b", "B", "a", "_", "é", "~", " ", ".hidden", "..."]
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    names.push(b"\xff\xfe not utf-8 \n".to_vec());
    names.push(vec![b'n'; 255]);
    let entries = names.iter().map(|n| (n.clone(), file.clone())).collect();
    let dir = world.model.directory(entries).unwrap();
    let empty = world.directory(vec![]);
    world.publish(vec![("dir", dir), ("empty", empty)], 3600);
    let m = world.mount().await;
    names.sort();
    let mut expected = vec![b".".to_vec(), b"..".to_vec()];
    expected.extend(names.clone());
    // Twice by opendir, once by getdents(2) as std makes it.
    for _ in 0..2 {
        let listed = readdir(&mut opendir(&m, "dir"));
        let listed: Vec<_> = listed.iter().map(|(n, _)| n.to_bytes()).collect();
        assert_eq!(listed, expected, "readdir");
    }
    let getdents: Vec<_> = fs::read_dir(m.path("dir"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().as_bytes().to_vec())
        .collect();
    assert_eq!(getdents, names);
    assert_eq!(readdir(&mut opendir(&m, "empty")).len(), 2);
    assert_eq!(errno(fs::read_dir(m.path("dir/b"))), libc::ENOTDIR);
    for name in &names {
        let name = std::ffi::OsStr::from_bytes(name);
        assert!(fs::symlink_metadata(m.path("dir").join(name)).is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn directory_positions_stay_exact_across_an_update() {
    let mut world = World::new();
    let file = world.file(b"x");
    let names: Vec<String> = (0..3000).map(|i| format!("name-{i:05}")).collect();
    let entries = names.iter().map(|n| (n.as_str(), file.clone())).collect();
    let dir = world.directory(entries);
    world.publish(vec![("dir", dir)], 3600);
    let m = world.mount().await;
    let mut dir = opendir(&m, "dir");
    let first = readdir(&mut dir);
    assert_eq!(first.len(), 3002);

    let none = world.directory(vec![("other", file)]);
    world.publish(vec![("dir", none)], 3600);
    m.wait_for(2);
    wait_until("the update", || m.path("dir/other").exists());

    // seekdir to each place that telldir gave, in both directions.
    for at in (0..3001).step_by(211).chain((0..3001).rev().step_by(509)) {
        dir.seek(first[at].1).unwrap();
        let next = dir.read().unwrap().unwrap();
        assert_eq!(next.file_name(), first[at + 1].0.as_c_str(), "seekdir {at}");
    }
    dir.seek(first[3001].1).unwrap();
    assert!(dir.read().is_none(), "the place after the last name");
    // rewinddir shows what opendir saw: a new opendir shows the new version.
    dir.rewind();
    assert_eq!(readdir(&mut dir), first, "rewinddir");
    assert_eq!(readdir(&mut opendir(&m, "dir")).len(), 3);
}
