//! What keeps a log cheap to replay: which principals should be folded, and forgetting what is folded (decision 0051).

use std::collections::BTreeMap;

use trust::shared::device::DeviceKey;
use trust::shared::effect::replay::{Base, Sources};
use trust::shared::effect::{Missing, Replay};
use trust::shared::key::Key;
use trust::shared::members::Members;
use trust::shared::outcome::Written;
use trust::shared::outline::Outline;
use trust::shared::principal::Principal;

use super::fold::MAX_FOLDED_OPS;
use super::sight::Halt;
use super::{Files, Shelf, question};
use crate::roster::END;

/// A principal with changes is folded after so many leaves, however few its changes are: each changed name that nobody
/// has folded takes memory on every device.
const MAX_AGE: u64 = 1 << 16;

/// Ops that are kept one by one at most, if their entries are attested: some 60 MiB. Without folds of others a device
/// evaluates half of them then.
pub const MAX_UNFORGOTTEN_OPS: u64 = 1 << 20;

/// Changes of principals since the last entry that folds them.
#[derive(Debug, Clone, Default)]
pub(super) struct Unfolded {
    since: BTreeMap<Principal, Since>,
    /// Entries that fold.
    folds: u64,
}

#[derive(Debug, Clone, Copy)]
struct Since {
    first: u64,
    changes: u64,
}

impl Unfolded {
    /// What a checkpoint leaves to be folded.
    pub(super) fn of(base: &Base) -> Unfolded {
        let since = base.unfolded().into_iter();
        let since =
            since.map(|(principal, (first, changes))| (principal, Since { first, changes }));
        Unfolded {
            since: since.collect(),
            folds: 0,
        }
    }

    /// Counts an entry. What its author may not do counts for nothing.
    pub(super) fn count(&mut self, written: &Written, outline: &Outline, members: &Members) {
        let at = written.position;
        for key in outline.ops().iter().flatten() {
            if !members.may_change(written.device, key, at) {
                continue;
            }
            match key {
                Key::Inode(file) | Key::Entry(file, _) => {
                    let new = Since {
                        first: at,
                        changes: 0,
                    };
                    let since = self.since.entry(file.principal).or_insert(new);
                    since.changes = since.changes.saturating_add(1);
                }
                Key::Fold(principal) => {
                    self.since.remove(principal);
                    self.folds = self.folds.saturating_add(1);
                }
                _ => {}
            }
        }
    }
}

impl Files {
    /// A principal that a device should fold: it may, and there are `changes` since the last fold, or old ones.
    pub fn due(&self, device: DeviceKey, changes: u64) -> Option<Principal> {
        let device = self.roster.number(device)?;
        if self.mute.is_some() || !self.members().active(device, END) {
            return None;
        }
        let size = self.known.get().size();
        let due =
            |since: &Since| since.changes >= changes || size.saturating_sub(since.first) >= MAX_AGE;
        let mut due = self.unfolded.since.iter().filter(|(_, since)| due(since));
        let may_write = |principal| self.members().may_write(device, principal, END);
        let found = due.find(|(principal, _)| may_write(**principal))?;
        Some(*found.0)
    }

    /// Number of ops since the last fold of a principal, those of others included. 0 where that cannot be told yet.
    pub fn ops_since_fold(&self, principal: Principal) -> u64 {
        let since = self.ask(question(&(3u8, principal)), |replay| {
            let from = Sources {
                members: self.members(),
                stored: &*self.shelf,
            };
            let fold = replay.last_fold(replay.size(), principal, from)?;
            let before = replay.ops_before(fold.map_or(0, |fold| fold.upto));
            Ok(replay.kept_ops().saturating_sub(before) as u64)
        });
        since.unwrap_or(0)
    }

    /// Number of folds in the log. It grows when there may be something to forget.
    pub fn folds(&self) -> u64 {
        self.unfolded.folds
    }

    /// Number of ops whose outlines are kept.
    pub fn kept_ops(&self) -> u64 {
        self.known.get().kept_ops() as u64
    }

    /// Number of those that may be forgotten. The others are the last ones of what has changed and is not folded.
    pub fn ops_since_forgetting(&self) -> u64 {
        self.known.get().ops_since_begin() as u64
    }

    /// Forgets the outlines of entries that nobody needs any more, but for the last change of what is not folded. What lies
    /// before `attested` is attested or accepted. Forgets at least `worth` ops, and not few of all, or nothing.
    ///
    /// # Errors
    /// What must be fetched first.
    pub fn forget(&self, device: DeviceKey, attested: u64, worth: u64) -> Result<(), Missing> {
        let asked = self.ask(question(&2u8), |replay| {
            let from = Sources {
                members: self.members(),
                stored: &*self.shelf,
            };
            let limit = attested.min(replay.size());
            let many = replay.ops_since_begin() as u64 > MAX_UNFORGOTTEN_OPS;
            let after = match many {
                // Nobody has folded for long, or nobody can.
                true => {
                    let half = (MAX_UNFORGOTTEN_OPS / 2) as u32;
                    let half = replay.position_after(replay.begins(), half);
                    half.map_or(limit, |half| half.min(limit))
                }
                false => {
                    let after = replay.after_fold(limit, from)?;
                    self.spared(replay, device, after, from)?
                }
            };
            let gone = replay.ops_before(after) - replay.ops_before(replay.begins());
            let worth = worth.max(replay.kept_ops() as u64 / 8);
            if (gone as u64) < worth {
                return Ok(());
            }
            Ok(replay.forget_before(after, from)?)
        });
        match asked {
            Err(Halt::Missing(missing)) => Err(missing),
            // A tree that a member signed may be malformed: then everything is kept.
            Ok(()) | Err(Halt::Refused(_) | Halt::Locked(..)) => Ok(()),
        }
    }

    /// A position that is not beyond `most`, and so that this device still has many ops of its next fold one by one: the
    /// last ones before a position are folded together, however many they are.
    fn spared(
        &self,
        replay: &mut Replay,
        device: DeviceKey,
        most: u64,
        from: Sources<'_, Shelf>,
    ) -> Result<u64, Halt> {
        let Some(device) = self.roster.number(device) else {
            return Ok(most);
        };
        let mut spared = most;
        for principal in self.unfolded.since.keys() {
            if !self.members().may_write(device, *principal, END) {
                continue;
            }
            let fold = replay.last_fold(replay.size(), *principal, from)?;
            let since = fold.map_or(0, |fold| fold.upto).max(replay.begins());
            let next = replay.position_after(since, MAX_FOLDED_OPS);
            spared = next.map_or(spared, |next| spared.min(next));
        }
        Ok(spared)
    }
}
