//! Batched reads from a repository on a disk, by a plan of [`crate::read_plan`] (docs/decisions/0007).

use std::ops::ControlFlow;

use bytes::Bytes;
use trust::{Block, BlockKind, Handle, Hasher, Record, Reject};

use crate::StoreError;
use crate::disk::{Disk, Patience, damaged, io_error};
use crate::index::run::Lookup;
use crate::read_memory::{KEPT_BYTES, ReadMemory};
pub use crate::read_plan::Region;
use crate::read_plan::{self, Group, Near, Pieces, Wanted};
use crate::view::{OpenSegments, View};

/// Maximum length of one read without read-around, bytes.
pub const MAX_READ_BYTES: usize = KEPT_BYTES;
/// Maximum read-around, bytes.
pub const MAX_AROUND_BYTES: usize = 1 << 20;
/// Maximum length of an answer that is read on the caller's thread, bytes.
pub const MAX_CACHED_BYTES: usize = 2 << 20;
/// Records with at most this many bytes between them are read in one go.
const NEAR_BYTES: u64 = 16 << 10;

const NEAR: Near = Near {
    gap_bytes: NEAR_BYTES,
    read_bytes: MAX_READ_BYTES as u64,
    around_bytes: MAX_AROUND_BYTES,
};

/// Receives regions as they are read; may stop the read.
pub type RegionSink<'a> = dyn FnMut(Region) -> ControlFlow<()> + 'a;

/// A whole answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The records that were found, wanted ones first.
    pub regions: Vec<Region>,
    /// Handles that are missing.
    pub missing: Vec<Handle>,
}

impl Answer {
    /// Splits the answer into records. They share the memory of the reads: a cache that keeps one of
    /// many must copy it.
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

/// Verifies that `region` is one record and that the record is the block `handle`.
///
/// # Errors
/// [`Reject::BadFrame`] when the region does not hold exactly one record that can be unpacked,
/// [`Reject::WrongKind`] or [`Reject::WrongBlock`] when it holds another block.
pub fn verify_region<K: BlockKind>(
    region: &Bytes,
    handle: &Handle<K>,
    hasher: &Hasher,
) -> Result<Block<K>, Reject> {
    let mut rest = region.clone();
    let record = Record::take(&mut rest)?.filter(|_| rest.is_empty());
    let record = record.ok_or(Reject::BadFrame("not one whole record"))?;
    hasher.check(handle, record.frame.plaintext::<K>()?)
}

/// The records to read, and the handles that are missing.
struct Plan {
    found: read_plan::Plan,
    missing: Vec<Handle>,
}

/// The parts of a repository that a read needs.
pub(crate) struct Reading<'a> {
    pub disk: &'a dyn Disk,
    pub view: &'a View,
    pub segments: &'a OpenSegments,
}

impl Reading<'_> {
    /// [`crate::Repository::read_blocking`].
    pub fn waiting(
        &self,
        want: &[Handle],
        around: usize,
        sink: &mut RegionSink<'_>,
    ) -> Result<Vec<Handle>, StoreError> {
        let Some(plan) = self.plan(want, Patience::Wait)? else {
            return Err(damaged(self.disk, "", "a blocking read was skipped"));
        };
        let Plan { found, missing } = plan;
        let mut behind = Vec::new();
        for group in found.groups(NEAR, around) {
            if let Some(bytes) = self.read(&group, Patience::Wait)? {
                let mut pieces = split(&group, self.disk, &bytes, &found)?;
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

    /// [`crate::Repository::read_if_cached`].
    pub fn if_cached(&self, want: &[Handle], around: usize) -> Result<Option<Answer>, StoreError> {
        let Some(plan) = self.plan(want, Patience::Never)? else {
            return Ok(None);
        };
        if plan.found.wanted_bytes() > MAX_CACHED_BYTES {
            return Ok(None);
        }
        let mut regions = Vec::new();
        let mut behind = Vec::new();
        for group in plan.found.groups(NEAR, around) {
            let Some(bytes) = self.read(&group, Patience::Never)? else {
                return Ok(None);
            };
            let mut pieces = split(&group, self.disk, &bytes, &plan.found)?;
            regions.append(&mut pieces.wanted);
            behind.append(&mut pieces.behind);
        }
        regions.append(&mut behind);
        Ok(Some(Answer {
            regions,
            missing: plan.missing,
        }))
    }

    fn plan(&self, want: &[Handle], patience: Patience) -> Result<Option<Plan>, StoreError> {
        let mut wanted = Vec::with_capacity(want.len());
        let mut missing = Vec::new();
        for handle in want {
            match self.view.locate(self.disk, handle, patience)? {
                Lookup::WouldWait => return Ok(None),
                Lookup::Absent => missing.push(*handle),
                Lookup::At(at) => wanted.push(Wanted {
                    at,
                    handle: *handle,
                }),
            }
        }
        Ok(Some(Plan {
            found: read_plan::Plan::new(wanted),
            missing,
        }))
    }

    /// Reads the group and its read-around; `None` when that would wait and `patience` forbids it.
    fn read(&self, group: &Group<'_>, patience: Patience) -> Result<Option<Bytes>, StoreError> {
        let Some(first) = group.wanted.first() else {
            return Ok(Some(Bytes::new()));
        };
        let needed = group.needed_bytes();
        let disk = self.disk;
        let fail = |e| io_error(disk, &first.at.segment.segment(), e);
        let file = self.segments.get(disk, first.at.segment)?;
        let mut buf = ReadMemory::of(needed.saturating_add(group.around));
        let mut got = match patience {
            Patience::Wait => Some(file.read_at(&mut buf, group.start).map_err(fail)?),
            Patience::Never => file
                .read_at_if_cached(&mut buf, group.start)
                .map_err(fail)?,
        };
        if got.is_none() && group.around > 0 {
            // The wanted records may be in the page cache although the read-around is not.
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
            // Read-around reached the end of the file: do not keep a mostly empty buffer alive.
            return Ok(Some(Bytes::copy_from_slice(
                buf.get(..got).unwrap_or_default(),
            )));
        }
        buf.truncate(got);
        Ok(Some(buf.freeze()))
    }
}

/// Cuts what was read into regions. A record that is not the one in the index is damage.
fn split(
    group: &Group<'_>,
    disk: &dyn Disk,
    bytes: &Bytes,
    plan: &read_plan::Plan,
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
