//! How many handles become few reads: sort by where they lie, read what is near in one go, and read
//! on behind the first (docs/decisions/0007). The wanted parts are checked against the index before
//! they are handed over; nothing is unpacked or hashed.

use std::ops::ControlFlow;

use bytes::{Bytes, BytesMut};
use trust::{Handle, Record};

use crate::disk::Disk;
use crate::index::Location;
use crate::index::run::Lookup;
use crate::repository::{Repository, View};
use crate::{Patience, StoreError, damaged, io_error};

/// Longest read, bytes, before read-around.
pub const MAX_READ_BYTES: usize = 1 << 20;
/// Most read-around that is granted, bytes.
pub const MAX_AROUND_BYTES: usize = 1 << 20;
/// Longest answer that is read without leaving the caller's thread, bytes.
pub const MAX_CACHED_BYTES: usize = 2 << 20;
/// Records so near to one another are read in one go, bytes between them.
const NEAR_BYTES: u64 = 16 << 10;

/// Takes regions as they are read; may break off.
pub type Sink<'a> = dyn FnMut(Region) -> ControlFlow<()> + 'a;

/// Records back to back, as they lie in a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Whole records.
    pub bytes: Bytes,
    /// How many.
    pub records: usize,
    /// False for read-around.
    pub wanted: bool,
}

/// An answer as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// What was found, wanted records first.
    pub regions: Vec<Region>,
    /// Handles that are not here.
    pub missing: Vec<Handle>,
}

impl Answer {
    /// The records one by one. They share the memory of the reads: a cache that keeps one of many
    /// must copy it.
    pub(crate) fn records(self, disk: &dyn Disk) -> Result<Vec<Record>, StoreError> {
        let count = self.regions.iter().map(|r| r.records).sum();
        let mut records = Vec::with_capacity(count);
        for region in self.regions {
            let mut bytes = region.bytes;
            while let Some(record) =
                Record::take(&mut bytes).map_err(|e| damaged(disk, "", &e.to_string()))?
            {
                records.push(record);
            }
        }
        Ok(records)
    }
}

/// A wanted record: where it lies and by which name.
struct Wanted {
    at: Location,
    handle: Handle,
}

/// Wanted records of one segment that are read in one go.
struct Group<'a> {
    wanted: &'a [Wanted],
    start: u64,
    end: u64,
    around: usize,
}

struct Plan {
    wanted: Vec<Wanted>,
    missing: Vec<Handle>,
    /// Where the first handle that was found lies.
    first: Option<Location>,
}

/// [`Repository::read_blocking`].
pub(crate) fn blocking(
    repository: &Repository,
    view: &View,
    want: &[Handle],
    around: usize,
    sink: &mut Sink<'_>,
) -> Result<Vec<Handle>, StoreError> {
    let Some(mut plan) = Plan::make(repository, view, want, Patience::Wait)? else {
        return Err(damaged(
            repository.disk(),
            "",
            "a read that may wait did not",
        ));
    };
    let missing = std::mem::take(&mut plan.missing);
    let mut behind = Vec::new();
    for group in plan.groups(around) {
        if let Some(bytes) = group.read(repository, Patience::Wait)? {
            for region in group.split(repository.disk(), &bytes, &plan, &mut behind)? {
                if sink(region).is_break() {
                    return Ok(missing);
                }
            }
        }
    }
    for region in behind {
        if sink(region).is_break() {
            break;
        }
    }
    Ok(missing)
}

/// [`Repository::read_if_cached`].
pub(crate) fn if_cached(
    repository: &Repository,
    view: &View,
    want: &[Handle],
    around: usize,
) -> Result<Option<Answer>, StoreError> {
    let Some(plan) = Plan::make(repository, view, want, Patience::Never)? else {
        return Ok(None);
    };
    let total: usize = plan.wanted.iter().map(|w| w.at.len as usize).sum();
    if total > MAX_CACHED_BYTES {
        return Ok(None);
    }
    let mut regions = Vec::new();
    let mut behind = Vec::new();
    for group in plan.groups(around) {
        let Some(bytes) = group.read(repository, Patience::Never)? else {
            return Ok(None);
        };
        regions.extend(group.split(repository.disk(), &bytes, &plan, &mut behind)?);
    }
    regions.append(&mut behind);
    Ok(Some(Answer {
        regions,
        missing: plan.missing,
    }))
}

impl Plan {
    fn make(
        repository: &Repository,
        view: &View,
        want: &[Handle],
        patience: Patience,
    ) -> Result<Option<Plan>, StoreError> {
        let mut wanted = Vec::with_capacity(want.len());
        let mut missing = Vec::new();
        for handle in want {
            match view.locate(repository.disk(), handle, patience)? {
                Lookup::WouldWait => return Ok(None),
                Lookup::Absent => missing.push(*handle),
                Lookup::At(at) => wanted.push(Wanted {
                    at,
                    handle: *handle,
                }),
            }
        }
        let first = wanted.first().map(|w| w.at);
        wanted.sort_unstable_by_key(|w| (w.at, w.handle));
        wanted.dedup_by_key(|w| (w.at, w.handle));
        Ok(Some(Plan {
            wanted,
            missing,
            first,
        }))
    }

    fn groups(&self, around: usize) -> impl Iterator<Item = Group<'_>> {
        let mut rest = self.wanted.as_slice();
        std::iter::from_fn(move || {
            let first = rest.first()?;
            let start = u64::from(first.at.offset);
            let mut end = start + u64::from(first.at.len);
            let near = rest
                .iter()
                .skip(1)
                .take_while(|next| {
                    let from = u64::from(next.at.offset);
                    let to = from + u64::from(next.at.len);
                    let joins = next.at.segment == first.at.segment
                        && from <= end.saturating_add(NEAR_BYTES)
                        && to.max(end) - start <= MAX_READ_BYTES as u64;
                    if joins {
                        end = end.max(to);
                    }
                    joins
                })
                .count();
            let (wanted, after) = rest.split_at_checked(near + 1)?;
            rest = after;
            let holds_first = wanted.iter().any(|w| Some(w.at) == self.first);
            Some(Group {
                wanted,
                start,
                end,
                around: if holds_first {
                    around.min(MAX_AROUND_BYTES)
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
    /// Reads the group and what lies behind it; `None` when that would mean to wait.
    fn read(
        &self,
        repository: &Repository,
        patience: Patience,
    ) -> Result<Option<Bytes>, StoreError> {
        let Some(first) = self.wanted.first() else {
            return Ok(Some(Bytes::new()));
        };
        let needed = (self.end - self.start) as usize;
        let disk = repository.disk();
        let fail = |e| io_error(disk, &first.at.segment.segment(), e);
        let file = repository.segment(first.at.segment)?;
        let mut buf = BytesMut::zeroed(needed + self.around);
        let mut got = match patience {
            Patience::Wait => Some(file.read_at(&mut buf, self.start).map_err(fail)?),
            Patience::Never => file.read_at_if_cached(&mut buf, self.start).map_err(fail)?,
        };
        if got.is_none() && self.around > 0 {
            // What was asked for may be at hand though what lies behind it is not.
            buf.truncate(needed);
            got = file.read_at_if_cached(&mut buf, self.start).map_err(fail)?;
        }
        let Some(got) = got else {
            return Ok(None);
        };
        if got < needed {
            return Err(damaged(
                disk,
                &first.at.segment.segment(),
                "ends before a record that the index names",
            ));
        }
        if got < buf.len() / 2 {
            // Read-around met the end: what is kept of this must not keep the empty rest.
            return Ok(Some(Bytes::copy_from_slice(
                buf.get(..got).unwrap_or_default(),
            )));
        }
        buf.truncate(got);
        Ok(Some(buf.freeze()))
    }

    /// Cuts what was read into regions: the wanted records, and into `behind` what follows them.
    fn split(
        &self,
        disk: &dyn Disk,
        bytes: &Bytes,
        plan: &Plan,
        behind: &mut Vec<Region>,
    ) -> Result<Vec<Region>, StoreError> {
        let mut out = Regions::default();
        for wanted in self.wanted {
            let from = (u64::from(wanted.at.offset) - self.start) as usize;
            let to = from + wanted.at.len as usize;
            let mut record = bytes.slice(from.min(bytes.len())..to.min(bytes.len()));
            match Record::take(&mut record) {
                Ok(Some(r)) if r.handle == wanted.handle && record.is_empty() => out.add(from, to),
                _ => {
                    return Err(damaged(
                        disk,
                        &wanted.at.segment.segment(),
                        &format!(
                            "holds another record than the index says at {}",
                            wanted.at.offset
                        ),
                    ));
                }
            }
        }
        if self.around > 0
            && let Some(first) = self.wanted.first()
        {
            let mut extra = Regions::default();
            let mut at = (self.end - self.start) as usize;
            let mut rest = bytes.slice(at.min(bytes.len())..);
            while let Ok(Some(record)) = Record::take(&mut rest) {
                let next = at + record.len();
                if !plan.wants(&record, self.start + at as u64, &first.at) {
                    extra.add(at, next);
                }
                at = next;
            }
            behind.extend(extra.cut(bytes, false));
        }
        Ok(out.cut(bytes, true))
    }
}

/// Adjacent records gathered into regions.
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
