//! Every later version reads the golden repository of format 0 (`tests/golden/format-0`, described
//! byte by byte in docs/formats/repository.md), and this version writes the same bytes.

use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::FutureExt;
use store::blocking::Blocking;
use store::{BlockStore, Replica, Repository, Writer};
use trust::{Frame, Handle, Hasher, Kind, Record};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/format-0")
}

/// Two blocks, both raw: the output of zstd is not part of the format.
fn records() -> Vec<Record> {
    let hasher = Hasher::new(&[0; 32]);
    let record = |kind: Kind, plain: &[u8]| {
        let mut frame = vec![kind as u8, 0];
        frame.extend_from_slice(&(plain.len() as u32).to_le_bytes());
        frame.extend_from_slice(plain);
        Record {
            handle: hasher.name(kind, plain),
            frame: Frame::parse(frame.into()).unwrap(),
        }
    };
    vec![
        record(Kind::Data, b"who closes the clay\n"),
        record(Kind::Map, b"may carry it\n"),
    ]
}

fn write(dir: &Path) {
    let repo = Repository::create(dir).unwrap();
    let mut writer = Writer::begin(&repo).unwrap();
    for record in records() {
        writer.append(&record).unwrap();
    }
    writer.put_log_leaf(0, 0, b"leaf").unwrap();
    writer.commit(b"statements").unwrap();
}

/// The bytes of the one file in a directory.
fn only(dir: &Path) -> Vec<u8> {
    let mut files = fs::read_dir(dir).unwrap();
    let bytes = fs::read(files.next().unwrap().unwrap().path()).unwrap();
    assert!(files.next().is_none());
    bytes
}

#[test]
fn format_0_is_read() {
    let repo = Repository::open(golden()).unwrap();
    let head = repo
        .clone()
        .with_blocking(Blocking::Inline)
        .head()
        .now_or_never()
        .unwrap()
        .unwrap();
    assert_eq!(head, Bytes::from_static(b"statements"));
    assert_eq!(repo.log_leaf(0, 0).unwrap().unwrap(), &b"leaf"[..]);
    let want: Vec<Handle> = records().iter().map(|r| r.handle).collect();
    let got = repo
        .clone()
        .with_blocking(Blocking::Inline)
        .get_many(&want, 0)
        .now_or_never()
        .unwrap()
        .unwrap();
    assert_eq!(got, records());
}

#[test]
fn format_0_is_written() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let both = |part: &str| (only(&dir.path().join(part)), only(&golden().join(part)));
    let (new, old) = both("segments");
    assert_eq!(new, old, "a segment is a function of its records");
    // Names are random: the segment's name in the index, the run's in the head, and their checksums.
    let (new, old) = both("index");
    assert_eq!(new.len(), old.len());
    let id = 4096 + 32..4096 + 32 + 16;
    assert_eq!(new[..id.start], old[..id.start]);
    assert_eq!(new[id.end..id.end + 24], old[id.end..id.end + 24]);
    let head = |dir: &Path| fs::read(dir.join("head")).unwrap();
    let (new, old) = (head(dir.path()), head(&golden()));
    assert_eq!(new.len(), old.len());
    assert_eq!(new[..17], old[..17]);
    assert_eq!(new[33..new.len() - 32], old[33..old.len() - 32]);
    let format = |dir: &Path| fs::read(dir.join("bulla")).unwrap();
    assert_eq!(format(dir.path()), format(&golden()));
}

#[test]
fn document_shows_the_bytes_of_the_golden_repository() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("docs/formats/repository.md")).unwrap();
    let vector = text.split_once("## Vector").unwrap().1;
    let shown: Vec<String> = vector.split("```").skip(1).step_by(2).map(hex).collect();
    let of = |bytes: Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let head = fs::read(golden().join("head")).unwrap();
    assert_eq!(shown, [of(only(&golden().join("segments"))), of(head)]);
}

/// The digits of a listing, with its one abbreviation written out.
fn hex(listing: &str) -> String {
    let whole = listing.replace("(36 zero bytes)", &"00".repeat(36));
    whole.split_whitespace().collect()
}
