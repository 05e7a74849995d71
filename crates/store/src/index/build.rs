//! Writes an index run from sorted entries in bounded memory, and merges runs.

use std::collections::HashMap;
use std::sync::Arc;

use trust::Handle;

use super::run::Run;
use super::{
    Entry, Location, MAX_ENTRIES, MAX_SEGMENTS, PAGE_BODY_BYTES, PAGE_BYTES, TRAILER_BYTES,
    Trailer, page_sum,
};
use crate::StoreError;
use crate::disk::{Disk, DiskFile, damaged, io_error};
use crate::head::RunName;
use crate::names::FileId;

const BUFFER_BYTES: usize = 1 << 20;

/// Writes one run under its temporary name.
pub struct RunWriter<'a> {
    disk: &'a dyn Disk,
    id: FileId,
    file: Arc<dyn DiskFile>,
    buffer: Vec<u8>,
    written: u64,
    page: Vec<u8>,
    first: Vec<u8>,
    ordinals: HashMap<FileId, u32>,
    segments: Vec<u8>,
    entries: u64,
}

impl<'a> RunWriter<'a> {
    /// Begins a run. `segments` come first in its segment table, used or not: a run must name every
    /// segment of the runs that it replaces, or the next writer would remove those files.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn begin(disk: &'a dyn Disk, segments: &[FileId]) -> Result<Self, StoreError> {
        let id = FileId::random(disk.place())?;
        let name = id.index_temporary();
        let file = disk.create(&name).map_err(|e| io_error(disk, &name, e))?;
        let mut writer = RunWriter {
            disk,
            id,
            file,
            buffer: Vec::with_capacity(BUFFER_BYTES + PAGE_BYTES),
            written: 0,
            page: Vec::with_capacity(PAGE_BYTES),
            first: Vec::new(),
            ordinals: HashMap::new(),
            segments: Vec::new(),
            entries: 0,
        };
        for segment in segments {
            writer.ordinal(*segment)?;
        }
        Ok(writer)
    }

    /// Appends an entry; handles ascend strictly.
    ///
    /// # Errors
    /// [`StoreError::Io`]; [`StoreError::Damaged`] when the run would exceed a limit of its format.
    pub fn push(&mut self, handle: Handle, at: Location) -> Result<(), StoreError> {
        if self.entries >= MAX_ENTRIES {
            return Err(self.too_large());
        }
        if self.page.is_empty() {
            self.first.extend_from_slice(handle.as_bytes());
        }
        let entry = Entry {
            handle,
            segment: self.ordinal(at.segment)?,
            offset: at.offset,
            len: at.len,
        };
        entry.put(&mut self.page);
        self.entries += 1;
        if self.page.len() == PAGE_BODY_BYTES {
            self.end_page()?;
        }
        Ok(())
    }

    /// Ends the run: writes the table after the pages, syncs the file and renames it to its final name. The
    /// caller must sync the directory. `None`, and no file, when nothing was pushed.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn finish(mut self) -> Result<Option<RunName>, StoreError> {
        let temporary = self.id.index_temporary();
        let fail = |e| io_error(self.disk, &temporary, e);
        if self.entries == 0 {
            self.disk.remove(&temporary).map_err(fail)?;
            return Ok(None);
        }
        if !self.page.is_empty() {
            self.end_page()?;
        }
        let mut trailer = Vec::with_capacity(TRAILER_BYTES);
        Trailer::put(self.ordinals.len() as u32, self.entries, &mut trailer);
        let mut sum = blake3::Hasher::new();
        for part in [&self.first, &self.segments, &trailer] {
            sum.update(part);
            self.buffer.extend_from_slice(part);
        }
        self.buffer.extend_from_slice(sum.finalize().as_bytes());
        self.flush()?;
        self.file.sync().map_err(fail)?;
        self.disk
            .rename(&temporary, &self.id.index())
            .map_err(fail)?;
        Ok(Some(RunName {
            id: self.id,
            entries: self.entries,
            len_bytes: self.written,
        }))
    }

    fn ordinal(&mut self, segment: FileId) -> Result<u32, StoreError> {
        if let Some(ordinal) = self.ordinals.get(&segment) {
            return Ok(*ordinal);
        }
        let ordinal = self.ordinals.len() as u32;
        if ordinal >= MAX_SEGMENTS {
            return Err(self.too_large());
        }
        self.ordinals.insert(segment, ordinal);
        self.segments.extend_from_slice(&segment.0);
        Ok(ordinal)
    }

    fn end_page(&mut self) -> Result<(), StoreError> {
        self.page.resize(PAGE_BODY_BYTES, 0);
        let sum = page_sum(&self.page);
        self.buffer.extend_from_slice(&self.page);
        self.buffer.extend_from_slice(&sum);
        self.page.clear();
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.file
            .write_at(&self.buffer, self.written)
            .map_err(|e| io_error(self.disk, &self.id.index_temporary(), e))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn too_large(&self) -> StoreError {
        damaged(
            self.disk,
            &self.id.index_temporary(),
            "an index run cannot hold this many blocks",
        )
    }
}

type Source<'a> = Box<dyn Iterator<Item = Result<(Handle, Location), StoreError>> + 'a>;

/// Merges sorted entries (`fresh`, the newest) with whole runs (newest first) into `writer`. Of
/// several entries for one handle only the newest counts; it is written if `keep` accepts it.
///
/// # Errors
/// Those of reading and writing runs.
pub fn merge<'a>(
    disk: &'a dyn Disk,
    fresh: impl Iterator<Item = (Handle, Location)> + 'a,
    runs: &'a [Arc<Run>],
    keep: impl Fn(&Handle, &Location) -> bool,
    writer: &mut RunWriter<'_>,
) -> Result<(), StoreError> {
    let mut sources: Vec<Source<'a>> = vec![Box::new(fresh.map(Ok))];
    for run in runs {
        sources.push(Box::new(run.entries(disk)));
    }
    let mut heads = Vec::with_capacity(sources.len());
    for source in &mut sources {
        heads.push(source.next().transpose()?);
    }
    // A linear scan for the least suffices: there are about a dozen sources.
    while let Some(least) = heads.iter().flatten().map(|(handle, _)| *handle).min() {
        let mut written = false;
        for (head, source) in heads.iter_mut().zip(&mut sources) {
            if let Some((handle, at)) = *head
                && handle == least
            {
                if !written && keep(&handle, &at) {
                    writer.push(handle, at)?;
                }
                written = true;
                *head = source.next().transpose()?;
            }
        }
    }
    Ok(())
}
