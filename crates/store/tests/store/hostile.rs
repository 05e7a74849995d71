//! Damaged and hostile repositories: files that are cut or have flipped bits at many places, wrong lengths,
//! pipes instead of files. The answer is the right block, a denial or a clear error. It is never a record
//! under another handle than the index says, never a panic, never a hang. Also: reading verified blocks.

use std::fs;
use std::path::{Path, PathBuf};

use bytes::BytesMut;
use futures_util::FutureExt;
use store::blocking::Blocking;
use store::conformance::{compressible, hasher, record};
use store::disk::Local;
use store::names::{FileId, SEGMENT_ENDING};
use store::read::verify_region;
use store::segment::{by_footer, by_records};
use store::{BlockStore, Repository, StoreError, Writer};
use trust::frame::Packer;
use trust::reach::{Found, Wanted};
use trust::{Data, Frame, Handle, Hasher, Kind, MapNode, Record, Reject};

fn records() -> Vec<Record> {
    (0..120)
        .map(|i| record(Kind::Data, i, 60 + i as usize))
        .collect()
}

fn make(dir: &Path) -> Repository {
    let repo = Repository::create(dir).unwrap();
    for (version, part) in records().chunks(100).enumerate() {
        let mut writer = Writer::begin(&repo).unwrap();
        part.iter().for_each(|r| assert!(writer.append(r).unwrap()));
        writer
            .commit(format!("version {version}").as_bytes())
            .unwrap();
    }
    repo
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// Asks a damaged repository for everything. A returned record must be a requested one. Its bytes may be
/// wrong, which the hash shows: returns the number of right ones.
fn ask(dir: &Path) -> Result<usize, StoreError> {
    let repo = Repository::open(dir)?;
    let want: Vec<Handle> = records().iter().map(|r| r.handle).collect();
    let mut right = 0;
    for (one, around) in want.iter().zip([0, 3000].into_iter().cycle()) {
        let answer = repo
            .clone()
            .with_blocking(Blocking::Inline)
            .get_many(&[*one], around)
            .now_or_never()
            .unwrap()?;
        if let Some(first) = answer.first() {
            assert_eq!(first.handle, *one);
        }
        let good = |r: &&Record| {
            let name = r.frame.unpack().map(|p| hasher().name(r.frame.kind(), &p));
            r.handle == *one && name == Ok(*one)
        };
        right += answer.iter().filter(good).count();
    }
    let answer = repo
        .clone()
        .with_blocking(Blocking::Inline)
        .get_many(&want, 0)
        .now_or_never()
        .unwrap()?;
    assert!(answer.len() <= want.len());
    Ok(right)
}

#[test]
fn damage_anywhere_is_found_or_harmless() {
    let dir = tempfile::tempdir().unwrap();
    drop(make(dir.path()));
    assert_eq!(ask(dir.path()).unwrap(), 120);
    let mut clear = 0;
    for file in files(dir.path()) {
        let good = fs::read(&file).unwrap();
        let step = (good.len() / 150).max(1);
        let at = (0..good.len()).step_by(step);
        for i in at {
            let mut flipped = good.clone();
            flipped[i] ^= 1 << (i % 8);
            let cut = good[..i].to_vec();
            let mut grown = good.clone();
            grown.insert(i, 0x5a);
            for bad in [flipped, cut, grown] {
                fs::write(&file, bad).unwrap();
                match ask(dir.path()) {
                    Ok(right) => assert!(right <= 120),
                    Err(StoreError::Damaged { .. } | StoreError::Format { .. }) => clear += 1,
                    Err(e) => panic!("{} at {i}: {e}", file.display()),
                }
            }
        }
        fs::write(&file, &good).unwrap();
    }
    assert!(clear > 1000, "most damage is named: {clear}");
    assert_eq!(ask(dir.path()).unwrap(), 120);
}

#[test]
fn missing_file_or_pipe_is_an_error_at_once() {
    let dir = tempfile::tempdir().unwrap();
    drop(make(dir.path()));
    for file in files(dir.path()) {
        if file.ends_with("lock") {
            continue;
        }
        let aside = dir.path().join("aside");
        fs::rename(&file, &aside).unwrap();
        let pipe = rustix::fs::mknodat(
            rustix::fs::CWD,
            &file,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        );
        pipe.unwrap();
        ask(dir.path()).unwrap_err();
        fs::remove_file(&file).unwrap();
        if file.ends_with("head") {
            assert_eq!(ask(dir.path()).unwrap(), 0, "without a head it is empty");
        } else {
            ask(dir.path()).unwrap_err();
        }
        fs::rename(&aside, &file).unwrap();
    }
    let nowhere = Repository::open(dir.path().join("nowhere"));
    assert!(matches!(nowhere, Err(StoreError::NoRepository { .. })));
    let taken = tempfile::tempdir().unwrap();
    fs::write(taken.path().join("letter"), "dear").unwrap();
    assert!(Repository::create(taken.path()).is_err());
    assert_eq!(files(taken.path()).len(), 1, "and nothing was made in it");
}

#[test]
fn segment_with_a_damaged_footer_is_listed_by_its_records_up_to_the_damage() {
    let dir = tempfile::tempdir().unwrap();
    let repo = Repository::create(dir.path()).unwrap();
    let mut writer = Writer::begin(&repo).unwrap();
    records()
        .iter()
        .for_each(|r| assert!(writer.append(r).unwrap()));
    writer.commit(b"version").unwrap();
    let segment = files(&dir.path().join("segments")).pop().unwrap();
    let name = segment.file_name().unwrap().to_str().unwrap();
    let id = FileId::parse(name, SEGMENT_ENDING).unwrap();
    let disk = Local::new(dir.path());
    let listed = by_footer(&disk, id).unwrap().unwrap();
    assert_eq!(listed.len(), 120);
    let good = fs::read(&segment).unwrap();
    let mut bad = good.clone();
    bad[good.len() - 60] ^= 1;
    fs::write(&segment, &bad).unwrap();
    assert_eq!(by_footer(&disk, id).unwrap(), None);
    assert_eq!(by_records(&disk, id).unwrap(), listed);
    fs::write(&segment, &good[..good.len() / 2]).unwrap();
    let cut = by_records(&disk, id).unwrap();
    assert!(cut.len() > 20 && cut.len() < 120, "{}", cut.len());
    assert_eq!(cut, listed[..cut.len()]);
}

#[test]
fn read_verified_returns_the_block_or_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let repo = Repository::create(dir.path()).unwrap();
    let good = record(Kind::Data, 1, 500);
    let small = compressible(Kind::Map, 2, 5000);
    let absent = record(Kind::Data, 3, 500);
    let lie = Record {
        handle: record(Kind::Data, 4, 500).handle,
        frame: good.frame.clone(),
    };
    let mut bomb = small.frame.as_bytes().to_vec();
    let last = bomb.len() - 1;
    bomb[last] ^= 1;
    let torn = Record {
        handle: record(Kind::Map, 5, 500).handle,
        frame: Frame::parse(bomb.into()).unwrap(),
    };
    let mut writer = Writer::begin(&repo).unwrap();
    for r in [&good, &small, &lie, &torn] {
        assert!(writer.append(r).unwrap());
    }
    writer.commit(b"statements").unwrap();
    drop(writer);

    let data = |r: &Record| Handle::<Data>::from_bytes(*r.handle.as_bytes());
    let map = |r: &Record| Handle::<MapNode>::from_bytes(*r.handle.as_bytes());
    let block = repo.read_verified(&data(&good), &hasher()).unwrap();
    assert_eq!(*block.bytes(), good.frame.unpack().unwrap());
    let block = repo.read_verified(&map(&small), &hasher()).unwrap();
    assert_eq!(*block.bytes(), small.frame.unpack().unwrap());

    let error = repo.read_verified(&data(&absent), &hasher()).unwrap_err();
    assert!(matches!(error, StoreError::NoBlock { handle, .. } if handle == absent.handle));
    let error = repo.read_verified(&data(&lie), &hasher()).unwrap_err();
    let why = |error: StoreError| match error {
        StoreError::WrongBlock { why, .. } => why,
        other => panic!("{other}"),
    };
    assert_eq!(why(error), Reject::WrongBlock);
    let error = repo.read_verified(&map(&torn), &hasher()).unwrap_err();
    assert!(matches!(
        why(error),
        Reject::BadFrame(_) | Reject::WrongBlock
    ));
    // The right bytes under the right handle, requested as a block of another kind.
    let error = repo.read_verified(&map(&good), &hasher()).unwrap_err();
    assert!(matches!(why(error), Reject::WrongKind { .. }));
    let other = Hasher::new(&[9; 32]);
    let error = repo.read_verified(&data(&good), &other).unwrap_err();
    assert_eq!(why(error), Reject::WrongBlock);

    let segment = files(&dir.path().join("segments")).remove(0);
    fs::write(&segment, b"").unwrap();
    let repo = Repository::open(dir.path()).unwrap();
    let error = repo.read_verified(&data(&good), &hasher()).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    fs::remove_file(&segment).unwrap();
    fs::create_dir(&segment).unwrap();
    let repo = Repository::open(dir.path()).unwrap();
    let error = repo.read_verified(&data(&good), &hasher()).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
}

#[test]
fn read_wanted_decodes_the_block_or_names_the_party_at_fault() {
    let dir = tempfile::tempdir().unwrap();
    let repo = Repository::create(dir.path()).unwrap();
    let data = record(Kind::Data, 1, 500);
    let node = |bytes: &[u8]| Record {
        handle: hasher().name(Kind::Map, bytes),
        frame: Packer::new().pack(Kind::Map, bytes).unwrap(),
    };
    let (no_node, later) = (node(&[0; 9]), node(&[9; 9]));
    let lie = Record {
        handle: record(Kind::Map, 3, 500).handle,
        frame: no_node.frame.clone(),
    };
    let mut writer = Writer::begin(&repo).unwrap();
    for r in [&data, &no_node, &later, &lie] {
        assert!(writer.append(r).unwrap());
    }
    writer.commit(b"statements").unwrap();
    drop(writer);

    // A walk compares this length with the claimed one.
    let wanted = Wanted::Data {
        handle: Handle::from_bytes(*data.handle.as_bytes()),
        len: 7,
    };
    let found = repo.read_wanted(&wanted, &hasher()).unwrap();
    assert!(matches!(found, Found::Data { len: 500 }), "{found:?}");
    let read = |r: &Record| {
        let wanted = Wanted::Map(Handle::from_bytes(*r.handle.as_bytes()));
        repo.read_wanted(&wanted, &hasher())
    };
    let fault = |r: &Record| match read(r) {
        Err(StoreError::WrongBlock { handle, why, .. }) if handle == r.handle => why,
        other => panic!("{other:?}"),
    };
    assert!(fault(&no_node).is_publishers_fault());
    assert!(!fault(&lie).is_publishers_fault());
    // A node of a later bulla is not damaged.
    let newer = read(&later);
    let unsupported = matches!(newer, Err(StoreError::Unsupported { .. }));
    assert!(unsupported, "{newer:?}");
}

#[test]
fn read_verified_asks_for_exactly_one_record() {
    let one = record(Kind::Data, 1, 100);
    let handle = Handle::<Data>::from_bytes(*one.handle.as_bytes());
    let mut bytes = BytesMut::new();
    one.put(&mut bytes);
    let whole = bytes.clone().freeze();
    assert!(verify_region(&whole, &handle, &hasher()).is_ok());
    for cut in 0..whole.len() {
        assert!(verify_region(&whole.slice(..cut), &handle, &hasher()).is_err());
    }
    one.put(&mut bytes);
    assert!(verify_region(&bytes.freeze(), &handle, &hasher()).is_err());
}
