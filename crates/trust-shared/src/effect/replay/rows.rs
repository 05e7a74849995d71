//! The entries of a replay in little memory: 16 bytes each, and one or two more for each op.
//!
//! Positions and sizes are kept as differences, because an entry rarely lies far from what its author has seen. Those
//! of other entries are kept in full beside them.

use std::collections::BTreeMap;

use super::chunks::Chunks;
use crate::outcome::{Outcome, Written};
use crate::principal::Device;

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
    rows: Chunks<Packed>,
    /// Entries whose parts are too far from one another, by position.
    wide: BTreeMap<u64, Written>,
    outcomes: Chunks<Option<Outcome>>,
}

impl Rows {
    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

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

    /// Forgets the entries before an op that begins one, but for those that have one of the ops `stay`, which are
    /// ascending.
    pub(super) fn keep(&mut self, cut: u32, stay: &[u32]) -> Moved {
        let mut moved = Vec::new();
        let (mut rows, mut ops) = (0, 0_usize);
        for index in 0..self.rows.len() {
            let Some(mut row) = self.rows.get(index).copied() else {
                break;
            };
            let next = self.rows.get(index.saturating_add(1));
            let end = next.map_or(self.outcomes.len(), |next| next.first_op as usize);
            let first = row.first_op as usize;
            let wanted = stay.partition_point(|op| (*op as usize) < first);
            let stays = stay.get(wanted).is_some_and(|op| (*op as usize) < end);
            if row.first_op < cut && !stays {
                continue;
            }
            moved.push((row.first_op, ops as u32));
            row.first_op = ops as u32;
            self.rows.set(rows, row);
            rows += 1;
            for op in first..end {
                let outcome = self.outcomes.get(op).copied().flatten();
                self.outcomes.set(ops, outcome);
                ops += 1;
            }
        }
        self.rows.truncate(rows);
        self.outcomes.truncate(ops);
        self.rebase();
        Moved(moved)
    }

    /// Counts positions from the first entry that is left.
    fn rebase(&mut self) {
        let first = self.rows.get(0).map_or(0, |first| first.position);
        for row in self.rows.iter_mut() {
            row.position = row.position.saturating_sub(first);
        }
        self.base = self.base.saturating_add(first.into());
        let (base, rows) = (self.base, &self.rows);
        self.wide.retain(|position, _| {
            let behind = position.checked_sub(base);
            let behind = behind.and_then(|behind| u32::try_from(behind).ok());
            behind.is_some_and(|behind| rows.has(&behind, |row| row.position))
        });
    }
}

/// Where ops are after others were forgotten: old and new number of the first op of each entry that is left.
pub(super) struct Moved(Vec<(u32, u32)>);

impl Moved {
    /// The new number of an op of an entry that is left.
    pub(super) fn of(&self, op: u32) -> u32 {
        let after = self.0.partition_point(|(old, _)| *old <= op);
        let entry = after.checked_sub(1).and_then(|entry| self.0.get(entry));
        entry.map_or(op, |(old, new)| {
            op.saturating_sub(*old).saturating_add(*new)
        })
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
        let moved = rows.keep(1, &[]);
        assert_eq!([moved.of(1), moved.of(3)], [0, 2]);
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
    fn entry_stays_with_all_of_its_ops_when_one_is_needed() {
        let mut rows = Rows::default();
        for number in 0..5 {
            let position = 100 + 10 * number;
            // The third one is wide.
            let seen = if number == 2 { 1 } else { position };
            assert!(rows.push(&written(position, seen, 0)));
            (0..3).for_each(|op| rows.push_op((op == 1).then_some(Outcome::Effect)));
        }
        let moved = rows.keep(12, &[4, 8]);
        let left: Vec<u64> = (0..9)
            .filter_map(|at| Some(rows.get(at)?.written.position))
            .collect();
        assert_eq!(left, [110, 120, 140]);
        assert_eq!(rows.get(1).map(|row| row.written.seen), Some(1));
        assert_eq!([3, 4, 8, 12, 14].map(|op| moved.of(op)), [0, 1, 5, 6, 8]);
        let known: Vec<u32> = (0..9).filter(|op| rows.outcome(*op).is_some()).collect();
        assert_eq!(known, [1, 4, 7]);
        assert_eq!((rows.before(115), rows.first_op_at(121)), (1, 6));
        // Then everything.
        rows.keep(9, &[]);
        assert_eq!((rows.rows.len(), rows.ops(), rows.wide.len()), (0, 0, 0));
        assert!(rows.push(&written(200, 200, 200)));
        assert_eq!(rows.get(0).map(|row| row.written.position), Some(200));
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
        assert!(rows.rows.capacity_bytes() < 16 * 105_000);
        assert!(rows.outcomes.capacity_bytes() < 2 * 105_000);
        assert!(rows.wide.is_empty());
    }
}
