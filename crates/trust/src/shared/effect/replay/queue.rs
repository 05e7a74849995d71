//! Who waits for the lock of a file, in the order of the log (decision 0061).
//!
//! A Claim that has no effect because another device has the lock says that its author waits. Who gets the lock, by a
//! Pass or by a Claim, waits no more. Nobody waits any more after an Unlock: then everybody sees that the lock is free.
//! The queue decides nothing about ops: a device that has forgotten the beginning of a log passes locks in another
//! order, and nothing else differs.

use std::collections::HashMap;

use super::view::View;
use super::{Made, Replay, Sources, Task};
use crate::shared::change::Change;
use crate::shared::effect::{Blocks, Bodies, Lock, Missing, Stop};
use crate::shared::itable::Known;
use crate::shared::key::Key;
use crate::shared::outcome::{NoEffect, Outcome};
use crate::shared::principal::{Device, FileId};

/// Who has the lock of a file at the end of the log, and who waits for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Queue {
    /// The lock, if somebody has it.
    pub lock: Option<Lock>,
    /// The holder has it for its next change: by a Claim or a Pass, and not by a Lock.
    pub brief: bool,
    /// Devices that wait, the first one first.
    pub waiting: Vec<Device>,
}

/// Queues as they were at a size of the log, so that each op is looked at once.
pub(super) type Queues = HashMap<FileId, (u64, Queue)>;

/// Queues that are kept. A device asks for those of files that its own calls wait for.
const MOST: usize = 1024;

impl Queue {
    /// What an op with effect did.
    fn take(&mut self, change: &Change, lock: Lock) {
        let (brief, holder) = match change {
            Change::Unlock { .. } => {
                *self = Queue::default();
                return;
            }
            Change::Pass { to, .. } => (true, *to),
            Change::Claim { .. } => (true, lock.holder),
            _ => (false, lock.holder),
        };
        self.brief = brief;
        self.lock = Some(Lock { holder, ..lock });
        self.waiting.retain(|device| *device != holder);
    }

    /// A Claim in vain.
    fn join(&mut self, device: Device) {
        if !self.waiting.contains(&device) {
            self.waiting.push(device);
        }
    }
}

impl Replay {
    /// The lock of a file at the end of the log, and who waits for it.
    ///
    /// # Errors
    /// As [`Replay::inode`].
    pub fn queue<S: Blocks + Bodies>(
        &mut self,
        file: &FileId,
        from: Sources<'_, S>,
    ) -> Result<Queue, Stop> {
        let key = Key::Lock(*file);
        // Judges the ops that name the lock.
        let lock = self.lock(self.size, file, from)?;
        if lock.is_none() {
            self.queues.remove(file);
            return Ok(Queue::default());
        }
        let (since, mut queue) = match self.queues.get(file) {
            Some(known) => known.clone(),
            None => (0, self.beginning(file)),
        };
        let mut missing = Missing::default();
        let mut known = self.size;
        for version in self.versions_since(&key, since) {
            let Some(row) = self.row(version.op) else {
                continue;
            };
            let (position, author) = (row.written.position, row.written.device);
            let outcome = self.rows.outcome(version.op);
            if outcome.is_none() {
                // A later op did not ask what became of it.
                self.work(Task::Op(version.op), from)?;
            }
            let in_vain = self.rows.outcome(version.op) == Some(Outcome::None(NoEffect::Locked));
            let has_effect = self.rows.outcome(version.op) == Some(Outcome::Effect);
            if !in_vain && !has_effect {
                continue;
            }
            match self.changed_by(version.op, &key, from, &mut missing)? {
                None if missing.is_empty() => {}
                None => {
                    known = known.min(position);
                    break;
                }
                Some(Change::Claim { .. }) if in_vain => queue.join(author),
                Some(_) if in_vain => {}
                Some(change) => queue.take(
                    &change,
                    Lock {
                        holder: author,
                        last: position,
                    },
                ),
            }
        }
        if self.queues.len() >= MOST {
            self.queues.clear();
        }
        self.queues.insert(*file, (known, queue.clone()));
        match missing.is_empty() {
            true => Ok(queue),
            false => Err(Stop::Missing(missing)),
        }
    }

    /// What is known of a lock that was taken before the first op that is kept. A program may have it.
    fn beginning(&self, file: &FileId) -> Queue {
        Queue {
            lock: self.old_locks.get(file).copied(),
            ..Queue::default()
        }
    }

    /// The ops that name a key, from a position on, and not before the last one that gave the lock up.
    fn versions_since(&self, key: &Key, since: u64) -> Vec<super::Version> {
        let first = self.first_op_at(since);
        let versions = self.keys.get(key).map(Vec::as_slice).unwrap_or_default();
        let freed = versions
            .iter()
            .rposition(|version| version.made() == Made::Gone);
        let begin = versions.partition_point(|version| version.op < first);
        let begin = begin.max(freed.unwrap_or(0));
        versions.get(begin..).unwrap_or_default().to_vec()
    }

    /// The change of a key by an op, if the op's body is here and has it.
    fn changed_by<S: Blocks + Bodies>(
        &self,
        op: u32,
        key: &Key,
        from: Sources<'_, S>,
        missing: &mut Missing,
    ) -> Result<Option<Change>, Stop> {
        let mut view = View::new(self, op, from);
        match view.change(op, key) {
            Known::Is(change) => Ok(change),
            Known::Damaged(_) => Ok(None),
            Known::NotYet => match view.tables.unsupported.take() {
                Some(why) => Err(why.into()),
                None => {
                    missing.bodies.append(&mut view.bodies);
                    Ok(None)
                }
            },
        }
    }
}
