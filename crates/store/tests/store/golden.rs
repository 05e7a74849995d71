//! Every later version reads the golden repository of format 0 (`tests/golden/format-0`, described
//! byte by byte in docs/formats/repository.md), and this version writes the same bytes.

use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::FutureExt;
use store::blocking::Blocking;
use store::{BlockStore, Replica, Repository, StoreError, Writer};
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
    assert_eq!(new[id.end..id.end + 32], old[id.end..id.end + 32]);
    let head = |dir: &Path| fs::read(dir.join("head")).unwrap();
    let (new, old) = (head(dir.path()), head(&golden()));
    assert_eq!(new.len(), old.len());
    assert_eq!(new[..17], old[..17]);
    assert_eq!(new[33..new.len() - 32], old[33..old.len() - 32]);
    let format = |dir: &Path| fs::read(dir.join("bulla")).unwrap();
    assert_eq!(format(dir.path()), format(&golden()));
}

/// Writes the bytes with a right checksum, which covers them from `from` on.
fn reseal(path: &Path, mut bytes: Vec<u8>, from: usize) {
    let body = bytes.len() - 32;
    let sum = *blake3::hash(&bytes[from..body]).as_bytes();
    bytes[body..].copy_from_slice(&sum);
    fs::write(path, bytes).unwrap();
}

#[test]
fn files_of_a_later_bulla_are_unsupported_and_not_damaged() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let path = |part: &str| {
        let mut files = fs::read_dir(dir.path().join(part)).unwrap();
        files.next().unwrap().unwrap().path()
    };
    let is_unsupported = |what: &str, result: Result<(), StoreError>| {
        let unsupported = matches!(result, Err(StoreError::Format { .. }));
        assert!(unsupported, "{what}: {result:?}");
    };
    let open = || Repository::open(dir.path()).map(drop);
    let (index, head) = (path("index"), dir.path().join("head"));
    let trailer = fs::read(&index).unwrap().len() - 64;
    // Format, then incompatible flags.
    for at in [8, 12] {
        let good = fs::read(&index).unwrap();
        let mut later = good.clone();
        later[trailer + at] = 1;
        reseal(&index, later, 4096);
        is_unsupported("index", open());
        fs::write(&index, good).unwrap();
        let good = fs::read(&head).unwrap();
        let mut later = good.clone();
        later[at] = 1;
        reseal(&head, later, 0);
        is_unsupported("head", open());
        fs::write(&head, good).unwrap();
    }
    // A compatible flag may be ignored.
    let mut later = fs::read(&index).unwrap();
    later[trailer + 16] = 1;
    reseal(&index, later, 4096);
    open().unwrap();
    let format = dir.path().join("bulla");
    let good = fs::read_to_string(&format).unwrap();
    for feature in ["shared", "guarded", "guarded shared", "of-tomorrow"] {
        let later = format!("\nincompatible {feature}\n");
        fs::write(&format, good.replace("\nincompatible\n", &later)).unwrap();
        is_unsupported(feature, open());
    }
    fs::write(&format, good).unwrap();
    let repository = Repository::open(dir.path()).unwrap();
    let note = dir.path().join("collected");
    fs::write(&note, "bulla collected\nformat 1\n").unwrap();
    is_unsupported("note", Writer::begin(&repository).map(drop));
    fs::remove_file(&note).unwrap();
    let segment = path("segments");
    let mut later = fs::read(&segment).unwrap();
    later[12] = 1;
    fs::write(&segment, later).unwrap();
    let id = store::names::FileId::parse(
        segment.file_name().unwrap().to_str().unwrap(),
        store::names::SEGMENT_ENDING,
    );
    let disk = store::disk::Local::new(dir.path());
    let listed = store::segment::by_footer(&disk, id.unwrap());
    is_unsupported("segment", listed.map(drop));
}

#[test]
fn document_shows_the_bytes_of_the_golden_repository() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("docs/formats/repository.md")).unwrap();
    let vector = text.split_once("## Vector").unwrap().1;
    let shown: Vec<String> = vector.split("```").skip(1).step_by(2).map(hex).collect();
    let of = |bytes: Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let head = fs::read(golden().join("head")).unwrap();
    let [segment, index] = ["segments", "index"].map(|part| of(only(&golden().join(part))));
    assert_eq!(shown, [segment, index, of(head)]);
}

/// The digits of a listing, with its abbreviations written out.
fn hex(listing: &str) -> String {
    let zeros =
        |text: String, n: usize| text.replace(&format!("({n} zero bytes)"), &"00".repeat(n));
    let whole = zeros(zeros(listing.to_owned(), 36), 4004);
    whole.split_whitespace().collect()
}
