//! Carries out a collection that [`crate::collect`] planned, in one commit of a [`Writer`].

use std::collections::HashSet;
use std::time::Duration;

use trust::Handle;

use super::Writer;
use crate::collect::{Collected, CollectedNote, Marks, record_at};
use crate::disk::damaged;
use crate::error::StoreError;
use crate::head::Head;
use crate::index::Location;
use crate::index::build::{RunWriter, merge};
use crate::names::{self, FileId};
use crate::notes::Note;
use crate::segment;

/// A repository that has grown by fewer index entries is not worth collecting.
const GROWN: u64 = 4096;

impl Writer {
    /// Whether the index has grown so much since the last collection that collecting is worth while.
    pub fn has_grown(&self) -> bool {
        let note = CollectedNote::load(&*self.disk);
        let after = note.unwrap_or_default().entries;
        self.repository.index_entries() > after.saturating_add(after / 2).saturating_add(GROWN)
    }

    /// Begins to mark live blocks.
    pub fn marks(&self) -> Marks {
        Marks::new(self.disk.clone(), self.view.clone())
    }

    /// Collects all blocks that are not marked, in one commit that keeps the statements. Files that
    /// readers of the old index still need are removed by the first writer after `grace`.
    ///
    /// # Errors
    /// As [`Writer::commit`]; [`StoreError::Damaged`] when blocks were appended and not committed, or
    /// when there was a commit since the marks were begun.
    pub fn collect(&mut self, marks: &Marks, grace: Duration) -> Result<Collected, StoreError> {
        self.usable()?;
        if !self.pending.is_empty() || self.prepared.is_some() || !marks.belong_to(&self.view) {
            let why = "the repository changed after its blocks were marked";
            return Err(damaged(&*self.disk, names::HEAD_FILE, why));
        }
        self.guard(|w| w.collect_all(marks, grace))
    }

    fn collect_all(&mut self, marks: &Marks, grace: Duration) -> Result<Collected, StoreError> {
        let mut plan = marks.plan()?;
        let mut note = CollectedNote::load(&*self.disk)?;
        if plan.drop.is_empty() && plan.rewrite.is_empty() {
            note.entries = plan.summary.entries_before;
            self.put_note(Note::Collected, note.encode().as_bytes())?;
            return Ok(plan.summary);
        }
        for id in std::mem::take(&mut plan.rewrite) {
            match self.rewrite(id, marks) {
                Ok(()) => plan.drop.push(id),
                Err(error @ StoreError::Damaged { .. }) => {
                    // A damaged segment is not rewritten: it may be repaired later.
                    tracing::warn!(%error, "a damaged segment is not rewritten");
                    plan.keep.push(id);
                    plan.summary.rewritten -= 1;
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
        let is_live = |_: &Handle, at: &Location| {
            written.contains(&at.segment) || (kept.contains(&at.segment) && marks.is_live(at))
        };
        merge(&*self.disk, fresh, &old, is_live, &mut writer)?;
        let run = writer.finish()?;
        self.sync_dir(names::INDEX_DIR)?;
        note.entries = run.map_or(0, |run| run.entries);
        note.protect(&plan.drop, grace);
        self.put_note(Note::Collected, note.encode().as_bytes())?;
        let head = Head {
            runs: run.into_iter().collect(),
            retired: old.iter().map(|run| run.name().id).collect(),
            statements: self.view.head.statements.clone(),
        };
        self.replace_head(&head)?;
        Ok(plan.summary)
    }

    /// Appends the live records of a segment to a new one.
    fn rewrite(&mut self, id: FileId, marks: &Marks) -> Result<(), StoreError> {
        let disk = self.disk.clone();
        let contents = segment::whole_list(&*disk, id)?;
        for (handle, at) in marks.live_of(id, &contents)? {
            if !self.pending.contains(&handle) {
                let record = record_at(&*disk, &handle, &at)?;
                self.append_new(&record)?;
            }
        }
        Ok(())
    }
}
