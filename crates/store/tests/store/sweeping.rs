//! Sweeps and collections: a segment whose list is damaged stays whole, a step ends in time, and what was removed has no
//! space any more.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use sim::disk::CrashDisk;
use store::disk::Disk;
use store::names::FileId;
use store::writer::{Ages, MostSwept, Swept};
use store::{Repository, Writer};
use trust::{Handle, Hasher, Kind, Record, frame::Packer};

fn hasher() -> Hasher {
    Hasher::new(&[7; 32])
}

fn block(number: u8) -> Record {
    let plain = bytes::Bytes::from(sim::random::noise(number.into(), 3000));
    Record {
        handle: hasher().name(Kind::Data, &plain),
        frame: Packer::new().pack(Kind::Data, &plain).unwrap(),
    }
}

/// Everything is old.
struct Old;

impl Ages for Old {
    fn is_old(&self, _: FileId, _: &Handle) -> bool {
        true
    }

    fn condemn(&self, _: FileId, _: &Handle) -> bool {
        true
    }
}

const MOST: MostSwept = MostSwept {
    blocks: 1 << 16,
    bytes: 1 << 30,
    time: Duration::from_mins(1),
};

/// A repository with a segment for each of these lists of blocks.
fn repository(disk: Arc<dyn Disk>, segments: &[&[u8]]) -> Repository {
    let repository = Repository::create_on(disk).unwrap();
    let mut writer = Writer::begin(&repository).unwrap();
    for blocks in segments {
        for number in *blocks {
            assert!(writer.append(&block(*number)).unwrap());
        }
        writer.checkpoint().unwrap();
    }
    repository
}

fn sweep(repository: &Repository, live: &[u8], most: MostSwept) -> (Swept, usize) {
    let mut marks = store::collect::Marks::of(repository);
    for number in live {
        marks.mark(&block(*number).handle).unwrap();
    }
    let mut left: VecDeque<FileId> = repository.segments().into();
    let mut writer = Writer::begin(repository).unwrap();
    let swept = writer.sweep(&marks, &mut left, &Old, most, Duration::ZERO);
    (swept.unwrap(), left.len())
}

fn segment(disk: &CrashDisk) -> String {
    let files = disk.files();
    let mut segments = files.into_iter().filter(|name| name.ends_with(".seg"));
    segments.next().unwrap()
}

/// Turns the bits of a byte so far from the end, or from the beginning.
fn damage(disk: &CrashDisk, from_end: u64, at: u64) {
    let file = disk.open(&segment(disk)).unwrap();
    let end = file.len_bytes().unwrap();
    for at in [end - from_end, at] {
        let mut byte = [0];
        file.read_at(&mut byte, at).unwrap();
        file.write_at(&[!byte[0]], at).unwrap();
    }
}

fn reads(repository: &Repository, number: u8) -> bool {
    repository.whole_record(&block(number).handle, &hasher()) == Some(block(number))
}

const NUMBERS: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
/// In the trailer, and in the length of the first record.
const FOOTER: u64 = 20;
const FIRST_RECORD: u64 = 16 + 33;

#[test]
fn segment_with_a_damaged_list_is_not_swept() {
    for live in [&[][..], &[8]] {
        let disk = CrashDisk::new();
        let repository = repository(disk.clone(), &[&NUMBERS]);
        damage(&disk, FOOTER, FIRST_RECORD);
        let (swept, left) = sweep(&repository, live, MOST);
        assert_eq!((swept.damaged, swept.dropped, swept.rewritten), (1, 0, 0));
        assert_eq!((swept.blocks, left), (0, 0));
        assert!(reads(&repository, 8) && !reads(&repository, 1));
    }
}

#[test]
fn collection_does_not_rewrite_a_segment_with_a_damaged_list() {
    let disk = CrashDisk::new();
    let repository = repository(disk.clone(), &[&NUMBERS]);
    damage(&disk, FOOTER, FIRST_RECORD);
    let mut writer = Writer::begin(&repository).unwrap();
    let mut marks = writer.marks();
    marks.mark(&block(8).handle).unwrap();
    let collected = writer.collect(&marks, Duration::ZERO).unwrap();
    assert_eq!((collected.rewritten, collected.dropped), (0, 0));
    assert!(reads(&repository, 8));
}

/// Writes another footer, which fits the file and has the right sum: two records are one.
fn forge(disk: &CrashDisk) {
    let file = disk.open(&segment(disk)).unwrap();
    let end = file.len_bytes().unwrap();
    let mut footer = vec![0; 8 * 36];
    let at = end - 44 - footer.len() as u64;
    file.read_at(&mut footer, at).unwrap();
    let len = |key: &[u8]| u32::from_le_bytes(key[32..36].try_into().unwrap());
    let joined = len(&footer[..36]) + len(&footer[36..72]);
    footer[32..36].copy_from_slice(&joined.to_le_bytes());
    footer.drain(36..72);
    let count = 7_u32.to_le_bytes();
    let mut sum = blake3::Hasher::new();
    sum.update(&footer).update(&count);
    footer.extend(count);
    footer.extend(sum.finalize().as_bytes());
    footer.extend(b"bullaend");
    // What is too long goes before the records: a file cannot be cut here.
    let mut records = vec![0; at as usize];
    file.read_at(&mut records, 0).unwrap();
    let name = segment(disk);
    let forged = disk.create(&name).unwrap();
    forged.write_at(&records, 0).unwrap();
    forged.write_at(&footer, at).unwrap();
}

#[test]
fn list_that_lacks_a_marked_block_is_damaged() {
    let disk = CrashDisk::new();
    let repository = repository(disk.clone(), &[&NUMBERS]);
    forge(&disk);
    let (swept, _) = sweep(&repository, &[2], MOST);
    assert_eq!((swept.damaged, swept.dropped, swept.rewritten), (1, 0, 0));
    assert!(reads(&repository, 2));
    let mut writer = Writer::begin(&repository).unwrap();
    let mut marks = writer.marks();
    marks.mark(&block(2).handle).unwrap();
    let collected = writer.collect(&marks, Duration::ZERO).unwrap();
    assert_eq!(collected.rewritten, 0);
    assert!(reads(&repository, 2));
}

#[test]
fn whole_segments_are_dropped_and_rewritten_and_a_missing_one_stands_in_nobodys_way() {
    let disk = CrashDisk::new();
    let repository = repository(disk.clone(), &[&[1, 2], &[3, 4, 5, 6], &[7], &[8]]);
    let before: BTreeSet<FileId> = repository.segments().into_iter().collect();
    assert_eq!(before.len(), 4);
    disk.remove(&segment(&disk)).unwrap();
    let gone: Vec<u8> = NUMBERS
        .into_iter()
        .filter(|n| !reads(&repository, *n))
        .collect();
    let (swept, left) = sweep(&repository, &[3], MOST);
    assert_eq!((swept.damaged, left), (1, 0));
    let whole = 3 - u64::from(!gone.contains(&3));
    assert_eq!(swept.dropped, whole);
    assert_eq!(reads(&repository, 3), !gone.contains(&3));
    for number in NUMBERS.into_iter().filter(|number| *number != 3) {
        assert!(!reads(&repository, number), "{number}");
    }
}

#[test]
fn step_without_time_looks_at_one_segment() {
    let disk = CrashDisk::new();
    let repository = repository(disk, &[&[1], &[2], &[3]]);
    let short = MostSwept {
        time: Duration::ZERO,
        ..MOST
    };
    let (swept, left) = sweep(&repository, &[], short);
    assert_eq!((swept.segments, left), (1, 2));
}

#[test]
#[cfg(target_os = "linux")]
fn removed_segment_has_no_space_once_its_file_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(store::disk::Local::new(dir.path()));
    let repository = repository(disk, &[&[1, 2], &[3]]);
    assert!(reads(&repository, 1) && reads(&repository, 3));
    let (swept, _) = sweep(&repository, &[3], MOST);
    assert_eq!((swept.dropped, swept.blocks), (1, 2));
    drop(Writer::begin(&repository).unwrap());
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    let here = dir.path().canonicalize().unwrap();
    let open: Vec<_> = targets.filter(|target| target.starts_with(&here)).collect();
    assert!(
        open.iter()
            .any(|target| target.extension().is_some_and(|it| it == "seg")),
        "the other segment stays open: {open:?}"
    );
    let is_removed = |target: &std::path::PathBuf| target.to_string_lossy().contains("(deleted)");
    assert!(!open.iter().any(is_removed), "{open:?}");
    assert!(reads(&repository, 3));
}
