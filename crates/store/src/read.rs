//! Batched reads from a repository on a disk, by the plan of [`crate::gather`]
//! (docs/decisions/0007).

use std::ops::ControlFlow;

use bytes::{Bytes, BytesMut};
use trust::{Handle, Record};

use crate::StoreError;
use crate::disk::{Disk, Patience, damaged, io_error};
use crate::gather::{self, Group, Near, Pieces, Wanted};
use crate::index::run::Lookup;
use crate::repository::{Repository, View};

/// Longest read, bytes, before read-around.
pub const MAX_READ_BYTES: usize = 1 << 20;
/// Most read-around that is granted, bytes.
pub const MAX_AROUND_BYTES: usize = 1 << 20;
/// Longest answer that is read without leaving the caller's thread, bytes.
pub const MAX_CACHED_BYTES: usize = 2 << 20;
/// Records so near to one another are read in one go, bytes between them.
const NEAR_BYTES: u64 = 16 << 10;

const NEAR: Near = Near {
    gap_bytes: NEAR_BYTES,
    read_bytes: MAX_READ_BYTES as u64,
    around_bytes: MAX_AROUND_BYTES,
};

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

/// What is where, and what is not here.
struct Plan {
    found: gather::Plan,
    missing: Vec<Handle>,
}

/// [`Repository::read_blocking`].
pub(crate) fn blocking(
    repository: &Repository,
    view: &View,
    want: &[Handle],
    around: usize,
    sink: &mut Sink<'_>,
) -> Result<Vec<Handle>, StoreError> {
    let Some(plan) = Plan::make(repository, view, want, Patience::Wait)? else {
        return Err(damaged(
            repository.disk(),
            "",
            "a read that may wait did not",
        ));
    };
    let Plan { found, missing } = plan;
    let mut behind = Vec::new();
    for group in found.groups(NEAR, around) {
        if let Some(bytes) = read(&group, repository, Patience::Wait)? {
            let mut pieces = split(&group, repository.disk(), &bytes, &found)?;
            behind.append(&mut pieces.behind);
            for region in pieces.wanted {
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
    if plan.found.wanted_bytes() > MAX_CACHED_BYTES {
        return Ok(None);
    }
    let mut regions = Vec::new();
    let mut behind = Vec::new();
    for group in plan.found.groups(NEAR, around) {
        let Some(bytes) = read(&group, repository, Patience::Never)? else {
            return Ok(None);
        };
        let mut pieces = split(&group, repository.disk(), &bytes, &plan.found)?;
        regions.append(&mut pieces.wanted);
        behind.append(&mut pieces.behind);
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
        Ok(Some(Plan {
            found: gather::Plan::new(wanted),
            missing,
        }))
    }
}

/// Reads the group and what lies behind it; `None` when that would mean to wait.
fn read(
    group: &Group<'_>,
    repository: &Repository,
    patience: Patience,
) -> Result<Option<Bytes>, StoreError> {
    let Some(first) = group.wanted.first() else {
        return Ok(Some(Bytes::new()));
    };
    let needed = group.needed_bytes();
    let disk = repository.disk();
    let fail = |e| io_error(disk, &first.at.segment.segment(), e);
    let file = repository.segment(first.at.segment)?;
    let mut buf = BytesMut::zeroed(needed + group.around);
    let mut got = match patience {
        Patience::Wait => Some(file.read_at(&mut buf, group.start).map_err(fail)?),
        Patience::Never => file
            .read_at_if_cached(&mut buf, group.start)
            .map_err(fail)?,
    };
    if got.is_none() && group.around > 0 {
        // What was asked for may be at hand though what lies behind it is not.
        buf.truncate(needed);
        got = file
            .read_at_if_cached(&mut buf, group.start)
            .map_err(fail)?;
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

/// Cuts what was read; a record that is another than the index says is damage.
fn split(
    group: &Group<'_>,
    disk: &dyn Disk,
    bytes: &Bytes,
    plan: &gather::Plan,
) -> Result<Pieces, StoreError> {
    group.split(bytes, plan).map_err(|offset| {
        let segment = group.wanted.first().map(|w| w.at.segment.segment());
        damaged(
            disk,
            &segment.unwrap_or_default(),
            &format!("holds another record than the index says at {offset}"),
        )
    })
}
