//! Locks of programs, flock(2) and fcntl(2), as a device holds them for its programs. They are advisory, and apart from
//! the locks of a turn ([`Change::Lock`](super::change::Change::Lock)).
//!
//! ```text
//! ranges = count varint, 1 to 32 | (start varint | length varint, at least 1 | exclusive u8, 0 or 1) * count
//! ```

use trust::encode::{Decoder, Encoder};
use trust::error::Reject;

/// Most ranges that a device holds of one file and family. A program that needs more gets ENOLCK.
pub const MAX_RANGES: usize = 32;
/// Where a range ends that has no end: no offset is larger.
pub const END: u64 = 1 << 63;

const WHAT: &str = "ranges of a lock";

/// Locks of the two families do not meet, as on Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// flock(2): the whole file.
    Flock,
    /// fcntl(2), of a process or of an open file: ranges.
    Fcntl,
}

impl Family {
    /// Its number in bytes.
    pub fn to_byte(self) -> u8 {
        match self {
            Family::Flock => 0,
            Family::Fcntl => 1,
        }
    }

    /// The family with a number.
    pub fn from_byte(byte: u8) -> Option<Family> {
        match byte {
            0 => Some(Family::Flock),
            1 => Some(Family::Fcntl),
            _ => None,
        }
    }
}

/// A range of bytes that is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Range {
    /// Its first byte.
    pub start: u64,
    /// The byte after its last one, at most [`END`].
    pub end: u64,
    /// For writing: nobody else holds any of it. Otherwise others may hold it for reading.
    pub exclusive: bool,
}

impl Range {
    fn clashes(&self, other: &Range) -> bool {
        let overlaps = self.start < other.end && other.start < self.end;
        overlaps && (self.exclusive || other.exclusive)
    }
}

/// What a device holds of a file: 1 to 32 ranges, ascending, none over another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ranges(Vec<Range>);

impl Ranges {
    /// These ranges.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for none or more than 32, for an empty one, and for ranges that do not ascend.
    pub fn new(ranges: Vec<Range>) -> Result<Ranges, Reject> {
        let bad = |why| Err(Reject::Malformed { what: WHAT, why });
        if ranges.is_empty() || ranges.len() > MAX_RANGES {
            return bad("not 1 to 32");
        }
        if ranges
            .iter()
            .any(|range| range.start >= range.end || range.end > END)
        {
            return bad("an empty one, or one beyond all offsets");
        }
        if !ranges.is_sorted_by(|a, b| a.end <= b.start) {
            return bad("not ascending");
        }
        Ok(Ranges(ranges))
    }

    /// The whole file.
    pub fn whole(exclusive: bool) -> Ranges {
        Ranges(vec![Range {
            start: 0,
            end: END,
            exclusive,
        }])
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = &Range> {
        self.0.iter()
    }

    /// Whether two devices cannot hold these at a time.
    pub fn clash(&self, other: &Ranges) -> bool {
        let clashes = |one: &Range| other.0.iter().any(|other| one.clashes(other));
        self.0.iter().any(clashes)
    }

    /// Writes the count and the ranges.
    pub fn encode(&self, e: &mut Encoder) {
        e.varint(self.0.len() as u64);
        for range in &self.0 {
            e.varint(range.start)
                .varint(range.end.saturating_sub(range.start))
                .u8(u8::from(range.exclusive));
        }
    }

    /// Reads what [`Ranges::encode`] wrote.
    ///
    /// # Errors
    /// Those of [`Ranges::new`].
    pub fn decode(d: &mut Decoder<'_>) -> Result<Ranges, Reject> {
        let count = d.bounded(MAX_RANGES as u64, "over 32 ranges")?;
        let mut ranges = Vec::new();
        for _ in 0..count {
            let (start, length, exclusive) = (d.varint()?, d.varint()?, d.flag()?);
            let end = start.checked_add(length);
            ranges.push(Range {
                start,
                end: end.ok_or_else(|| d.bad("a range beyond all offsets"))?,
                exclusive,
            });
        }
        Ranges::new(ranges)
    }
}

/// What a device holds of a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hold {
    /// The ranges that the device holds.
    pub ranges: Ranges,
    /// Position of the entry since which it has held something of the file without a gap.
    pub since: u64,
    /// Position of the entry that set or renewed it last.
    pub last: u64,
}

impl Hold {
    pub(super) fn encode(&self, e: &mut Encoder) {
        e.varint(self.since).varint(self.last);
        self.ranges.encode(e);
    }

    pub(super) fn decode(d: &mut Decoder<'_>) -> Result<Hold, Reject> {
        let (since, last) = (d.varint()?, d.varint()?);
        if since > last {
            return Err(d.bad("a hold that was renewed before it was taken"));
        }
        let ranges = Ranges::decode(d)?;
        Ok(Hold {
            ranges,
            since,
            last,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64, exclusive: bool) -> Range {
        Range {
            start,
            end,
            exclusive,
        }
    }

    fn ranges(all: &[(u64, u64, bool)]) -> Ranges {
        let all = all
            .iter()
            .map(|(start, end, write)| range(*start, *end, *write));
        Ranges::new(all.collect()).unwrap()
    }

    #[test]
    fn only_writers_of_the_same_bytes_clash() {
        let read = ranges(&[(0, 10, false), (20, 30, false)]);
        let write = ranges(&[(10, 20, true), (40, END, true)]);
        assert!(!read.clash(&write) && !write.clash(&read));
        assert!(!read.clash(&read));
        assert!(write.clash(&write));
        assert!(read.clash(&ranges(&[(29, 30, true)])));
        assert!(!read.clash(&ranges(&[(30, 31, true)])));
        assert!(Ranges::whole(false).clash(&write) && !Ranges::whole(false).clash(&read));
        assert!(Ranges::whole(true).clash(&read));
    }

    #[test]
    fn ranges_that_no_device_can_hold_are_refused() {
        for (why, all) in [
            ("none", vec![]),
            ("an empty one", vec![range(3, 3, true)]),
            ("backwards", vec![range(4, 3, true)]),
            ("too far", vec![range(0, END + 1, true)]),
            (
                "one over another",
                vec![range(0, 5, true), range(4, 6, false)],
            ),
            ("not ascending", vec![range(4, 6, true), range(0, 4, false)]),
            (
                "33",
                (0..33).map(|at| range(2 * at, 2 * at + 1, true)).collect(),
            ),
        ] {
            assert!(Ranges::new(all).is_err(), "{why}");
        }
        let most = (0..32).map(|at| range(at, at + 1, at % 2 == 0)).collect();
        let most = Ranges::new(most).unwrap();
        let mut e = Encoder::new();
        most.encode(&mut e);
        let bytes = e.finish();
        let mut d = Decoder::new(&bytes, WHAT);
        assert_eq!(Ranges::decode(&mut d), Ok(most));
    }
}
