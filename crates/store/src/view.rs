//! What the reads of a repository share: one state of the head with its open index runs ([`View`]),
//! and a cache of open segments ([`OpenSegments`]).

use std::collections::HashSet;
use std::sync::Arc;

use quick_cache::sync::Cache;
use trust::Handle;

use crate::disk::{Disk, DiskFile, Patience, damaged, io_error, read_whole};
use crate::error::StoreError;
use crate::head::{Head, MAX_HEAD_BYTES};
use crate::index::MAX_SEGMENTS;
use crate::index::run::{Lookup, Run};
use crate::names::{self, FileId};

/// Maximum number of segments that are kept open.
const OPEN_SEGMENTS: usize = 256;

/// One state of the head and its index runs. A read that has begun keeps its view when a new one
/// replaces it.
pub(crate) struct View {
    pub head: Head,
    pub runs: Vec<Arc<Run>>,
}

impl View {
    /// Reads the head and opens its runs, sharing those that `old` has open.
    pub fn load(disk: &dyn Disk, old: Option<&View>) -> Result<View, StoreError> {
        const ATTEMPTS: usize = 3;
        let mut attempt = 1;
        loop {
            let head = read_head(disk)?;
            let open = |name: &crate::head::RunName| {
                let open = old.and_then(|v| v.runs.iter().find(|r| r.name() == *name));
                match open {
                    Some(run) => Ok(run.clone()),
                    None => Run::open(disk, *name).map(Arc::new),
                }
            };
            let runs: Result<Vec<_>, _> = head.runs.iter().map(open).collect();
            match runs {
                Ok(runs) => {
                    let named: usize = runs.iter().map(|r| r.segments().len()).sum();
                    if named > MAX_SEGMENTS as usize {
                        return Err(damaged(disk, names::HEAD_FILE, "names too many segments"));
                    }
                    return Ok(View { head, runs });
                }
                // Two commits passed between reading the head and opening a run: read the head again.
                Err(StoreError::Io { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound && attempt < ATTEMPTS =>
                {
                    attempt += 1;
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Looks a handle up in the runs, newest first.
    pub fn locate(
        &self,
        disk: &dyn Disk,
        handle: &Handle,
        patience: Patience,
    ) -> Result<Lookup, StoreError> {
        for run in &self.runs {
            match run.lookup(disk, handle, patience)? {
                Lookup::Absent => {}
                found => return Ok(found),
            }
        }
        Ok(Lookup::Absent)
    }

    /// Every segment that an index run names.
    pub fn segments(&self) -> HashSet<FileId> {
        self.runs
            .iter()
            .flat_map(|r| r.segments())
            .copied()
            .collect()
    }
}

pub(crate) fn read_head(disk: &dyn Disk) -> Result<Head, StoreError> {
    let bytes = match read_whole(disk, names::HEAD_FILE, MAX_HEAD_BYTES) {
        Ok(bytes) => bytes,
        Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Head::default());
        }
        Err(e) => return Err(e),
    };
    Head::decode(&bytes).map_err(|why| match why {
        trust::Reject::Unsupported { why, .. } => StoreError::Format {
            path: disk.path(names::HEAD_FILE),
            found: why,
        },
        why => damaged(disk, names::HEAD_FILE, &why.to_string()),
    })
}

/// Segments that were read from lately, kept open.
pub(crate) struct OpenSegments(Cache<FileId, Arc<dyn DiskFile>>);

impl OpenSegments {
    pub fn new() -> OpenSegments {
        OpenSegments(Cache::new(OPEN_SEGMENTS))
    }

    /// Closes the segments that are not among these, once their reads have ended. A file that is removed has its space
    /// until then.
    pub fn close_others(&self, but: &HashSet<FileId>) {
        self.0.retain(|id, _| but.contains(id));
    }

    /// Opens a segment, or takes the open one. An open segment stays readable when its file is
    /// removed.
    pub fn get(&self, disk: &dyn Disk, id: FileId) -> Result<Arc<dyn DiskFile>, StoreError> {
        self.0.get_or_insert_with(&id, || {
            let name = id.segment();
            disk.open(&name).map_err(|e| {
                if e.kind() == std::io::ErrorKind::NotFound {
                    damaged(disk, &name, "the index names it, but it does not exist")
                } else {
                    io_error(disk, &name, e)
                }
            })
        })
    }
}
