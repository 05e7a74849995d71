//! Where pages lie: levels of the tree over the blocks of the data device, two slots for each page in the area, and two
//! copies of each slot of an interior page.
//!
//! All first slots lie together, then all second slots, then the second copies of the interior pages' slots; among them
//! the top page is first and the leaves are last. So pages of one level that are written together lie side by side, and
//! the copies of a page lie far from each other.

use std::ops::Range;

use wal::PAGE_BYTES;

use super::error::MapError;

/// Cells of a page: blocks of a leaf, children of an interior page.
pub(super) const FAN_OUT: u64 = 256;

/// 2^44 blocks: 64 PiB. Keeps all arithmetic on offsets below 2^64.
const MAX_BLOCKS: u64 = 1 << 44;

/// A page of the tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct PageId {
    /// 0 for a leaf.
    pub(super) level: u8,
    /// Number of the page in its level.
    pub(super) index: u64,
}

impl PageId {
    pub(super) fn leaf(index: u64) -> PageId {
        PageId { level: 0, index }
    }

    pub(super) fn parent(self) -> PageId {
        PageId {
            level: self.level + 1,
            index: self.index / FAN_OUT,
        }
    }

    pub(super) fn child(self, number: u64) -> PageId {
        PageId {
            level: self.level.saturating_sub(1),
            index: self.index * FAN_OUT + number,
        }
    }

    /// Which cell of its parent belongs to this page.
    pub(super) fn cell(self) -> usize {
        (self.index % FAN_OUT) as usize
    }

    /// The pages of `level` below this page, or the page itself.
    pub(super) fn below(self, level: u8) -> Range<PageId> {
        let each = FAN_OUT.pow(u32::from(self.level.saturating_sub(level)));
        let page = |index| PageId { level, index };
        page(self.index * each)..page((self.index + 1) * each)
    }
}

/// One of the two places that a page has on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    First,
    Second,
}

impl Slot {
    pub(super) fn number(self) -> usize {
        match self {
            Slot::First => 0,
            Slot::Second => 1,
        }
    }

    pub(super) fn other(self) -> Slot {
        match self {
            Slot::First => Slot::Second,
            Slot::Second => Slot::First,
        }
    }
}

/// The shape of a map.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    blocks: u64,
    start: u64,
    /// For each level, leaves first: how many pages it has, and how many pages lie before it.
    levels: Vec<(u64, u64)>,
    pages: u64,
}

impl Layout {
    /// The layout for `blocks` blocks, from the offset `start` on.
    pub(super) fn new(blocks: u64, start: u64) -> Result<Layout, MapError> {
        if blocks == 0 || blocks > MAX_BLOCKS || !start.is_multiple_of(PAGE_BYTES as u64) {
            return Err(MapError::Shape { blocks });
        }
        let mut counts = vec![blocks.div_ceil(FAN_OUT)];
        while let Some(&count) = counts.last()
            && count > 1
        {
            counts.push(count.div_ceil(FAN_OUT));
        }
        let mut pages = 0;
        let mut levels = Vec::new();
        for count in counts.into_iter().rev() {
            levels.push((count, pages));
            pages += count;
        }
        levels.reverse();
        Ok(Layout {
            blocks,
            start,
            levels,
            pages,
        })
    }

    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(super) fn top(&self) -> PageId {
        PageId {
            level: (self.levels.len() - 1) as u8,
            index: 0,
        }
    }

    /// Pages of a level.
    pub(super) fn count(&self, level: u8) -> u64 {
        self.levels.get(usize::from(level)).map_or(0, |l| l.0)
    }

    /// Pages that are not leaves. They lie before the leaves.
    fn interior(&self) -> u64 {
        self.levels.first().map_or(0, |leaves| leaves.1)
    }

    /// Bytes that all copies of the two slots of all pages take.
    pub(super) fn bytes(&self) -> u64 {
        2 * (self.pages + self.interior()) * PAGE_BYTES as u64
    }

    /// Where the first copy of a page lies on the device.
    pub(super) fn offset(&self, id: PageId, slot: Slot) -> u64 {
        self.place(slot.number() as u64 * self.pages, id)
    }

    /// Where the copies of a page lie on the device: two of an interior page, because much depends on it, and one of a
    /// leaf.
    pub(super) fn copies(&self, id: PageId, slot: Slot) -> impl Iterator<Item = u64> + use<> {
        let copies = 2 * self.pages + slot.number() as u64 * self.interior();
        let second = (id.level > 0).then(|| self.place(copies, id));
        std::iter::once(self.offset(id, slot)).chain(second)
    }

    /// Where a page lies among the slots that begin behind so many pages.
    fn place(&self, first: u64, id: PageId) -> u64 {
        let before = self.levels.get(usize::from(id.level)).map_or(0, |l| l.1);
        self.start + (first + before + id.index) * PAGE_BYTES as u64
    }

    /// The blocks that a page covers.
    pub(super) fn blocks_of(&self, id: PageId) -> Range<u64> {
        let each = FAN_OUT.pow(u32::from(id.level) + 1);
        let start = id.index.saturating_mul(each);
        start.min(self.blocks)..start.saturating_add(each).min(self.blocks)
    }

    /// Refuses a range that ends beyond the last block.
    pub(super) fn check(&self, range: &Range<u64>) -> Result<(), MapError> {
        if range.start <= range.end && range.end <= self.blocks {
            return Ok(());
        }
        Err(MapError::Range {
            range: range.clone(),
            blocks: self.blocks,
        })
    }
}
