//! What a replay begins with that starts at a checkpoint: locks, the last folds, and what changed since those folds.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::{Holds, Lock, Times};
use crate::hold::{Family, Hold};
use crate::itable::{Fold, MAX_TABLE_INLINE_BYTES};
use crate::key::Key;
use crate::principal::{Device, FileId, Name, Principal, Target};
use crate::row::Row;
use trust::encode::Decoder;
use trust::error::Reject;
use trust::handle::{Handle, InodeBlock};
use trust::tree::inode::{Entry, Inode, Time};

const WHAT: &str = "row of a checkpoint";

/// What the last change made of an inode.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kept {
    Gone,
    Here(Arc<Inode>),
    /// It is too large for a row.
    Block(Handle<InodeBlock>),
}

/// Locks, last folds, and what changed since, before a position: what a replay begins with that starts there.
#[derive(Debug, Clone, Default)]
pub struct Base {
    pub(super) folds: BTreeMap<Principal, Fold>,
    pub(super) locks: BTreeMap<FileId, Lock>,
    pub(super) holds: Holds,
    pub(super) inodes: BTreeMap<FileId, (u64, Kept)>,
    pub(super) entries: BTreeMap<(FileId, Name), (u64, Option<Target>)>,
    /// By how much entries changed the number of entries of directories, by position.
    pub(super) added: BTreeMap<FileId, BTreeMap<u64, i64>>,
    pub(super) times: BTreeMap<FileId, (u64, Times)>,
}

/// A value since a position, if it is not older.
fn since<T: Clone>(found: Option<&(u64, T)>, upto: u64) -> Option<(u64, T)> {
    found.filter(|(at, _)| *at >= upto).cloned()
}

impl Base {
    pub(super) fn inode(&self, file: &FileId, upto: u64) -> Option<(u64, Kept)> {
        since(self.inodes.get(file), upto)
    }

    pub(super) fn entry(
        &self,
        directory: &FileId,
        name: &Name,
        upto: u64,
    ) -> Option<(u64, Option<Target>)> {
        if self.entries.is_empty() {
            return None;
        }
        since(self.entries.get(&(*directory, name.clone())), upto)
    }

    pub(super) fn times(&self, directory: &FileId, upto: u64) -> Option<(u64, Times)> {
        since(self.times.get(directory), upto)
    }

    /// Entries that were added to a directory since a position.
    pub(super) fn added(&self, directory: &FileId, upto: u64) -> i64 {
        let added = self.added.get(directory).into_iter();
        let added = added.flat_map(|added| added.range(upto..));
        added.fold(0, |sum: i64, (_, added)| sum.saturating_add(*added))
    }

    /// Drops changes that folds have, and those of keys that have changed since.
    pub(super) fn forget(
        &mut self,
        upto: impl Fn(&Principal) -> u64,
        has_changed: impl Fn(&Key) -> bool,
    ) {
        self.inodes.retain(|file, (at, _)| {
            *at >= upto(&file.principal) && !has_changed(&Key::Inode(*file))
        });
        self.entries.retain(|(file, name), (at, _)| {
            *at >= upto(&file.principal) && !has_changed(&Key::Entry(*file, name.clone()))
        });
        self.times.retain(|file, (at, _)| {
            *at >= upto(&file.principal) && !has_changed(&Key::Times(*file))
        });
        self.added.retain(|file, added| {
            *added = added.split_off(&upto(&file.principal));
            !added.is_empty()
        });
    }

    /// The names of a directory after one of them that changed, ascending.
    pub(super) fn names(
        &self,
        directory: &FileId,
        after: Option<&Name>,
    ) -> impl Iterator<Item = &Name> {
        let begin = match after {
            Some(name) => Bound::Excluded((*directory, name.clone())),
            None => Bound::Included((*directory, Name::lowest())),
        };
        let names = self.entries.range((begin, Bound::Unbounded));
        let own = *directory;
        names.map_while(move |((of, name), _)| (*of == own).then_some(name))
    }

    /// The keys of one kind and one principal that changed since a position.
    pub(super) fn changed(&self, first: &Key, principal: Principal, upto: u64) -> Vec<Key> {
        let begin = FileId::first_of(principal);
        let inodes = self.inodes.range(begin..);
        let inodes = inodes.take_while(|(file, _)| file.principal == principal);
        let entries = self.entries.range((begin, Name::lowest())..);
        let entries = entries.take_while(|((file, _), _)| file.principal == principal);
        let times = self.times.range(begin..);
        let times = times.take_while(|(file, _)| file.principal == principal);
        match first {
            Key::Inode(_) => inodes
                .filter(|(_, (at, _))| *at >= upto)
                .map(|(file, _)| Key::Inode(*file))
                .collect(),
            Key::Entry(..) => entries
                .filter(|(_, (at, _))| *at >= upto)
                .map(|((file, name), _)| Key::Entry(*file, name.clone()))
                .collect(),
            Key::Times(_) => times
                .filter(|(_, (at, _))| *at >= upto)
                .map(|(file, _)| Key::Times(*file))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Each principal with changes that are in no fold: the position of the oldest change, and how many there are.
    pub fn unfolded(&self) -> BTreeMap<Principal, (u64, u64)> {
        let mut found: BTreeMap<Principal, (u64, u64)> = BTreeMap::new();
        let inodes = self.inodes.iter().map(|(file, (at, _))| (file, at));
        let entries = self.entries.iter().map(|((file, _), (at, _))| (file, at));
        let times = self.times.iter().map(|(file, (at, _))| (file, at));
        for (file, at) in inodes.chain(entries).chain(times) {
            let (first, count) = found.entry(file.principal).or_insert((*at, 0));
            *first = (*first).min(*at);
            *count = count.saturating_add(1);
        }
        found
    }

    /// Takes a row of the checkpoint of a log of `size` leaves. Gives whether the row is about files.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for a value that is not the one encoding of a value that the row can have;
    /// [`Reject::Unsupported`] for an inode that needs a newer bulla.
    pub fn take(&mut self, row: &Row, value: &[u8], size: u64) -> Result<bool, Reject> {
        let mut d = Decoder::new(value, WHAT);
        let before = |at: u64, d: &Decoder<'_>| match at < size {
            true => Ok(at),
            false => Err(d.bad("a position that the log does not have")),
        };
        match row {
            Row::Lock(file) => {
                let holder = Device::decode(&mut d)?;
                let last = before(d.varint()?, &d)?;
                self.locks.insert((*file).into(), Lock { holder, last });
            }
            Row::Fold(principal) => {
                let fold = Fold::decode(&mut d)?;
                if fold.upto > size {
                    return Err(d.bad("a fold beyond the log"));
                }
                self.folds.insert(Principal::from_bytes(*principal), fold);
            }
            Row::Inode(file) => {
                let at = before(d.varint()?, &d)?;
                let kept = match d.flag()? {
                    false => Kept::Gone,
                    true => {
                        let bytes = d.raw(d.remaining())?;
                        match Entry::decode_within(bytes, MAX_TABLE_INLINE_BYTES)? {
                            Entry::Inode(inode) => Kept::Here(Arc::new(inode)),
                            Entry::Block(handle) => Kept::Block(handle),
                        }
                    }
                };
                self.inodes.insert((*file).into(), (at, kept));
            }
            Row::Entry(file, name) => {
                let at = before(d.varint()?, &d)?;
                let target = match d.flag()? {
                    false => None,
                    true => Some(Target::decode(d.raw(d.remaining())?)?),
                };
                let key = ((*file).into(), Name::new(name)?);
                self.entries.insert(key, (at, target));
            }
            Row::Added(file, at) => {
                let added = i64::from_le_bytes(d.array()?);
                if added == 0 {
                    return Err(d.bad("an entry that added nothing"));
                }
                let all = self.added.entry((*file).into()).or_default();
                all.insert(before(*at, &d)?, added);
            }
            Row::Times(file) => {
                let at = before(d.varint()?, &d)?;
                let mtime = Time::decode(&mut d)?;
                let ctime = Some(Time::decode(&mut d)?);
                let times = Times { mtime, ctime };
                self.times.insert((*file).into(), (at, times));
            }
            Row::Hold(file, family, device) => {
                let family = Family::from_byte(*family);
                let family = family.ok_or_else(|| d.bad("an unknown family of locks"))?;
                let hold = Hold::decode(&mut d)?;
                before(hold.last, &d)?;
                let key = ((*file).into(), family, Device(*device));
                self.holds.insert(key, hold);
            }
            _ => return Ok(false),
        }
        d.finish()?;
        Ok(true)
    }

    /// Whether each change is newer than its principal's last fold: older ones are in it, and have no row.
    ///
    /// # Errors
    /// [`Reject::Malformed`] where one is not.
    pub fn check(&self) -> Result<(), Reject> {
        let upto = |principal: &Principal| self.folds.get(principal).map_or(0, |fold| fold.upto);
        let inodes = self.inodes.iter().map(|(file, (at, _))| (file, *at));
        let entries = self.entries.iter().map(|((file, _), (at, _))| (file, *at));
        let added = self.added.iter();
        let added = added.flat_map(|(file, all)| all.keys().map(move |at| (file, *at)));
        let times = self.times.iter().map(|(file, (at, _))| (file, *at));
        let mut all = inodes.chain(entries).chain(added).chain(times);
        match all.all(|(file, at)| at >= upto(&file.principal)) {
            true => Ok(()),
            false => Err(Reject::Malformed {
                what: WHAT,
                why: "a change that is in a fold",
            }),
        }
    }
}
