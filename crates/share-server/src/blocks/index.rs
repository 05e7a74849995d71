//! The blocks in the temporary log, in the order in which they came: less than 64 bytes of memory a block.
//!
//! A block has an [`Entry`] of 48 bytes, with 28 bits for the length of its frame and 20 for where it begins, in chunks of fixed size (a growing vector would double its memory), and a slot
//! of 5 bytes in a hash table that is at least 7/16 full. What the blocks of one log record share is in a [`Group`] of
//! 16 bytes. The table's hash has a random seed, because whoever chooses content can choose bits of handles.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use trust::Handle;
use wal::{Lsn, PAGE_BYTES};

const CHUNK_ENTRIES: usize = 1 << 12;
/// A table that is used less than this part is made smaller.
const SPARSE: usize = 16;
const PAGE: u64 = PAGE_BYTES as u64;
/// Bits of an offset in the pages of a group, which has at most 1 MiB.
const OFFSET_BITS: u32 = 20;
/// Bits of the length of a frame.
const LENGTH_BITS: u32 = 28;
/// The highest bit of [`Entry::since`].
const DEREFERENCED: u32 = 1 << 31;

/// The holder of a block that several sessions refer to, or nobody knows who: it is never dropped.
pub(super) const MANY: u32 = 0;
/// The holder of a block that is not there any more.
const GONE: u32 = u32::MAX;

/// A block in the temporary log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub handle: Handle,
    /// Where its frame begins in the pages of its group: the lowest [`OFFSET_BITS`]. Above them the higher bits of its
    /// length.
    place: u32,
    /// The lowest bits of its length.
    length: u16,
    /// Whose quota it counts against.
    pub device: u16,
    /// The one session that refers to it, or [`MANY`].
    pub holder: u32,
    since: u32,
}

/// What a block waits for, and since which tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Since {
    /// It was stored, or somebody asked for it again.
    Stored(u32),
    /// Its only holder gave it up.
    Dereferenced(u32),
}

impl Entry {
    /// `place`: where its frame begins in the pages of its group, below 1 MiB, and bytes of the frame, below 256 MiB.
    pub fn new(
        handle: Handle,
        (offset, length): (u32, u32),
        device: u16,
        holder: u32,
        tick: u32,
    ) -> Entry {
        debug_assert!(offset >> OFFSET_BITS == 0 && length >> LENGTH_BITS == 0);
        let mut entry = Entry {
            handle,
            place: offset | length >> u16::BITS << OFFSET_BITS,
            length: length as u16,
            device,
            holder,
            since: 0,
        };
        entry.set(Since::Stored(tick));
        entry
    }

    /// Where its frame begins in the pages of its group.
    pub fn offset(&self) -> u32 {
        self.place & ((1 << OFFSET_BITS) - 1)
    }

    /// Bytes of its frame.
    pub fn length(&self) -> u32 {
        self.place >> OFFSET_BITS << u16::BITS | u32::from(self.length)
    }

    pub fn since(&self) -> Since {
        match self.since & DEREFERENCED {
            0 => Since::Stored(self.since),
            _ => Since::Dereferenced(self.since & !DEREFERENCED),
        }
    }

    pub fn set(&mut self, since: Since) {
        self.since = match since {
            Since::Stored(tick) => tick & !DEREFERENCED,
            Since::Dereferenced(tick) => tick | DEREFERENCED,
        };
    }

    pub fn is_gone(&self) -> bool {
        self.holder == GONE
    }
}

/// The blocks of one record of the log.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// The lowest bits of the number of its first block.
    first: u32,
    stored: u32,
    /// Position of its first page; below a page, how many pages follow to the end of its frame.
    place: u64,
}

/// Where a block lies in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The first page of its group.
    pub payload: Lsn,
    /// Where its frame begins in these pages.
    pub offset: u32,
    /// Bytes of its frame.
    pub length: u32,
    /// The block is durable when the log is durable up to here.
    pub frame_end: Lsn,
}

/// See the head of this file.
#[derive(Clone, Default)]
pub(super) struct Index {
    chunks: VecDeque<Vec<Entry>>,
    /// The number of the first entry of the first chunk.
    base: u64,
    /// The number of the first entry that is kept.
    head: u64,
    end: u64,
    groups: VecDeque<Group>,
    table: HashTable<u32>,
    seed: RandomState,
}

impl Index {
    /// Blocks that can be found.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Bytes of memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        let entries = self.chunks.len() * CHUNK_ENTRIES * size_of::<Entry>();
        entries + self.groups.capacity() * size_of::<Group>() + self.table.allocation_size()
    }

    pub fn head(&self) -> u64 {
        self.head
    }

    pub fn end(&self) -> u64 {
        self.end
    }

    /// The number of a block.
    pub fn find(&self, handle: &Handle) -> Option<u64> {
        let hash = self.seed.hash_one(handle);
        let same = |slot: &u32| {
            self.get(self.number(*slot))
                .is_some_and(|entry| entry.handle == *handle)
        };
        self.table.find(hash, same).map(|slot| self.number(*slot))
    }

    fn number(&self, slot: u32) -> u64 {
        self.base + u64::from(slot.wrapping_sub(self.base as u32))
    }

    pub fn get(&self, number: u64) -> Option<&Entry> {
        let at = number.checked_sub(self.base)? as usize;
        self.chunks.get(at / CHUNK_ENTRIES)?.get(at % CHUNK_ENTRIES)
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut Entry> {
        let at = number.checked_sub(self.base)? as usize;
        let chunk = self.chunks.get_mut(at / CHUNK_ENTRIES)?;
        chunk.get_mut(at % CHUNK_ENTRIES)
    }

    /// The entries that follow belong to a new group, which has no place yet.
    pub fn begin_group(&mut self, stored: u32) {
        self.groups.push_back(Group {
            first: self.end as u32,
            stored,
            place: 0,
        });
    }

    /// Adds a block that is not there to the newest group.
    pub fn push(&mut self, entry: Entry) {
        if self.chunks.back().is_none_or(|c| c.len() == CHUNK_ENTRIES) {
            self.chunks.push_back(Vec::with_capacity(CHUNK_ENTRIES));
        }
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.push(entry);
        }
        let (chunks, base, seed) = (&self.chunks, self.base, &self.seed);
        let rehash = |slot: &u32| {
            let at = slot.wrapping_sub(base as u32) as usize;
            let chunk = chunks.get(at / CHUNK_ENTRIES);
            let entry = chunk.and_then(|c| c.get(at % CHUNK_ENTRIES));
            entry.map_or(0, |e| seed.hash_one(e.handle))
        };
        let hash = self.seed.hash_one(entry.handle);
        self.table.insert_unique(hash, self.end as u32, rehash);
        self.end += 1;
    }

    /// Number of groups so far; the newest ones have no place yet.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Gives a group its place.
    pub fn place(&mut self, group: usize, payload: Lsn, frame_end: Lsn) {
        debug_assert!(frame_end.0 - payload.0 < PAGE * PAGE && payload.0.is_multiple_of(PAGE));
        if let Some(group) = self.groups.get_mut(group) {
            let pages = (frame_end.0 - payload.0) / PAGE;
            group.place = payload.0 | pages;
        }
    }

    fn group_of(&self, number: u64) -> Option<&Group> {
        let base = self.groups.front()?.first;
        let from_base = (number as u32).wrapping_sub(base);
        let after = |group: &Group| group.first.wrapping_sub(base) <= from_base;
        self.groups
            .get(self.groups.partition_point(after).checked_sub(1)?)
    }

    /// The tick at which a block first came.
    pub fn stored(&self, number: u64) -> u32 {
        self.group_of(number).map_or(0, |group| group.stored)
    }

    /// Where a block lies.
    pub fn position(&self, number: u64) -> Option<Position> {
        let entry = self.get(number)?;
        let group = self.group_of(number)?;
        let payload = group.place / PAGE * PAGE;
        Some(Position {
            payload: Lsn(payload),
            offset: entry.offset(),
            length: entry.length(),
            frame_end: Lsn(payload + group.place % PAGE * PAGE),
        })
    }

    /// Takes a block out; its number stays in order. Returns what it was.
    pub fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = *self.get(number).filter(|entry| !entry.is_gone())?;
        self.unlink(number, &entry.handle);
        if let Some(entry) = self.get_mut(number) {
            entry.holder = GONE;
        }
        Some(entry)
    }

    fn unlink(&mut self, number: u64, handle: &Handle) {
        let hash = self.seed.hash_one(handle);
        let slot = number as u32;
        if let Ok(found) = self.table.find_entry(hash, |known| *known == slot) {
            found.remove();
        }
    }

    /// Forgets the newest blocks and groups, which were never durable. Returns what they were.
    pub fn truncate(&mut self, end: u64, groups: usize) -> Vec<Entry> {
        let mut removed = Vec::new();
        while self.end > end {
            removed.extend(self.remove(self.end - 1));
            self.end -= 1;
            if let Some(chunk) = self.chunks.back_mut() {
                chunk.pop();
                if chunk.is_empty() {
                    self.chunks.pop_back();
                }
            }
        }
        self.groups.truncate(groups);
        removed
    }

    /// Forgets all blocks before `head`. Returns those that were still there, and the position that the log needs to
    /// keep from now on, if a whole frame was left behind.
    pub fn advance(&mut self, head: u64) -> (Vec<Entry>, Option<Lsn>) {
        let mut removed = Vec::new();
        let head = head.min(self.end);
        while self.head < head {
            removed.extend(self.remove(self.head));
            self.head += 1;
        }
        let mut released = None;
        while let Some(end) = self.front_group_end() {
            let frame_end = |group: &Group| group.place / PAGE * PAGE + group.place % PAGE * PAGE;
            let Some(group) = self.groups.front().filter(|_| end <= self.head) else {
                break;
            };
            let this = frame_end(group);
            // The next record may be of the same frame.
            if self
                .groups
                .get(1)
                .is_none_or(|next| frame_end(next) != this)
            {
                released = Some(Lsn(this));
            }
            self.groups.pop_front();
        }
        while self.head - self.base >= CHUNK_ENTRIES as u64 {
            self.chunks.pop_front();
            self.base += CHUNK_ENTRIES as u64;
        }
        self.shrink();
        (removed, released)
    }

    /// The number after the last block of the first group.
    fn front_group_end(&self) -> Option<u64> {
        let first = self.groups.front()?.first;
        let next = self
            .groups
            .get(1)
            .map_or(self.end as u32, |next| next.first);
        let start = self.head_of(first);
        Some(start + u64::from(next.wrapping_sub(first)))
    }

    /// The whole number of a group's first block, which is not far from the head.
    fn head_of(&self, first: u32) -> u64 {
        let ahead = first.wrapping_sub(self.head as u32) as i32;
        self.head.saturating_add_signed(i64::from(ahead))
    }

    fn shrink(&mut self) {
        if self.table.capacity() > SPARSE * self.table.len().max(CHUNK_ENTRIES) {
            let (chunks, base, seed) = (&self.chunks, self.base, &self.seed);
            let used = self.table.len();
            self.table.shrink_to(2 * used, |slot| {
                let at = slot.wrapping_sub(base as u32) as usize;
                let chunk = chunks.get(at / CHUNK_ENTRIES);
                let entry = chunk.and_then(|c| c.get(at % CHUNK_ENTRIES));
                entry.map_or(0, |e| seed.hash_one(e.handle))
            });
            self.groups.shrink_to(2 * self.groups.len());
        }
    }
}

const _: () = assert!(size_of::<Entry>() == 48 && size_of::<Group>() == 16);

#[cfg(test)]
mod tests {
    use super::*;
    use trust::{Hasher, Kind};

    fn handle(hasher: &Hasher, number: u64) -> Handle {
        hasher.name(Kind::Data, &number.to_le_bytes())
    }

    /// A group of `blocks` at `page`, in a frame that ends `pages` later.
    fn group(index: &mut Index, hasher: &Hasher, blocks: u64, page: u64) {
        index.begin_group(page as u32);
        for _ in 0..blocks {
            let number = index.end();
            index.push(Entry::new(handle(hasher, number), (0, 100), 0, 1, 7));
        }
        let group = index.groups() - 1;
        index.place(group, Lsn(page * PAGE), Lsn((page + 2) * PAGE));
    }

    #[test]
    fn place_and_length_of_every_block_that_a_record_holds_come_back() {
        let name = handle(&Hasher::new(&[1; 32]), 1);
        let most = (1 << OFFSET_BITS) - 1;
        for offset in [0, 1, 4095, 65_535, 65_536, most - 6, most] {
            for length in [0, 6, 65_535, 65_536, 65_542, most, most + 1] {
                let mut entry = Entry::new(name, (offset, length), 3, 4, 5);
                entry.set(Since::Dereferenced(9));
                assert_eq!((entry.offset(), entry.length()), (offset, length));
                assert_eq!((entry.device, entry.holder), (3, 4));
            }
        }
    }

    #[test]
    fn index_of_a_million_blocks_takes_less_than_64_bytes_a_block() {
        let hasher = Hasher::new(&[1; 32]);
        let mut index = Index::default();
        let count = 1_000_000;
        for page in 0..count / 8 {
            group(&mut index, &hasher, 8, 4 * page);
        }
        assert_eq!(index.len() as u64, count);
        let each = index.memory_bytes() as f64 / count as f64;
        assert!(each < 64.0, "{each} bytes a block");
        for number in (0..count).step_by(997) {
            assert_eq!(index.find(&handle(&hasher, number)), Some(number));
            let position = index.position(number).unwrap();
            assert_eq!(position.payload, Lsn(number / 8 * 4 * PAGE));
            assert_eq!(index.stored(number), (number / 8 * 4) as u32);
        }
        index.advance(count - 3);
        assert_eq!(index.len(), 3);
        assert!(index.memory_bytes() < 1 << 20, "{}", index.memory_bytes());
        assert_eq!(index.find(&handle(&hasher, count - 1)), Some(count - 1));
        assert_eq!(index.find(&handle(&hasher, 5)), None);
    }

    #[test]
    fn released_position_waits_for_every_block_of_its_frame() {
        let hasher = Hasher::new(&[1; 32]);
        let mut index = Index::default();
        // Two records in one frame, then another frame.
        for page in [1, 1, 5] {
            group(&mut index, &hasher, 2, page);
        }
        assert_eq!(index.advance(1).1, None);
        assert_eq!(index.advance(3).1, None);
        let (removed, released) = index.advance(4);
        assert_eq!((removed.len(), released), (1, Some(Lsn(3 * PAGE))));
        assert_eq!(index.advance(9).1, Some(Lsn(7 * PAGE)));
        assert_eq!((index.head(), index.len(), index.groups()), (6, 0, 0));
    }

    #[test]
    fn truncated_index_has_forgotten_the_newest_blocks_only() {
        let hasher = Hasher::new(&[1; 32]);
        let mut index = Index::default();
        group(&mut index, &hasher, CHUNK_ENTRIES as u64 - 1, 1);
        let (end, groups) = (index.end(), index.groups());
        group(&mut index, &hasher, 3, 9);
        assert_eq!(index.truncate(end, groups).len(), 3);
        assert_eq!((index.end(), index.groups()), (end, groups));
        assert_eq!(index.find(&handle(&hasher, end)), None);
        group(&mut index, &hasher, 5, 20);
        assert_eq!(index.find(&handle(&hasher, end + 4)), Some(end + 4));
        assert_eq!(index.position(end + 4).unwrap().payload, Lsn(20 * PAGE));
        assert_eq!(index.position(0).unwrap().payload, Lsn(PAGE));
    }

    #[test]
    fn numbers_beyond_32_bits_find_their_blocks() {
        let hasher = Hasher::new(&[1; 32]);
        let start = (1 << 32) - CHUNK_ENTRIES as u64;
        let mut index = Index {
            base: start,
            head: start,
            end: start,
            ..Index::default()
        };
        for page in 0..2000 {
            group(&mut index, &hasher, 5, 4 * page);
        }
        for number in (start..index.end()).step_by(13) {
            assert_eq!(index.find(&handle(&hasher, number)), Some(number));
            let page = (number - start) / 5 * 4;
            assert_eq!(index.position(number).unwrap().payload, Lsn(page * PAGE));
        }
        assert!(index.advance(start + 9_999).1.is_some());
        assert_eq!(index.groups(), 1);
        assert_eq!(
            index.find(&handle(&hasher, index.end() - 1)),
            Some(index.end() - 1)
        );
    }
}
