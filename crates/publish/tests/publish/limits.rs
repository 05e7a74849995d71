//! The table of `docs/formats/limits.md`: at each limit every reader can read what is signed, and beyond it nothing is
//! signed.

use std::fs;
use std::io::{Cursor, Read};
use std::sync::Arc;

use bulla::Tree;
use bulla::extract::{ExtractOptions, extract};
use bulla::verify::verify;
use publish::PublishOptions;
use publish::pipeline::Input;
use publish::progress::Published;
use publish::publish_error::PublishError;
use reader::Tally;
use sim::random::noise;
use store::repository::Repository;
use volume::{Volume, VolumeOptions};

use crate::place::Place;
use crate::tar::{header, pax, seal, whole};

/// The product's readers take all of the newest version, and find `path`.
async fn readable(place: &Place, made: &Published, path: &[u8]) {
    let state = place.path("state");
    let options = VolumeOptions {
        state_directory: state,
        ..VolumeOptions::default()
    };
    let replica = Arc::new(Repository::open(place.repo()).unwrap());
    let volume = Arc::new(
        Volume::open(made.volume, vec![replica], options)
            .await
            .unwrap(),
    );
    let snapshot = volume.current().unwrap();
    let tree = Tree::published(&volume, snapshot);
    let top = tree.root().await.unwrap();
    let tally = Arc::new(Tally::default());
    let report = verify(&tree, &top, &tally).await.unwrap();
    assert!(report.damage_count == 0, "{report:?}");
    let found = tree.look_up(path).await.unwrap();
    assert!(found.is_some(), "{}", path.escape_ascii());
    let target = place.path("out");
    // Devices are left out, as is a file that is longer than the file system takes.
    let options = ExtractOptions {
        skip_special: true,
        ..ExtractOptions::default()
    };
    let tally = Arc::new(Tally::default());
    let made = extract(&tree, &top, &target, &options, &tally);
    made.await.unwrap();
    // Deeper than a program can name at once.
    let mut remove = std::process::Command::new("rm");
    assert!(remove.arg("-rf").arg(&target).status().unwrap().success());
}

/// Makes directories of this name below one another, and a file in the last: paths of any length.
fn nest(place: &Place, name: &str, depth: usize, file: &str) -> String {
    let flags = rustix::fs::OFlags::DIRECTORY;
    let mut here: std::os::fd::OwnedFd = fs::File::open(place.tree()).unwrap().into();
    let mut path = String::new();
    for _ in 0..depth {
        rustix::fs::mkdirat(&here, name, 0o755.into()).unwrap();
        here = rustix::fs::openat(&here, name, flags, 0.into()).unwrap();
        path.push_str(name);
        path.push('/');
    }
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    rustix::fs::openat(&here, file, flags, 0o644.into()).unwrap();
    path + file
}

fn archive(place: &Place, bytes: &[u8]) -> Result<Published, PublishError> {
    let open = || -> Box<dyn Read> { Box::new(Cursor::new(bytes.to_vec())) };
    let options = PublishOptions {
        with_owner: true,
        ..place.options()
    };
    place.publish_input(Input::Tar(&open), &options)
}

/// The error has the first part of the path, and `why`; nothing was published.
fn refused(place: &Place, made: Result<Published, PublishError>, why: &str, name: &str) {
    let error = made.expect_err(why);
    let told = format!("{error}: {:?}", std::error::Error::source(&error));
    assert!(told.contains(name), "{why}: {told}");
    assert!(!place.repo().exists(), "{why}: something was published");
}

fn entry(path: &str, kind: u8, link: &str) -> Vec<u8> {
    let records = [
        record("path", path.as_bytes()),
        record("linkpath", link.as_bytes()),
    ];
    [pax(&records.concat()), header(b"x", kind, 0, b"")].concat()
}

/// A pax record of bytes.
fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len != rest + len.to_string().len() {
        len += 1;
    }
    [format!("{len} {key}=").as_bytes(), value, b"\n"].concat()
}

#[tokio::test]
async fn paths_at_the_limit_are_read_and_those_beyond_are_not_signed() {
    // Names of 15 bytes: 255 of them and a file of 15 bytes are a path of 4,095 bytes and 256 names.
    let (name, file) = ("d".repeat(15), "f".repeat(15));
    let place = Place::new();
    let path = nest(&place, &name, 255, &file);
    assert_eq!(path.len(), 4095);
    let made = place.publish();
    readable(&place, &made, path.as_bytes()).await;
    let place = Place::new();
    let made = archive(&place, &whole(&[entry(&path, b'0', "")])).unwrap();
    readable(&place, &made, path.as_bytes()).await;

    for (why, name, depth, file) in [
        ("257 names", "d".to_owned(), 256, "f".to_owned()),
        ("4,096 bytes", name.clone(), 255, "f".repeat(16)),
        ("directories alone", "d".to_owned(), 2100, "f".to_owned()),
    ] {
        let place = Place::new();
        let path = nest(&place, &name, depth, &file);
        refused(
            &place,
            place.try_publish(&place.options()),
            why,
            &path[..500],
        );
        let skipping = PublishOptions {
            skip_unreadable: true,
            ..place.options()
        };
        let published = place.publish_with(&skipping);
        assert_eq!(
            (published.totals.files, published.skipped_count),
            (0, 1),
            "{why}"
        );
        readable(&place, &published, b"").await;
        let place = Place::new();
        let made = archive(&place, &whole(&[entry(&path, b'0', "")]));
        refused(&place, made, why, &path[..500]);
    }
    // An empty directory has the same limit.
    for (depth, fits) in [(256, true), (257, false)] {
        let place = Place::new();
        let path = vec!["d"; depth].join("/");
        let made = archive(&place, &whole(&[entry(&path, b'5', "")]));
        assert_eq!(made.is_ok(), fits, "{depth}");
    }
}

#[tokio::test]
async fn members_at_the_limit_are_read_and_those_beyond_are_not_signed() {
    let with =
        |key: &str, value: &[u8]| [pax(&record(key, value)), header(b"m", b'0', 0, b"")].concat();
    let attribute = |name: &str, len: usize| with(&format!("SCHILY.xattr.{name}"), &noise(1, len));
    let device = |major: &[u8; 7], minor: &[u8; 7]| {
        let mut block = header(b"m", b'3', 0, b"");
        block[329..336].copy_from_slice(major);
        block[337..344].copy_from_slice(minor);
        seal(&mut block);
        block
    };
    let many = |count: usize| {
        let name = |i: usize| format!("SCHILY.xattr.user.{}{i:04}", "n".repeat(246));
        let records: Vec<u8> = (0..count).flat_map(|i| record(&name(i), b"")).collect();
        [pax(&records), header(b"m", b'0', 0, b"")].concat()
    };
    let large = |count: usize| {
        let value = noise(2, 60_000);
        let one = |i: usize| record(&format!("SCHILY.xattr.user.{i}"), &value);
        let records: Vec<u8> = (0..count).flat_map(one).collect();
        [pax(&records), header(b"m", b'0', 0, b"")].concat()
    };
    let sparse = |size: u64| {
        let map = "0\n".as_bytes();
        let mut block = map.to_vec();
        block.resize(512, 0);
        let records = [
            record("GNU.sparse.major", b"1"),
            record("GNU.sparse.minor", b"0"),
            record("GNU.sparse.realsize", size.to_string().as_bytes()),
        ];
        [pax(&records.concat()), header(b"m", b'0', 512, b""), block].concat()
    };
    for (why, at, beyond) in [
        (
            "name",
            entry(&"m".repeat(255), b'0', ""),
            entry(&"m".repeat(256), b'0', ""),
        ),
        (
            "target",
            entry("m", b'2', &"t".repeat(4095)),
            entry("m", b'2', &"t".repeat(4096)),
        ),
        ("empty target", entry("m", b'2', "t"), entry("m", b'2', "")),
        (
            "name of an attribute",
            attribute(&format!("user.{}", "n".repeat(250)), 1),
            attribute(&format!("user.{}", "n".repeat(251)), 1),
        ),
        (
            "name of an attribute that is stored",
            attribute(&format!("user.{}", "n".repeat(250)), 9000),
            attribute(&format!("user.{}", "n".repeat(251)), 9000),
        ),
        (
            "attribute without a name",
            attribute("user.a", 1),
            attribute("user.", 1),
        ),
        (
            "value",
            attribute("user.a", 64 << 10),
            attribute("user.a", (64 << 10) + 1),
        ),
        ("names of attributes", many(252), many(253)),
        ("attributes", large(17), large(18)),
        ("size", sparse(i64::MAX as u64), sparse(i64::MAX as u64 + 1)),
        (
            "major",
            device(b"0007777", b"0000000"),
            device(b"0010000", b"0000000"),
        ),
        (
            "minor",
            device(b"0000000", b"3777777"),
            device(b"0000000", b"4000000"),
        ),
        (
            "owner",
            with("uid", b"4294967294"),
            with("uid", b"4294967295"),
        ),
        (
            "group",
            with("gid", b"4294967294"),
            with("gid", b"4294967295"),
        ),
    ] {
        let place = Place::new();
        let made = archive(&place, &whole(&[at]));
        let made = made.unwrap_or_else(|error| panic!("{why}: {error:?}"));
        // The simple reader decodes every inode and list.
        let read = place.read();
        let paths = read.inodes.keys().filter(|path| !path.is_empty());
        let paths: Vec<&[u8]> = paths.map(Vec::as_slice).collect();
        assert_eq!(paths.len(), 1, "{why}");
        drop(read.xattrs(std::str::from_utf8(paths[0]).unwrap()));
        readable(&place, &made, paths[0]).await;
        let place = Place::new();
        refused(&place, archive(&place, &whole(&[beyond])), why, "m");
    }
}
