//! Read plans: turns many wanted records into few reads (docs/decisions/0007). Records are sorted by
//! location, near ones are read in one go, and read-around follows the first. Sans-I/O: a repository
//! on a disk and one behind a web server use the same plan. What was read is checked against the
//! index; nothing is unpacked or hashed.

use bytes::Bytes;
use trust::{Handle, Record, Reject};

use crate::index::Location;

/// A wanted record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    /// Its location.
    pub at: Location,
    /// Its handle.
    pub handle: Handle,
}

/// Limits on which records are read in one go.
#[derive(Debug, Clone, Copy)]
pub struct Near {
    /// Maximum number of bytes between two records.
    pub gap_bytes: u64,
    /// Maximum length of a read, bytes; a single record may be longer.
    pub read_bytes: u64,
    /// Maximum read-around, bytes.
    pub around_bytes: usize,
}

/// Wanted records, sorted by location.
#[derive(Debug)]
pub struct Plan {
    wanted: Vec<Wanted>,
    /// Location of the record that was asked for first.
    first: Option<Location>,
}

/// Wanted records of one segment that one read gets.
#[derive(Debug, Clone, Copy)]
pub struct Group<'a> {
    /// The records; never empty.
    pub wanted: &'a [Wanted],
    /// Where the read begins in the segment, bytes.
    pub start: u64,
    /// Where the last record ends, bytes.
    pub end: u64,
    /// Read-around after the last record, bytes.
    pub around: usize,
}

/// Contiguous records of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Whole records.
    pub bytes: Bytes,
    /// Number of records.
    pub records: usize,
    /// False for read-around.
    pub wanted: bool,
}

/// The result of a read, cut into regions.
#[derive(Debug, Default)]
pub struct Pieces {
    /// The wanted records.
    pub wanted: Vec<Region>,
    /// The read-around.
    pub behind: Vec<Region>,
}

impl Plan {
    /// A plan for records in the order in which they were asked for. A record that was asked for
    /// twice is read once.
    pub fn new(mut wanted: Vec<Wanted>) -> Plan {
        let first = wanted.first().map(|w| w.at);
        wanted.sort_unstable();
        wanted.dedup();
        Plan { wanted, first }
    }

    /// Total length of the wanted records, bytes.
    pub fn wanted_bytes(&self) -> usize {
        self.wanted.iter().map(|w| w.at.len as usize).sum()
    }

    /// The reads to do. The group with the record that was asked for first gets the read-around.
    pub fn groups(&self, near: Near, around: usize) -> impl Iterator<Item = Group<'_>> {
        let mut rest = self.wanted.as_slice();
        std::iter::from_fn(move || {
            let first = rest.first()?;
            let start = u64::from(first.at.offset);
            let mut end = start + u64::from(first.at.len);
            let joining = rest
                .iter()
                .skip(1)
                .take_while(|next| {
                    let from = u64::from(next.at.offset);
                    let to = from + u64::from(next.at.len);
                    let joins = next.at.segment == first.at.segment
                        && from <= end.saturating_add(near.gap_bytes)
                        && to.max(end) - start <= near.read_bytes;
                    if joins {
                        end = end.max(to);
                    }
                    joins
                })
                .count();
            let (wanted, after) = rest.split_at_checked(joining + 1)?;
            rest = after;
            let holds_first = wanted.iter().any(|w| Some(w.at) == self.first);
            Some(Group {
                wanted,
                start,
                end,
                around: if holds_first {
                    around.min(near.around_bytes)
                } else {
                    0
                },
            })
        })
    }

    fn wants(&self, record: &Record, at: u64, segment: &Location) -> bool {
        self.wanted
            .binary_search_by(|w| {
                (w.at.segment, u64::from(w.at.offset)).cmp(&(segment.segment, at))
            })
            .is_ok_and(|i| {
                self.wanted
                    .get(i)
                    .is_some_and(|w| w.handle == record.handle)
            })
    }
}

impl Group<'_> {
    /// Length of the wanted part, bytes.
    pub fn needed_bytes(&self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// Cuts the bytes that were read at [`Group::start`] into regions.
    ///
    /// # Errors
    /// The offset in the segment of a record that is not the one in the index.
    pub fn split(&self, bytes: &Bytes, plan: &Plan) -> Result<Pieces, u32> {
        let mut out = Regions::default();
        for wanted in self.wanted {
            let from = (u64::from(wanted.at.offset) - self.start) as usize;
            let to = from + wanted.at.len as usize;
            let mut record = bytes.slice(from.min(bytes.len())..to.min(bytes.len()));
            match Record::take(&mut record) {
                Ok(Some(r)) if r.handle == wanted.handle && record.is_empty() => out.add(from, to),
                // Kept in a form of a later bulla: as if it were not here.
                Err(Reject::UnknownFrame(_)) if record.is_empty() => {}
                _ => return Err(wanted.at.offset),
            }
        }
        let mut extra = Regions::default();
        if self.around > 0
            && let Some(first) = self.wanted.first()
        {
            let mut at = self.needed_bytes();
            let mut rest = bytes.slice(at.min(bytes.len())..);
            loop {
                let before = rest.len();
                let record = match Record::take(&mut rest) {
                    Ok(Some(record)) => record,
                    Err(Reject::UnknownFrame(_)) => {
                        at += before - rest.len();
                        continue;
                    }
                    Ok(None) | Err(_) => break,
                };
                let next = at + record.len();
                if !plan.wants(&record, self.start + at as u64, &first.at) {
                    extra.add(at, next);
                }
                at = next;
            }
        }
        Ok(Pieces {
            wanted: out.cut(bytes, true),
            behind: extra.cut(bytes, false),
        })
    }
}

/// Joins adjacent records into regions.
#[derive(Default)]
struct Regions {
    spans: Vec<(usize, usize, usize)>,
}

impl Regions {
    fn add(&mut self, from: usize, to: usize) {
        match self.spans.last_mut() {
            Some((_, end, records)) if *end == from => {
                *end = to;
                *records += 1;
            }
            _ => self.spans.push((from, to, 1)),
        }
    }

    fn cut(self, bytes: &Bytes, wanted: bool) -> Vec<Region> {
        let cut = |(from, to, records): (usize, usize, usize)| Region {
            bytes: bytes.slice(from.min(bytes.len())..to.min(bytes.len())),
            records,
            wanted,
        };
        self.spans.into_iter().map(cut).collect()
    }
}
