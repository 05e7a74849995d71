//! Changes that go on where a page of the map is lost: nobody knows the values below it any more, so they become
//! [`Value::Bad`], and other blocks go on.
//!
//! Nothing is believed because of it. A page that was put back is as lost as a rotten one, and its other slot has
//! values that nothing authenticates. Slots are not mixed up either: what is written below a lost page may take the
//! place of pages that only the lost one named, and those that are read later have another MAC.

use std::ops::Range;

use super::Map;
use super::error::MapError;
use super::value::Value;

/// More lost pages at once are no rot: the device is broken, and nothing is made final.
const MOST_LOST: usize = 64;

impl Map {
    /// Makes the same changes as often as it takes. Where a page is twice not what was written, all blocks that depend
    /// on it become [`Value::Bad`] and are shown to `lost`, before the changes are made again.
    ///
    /// # Errors
    /// Those of `changes`, but for a few lost pages. The top page is never given up: no other blocks would go on.
    pub fn change(
        &self,
        changes: &dyn Fn(&Map) -> Result<(), MapError>,
        lost: &mut dyn FnMut(Range<u64>),
    ) -> Result<(), MapError> {
        let mut suspected = None;
        let mut pages = 0;
        loop {
            let error = match changes(self) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let MapError::Page { blocks, .. } = &error else {
                return Err(error);
            };
            let blocks = blocks.clone();
            pages += 1;
            if self.depends_on(&blocks) || pages > 2 * MOST_LOST {
                return Err(error);
            }
            if suspected.replace(blocks.clone()).as_ref() != Some(&blocks) {
                // It may have changed on the way.
                continue;
            }
            self.set_range(blocks.clone(), Value::Bad)?;
            lost(blocks);
            suspected = None;
        }
    }

    /// Whether all blocks are among these.
    pub(crate) fn depends_on(&self, blocks: &Range<u64>) -> bool {
        blocks.start == 0 && blocks.end >= self.blocks()
    }
}
