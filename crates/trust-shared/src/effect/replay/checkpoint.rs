//! The state of a replay as rows of a checkpoint, and a replay that begins with such rows (docs/formats/shared.md,
//! *Checkpoint*).
//!
//! Rows hold what nobody can compute again without the entries before the checkpoint: the last folds, locks, and what
//! changed since those folds, each with the position of its last change. A later fold covers some of these changes and
//! not others, so the positions decide what counts. They also hold by how much each entry changed the number of
//! entries of a directory: a fold with a wrong number of entries is possible, and everybody must count alike.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::base::{Base, Kept};
use super::view::View;
use super::{Blocks, Bodies, Lock, Replay, Sources, Stop, Times, Volume};
use crate::effect::{Missing, Values};
use crate::hold::{Family, Hold};
use crate::itable::{Fold, Known, MAX_TABLE_INLINE_BYTES};
use crate::key::Key;
use crate::principal::{Device, FileId, Name, Principal, Target};
use crate::row::Row;
use trust::encode::Encoder;
use trust::handle::{Handle, Hasher, InodeBlock};
use trust::tree::inode::Entry;

/// Bytes of a row's value before the inode: position, and whether there is one.
const HEAD_BYTES: usize = 11;

/// Some rows of a checkpoint.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The rows, in the order of their keys.
    pub rows: Vec<(Row, Vec<u8>)>,
    /// Inodes that are too large for their rows. They are stored as blocks.
    pub blocks: Vec<(Handle<InodeBlock>, Bytes)>,
    /// The next page begins after this. None: there is no more.
    pub next: Option<Row>,
}

impl Replay {
    /// Goes on after a log of `size` leaves of which it knows what changed since the last folds. Questions about
    /// positions before have no answers.
    pub fn resume(volume: Volume, size: u64, mut base: Base) -> Replay {
        let old_folds = std::mem::take(&mut base.folds);
        let old_locks = std::mem::take(&mut base.locks);
        let old_holds = std::mem::take(&mut base.holds);
        Replay {
            from: size,
            size,
            old_folds,
            old_locks,
            old_holds,
            base,
            ..Replay::new(volume)
        }
    }

    /// The rows of files of a checkpoint at the position `at`: those after a row, from at most `most` keys. What this
    /// costs is bounded by `most`, so a caller can do other things between pages.
    ///
    /// # Errors
    /// As [`Replay::inode`].
    pub fn rows<S: Blocks + Bodies>(
        &mut self,
        at: u64,
        after: Option<&Row>,
        most: usize,
        from: Sources<'_, S>,
    ) -> Result<Page, Stop> {
        let keys = self.candidates(after, most.max(1));
        let mut page = Page {
            next: keys.last().filter(|_| keys.len() >= most.max(1)).cloned(),
            ..Page::default()
        };
        let mut missing = Missing::default();
        for row in &keys {
            match self.row_of(at, row, &mut page, from) {
                Ok(()) => {}
                Err(Stop::Missing(more)) => {
                    missing.add(more);
                    if missing.is_long() {
                        break;
                    }
                }
                Err(stop) => return Err(stop),
            }
        }
        match missing.is_empty() {
            true => Ok(page),
            false => Err(Stop::Missing(missing)),
        }
    }

    /// The first keys after a row that may have rows. A directory stands for all its rows of added entries, by the
    /// last row that it could have.
    fn candidates(&self, after: Option<&Row>, most: usize) -> Vec<Row> {
        let mut found: BTreeSet<Row> = BTreeSet::new();
        for part in PARTS {
            let after = match after.map(|row| (row, part_of(row).cmp(&Some(part)))) {
                Some((_, Ordering::Greater)) => continue,
                Some((row, Ordering::Equal)) => Some(row),
                _ => None,
            };
            for rows in self.candidates_of(part, after) {
                let rows = rows.filter(|row| after.is_none_or(|after| row > after));
                found.extend(rows.take(most));
            }
            if found.len() >= most {
                break;
            }
        }
        found.into_iter().take(most).collect()
    }

    /// Keys of one part from a row of it on: those before the first entry that is kept, and those of entries.
    fn candidates_of(&self, part: Part, from: Option<&Row>) -> [Rows<'_>; 2] {
        let file = from.and_then(Row::file);
        let file = file.map_or(FileId::first_of(LOWEST), FileId::from);
        match part {
            Part::Lock => {
                let row = |file: &FileId| Row::Lock((*file).into());
                let keys = self.keys.range(Key::Lock(file)..);
                let keys = keys.map_while(move |(key, _)| match key {
                    Key::Lock(file) => Some(row(file)),
                    _ => None,
                });
                let old = self.old_locks.range(file..);
                [
                    Box::new(old.map(move |(file, _)| row(file))),
                    Box::new(keys),
                ]
            }
            Part::Fold => {
                let row = |principal: &Principal| Row::Fold(*principal.as_bytes());
                let keys = self.keys.range(Key::Fold(LOWEST)..);
                let keys = keys.map_while(move |(key, _)| match key {
                    Key::Fold(principal) => Some(row(principal)),
                    _ => None,
                });
                [Box::new(self.old_folds.keys().map(row)), Box::new(keys)]
            }
            Part::Inode => {
                let row = |file: &FileId| Row::Inode((*file).into());
                let keys = self.keys.range(Key::Inode(file)..);
                let keys = keys.map_while(move |(key, _)| match key {
                    Key::Inode(file) => Some(row(file)),
                    _ => None,
                });
                let base = self.base.inodes.range(file..);
                [
                    Box::new(base.map(move |(file, _)| row(file))),
                    Box::new(keys),
                ]
            }
            Part::Entry => {
                let name = match from {
                    Some(Row::Entry(_, name)) => Name::new(name).ok(),
                    _ => None,
                };
                let name = name.unwrap_or(Name::lowest());
                let row = |file: &FileId, name: &Name| {
                    Row::Entry((*file).into(), Bytes::copy_from_slice(name.as_bytes()))
                };
                let base = self.base.entries.range((file, name.clone())..);
                let keys = self.keys.range(Key::Entry(file, name)..);
                let keys = keys.map_while(move |(key, _)| match key {
                    Key::Entry(file, name) => Some(row(file, name)),
                    _ => None,
                });
                let base = base.map(move |((file, name), _)| row(file, name));
                [Box::new(base), Box::new(keys)]
            }
            Part::Added => {
                let row = |file: &FileId| Row::Added((*file).into(), u64::MAX);
                let base = self.base.added.range(file..);
                let base = base.map(move |(file, _)| row(file));
                let steps = self.directories.range(file..);
                [
                    Box::new(base),
                    Box::new(steps.map(move |(file, _)| row(file))),
                ]
            }
            Part::Times => {
                let row = |file: &FileId| Row::Times((*file).into());
                let keys = self.keys.range(Key::Times(file)..);
                let keys = keys.map_while(move |(key, _)| match key {
                    Key::Times(file) => Some(row(file)),
                    _ => None,
                });
                let base = self.base.times.range(file..);
                [
                    Box::new(base.map(move |(file, _)| row(file))),
                    Box::new(keys),
                ]
            }
            Part::Hold => {
                let row = |file: &FileId, family: Family, device: Device| {
                    Row::Hold((*file).into(), family.to_byte(), device.0)
                };
                let first = match from {
                    Some(Row::Hold(_, family, device)) => {
                        let family = Family::from_byte(*family).unwrap_or(Family::Flock);
                        (file, family, Device(*device))
                    }
                    _ => (file, Family::Flock, Device(0)),
                };
                let keys = self.keys.range(Key::Hold(first.0, first.1, first.2)..);
                let keys = keys.map_while(move |(key, _)| match key {
                    Key::Hold(file, family, device) => Some(row(file, *family, *device)),
                    _ => None,
                });
                let old = self.old_holds.range(first..);
                let old = old.map(move |((file, family, device), _)| row(file, *family, *device));
                [Box::new(old), Box::new(keys)]
            }
        }
    }

    /// Adds the row of a key, if it has one.
    fn row_of<S: Blocks + Bodies>(
        &mut self,
        at: u64,
        row: &Row,
        page: &mut Page,
        from: Sources<'_, S>,
    ) -> Result<(), Stop> {
        let value = match row {
            Row::Lock(file) => {
                let lock = self.lock(at, &(*file).into(), from)?;
                lock.map(|lock| value_of_lock(&lock))
            }
            Row::Fold(principal) => {
                let fold = self.last_fold(at, Principal::from_bytes(*principal), from)?;
                fold.map(|fold| value_of_fold(&fold))
            }
            Row::Inode(file) => {
                let file = FileId::from(*file);
                let (_, since) = self.ask(at, from, |view| view.inode_since(&file))?;
                since.map(|(at, kept)| {
                    let (value, block) = value_of_inode(row, at, &kept, &self.volume.hasher);
                    page.blocks.extend(block);
                    value
                })
            }
            Row::Entry(file, name) => {
                let (file, name) = (FileId::from(*file), Name::new(name)?);
                let (_, since) = self.ask(at, from, |view| view.entry_since(&file, &name))?;
                since.map(|(at, target)| value_of_entry(at, target.as_ref()))
            }
            Row::Times(file) => {
                let directory = FileId::from(*file);
                let (_, since) = self.ask(at, from, |view| view.times_since(&directory))?;
                since.map(|(at, times)| value_of_times(at, &times))
            }
            Row::Hold(file, family, device) => {
                let family = Family::from_byte(*family).unwrap_or(Family::Flock);
                let key = (&(*file).into(), family, Device(*device));
                let hold = self.hold(at, key, from)?;
                hold.map(|hold| value_of_hold(&hold))
            }
            Row::Added(file, _) => {
                let directory = FileId::from(*file);
                let added = self.ask(at, from, |view| view.added_since(&directory))?;
                let rows = added.into_iter().filter(|(_, added)| *added != 0);
                let rows =
                    rows.map(|(at, added)| (Row::Added(*file, at), added.to_le_bytes().to_vec()));
                page.rows.extend(rows);
                return Ok(());
            }
            _ => None,
        };
        page.rows.extend(value.map(|value| (row.clone(), value)));
        Ok(())
    }
}

pub(super) fn value_of_lock(lock: &Lock) -> Vec<u8> {
    let mut e = Encoder::new();
    lock.holder.encode(&mut e);
    e.varint(lock.last);
    e.finish()
}

pub(super) fn value_of_fold(fold: &Fold) -> Vec<u8> {
    let mut e = Encoder::new();
    fold.encode(&mut e);
    e.finish()
}

/// The value of an inode that changed last at a position, and the block that it names.
pub(super) fn value_of_inode(
    row: &Row,
    at: u64,
    kept: &Kept,
    hasher: &Hasher,
) -> (Vec<u8>, Option<InodeOfRow>) {
    let mut e = Encoder::new();
    e.varint(at).u8(u8::from(*kept != Kept::Gone));
    let (value, block) = placed(row, kept, hasher);
    e.raw(&value);
    (e.finish(), block)
}

pub(super) fn value_of_entry(at: u64, target: Option<&Target>) -> Vec<u8> {
    let mut e = Encoder::new();
    e.varint(at).u8(u8::from(target.is_some()));
    if let Some(target) = target {
        e.raw(&target.encode());
    }
    e.finish()
}

pub(super) fn value_of_times(at: u64, times: &Times) -> Vec<u8> {
    let mut e = Encoder::new();
    e.varint(at);
    times.mtime.encode(&mut e);
    times.ctime.unwrap_or_default().encode(&mut e);
    e.finish()
}

pub(super) fn value_of_hold(hold: &Hold) -> Vec<u8> {
    let mut e = Encoder::new();
    hold.encode(&mut e);
    e.finish()
}

/// An inode that is too large for its row, as a block.
pub(super) type InodeOfRow = (Handle<InodeBlock>, Bytes);

/// Keys of rows, ascending.
type Rows<'a> = Box<dyn Iterator<Item = Row> + 'a>;

/// The kinds of rows about files, in the order of their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Lock,
    Fold,
    Inode,
    Entry,
    Added,
    Times,
    Hold,
}

const PARTS: [Part; 7] = [
    Part::Lock,
    Part::Fold,
    Part::Inode,
    Part::Entry,
    Part::Added,
    Part::Times,
    Part::Hold,
];

/// None: the row is about something else, and comes before or is not asked for.
fn part_of(row: &Row) -> Option<Part> {
    match row {
        Row::Lock(_) => Some(Part::Lock),
        Row::Fold(_) => Some(Part::Fold),
        Row::Inode(_) => Some(Part::Inode),
        Row::Entry(..) => Some(Part::Entry),
        Row::Added(..) => Some(Part::Added),
        Row::Times(_) => Some(Part::Times),
        Row::Hold(..) => Some(Part::Hold),
        _ => None,
    }
}

/// No principal is before it.
const LOWEST: Principal = Principal::from_bytes([0; 32]);

/// The end of an inode's value, and the block that it names.
fn placed(row: &Row, kept: &Kept, hasher: &Hasher) -> (Vec<u8>, Option<InodeOfRow>) {
    match kept {
        Kept::Gone => (Vec::new(), None),
        Kept::Block(handle) => (Entry::Block(*handle).encode(), None),
        Kept::Here(inode) => {
            let mut before = row.encode();
            before.resize(before.len().saturating_add(HEAD_BYTES), 0);
            Entry::place_within(&before, inode, hasher, MAX_TABLE_INLINE_BYTES)
        }
    }
}

impl<S: Blocks + Bodies> View<'_, S> {
    /// By how much each entry changed the number of entries of a directory since the last fold of its principal, by
    /// position.
    fn added_since(&mut self, directory: &FileId) -> Known<BTreeMap<u64, i64>> {
        self.fold(&directory.principal).then(|fold| {
            let upto = fold.map_or(0, |fold| fold.upto);
            let steps = self.replay.directories.get(directory);
            let steps = steps.map(Vec::as_slice).unwrap_or_default();
            let end = steps.partition_point(|step| step.op < self.before);
            self.added(directory, end).map(|_| {
                let base = self.replay.base.added.get(directory);
                let base = base.into_iter().flat_map(|added| added.range(upto..));
                let mut all: BTreeMap<u64, i64> = base.map(|(at, added)| (*at, *added)).collect();
                for step in steps.get(..end).unwrap_or_default() {
                    let at = self.position(step.op);
                    if at >= upto {
                        let sum = all.entry(at).or_default();
                        *sum = sum.saturating_add(step.added);
                    }
                }
                all
            })
        })
    }
}
