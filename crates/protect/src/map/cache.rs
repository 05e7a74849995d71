//! Leaves in memory: a bounded number of them, replaced in the order of a clock. Dirty leaves stay until they are
//! written; the writer keeps them below half of the cache.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::page::Page;

/// Fewer leaves would make concurrent readers push out each other's leaves.
const MIN_LEAVES: usize = 16;

struct Frame {
    leaf: u64,
    page: Arc<Page>,
    /// Read since the clock's hand came by.
    used: bool,
}

/// Leaves by number.
pub(super) struct LeafCache {
    frames: Vec<Frame>,
    places: HashMap<u64, usize>,
    dirty: BTreeSet<u64>,
    hand: usize,
    capacity: usize,
}

impl LeafCache {
    pub(super) fn new(bytes: usize) -> LeafCache {
        LeafCache {
            frames: Vec::new(),
            places: HashMap::new(),
            dirty: BTreeSet::new(),
            hand: 0,
            capacity: (bytes / size_of::<Page>()).max(MIN_LEAVES),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn get(&mut self, leaf: u64) -> Option<Arc<Page>> {
        let frame = self.frames.get_mut(*self.places.get(&leaf)?)?;
        frame.used = true;
        Some(frame.page.clone())
    }

    /// The leaf, without counting as a read.
    pub(super) fn peek(&self, leaf: u64) -> Option<Arc<Page>> {
        let frame = self.frames.get(*self.places.get(&leaf)?)?;
        Some(frame.page.clone())
    }

    /// The leaf, to change it. It is dirty from now on.
    pub(super) fn change(&mut self, leaf: u64) -> Option<&mut Page> {
        let frame = self.frames.get_mut(*self.places.get(&leaf)?)?;
        frame.used = true;
        self.dirty.insert(leaf);
        Some(Arc::make_mut(&mut frame.page))
    }

    /// Takes a clean leaf in, in place of another clean one if the cache is full.
    pub(super) fn insert(&mut self, leaf: u64, page: Arc<Page>) {
        let frame = Frame {
            leaf,
            page,
            used: true,
        };
        let place = match self.places.get(&leaf) {
            Some(&place) => Some(place),
            None if self.frames.len() < self.capacity => None,
            None => self.victim(),
        };
        match place.and_then(|place| Some((place, self.frames.get_mut(place)?))) {
            Some((place, old)) => {
                self.places.remove(&old.leaf);
                self.places.insert(leaf, place);
                *old = frame;
            }
            None => {
                self.places.insert(leaf, self.frames.len());
                self.frames.push(frame);
            }
        }
    }

    /// The next clean frame that was not read since the hand came by last.
    fn victim(&mut self) -> Option<usize> {
        for _ in 0..2 * self.frames.len() {
            let place = self.hand;
            self.hand = (place + 1) % self.frames.len();
            let frame = self.frames.get_mut(place)?;
            if !self.dirty.contains(&frame.leaf) && !std::mem::take(&mut frame.used) {
                return Some(place);
            }
        }
        None
    }

    pub(super) fn remove(&mut self, leaves: Range<u64>) {
        let gone: Vec<u64> = self
            .frames
            .iter()
            .map(|frame| frame.leaf)
            .filter(|leaf| leaves.contains(leaf))
            .collect();
        for leaf in gone {
            self.dirty.remove(&leaf);
            let Some(place) = self.places.remove(&leaf) else {
                continue;
            };
            self.frames.swap_remove(place);
            if let Some(moved) = self.frames.get(place) {
                self.places.insert(moved.leaf, place);
            }
        }
        self.hand = 0;
    }

    /// Dirty leaves in order.
    pub(super) fn dirty(&self) -> impl Iterator<Item = u64> {
        self.dirty.iter().copied()
    }

    pub(super) fn cleaned(&mut self, leaf: u64) {
        self.dirty.remove(&leaf);
    }

    /// Whether as many leaves are dirty as may be.
    pub(super) fn is_crowded(&self) -> bool {
        self.dirty.len() >= self.capacity / 2
    }
}
