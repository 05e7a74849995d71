//! A survey names each changed byte of blocks, segments, index and head. Mending gives back every block that is anywhere.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use store::conformance::{hasher, record};
use store::disk::{Disk, Local};
use store::mend::Mended;
use store::survey::Told;
use store::{Repository, StoreError, Writer};
use trust::{Kind, Record};

fn records() -> Vec<Record> {
    (0..60)
        .map(|i| record(Kind::Data, i, 60 + i as usize))
        .collect()
}

fn make(dir: &Path) -> Repository {
    let repo = Repository::create(dir).unwrap();
    for part in records().chunks(30) {
        let mut writer = Writer::begin(&repo).unwrap();
        part.iter().for_each(|r| assert!(writer.append(r).unwrap()));
        writer.commit(b"").unwrap();
    }
    repo
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for name in ["segments", "index"] {
        let listed = std::fs::read_dir(dir.join(name)).unwrap();
        found.extend(listed.map(|entry| entry.unwrap().path()));
    }
    found.push(dir.join("head"));
    found
}

/// Files, and blocks, that are wrong.
fn survey(dir: &Path) -> (Vec<PathBuf>, usize) {
    let (mut wrong, mut blocks) = (Vec::new(), 0);
    let told = Repository::survey_on(&Local::new(dir), Some(&hasher()), &mut |told| {
        if let Told::Wrong(it) = told {
            blocks += usize::from(it.block.is_some());
            wrong.push(it.path);
        }
    });
    told.unwrap();
    wrong.dedup();
    (wrong, blocks)
}

fn mend(dir: &Path, elsewhere: &mut dyn FnMut(&trust::Handle) -> Option<Record>) -> Mended {
    let disk = Local::new(dir);
    Repository::mend_on(&disk, &hasher(), true, &[], elsewhere, &mut |_| {}).unwrap()
}

fn count(dir: &Path) -> usize {
    let repo = Repository::open(dir).unwrap();
    let has =
        |record: &&Record| repo.whole_record(&record.handle, &hasher()).as_ref() == Some(record);
    records().iter().filter(has).count()
}

#[test]
fn every_changed_byte_is_named_and_every_whole_block_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    assert_eq!(survey(dir.path()), (Vec::new(), 0));
    for file in files(dir.path()) {
        let whole = std::fs::read(&file).unwrap();
        for at in (0..whole.len()).step_by(23) {
            let other = tempfile::tempdir().unwrap();
            let path = other.path().join("copy");
            copy(dir.path(), &path);
            let bad = path.join(file.strip_prefix(dir.path()).unwrap());
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            std::fs::write(&bad, bytes).unwrap();
            let (wrong, blocks) = survey(&path);
            if wrong.is_empty() {
                // An index that the last commit replaced.
                assert_eq!(bad.extension().unwrap(), "idx");
                break;
            }
            assert_eq!(wrong, [bad], "byte {at}");
            let mended = mend(&path, &mut |_| None);
            assert_eq!(
                mended.lost_count as usize,
                blocks,
                "byte {at} of {}",
                file.display()
            );
            assert_eq!(count(&path), 60 - blocks);
            assert_eq!(survey(&path), (Vec::new(), 0));
        }
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &name),
            false => drop(std::fs::copy(path, name).unwrap()),
        }
    }
}

#[test]
fn wrong_block_from_elsewhere_is_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let segment = files(dir.path()).remove(0);
    let mut bytes = std::fs::read(&segment).unwrap();
    // In the frame of the first block.
    bytes[16 + 36 + 10] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let liar = |handle: &trust::Handle| {
        let other = record(Kind::Data, 99, 70);
        let (handle, frame) = (*handle, other.frame);
        Some(Record { handle, frame })
    };
    let mended = mend(dir.path(), &mut { liar });
    assert_eq!((mended.lost_count, mended.taken, mended.copied), (1, 0, 29));
    // A later copy has it.
    let disk = Local::new(dir.path());
    let lost = mended.lost.clone();
    let all = records();
    let mut honest = |handle: &trust::Handle| all.iter().find(|r| r.handle == *handle).cloned();
    let mended =
        Repository::mend_on(&disk, &hasher(), true, &lost, &mut honest, &mut |_| {}).unwrap();
    assert_eq!((mended.lost_count, mended.taken), (0, 1));
    assert_eq!(count(dir.path()), 60);
    // The writer goes on.
    let repo = Repository::open(dir.path()).unwrap();
    let mut writer = Writer::begin(&repo).unwrap();
    assert!(writer.append(&record(Kind::Data, 70, 70)).unwrap());
    writer.commit(b"").unwrap();
    assert_eq!(count(dir.path()), 60);
}

#[test]
fn missing_head_is_made_again_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let disk: Arc<dyn Disk> = Arc::new(Local::new(dir.path()));
    assert!(!Repository::restore_index_on(&disk, &hasher()).unwrap());
    std::fs::remove_file(dir.path().join("head")).unwrap();
    assert_eq!(survey(dir.path()).0, [dir.path().join("head")]);
    assert!(Repository::restore_index_on(&disk, &hasher()).unwrap());
    assert_eq!(count(dir.path()), 60);
    std::fs::remove_file(dir.path().join("head")).unwrap();
    let segment = files(dir.path()).remove(0);
    let bytes = std::fs::read(&segment).unwrap();
    std::fs::write(&segment, &bytes[..bytes.len() - 1]).unwrap();
    let refused = Repository::restore_index_on(&disk, &hasher());
    assert!(
        matches!(refused, Err(StoreError::Damaged { .. })),
        "{refused:?}"
    );
    mend(dir.path(), &mut |_| None);
    assert_eq!(count(dir.path()), 60);
}
