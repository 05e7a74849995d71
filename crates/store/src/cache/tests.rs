//! The disk cache keeps its limits, forgets damaged blocks, shares its directory and survives misuse.

mod hostile;
mod model;

use std::fs;
use std::path::PathBuf;

use sim::random::noise;
use sim::time::wait_until;
use trust::frame::Packer;
use trust::{Hasher, Kind};

use super::format::Part;
use super::*;

fn record(number: u32, len: usize) -> Record {
    let plain = noise(number.into(), len);
    Record {
        handle: Hasher::new(&[1; 32]).name(Kind::Data, &plain),
        frame: Packer::new().pack(Kind::Data, &plain).unwrap(),
    }
}

fn records(numbers: std::ops::Range<u32>, len: usize) -> Vec<Record> {
    numbers.map(|number| record(number, len)).collect()
}

fn limits(quota_bytes: u64) -> CacheLimits {
    CacheLimits {
        quota_bytes,
        keep_free_bytes: 0,
    }
}

fn put(cache: &DiskCache, records: &[Record]) {
    for record in records {
        cache.put(record.handle, &record.frame);
        // A queue that is full, and a disk that is stuck when the cache is closed, cost blocks.
        wait_until("the block is written", || cache.shared.room.is_free());
    }
}

fn filled(directory: &Path, limits: CacheLimits, records: &[Record]) -> Arc<DiskCache> {
    let cache = DiskCache::open(directory, limits).unwrap();
    put(&cache, records);
    drop(cache);
    DiskCache::open(directory, limits).unwrap()
}

fn has(cache: &DiskCache, record: &Record) -> bool {
    let frame = cache.get(&record.handle, Patience::Wait);
    if let Some(frame) = &frame {
        assert_eq!(*frame, record.frame, "a wrong byte");
    }
    frame.is_some()
}

fn kept(cache: &DiskCache, records: &[Record]) -> usize {
    records.iter().filter(|record| has(cache, record)).count()
}

/// The files of this kind, oldest first.
fn files(directory: &Path, part: Part) -> Vec<PathBuf> {
    let listed = Directory::open(directory).unwrap().list().unwrap();
    let names = listed.iter().map(|listed| listed.name.file(part));
    names.map(|name| directory.join(name)).collect()
}

fn disk_bytes(directory: &Path) -> u64 {
    let listed = Directory::open(directory).unwrap().list().unwrap();
    listed.iter().map(|listed| listed.disk_bytes).sum()
}

/// Changes the byte in the middle of a record's frame.
fn damage(cache: &DiskCache, directory: &Path, record: &Record) {
    drop(cache.shared.wait_until_loaded());
    let place = cache.shared.segments.find(&record.handle).unwrap();
    let path = directory.join(place.segment.file(Part::Blocks));
    let mut bytes = fs::read(&path).unwrap();
    bytes[(place.offset + place.len / 2) as usize] ^= 1;
    fs::write(&path, bytes).unwrap();
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
fn each_block_is_given_once_before_the_next_is_read_in_the_order_of_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let records = records(0..30, 3000);
    let cache = filled(dir.path(), limits(1 << 30), &records);
    let mut want: Vec<Handle> = records.iter().map(|record| record.handle).collect();
    want.reverse();
    want.push(record(1000, 5).handle);
    want.extend_from_within(..10);
    let mut given = Vec::new();
    cache.read_each(&want, |handle, frame| {
        given.push(Record { handle, frame });
        let read = cache.counters().hits.load(Ordering::Relaxed);
        assert_eq!(read, given.len() as u64);
    });
    assert_eq!(given, records);
}

#[test]
fn many_short_processes_share_one_segment() {
    let dir = tempfile::tempdir().unwrap();
    let records = records(0..50, 1000);
    for record in &records {
        drop(filled(
            dir.path(),
            limits(1 << 30),
            std::slice::from_ref(record),
        ));
    }
    assert_eq!(files(dir.path(), Part::Keys).len(), 1);
    let cache = DiskCache::open(dir.path(), limits(1 << 30)).unwrap();
    assert_eq!(kept(&cache, &records), 50);
}

#[test]
fn block_is_found_that_another_process_writes() {
    let dir = tempfile::tempdir().unwrap();
    let caches = [(); 3].map(|()| DiskCache::open(dir.path(), limits(1 << 30)).unwrap());
    let records = records(0..30, 20_000);
    for round in 0..10 {
        for (cache, record) in caches.iter().zip(&records[round * 3..]) {
            put(cache, std::slice::from_ref(record));
        }
    }
    for cache in &caches {
        wait_until("all blocks", || kept(cache, &records) == records.len());
    }
    // Each process that wrote has a segment of its own.
    assert_eq!(files(dir.path(), Part::Blocks).len(), 3);
}

#[test]
fn damaged_block_is_forgotten_and_its_next_copy_is_found_by_all() {
    let dir = tempfile::tempdir().unwrap();
    let records = records(0..20, 5000);
    let cache = filled(dir.path(), limits(1 << 30), &records);
    // The damage is in the handle of the record: others are found by their hash (crate `reader`).
    let place =
        |cache: &DiskCache, n: usize| cache.shared.segments.find(&records[n].handle).unwrap();
    drop(cache.shared.wait_until_loaded());
    for n in 0..6 {
        let place = place(&cache, n);
        let path = dir.path().join(place.segment.file(Part::Blocks));
        let mut bytes = fs::read(&path).unwrap();
        bytes[place.offset as usize + n] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    // A process that has begun a later segment and writes on an older one must not hide what heals.
    let other = DiskCache::open(dir.path(), limits(1 << 30)).unwrap();
    assert_eq!(kept(&cache, &records), 14);
    assert_eq!(cache.counters().damaged.load(Ordering::Relaxed), 6);
    put(&cache, &records);
    assert_eq!(kept(&cache, &records), 20);
    drop((cache, other));
    let next = DiskCache::open(dir.path(), limits(1 << 30)).unwrap();
    assert_eq!(kept(&next, &records), 20);
    assert_eq!(next.counters().damaged.load(Ordering::Relaxed), 0);
}

#[test]
fn copy_that_heals_hides_damage_in_a_later_segment() {
    let dir = tempfile::tempdir().unwrap();
    let open = || DiskCache::open(dir.path(), limits(1 << 30)).unwrap();
    let (first, second) = (open(), open());
    let (own, theirs) = (records(0..3, 5000), records(10..13, 5000));
    put(&first, &own);
    put(&second, &theirs);
    wait_until("their blocks are found", || kept(&first, &theirs) == 3);
    damage(&first, dir.path(), &theirs[1]);
    first.remove_damaged(&theirs[1].handle);
    // The segment of the first process is older than the one with the damage, which the second still writes.
    put(&first, &theirs);
    drop((first, second));
    assert_eq!(kept(&open(), &theirs), 3);
}

#[test]
fn damage_that_only_the_hash_finds_is_healed_too() {
    let dir = tempfile::tempdir().unwrap();
    let records = records(0..3, 5000);
    let cache = filled(dir.path(), limits(1 << 30), &records);
    damage(&cache, dir.path(), &records[1]);
    let handle = records[1].handle;
    assert_ne!(
        cache.get(&handle, Patience::Wait).unwrap(),
        records[1].frame
    );
    // What the reader does when the hash is wrong.
    cache.remove_damaged(&handle);
    assert!(!has(&cache, &records[1]));
    put(&cache, &records[1..2]);
    drop(cache);
    let next = DiskCache::open(dir.path(), limits(1 << 30)).unwrap();
    assert_eq!(kept(&next, &records), 3);
}

#[test]
fn quota_holds_and_used_blocks_stay() {
    let dir = tempfile::tempdir().unwrap();
    let quota = 4 << 20;
    let cache = DiskCache::open(dir.path(), limits(quota)).unwrap();
    let used = records(0..16, 16_000);
    put(&cache, &used);
    for step in 1..40u32 {
        put(&cache, &records(step * 1000..step * 1000 + 16, 16_000));
        for record in &used {
            let frame = cache.get(&record.handle, Patience::Wait);
            let frame = frame.expect("a used block was removed");
            cache.used(record.handle, &frame);
        }
        wait_until("the queue is empty", || cache.shared.room.is_free());
        let total = disk_bytes(dir.path());
        assert!(total <= quota + quota / 8, "{total} bytes of {quota}");
    }
    assert!(cache.counters().evicted.load(Ordering::Relaxed) > 300);
    assert!(
        kept(&cache, &records(1000..1016, 16_000)) == 0,
        "the unused oldest stay"
    );
    assert_eq!(kept(&cache, &records(39_000..39_016, 16_000)), 16);
    // Used blocks are written again only when they would be removed soon.
    let written = cache.counters().written.load(Ordering::Relaxed);
    assert!(written < 40 * 16 * 2, "{written}");
}

#[test]
fn several_processes_keep_one_quota() {
    let dir = tempfile::tempdir().unwrap();
    let quota = 8 << 20;
    let caches = [(); 4].map(|()| DiskCache::open(dir.path(), limits(quota)).unwrap());
    std::thread::scope(|scope| {
        for (cache, n) in caches.iter().zip(0u32..) {
            scope.spawn(move || put(cache, &records(n * 10_000..n * 10_000 + 500, 16_000)));
        }
    });
    let total = disk_bytes(dir.path());
    // Each process may be ahead of its last look by a part of the quota.
    assert!(total <= quota + quota / 4, "{total} bytes of {quota}");
    assert!(total > quota / 2, "{total} bytes of {quota}");
}

#[test]
fn removed_segment_frees_its_space_while_a_reader_has_it_open() {
    let dir = tempfile::tempdir().unwrap();
    let first = records(0..10, 50_000);
    let reader = filled(dir.path(), limits(1 << 30), &first);
    assert_eq!(kept(&reader, &first), 10);
    let name = reader
        .shared
        .segments
        .find(&first[0].handle)
        .unwrap()
        .segment;
    let open = fs::File::open(dir.path().join(name.file(Part::Blocks))).unwrap();
    let small = DiskCache::open(dir.path(), limits(1 << 17)).unwrap();
    put(&small, &records(100..120, 10_000));
    assert_eq!(open.metadata().unwrap().len(), 0);
    assert_eq!(kept(&reader, &first), 0);
    assert_eq!(reader.counters().damaged.load(Ordering::Relaxed), 0);
}

#[test]
fn free_space_limit_holds() {
    let dir = tempfile::tempdir().unwrap();
    let greedy = CacheLimits {
        quota_bytes: 1 << 30,
        keep_free_bytes: u64::MAX / 2,
    };
    let records = records(0..10, 5000);
    let cache = filled(dir.path(), greedy, &records);
    assert!(!has(&cache, &records[0]));
    cache.put(records[0].handle, &records[0].frame);
    wait_until("the cache says that it is full", || cache.is_full());
    assert_eq!(disk_bytes(dir.path()), 0);
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
