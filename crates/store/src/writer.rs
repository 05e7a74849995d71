//! The one who writes a repository: appends records to new segments and commits them together with
//! new statements (docs/decisions/0008).
//!
//! Until the head is replaced, nothing that a reader looks at has changed. The order is: segments
//! synced and named, directory synced; index run synced and named, directory synced; log leaves
//! and tiles likewise; head written aside, synced, renamed, directory synced. A crash before the rename leaves
//! files that nothing names; the next writer removes them.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use trust::{Handle, Record};

use crate::collect::{Collected, CollectedNote, Marks, record_at};
use crate::disk::{Disk, Lock, damaged, io_error, replace_file};
use crate::head::{Head, MAX_RUNS, MAX_STATEMENT_BYTES, RunName};
use crate::index::Location;
use crate::index::build::{RunWriter, merge};
use crate::index::pending::Pending;
use crate::index::run::Run;
use crate::log::{self, Growth};
use crate::names::{self, FileId};
use crate::notes::Note;
use crate::repository::{Repository, View};
use crate::segment::{self, SegmentWriter, Written};
use crate::{StoreError, format};

/// Index runs that a commit leaves, at most: what a look-up of an absent block costs.
const TARGET_RUNS: usize = 12;
/// Index entries that a repository may grow by before anybody thinks of collecting.
const GROWN: u64 = 4096;
/// Full segments that are being synced while the next one is filled. Without that the one who appends
/// would wait for the device and the device for him, by turns.
const SYNCING_SEGMENTS: usize = 2;

/// The writer of a repository; there is one at a time, over all processes.
///
/// After an error nothing more can be written: begin anew. What was not committed is removed when the
/// writer is dropped, or by the next one.
pub struct Writer {
    repository: Repository,
    disk: Arc<dyn Disk>,
    view: Arc<View>,
    pending: Pending,
    segment: Option<(SegmentWriter, usize)>,
    syncing: VecDeque<Syncing>,
    unnamed: Vec<FileId>,
    growth: Growth,
    bytes: u64,
    segment_bytes: u64,
    broken: bool,
    _lock: Lock,
}

/// A full segment on its way to the device.
struct Syncing {
    id: FileId,
    thread: JoinHandle<std::io::Result<()>>,
}

/// What a commit wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Committed {
    /// Blocks that were not there before.
    pub blocks: u64,
    /// Bytes written to segments, footers included.
    pub segment_bytes: u64,
    /// Bytes written to the index, merging included.
    pub index_bytes: u64,
}

impl Writer {
    /// Takes the writer's lock, sees the newest head, and removes what a crash left behind.
    ///
    /// # Errors
    /// [`StoreError::Locked`] when another process or writer has the lock; [`StoreError::Format`]
    /// when the repository must not be written by this build; [`StoreError::Damaged`],
    /// [`StoreError::Io`].
    pub fn begin(repository: &Repository) -> Result<Writer, StoreError> {
        let disk = repository.disk_shared();
        let lock = lock_for_writing(&*disk)?;
        repository.refresh()?;
        let view = repository.view();
        let cleared = clear_leftovers(&*disk, &view)?;
        if cleared > 0 {
            tracing::info!(
                repository = disk.place(),
                files = cleared,
                "removed leftovers"
            );
        }
        Ok(Writer {
            repository: repository.clone(),
            disk,
            view,
            pending: Pending::default(),
            segment: None,
            syncing: VecDeque::new(),
            unnamed: Vec::new(),
            growth: Growth::default(),
            bytes: 0,
            segment_bytes: 0,
            broken: false,
            _lock: lock,
        })
    }

    /// The repository that is written.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// What the next commit adds to the log.
    pub(crate) fn growth(&mut self) -> &mut Growth {
        &mut self.growth
    }

    /// The statements of the newest version; empty before the first.
    pub fn statements(&self) -> &Bytes {
        &self.view.head.statements
    }

    /// Whether a block is there, committed or appended.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Io`].
    pub fn contains(&self, handle: &Handle) -> Result<bool, StoreError> {
        if self.pending.contains(handle) {
            return Ok(true);
        }
        self.repository.contains(handle)
    }

    /// Appends a record unless its block is there already; tells whether it did.
    ///
    /// # Errors
    /// [`StoreError::Io`] (a full disk, for one), [`StoreError::Damaged`]; the writer is of no more
    /// use then.
    pub fn append(&mut self, record: &Record) -> Result<bool, StoreError> {
        self.usable()?;
        if self.contains(&record.handle)? {
            return Ok(false);
        }
        self.guard(|w| w.append_new(record))?;
        Ok(true)
    }

    /// Appends a record though its block is there already, committed: for a block whose record is
    /// damaged. The new one is found from the next commit on. Tells whether it did.
    ///
    /// # Errors
    /// As [`Writer::append`].
    pub fn append_anew(&mut self, record: &Record) -> Result<bool, StoreError> {
        self.usable()?;
        if self.pending.contains(&record.handle) {
            return Ok(false);
        }
        self.guard(|w| w.append_new(record))?;
        Ok(true)
    }

    /// Makes everything since the last commit durable and visible together with `statements`. On
    /// return it survives any crash; before, the old version stands whole.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Damaged`]; the writer is of no more use then, and the old
    /// version stands (only where the very last step, syncing the directory, failed, the new one may).
    pub fn commit(&mut self, statements: &[u8]) -> Result<Committed, StoreError> {
        self.usable()?;
        self.guard(|w| w.commit_all(statements))
    }

    /// Commits the blocks alone, under the statements that stand: a long publication that is cut off
    /// then finds them again instead of writing them anew.
    ///
    /// # Errors
    /// As [`Writer::commit`].
    pub fn checkpoint(&mut self) -> Result<Committed, StoreError> {
        let statements = self.view.head.statements.clone();
        self.commit(&statements)
    }

    /// Bytes appended since the last commit, records only.
    pub fn pending_bytes(&self) -> u64 {
        self.bytes
    }

    fn usable(&self) -> Result<(), StoreError> {
        if self.broken {
            return Err(io_error(
                &*self.disk,
                "",
                std::io::Error::other("an earlier write failed; begin anew"),
            ));
        }
        Ok(())
    }

    fn guard<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let result = work(self);
        self.broken |= result.is_err();
        result
    }

    fn append_new(&mut self, record: &Record) -> Result<(), StoreError> {
        if matches!(&self.segment, Some((s, _)) if s.is_full_for(record.len())) {
            self.roll_segment()?;
        }
        let disk = self.disk.clone();
        let segment = match &mut self.segment {
            Some((segment, _)) => segment,
            none => {
                let segment = SegmentWriter::begin(&*disk)?;
                self.unnamed.push(segment.id());
                &mut none.insert((segment, self.pending.len())).0
            }
        };
        let at = segment.append(&*disk, record)?;
        if !self.pending.insert(record.handle, at) {
            return Err(damaged(&*disk, "", "one commit cannot hold so many blocks"));
        }
        self.bytes += record.len() as u64;
        Ok(())
    }

    /// Ends the segment that is being filled, if there is one; it is not yet synced.
    fn end_segment(&mut self) -> Result<Option<Written>, StoreError> {
        let Some((segment, from)) = self.segment.take() else {
            return Ok(None);
        };
        let written = segment.finish(&*self.disk, self.pending.since(from))?;
        self.segment_bytes += written.len_bytes;
        Ok(Some(written))
    }

    /// Ends a full segment and has it synced behind our back.
    fn roll_segment(&mut self) -> Result<(), StoreError> {
        if let Some(Written { id, file, .. }) = self.end_segment()? {
            self.syncing.push_back(Syncing {
                id,
                thread: std::thread::spawn(move || file.sync()),
            });
        }
        self.finish_syncing(SYNCING_SEGMENTS)
    }

    /// Waits until no more than so many segments are being synced.
    fn finish_syncing(&mut self, most: usize) -> Result<(), StoreError> {
        while self.syncing.len() > most {
            let Some(oldest) = self.syncing.pop_front() else {
                break;
            };
            let ended = oldest.thread.join();
            let synced = ended.unwrap_or_else(|_| Err(std::io::Error::other("sync broke off")));
            let name = oldest.id.segment_temporary();
            synced.map_err(|e| io_error(&*self.disk, &name, e))?;
        }
        Ok(())
    }

    fn commit_all(&mut self, statements: &[u8]) -> Result<Committed, StoreError> {
        if statements.len() > MAX_STATEMENT_BYTES {
            let why = "statements are 1 MiB at most";
            return Err(damaged(&*self.disk, names::HEAD_FILE, why));
        }
        let mut committed = Committed {
            blocks: self.pending.len() as u64,
            ..Committed::default()
        };
        committed.segment_bytes = self.name_segments()?;
        let (runs, retired) = self.write_index(&mut committed)?;
        self.growth.write(&*self.disk)?;
        let head = Head {
            runs,
            retired,
            statements: Bytes::copy_from_slice(statements),
        };
        self.replace_head(&head)?;
        Ok(committed)
    }

    /// The one step that makes a commit visible, and what may be cleared away after it.
    fn replace_head(&mut self, head: &Head) -> Result<(), StoreError> {
        replace_file(
            &*self.disk,
            names::HEAD_FILE,
            "head.tmp",
            "",
            &head.encode(),
        )?;
        // Committed. What the commit before this one replaced has had its readers' grace.
        self.unnamed.clear();
        self.bytes = 0;
        for id in &self.view.head.retired {
            if let Err(e) = self.disk.remove(&id.index()) {
                tracing::debug!(run = %id, error = %e, "a replaced index run stays");
            }
        }
        match self.repository.refresh() {
            Ok(_) => self.view = self.repository.view(),
            Err(error) => {
                // The commit stands; only this writer cannot go on from it.
                tracing::error!(%error, "cannot read back what was committed");
                self.broken = true;
            }
        }
        Ok(())
    }

    /// Makes all segments durable and gives them their names; gives the bytes written to them.
    fn name_segments(&mut self) -> Result<u64, StoreError> {
        if let Some(last) = self.end_segment()? {
            let name = last.id.segment_temporary();
            let synced = last.file.sync();
            synced.map_err(|e| io_error(&*self.disk, &name, e))?;
        }
        self.finish_syncing(0)?;
        for id in &self.unnamed {
            let from = id.segment_temporary();
            let rename = self.disk.rename(&from, &id.segment());
            rename.map_err(|e| io_error(&*self.disk, &from, e))?;
        }
        if !self.unnamed.is_empty() {
            self.sync_dir(names::SEGMENT_DIR)?;
        }
        Ok(std::mem::take(&mut self.segment_bytes))
    }

    /// Writes one run of what is new and of those runs that are not much larger, so that sizes grow
    /// geometrically: few runs to look in, and each entry is rewritten a logarithmic number of times.
    fn write_index(
        &mut self,
        committed: &mut Committed,
    ) -> Result<(Vec<RunName>, Vec<FileId>), StoreError> {
        let live = &self.view.runs;
        let fresh = self.pending.len() as u64;
        let merged = runs_to_merge(fresh, live);
        let (absorbed, kept) = live.split_at_checked(merged).unwrap_or((live, &[]));
        let mut runs: Vec<RunName> = kept.iter().map(|r| r.name()).collect();
        if fresh == 0 && absorbed.is_empty() {
            return Ok((runs, Vec::new()));
        }
        let mut segments = self.pending.segments().to_vec();
        segments.extend(absorbed.iter().flat_map(|r| r.segments()));
        let mut writer = RunWriter::begin(&*self.disk, &segments)?;
        let fresh = std::mem::take(&mut self.pending).into_sorted();
        merge(&*self.disk, fresh, absorbed, |_| true, &mut writer)?;
        if let Some(run) = writer.finish()? {
            committed.index_bytes = run.len_bytes;
            runs.insert(0, run);
        }
        self.sync_dir(names::INDEX_DIR)?;
        Ok((runs, absorbed.iter().map(|r| r.name().id).collect()))
    }

    /// Whether the index has grown so much since the last collection that much of it may be dead.
    pub fn has_grown(&self) -> bool {
        let after = CollectedNote::load(&*self.disk).entries;
        self.repository.index_entries() > after.saturating_add(after / 2).saturating_add(GROWN)
    }

    /// Begins to mark what lives.
    pub fn marks(&self) -> Marks {
        Marks::new(self.disk.clone(), self.view.clone())
    }

    /// Collects all that is not marked, in one commit under the statements that stand. The files that
    /// only readers of the index before need are removed by the first writer after `grace`.
    ///
    /// # Errors
    /// As [`Writer::commit`]; [`StoreError::Damaged`] when blocks were appended and not committed, or
    /// when somebody committed since the marks were begun.
    pub fn collect(&mut self, marks: &Marks, grace: Duration) -> Result<Collected, StoreError> {
        self.usable()?;
        if !self.pending.is_empty() || !marks.are_of(&self.view) {
            let why = "what was marked is not what is there now";
            return Err(damaged(&*self.disk, names::HEAD_FILE, why));
        }
        self.guard(|w| w.collect_all(marks, grace))
    }

    fn collect_all(&mut self, marks: &Marks, grace: Duration) -> Result<Collected, StoreError> {
        let mut plan = marks.plan()?;
        let mut note = CollectedNote::load(&*self.disk);
        if plan.drop.is_empty() && plan.rewrite.is_empty() {
            note.entries = plan.told.entries_before;
            self.put_note(Note::Collected, note.encode().as_bytes())?;
            return Ok(plan.told);
        }
        for id in std::mem::take(&mut plan.rewrite) {
            match self.rewrite(id, marks) {
                Ok(()) => plan.drop.push(id),
                Err(error @ StoreError::Damaged { .. }) => {
                    // What is damaged is not moved: there it may still be mended.
                    tracing::warn!(%error, "a segment stays as it is");
                    plan.keep.push(id);
                    plan.told.rewritten -= 1;
                }
                Err(error) => return Err(error),
            }
        }
        self.name_segments()?;
        let mut segments = self.pending.segments().to_vec();
        let written: HashSet<FileId> = segments.iter().copied().collect();
        let kept: HashSet<FileId> = plan.keep.iter().copied().collect();
        segments.extend(&plan.keep);
        let old = self.view.runs.clone();
        let mut writer = RunWriter::begin(&*self.disk, &segments)?;
        let fresh = std::mem::take(&mut self.pending).into_sorted();
        let lives = |at: &Location| {
            written.contains(&at.segment) || (kept.contains(&at.segment) && marks.lives(at))
        };
        merge(&*self.disk, fresh, &old, lives, &mut writer)?;
        let run = writer.finish()?;
        self.sync_dir(names::INDEX_DIR)?;
        note.entries = run.map_or(0, |run| run.entries);
        note.shelter(&plan.drop, grace);
        self.put_note(Note::Collected, note.encode().as_bytes())?;
        let head = Head {
            runs: run.into_iter().collect(),
            retired: old.iter().map(|run| run.name().id).collect(),
            statements: self.view.head.statements.clone(),
        };
        self.replace_head(&head)?;
        Ok(plan.told)
    }

    /// Appends the living records of a segment once more.
    fn rewrite(&mut self, id: FileId, marks: &Marks) -> Result<(), StoreError> {
        let disk = self.disk.clone();
        let contents = match segment::by_footer(&*disk, id)? {
            Some(contents) => contents,
            None => segment::by_records(&*disk, id)?,
        };
        for (handle, at) in contents {
            if marks.lives(&at) && !self.pending.contains(&handle) {
                let record = record_at(&*disk, &handle, &at)?;
                self.append_new(&record)?;
            }
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &str) -> Result<(), StoreError> {
        self.disk
            .sync_dir(dir)
            .map_err(|e| io_error(&*self.disk, dir, e))
    }
}

impl Drop for Writer {
    /// Removes what was not committed, so that a full disk has its space back at once. What cannot be
    /// removed waits for the next writer.
    fn drop(&mut self) {
        if self.unnamed.is_empty() && !self.broken {
            return;
        }
        self.segment = None;
        self.syncing.clear();
        let cleared = self
            .repository
            .refresh()
            .and_then(|_| clear_leftovers(&*self.disk, &self.repository.view()));
        if let Err(error) = cleared {
            tracing::warn!(%error, "leftovers stay until the next writer");
        }
    }
}

/// Takes the writer's lock of a repository that this build may write.
pub(crate) fn lock_for_writing(disk: &dyn Disk) -> Result<Lock, StoreError> {
    if !format::read(disk)?.write {
        return Err(StoreError::Format {
            path: disk.path(""),
            found: "features that only a newer one may write".to_owned(),
        });
    }
    disk.lock(names::LOCK_FILE)
        .map_err(|e| io_error(disk, names::LOCK_FILE, e))?
        .ok_or_else(|| StoreError::Locked {
            path: disk.path(""),
        })
}

/// How many of the newest runs a commit of `fresh` blocks absorbs.
fn runs_to_merge(fresh: u64, live: &[Arc<Run>]) -> usize {
    if fresh == 0 {
        return 0;
    }
    let mut total = fresh;
    let mut count = 0;
    for run in live {
        let too_many = live.len() - count + 1 > TARGET_RUNS.min(MAX_RUNS);
        if run.name().entries > total.saturating_mul(2) && !too_many {
            break;
        }
        total += run.name().entries;
        count += 1;
    }
    count
}

/// Removes temporary files, and segments and index runs that the head does not name. Only under the
/// writer's lock, and only with a view that was read whole.
pub(crate) fn clear_leftovers(disk: &dyn Disk, view: &View) -> Result<usize, StoreError> {
    let mut doomed: Vec<String> = Vec::new();
    let list = |dir: &str| match disk.list(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.map_err(|e| io_error(disk, dir, e)),
    };
    let temporary = |name: &String| name.ends_with(names::TEMPORARY);
    doomed.extend(list("")?.into_iter().filter(temporary));
    for epoch in list(names::LOG_DIR)? {
        doomed.extend(log::leftovers(&epoch, list)?);
    }
    let segments = view.segments();
    let sheltered = CollectedNote::load(disk).shelters();
    let kept = |id: FileId| segments.contains(&id) || sheltered.contains(&id);
    for name in list(names::SEGMENT_DIR)? {
        let id = FileId::parse(&name, names::SEGMENT_ENDING);
        if temporary(&name) || id.is_some_and(|id| !kept(id)) {
            doomed.push(format!("{}/{name}", names::SEGMENT_DIR));
        }
    }
    let named =
        |id: FileId| view.head.retired.contains(&id) || view.head.runs.iter().any(|r| r.id == id);
    for name in list(names::INDEX_DIR)? {
        let id = FileId::parse(&name, names::INDEX_ENDING);
        if temporary(&name) || id.is_some_and(|id| !named(id)) {
            doomed.push(format!("{}/{name}", names::INDEX_DIR));
        }
    }
    for name in &doomed {
        disk.remove(name).map_err(|e| io_error(disk, name, e))?;
    }
    Ok(doomed.len())
}
