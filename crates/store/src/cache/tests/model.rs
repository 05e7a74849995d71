//! The cache beside a map: whatever is cut, damaged or killed, a block comes back whole or not at all, and what is
//! put again comes back.

use proptest::prelude::*;

use super::super::format::{HEADER_BYTES, KEY_BYTES};
use super::*;

const QUOTA: u64 = 1 << 30;

/// What the reader does: proves a frame, and says if it is wrong.
fn proved(cache: &DiskCache, record: &Record) -> bool {
    let Some(frame) = cache.get(&record.handle, Patience::Wait) else {
        return false;
    };
    let plain = frame.unpack().ok();
    let name = plain.map(|plain| Hasher::new(&[1; 32]).name(Kind::Data, &plain));
    let right = name == Some(record.handle);
    if !right {
        cache.remove_damaged(&record.handle);
    }
    right
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// All blocks can be had again, by this process and the next one.
fn heals(directory: &Path, records: &[Record]) {
    let cache = DiskCache::open(directory, limits(QUOTA)).unwrap();
    let missing: Vec<Record> = records
        .iter()
        .filter(|it| !proved(&cache, it))
        .cloned()
        .collect();
    put(&cache, &missing);
    assert!(records.iter().all(|record| proved(&cache, record)));
    drop(cache);
    let next = DiskCache::open(directory, limits(QUOTA)).unwrap();
    assert!(records.iter().all(|record| proved(&next, record)));
    assert_eq!(next.counters().damaged.load(Ordering::Relaxed), 0);
}

#[test]
fn files_cut_at_any_byte_of_their_end_keep_the_rest_and_heal() {
    let dir = tempfile::tempdir().unwrap();
    let records = records(0..6, 300);
    drop(filled(dir.path(), limits(QUOTA), &records));
    let cases = [
        (Part::Keys, HEADER_BYTES + 4 * KEY_BYTES, KEY_BYTES),
        (Part::Blocks, 0, records[0].len()),
    ];
    for (part, from, each) in cases {
        let path = &files(dir.path(), part)[0];
        let len = fs::metadata(path).unwrap().len() as usize;
        let from = if from > 0 { from } else { len - 2 * each };
        for cut in from..len {
            let again = tempfile::tempdir().unwrap();
            copy(dir.path(), again.path());
            let path = again.path().join(path.file_name().unwrap());
            fs::File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_len(cut as u64)
                .unwrap();
            let cache = DiskCache::open(again.path(), limits(QUOTA)).unwrap();
            let whole = records.iter().filter(|it| proved(&cache, it)).count();
            let lost = (len - cut).div_ceil(each);
            assert_eq!(whole, 6 - lost, "{part:?} cut at {cut} of {len}");
            drop(cache);
            if cut % 7 == 0 {
                heals(again.path(), &records);
            }
        }
    }
}

/// The last key of a segment says a greater length than its record has. The record is whole, and must not count as
/// found: records that are appended to the segment would follow it.
#[test]
fn key_that_reaches_beyond_the_end_of_its_file_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let records = records(0..6, 300);
    drop(filled(dir.path(), limits(QUOTA), &records));
    let path = &files(dir.path(), Part::Keys)[0];
    let mut bytes = fs::read(path).unwrap();
    let len = bytes.len();
    bytes[len - 2] ^= 4;
    fs::write(path, bytes).unwrap();
    heals(dir.path(), &[records, super::records(6..9, 300)].concat());
}

#[test]
fn copy_of_the_directory_at_any_moment_is_a_cache() {
    let dir = tempfile::tempdir().unwrap();
    let records = records(0..200, 8000);
    let cache = DiskCache::open(dir.path(), limits(2 << 20)).unwrap();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            for _ in 0..3 {
                put(&cache, &records);
            }
        });
        while !writing.is_finished() {
            let killed = tempfile::tempdir().unwrap();
            // A segment may be removed while it is copied.
            for entry in fs::read_dir(dir.path()).unwrap().flatten() {
                let _ = fs::copy(entry.path(), killed.path().join(entry.file_name()));
            }
            let after = DiskCache::open(killed.path(), limits(QUOTA)).unwrap();
            for record in &records {
                has(&after, record);
            }
            drop(after);
            heals(killed.path(), &records[..20]);
        }
    });
}

#[derive(Debug, Clone)]
enum Step {
    Put(u32),
    Get(u32),
    Reopen,
    /// Changes a byte of a file.
    Flip(usize, usize, u8),
    /// Cuts a file.
    Cut(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..60u32).prop_map(Step::Put),
        6 => (0..60u32).prop_map(Step::Get),
        1 => Just(Step::Reopen),
        1 => (any::<usize>(), any::<usize>(), 0..8u8).prop_map(|(f, at, bit)| Step::Flip(f, at, bit)),
        1 => (any::<usize>(), any::<usize>()).prop_map(|(f, at)| Step::Cut(f, at)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 5))]

    /// Two processes of which one is opened again from time to time, on a directory that rots.
    #[test]
    fn block_comes_whole_or_not_at_all(steps in prop::collection::vec(step(), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let mut one = DiskCache::open(dir.path(), limits(QUOTA)).unwrap();
        let other = DiskCache::open(dir.path(), limits(QUOTA)).unwrap();
        let record = |number: u32| super::record(number, 50 + number as usize * 97);
        // What must be found, as long as no file was touched.
        let (mut there, mut rotten) = (HashSet::new(), false);
        for (at, step) in steps.into_iter().enumerate() {
            let cache = if at % 3 == 0 { &other } else { &one };
            match step {
                Step::Put(number) => {
                    put(cache, &[record(number)]);
                    there.insert((at % 3 == 0, number));
                }
                Step::Get(number) => {
                    let found = proved(cache, &record(number));
                    prop_assert!(found || rotten || !there.contains(&(at % 3 == 0, number)));
                }
                Step::Reopen => {
                    drop(one);
                    one = DiskCache::open(dir.path(), limits(QUOTA)).unwrap();
                    let by_other: Vec<u32> =
                        there.iter().map(|(_, number)| *number).collect();
                    there.extend(by_other.into_iter().map(|number| (false, number)));
                }
                Step::Flip(file, at, bit) => {
                    if let Some((path, mut bytes)) = any_file(dir.path(), file) {
                        let at = at % bytes.len();
                        bytes[at] ^= 1 << bit;
                        fs::write(path, bytes).unwrap();
                        rotten = true;
                    }
                }
                Step::Cut(file, at) => {
                    if let Some((path, bytes)) = any_file(dir.path(), file) {
                        let file = fs::File::options().write(true).open(path).unwrap();
                        file.set_len((at % bytes.len()) as u64).unwrap();
                        rotten = true;
                    }
                }
            }
        }
        drop((one, other));
        let all: Vec<Record> = (0..60).map(record).collect();
        heals(dir.path(), &all);
    }
}

fn any_file(directory: &Path, number: usize) -> Option<(PathBuf, Vec<u8>)> {
    let both = Part::BOTH.map(|part| files(directory, part)).concat();
    let path = both.get(number % both.len().max(1))?.clone();
    let bytes = fs::read(&path).unwrap();
    (!bytes.is_empty()).then_some((path, bytes))
}
