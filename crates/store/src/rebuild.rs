//! Rebuilds the index from the segments (docs/decisions/0007), when a run is lost or damaged. The head
//! must be whole, because the statements are nowhere else.

use std::path::PathBuf;

use crate::disk::{Disk, io_error, replace_file};
use crate::head::Head;
use crate::index::build::{RunWriter, merge};
use crate::index::pending::Pending;
use crate::names::{self, FileId};
use crate::repository::Repository;
use crate::view::read_head;
use crate::writer::lock_for_writing;
use crate::{StoreError, segment};

/// Result of rebuilding an index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rebuilt {
    /// Segments listed.
    pub segments: u64,
    /// Blocks in the new index.
    pub blocks: u64,
    /// Segments with a damaged footer, of which the records were read one by one. What follows the
    /// first unreadable record is not in the index.
    pub scanned: Vec<PathBuf>,
    /// Segments that could not be read.
    pub unreadable: Vec<PathBuf>,
}

impl Repository {
    /// Rebuilds the index of the repository on this disk, whether or not it can be opened. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Locked`] while there is a writer; [`StoreError::Damaged`] when the head is
    /// damaged (copy it from a mirror first); [`StoreError::Io`].
    pub fn rebuild_index_on(disk: &dyn Disk) -> Result<Rebuilt, StoreError> {
        let _lock = lock_for_writing(disk)?;
        let old = read_head(disk)?;
        let (ids, blocks, mut rebuilt) = list_segments(disk)?;
        // The run names all segments, read or not, so that the next writer does not remove them.
        let mut writer = RunWriter::begin(disk, &ids)?;
        merge(disk, blocks.into_sorted(), &[], |_| true, &mut writer)?;
        let run = writer.finish()?;
        disk.sync_dir(names::INDEX_DIR)
            .map_err(|e| io_error(disk, names::INDEX_DIR, e))?;
        rebuilt.blocks = run.map_or(0, |r| r.entries);
        let head = Head {
            runs: run.into_iter().collect(),
            retired: old.runs.iter().map(|r| r.id).collect(),
            statements: old.statements,
        };
        replace_file(disk, names::HEAD_FILE, "head.tmp", "", &head.encode())?;
        Ok(rebuilt)
    }

    /// [`Repository::rebuild_index_on`] for this repository, which then uses the new index. Blocks.
    ///
    /// # Errors
    /// The same.
    pub fn rebuild_index(&self) -> Result<Rebuilt, StoreError> {
        let rebuilt = Repository::rebuild_index_on(self.disk())?;
        self.refresh()?;
        Ok(rebuilt)
    }
}

fn list_segments(disk: &dyn Disk) -> Result<(Vec<FileId>, Pending, Rebuilt), StoreError> {
    let mut ids = Vec::new();
    let mut blocks = Pending::default();
    let mut rebuilt = Rebuilt::default();
    let listed = disk
        .list(names::SEGMENT_DIR)
        .map_err(|e| io_error(disk, names::SEGMENT_DIR, e))?;
    let mut damaged: Vec<FileId> = Vec::new();
    for name in listed {
        let Some(id) = FileId::parse(&name, names::SEGMENT_ENDING) else {
            continue;
        };
        rebuilt.segments += 1;
        ids.push(id);
        match segment::by_footer(disk, id) {
            Ok(Some(contents)) => add(contents, &mut blocks),
            Ok(None) => damaged.push(id),
            Err(error) => {
                tracing::error!(%error, "segment is left out of the index");
                rebuilt.unreadable.push(disk.path(&id.segment()));
            }
        }
    }
    // Last, so that entries of whole footers win over those of damaged segments.
    for id in damaged {
        add(segment::by_records(disk, id)?, &mut blocks);
        rebuilt.scanned.push(disk.path(&id.segment()));
    }
    Ok((ids, blocks, rebuilt))
}

fn add(contents: segment::Contents, blocks: &mut Pending) {
    for (handle, at) in contents {
        if !blocks.contains(&handle) {
            blocks.insert(handle, at);
        }
    }
}
