//! The volume of format 0 that every later version reads (`tests/golden/format-0`): all kinds of files,
//! directories of several nodes, statements, log and tiles, as `publish` wrote them. Also checks that the
//! same tree still gives the same root. Bytes: `docs/formats/`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use publish::progress::{Published, Silent};
use publish::{PublishOptions, publish};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps};
use sim::random::noise;
use store::repository::Repository;
use trust::inode::{Content, FileContent, Xattrs};
use trust::judge::Freshness;
use trust::key::SecretKey;
use trust::statement::VolumeId;
use volume::{Fetch, Volume, VolumeOptions};

use crate::support::Read;

/// When the golden volume was signed, unix seconds.
const SIGNED: u64 = 1_800_000_000;
const VERSIONS: u64 = 3;
const VOLUME: &str = include_str!("../golden/volume-0.txt");

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/format-0")
}

/// Names with content, and the tree's other files beside.
fn contents(version: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut files: Vec<(Vec<u8>, Vec<u8>)> = vec![
        (b"changing".to_vec(), format!("version {version}\n").into()),
        (b"empty".to_vec(), Vec::new()),
        (b"one-block".to_vec(), noise(1, 3000)),
        (b"blocks".to_vec(), noise(2, 200_000)),
        // Its second half is a hole.
        (
            b"holes".to_vec(),
            [noise(3, 70_000), vec![0; 130_000]].concat(),
        ),
        (b"deep/er/and/deeper".to_vec(), noise(4, 300)),
        (b"\xff\xfe no text\n".to_vec(), b"a name is bytes".to_vec()),
    ];
    for n in 0..300u32 {
        let name = format!("many/a name that takes some room in its node {n:03}");
        files.push((name.into(), noise(1000 + u64::from(n), 40)));
    }
    files
}

fn at(dir: &Path, name: &[u8]) -> PathBuf {
    dir.join(OsStr::from_bytes(name))
}

/// A tree that does not depend on the machine.
fn make_tree(dir: &Path, version: u64) {
    for (name, bytes) in contents(version) {
        let path = at(dir, &name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = fs::File::create(&path).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        file.set_permissions(PermissionsExt::from_mode(0o644))
            .unwrap();
    }
    fs::hard_link(dir.join("one-block"), dir.join("deep/same")).unwrap();
    symlink("../one-block", dir.join("deep/link")).unwrap();
    let fifo = dir.join("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let set_uid = fs::Permissions::from_mode(0o4755);
    fs::set_permissions(dir.join("blocks"), set_uid).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(dir.join("blocks"), "user.kind", b"golden", flags).unwrap();
    still(dir, &mut 0);
}

/// Sets times and the modes of directories, after those of their entries.
fn still(path: &Path, count: &mut i64) {
    let kind = fs::symlink_metadata(path).unwrap().file_type();
    if kind.is_dir() {
        let mut names: Vec<PathBuf> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        names.sort();
        names.iter().for_each(|name| still(name, count));
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    *count += 1;
    let time = Timespec {
        tv_sec: 4_000_000 * *count - 500_000_000,
        tv_nsec: *count,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    // A file of two names is set twice, in each run in the same order.
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn publish_into(repo: &Path, version: u64) -> Published {
    let tree = tempfile::tempdir().unwrap();
    make_tree(tree.path(), version);
    let options = PublishOptions {
        clock: state::Clock::fixed(SIGNED),
        valid: Duration::from_secs(3600),
        name: "golden".to_owned(),
        ..PublishOptions::default()
    };
    let key = SecretKey::from_seed(&[7; 32]);
    publish(tree.path(), repo, &key, &options, &Silent).unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Volume id, version and record's hash, a line each.
fn pins() -> (VolumeId, u64, [u8; 32]) {
    let mut lines = VOLUME.lines();
    let id = lines.next().unwrap().parse().unwrap();
    let version = lines.next().unwrap().parse().unwrap();
    let hex = lines.next().unwrap().as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let hash: Vec<u8> = hex.map(byte).collect();
    (id, version, hash.try_into().unwrap())
}

#[test]
fn format_0_is_read() {
    let read = Read::newest(&golden(), SIGNED);
    let (id, version, record_hash) = pins();
    assert_eq!(read.offer.chain.volume(), id);
    assert_eq!(read.offer.record.version, version);
    assert_eq!(read.offer.record_hash, record_hash);
    for (name, bytes) in contents(VERSIONS) {
        let inode = &read.inodes[&name];
        let path = String::from_utf8_lossy(&name).into_owned();
        assert_eq!(inode.size, bytes.len() as u64, "{path}");
        match &inode.content {
            Content::Regular(FileContent::Inline(inline)) => assert!(inline == &bytes, "{path}"),
            Content::Regular(FileContent::Empty) => assert!(bytes.is_empty(), "{path}"),
            _ => assert!(read.content(&path) == bytes, "{path}"),
        }
    }
    assert_eq!(read.layout("holes").last(), Some(&-130_000));
    assert_eq!(read.at("one-block"), read.at("deep/same"));
    assert_eq!(read.at("one-block").links, 2);
    assert_eq!(read.at("blocks").mode, 0o4755);
    assert_eq!(read.xattrs("blocks").len(), 1);
    assert_eq!(read.at("fifo").content, Content::Fifo);
    let link = Content::Symlink("../one-block".into());
    assert_eq!(read.at("deep/link").content, link);
    assert_eq!(read.at("fifo").xattrs, Xattrs::None);
    assert!(read.at("deep").mtime.seconds < 0);
    let Content::Directory {
        map: Some(many), ..
    } = &read.at("many").content
    else {
        panic!("not a directory with entries");
    };
    assert!(many.height > 1, "one node is not a tree");
    // The log, and the tile that proves it.
    let repository = Repository::open(golden()).unwrap();
    // The policy is the first leaf.
    for leaf in 0..=VERSIONS {
        assert!(repository.log_leaf(0, leaf).unwrap().is_some(), "{leaf}");
    }
    let tile = fs::read(golden().join("log/0/tiles/0.0.4")).unwrap();
    assert_eq!(tile.len(), 4 * 32);
}

/// The product's own reader, long after the statement ran out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn format_0_is_read_by_a_reader_that_pins_it() {
    let (id, version, record_hash) = pins();
    let state = tempfile::tempdir().unwrap();
    let options = VolumeOptions {
        state_directory: state.path().to_owned(),
        freshness: Freshness::Pinned {
            version,
            record_hash,
        },
        ..VolumeOptions::default()
    };
    let place = Arc::new(Repository::open(golden()).unwrap());
    let volume = Volume::open(id, vec![place], options).await.unwrap();
    let snapshot = volume.snapshot();
    let how = Fetch::Until(Instant::now() + Duration::from_secs(20));
    for (name, bytes) in contents(VERSIONS) {
        let inode = snapshot.resolve(&name, how).await.unwrap().unwrap();
        let read = snapshot.read(&inode, 0, bytes.len(), how).await.unwrap();
        assert!(read.concat() == bytes, "{}", name.escape_ascii());
    }
}

#[test]
fn format_0_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let repo = dir.path().join("repo");
    copy(&golden(), &repo);
    let root = Read::newest(&repo, SIGNED).offer.record.root;
    let published = publish_into(&repo, VERSIONS);
    // Cutting, blocks, inodes, both trees: a single different byte would change the root.
    assert!(published.unchanged);
    assert_eq!(published.new_bytes, 0);
    assert_eq!(Read::newest(&repo, SIGNED).offer.record.root, root);
    assert!(!publish_into(&repo, VERSIONS + 1).unchanged);
}

/// How the golden volume was made: once for each number of the format.
#[test]
#[ignore = "makes the golden volume, which must not be there"]
fn make_the_golden_volume() {
    assert!(!golden().exists(), "it is never made anew");
    for version in 1..=VERSIONS {
        publish_into(&golden(), version);
    }
    let read = Read::newest(&golden(), SIGNED);
    let hash = read.offer.record_hash.map(|byte| format!("{byte:02x}"));
    let (id, version) = (read.offer.chain.volume(), read.offer.record.version);
    let text = format!("{id}\n{version}\n{}\n", hash.concat());
    fs::write(golden().with_file_name("volume-0.txt"), text).unwrap();
}
