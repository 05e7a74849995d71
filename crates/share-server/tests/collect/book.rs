//! The files that keep the ages of blocks: after a clean end and after a kill they say the same, and after anything else
//! nothing is old.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use share_server::collect::ages::Touched;
use share_server::collect::book::{AGES, Book, Boot, JOURNAL, Times, Untouched};
use sim::disk::CrashDisk;
use store::disk::Disk;
use store::names::FileId;
use trust::Handle;
use trust::volume_id::VolumeId;

const TICK: Duration = Duration::from_secs(10);
const SEGMENT: FileId = FileId([1; 16]);
const HERE: Boot = Boot(Some([1; 16]));
const LATER: Boot = Boot(Some([2; 16]));

#[derive(Clone, Default)]
struct Time(Arc<AtomicU64>);

impl Time {
    fn pass(&self, ticks: u64) {
        self.0.fetch_add(ticks * TICK.as_secs(), Ordering::Relaxed);
    }
}

fn block(number: u8) -> Handle {
    Handle::from_bytes([number; 32])
}

fn open(disk: &Arc<CrashDisk>, time: &Time, boot: Boot) -> Result<Book, store::StoreError> {
    let seconds = time.0.clone();
    let clock = Arc::new(move || Duration::from_secs(seconds.load(Ordering::Relaxed)));
    let times = Times {
        tick: TICK,
        window: 4,
        boot,
    };
    let log = (VolumeId::from_bytes([9; 32]), 0);
    Book::open(disk.clone(), log, clock, times)
}

/// A segment, six ticks, and then a touch of block 1.
fn used(disk: &Arc<CrashDisk>, time: &Time) -> Result<Book, store::StoreError> {
    let book = open(disk, time, HERE)?;
    book.go_on(5, &[SEGMENT])?;
    for size in 6..12 {
        time.pass(1);
        book.go_on(size, &[SEGMENT])?;
    }
    let touched = book.touch(&block(1), 0);
    assert!(matches!(touched, Ok(Touched::New(_))) || disk.crashed());
    Ok(book)
}

/// Whether blocks 1 and 2 are old.
fn old(book: &Book) -> (bool, bool) {
    let is_old = |number| book.with(|ages| ages.is_old(SEGMENT, &block(number)));
    (is_old(1), is_old(2))
}

#[test]
fn kill_and_clean_end_forget_nothing() {
    for is_clean in [false, true] {
        let (disk, time) = (CrashDisk::new(), Time::default());
        let book = used(&disk, &time).unwrap();
        assert_eq!(old(&book), (false, true));
        let begin = book.with(|ages| ages.begin());
        assert!(begin > 0);
        if is_clean {
            book.close().unwrap();
            assert_eq!(book.touch(&block(1), 0), Err(Untouched::Stopped));
        }
        drop(book);
        // While the server does not run, nothing gets older.
        time.pass(100);
        for boot in [HERE, if is_clean { LATER } else { HERE }] {
            let book = open(&disk, &time, boot).unwrap();
            assert_eq!(old(&book), (false, true), "{is_clean}");
            assert_eq!(book.with(|ages| ages.begin()), begin);
            if is_clean {
                book.close().unwrap();
            }
        }
        let book = open(&disk, &time, HERE).unwrap();
        time.pass(5);
        book.go_on(20, &[SEGMENT]).unwrap();
        assert_eq!(old(&book), (true, true));
    }
}

#[test]
fn after_a_power_cut_nothing_is_old_and_the_whole_log_is_in_the_window() {
    let (disk, time) = (CrashDisk::new(), Time::default());
    drop(used(&disk, &time).unwrap());
    for boot in [LATER, Boot(None)] {
        let book = open(&disk, &time, boot).unwrap();
        assert_eq!(old(&book), (false, false));
        let knows = book.with(|ages| (ages.begin(), ages.knows_the_window()));
        assert_eq!(knows, (0, false));
    }
}

fn journal(disk: &CrashDisk) -> String {
    let files = disk.files();
    let found = files.into_iter().find(|name| name.starts_with(JOURNAL));
    found.unwrap()
}

#[test]
fn damaged_or_missing_file_makes_nothing_old() {
    for (which, removes) in [
        (AGES, false),
        (AGES, true),
        (JOURNAL, false),
        (JOURNAL, true),
    ] {
        let (disk, time) = (CrashDisk::new(), Time::default());
        drop(used(&disk, &time).unwrap());
        let name = match which {
            AGES => AGES.to_owned(),
            _ => journal(&disk),
        };
        match removes {
            true => disk.remove(&name).unwrap(),
            false => {
                let file = disk.open(&name).unwrap();
                let end = file.len_bytes().unwrap();
                let mut last = [0];
                file.read_at(&mut last, end - 12).unwrap();
                file.write_at(&[last[0] ^ 1], end - 12).unwrap();
            }
        }
        let book = open(&disk, &time, HERE).unwrap();
        assert_eq!(old(&book), (false, false), "{which} {removes}");
    }
}

#[test]
fn full_disk_makes_the_next_start_know_that_it_does_not_know() {
    let (disk, time) = (CrashDisk::new(), Time::default());
    let book = used(&disk, &time).unwrap();
    disk.full_from(disk.operations());
    assert!(matches!(book.touch(&block(2), 0), Ok(Touched::New(_))));
    assert_eq!(old(&book), (false, false));
    // A write that fails may leave nothing behind. So the journal goes.
    assert!(!disk.files().iter().any(|name| name.starts_with(JOURNAL)));
    disk.free_space();
    drop(book);
    let book = open(&disk, &time, HERE).unwrap();
    assert_eq!(old(&book), (false, false));
}

#[test]
fn touch_that_neither_a_file_nor_its_lack_tells_of_is_refused() {
    let (disk, time) = (CrashDisk::new(), Time::default());
    let book = used(&disk, &time).unwrap();
    // Neither the touch nor the removal of the journal is carried out.
    disk.crash_at(disk.operations());
    for number in [2, 2, 1] {
        assert_eq!(book.touch(&block(number), 0), Err(Untouched::Unkept));
    }
}

#[test]
fn touch_in_a_journal_that_no_file_names_is_refused_until_there_is_space() {
    let mut refused = 0;
    for operation in 0..12 {
        let (disk, time) = (CrashDisk::new(), Time::default());
        let book = used(&disk, &time).unwrap();
        time.pass(1);
        disk.full_from(disk.operations() + operation);
        let _ = book.go_on(20, &[SEGMENT]);
        let touched = book.touch(&block(2), 0);
        if touched == Err(Untouched::Unkept) {
            refused += 1;
            disk.free_space();
            book.go_on(20, &[SEGMENT]).unwrap();
            assert_eq!(book.touch(&block(2), 0), Ok(Touched::Known));
        }
        disk.free_space();
        drop(book);
        let book = open(&disk, &time, HERE).unwrap();
        assert!(!old(&book).1, "operation {operation}, {touched:?}");
    }
    assert!(refused > 0);
}

#[test]
fn marks_that_grow_old_during_a_step_condemn_nothing() {
    let (disk, time) = (CrashDisk::new(), Time::default());
    let book = used(&disk, &time).unwrap();
    let began = book.with(|ages| ages.now());
    // Nobody counts time meanwhile.
    time.pass(3);
    assert!(!book.condemn(SEGMENT, &block(2), began));
    assert!(book.condemn(SEGMENT, &block(2), began + 1));
}

/// Whatever of the writes survives a stop at any operation, the touched block is not old.
fn sweep(new: &dyn Fn() -> Arc<CrashDisk>) -> Result<usize, String> {
    let work = |disk: &Arc<CrashDisk>, time: &Time| {
        let book = used(disk, time)?;
        time.pass(1);
        book.go_on(30, &[SEGMENT])?;
        book.close()
    };
    let whole = new();
    work(&whole, &Time::default()).unwrap();
    let mut checked = 0;
    for operation in 0..=whole.operations() {
        let (disk, time) = (new(), Time::default());
        disk.crash_at(operation);
        let ended = work(&disk, &time).is_ok();
        assert!(ended || operation < whole.operations());
        for outcome in disk.outcomes(40) {
            let book = open(&disk.reborn(&outcome), &time, LATER);
            let book = book.map_err(|error| format!("operation {operation}: {error}"))?;
            book.with(|ages| ages.segments(&[SEGMENT]));
            if old(&book).0 {
                return Err(format!("operation {operation}, {outcome:?}: it is old"));
            }
            checked += 1;
        }
    }
    Ok(checked)
}

#[test]
fn no_power_cut_makes_a_used_block_old() {
    let checked = sweep(&CrashDisk::new).unwrap_or_else(|why| panic!("{why}"));
    println!("{checked} outcomes");
    assert!(checked > 100, "{checked} are too few");
}

#[test]
fn touch_is_as_old_as_it_is_although_nobody_has_counted_time() {
    let (disk, time) = (CrashDisk::new(), Time::default());
    let book = open(&disk, &time, HERE).unwrap();
    book.go_on(5, &[SEGMENT]).unwrap();
    let before = journal(&disk);
    // A walk takes so long.
    time.pass(3);
    assert!(matches!(book.touch(&block(1), 0), Ok(Touched::New(_))));
    time.pass(4);
    book.go_on(6, &[SEGMENT]).unwrap();
    assert_eq!(old(&book), (false, true), "four ticks, which is the window");
    assert_ne!(
        journal(&disk),
        before,
        "in a new tick the files are begun anew"
    );
    drop(book);
    let book = open(&disk, &time, HERE).unwrap();
    assert_eq!(old(&book), (false, true));
    time.pass(1);
    book.go_on(7, &[SEGMENT]).unwrap();
    assert_eq!(old(&book), (true, true));
}

#[test]
fn touch_in_a_new_tick_does_not_keep_the_files_from_being_begun_anew() {
    let (disk, time) = (CrashDisk::new(), Time::default());
    let book = open(&disk, &time, HERE).unwrap();
    book.go_on(5, &[SEGMENT]).unwrap();
    let before = journal(&disk);
    time.pass(1);
    assert!(matches!(book.touch(&block(1), 0), Ok(Touched::New(_))));
    book.go_on(6, &[SEGMENT]).unwrap();
    assert_ne!(journal(&disk), before);
}
