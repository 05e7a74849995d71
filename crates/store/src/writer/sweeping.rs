//! A sweep in bounded steps beside other writes, for a store whose blocks have an age: what is neither marked nor young
//! goes. Each step is one commit. Between two steps others commit, and the marks stay good (see [`Marks`]).
//!
//! [`super::collecting`] does the same at once, for a repository that nobody writes meanwhile.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use trust::Handle;

use super::Writer;
use crate::collect::{CollectedNote, Marks, REWRITE_BELOW_PERCENT, record_at};
use crate::disk::{Patience, damaged, io_error};
use crate::error::StoreError;
use crate::head::Head;
use crate::index::Location;
use crate::index::build::{RunWriter, merge};
use crate::index::run::Lookup;
use crate::names::{self, FileId};
use crate::notes::Note;
use crate::repository::Repository;
use crate::segment::{self, Contents};

/// Who knows the age of blocks.
pub trait Ages {
    /// Whether a block that nobody marked is old. Nothing is decided by it.
    fn is_old(&self, segment: FileId, block: &Handle) -> bool;

    /// Whether the block is old now. If it is, nobody may be told from now on that it is there, until the step ends.
    fn condemn(&self, segment: FileId, block: &Handle) -> bool;
}

/// How much one step takes.
#[derive(Debug, Clone, Copy)]
pub struct MostSwept {
    /// Blocks that are looked at.
    pub blocks: usize,
    /// Bytes of records that are written again.
    pub bytes: u64,
    /// No further segment is looked at after so long.
    pub time: Duration,
}

/// What a step of a sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Segments that were looked at.
    pub segments: u64,
    /// Blocks that are gone.
    pub blocks: u64,
    /// Space that is free after the grace, bytes.
    pub freed_bytes: u64,
    /// Segments without a block that stays.
    pub dropped: u64,
    /// Segments whose blocks that stay were written again.
    pub rewritten: u64,
    /// Damaged segments, which stay as they are. The program's log names them.
    pub damaged: u64,
}

/// A segment that goes.
struct Doomed {
    id: FileId,
    len_bytes: u64,
    /// What of it stays.
    live: Contents,
    /// What of it goes.
    dead: u64,
}

impl Marks {
    /// Begins to mark live blocks, for [`Writer::sweep`]. Needs no writer.
    pub fn of(repository: &Repository) -> Marks {
        Marks::new(repository.disk_shared(), repository.view())
    }

    /// Looks blocks up in the newest index from now on: others have committed since the marks were begun.
    pub fn follow(&mut self, repository: &Repository) {
        self.follow_view(repository.view());
    }
}

impl Writer {
    /// Sweeps the first of these segments, and takes them off the list: as many as `most` allows, at least one. Files
    /// that readers of the old index still need are removed by the first writer after `grace`.
    ///
    /// # Errors
    /// As [`Writer::commit`]; [`StoreError::Damaged`] when blocks were appended and not committed. Nothing is gone then.
    pub fn sweep(
        &mut self,
        marks: &Marks,
        segments: &mut VecDeque<FileId>,
        ages: &dyn Ages,
        most: MostSwept,
        grace: Duration,
    ) -> Result<Swept, StoreError> {
        self.usable()?;
        if !self.pending.is_empty() || self.prepared.is_some() {
            let why = "blocks were appended and not committed before a sweep";
            return Err(damaged(&*self.disk, names::HEAD_FILE, why));
        }
        let mut swept = Swept::default();
        let doomed = self.choose(marks, segments, ages, most, &mut swept)?;
        if doomed.is_empty() {
            return Ok(swept);
        }
        self.guard(|w| w.remove(doomed, grace, &mut swept))?;
        Ok(swept)
    }

    fn choose(
        &self,
        marks: &Marks,
        segments: &mut VecDeque<FileId>,
        ages: &dyn Ages,
        most: MostSwept,
        swept: &mut Swept,
    ) -> Result<Vec<Doomed>, StoreError> {
        let named = self.view.segments();
        let (mut blocks, mut bytes, mut doomed) = (0, 0, Vec::new());
        let begun = Instant::now();
        while blocks < most.blocks && bytes < most.bytes {
            if swept.segments > 0 && begun.elapsed() > most.time {
                break;
            }
            let Some(id) = segments.pop_front() else {
                break;
            };
            swept.segments += 1;
            // Of segments that came after the marks were begun nobody knows what is live.
            if !named.contains(&id) || !marks.knows(id) {
                continue;
            }
            match self.judge(id, marks, ages) {
                Ok((looked_at, one)) => {
                    blocks += looked_at;
                    if let Some(one) = one {
                        let live = one.live.iter().map(|(_, at)| u64::from(at.len));
                        bytes += live.sum::<u64>();
                        doomed.push(one);
                    }
                }
                Err(error @ StoreError::Damaged { .. }) => {
                    // It may be repaired later.
                    swept.damaged += 1;
                    tracing::warn!(%error, "a damaged segment is not swept");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(doomed)
    }

    /// How many blocks a segment has, and whether it goes.
    fn judge(
        &self,
        id: FileId,
        marks: &Marks,
        ages: &dyn Ages,
    ) -> Result<(usize, Option<Doomed>), StoreError> {
        let contents = segment::whole_list(&*self.disk, id)?;
        marks.live_of(id, &contents)?;
        let name = id.segment();
        let opened = self.disk.open(&name).and_then(|file| file.len_bytes());
        let len_bytes = opened.map_err(|e| io_error(&*self.disk, &name, e))?;
        let looked_at = contents.len();
        let (mut live, mut old): (Contents, Contents) = (Vec::new(), Vec::new());
        for (handle, at) in contents {
            // A record that another one has replaced is nobody's block any more.
            let here = self.view.locate(&*self.disk, &handle, Patience::Wait)?;
            if here != Lookup::At(at) {
                continue;
            }
            match !marks.is_live(&at) && ages.is_old(id, &handle) {
                true => old.push((handle, at)),
                false => live.push((handle, at)),
            }
        }
        if is_worth(&live, len_bytes) {
            // Some may have become young meanwhile.
            let (dead, young): (Contents, Contents) = old
                .into_iter()
                .partition(|(handle, _)| ages.condemn(id, handle));
            live.extend(young);
            if is_worth(&live, len_bytes) {
                let dead = dead.len() as u64;
                let doomed = Doomed {
                    id,
                    len_bytes,
                    live,
                    dead,
                };
                return Ok((looked_at, Some(doomed)));
            }
        }
        Ok((looked_at, None))
    }

    /// Writes what stays of these segments again, and an index without the rest.
    fn remove(
        &mut self,
        doomed: Vec<Doomed>,
        grace: Duration,
        swept: &mut Swept,
    ) -> Result<(), StoreError> {
        let mut gone: HashSet<FileId> = HashSet::new();
        for one in doomed {
            if let Err(error) = self.append_again(&one.live) {
                let StoreError::Damaged { .. } = &error else {
                    return Err(error);
                };
                // It may be repaired later.
                swept.damaged += 1;
                tracing::warn!(%error, "a damaged segment is not rewritten");
                continue;
            }
            gone.insert(one.id);
            let live: u64 = one.live.iter().map(|(_, at)| u64::from(at.len)).sum();
            swept.blocks += one.dead;
            swept.freed_bytes += one.len_bytes.saturating_sub(live);
            match one.live.is_empty() {
                true => swept.dropped += 1,
                false => swept.rewritten += 1,
            }
        }
        self.name_segments()?;
        let mut segments = self.pending.segments().to_vec();
        let kept = self.view.segments().into_iter();
        segments.extend(kept.filter(|id| !gone.contains(id)));
        let old = self.view.runs.clone();
        let mut writer = RunWriter::begin(&*self.disk, &segments)?;
        let fresh = std::mem::take(&mut self.pending).into_sorted();
        let stays = |_: &Handle, at: &Location| !gone.contains(&at.segment);
        merge(&*self.disk, fresh, &old, stays, &mut writer)?;
        let run = writer.finish()?;
        self.sync_dir(names::INDEX_DIR)?;
        let mut note = CollectedNote::load(&*self.disk)?;
        note.entries = run.map_or(0, |run| run.entries);
        let gone: Vec<FileId> = gone.into_iter().collect();
        note.protect(&gone, grace);
        self.put_note(Note::Collected, note.encode().as_bytes())?;
        let head = Head {
            runs: run.into_iter().collect(),
            retired: old.iter().map(|run| run.name().id).collect(),
            statements: self.view.head.statements.clone(),
        };
        self.replace_head(&head)
    }

    fn append_again(&mut self, live: &Contents) -> Result<(), StoreError> {
        let disk = self.disk.clone();
        for (handle, at) in live {
            if !self.pending.contains(handle) {
                let record = record_at(&*disk, handle, at)?;
                self.append_new(&record)?;
            }
        }
        Ok(())
    }
}

/// Whether so little of a segment stays that the rest is worth the writing.
fn is_worth(live: &Contents, len_bytes: u64) -> bool {
    let live: u64 = live.iter().map(|(_, at)| u64::from(at.len)).sum();
    live.saturating_mul(100) < len_bytes.saturating_mul(REWRITE_BELOW_PERCENT)
}
