//! The values before an op, as far as they are known; notes the tasks that make more known.

use std::sync::Arc;

use super::base::Kept;
use super::{Last, Made, Replay, Sources, Task, Version};
use crate::change::Change;
use crate::effect::{
    Blocks, Bodies, Lock, Times, Values, folded_entries, folded_entry, folded_inode, folded_times,
};
use crate::hold::{Family, Hold};
use crate::itable::{Fold, Known, Tables, attributes};
use crate::key::Key;
use crate::principal::{Device, FileId, Name, Principal, Target};
use trust::error::Reject;
use trust::tree::inode::{FileKind, Inode, Time};

/// What a key had after a position, and the position.
type Since<T> = Option<(u64, T)>;

/// The values before the op `before`.
pub(super) struct View<'a, S> {
    pub(super) replay: &'a Replay,
    pub(super) before: u32,
    from: Sources<'a, S>,
    pub tables: Tables<'a, S>,
    pub tasks: Vec<Task>,
    /// Positions of entries whose bodies are needed.
    pub bodies: Vec<u64>,
}

impl<'a, S: Blocks + Bodies> View<'a, S> {
    pub fn new(replay: &'a Replay, before: u32, from: Sources<'a, S>) -> Self {
        View {
            replay,
            before,
            from,
            tables: Tables::new(from.stored),
            tasks: Vec::new(),
            bodies: Vec::new(),
        }
    }

    /// The last version of a key that counts, if it lies at or after a position. Versions before that are not looked
    /// at: what they depend on may be all that came before.
    pub fn version(&mut self, key: &Key, since: u64) -> Known<Option<Version>> {
        let Some(versions) = self.replay.keys.get(key) else {
            return Known::Is(None);
        };
        let after = versions.partition_point(|version| version.op < self.before);
        let Some(index) = after.checked_sub(1) else {
            return Known::Is(None);
        };
        let newest = versions.get(index);
        if newest.is_none_or(|version| self.position(version.op) < since) {
            return Known::Is(None);
        }
        match versions.get(index).map(|version| version.last()) {
            Some(Last::UNKNOWN) => {
                let floor = versions.partition_point(|v| self.position(v.op) < since);
                let task = Task::Last(key.clone(), index as u32, floor as u32);
                self.tasks.push(task);
                Known::NotYet
            }
            last => {
                let index = last.and_then(Last::index);
                Known::Is(index.and_then(|index| versions.get(index as usize).copied()))
            }
        }
    }

    /// The last fold of the key's principal, and the last version of the key that is not in it.
    fn since_fold(
        &mut self,
        principal: &Principal,
        key: &Key,
    ) -> Known<(Option<Fold>, Option<Version>)> {
        self.fold(principal).then(|fold| {
            let upto = fold.map_or(0, |fold| fold.upto);
            self.version(key, upto).map(|version| {
                let version = version.filter(|version| self.position(version.op) >= upto);
                (fold, version)
            })
        })
    }

    pub(super) fn position(&self, op: u32) -> u64 {
        self.replay.row(op).map_or(0, |row| row.written.position)
    }

    /// The change of a key by an op.
    pub fn change(&mut self, op: u32, key: &Key) -> Known<Option<Change>> {
        let Some(row) = self.replay.row(op) else {
            return Known::Is(None);
        };
        let position = row.written.position;
        match self.from.stored.body(position) {
            Ok(Some(body)) => {
                let number = op.saturating_sub(row.first_op) as usize;
                let changes = body.ops().get(number).map(|op| op.changes.as_slice());
                let mut changes = changes.unwrap_or_default().iter();
                Known::Is(changes.find(|change| change.key() == *key).cloned())
            }
            Ok(None) => {
                self.bodies.push(position);
                Known::NotYet
            }
            Err(why @ Reject::Unsupported { .. }) => {
                self.tables.unsupported = Some(why);
                Known::NotYet
            }
            Err(why) => Known::Damaged(why),
        }
    }

    /// The last fold of a file's principal, and what the last change since then made of the file's inode, with its
    /// position.
    pub(super) fn inode_since(&mut self, file: &FileId) -> Known<(Option<Fold>, Since<Kept>)> {
        let key = Key::Inode(*file);
        let since = self.since_fold(&file.principal, &key);
        since.then(|(fold, version)| {
            let Some(version) = version else {
                let upto = fold.map_or(0, |fold| fold.upto);
                return Known::Is((fold, self.replay.base.inode(file, upto)));
            };
            let at = self.position(version.op);
            if version.made() == Made::Gone {
                return Known::Is((fold, Some((at, Kept::Gone))));
            }
            self.change(version.op, &key).map(|change| match change {
                Some(Change::Set { inode, .. }) => (fold, Some((at, Kept::Here(inode)))),
                _ => (fold, Some((at, Kept::Gone))),
            })
        })
    }

    /// As [`View::inode_since`], of a name.
    pub(super) fn entry_since(
        &mut self,
        directory: &FileId,
        name: &Name,
    ) -> Known<(Option<Fold>, Since<Option<Target>>)> {
        let key = Key::Entry(*directory, name.clone());
        let since = self.since_fold(&directory.principal, &key);
        since.then(|(fold, version)| {
            let Some(version) = version else {
                let upto = fold.map_or(0, |fold| fold.upto);
                return Known::Is((fold, self.replay.base.entry(directory, name, upto)));
            };
            let at = self.position(version.op);
            if version.made() == Made::Gone {
                return Known::Is((fold, Some((at, None))));
            }
            self.change(version.op, &key).map(|change| match change {
                Some(Change::Link { target, .. }) => (fold, Some((at, Some(target)))),
                _ => (fold, Some((at, None))),
            })
        })
    }

    /// As [`View::inode_since`], of the times of a directory.
    pub(super) fn times_since(
        &mut self,
        directory: &FileId,
    ) -> Known<(Option<Fold>, Since<Times>)> {
        let key = Key::Times(*directory);
        let since = self.since_fold(&directory.principal, &key);
        since.then(|(fold, version)| {
            let Some(version) = version else {
                let upto = fold.map_or(0, |fold| fold.upto);
                return Known::Is((fold, self.replay.base.times(directory, upto)));
            };
            let at = self.position(version.op);
            self.change(version.op, &key).map(|change| match change {
                Some(Change::Touch { mtime, ctime, .. }) => {
                    let ctime = Some(ctime);
                    (fold, Some((at, Times { mtime, ctime })))
                }
                _ => (fold, None),
            })
        })
    }

    /// The ctime of a directory's last attributes, if they changed since the last fold.
    fn ctime_since(&mut self, directory: &FileId) -> Known<Since<Option<Time>>> {
        self.inode_since(directory).then(|(_, since)| match since {
            Some((at, Kept::Here(inode))) => Known::Is(Some((at, inode.ctime))),
            Some((at, Kept::Block(handle))) => {
                let inode = self.tables.inode_block(handle);
                inode.map(|inode| Some((at, inode.ctime)))
            }
            Some((_, Kept::Gone)) | None => Known::Is(None),
        })
    }

    /// The times of a directory.
    pub(super) fn times(&mut self, directory: &FileId) -> Known<Times> {
        let (touched, set) = (self.times_since(directory), self.ctime_since(directory));
        touched.then(|(fold, touched)| {
            set.then(|set| {
                let folded = match touched {
                    Some(_) => Known::Is(Times::default()),
                    None => {
                        let volume = &self.replay.volume;
                        folded_times(&mut self.tables, volume, fold.as_ref(), directory)
                    }
                };
                folded.map(|folded| Times::latest(touched, set, folded))
            })
        })
    }

    /// The inode of a file as programs see it: a directory's with its times, and without its entries.
    pub(super) fn shown(&mut self, file: &FileId) -> Known<Option<Arc<Inode>>> {
        self.inode(file).then(|inode| match inode {
            Some(inode) if inode.kind() == FileKind::Directory => self
                .times(file)
                .map(|times| Some(Arc::new(times.on(Inode::clone(&inode))))),
            inode => Known::Is(inode),
        })
    }

    /// Entries of a directory: those of the fold, and those that ops after it added.
    fn entries_since(&mut self, directory: &FileId, fold: Option<Fold>) -> Known<i64> {
        let upto = fold.map_or(0, |fold| fold.upto);
        let steps = self.replay.directories.get(directory);
        let steps = steps.map(Vec::as_slice).unwrap_or_default();
        let all = steps.partition_point(|step| step.op < self.before);
        let folded = steps.partition_point(|step| self.position(step.op) < upto);
        let (all, folded) = (self.added(directory, all), self.added(directory, folded));
        let map = folded_entries(&mut self.tables, fold.as_ref(), directory);
        match (all, folded, map) {
            (_, _, Known::Damaged(why)) => Known::Damaged(why),
            (Known::Is(all), Known::Is(folded), Known::Is(map)) => {
                let before = map.map_or(0, |map| i64::try_from(map.entries).unwrap_or(i64::MAX));
                let before = before.saturating_add(self.replay.base.added(directory, upto));
                Known::Is(before.saturating_add(all.saturating_sub(folded)))
            }
            _ => Known::NotYet,
        }
    }

    /// Entries that the first `steps` ops on the directory added.
    pub(super) fn added(&mut self, directory: &FileId, steps: usize) -> Known<i64> {
        let Some(index) = steps.checked_sub(1) else {
            return Known::Is(0);
        };
        let all = self.replay.directories.get(directory);
        match all.and_then(|all| all.get(index)).map(|step| step.sum) {
            None => Known::Is(0),
            Some(Some(sum)) => Known::Is(sum),
            Some(None) => {
                self.tasks.push(Task::Sum(*directory, index as u32));
                Known::NotYet
            }
        }
    }
}

impl<S: Blocks + Bodies> Values for View<'_, S> {
    fn inode(&mut self, file: &FileId) -> Known<Option<Arc<Inode>>> {
        self.inode_since(file).then(|(fold, since)| match since {
            Some((_, Kept::Gone)) => Known::Is(None),
            Some((_, Kept::Here(inode))) => Known::Is(Some(bare(inode))),
            Some((_, Kept::Block(handle))) => {
                let found = self.tables.inode_block(handle);
                found.map(|inode| Some(Arc::new(attributes(inode))))
            }
            None => {
                let volume = &self.replay.volume;
                let found = folded_inode(&mut self.tables, volume, fold.as_ref(), file);
                found.map(|inode| inode.map(attributes).map(Arc::new))
            }
        })
    }

    fn entry(&mut self, directory: &FileId, name: &Name) -> Known<Option<Target>> {
        let since = self.entry_since(directory, name);
        since.then(|(fold, since)| match since {
            Some((_, target)) => Known::Is(target),
            None => folded_entry(&mut self.tables, fold.as_ref(), directory, name),
        })
    }

    fn entries(&mut self, directory: &FileId) -> Known<i64> {
        let fold = self.fold(&directory.principal);
        fold.then(|fold| self.entries_since(directory, fold))
    }

    fn lock(&mut self, file: &FileId) -> Known<Option<Lock>> {
        let key = Key::Lock(*file);
        let version = self.version(&key, 0);
        version.then(|version| {
            let Some(version) = version else {
                return Known::Is(self.replay.old_locks.get(file).copied());
            };
            let lock = self.replay.row(version.op).map(|row| Lock {
                holder: row.written.device,
                last: row.written.position,
            });
            match version.made() {
                Made::Gone => Known::Is(None),
                Made::Passed => self.change(version.op, &key).map(|change| match change {
                    Some(Change::Pass { to, .. }) => lock.map(|lock| Lock { holder: to, ..lock }),
                    _ => lock,
                }),
                _ => Known::Is(lock),
            }
        })
    }

    fn hold(&mut self, file: &FileId, family: Family, device: Device) -> Known<Option<Hold>> {
        let key = Key::Hold(*file, family, device);
        self.version(&key, 0).then(|version| {
            let Some(version) = version else {
                let old = self.replay.old_holds.get(&(*file, family, device));
                return Known::Is(old.cloned());
            };
            let last = self.position(version.op);
            if version.made() == Made::Gone {
                return Known::Is(None);
            }
            self.change(version.op, &key).map(|change| match change {
                Some(Change::Hold { ranges, since, .. }) => Some(Hold {
                    ranges,
                    since: since.unwrap_or(last),
                    last,
                }),
                _ => None,
            })
        })
    }

    fn holders(&mut self, file: &FileId, family: Family) -> Vec<Device> {
        self.replay.holders(file, family).into_iter().collect()
    }

    fn fold(&mut self, principal: &Principal) -> Known<Option<Fold>> {
        let version = self.version(&Key::Fold(*principal), 0);
        version.map(|version| match version {
            None => self.replay.old_folds.get(principal).copied(),
            Some(version) => self.replay.folds.get(&version.op).copied(),
        })
    }
}

/// The attributes of a file, without the times of a directory.
fn bare(inode: Arc<Inode>) -> Arc<Inode> {
    match inode.kind() == FileKind::Directory && inode.ctime.is_some() {
        true => Arc::new(attributes(Inode::clone(&inode))),
        false => inode,
    }
}
