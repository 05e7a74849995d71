//! Mends what a repository stores for its blocks. Whole blocks of damaged segments are copied into new ones, blocks that are
//! damaged are taken from elsewhere, and the index is made from the segments.
//!
//! A damaged head loses its statements. Repositories of shared volumes have none, so all of their head follows from the segments.
//!
//! New files come first, durably. Then the head is replaced, and after that the damaged segments get names that end with
//! `.damaged`. A crash leaves the old state or the new one, and perhaps damaged segments that no head names: the next
//! writer removes them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use trust::{Handle, Hasher, Record};

use crate::StoreError;
use crate::disk::{Disk, damaged, io_error, read_whole, replace_file};
use crate::head::{Head, MAX_HEAD_BYTES};
use crate::index::build::{RunWriter, merge};
use crate::index::pending::Pending;
use crate::names::{self, FileId};
use crate::repository::Repository;
use crate::segment::{self, SegmentWriter};
use crate::survey::{Read, Survey, Told, read_segment, segments};
use crate::writer::lock_for_writing;

/// Ending of damaged files that are kept.
pub const DAMAGED: &str = ".damaged";
/// Lost blocks that are named. More are counted.
const MAX_NAMED: usize = 256;

/// A name under which a damaged file is kept: `NAME.damaged`, or `NAME.2.damaged` and so on, if there is one already.
///
/// # Errors
/// [`StoreError::Io`].
pub fn kept_name(disk: &dyn Disk, name: &str) -> Result<String, StoreError> {
    let mut kept = format!("{name}{DAMAGED}");
    let mut number = 1_u64;
    loop {
        match disk.open(&kept) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(kept),
            other => other.map_err(|e| io_error(disk, &kept, e))?,
        };
        number += 1;
        kept = format!("{name}.{number}{DAMAGED}");
    }
}

/// What was mended.
#[derive(Debug, Clone, Default)]
pub struct Mended {
    /// Whether the index was made anew.
    pub index: bool,
    /// Whole blocks that were copied out of damaged segments.
    pub copied: u64,
    /// Blocks that were taken from elsewhere.
    pub taken: u64,
    /// Blocks that are nowhere: the first ones.
    pub lost: Vec<Handle>,
    /// How many there are.
    pub lost_count: u64,
    /// Damaged files that are kept.
    pub kept: Vec<PathBuf>,
}

/// Gives a block from elsewhere, if it is there.
pub type Elsewhere<'a> = dyn FnMut(&Handle) -> Option<Record> + 'a;

impl Repository {
    /// Mends the repository on this disk; see the head of this file. `wanted`: blocks that it should have too. Each block that
    /// `elsewhere` gives is verified. Without anything to mend, nothing changes.
    ///
    /// # Errors
    /// [`StoreError::Locked`] while there is a writer, [`StoreError::Format`], [`StoreError::Io`].
    pub fn mend_on(
        disk: &dyn Disk,
        hasher: &Hasher,
        reads_blocks: bool,
        wanted: &[Handle],
        elsewhere: &mut Elsewhere<'_>,
        told: &mut dyn FnMut(Told),
    ) -> Result<Mended, StoreError> {
        let _lock = lock_for_writing(disk)?;
        let survey = Survey::of(disk, reads_blocks.then_some(hasher), told)?;
        let mut mending = Mending {
            disk,
            hasher,
            known: Pending::default(),
            new: None,
            written: Vec::new(),
            mended: Mended::default(),
        };
        if survey.index_is_wrong || !survey.broken.is_empty() || !wanted.is_empty() {
            mending.all(&survey, wanted, elsewhere)?;
        }
        Ok(mending.mended)
    }

    /// For a start: makes the head and the index anew, if one of them is missing or damaged and the list of each segment is
    /// whole. It reads no blocks: who asks for one verifies it. True: it was necessary. False also where it is not possible;
    /// then an opening fails.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] for a head that is missing where the segments are damaged too: the next writer would remove
    /// them. Otherwise as [`Repository::mend_on`].
    pub fn restore_index_on(disk: &Arc<dyn Disk>, hasher: &Hasher) -> Result<bool, StoreError> {
        let ids = segments(&**disk)?;
        let opened = Repository::open_on(Arc::clone(disk));
        let is_known = opened.as_ref().is_ok_and(|it| it.index_entries() > 0);
        if ids.is_empty() || is_known {
            return Ok(false);
        }
        let is_listed = |id: &FileId| segment::footer_of(&**disk, *id).is_some();
        match (ids.iter().all(is_listed), opened) {
            (true, _) => {}
            (false, Err(_)) => return Ok(false),
            (false, Ok(_)) => {
                let why = "it is missing, and there are segments";
                return Err(damaged(&**disk, names::HEAD_FILE, why));
            }
        }
        let mut nothing = |_: &Handle| None;
        let mended = Repository::mend_on(&**disk, hasher, false, &[], &mut nothing, &mut |_| {})?;
        Ok(mended.index)
    }
}

struct Mending<'a> {
    disk: &'a dyn Disk,
    hasher: &'a Hasher,
    /// The blocks that the new index has.
    known: Pending,
    /// The segment that is being written, and how many blocks were known when it began.
    new: Option<(SegmentWriter, usize)>,
    /// Segments that were written.
    written: Vec<FileId>,
    mended: Mended,
}

impl Mending<'_> {
    fn all(
        &mut self,
        survey: &Survey,
        wanted: &[Handle],
        elsewhere: &mut Elsewhere<'_>,
    ) -> Result<(), StoreError> {
        for id in &survey.whole {
            for (handle, at) in segment::footer_of(self.disk, *id).unwrap_or_default() {
                if !self.known.contains(&handle) {
                    self.known.insert(handle, at);
                }
            }
        }
        let there = segments(self.disk)?;
        for (id, contents) in survey.broken.iter().filter(|(id, _)| there.contains(id)) {
            let mut failed = Ok(());
            let hasher = Some(self.hasher);
            read_segment(self.disk, *id, hasher, contents.clone(), &mut |read| {
                if let (Read::Right(record), true) = (read, failed.is_ok()) {
                    failed = self.add(&record).map(|is_new| {
                        self.mended.copied += u64::from(is_new);
                    });
                }
            })?;
            failed?;
        }
        let broken = survey.broken.iter().flat_map(|(_, contents)| contents);
        let mut lost: BTreeSet<[u8; 32]> = BTreeSet::new();
        for handle in broken.map(|(handle, _)| handle).chain(wanted) {
            if self.known.contains(handle) || lost.contains(handle.as_bytes()) {
                continue;
            }
            match elsewhere(handle).filter(|record| self.is_block(handle, record)) {
                Some(record) => {
                    self.add(&record)?;
                    self.mended.taken += 1;
                }
                None => {
                    lost.insert(*handle.as_bytes());
                }
            }
        }
        self.mended.lost_count = lost.len() as u64;
        let named = lost.into_iter().take(MAX_NAMED);
        self.mended.lost = named.map(Handle::from_bytes).collect();
        self.end_segment()?;
        self.name_all(survey)?;
        for (id, _) in survey.broken.iter().filter(|(id, _)| there.contains(id)) {
            let name = id.segment();
            let kept = kept_name(self.disk, &name)?;
            let renamed = self.disk.rename(&name, &kept);
            renamed.map_err(|e| io_error(self.disk, &name, e))?;
            self.mended.kept.push(self.disk.path(&kept));
        }
        self.sync(names::SEGMENT_DIR)
    }

    fn is_block(&self, handle: &Handle, record: &Record) -> bool {
        record.handle == *handle
            && record
                .frame
                .unpack()
                .is_ok_and(|plain| self.hasher.name(record.frame.kind(), &plain) == *handle)
    }

    /// Writes a block that is not known. False: it is.
    fn add(&mut self, record: &Record) -> Result<bool, StoreError> {
        if self.known.contains(&record.handle) {
            return Ok(false);
        }
        if self
            .new
            .as_ref()
            .is_some_and(|(new, _)| new.is_full_for(record.len()))
        {
            self.end_segment()?;
        }
        let (new, _) = match &mut self.new {
            Some(new) => new,
            none => none.insert((SegmentWriter::begin(self.disk)?, self.known.len())),
        };
        let at = new.append(self.disk, record)?;
        self.known.insert(record.handle, at);
        Ok(true)
    }

    /// Ends the segment that is being written, durably.
    fn end_segment(&mut self) -> Result<(), StoreError> {
        let Some((new, from)) = self.new.take() else {
            return Ok(());
        };
        let written = new.finish(self.disk, self.known.since(from))?;
        let (temporary, name) = (written.id.segment_temporary(), written.id.segment());
        let synced = written.file.sync();
        synced.map_err(|e| io_error(self.disk, &temporary, e))?;
        let renamed = self.disk.rename(&temporary, &name);
        renamed.map_err(|e| io_error(self.disk, &name, e))?;
        self.written.push(written.id);
        self.sync(names::SEGMENT_DIR)
    }

    /// Writes the index and the head.
    fn name_all(&mut self, survey: &Survey) -> Result<(), StoreError> {
        let disk = self.disk;
        let ids: Vec<FileId> = survey.whole.iter().chain(&self.written).copied().collect();
        let mut writer = RunWriter::begin(disk, &ids)?;
        let known = std::mem::take(&mut self.known);
        merge(disk, known.into_sorted(), &[], |_, _| true, &mut writer)?;
        let run = writer.finish()?;
        self.sync(names::INDEX_DIR)?;
        if survey.head.is_none() {
            // One that is too long to be a head is not kept.
            if let Ok(bytes) = read_whole(disk, names::HEAD_FILE, MAX_HEAD_BYTES) {
                let kept = kept_name(disk, names::HEAD_FILE)?;
                replace_file(disk, &kept, "damaged.tmp", "", &bytes)?;
                self.mended.kept.push(disk.path(&kept));
            }
        }
        let old = survey.head.iter().flat_map(|head| &head.runs);
        let head = Head {
            runs: run.into_iter().collect(),
            retired: old.map(|run| run.id).collect(),
            statements: survey
                .head
                .as_ref()
                .map_or_else(Default::default, |head| head.statements.clone()),
        };
        replace_file(disk, names::HEAD_FILE, "head.tmp", "", &head.encode())?;
        self.mended.index = true;
        Ok(())
    }

    fn sync(&self, dir: &str) -> Result<(), StoreError> {
        let synced = self.disk.sync_dir(dir);
        synced.map_err(|e| io_error(self.disk, dir, e))
    }
}
