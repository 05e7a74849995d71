//! What other programs and users do to the directory of a cache: foreign files are left alone, links and pipes do
//! no harm, and wrong segments cost a bounded amount.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::super::format::{BLOCKS, HEADER_BYTES, KEYS, Key, MAX_KEYS, SegmentName};
use super::*;

const QUOTA: u64 = 1 << 30;

/// Runs `work`, which must end.
fn ends<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (end, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || end.send(work()));
    ended
        .recv_timeout(Duration::from_secs(30))
        .expect("it hangs")
}

/// Writes a segment with these keys and records.
fn plant(directory: &Path, number: u64, keys: &[Key], blocks: &[u8]) -> SegmentName {
    let name = SegmentName { number, random: 1 };
    let mut bytes = KEYS.to_vec();
    keys.iter().for_each(|key| key.put(&mut bytes));
    fs::write(directory.join(name.file(Part::Keys)), bytes).unwrap();
    fs::write(
        directory.join(name.file(Part::Blocks)),
        [BLOCKS, blocks].concat(),
    )
    .unwrap();
    name
}

#[test]
fn directory_with_foreign_files_is_refused_and_left_alone() {
    for there in [
        "a-file",
        "00/0123456789abcdef",
        "segments/x.seg",
        ".hidden",
        "cur/new",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(there);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, b"dear").unwrap();
        let error = Directory::open(dir.path())
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(error.contains("name an empty one"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{there}");
        assert_eq!(fs::read(&path).unwrap(), b"dear");
    }
}

#[test]
fn existing_partial_and_empty_directories_are_opened() {
    let dir = tempfile::tempdir().unwrap();
    Directory::open(dir.path()).unwrap();
    Directory::open(dir.path()).unwrap();
    // A process was killed before it had written the mark.
    fs::write(dir.path().join("bulla-cache"), b"").unwrap();
    Directory::open(dir.path()).unwrap();
    assert_eq!(
        fs::read(dir.path().join("bulla-cache")).unwrap().len(),
        HEADER_BYTES
    );
    let fresh = tempfile::tempdir().unwrap();
    fs::create_dir(fresh.path().join("lost+found")).unwrap();
    Directory::open(fresh.path()).unwrap();
    Directory::open(&fresh.path().join("lost+found/below/it")).unwrap();
}

#[test]
fn cache_of_a_later_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("bulla-cache"),
        b"bullacac\x01\0\0\0\0\0\0\0",
    )
    .unwrap();
    let error = Directory::open(dir.path())
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(error.contains("later bulla"), "{error}");
    // A segment of a later format is passed over, and removed when room is made.
    let dir = tempfile::tempdir().unwrap();
    let cache = filled(dir.path(), limits(QUOTA), &records(0..3, 500));
    let name = plant(dir.path(), 7, &[], b"");
    let keys = dir.path().join(name.file(Part::Keys));
    fs::write(
        &keys,
        [&b"bullacke\x01\0\0\0\0\0\0\0"[..], &[0; 400]].concat(),
    )
    .unwrap();
    cache.shared.segments.refresh().unwrap();
    assert_eq!(kept(&cache, &records(0..3, 500)), 3);
}

#[test]
fn foreign_files_in_a_cache_are_not_counted_and_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    drop(filled(dir.path(), limits(QUOTA), &records(0..3, 50_000)));
    let dear = tempfile::tempdir().unwrap();
    let target = dear.path().join("target");
    fs::write(&target, vec![7; 100_000]).unwrap();
    let name = SegmentName {
        number: 0,
        random: 0,
    };
    let link = dir.path().join(name.file(Part::Blocks));
    symlink(&target, &link).unwrap();
    fs::create_dir(dir.path().join(name.file(Part::Keys))).unwrap();
    fs::write(dir.path().join("note.txt"), b"dear").unwrap();
    let small = DiskCache::open(dir.path(), limits(1 << 17)).unwrap();
    put(&small, &records(100..130, 10_000));
    assert!(small.counters().evicted.load(Ordering::Relaxed) >= 3);
    assert_eq!(fs::read(&target).unwrap(), vec![7; 100_000]);
    assert!(link.exists() && dir.path().join("note.txt").exists());
}

#[test]
fn file_with_another_name_is_unlinked_but_not_emptied() {
    let dir = tempfile::tempdir().unwrap();
    drop(filled(dir.path(), limits(QUOTA), &records(0..3, 50_000)));
    let dear = tempfile::tempdir().unwrap();
    let target = dear.path().join("target");
    fs::write(&target, [BLOCKS, &[7; 100_000][..]].concat()).unwrap();
    let name = SegmentName {
        number: 0,
        random: 0,
    };
    fs::hard_link(&target, dir.path().join(name.file(Part::Blocks))).unwrap();
    let small = DiskCache::open(dir.path(), limits(1 << 17)).unwrap();
    put(&small, &records(100..130, 10_000));
    assert!(!dir.path().join(name.file(Part::Blocks)).exists());
    assert_eq!(fs::metadata(&target).unwrap().len(), 100_016);
}

#[test]
fn pipes_instead_of_files_do_not_block() {
    let dir = tempfile::tempdir().unwrap();
    let records = records(0..5, 5000);
    drop(filled(dir.path(), limits(QUOTA), &records));
    let pipe = |path: PathBuf| {
        fs::remove_file(&path).ok();
        mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    };
    let path = dir.path().to_owned();
    for part in Part::BOTH {
        pipe(files(dir.path(), part)[0].clone());
        let (path, records) = (path.clone(), records.clone());
        ends(move || {
            let cache = DiskCache::open(&path, limits(QUOTA)).unwrap();
            assert_eq!(kept(&cache, &records), 0);
            put(&cache, &records);
            assert_eq!(kept(&cache, &records), 5);
            // Nor does making room.
            let small = DiskCache::open(&path, limits(1 << 17)).unwrap();
            put(&small, &super::records(100..130, 10_000));
            put(&cache, &records);
        });
    }
    pipe(dir.path().join("bulla-cache"));
    assert!(ends(move || DiskCache::open(&path, limits(QUOTA)).is_err()));
}

#[test]
fn symbolic_link_instead_of_the_mark_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dear = tempfile::tempdir().unwrap().path().join("dear");
    symlink(&dear, dir.path().join("bulla-cache")).unwrap();
    assert!(Directory::open(dir.path()).is_err());
    assert!(!dear.exists());
}

#[test]
fn keys_that_lead_to_wrong_places_cost_a_read_each() {
    let dir = tempfile::tempdir().unwrap();
    let good = records(0..6, 5000);
    let mut blocks = bytes::BytesMut::new();
    good[0].put(&mut blocks);
    let len = good[0].len() as u32;
    let lies = [
        (16, len),
        (17, len),
        (16, len - 1),
        (16, 1 << 20),
        (u32::MAX - (1 << 20), len),
        (0, 5),
    ];
    let keys: Vec<Key> = good
        .iter()
        .zip(lies)
        .map(|(record, (offset, len))| Key {
            handle: record.handle,
            offset,
            len,
        })
        .collect();
    plant(dir.path(), 5, &keys, &blocks);
    fs::write(dir.path().join("bulla-cache"), b"").unwrap();
    let cache = DiskCache::open(dir.path(), limits(QUOTA)).unwrap();
    assert_eq!(kept(&cache, &good), 1);
    // The last key is impossible and was not taken in.
    assert_eq!(cache.counters().damaged.load(Ordering::Relaxed), 4);
    put(&cache, &good);
    drop(cache);
    assert_eq!(
        kept(&DiskCache::open(dir.path(), limits(QUOTA)).unwrap(), &good),
        6
    );
}

#[test]
fn keys_of_many_wrong_segments_take_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let keys: Vec<Key> = (0..200_000u32)
        .map(|n| Key {
            handle: Hasher::new(&[2; 32]).name(Kind::Data, &n.to_le_bytes()),
            offset: 16,
            len: 100,
        })
        .collect();
    for (number, part) in (0..).zip(keys.chunks(100_000)) {
        plant(dir.path(), number, part, b"");
    }
    fs::write(dir.path().join("bulla-cache"), b"").unwrap();
    let known = |quota| {
        let cache = DiskCache::open(dir.path(), limits(quota)).unwrap();
        drop(cache.shared.wait_until_loaded());
        let index = cache.shared.segments.index();
        index.len()
    };
    // Of a segment no more are read than a writer writes, and of all no more than the quota permits.
    assert_eq!(known(QUOTA), 2 * MAX_KEYS);
    assert_eq!(known(1 << 20), MAX_KEYS);
    // A full index makes room for what is written.
    let cache = DiskCache::open(dir.path(), limits(1 << 20)).unwrap();
    let records = records(0..20, 5000);
    put(&cache, &records);
    assert_eq!(kept(&cache, &records), 20);
}

#[test]
fn segment_that_shrinks_and_grows_while_it_is_read_gives_no_wrong_byte() {
    let dir = tempfile::tempdir().unwrap();
    let records = records(0..40, 20_000);
    let cache = filled(dir.path(), limits(QUOTA), &records);
    let paths = Part::BOTH.map(|part| files(dir.path(), part)[0].clone());
    let whole = paths.clone().map(|path| fs::read(path).unwrap());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0usize;
            while !done.load(Ordering::Relaxed) {
                for (path, bytes) in paths.iter().zip(&whole) {
                    n += 1;
                    fs::write(path, &bytes[..n * 7919 % bytes.len()]).unwrap();
                    fs::write(path, bytes).unwrap();
                }
            }
        });
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(1) {
            kept(&cache, &records);
            cache.shared.segments.refresh().unwrap();
            put(&cache, &records);
        }
        done.store(true, Ordering::Relaxed);
    });
    put(&cache, &records);
    assert_eq!(kept(&cache, &records), 40);
}

#[test]
fn files_are_for_others_only_in_a_directory_that_they_can_write() {
    for (directory, expected) in [
        (0o700, 0o600),
        (0o755, 0o600),
        (0o770, 0o640),
        (0o1777, 0o644),
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(directory)).unwrap();
        drop(filled(dir.path(), limits(QUOTA), &records(0..2, 500)));
        for entry in fs::read_dir(dir.path()).unwrap().flatten() {
            let mode = entry.metadata().unwrap().mode() & 0o777;
            assert_eq!(mode, expected, "{:?} in {directory:o}", entry.file_name());
        }
    }
}

#[test]
fn segment_that_is_being_written_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let writer = DiskCache::open(dir.path(), limits(QUOTA)).unwrap();
    put(&writer, &records(0..3, 50_000));
    let small = DiskCache::open(dir.path(), limits(1 << 17)).unwrap();
    put(&small, &records(100..120, 10_000));
    assert_eq!(kept(&writer, &records(0..3, 50_000)), 3);
    // If somebody removes it all the same, the next look finds out.
    for part in Part::BOTH {
        files(dir.path(), part)
            .iter()
            .for_each(|path| fs::remove_file(path).unwrap());
    }
    drop(writer);
}
