//! How a [`Writer`] collects: what [`crate::collect`] plans is carried out in one commit.

use std::collections::HashSet;
use std::time::Duration;

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

/// Index entries that a repository may grow by before anybody thinks of collecting.
const GROWN: u64 = 4096;

impl Writer {
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
}
