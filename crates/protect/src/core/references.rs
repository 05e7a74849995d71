//! Which frames of the log are still needed, and by how much.

use std::collections::{BTreeMap, HashMap};

use wal::Lsn;

/// A multiset of frames.
#[derive(Debug, Default)]
pub(super) struct References(BTreeMap<Lsn, usize>);

impl References {
    pub fn add(&mut self, frame: Lsn) {
        *self.0.entry(frame).or_default() += 1;
    }

    pub fn remove(&mut self, frame: Lsn) {
        let Some(count) = self.0.get_mut(&frame) else {
            debug_assert!(false, "a reference that was never added");
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.0.remove(&frame);
        }
    }

    pub fn first(&self) -> Option<Lsn> {
        self.0.first_key_value().map(|(frame, _)| *frame)
    }

    /// The first frame that has more references than `some`.
    pub fn first_beyond(&self, some: &HashMap<Lsn, usize>) -> Option<Lsn> {
        let more = |(frame, count): &(&Lsn, &usize)| some.get(frame).is_none_or(|n| n < count);
        self.0.iter().find(more).map(|(frame, _)| *frame)
    }
}
