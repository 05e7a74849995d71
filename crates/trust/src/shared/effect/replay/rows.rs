//! The entries of a replay in little memory: 16 bytes each, and one or two more for each op.
//!
//! Positions and sizes are kept as differences, because an entry rarely lies far from what its author has seen. Those
//! of other entries are kept in full beside them.

use std::collections::BTreeMap;

use crate::shared::outcome::{Outcome, Written};
use crate::shared::principal::Device;

/// An entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) written: Written,
    pub(super) first_op: u32,
}

#[derive(Debug, Clone, Copy)]
struct Packed {
    /// Position behind the base.
    position: u32,
    device: u32,
    first_op: u32,
    /// By how much `seen` lies before the position. [`WIDE`]: see [`Rows::wide`].
    seen: u16,
    /// By how much `kept` lies before `seen`.
    kept: u16,
}

const WIDE: u16 = u16::MAX;

/// Entries in the order of the log, and what became of their ops.
#[derive(Debug, Clone, Default)]
pub(super) struct Rows {
    base: u64,
    rows: Vec<Packed>,
    /// Entries whose parts are too far from one another, by position.
    wide: BTreeMap<u64, Written>,
    outcomes: Vec<Option<Outcome>>,
}

/// Makes room for one more without doubling what is there: memory is bounded by what is kept.
fn grow<T>(list: &mut Vec<T>) {
    if list.len() == list.capacity() {
        list.reserve_exact((list.len() / 8).max(16));
    }
}

impl Rows {
    /// Number of their ops.
    pub(super) fn ops(&self) -> usize {
        self.outcomes.len()
    }

    /// Adds the next entry, whose ops are added after it. False: it lies too far from the first one.
    pub(super) fn push(&mut self, written: &Written) -> bool {
        if self.rows.is_empty() {
            self.base = written.position;
        }
        let position = written.position.checked_sub(self.base);
        let Some(position) = position.and_then(|behind| u32::try_from(behind).ok()) else {
            return false;
        };
        let first_op = self.outcomes.len() as u32;
        let narrow = |from: u64, to: u64| {
            let behind = u16::try_from(from.checked_sub(to)?).ok()?;
            (behind != WIDE).then_some(behind)
        };
        let seen = narrow(written.position, written.seen);
        let kept = narrow(written.seen, written.kept);
        let (seen, kept) = seen.zip(kept).unwrap_or((WIDE, WIDE));
        if seen == WIDE {
            self.wide.insert(written.position, *written);
        }
        grow(&mut self.rows);
        self.rows.push(Packed {
            position,
            device: written.device.0,
            first_op,
            seen,
            kept,
        });
        true
    }

    /// Adds an op of the last entry.
    pub(super) fn push_op(&mut self, outcome: Option<Outcome>) {
        grow(&mut self.outcomes);
        self.outcomes.push(outcome);
    }

    fn unpack(&self, packed: &Packed) -> Row {
        let position = self.base.saturating_add(packed.position.into());
        let seen = position.saturating_sub(packed.seen.into());
        let narrow = Written {
            position,
            device: Device(packed.device),
            seen,
            kept: seen.saturating_sub(packed.kept.into()),
        };
        let wide = (packed.seen == WIDE).then(|| self.wide.get(&position));
        Row {
            written: wide.flatten().copied().unwrap_or(narrow),
            first_op: packed.first_op,
        }
    }

    /// An entry by its number.
    pub(super) fn get(&self, index: usize) -> Option<Row> {
        self.rows.get(index).map(|packed| self.unpack(packed))
    }

    /// The number of the first entry at or after a position.
    pub(super) fn before(&self, position: u64) -> usize {
        let behind = position.saturating_sub(self.base);
        self.rows
            .partition_point(|row| u64::from(row.position) < behind)
    }

    /// The entry of an op.
    pub(super) fn of(&self, op: u32) -> Option<Row> {
        if op as usize >= self.outcomes.len() {
            return None;
        }
        let after = self.rows.partition_point(|row| row.first_op <= op);
        self.get(after.checked_sub(1)?)
    }

    /// The first op of the first entry at or after a position.
    pub(super) fn first_op_at(&self, position: u64) -> u32 {
        let row = self.rows.get(self.before(position));
        row.map_or(self.outcomes.len() as u32, |row| row.first_op)
    }

    /// What became of an op, if it is known.
    pub(super) fn outcome(&self, op: u32) -> Option<Outcome> {
        self.outcomes.get(op as usize).copied().flatten()
    }

    /// Notes what became of an op.
    pub(super) fn set_outcome(&mut self, op: u32, outcome: Outcome) {
        if let Some(known) = self.outcomes.get_mut(op as usize) {
            *known = Some(outcome);
        }
    }

    /// Forgets the ops before one that begins an entry, and their entries.
    pub(super) fn drop_before(&mut self, cut: u32) {
        let rows = self.rows.partition_point(|row| row.first_op < cut);
        self.rows.drain(..rows);
        self.rows.shrink_to(self.rows.len() / 8 * 9);
        let ops = (cut as usize).min(self.outcomes.len());
        self.outcomes.drain(..ops);
        self.outcomes.shrink_to(self.outcomes.len() / 8 * 9);
        let base = match self.rows.first() {
            Some(first) => self.base.saturating_add(first.position.into()),
            None => self.base,
        };
        self.wide = self.wide.split_off(&base);
        let moved = base.saturating_sub(self.base) as u32;
        for row in &mut self.rows {
            row.position = row.position.saturating_sub(moved);
            row.first_op = row.first_op.saturating_sub(cut);
        }
        self.base = base;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(position: u64, seen: u64, kept: u64) -> Written {
        Written {
            position,
            device: Device(7),
            seen,
            kept,
        }
    }

    #[test]
    fn entries_come_back_as_they_were_however_far_their_parts_lie_from_one_another() {
        let first = 1 << 40;
        let all = [
            written(first, first - 1, first - 2),
            written(first + 1, 3, 0),
            written(first + 9, first + 9, 1),
            written(first + 10, first + 2, first + 9),
        ];
        let mut rows = Rows::default();
        for (number, one) in all.iter().enumerate() {
            assert!(rows.push(one));
            (0..number).for_each(|_| rows.push_op(None));
        }
        let found: Vec<Written> = (0..4)
            .filter_map(|at| Some(rows.get(at)?.written))
            .collect();
        assert_eq!(found, all);
        assert!(!rows.push(&written(first + (1 << 32), first, first)));
        assert_eq!(rows.before(first + 2), 2);
        // The first entry has no op, the others have 1, 2 and 3.
        let of: Vec<u64> = (0..7)
            .filter_map(|op| Some(rows.of(op)?.written.position - first))
            .collect();
        assert_eq!(of, [1, 9, 9, 10, 10, 10]);
        rows.set_outcome(3, Outcome::Effect);
        rows.drop_before(1);
        assert_eq!((rows.rows.len(), rows.ops()), (2, 5));
        assert_eq!(rows.get(0).map(|row| row.written), Some(all[2]));
        assert_eq!(
            rows.get(1).map(|row| (row.written, row.first_op)),
            Some((all[3], 2))
        );
        assert_eq!(rows.outcome(2), Some(Outcome::Effect));
        assert_eq!(rows.first_op_at(first + 10), 2);
        assert_eq!(rows.of(5).map(|row| row.first_op), None);
    }

    #[test]
    fn entry_takes_little_memory() {
        assert_eq!(size_of::<Packed>(), 16);
        assert!(size_of::<Option<Outcome>>() <= 2);
        let mut rows = Rows::default();
        for position in 0..100_000 {
            rows.push(&written(position, position, position));
            rows.push_op(None);
        }
        assert!(rows.rows.capacity() < 113_000 && rows.outcomes.capacity() < 113_000);
        assert!(rows.wide.is_empty());
    }
}
