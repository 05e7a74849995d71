//! Where the blocks of a disk cache are: a table in memory, made from the keys of all segments. Pure.
//!
//! A block has one entry of 20 bytes, found by 64 bits of its handle: 24 to 48 bytes of memory with the table.
//! Two handles with the same 64 bits displace one another, and the record says which one it is. Entries of a
//! segment that is gone stay until there are enough of them to be worth a pass over the table.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as TableEntry;
use trust::Handle;

use super::format::{Key, SegmentName};

/// Entries of segments that are gone are removed when they are this part (1/n) of all.
const PURGE_PART: usize = 8;

/// Where a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Number of the segment in this index.
    pub(super) slot: u32,
    pub(super) segment: SegmentName,
    pub(super) offset: u32,
    pub(super) len: u32,
}

/// The part of a handle that an entry has.
type Short = [u32; 2];

#[derive(Debug, Clone, Copy)]
struct Entry {
    short: Short,
    slot: u32,
    offset: u32,
    len: u32,
}

/// A segment.
#[derive(Debug, Clone, Copy)]
struct Slot {
    name: SegmentName,
    is_own: bool,
    is_there: bool,
    /// Its entries.
    blocks: usize,
    /// Bytes of its keys that were read.
    keys_read: u64,
}

impl Slot {
    /// Of two entries for one block, the one of the higher rank stays: this user's newest.
    fn rank(&self) -> (bool, bool, SegmentName) {
        (self.is_there, self.is_own, self.name)
    }
}

pub(super) struct Index {
    table: HashTable<Entry>,
    seeds: [u64; 2],
    slots: Vec<Slot>,
    by_name: HashMap<SegmentName, u32>,
    free: Vec<u32>,
    /// Entries of segments that are gone.
    gone: usize,
    most_blocks: usize,
}

impl Index {
    /// An index of at most `most_blocks`.
    pub(super) fn new(most_blocks: usize) -> Index {
        let random = RandomState::new();
        Index {
            table: HashTable::new(),
            seeds: [random.hash_one(1u8), random.hash_one(2u8) | 1],
            slots: Vec::new(),
            by_name: HashMap::new(),
            free: Vec::new(),
            gone: 0,
            most_blocks,
        }
    }

    /// Number of blocks, with those of segments that are gone.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether no further block is taken in.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.most_blocks
    }

    pub(super) fn find(&self, handle: &Handle) -> Option<Place> {
        let short = short(handle);
        let hash = mixed(self.seeds, short);
        let entry = self.table.find(hash, |entry| entry.short == short)?;
        let slot = self.slots.get(entry.slot as usize)?;
        slot.is_there.then_some(Place {
            slot: entry.slot,
            segment: slot.name,
            offset: entry.offset,
            len: entry.len,
        })
    }

    /// The number of a segment, which is added if it is not known.
    pub(super) fn slot(&mut self, name: SegmentName, is_own: bool) -> u32 {
        if let Some(slot) = self.by_name.get(&name) {
            return *slot;
        }
        let new = Slot {
            name,
            is_own,
            is_there: true,
            blocks: 0,
            keys_read: 0,
        };
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                self.slots.push(new);
                self.slots.len() as u32 - 1
            }
        };
        if let Some(slot) = self.slots.get_mut(number as usize) {
            *slot = new;
        }
        self.by_name.insert(name, number);
        number
    }

    /// How many bytes of the keys of a segment were read; `None` if it is not known.
    pub(super) fn keys_read(&self, name: SegmentName) -> Option<u64> {
        let slot = self.by_name.get(&name)?;
        Some(self.slots.get(*slot as usize)?.keys_read)
    }

    /// Notes how far the keys of a segment were read.
    pub(super) fn read_until(&mut self, slot: u32, keys_read: u64) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            slot.keys_read = keys_read;
        }
    }

    /// Takes a block in, unless the index is full or has it in a segment of a higher rank.
    pub(super) fn insert(&mut self, slot: u32, key: &Key) {
        let Some(new) = self.slots.get(slot as usize).filter(|slot| slot.is_there) else {
            return;
        };
        let rank = new.rank();
        let entry = Entry {
            short: short(&key.handle),
            slot,
            offset: key.offset,
            len: key.len,
        };
        let (seeds, is_full) = (self.seeds, self.is_full());
        let found = self.table.entry(
            mixed(seeds, entry.short),
            |other| other.short == entry.short,
            |other| mixed(seeds, other.short),
        );
        let before = match found {
            TableEntry::Occupied(mut there) => {
                let before = there.get().slot;
                let rank_before = self.slots.get(before as usize).map(Slot::rank);
                if rank_before.is_some_and(|before| before > rank) {
                    return;
                }
                *there.get_mut() = entry;
                Some(before)
            }
            TableEntry::Vacant(_) if is_full => return,
            TableEntry::Vacant(there) => {
                there.insert(entry);
                None
            }
        };
        if let Some(before) = before {
            self.count_out(before);
        }
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            slot.blocks += 1;
        }
    }

    fn count_out(&mut self, slot: u32) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            slot.blocks = slot.blocks.saturating_sub(1);
            if !slot.is_there {
                self.gone = self.gone.saturating_sub(1);
            }
        }
    }

    /// Removes a block, if it is still there.
    pub(super) fn remove(&mut self, handle: &Handle, place: Place) {
        let short = short(handle);
        let is_it = |entry: &Entry| {
            entry.short == short && entry.slot == place.slot && entry.offset == place.offset
        };
        if let Ok(found) = self.table.find_entry(mixed(self.seeds, short), is_it) {
            found.remove();
            self.count_out(place.slot);
        }
    }

    /// Forgets a segment that is gone. Gives the number of blocks that it had.
    pub(super) fn forget(&mut self, name: SegmentName) -> usize {
        let Some(number) = self.by_name.remove(&name) else {
            return 0;
        };
        let blocks = match self.slots.get_mut(number as usize) {
            Some(slot) => {
                slot.is_there = false;
                slot.blocks
            }
            None => 0,
        };
        self.gone += blocks;
        blocks
    }

    /// The segments that it knows.
    pub(super) fn segments(&self) -> impl Iterator<Item = SegmentName> {
        self.by_name.keys().copied()
    }

    /// Removes the entries of segments that are gone, when they are many.
    pub(super) fn purge(&mut self) {
        if self.gone * PURGE_PART <= self.len() && !self.is_full() {
            return;
        }
        let slots = &self.slots;
        let is_there = |number: u32| slots.get(number as usize).is_some_and(|slot| slot.is_there);
        self.table.retain(|entry| is_there(entry.slot));
        self.gone = 0;
        self.free.clear();
        let numbers = (0u32..).zip(&self.slots);
        let free = numbers.filter(|(_, slot)| !slot.is_there);
        self.free.extend(free.map(|(number, _)| number));
        if self.table.len() < self.table.capacity() / 4 {
            let seeds = self.seeds;
            self.table
                .shrink_to(self.table.len() * 2, |entry| mixed(seeds, entry.short));
        }
    }
}

fn short(handle: &Handle) -> Short {
    let [a, b, c, d, e, f, g, h, ..] = *handle.as_bytes();
    [
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    ]
}

/// A hash that a publisher who chooses handles cannot predict.
fn mixed(seeds: [u64; 2], short: Short) -> u64 {
    let [low, high] = short.map(u64::from);
    let wide = u128::from((low | high << 32) ^ seeds[0]) * u128::from(seeds[1]);
    (wide as u64) ^ (wide >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(number: u64) -> SegmentName {
        SegmentName { number, random: 7 }
    }

    fn handle(number: u32) -> Handle {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        Handle::from_bytes(bytes)
    }

    fn key(number: u32, offset: u32) -> Key {
        Key {
            handle: handle(number),
            offset,
            len: 100,
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u64, u32),
        Remove(u32),
        Forget(u64),
        Purge,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..6u64, 0..40u32).prop_map(|(segment, block)| Step::Insert(segment, block)),
            2 => (0..40u32).prop_map(Step::Remove),
            1 => (0..6u64).prop_map(Step::Forget),
            1 => Just(Step::Purge),
        ]
    }

    proptest! {
        #[test]
        fn index_is_a_map_to_the_newest_place(steps in prop::collection::vec(step(), 0..300)) {
            let mut index = Index::new(1000);
            let mut model: HashMap<u32, (u64, u32)> = HashMap::new();
            for (offset, step) in (0u32..).zip(steps) {
                match step {
                    Step::Insert(segment, block) => {
                        let slot = index.slot(name(segment), true);
                        index.insert(slot, &key(block, offset));
                        let newest = model.get(&block).is_none_or(|(there, _)| *there <= segment);
                        if newest {
                            model.insert(block, (segment, offset));
                        }
                    }
                    Step::Remove(block) => {
                        if let Some(place) = index.find(&handle(block)) {
                            index.remove(&handle(block), place);
                        }
                        model.remove(&block);
                    }
                    Step::Forget(segment) => {
                        index.forget(name(segment));
                        model.retain(|_, (there, _)| *there != segment);
                    }
                    Step::Purge => index.purge(),
                }
                for block in 0..40 {
                    let found = index.find(&handle(block));
                    let found = found.map(|place| (place.segment.number, place.offset));
                    prop_assert_eq!(found, model.get(&block).copied());
                }
                let entries: usize = index.slots.iter().map(|slot| slot.blocks).sum();
                prop_assert!(entries >= model.len());
            }
        }
    }

    #[test]
    fn index_keeps_its_limit_and_refuses_no_newer_place_of_a_block_it_has() {
        let mut index = Index::new(10);
        let old = index.slot(name(1), true);
        for block in 0..20 {
            index.insert(old, &key(block, 0));
        }
        assert_eq!(index.len(), 10);
        let new = index.slot(name(2), true);
        index.insert(new, &key(3, 500));
        index.insert(new, &key(19, 500));
        assert_eq!(index.find(&handle(3)).unwrap().offset, 500);
        assert!(index.find(&handle(19)).is_none());
        index.forget(name(1));
        index.purge();
        assert_eq!(index.len(), 1);
    }

    #[test]
    fn segments_of_this_user_come_before_those_of_others() {
        let mut index = Index::new(10);
        let theirs = index.slot(name(u64::MAX), false);
        let ours = index.slot(name(1), true);
        index.insert(ours, &key(1, 1));
        index.insert(theirs, &key(1, 2));
        assert_eq!(index.find(&handle(1)).unwrap().slot, ours);
    }

    #[test]
    fn memory_of_a_block_is_bounded() {
        assert_eq!(std::mem::size_of::<Entry>(), 20);
    }

    #[test]
    fn slots_of_segments_that_are_gone_are_used_again() {
        let mut index = Index::new(1000);
        for number in 0..10_000 {
            let slot = index.slot(name(number), true);
            index.insert(slot, &key(number as u32, 16));
            index.forget(name(number));
            index.purge();
        }
        assert!(index.slots.len() < 100, "{}", index.slots.len());
    }
}
