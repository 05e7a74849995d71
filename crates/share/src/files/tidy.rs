//! What keeps a log cheap to replay: which principals should be folded, and forgetting what is folded (decision 0051).

use std::collections::BTreeMap;

use trust::shared::device::DeviceKey;
use trust::shared::effect::Missing;
use trust::shared::effect::replay::{Base, Sources};
use trust::shared::key::Key;
use trust::shared::members::Members;
use trust::shared::outcome::Written;
use trust::shared::outline::Outline;
use trust::shared::principal::Principal;

use super::sight::Halt;
use super::{Files, question};
use crate::roster::END;

/// A principal with changes is folded after so many leaves, however few its changes are: what lies before the oldest
/// change that is not folded cannot be forgotten.
const MAX_AGE: u64 = 1 << 16;

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

    /// Forgets the outlines of entries that every reader takes from folds, if they have so many ops, and not few of all.
    ///
    /// # Errors
    /// What must be fetched first.
    pub fn forget(&self, worth: u64) -> Result<(), Missing> {
        let asked = self.ask(question(&2u8), |replay| {
            let from = Sources {
                members: self.members(),
                stored: &*self.shelf,
            };
            let upto = replay.forgettable(from)?;
            let worth = worth.max(replay.kept_ops() as u64 / 8);
            if (replay.ops_before(upto) as u64) < worth {
                return Ok(());
            }
            Ok(replay.forget_before(upto, from)?)
        });
        match asked {
            Err(Halt::Missing(missing)) => Err(missing),
            // A tree that a member signed may be malformed: then everything is kept.
            Ok(()) | Err(Halt::Refused(_) | Halt::Locked(..)) => Ok(()),
        }
    }
}
