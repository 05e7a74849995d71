//! The bytes of pages: 256 cells of 16 bytes, each a [`Value`](super::Value) in a leaf and an [`Entry`] in an
//! interior page; and the MAC that a page's parent has of it. Format: `docs/formats/protect.md`, *Map*.

use super::layout::{FAN_OUT, PageId, Slot};
use super::value::{Cell, FIRST_DIGEST, Fill};

/// 127 bits that authenticate a page at its place in the tree; at least 2^64, so that it is never taken for a fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mac(u128);

const SLOT_BIT: u128 = 1 << 127;

impl Mac {
    /// The MAC of `page` at the place `id`.
    pub(super) fn new(key: &[u8; 32], id: PageId, page: &Page) -> Mac {
        let mut hasher = blake3::Hasher::new_keyed(key);
        hasher.update(page.as_bytes());
        hasher.update(&[id.level]).update(&id.index.to_le_bytes());
        let mut cell: Cell = [0; 16];
        hasher.finalize_xof().fill(&mut cell);
        let mac = u128::from_be_bytes(cell) & !SLOT_BIT;
        Mac(if mac < FIRST_DIGEST {
            mac | 1 << 126
        } else {
            mac
        })
    }
}

/// What an interior page says about one page below it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    /// All blocks below have this value, and no page is read.
    Filled(Fill),
    /// The page in this slot, if its MAC is this one.
    Page(Slot, Mac),
}

impl Entry {
    pub(super) fn encode(self) -> Cell {
        match self {
            Entry::Filled(fill) => fill.encode(),
            Entry::Page(Slot::First, Mac(mac)) => mac.to_be_bytes(),
            Entry::Page(Slot::Second, Mac(mac)) => (mac | SLOT_BIT).to_be_bytes(),
        }
    }

    pub(super) fn decode(cell: Cell) -> Entry {
        let number = u128::from_be_bytes(cell);
        let mac = number & !SLOT_BIT;
        match (mac < FIRST_DIGEST, number & SLOT_BIT) {
            (true, _) => Entry::Filled(Fill::decode(cell)),
            (false, 0) => Entry::Page(Slot::First, Mac(mac)),
            (false, _) => Entry::Page(Slot::Second, Mac(mac)),
        }
    }
}

/// A page in memory.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Page([Cell; FAN_OUT as usize]);

impl Page {
    pub(super) fn filled(cell: Cell) -> Page {
        Page([cell; FAN_OUT as usize])
    }

    /// The page with these bytes; missing ones are zeros.
    pub(super) fn from_bytes(bytes: &[u8]) -> Page {
        let mut page = Page::filled([0; 16]);
        for (cell, bytes) in page.0.iter_mut().zip(bytes.as_chunks().0) {
            *cell = *bytes;
        }
        page
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_flattened()
    }

    pub(super) fn cells(&self) -> &[Cell; FAN_OUT as usize] {
        &self.0
    }

    pub(super) fn cells_mut(&mut self) -> &mut [Cell; FAN_OUT as usize] {
        &mut self.0
    }

    /// The value of all blocks below this page, if they have the same one and it is no digest.
    pub(super) fn fill(&self) -> Option<Fill> {
        let first = self.0[0];
        (u128::from_be_bytes(first) < FIRST_DIGEST && self.0.iter().all(|cell| *cell == first))
            .then(|| Fill::decode(first))
    }
}
