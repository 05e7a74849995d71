//! How old blocks of the segments are, and which positions of the log are in the window: rules without input or output.
//! The explorer in `tests/collect` drives this code.
//!
//! Time is counted in *ticks* while the server runs. A wall clock that is wrong ages nothing, and a server that does not
//! run ages nothing.
//!
//! - A block is as old as the last of: its segment came, somebody stored, asked for or retrieved it, this memory begins.
//!   What this memory does not know counts as young.
//! - An old block is *condemned* before it is removed: from then on it counts as not there, until the step of the sweep
//!   ends. So nobody is told that a block is there which goes at the same time.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use store::names::FileId;
use trust::Handle;

/// Ticks that fit into a record of a touch. They are decades.
pub const MAX_TICK: u32 = 0xfffe;
/// Bits of a record of a touch that tell the tick.
const TICK_BITS: u32 = 16;
/// Most sizes of the log that are remembered.
pub const MAX_SIZES: usize = 1 << 12;

/// A touch as it is kept: the first 48 bits of the block's name, and the tick. Two blocks with the same bits are as
/// young as the younger of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record(pub u64);

impl Record {
    fn new(handle: &Handle, tick: u32) -> Record {
        let (first, _) = handle.as_bytes().split_at(8);
        let first = u64::from_le_bytes(first.try_into().unwrap_or_default());
        Record(first << TICK_BITS | u64::from(tick.min(MAX_TICK)))
    }

    fn name(self) -> u64 {
        self.0 >> TICK_BITS
    }

    /// When it was.
    pub fn tick(self) -> u32 {
        (self.0 & ((1 << TICK_BITS) - 1)) as u32
    }
}

/// What became of a touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touched {
    /// The block is young, and this memory knew that already.
    Known,
    /// The block is young. This is to be kept for a restart.
    New(Record),
    /// The block is condemned: it is not there.
    Gone,
    /// A step of a sweep has ended since the block was looked up: look again.
    Again,
}

/// What else of this memory is kept for a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// Touches up to this tick are not known.
    pub unknown: u32,
    /// When each segment came.
    pub arrived: BTreeMap<FileId, u32>,
    /// How long the log was, ascending by tick.
    pub sizes: Vec<(u32, u64)>,
    /// Touches, in any order.
    pub touched: Vec<Record>,
}

/// See the head of this file.
#[derive(Clone)]
pub struct Ages {
    now: u32,
    /// Length of the window in ticks.
    window: u32,
    /// Touches up to this tick are not known.
    unknown: u32,
    arrived: BTreeMap<FileId, u32>,
    sizes: Vec<(u32, u64)>,
    touched: HashTable<Record>,
    seed: RandomState,
    condemned: HashSet<Handle>,
    /// Steps of sweeps that have ended.
    steps: u64,
}

impl Ages {
    /// A memory that knows nothing of the time before `now`.
    pub fn new(now: u32, window: u32) -> Ages {
        let known = Known {
            unknown: now,
            ..Known::default()
        };
        Ages::resume(now, window, known)
    }

    /// Goes on with what was kept.
    pub fn resume(now: u32, window: u32, known: Known) -> Ages {
        let mut ages = Ages {
            now,
            window,
            unknown: known.unknown,
            arrived: known.arrived,
            sizes: known.sizes,
            touched: HashTable::new(),
            seed: RandomState::new(),
            condemned: HashSet::new(),
            steps: 0,
        };
        for record in known.touched {
            ages.note(record);
        }
        ages
    }

    /// What is to be kept.
    pub fn known(&self) -> Known {
        Known {
            unknown: self.unknown,
            arrived: self.arrived.clone(),
            sizes: self.sizes.clone(),
            touched: self.touched.iter().copied().collect(),
        }
    }

    /// The time.
    pub fn now(&self) -> u32 {
        self.now
    }

    /// Length of the window, ticks.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// The window is so long from now on. Of a time that was forgotten already nothing becomes known.
    pub fn set_window(&mut self, ticks: u32) {
        self.window = ticks;
    }

    /// It is so late now, whatever size the log has. Without this, what is touched during a long walk would be recorded as
    /// older than it is.
    pub fn wake(&mut self, now: u32) {
        self.now = self.now.max(now);
    }

    /// Time goes on: the log has this size now.
    pub fn advance(&mut self, now: u32, size: u64) {
        self.wake(now);
        let last = self.sizes.last();
        if last.is_none_or(|(tick, _)| *tick < self.now) {
            self.sizes.push((self.now, size));
        }
        // The newest of those before the window tells where it begins.
        let begun = self.sizes.partition_point(|(tick, _)| self.is_past(*tick));
        self.sizes.drain(..begun.saturating_sub(1));
        if self.sizes.len() > MAX_SIZES {
            // A window of years: every second one will do. The first stays.
            let mut number = 0;
            self.sizes.retain(|_| {
                number += 1;
                number % 2 == 1
            });
        }
        // Touches before the window make nobody young.
        let past = self.now.checked_sub(self.window.saturating_add(1));
        let Some(unknown) = past.filter(|past| *past > self.unknown) else {
            return;
        };
        self.unknown = unknown;
        self.touched.retain(|record| record.tick() > unknown);
        if self.touched.capacity() > 4 * self.touched.len().max(1 << 12) {
            let seed = &self.seed;
            let used = self.touched.len();
            self.touched
                .shrink_to(2 * used, |record| seed.hash_one(record.name()));
        }
    }

    fn is_past(&self, tick: u32) -> bool {
        self.now.saturating_sub(tick) > self.window
    }

    /// Whether anything can be old: all touches within the window are known. If not, it is not known either which
    /// positions are in the window, and what earlier ones need may be gone.
    pub fn knows_the_window(&self) -> bool {
        self.is_past(self.unknown)
    }

    /// The size of the log with which the window begins: all larger ones are in it, too.
    pub fn begin(&self) -> u64 {
        let mut before = self.sizes.iter().filter(|(tick, _)| self.is_past(*tick));
        before.next_back().map_or(0, |(_, size)| *size)
    }

    /// These segments are there. New ones have come now, or shortly before.
    pub fn segments(&mut self, all: &[FileId]) {
        let is_known = |id| self.arrived.contains_key(id);
        if all.len() == self.arrived.len() && all.iter().all(is_known) {
            return;
        }
        let before = std::mem::take(&mut self.arrived);
        let arrived = all
            .iter()
            .map(|id| (*id, before.get(id).copied().unwrap_or(self.now)));
        self.arrived = arrived.collect();
    }

    /// Steps of sweeps that have ended: to be asked for before a block is looked up.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Somebody stored, asked for or retrieved a block, and it was found in the segments after `steps` steps.
    pub fn touch(&mut self, handle: &Handle, steps: u64) -> Touched {
        if steps != self.steps {
            return Touched::Again;
        }
        if self.condemned.contains(handle) {
            return Touched::Gone;
        }
        let record = Record::new(handle, self.now);
        match self.note(record) {
            true => Touched::New(record),
            false => Touched::Known,
        }
    }

    /// Whether the record says something new.
    fn note(&mut self, record: Record) -> bool {
        let seed = &self.seed;
        let hash = seed.hash_one(record.name());
        let same = |other: &Record| other.name() == record.name();
        if let Some(known) = self.touched.find_mut(hash, same) {
            let is_new = known.tick() < record.tick();
            if is_new {
                *known = record;
            }
            return is_new;
        }
        let rehash = |other: &Record| seed.hash_one(other.name());
        self.touched.insert_unique(hash, record, rehash);
        true
    }

    /// Whether a block of this segment is old.
    pub fn is_old(&self, segment: FileId, handle: &Handle) -> bool {
        let Some(arrived) = self.arrived.get(&segment) else {
            return false;
        };
        let name = Record::new(handle, 0).name();
        let hash = self.seed.hash_one(name);
        let touched = self.touched.find(hash, |record| record.name() == name);
        let touched = touched.map_or(0, |record| record.tick());
        self.is_past((*arrived).max(touched).max(self.unknown))
    }

    /// Whether the block is old now. If it is, it counts as not there until [`Ages::step_ended`].
    pub fn condemn(&mut self, segment: FileId, handle: &Handle) -> bool {
        let is_old = self.is_old(segment, handle);
        if is_old {
            self.condemned.insert(*handle);
        }
        is_old
    }

    /// Whether marks that were begun at a tick are too old to remove anything by. A client relies for half a day on a
    /// block that it asked for, so an entry that came after the walk may name one that is not marked. It is young as long
    /// as this is false.
    pub fn are_late(&self, began: u32) -> bool {
        self.now.saturating_sub(began) > self.window / 2
    }

    /// A step of a sweep has ended, whatever it did: who looks a block up now, looks into what it left.
    pub fn step_ended(&mut self) {
        self.condemned = HashSet::new();
        self.steps += 1;
    }

    /// Touches that are known.
    pub fn touches(&self) -> usize {
        self.touched.len()
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        self.touched.allocation_size() + self.condemned.capacity() * 8 / 7 * 33
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(number: u64) -> Handle {
        Handle::from_bytes(*blake3::hash(&number.to_le_bytes()).as_bytes())
    }

    const SEGMENT: FileId = FileId([1; 16]);

    fn with_segment(window: u32) -> Ages {
        let mut ages = Ages::new(0, window);
        ages.segments(&[SEGMENT]);
        ages
    }

    #[test]
    fn block_is_old_after_the_window_and_young_again_when_touched() {
        let mut ages = with_segment(4);
        for tick in 1..=4 {
            ages.advance(tick, 0);
            assert!(!ages.is_old(SEGMENT, &handle(1)), "tick {tick}");
        }
        ages.advance(5, 0);
        assert!(ages.is_old(SEGMENT, &handle(1)));
        assert!(matches!(ages.touch(&handle(1), 0), Touched::New(_)));
        assert_eq!(ages.touch(&handle(1), 0), Touched::Known);
        assert!(!ages.is_old(SEGMENT, &handle(1)));
        assert!(ages.is_old(SEGMENT, &handle(2)));
        ages.advance(9, 0);
        assert!(!ages.is_old(SEGMENT, &handle(1)));
        ages.advance(10, 0);
        assert!(ages.is_old(SEGMENT, &handle(1)));
    }

    #[test]
    fn longer_window_makes_everything_young_of_which_nothing_is_known_any_more() {
        let mut ages = with_segment(2);
        ages.touch(&handle(1), 0);
        ages.advance(20, 0);
        assert!(ages.is_old(SEGMENT, &handle(1)));
        ages.set_window(10);
        assert!(!ages.is_old(SEGMENT, &handle(1)));
        ages.advance(27, 0);
        assert!(!ages.is_old(SEGMENT, &handle(1)));
        ages.advance(28, 0);
        assert!(ages.is_old(SEGMENT, &handle(1)));
    }

    #[test]
    fn window_begins_with_a_size_that_the_log_had_before_it() {
        let mut ages = Ages::new(0, 3);
        for tick in 1..=10 {
            ages.advance(tick, u64::from(tick) * 100);
            let begin = u64::from(tick.saturating_sub(4)) * 100;
            assert_eq!(ages.begin(), begin, "tick {tick}");
        }
        // Nothing is known of the time before a longer window.
        ages.set_window(30);
        assert_eq!(ages.begin(), 0);
        let many = MAX_SIZES as u32 * 3;
        ages.set_window(many);
        (11..many).for_each(|tick| ages.advance(tick, u64::from(tick)));
        assert!(ages.known().sizes.len() <= MAX_SIZES);
        assert_eq!(ages.begin(), 0);
    }

    #[test]
    fn condemned_block_is_not_there_and_a_touch_of_an_earlier_step_looks_again() {
        let mut ages = with_segment(1);
        ages.advance(2, 0);
        assert!(ages.condemn(SEGMENT, &handle(1)));
        assert_eq!(ages.touch(&handle(1), 0), Touched::Gone);
        assert!(matches!(ages.touch(&handle(2), 0), Touched::New(_)));
        assert!(!ages.condemn(SEGMENT, &handle(2)));
        ages.step_ended();
        assert_eq!(ages.touch(&handle(1), 0), Touched::Again);
        assert!(matches!(ages.touch(&handle(1), 1), Touched::New(_)));
    }

    #[test]
    fn what_is_kept_says_the_same_afterwards_and_strange_segments_are_young() {
        let mut ages = with_segment(2);
        ages.advance(5, 7);
        ages.touch(&handle(1), 0);
        let mut again = Ages::resume(5, 2, ages.known());
        assert_eq!(again.known().sizes, ages.known().sizes);
        assert!(!again.is_old(SEGMENT, &handle(1)));
        assert!(again.is_old(SEGMENT, &handle(2)));
        assert!(!again.is_old(FileId([2; 16]), &handle(2)));
        again.segments(&[FileId([2; 16])]);
        again.advance(7, 9);
        assert!(!again.is_old(FileId([2; 16]), &handle(2)));
        again.advance(8, 9);
        assert!(again.is_old(FileId([2; 16]), &handle(2)));
        assert!(!again.is_old(SEGMENT, &handle(2)), "it is not there");
    }

    #[test]
    fn a_million_touches_take_less_than_32_bytes_each() {
        let mut ages = with_segment(4);
        for number in 0..1_000_000 {
            ages.touch(&handle(number), 0);
        }
        assert_eq!(ages.touches(), 1_000_000);
        let each = ages.memory_bytes() as f64 / 1e6;
        assert!(each < 32.0, "{each} bytes a touch");
        ages.advance(9, 0);
        assert_eq!(ages.touches(), 0);
        assert!(ages.memory_bytes() < 1 << 20, "{}", ages.memory_bytes());
    }
}
