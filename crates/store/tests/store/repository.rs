//! The repository on a real disk: only committed blocks are there, one writer at a time, read-around,
//! merging of index runs.

use std::ops::ControlFlow;

use bytes::Bytes;
use futures_util::FutureExt;
use store::blocking::Blocking;
use store::{BlockStore, Replica, Repository, StoreError, Writer};
use trust::frame::Packer;
use trust::{Handle, Hasher, Kind, Record};

/// Records of `len` bytes that differ by seed.
fn record(seed: u64, len: usize) -> Record {
    let hasher = Hasher::new(&[7; 32]);
    let mut plain = Vec::with_capacity(len + 32);
    let mut counter = seed << 20;
    while plain.len() < len {
        plain.extend_from_slice(hasher.name(Kind::Data, &counter.to_le_bytes()).as_bytes());
        counter += 1;
    }
    plain.truncate(len);
    plain[..8].copy_from_slice(&seed.to_le_bytes());
    Record {
        handle: hasher.name(Kind::Data, &plain),
        frame: Packer::new().pack(Kind::Data, &plain).unwrap(),
    }
}

fn get(repo: &Repository, want: &[Handle], around: usize) -> Vec<Record> {
    repo.clone()
        .with_blocking(Blocking::Inline)
        .get_many(want, around)
        .now_or_never()
        .unwrap()
        .unwrap()
}

#[test]
fn committed_blocks_are_there_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("repo");
    let repo = Repository::create(&path).unwrap();
    assert!(matches!(
        repo.clone()
            .with_blocking(Blocking::Inline)
            .head()
            .now_or_never()
            .unwrap(),
        Err(StoreError::NoVolume { .. })
    ));
    let records: Vec<Record> = (0..500).map(|i| record(i, 100 + 37 * i as usize)).collect();
    let mut writer = Writer::begin(&repo).unwrap();
    for r in &records {
        assert!(writer.append(r).unwrap());
        assert!(!writer.append(r).unwrap(), "a second time it is dropped");
        assert!(writer.contains(&r.handle).unwrap());
        assert!(!repo.contains(&r.handle).unwrap(), "not before the commit");
    }
    writer.put_log_leaf(0, 1, b"leaf").unwrap();
    let done = writer.commit(b"statements").unwrap();
    assert_eq!(done.blocks, 500);
    assert_eq!(writer.commit(b"statements").unwrap().blocks, 0);
    drop(writer);

    for repo in [repo.clone(), Repository::open(&path).unwrap()] {
        let head = repo
            .clone()
            .with_blocking(Blocking::Inline)
            .head()
            .now_or_never()
            .unwrap()
            .unwrap();
        assert_eq!(head, Bytes::from_static(b"statements"));
        assert_eq!(repo.log_leaf(0, 1).unwrap().unwrap(), &b"leaf"[..]);
        assert!(repo.log_leaf(0, 2).unwrap().is_none());
        let mut want: Vec<Handle> = records.iter().map(|r| r.handle).collect();
        want.push(record(9999, 50).handle);
        want.push(records[3].handle);
        let mut got = get(&repo, &want, 0);
        let mut expected = records.clone();
        got.sort_by_key(|r| r.handle);
        expected.sort_by_key(|r| r.handle);
        assert_eq!(got, expected);
        // Not every file system can tell whether a read would wait.
        if let Some(frame) = repo.try_cached(&records[7].handle) {
            assert_eq!(frame, records[7].frame);
        }
    }
}

#[test]
fn second_writer_is_refused_and_a_dropped_one_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let repo = Repository::create(dir.path()).unwrap();
    let mut writer = Writer::begin(&repo).unwrap();
    assert!(matches!(
        Writer::begin(&Repository::open(dir.path()).unwrap()),
        Err(StoreError::Locked { .. })
    ));
    writer.append(&record(1, 5000)).unwrap();
    drop(writer);
    for part in ["segments", "index"] {
        let left = std::fs::read_dir(dir.path().join(part)).unwrap().count();
        assert_eq!(left, 0, "{part}");
    }
    Writer::begin(&repo).unwrap();
}

#[test]
fn reader_sees_a_new_version_after_refresh_and_keeps_the_old_while_it_reads() {
    let dir = tempfile::tempdir().unwrap();
    let repo = Repository::create(dir.path()).unwrap();
    let reader = Repository::open(dir.path()).unwrap();
    let mut writer = Writer::begin(&repo).unwrap();
    let records: Vec<Record> = (0..40).map(|i| record(i, 200)).collect();
    for (i, r) in records.iter().enumerate() {
        writer.append(r).unwrap();
        writer.commit(format!("version {i}").as_bytes()).unwrap();
        assert!(!reader.contains(&r.handle).unwrap());
        assert!(reader.refresh().unwrap());
        assert!(!reader.refresh().unwrap());
        assert!(reader.contains(&r.handle).unwrap());
    }
    let runs = std::fs::read_dir(dir.path().join("index")).unwrap().count();
    assert!(runs <= 12, "merged to few runs, found {runs}");
    assert_eq!(reader.index_entries(), 40);
    let want: Vec<Handle> = records.iter().map(|r| r.handle).collect();
    assert_eq!(get(&reader, &want, 0).len(), 40);
}

#[test]
fn read_around_returns_the_records_after_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let repo = Repository::create(dir.path()).unwrap();
    let records: Vec<Record> = (0..100).map(|i| record(i, 1000)).collect();
    let mut writer = Writer::begin(&repo).unwrap();
    for r in &records {
        writer.append(r).unwrap();
    }
    writer.commit(b"v").unwrap();
    let len = records[0].len();
    let got = get(&repo, &[records[10].handle], 5 * len + 3);
    assert_eq!(got, records[10..16].to_vec());
    // A wanted record among the neighbours comes once and first. Read-around stops at the end of the segment.
    let got = get(&repo, &[records[95].handle, records[97].handle], 1 << 20);
    let handles: Vec<Handle> = got.iter().map(|r| r.handle).collect();
    let expected = [95, 97, 98, 99].map(|i| records[i].handle);
    assert_eq!(handles, expected);
    // The sink may stop the read, and regions hold whole records.
    let want: Vec<Handle> = records.iter().map(|r| r.handle).collect();
    let mut regions = 0;
    repo.read_blocking(&want, 0, &mut |region| {
        assert_eq!((region.records, region.bytes.len()), (100, 100 * len));
        regions += 1;
        ControlFlow::Break(())
    })
    .unwrap();
    assert_eq!(regions, 1);
}

#[test]
fn large_commit_takes_several_segments_and_a_checkpoint_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let repo = Repository::create(dir.path()).unwrap();
    let records: Vec<Record> = (0..150).map(|i| record(i, 1 << 20)).collect();
    let (before, after) = records.split_at(100);
    let mut writer = Writer::begin(&repo).unwrap();
    before
        .iter()
        .for_each(|r| assert!(writer.append(r).unwrap()));
    assert_eq!(writer.checkpoint().unwrap().blocks, 100);
    after
        .iter()
        .for_each(|r| assert!(writer.append(r).unwrap()));
    drop(writer);
    let mut writer = Writer::begin(&repo).unwrap();
    let new = records.iter().filter(|r| writer.append(r).unwrap()).count();
    assert_eq!(new, 50, "what the checkpoint kept is not written again");
    writer.commit(b"v").unwrap();
    let segments = std::fs::read_dir(dir.path().join("segments")).unwrap();
    let lengths: Vec<u64> = segments
        .map(|s| s.unwrap().metadata().unwrap().len())
        .collect();
    assert_eq!(lengths.len(), 3);
    assert!(lengths.iter().all(|l| *l < (65 << 20)));
    let want: Vec<Handle> = records.iter().map(|r| r.handle).collect();
    assert_eq!(get(&repo, &want, 1 << 20).len(), 150);
}

#[test]
fn cached_records_are_read_without_waiting() {
    // In the test's own directory and on a memory file system, if there is one.
    let memory = std::path::Path::new("/dev/shm");
    let dirs = [std::env::temp_dir(), memory.to_owned()];
    for parent in dirs.iter().filter(|d| d.is_dir()) {
        let dir = tempfile::tempdir_in(parent).unwrap();
        let repo = Repository::create(dir.path()).unwrap();
        let r = record(1, 50_000);
        let mut writer = Writer::begin(&repo).unwrap();
        writer.append(&r).unwrap();
        writer.commit(b"v").unwrap();
        // Just written, so in the page cache. Read once for file systems that cannot tell.
        assert_eq!(get(&repo, &[r.handle], 0), std::slice::from_ref(&r));
        if parent == memory {
            assert_eq!(repo.try_cached(&r.handle), Some(r.frame));
        }
    }
}
