//! Changes of a map, and how they come to the device: dirty leaves early when there are many of them, everything
//! at a write-back. Pages are written from the leaves up, each to a slot that no durable root names.

use std::ops::Range;
use std::sync::Arc;

use super::error::MapError;
use super::layout::{FAN_OUT, PageId};
use super::page::{Entry, Page};
use super::pages::{BATCH, Outgoing};
use super::tree::Found;
use super::value::{Cell, Value};
use super::{Map, Root};

impl Map {
    /// Sets the value of a block.
    ///
    /// # Errors
    /// [`MapError::Page`] if the block's page is not what was written: its other values are unknown, so it is not
    /// written anew. [`set_range`](Map::set_range) of all blocks of the page replaces it.
    pub fn set(&self, block: u64, value: Value) -> Result<(), MapError> {
        self.set_range(block..block.saturating_add(1), value)
    }

    /// Sets the value of a range of blocks. Pages that the range covers wholly are not read, but for interior pages
    /// that are not in memory. After an error a part of the range may have the new value.
    ///
    /// # Errors
    /// As for [`set`](Map::set), for the pages that the range covers in part.
    pub fn set_range(&self, range: Range<u64>, value: Value) -> Result<(), MapError> {
        self.pages.layout.check(&range)?;
        let cell = value.encode().ok_or(MapError::Digest)?;
        let _writer = self.writer();
        self.set_below(self.pages.layout.top(), &range, value, cell)
    }

    /// Writes all pages that have changed, and returns the root that names them. Then the caller syncs the device,
    /// makes the root durable and says so by [`committed`](Map::committed). Until then the next changes may be refused.
    ///
    /// # Errors
    /// [`MapError::Uncommitted`] if there are changes since the last root that was not committed. After an error of
    /// the device the durable root is as whole as before, and the call can be repeated.
    pub fn write_back(&self) -> Result<Root, MapError> {
        let _writer = self.writer();
        {
            let tree = self.tree();
            match tree.uncommitted() {
                Some(root) if tree.is_clean() => return Ok(root),
                Some(_) => return Err(MapError::Uncommitted),
                None => {}
            }
        }
        for level in 0..=self.pages.layout.top().level {
            loop {
                let batch = self.tree().dirty(level, BATCH);
                if batch.is_empty() {
                    break;
                }
                self.write_batch(&batch)?;
            }
        }
        Ok(self.tree().written())
    }

    /// The superblock that names `root` is durable. Slots that only the root before it named are free from now on.
    pub fn committed(&self, root: Root) {
        let _writer = self.writer();
        self.tree().committed(root);
    }

    fn set_below(
        &self,
        id: PageId,
        range: &Range<u64>,
        value: Value,
        cell: Cell,
    ) -> Result<(), MapError> {
        let all = self.pages.layout.blocks_of(id);
        let part = range.start.max(all.start)..range.end.min(all.end);
        if part.is_empty() {
            return Ok(());
        }
        let whole = part == all;
        if id.level == 0 && (!whole || value.fill().is_none()) {
            return self.put(id.index, &part, cell, whole);
        }
        if let Found::Filled(fill) = self.tree().find(id)
            && Some(fill) == value.fill()
        {
            return Ok(());
        }
        if let (true, Some(fill)) = (whole, value.fill()) {
            self.load_interior(id)?;
            self.tree().replace(id, fill);
            return Ok(());
        }
        self.load(id)?;
        let each = FAN_OUT.pow(u32::from(id.level));
        for index in part.start / each..part.end.div_ceil(each) {
            let level = id.level - 1;
            self.set_below(PageId { level, index }, range, value, cell)?;
        }
        Ok(())
    }

    fn put(&self, leaf: u64, blocks: &Range<u64>, cell: Cell, whole: bool) -> Result<(), MapError> {
        self.make_room()?;
        let first = leaf * FAN_OUT;
        let cells = (blocks.start - first) as usize..(blocks.end - first) as usize;
        loop {
            let put = self.tree().put(leaf, cells.clone(), cell, whole);
            match put {
                Ok(()) => return Ok(()),
                Err(missing) => self.fetch(missing)?,
            };
        }
    }

    /// Brings a page into memory, unless it is filled.
    fn load(&self, id: PageId) -> Result<(), MapError> {
        loop {
            let found = self.tree().find(id);
            match found {
                Found::Missing(missing) => self.fetch(missing)?,
                Found::Memory(_) | Found::Filled(_) => return Ok(()),
            };
        }
    }

    /// Brings the interior pages of a subtree into memory, because they say which slots below them are durable.
    /// Where one is not what was written, nothing below it can be read any more, and nothing is kept.
    fn load_interior(&self, id: PageId) -> Result<(), MapError> {
        if id.level == 0 {
            return Ok(());
        }
        match self.load(id) {
            Err(MapError::Page { .. }) => return Ok(()),
            result => result?,
        }
        let found = self.tree().find(id);
        let Found::Memory(page) = found else {
            return Ok(());
        };
        if id.level == 1 {
            return Ok(());
        }
        for (number, cell) in (0..).zip(page.cells()) {
            if matches!(Entry::decode(*cell), Entry::Page(..)) {
                self.load_interior(id.child(number))?;
            }
        }
        Ok(())
    }

    /// Writes dirty leaves before their time if there are too many of them.
    fn make_room(&self) -> Result<(), MapError> {
        while self.tree().leaves.is_crowded() {
            let batch = self.tree().evictable();
            if batch.is_empty() {
                return Err(MapError::Uncommitted);
            }
            self.write_batch(&batch)?;
        }
        Ok(())
    }

    /// Writes pages of one level and tells their parents.
    fn write_batch(&self, batch: &[(PageId, Arc<Page>)]) -> Result<(), MapError> {
        let mut entries = Vec::new();
        let mut outgoing = Vec::new();
        for (id, page) in batch {
            if let Some(fill) = page.fill() {
                entries.push((*id, Entry::Filled(fill)));
                continue;
            }
            let slot = self.tree().free_slot(*id).ok_or(MapError::Uncommitted)?;
            entries.push((*id, Entry::Page(slot, self.pages.mac(*id, page))));
            outgoing.push(Outgoing {
                id: *id,
                slot,
                page: page.clone(),
            });
        }
        self.pages.write(&outgoing)?;
        let mut tree = self.tree();
        for (id, entry) in entries {
            tree.cleaned(id, entry);
        }
        Ok(())
    }
}
