//! The disk cache keeps its limits, drops damaged blocks and survives misuse.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use sim::random::noise;
use sim::time::wait_until;
use trust::frame::Packer;
use trust::{Hasher, Kind};

use super::*;

fn record(number: u32, len: usize) -> Record {
    let plain = noise(number.into(), len);
    Record {
        handle: Hasher::new(&[1; 32]).name(Kind::Data, &plain),
        frame: Packer::new().pack(Kind::Data, &plain).unwrap(),
    }
}

fn limits(quota_bytes: u64) -> CacheLimits {
    CacheLimits {
        quota_bytes,
        keep_free_bytes: 0,
    }
}

fn filled(directory: &Path, limits: CacheLimits, records: &[Record]) -> Arc<DiskCache> {
    let cache = DiskCache::open(directory, limits).unwrap();
    for record in records {
        cache.put(record.handle, &record.frame);
        // A queue that is full, and a disk that is stuck when the cache is closed, cost blocks.
        wait_until("the block is written", || cache.shared.room.is_free());
    }
    drop(cache);
    DiskCache::open(directory, limits).unwrap()
}

fn file_of(directory: &Path, record: &Record) -> PathBuf {
    Files::open(directory).unwrap().path(&record.handle)
}

#[tokio::test]
async fn cached_block_is_found_by_the_next_process() {
    let dir = tempfile::tempdir().unwrap();
    let records: Vec<Record> = (0..100)
        .map(|n| record(n, 100 + 300 * n as usize))
        .collect();
    let cache = CacheStore(filled(dir.path(), limits(1 << 30), &records));
    let want: Vec<Handle> = records
        .iter()
        .map(|r| r.handle)
        .chain([record(0, 100).handle])
        .collect();
    let mut got = cache.get_many(&want, 0).await.unwrap();
    got.sort_by_key(|r| r.handle);
    let mut expected = records.clone();
    expected.sort_by_key(|r| r.handle);
    assert_eq!(got, expected);
    let unknown = record(1000, 5).handle;
    assert!(cache.get_many(&[unknown], 0).await.unwrap().is_empty());
    assert_eq!(cache.0.counters().misses.load(Ordering::Relaxed), 1);
}

#[test]
fn damaged_file_is_not_returned_and_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let records: Vec<Record> = (0..7).map(|n| record(n, 5000)).collect();
    let cache = filled(dir.path(), limits(1 << 30), &records);
    let path = |n: usize| file_of(dir.path(), &records[n]);
    fs::write(path(0), b"").unwrap();
    let whole = fs::read(path(1)).unwrap();
    fs::write(path(1), &whole[..whole.len() - 1]).unwrap();
    fs::write(path(2), [whole.as_slice(), b"more"].concat()).unwrap();
    fs::copy(path(6), path(3)).unwrap();
    fs::remove_file(path(4)).unwrap();
    symlink("/dev/zero", path(4)).unwrap();
    fs::remove_file(path(5)).unwrap();
    fs::create_dir_all(path(5).join("in the way")).unwrap();
    for record in &records[..6] {
        assert!(cache.get(&record.handle, Patience::Wait).is_none());
    }
    assert!(cache.get(&records[6].handle, Patience::Wait).is_some());
    assert_eq!(cache.counters().damaged.load(Ordering::Relaxed), 6);
    // A removed block can be cached again.
    drop(cache);
    let cache = filled(dir.path(), limits(1 << 30), &records);
    for record in &records {
        assert!(cache.get(&record.handle, Patience::Wait).is_some());
    }
}

#[test]
fn quota_holds_and_recently_used_blocks_stay() {
    let dir = tempfile::tempdir().unwrap();
    let quota = 4 << 20;
    let old: Vec<Record> = (0..256).map(|n| record(n, 16_000)).collect();
    let cache = filled(dir.path(), limits(quota), &old);
    // All blocks are a day old. Every fourth is used now.
    let day_ago = std::time::SystemTime::now() - Duration::from_secs(86_400);
    for record in &old {
        if let Ok(file) = fs::File::options()
            .write(true)
            .open(file_of(dir.path(), record))
        {
            file.set_modified(day_ago).unwrap();
        }
    }
    let used: Vec<&Record> = old.iter().step_by(4).collect();
    for record in &used {
        assert!(cache.get(&record.handle, Patience::Wait).is_some());
    }
    drop(cache);
    let new: Vec<Record> = (1000..1128).map(|n| record(n, 16_000)).collect();
    let cache = filled(dir.path(), limits(quota), &new);
    let mut total = 0;
    cache.shared.files.walk(|entry| total += entry.bytes);
    assert!(total <= quota + quota / 8, "{total} bytes of {quota}");
    let kept = |records: &[&Record]| {
        let there = |r: &&&Record| cache.get(&r.handle, Patience::Wait).is_some();
        records.iter().filter(there).count()
    };
    assert_eq!(kept(&used), used.len(), "a recently used block was removed");
    let unused: Vec<&Record> = old
        .iter()
        .filter(|r| !used.iter().any(|u| u.handle == r.handle))
        .collect();
    assert!(kept(&unused) < unused.len());
}

#[test]
fn free_space_limit_holds() {
    let dir = tempfile::tempdir().unwrap();
    let greedy = CacheLimits {
        quota_bytes: 1 << 30,
        keep_free_bytes: u64::MAX / 2,
    };
    let records: Vec<Record> = (0..10).map(|n| record(n, 5000)).collect();
    let cache = filled(dir.path(), greedy, &records);
    assert!(cache.get(&records[0].handle, Patience::Wait).is_none());
    cache.put(records[0].handle, &records[0].frame);
    wait_until("the cache says that it is full", || cache.is_full());
    assert_eq!(fs::read_dir(dir.path().join("new")).unwrap().count(), 0);
}

#[test]
fn uncreatable_directory_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    assert!(DiskCache::open(&file, limits(1)).is_err());
    assert!(DiskCache::open(&file.join("below"), limits(1)).is_err());
}

#[test]
fn block_without_room_in_time_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let cache = DiskCache::open(dir.path(), limits(1 << 30)).unwrap();
    let frame = record(1, 100).frame;
    // As if the disk were stuck with all of it.
    assert!(cache.shared.room.take(MAX_QUEUED_BYTES));
    for i in 0..1000 {
        cache.put(Handle::from_bytes([i as u8; 32]), &frame);
    }
    assert_eq!(cache.counters().refused.load(Ordering::Relaxed), 1000);
    cache.shared.room.give(MAX_QUEUED_BYTES);
    cache.put(Handle::from_bytes([9; 32]), &frame);
    assert_eq!(cache.counters().refused.load(Ordering::Relaxed), 1000);
}
