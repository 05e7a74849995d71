//! Whose turn it is to change a file that many devices want to change (decision 0061).
//!
//! A call that finds its file locked sends a Claim and waits: the log is the queue. A device that has the lock for one
//! change passes it, in the entry of that change, to the device that has waited longest. If the call that took the lock was
//! cancelled, the device passes the lock on at once ([`Files::leftover`]).

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use trust::device::DeviceKey;
use trust::error::Reject;
use trust_shared::calls;
use trust_shared::change::Change;
use trust_shared::checkpoint::Row;
use trust_shared::effect::replay::{Queue, Sink, Source, Sources};
use trust_shared::effect::{About, Lock};
use trust_shared::guard::Guard;
use trust_shared::key::Key;
use trust_shared::ops::Op;
use trust_shared::outline::Outline;
use trust_shared::principal::{Device, FileId};

use super::answer::Refused;
use super::call::{Call, FileRef, Stamped};
use super::plan::{Plan, Try};
use super::sight::{Halt, Sight};
use super::{Files, question};
use ordering::volume::{Leftover, PATIENCE};

/// Files that are looked at in one step.
const MOST: usize = 64;
/// Longest key of a lock's row, bytes.
const MAX_LOCK_BYTES: usize = 64;

impl Sight<'_> {
    /// What a call comes to whose file another device has locked. It says once that it waits.
    pub(super) fn waits(
        &mut self,
        call: &Call,
        attempt: Try,
        (file, lock): (FileId, Lock),
    ) -> Result<Plan, Halt> {
        let may_write = |device| {
            let owner = file.principal;
            self.members.may_write(device, owner, self.members_at)
        };
        // A device that may not write the file any more cannot use its lock.
        if lock.last < attempt.lapsed || !may_write(lock.holder) {
            return Plan::op(calls::claim(file, Some(lock)));
        }
        if matches!(call, Call::Lock { wait: false, .. }) {
            return Err(Refused::Locked.into());
        }
        match self.queue(&file)? {
            Some(queue) if !queue.waiting.contains(&self.device) => {
                Plan::op(calls::claim(file, None))
            }
            _ => Ok(Plan::Blocked(lock.last)),
        }
    }

    /// An op for a call that may have to wait for its turn, or whose turn it is. A call that fails again and again first
    /// takes the lock of its file.
    pub(super) fn in_turn(&mut self, call: &Call, attempt: Try, mut op: Op) -> Result<Op, Halt> {
        if matches!(call, Call::Lock { .. } | Call::Unlock { .. }) || only_claims(&op) {
            return Ok(op);
        }
        let free = op.guards.iter().find_map(|guard| match guard {
            Guard::Unlocked { file } => Some(*file),
            _ => None,
        });
        if let Some(file) = free.filter(|_| attempt.failed >= PATIENCE) {
            return Ok(calls::claim(file, None));
        }
        let held = op.guards.iter().filter_map(|guard| match guard {
            Guard::Holds { file } => Some(*file),
            _ => None,
        });
        for file in held.collect::<Vec<FileId>>() {
            if let Some(queue) = self.queue(&file)?.filter(|queue| queue.brief) {
                let change = self.given_up(file, &queue);
                let changes = op.changes.into_iter().chain([change]);
                op = Op::new(op.guards, changes.collect());
            }
        }
        Ok(op)
    }

    /// Gives a lock to the device that has waited longest and may change the file, or up.
    pub(super) fn given_up(&self, file: FileId, queue: &Queue) -> Change {
        let may_write = |device: &Device| {
            let owner = file.principal;
            let may = self.members.may_write(*device, owner, self.members_at);
            *device != self.device && may
        };
        let next = queue.waiting.iter().copied().find(may_write);
        calls::give_up(file, next)
    }

    /// The devices that wait for the lock of a file. None before the last position of the log: the queue is known only there.
    pub(super) fn queue(&mut self, file: &FileId) -> Result<Option<Queue>, Halt> {
        if self.at != self.replay.size() {
            return Ok(None);
        }
        let sources = self.sources();
        Ok(Some(self.replay.queue(file, sources)?))
    }
}

/// Whether an op only says that its author wants to make the next change.
pub(super) fn only_claims(op: &Op) -> bool {
    let claims = |change: &Change| matches!(change, Change::Claim { .. });
    op.changes.iter().all(claims)
}

/// Whether two ops do the same, whoever has the lock afterwards.
pub(super) fn do_the_same(one: &Op, other: &Op) -> bool {
    let gives_up =
        |change: &&Change| !matches!(change, Change::Unlock { .. } | Change::Pass { .. });
    let changes =
        |op: &'_ Op| -> Vec<Change> { op.changes.iter().filter(gives_up).cloned().collect() };
    one.guards == other.guards && changes(one) == changes(other)
}

/// Files that this device has claimed. Another device may pass the lock of one at any time.
#[derive(Debug, Default)]
pub(super) struct Claimed(Mutex<BTreeSet<FileId>>);

impl Clone for Claimed {
    fn clone(&self) -> Self {
        Claimed(Mutex::new(self.get().clone()))
    }
}

impl Claimed {
    fn get(&self) -> MutexGuard<'_, BTreeSet<FileId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the locks that an entry of this device names.
    pub(super) fn note(&self, outline: &Outline) {
        let keys = outline.ops().iter().flatten();
        let locks = keys.filter_map(|key| match key {
            Key::Lock(file) => Some(*file),
            _ => None,
        });
        self.get().extend(locks);
    }

    /// Gives the files, for a restart.
    pub(super) fn store(&self, to: &mut impl Sink) {
        let files = self.get();
        to.put(|e| e.varint(files.len() as u64));
        for file in files.iter() {
            to.put(|e| e.bytes(&Row::Lock((*file).into()).encode()));
        }
    }

    /// Reads what [`Claimed::store`] gave.
    pub(super) fn restore(from: &mut impl Source) -> Result<Claimed, Reject> {
        let count = from.take(|d| d.varint())?;
        let mut files = BTreeSet::new();
        for _ in 0..count {
            files.insert(from.take(|d| match Row::decode(d.bytes(MAX_LOCK_BYTES)?)? {
                Row::Lock(file) => Ok(FileId::from(file)),
                _ => Err(d.bad("a claim of another row than a lock")),
            })?);
        }
        Ok(Claimed(Mutex::new(files)))
    }
}

impl Files {
    /// The files of the volume as this device's own: it gives on the locks that others pass to it when it has no use
    /// for them.
    #[must_use]
    pub fn of(mut self, device: DeviceKey) -> Files {
        self.own = Some(device);
        self
    }

    /// A lock that this device has for one change, and that none of the ops `wanted` is about.
    pub(super) fn unused(
        &self,
        device: DeviceKey,
        wanted: &[Op],
    ) -> Leftover<super::Missing, Stamped> {
        let Some(number) = self.roster.number(device) else {
            return Leftover::Nothing;
        };
        let claimed: Vec<FileId> = self.claimed.get().iter().copied().take(MOST).collect();
        for file in claimed {
            if wanted.iter().any(|op| is_about(op, &file)) {
                continue;
            }
            let asked = self.ask(question(&(16u8, file)), |replay| {
                let from = Sources {
                    members: self.members(),
                    stored: &*self.shelf,
                };
                Ok(replay.queue(&file, from)?)
            });
            match asked {
                Ok(queue) if queue.lock.is_some_and(|lock| lock.holder == number) => {
                    if queue.brief {
                        let file = FileRef::File(file);
                        return Leftover::Call(Call::Unlock { file }.into());
                    }
                    self.claimed.get().remove(&file);
                }
                Ok(queue) if queue.waiting.contains(&number) => {}
                Err(Halt::Missing(missing)) => return Leftover::Missing(missing),
                _ => {
                    self.claimed.get().remove(&file);
                }
            }
        }
        Leftover::Nothing
    }

    /// Whether an op passes a lock to a device that may not have it.
    pub(super) fn passes_in_vain(&self, op: &Op, at: u64) -> bool {
        op.changes.iter().any(|change| match change {
            Change::Pass { file, to } => !self.members().may_write(*to, file.principal, at),
            _ => false,
        })
    }

    /// Whether entries of the device are this device's own.
    pub(super) fn is_own(&self, number: Device) -> bool {
        let own = self.own.and_then(|own| self.roster.number(own));
        own == Some(number)
    }
}

/// Whether an op depends on the lock of a file, or changes it.
fn is_about(op: &Op, file: &FileId) -> bool {
    let lock = Key::Lock(*file);
    let changes = op.changes.iter().any(|change| change.key() == lock);
    changes || About::op(op).contains(&About::Key(lock))
}
