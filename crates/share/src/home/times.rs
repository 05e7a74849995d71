//! Maps log sizes to times, from the orderer's notes that this device has received. The file `times` of a home.
//!
//! ```text
//! row = size of the log u64 | the orderer's clock, unix ms u64         sizes ascend
//! ```
//!
//! An entry has no time of its own. It was ordered after the last note that does not cover it, and before the first
//! note that does. The times are the orderer's word. They are for people, and nothing is decided by them; so the file
//! is not synced, and what cannot be read of it is left out.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use state::private;
use trust_shared::note::Note;

const FILE: &str = "times";
const ROW_BYTES: usize = 16;
/// Most rows. When there are more, every second one goes: old entries get wider bounds.
const MAX_ROWS: usize = 1 << 16;
/// Rows are so far apart, ms.
const STEP_MS: u64 = 1000;

/// What is known of the times of entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times {
    rows: Vec<(u64, u64)>,
}

/// When an entry was ordered, by the orderer's clock, unix ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct When {
    /// Not before this.
    pub after_ms: Option<u64>,
    /// Not after this.
    pub before_ms: Option<u64>,
}

impl Times {
    /// Reads the file of a home. What is damaged is left out.
    pub(super) fn read(home: &Path) -> Times {
        Times::read_whole(home).0
    }

    /// Reads the file, and says whether it is one that can be appended to.
    fn read_whole(home: &Path) -> (Times, bool) {
        let mut bytes = Vec::new();
        // One row more than are kept at a time: a file that is longer is not one of ours.
        let most = ((2 * MAX_ROWS + 1) * ROW_BYTES) as u64;
        if let Ok(file) = File::open(home.join(FILE)) {
            // What was read before an error counts.
            let _ = file.take(most).read_to_end(&mut bytes);
        }
        let mut times = Times::default();
        let (rows, _) = bytes.as_chunks::<ROW_BYTES>();
        for row in rows {
            let (size, ms) = row.split_at(8);
            let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
            times.insert(number(size), number(ms));
        }
        let is_whole = !bytes.is_empty() && times.rows.len() * ROW_BYTES == bytes.len();
        (times, is_whole)
    }

    /// Bounds of the time at which the leaf at a position was ordered.
    pub fn of(&self, position: u64) -> When {
        let next = self.rows.partition_point(|(size, _)| *size <= position);
        let before = next.checked_sub(1).and_then(|last| self.rows.get(last));
        let (after_ms, before_ms) = (
            before.map(|row| row.1),
            self.rows.get(next).map(|row| row.1),
        );
        When {
            // A clock that was turned back says nothing about the time before.
            after_ms: after_ms.filter(|after| before_ms.is_none_or(|before| *after <= before)),
            before_ms,
        }
    }

    /// By how much the orderer's clock went back most between two rows that follow one another, ms. 0: it never did.
    pub fn went_back_ms(&self) -> u64 {
        let pairs = self.rows.iter().zip(self.rows.iter().skip(1));
        let back = pairs.map(|((_, before), (_, after))| before.saturating_sub(*after));
        back.max().unwrap_or(0)
    }

    /// Adds a row. The last one goes if it and the new one are of the same second as the row before: so a second has two
    /// rows at most, and the newest note always has one.
    fn insert(&mut self, size: u64, ms: u64) -> Kept {
        let more = self.rows.partition_point(|(known, _)| *known < size);
        if more < self.rows.len() {
            self.rows.truncate(more);
            self.rows.push((size, ms));
            return Kept::Anew;
        }
        if let [.., (_, before), last] = self.rows.as_mut_slice()
            && before.abs_diff(last.1) < STEP_MS
            && before.abs_diff(ms) < STEP_MS
        {
            *last = (size, ms);
            return Kept::Last;
        }
        self.rows.push((size, ms));
        if self.rows.len() <= MAX_ROWS {
            return Kept::Last;
        }
        let mut at = 0;
        self.rows.retain(|_| {
            at += 1;
            at % 2 == 1
        });
        Kept::Anew
    }
}

/// What a new row changes in the file.
#[derive(Debug, PartialEq, Eq)]
enum Kept {
    /// The last row alone.
    Last,
    /// Other rows too.
    Anew,
}

/// The open file of a running engine.
#[derive(Debug)]
pub(crate) struct Timekeeper {
    path: PathBuf,
    file: Option<File>,
    times: Times,
}

impl Timekeeper {
    /// Opens the file of a home.
    pub(crate) fn open(home: &Path) -> Timekeeper {
        let (times, is_whole) = Times::read_whole(home);
        let mut keeper = Timekeeper {
            path: home.join(FILE),
            file: None,
            times,
        };
        match is_whole {
            true => keeper.file = keeper.open_file(),
            // A row that was cut short would shift all that follow.
            false => keeper.write_all(),
        }
        keeper
    }

    /// The floor has met this note.
    pub(crate) fn met(&mut self, note: &Note) {
        let (size, ms) = (note.log.size, note.time_ms);
        match self.times.insert(size, ms) {
            Kept::Last => {
                let row = [size.to_le_bytes(), ms.to_le_bytes()].concat();
                let at = (self.times.rows.len().saturating_sub(1) * ROW_BYTES) as u64;
                let written = self.file.as_ref().map(|file| file.write_all_at(&row, at));
                if !matches!(written, Some(Ok(()))) {
                    self.write_all();
                }
            }
            Kept::Anew => self.write_all(),
        }
    }

    fn open_file(&self) -> Option<File> {
        OpenOptions::new().write(true).open(&self.path).ok()
    }

    /// Writes the whole file. Without it, people see wider bounds.
    fn write_all(&mut self) {
        let rows = self.times.rows.iter();
        let bytes: Vec<u8> = rows
            .flat_map(|(size, ms)| [size.to_le_bytes(), ms.to_le_bytes()].concat())
            .collect();
        let replaced = private::replace(&self.path, &bytes);
        let opened = replaced.ok().and_then(|()| self.open_file());
        if opened.is_none() {
            tracing::debug!(path = %self.path.display(), "the times of entries are not kept");
        }
        self.file = opened;
    }
}

#[cfg(test)]
mod tests {
    use trust::history::LogPoint;

    use super::*;

    fn note(size: u64, time_ms: u64) -> Note {
        let (epoch, root) = (0, [7; 32]);
        let log = LogPoint { epoch, size, root };
        Note { log, time_ms }
    }

    fn bounds(after: u64, before: u64) -> When {
        When {
            after_ms: Some(after),
            before_ms: Some(before),
        }
    }

    #[test]
    fn entry_lies_between_the_last_note_without_it_and_the_first_note_with_it() {
        let home = tempfile::tempdir().unwrap();
        let mut keeper = Timekeeper::open(home.path());
        for (size, ms) in [(3, 10_000), (5, 20_000), (9, 30_000)] {
            keeper.met(&note(size, ms));
        }
        let times = Times::read(home.path());
        assert_eq!(times.of(3), bounds(10_000, 20_000));
        assert_eq!(times.of(4), bounds(10_000, 20_000));
        assert_eq!(times.of(5), bounds(20_000, 30_000));
        let first = When {
            after_ms: None,
            before_ms: Some(10_000),
        };
        assert_eq!(times.of(0), first);
        let last = When {
            after_ms: Some(30_000),
            before_ms: None,
        };
        assert_eq!(times.of(9), last);
        drop(keeper);
        assert_eq!(Timekeeper::open(home.path()).times, times);
    }

    #[test]
    fn clock_that_went_back_is_known() {
        let home = tempfile::tempdir().unwrap();
        let mut keeper = Timekeeper::open(home.path());
        assert_eq!(Times::read(home.path()).went_back_ms(), 0);
        for (size, ms) in [(3, 10_000), (5, 90_000), (9, 20_000), (12, 30_000)] {
            keeper.met(&note(size, ms));
        }
        assert_eq!(Times::read(home.path()).went_back_ms(), 70_000);
    }

    #[test]
    fn notes_of_one_second_are_two_rows_the_newest_among_them() {
        let home = tempfile::tempdir().unwrap();
        let mut keeper = Timekeeper::open(home.path());
        for size in 1..100 {
            keeper.met(&note(size, 10_000 + size));
        }
        let rows = [(1, 10_001), (99, 10_099)];
        assert_eq!(Times::read(home.path()).rows, rows);
        keeper.met(&note(100, 20_000));
        let rows = [(1, 10_001), (99, 10_099), (100, 20_000)];
        assert_eq!(Times::read(home.path()).rows, rows);
    }

    #[test]
    fn number_of_rows_is_bounded_and_the_newest_stays() {
        let mut times = Times::default();
        let all = 3 * MAX_ROWS as u64;
        for size in 0..=all {
            times.insert(size, size * STEP_MS);
        }
        assert!(times.rows.len() <= MAX_ROWS);
        let last = times.rows.last().unwrap().0;
        assert!(last + 4 > all, "{last}");
        let early = times.of(10);
        assert!(early.before_ms.unwrap() <= 100 * STEP_MS, "{early:?}");
    }

    #[test]
    fn log_that_begins_again_replaces_what_was_after_its_beginning() {
        let home = tempfile::tempdir().unwrap();
        let mut keeper = Timekeeper::open(home.path());
        for (size, ms) in [(3, 10_000), (5, 20_000), (9, 30_000), (6, 40_000)] {
            keeper.met(&note(size, ms));
        }
        let times = Times::read(home.path());
        assert_eq!(times.rows, [(3, 10_000), (5, 20_000), (6, 40_000)]);
    }

    #[test]
    fn clock_that_was_turned_back_gives_no_impossible_bounds() {
        let mut times = Times::default();
        times.insert(3, 50_000);
        times.insert(5, 20_000);
        let when = times.of(4);
        assert_eq!((when.after_ms, when.before_ms), (None, Some(20_000)));
    }

    #[test]
    fn damaged_file_is_read_as_far_as_it_goes() {
        let home = tempfile::tempdir().unwrap();
        Timekeeper::open(home.path()).met(&note(3, 10_000));
        let path = home.path().join(FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_slice(&[9; 5]);
        std::fs::write(&path, &bytes).unwrap();
        let mut keeper = Timekeeper::open(home.path());
        keeper.met(&note(4, 20_000));
        assert_eq!(Times::read(home.path()).rows, [(3, 10_000), (4, 20_000)]);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Times::read(home.path()), Times::default());
    }
}
