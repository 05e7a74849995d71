//! Collection: frees the space of blocks that no kept version reaches (docs/decisions/0020).
//!
//! The caller, who knows the trees, marks the live blocks. Then segments without live records are
//! dropped, segments with few are rewritten, and a new index names what is left, all in one commit.
//! Readers of the old index are not disturbed: the dropped files stay for a grace. The note
//! `collected` lists them, and the first writer after the grace removes them.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::BytesMut;
use trust::{Handle, Record};

use crate::StoreError;
use crate::disk::{Disk, Patience, damaged, io_error};
use crate::index::Location;
use crate::index::run::Lookup;
use crate::names::FileId;
use crate::notes::{self, Note};
use crate::segment::Contents;
use crate::view::View;

/// A segment is rewritten when less than this part of it is live, percent.
pub(crate) const REWRITE_BELOW_PERCENT: u64 = 50;

/// Result of marking a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The block is here and was not marked before.
    New,
    /// The block was marked before.
    Known,
    /// The block is not here.
    Absent,
}

/// The set of live blocks; about 20 bytes each.
///
/// Marks stay good while others write: segments never change, so a mark is the place of a record. Of the segments that
/// come later, no mark tells what is live, and a sweep spares them.
pub struct Marks {
    disk: Arc<dyn Disk>,
    view: Arc<View>,
    ordinals: HashMap<FileId, u32>,
    /// Segments with lower ordinals were there when the marks were begun.
    first: u32,
    /// Ordinal of the segment and offset in it.
    live: HashSet<u64>,
    live_bytes: Vec<u64>,
}

/// What a collection did or would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Collected {
    /// Live blocks.
    pub live_blocks: u64,
    /// Index entries before.
    pub entries_before: u64,
    /// Segments before.
    pub segments: u64,
    /// Segments without live blocks.
    pub dropped: u64,
    /// Segments that are rewritten.
    pub rewritten: u64,
    /// Space that is freed after the grace, bytes.
    pub freed_bytes: u64,
    /// Space that dead blocks still take in segments that are kept, bytes.
    pub dead_bytes: u64,
}

/// What is done with each segment.
pub(crate) struct Plan {
    pub drop: Vec<FileId>,
    pub rewrite: Vec<FileId>,
    pub keep: Vec<FileId>,
    pub summary: Collected,
}

impl Marks {
    pub(crate) fn new(disk: Arc<dyn Disk>, view: Arc<View>) -> Marks {
        let mut segments: Vec<FileId> = view.segments().into_iter().collect();
        segments.sort_unstable();
        Marks {
            live_bytes: vec![0; segments.len()],
            first: segments.len() as u32,
            ordinals: segments.into_iter().zip(0..).collect(),
            live: HashSet::new(),
            disk,
            view,
        }
    }

    /// Marks a block as live.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Io`]. After an error do not collect: live blocks may be
    /// unmarked.
    pub fn mark(&mut self, handle: &Handle) -> Result<Mark, StoreError> {
        let Lookup::At(at) = self.view.locate(&*self.disk, handle, Patience::Wait)? else {
            return Ok(Mark::Absent);
        };
        let Some((ordinal, key)) = self.key(&at) else {
            return Ok(Mark::Absent);
        };
        if !self.live.insert(key) {
            return Ok(Mark::Known);
        }
        if let Some(bytes) = self.live_bytes.get_mut(ordinal as usize) {
            *bytes += u64::from(at.len);
        }
        Ok(Mark::New)
    }

    /// Looks blocks up in this state of the index from now on.
    pub(crate) fn follow_view(&mut self, view: Arc<View>) {
        self.view = view;
        let mut later: Vec<FileId> = self.view.segments().into_iter().collect();
        later.retain(|id| !self.ordinals.contains_key(id));
        later.sort_unstable();
        for id in later {
            self.ordinals.insert(id, self.live_bytes.len() as u32);
            self.live_bytes.push(0);
        }
    }

    /// Blocks that are marked.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Bytes of memory of the set, roughly: a slot has eight bytes and one of control.
    pub fn memory_bytes(&self) -> usize {
        self.live.capacity() * 8 / 7 * 9 + self.live_bytes.capacity() * 8
    }

    /// Whether a segment was there when the marks were begun.
    pub(crate) fn knows(&self, segment: FileId) -> bool {
        let ordinal = self.ordinals.get(&segment);
        ordinal.is_some_and(|ordinal| *ordinal < self.first)
    }

    /// Whether these marks belong to this state of the index.
    pub(crate) fn belong_to(&self, view: &View) -> bool {
        self.view.head.runs == view.head.runs
    }

    fn key(&self, at: &Location) -> Option<(u32, u64)> {
        let ordinal = *self.ordinals.get(&at.segment)?;
        Some((ordinal, u64::from(ordinal) << 32 | u64::from(at.offset)))
    }

    /// The marked blocks of these. They are all that a segment has.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when others of the segment are marked: the list is wrong.
    pub(crate) fn live_of(&self, id: FileId, contents: &Contents) -> Result<Contents, StoreError> {
        let live = contents.iter().filter(|(_, at)| self.is_live(at));
        let live: Contents = live.copied().collect();
        let ordinal = self.ordinals.get(&id);
        let marked = ordinal.and_then(|ordinal| self.live_bytes.get(*ordinal as usize));
        let listed: u64 = live.iter().map(|(_, at)| u64::from(at.len)).sum();
        match listed == marked.copied().unwrap_or_default() {
            true => Ok(live),
            false => {
                let why = "the list of its blocks lacks some that are needed";
                Err(damaged(&*self.disk, &id.segment(), why))
            }
        }
    }

    pub(crate) fn is_live(&self, at: &Location) -> bool {
        self.key(at)
            .is_some_and(|(_, key)| self.live.contains(&key))
    }

    /// What a collection would do.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn estimate(&self) -> Result<Collected, StoreError> {
        Ok(self.plan()?.summary)
    }

    pub(crate) fn plan(&self) -> Result<Plan, StoreError> {
        let mut plan = Plan {
            drop: Vec::new(),
            rewrite: Vec::new(),
            keep: Vec::new(),
            summary: Collected {
                live_blocks: self.live.len() as u64,
                entries_before: self.view.head.runs.iter().map(|r| r.entries).sum(),
                segments: self.ordinals.len() as u64,
                ..Collected::default()
            },
        };
        for (id, ordinal) in &self.ordinals {
            let live = self.live_bytes.get(*ordinal as usize).copied();
            let live = live.unwrap_or_default();
            let name = id.segment();
            let len = match self.disk.open(&name).and_then(|file| file.len_bytes()) {
                Ok(len) => len,
                // A rebuilt index may name a lost segment.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound && live == 0 => 0,
                Err(e) => return Err(io_error(&*self.disk, &name, e)),
            };
            if live == 0 {
                plan.summary.freed_bytes += len;
                plan.drop.push(*id);
            } else if live.saturating_mul(100) < len.saturating_mul(REWRITE_BELOW_PERCENT) {
                plan.summary.freed_bytes += len.saturating_sub(live);
                plan.rewrite.push(*id);
            } else {
                plan.summary.dead_bytes += len.saturating_sub(live);
                plan.keep.push(*id);
            }
        }
        plan.summary.dropped = plan.drop.len() as u64;
        plan.summary.rewritten = plan.rewrite.len() as u64;
        Ok(plan)
    }
}

/// Reads a record at its location.
pub(crate) fn record_at(
    disk: &dyn Disk,
    handle: &Handle,
    at: &Location,
) -> Result<Record, StoreError> {
    let name = at.segment.segment();
    let fail = |e| io_error(disk, &name, e);
    let file = disk.open(&name).map_err(fail)?;
    let mut bytes = BytesMut::zeroed(at.len as usize);
    let read = file.read_at(&mut bytes, u64::from(at.offset));
    bytes.truncate(read.map_err(fail)?);
    let mut bytes = bytes.freeze();
    match Record::take(&mut bytes) {
        Ok(Some(record)) if record.handle == *handle && bytes.is_empty() => Ok(record),
        _ => Err(damaged(
            disk,
            &name,
            "holds another record than its footer says",
        )),
    }
}

/// The note `collected`: the size of the index after the last collection, and the collected segments
/// that stay for readers of the old index, with the end of their grace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CollectedNote {
    /// Index entries after the last collection.
    pub entries: u64,
    /// End of the grace in Unix seconds, and the segment.
    pub protected: Vec<(u64, FileId)>,
}

impl CollectedNote {
    /// The note of a repository. A damaged note protects no segment.
    ///
    /// # Errors
    /// [`StoreError::Format`] when a later bulla wrote it: the segments that it protects must stay.
    pub(crate) fn load(disk: &dyn Disk) -> Result<CollectedNote, StoreError> {
        let Ok(Some(note)) = notes::read(disk, Note::Collected) else {
            return Ok(CollectedNote::default());
        };
        match CollectedNote::decode(&note, disk.path(Note::Collected.name())) {
            Err(StoreError::Damaged { .. }) => Ok(CollectedNote::default()),
            read => read,
        }
    }

    pub(crate) fn encode(&self) -> String {
        let mut out = format!("bulla collected\nformat 0\nentries {}\n", self.entries);
        for (until, id) in &self.protected {
            out.push_str(&format!("until {until} {id}\n"));
        }
        out
    }

    fn decode(bytes: &[u8], path: PathBuf) -> Result<CollectedNote, StoreError> {
        let mut lines = Note::Collected.lines(bytes, path.clone())?;
        let mut read = || {
            let entries = lines.next()?.strip_prefix("entries ")?.parse().ok()?;
            let protected = lines.by_ref().map(|line| {
                let (until, id) = line.strip_prefix("until ")?.split_once(' ')?;
                Some((until.parse().ok()?, FileId::parse(id, "")?))
            });
            let protected = protected.collect::<Option<_>>()?;
            let note = CollectedNote { entries, protected };
            // Numbers have several spellings, a note has one.
            (note.encode().as_bytes() == bytes).then_some(note)
        };
        read().ok_or_else(|| Note::Collected.damaged(path))
    }

    /// The segments that may not be removed yet.
    pub(crate) fn protected_now(&self) -> HashSet<FileId> {
        let now = unix_now();
        let still = self.protected.iter().filter(|(until, _)| *until > now);
        still.map(|(_, id)| *id).collect()
    }

    pub(crate) fn protect(&mut self, segments: &[FileId], grace: Duration) {
        let now = unix_now();
        self.protected.retain(|(until, _)| *until > now);
        let until = now.saturating_add(grace.as_secs());
        self.protected
            .extend(segments.iter().map(|id| (until, *id)));
    }
}

fn unix_now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn collected_note_round_trips_and_protects_until_its_time() {
        let mut note = CollectedNote {
            entries: 17,
            protected: Vec::new(),
        };
        note.protect(&[FileId([1; 16])], Duration::ZERO);
        note.protect(&[FileId([2; 16])], Duration::from_secs(1000));
        let text = note.encode();
        let decode = |text: &str| CollectedNote::decode(text.as_bytes(), PathBuf::new());
        assert_eq!(decode(&text).unwrap(), note);
        assert_eq!(note.protected_now(), HashSet::from([FileId([2; 16])]));
        let plus = text.replace("entries ", "entries +");
        for bad in [
            "",
            "bulla collected\nformat 0\n",
            "bulla replica\nformat 0\nentries 1\n",
            &plus,
            &text[1..],
            text.trim_end(),
        ] {
            let refused = decode(bad);
            assert!(
                matches!(refused, Err(StoreError::Damaged { .. })),
                "{bad:?}"
            );
        }
        let later = text.replace("format 0", "format 1");
        assert!(matches!(decode(&later), Err(StoreError::Format { .. })));
    }

    #[test]
    fn document_shows_a_collected_note() {
        let note = CollectedNote {
            entries: 17,
            protected: vec![(1_800_000_000, FileId([1; 16]))],
        };
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = std::fs::read_to_string(root.join("docs/formats/repository.md")).unwrap();
        assert!(text.contains(&format!("```\n{}```", note.encode())));
    }
}
