//! Blocks that were requested and that the reader has not passed, and what they count for.

use std::collections::BTreeMap;

use super::Place;
use super::waiting::Group;

/// Requested blocks that the reader has not passed.
#[derive(Debug, Default)]
pub(super) struct Requested {
    blocks: BTreeMap<Place, (Group, u64)>,
    leading_bytes: u64,
    content_bytes: u64,
}

impl Requested {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// What they count for together, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.leading_bytes.saturating_add(self.content_bytes)
    }

    /// The same of content.
    pub(super) fn content_bytes(&self) -> u64 {
        self.content_bytes
    }

    /// The same of what makes others known.
    pub(super) fn leading_bytes(&self) -> u64 {
        self.leading_bytes
    }

    /// Adds a block that counts for `bytes`, or weighs it anew.
    pub(super) fn insert(&mut self, place: Place, group: Group, bytes: u64) {
        self.remove(&place);
        let sum = self.sum(group);
        *sum = sum.saturating_add(bytes);
        self.blocks.insert(place, (group, bytes));
    }

    /// What the block at a place counts for.
    pub(super) fn get(&self, place: &Place) -> Option<u64> {
        self.blocks.get(place).map(|(_, bytes)| *bytes)
    }

    /// Removes a block. Gives what it counted for.
    pub(super) fn remove(&mut self, place: &Place) -> u64 {
        let Some((group, bytes)) = self.blocks.remove(place) else {
            return 0;
        };
        let sum = self.sum(group);
        *sum = sum.saturating_sub(bytes);
        bytes
    }

    fn sum(&mut self, group: Group) -> &mut u64 {
        match group.leads_on() {
            true => &mut self.leading_bytes,
            false => &mut self.content_bytes,
        }
    }

    /// Removes the blocks before `place`.
    pub(super) fn remove_before(&mut self, place: &Place) {
        while let Some((first, _)) = self.blocks.first_key_value() {
            if first >= place {
                break;
            }
            let first = first.clone();
            self.remove(&first);
        }
    }

    /// The places from `place` on.
    pub(super) fn from<'a>(&'a self, place: &'a Place) -> impl Iterator<Item = &'a Place> {
        self.blocks.range(place..).map(|(at, _)| at)
    }
}
