//! The queue of the devices that wait for the lock of a file, in the order of the log (decision 0061).
//!
//! A Claim that has no effect because another device has the lock says that its author waits. Who gets the lock, by a
//! Pass or by a Claim, waits no more. After an Unlock everybody sees that the lock is free. Who waits then claims again,
//! and keeps its place: the device that gave the lock up may not have known of it. A second Unlock ends the wait of those
//! who waited at the first. The queue decides nothing about ops: a device that has forgotten the beginning of a log passes
//! locks in another order, and nothing else differs.

use std::collections::HashMap;

use super::view::View;
use super::{Replay, Sources, Task, Waiting};
use crate::change::Change;
use crate::effect::{Blocks, Bodies, Lock, Missing, Stop};
use crate::itable::Known;
use crate::key::Key;
use crate::outcome::{NoEffect, Outcome};
use crate::principal::{Device, FileId};

/// Who has the lock of a file at the end of the log, and who waits for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Queue {
    /// The lock, if somebody has it.
    pub lock: Option<Lock>,
    /// The holder has it for its next change: by a Claim or a Pass, and not by a Lock.
    pub brief: bool,
    /// Devices that wait, the first one first.
    pub waiting: Vec<Device>,
    /// How many of them, from the first one on, waited when the lock was given up last.
    pub stayed: usize,
}

/// Queues as they were at a size of the log, so that each op is looked at once.
pub(super) type Queues = HashMap<FileId, (u64, Queue)>;

/// Queues that are kept. A device asks for those of files that its own calls wait for.
const MOST: usize = 1024;

/// Ops whose bodies are asked for at a time.
const STAGE: usize = 64;

impl Queue {
    /// What an op with effect did.
    fn take(&mut self, change: &Change, lock: Lock) {
        let (brief, holder) = match change {
            Change::Unlock { .. } => {
                self.waiting.drain(..self.stayed.min(self.waiting.len()));
                self.stayed = self.waiting.len();
                (self.lock, self.brief) = (None, false);
                return;
            }
            Change::Pass { to, .. } => (true, *to),
            Change::Claim { .. } => (true, lock.holder),
            _ => (false, lock.holder),
        };
        self.brief = brief;
        self.lock = Some(Lock { holder, ..lock });
        if let Some(place) = self.waiting.iter().position(|device| *device == holder) {
            self.waiting.remove(place);
            let stayed = usize::from(place < self.stayed);
            self.stayed = self.stayed.saturating_sub(stayed);
        }
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
        let known = self.queues.get(file).cloned();
        let (since, mut queue) = known.unwrap_or_else(|| (0, self.beginning(file)));
        let mut missing = Missing::default();
        // Before the entry whose ops are looked at.
        let mut done = (since, queue.clone());
        for versions in self.versions_since(&key, since).chunks(STAGE) {
            self.note_missing(versions, from, &mut missing);
            for version in versions {
                if !missing.is_empty() {
                    break;
                }
                let Some(written) = self.row(version.op).map(|row| row.written) else {
                    continue;
                };
                if done.0 != written.position {
                    done = (written.position, queue.clone());
                }
                match self.work(Task::Op(version.op), &mut Waiting::default(), from) {
                    Err(Stop::Missing(more)) => missing.add(more),
                    judged => {
                        judged?;
                        let change = self.changed_by(version.op, &key, from, &mut missing)?;
                        let change = change.filter(|_| missing.is_empty());
                        let by = (written.device, written.position);
                        self.count(version.op, by, change, &mut queue);
                    }
                }
            }
            if !missing.is_empty() {
                break;
            }
        }
        if self.queues.len() >= MOST {
            self.queues.clear();
        }
        if missing.is_empty() {
            done = (self.size, queue.clone());
        }
        self.queues.insert(*file, done);
        missing.or(queue)
    }

    /// What an op that was judged does to a queue.
    fn count(
        &self,
        op: u32,
        (author, last): (Device, u64),
        change: Option<Change>,
        queue: &mut Queue,
    ) {
        let holder = author;
        match (self.rows.outcome(op), change) {
            (Some(Outcome::Effect), Some(change)) => queue.take(&change, Lock { holder, last }),
            (Some(Outcome::None(NoEffect::Locked)), Some(Change::Claim { .. })) => {
                queue.join(author);
            }
            _ => {}
        }
    }

    /// Notes the bodies of ops that are missing together, and not one after the other.
    fn note_missing<S: Blocks + Bodies>(
        &self,
        versions: &[super::Version],
        from: Sources<'_, S>,
        missing: &mut Missing,
    ) {
        let rows = versions.iter().filter_map(|version| self.row(version.op));
        for position in rows.map(|row| row.written.position) {
            if matches!(from.stored.body(position), Ok(None)) {
                missing.add_body(position);
            }
        }
    }

    /// What is known of a lock that was taken before the first op that is kept. A program may have it.
    fn beginning(&self, file: &FileId) -> Queue {
        Queue {
            lock: self.old_locks.get(file).copied(),
            ..Queue::default()
        }
    }

    /// The ops that name a key, from a position on.
    fn versions_since(&self, key: &Key, since: u64) -> Vec<super::Version> {
        let first = self.first_op_at(since);
        let versions = self.keys.get(key).map(Vec::as_slice).unwrap_or_default();
        let begin = versions.partition_point(|version| version.op < first);
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
                    view.bodies.drain(..).for_each(|at| missing.add_body(at));
                    Ok(None)
                }
            },
        }
    }
}
