//! Disjoint ranges of blocks, each with the frame that said so.

use std::collections::BTreeMap;
use std::ops::Range;

use wal::Lsn;

/// A map from blocks to frames, stored as ranges.
#[derive(Debug, Default)]
pub(crate) struct Ranges(BTreeMap<u64, (u64, Lsn)>);

impl Ranges {
    /// Maps the range to `lsn`, whatever its blocks had.
    pub fn insert(&mut self, range: Range<u64>, lsn: Lsn) {
        self.remove(&range);
        let mut range = range;
        if let Some((start, (end, before))) = self.0.range(..range.start).next_back()
            && (*end, *before) == (range.start, lsn)
        {
            range.start = *start;
        }
        self.0.insert(range.start, (range.end, lsn));
    }

    /// Forgets the blocks of a range.
    pub fn remove(&mut self, range: &Range<u64>) {
        let first = self
            .0
            .range(..range.start)
            .next_back()
            .map(|(start, _)| *start);
        let from = first.unwrap_or(range.start);
        let met: Vec<(u64, u64, Lsn)> = (self.0.range(from..range.end))
            .filter(|(_, (end, _))| *end > range.start)
            .map(|(start, (end, lsn))| (*start, *end, *lsn))
            .collect();
        for (start, end, lsn) in met {
            self.0.remove(&start);
            if start < range.start {
                self.0.insert(start, (range.start, lsn));
            }
            if range.end < end {
                self.0.insert(range.end, (end, lsn));
            }
        }
    }

    /// Whether `block` is in a range.
    pub fn contains(&self, block: u64) -> bool {
        let before = self.0.range(..=block).next_back();
        before.is_some_and(|(_, (end, _))| block < *end)
    }

    /// All ranges in order. Ranges that touch are one.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        let mut ranges = self
            .0
            .iter()
            .map(|(start, (end, _))| *start..*end)
            .peekable();
        std::iter::from_fn(move || {
            let mut range = ranges.next()?;
            while let Some(next) = ranges.next_if(|next| next.start == range.end) {
                range.end = next.end;
            }
            Some(range)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_equal_a_set_of_blocks(
            steps in prop::collection::vec((any::<bool>(), 0u64..40, 1u64..10), 0..40),
        ) {
            let mut ranges = Ranges::default();
            let mut set = BTreeSet::new();
            for (n, (insert, start, count)) in steps.into_iter().enumerate() {
                let range = start..start + count;
                if insert {
                    ranges.insert(range.clone(), Lsn(n as u64 % 3));
                    set.extend(range);
                } else {
                    ranges.remove(&range);
                    set.retain(|block| !range.contains(block));
                }
                prop_assert!((0..60).all(|block| ranges.contains(block) == set.contains(&block)));
            }
            let blocks: Vec<u64> = ranges.iter().flatten().collect();
            prop_assert_eq!(blocks, set.into_iter().collect::<Vec<_>>());
        }
    }
}
