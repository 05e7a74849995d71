//! Writing a repository: [`Writer`] appends records to new segments and commits them together with new
//! statements (docs/decisions/0008).
//!
//! Until the head is replaced, readers see no change. [`Writer::prepare`] does the first two steps of a commit
//! ahead of it, because they take as long as the disk needs for the blocks. The order of a commit is:
//!
//! 1. Sync and rename the segments; sync their directory.
//! 2. Sync and rename the index run; sync its directory.
//! 3. The same for log leaves and tiles.
//! 4. Write the head under a temporary name, sync it, rename it; sync the directory.
//!
//! A crash before the last rename leaves files that no head names; the next writer removes them.

mod collecting;
mod leftovers;
mod sweeping;

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use trust::history::LogPoint;
use trust::{Handle, Record};

use crate::StoreError;
use crate::collect::CollectedNote;
use crate::disk::{Disk, Lock, damaged, io_error, replace_file};
use crate::head::{Head, MAX_RUNS, MAX_STATEMENT_BYTES, RunName};
use crate::history_log::LogAppend;
use crate::index::build::{RunWriter, merge};
use crate::index::pending::Pending;
use crate::index::run::Run;
use crate::names::{self, FileId};
use crate::notes::{self, Note};
use crate::policies;
use crate::repository::Repository;
use crate::segment::{SegmentWriter, Written};
use crate::view::View;
use leftovers::clear_leftovers;
pub(crate) use leftovers::lock_for_writing;
pub use sweeping::{Ages, MostSwept, Swept};

/// Maximum number of index runs after a commit. A look-up of an absent block searches all of them.
const TARGET_RUNS: usize = 12;
/// Number of full segments that are synced in the background while the next one is filled, so that
/// the device and the appending thread do not wait for each other.
const SYNCING_SEGMENTS: usize = 2;

/// The writer of a repository. There is at most one at a time, over all processes. Its functions
/// block.
///
/// After an error the writer is broken and every further call fails; begin a new one. Files that were
/// not committed are removed when the writer is dropped, or by the next writer.
pub struct Writer {
    repository: Repository,
    disk: Arc<dyn Disk>,
    view: Arc<View>,
    pending: Pending,
    segment: Option<(SegmentWriter, usize)>,
    syncing: VecDeque<Syncing>,
    unnamed: Vec<FileId>,
    log: LogAppend,
    /// Whether policies were written since the last commit.
    has_policies: bool,
    bytes: u64,
    segment_bytes: u64,
    prepared: Option<Prepared>,
    broken: bool,
    _lock: Lock,
}

/// Blocks that are durable under their final names, and no head names them yet.
struct Prepared {
    runs: Vec<RunName>,
    retired: Vec<FileId>,
    committed: Committed,
}

/// A full segment that is being synced.
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
    /// Takes the writer's lock, reads the newest head, and removes what a crash left.
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
        // Who has a removed file open keeps its space. Reads by the old index end by themselves.
        repository.close_segments(&CollectedNote::load(&*disk)?.protected_now());
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
            log: LogAppend::default(),
            has_policies: false,
            bytes: 0,
            segment_bytes: 0,
            prepared: None,
            broken: false,
            _lock: lock,
        })
    }

    /// The repository that is written.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// The statements of the newest version; empty before the first.
    pub fn statements(&self) -> &Bytes {
        &self.view.head.statements
    }

    /// Whether the block is committed or appended.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Io`].
    pub fn contains(&self, handle: &Handle) -> Result<bool, StoreError> {
        if self.pending.contains(handle) {
            return Ok(true);
        }
        self.repository.contains(handle)
    }

    /// Appends a record unless its block is there already; returns whether it did.
    ///
    /// # Errors
    /// [`StoreError::Io`] (for example a full disk), [`StoreError::Damaged`]; the writer is broken
    /// then.
    pub fn append(&mut self, record: &Record) -> Result<bool, StoreError> {
        self.usable()?;
        if self.contains(&record.handle)? {
            return Ok(false);
        }
        self.guard(|w| w.append_new(record))?;
        Ok(true)
    }

    /// Appends a record although its block is already committed: replaces a damaged record. Readers
    /// find the new record after the next commit. Returns whether it did.
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

    /// Makes all blocks since the last commit durable. The commit that follows writes log leaves and the head
    /// only, so it is short. No block can be appended in between.
    ///
    /// # Errors
    /// As [`Writer::commit`].
    pub fn prepare(&mut self) -> Result<(), StoreError> {
        self.usable()?;
        if self.prepared.is_none() {
            self.prepared = Some(self.guard(Writer::prepare_blocks)?);
        }
        Ok(())
    }

    /// Makes everything since the last commit durable, and visible together with `statements`. After
    /// this returns, the new version survives any crash; until then, the old version stays whole.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Damaged`]; then the writer is broken, and the old version stays. (If
    /// only the last step failed, syncing the directory, it may be the new version.)
    pub fn commit(&mut self, statements: &[u8]) -> Result<Committed, StoreError> {
        self.usable()?;
        self.guard(|w| w.commit_all(statements))
    }

    /// Commits the blocks without changing the statements. When a long publication is interrupted, the next
    /// one finds them and need not write them again.
    ///
    /// # Errors
    /// As [`Writer::commit`].
    pub fn checkpoint(&mut self) -> Result<Committed, StoreError> {
        let statements = self.view.head.statements.clone();
        self.commit(&statements)
    }

    /// Length of the records that were appended since the last commit, bytes.
    pub fn pending_bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether no earlier call has broken it.
    pub fn is_usable(&self) -> bool {
        !self.broken
    }

    fn usable(&self) -> Result<(), StoreError> {
        if self.broken {
            return Err(io_error(
                &*self.disk,
                "",
                std::io::Error::other("an earlier write failed; open a new writer"),
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
        if self.prepared.is_some() {
            let why = "a block was appended to a commit that was prepared";
            return Err(damaged(&*self.disk, "", why));
        }
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
            return Err(damaged(
                &*disk,
                "",
                "one commit cannot hold this many blocks",
            ));
        }
        self.bytes += record.len() as u64;
        Ok(())
    }

    /// Ends the segment that is being filled, if there is one, without syncing it.
    fn end_segment(&mut self) -> Result<Option<Written>, StoreError> {
        let Some((segment, from)) = self.segment.take() else {
            return Ok(None);
        };
        let written = segment.finish(&*self.disk, self.pending.since(from))?;
        self.segment_bytes += written.len_bytes;
        Ok(Some(written))
    }

    /// Ends a full segment and syncs it in the background.
    fn roll_segment(&mut self) -> Result<(), StoreError> {
        if let Some(Written { id, file, .. }) = self.end_segment()? {
            self.syncing.push_back(Syncing {
                id,
                thread: std::thread::spawn(move || file.sync()),
            });
        }
        self.finish_syncing(SYNCING_SEGMENTS)
    }

    /// Waits until at most `most` segments are being synced.
    fn finish_syncing(&mut self, most: usize) -> Result<(), StoreError> {
        while self.syncing.len() > most {
            let Some(oldest) = self.syncing.pop_front() else {
                break;
            };
            let ended = oldest.thread.join();
            let synced =
                ended.unwrap_or_else(|_| Err(std::io::Error::other("the syncing thread panicked")));
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
        let Prepared {
            runs,
            retired,
            committed,
        } = match self.prepared.take() {
            Some(prepared) => prepared,
            None => self.prepare_blocks()?,
        };
        self.log.write(&*self.disk)?;
        if std::mem::take(&mut self.has_policies) {
            self.sync_dir(names::POLICY_DIR)?;
        }
        let head = Head {
            runs,
            retired,
            statements: Bytes::copy_from_slice(statements),
        };
        self.replace_head(&head)?;
        Ok(committed)
    }

    fn prepare_blocks(&mut self) -> Result<Prepared, StoreError> {
        let mut committed = Committed {
            blocks: self.pending.len() as u64,
            ..Committed::default()
        };
        committed.segment_bytes = self.name_segments()?;
        let (runs, retired) = self.write_index(&mut committed)?;
        Ok(Prepared {
            runs,
            retired,
            committed,
        })
    }

    /// Makes the commit visible, then removes the index runs that the commit before it replaced.
    fn replace_head(&mut self, head: &Head) -> Result<(), StoreError> {
        replace_file(
            &*self.disk,
            names::HEAD_FILE,
            "head.tmp",
            "",
            &head.encode(),
        )?;
        // Committed. Readers have had the time between two commits to leave the retired runs.
        self.unnamed.clear();
        self.bytes = 0;
        for id in &self.view.head.retired {
            if let Err(e) = self.disk.remove(&id.index()) {
                tracing::debug!(run = %id, error = %e, "cannot remove a replaced index run");
            }
        }
        match self.repository.refresh() {
            Ok(_) => self.view = self.repository.view(),
            Err(error) => {
                // The commit is done, but this writer cannot continue.
                tracing::error!(%error, "cannot read the head after a commit");
                self.broken = true;
            }
        }
        Ok(())
    }

    /// Makes all segments durable under their final names; returns the number of bytes written.
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

    /// Writes one run of the new entries and of the runs that are not much larger, so that the
    /// sizes of runs grow geometrically: there are few runs, and an entry is rewritten a
    /// logarithmic number of times.
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
        merge(&*self.disk, fresh, absorbed, |_, _| true, &mut writer)?;
        if let Some(run) = writer.finish()? {
            committed.index_bytes = run.len_bytes;
            runs.insert(0, run);
        }
        self.sync_dir(names::INDEX_DIR)?;
        Ok((runs, absorbed.iter().map(|r| r.name().id).collect()))
    }

    /// Adds a leaf of the history log, to be written with the next commit.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when it is longer than [`crate::repository::MAX_LEAF_BYTES`].
    pub fn put_log_leaf(&mut self, epoch: u64, index: u64, leaf: &[u8]) -> Result<(), StoreError> {
        self.log.put_leaf(&*self.disk, epoch, index, leaf)
    }

    /// Writes a policy, unless the same one is there. It is durable after the next commit.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when it is longer than a signed statement can be; [`StoreError::Io`].
    pub fn put_policy(&mut self, number: u64, policy: &[u8]) -> Result<(), StoreError> {
        self.has_policies |= policies::write(&*self.disk, number, policy)?;
        Ok(())
    }

    /// [`Writer::put_policy`] for all policies of a head.
    ///
    /// # Errors
    /// As [`Writer::put_policy`].
    pub fn put_policies(&mut self, head: &trust::head::Head) -> Result<(), StoreError> {
        for (number, policy) in head.numbered() {
            self.put_policy(number, &policy.to_bytes())?;
        }
        Ok(())
    }

    /// Makes the added leaves durable now, before the commit that needs them. A replica copies thousands, and
    /// holds only some of them.
    ///
    /// # Errors
    /// As [`Writer::commit`].
    pub fn flush_log(&mut self) -> Result<(), StoreError> {
        self.usable()?;
        self.guard(|w| w.log.write(&*w.disk))
    }

    /// Removes leaves that [`Writer::flush_log`] wrote and that turned out not to be the log's.
    ///
    /// # Errors
    /// As [`Writer::commit`].
    pub fn remove_log(&mut self, epoch: u64, indexes: &[u64]) -> Result<(), StoreError> {
        self.usable()?;
        self.guard(|w| w.log.remove(&*w.disk, epoch, indexes))
    }

    /// Computes the tiles of the log at `after` from the added leaves and the stored ones, to be
    /// written with the next commit. Returns false when a leaf is missing or the root differs; then
    /// the repository only lacks the proof that its log grew.
    pub fn tile_log(&mut self, after: &LogPoint) -> bool {
        self.log.put_tiles(&*self.disk, after)
    }

    /// Replaces a note in one durable step, at once, independent of commits.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn put_note(&mut self, note: Note, bytes: &[u8]) -> Result<(), StoreError> {
        notes::replace(&*self.disk, note, bytes)
    }

    fn sync_dir(&self, dir: &str) -> Result<(), StoreError> {
        self.disk
            .sync_dir(dir)
            .map_err(|e| io_error(&*self.disk, dir, e))
    }
}

impl Drop for Writer {
    /// Removes what was not committed, so that a full disk has its space back at once. The next writer
    /// removes what cannot be removed now.
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
            tracing::warn!(%error, "cannot remove uncommitted files; the next writer will");
        }
    }
}

/// How many of the newest runs a commit of `fresh` blocks merges.
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
