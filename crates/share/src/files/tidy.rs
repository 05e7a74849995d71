//! What keeps a log cheap to replay: which principals should be folded, and forgetting what is folded (decision 0051).

use std::collections::BTreeMap;

use trust::device::DeviceKey;
use trust::error::Reject;
use trust_shared::effect::replay::{Base, Sink, Source, Sources};
use trust_shared::effect::{Missing, Replay};
use trust_shared::key::Key;
use trust_shared::members::{MAX_PRINCIPALS, Members};
use trust_shared::outcome::Written;
use trust_shared::outline::Outline;
use trust_shared::principal::Principal;

use super::fold::MAX_FOLDED_OPS;
use super::sight::Halt;
use super::{Files, Shelf, question};
use ordering::roster::END;

/// A principal with changes is folded after so many leaves, however few its changes are: each changed name that nobody
/// has folded takes memory on every device.
const MAX_AGE: u64 = 1 << 16;

/// Ops that are kept one by one at most, if their entries are attested: some 26 MiB. Without folds a device
/// judges the oldest of them then.
pub const MAX_UNFORGOTTEN_OPS: u64 = 1 << 20;

/// Ops that are forgotten at a time, at most: some must be judged first, and meanwhile no program is answered.
const STAGE_OPS: u32 = 1 << 14;

/// Changes of principals since the last entry that folds them.
#[derive(Debug, Clone, Default)]
pub(super) struct Unfolded {
    since: BTreeMap<Principal, Since>,
    /// Entries that fold.
    folds: u64,
    /// Position of the last of them.
    last: u64,
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
            last: 0,
        }
    }

    pub(super) fn store(&self, to: &mut impl Sink) {
        let count = self.since.len() as u64;
        to.put(|e| e.varint(self.folds).varint(self.last).varint(count));
        for (principal, since) in &self.since {
            to.put(|e| {
                e.raw(principal.as_bytes());
                e.varint(since.first).varint(since.changes)
            });
        }
    }

    /// Reads what [`Unfolded::store`] gave.
    pub(super) fn restore(from: &mut impl Source) -> Result<Unfolded, Reject> {
        let most = MAX_PRINCIPALS as u64;
        let (folds, last, count) = from.take(|d| {
            let (folds, last) = (d.varint()?, d.varint()?);
            Ok((folds, last, d.bounded(most, "too many principals")?))
        })?;
        let mut since = BTreeMap::new();
        for _ in 0..count {
            let (principal, row) = from.take(|d| {
                let principal = Principal::from_bytes(d.array()?);
                let (first, changes) = (d.varint()?, d.varint()?);
                Ok((principal, Since { first, changes }))
            })?;
            since.insert(principal, row);
        }
        Ok(Unfolded { since, folds, last })
    }

    /// Counts an entry. What its author may not do counts for nothing.
    pub(super) fn count(&mut self, written: &Written, outline: &Outline, members: &Members) {
        let at = written.position;
        for key in outline.ops().iter().flatten() {
            if !members.may_change(written.device, key, at) {
                continue;
            }
            match key {
                Key::Inode(file) | Key::Entry(file, _) | Key::Times(file) => {
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
                    self.last = at;
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

    /// Position of the last fold in the log. 0 if none has come since the device's start.
    pub fn last_fold(&self) -> u64 {
        self.unfolded.last
    }

    /// Number of ops whose outlines are kept.
    pub fn kept_ops(&self) -> u64 {
        self.known.get().kept_ops() as u64
    }

    /// Number of those that may be forgotten. The others are the last ones of what has changed and is not folded.
    pub fn ops_since_forgetting(&self) -> u64 {
        self.known.get().ops_since_begin() as u64
    }

    /// Forgets the outlines of old entries, but for the last change of what is not folded: at least `worth` ops, at most
    /// [`STAGE_OPS`], or none. What lies before `attested` is attested or accepted. Gives whether it has forgotten some.
    ///
    /// # Errors
    /// What must be fetched first.
    pub fn forget(&self, device: DeviceKey, attested: u64, worth: u64) -> Result<bool, Missing> {
        let worth = worth.min(STAGE_OPS.into());
        let question = question(&2u8);
        if let Some(missing) = self.shelf.awaited(question) {
            return Err(missing);
        }
        let asked = self.ask(question, |replay| {
            let from = Sources {
                members: self.members(),
                stored: &*self.shelf,
            };
            let limit = attested.min(replay.size());
            let after = self.forgettable(replay, device, (limit, worth), from)?;
            let Some(after) = after else {
                return Ok(false);
            };
            replay.forget_before(after, from)?;
            Ok(true)
        });
        match asked {
            Ok(forgotten) => Ok(forgotten),
            Err(Halt::Missing(missing)) => Err(missing),
            // A tree that a member signed may be malformed: then everything is kept.
            Err(Halt::Refused(_) | Halt::Locked(..)) => Ok(false),
        }
    }

    /// The position up to which to forget. After the entry of a fold there is the least to judge.
    fn forgettable(
        &self,
        replay: &mut Replay,
        device: DeviceKey,
        (limit, worth): (u64, u64),
        from: Sources<'_, Shelf>,
    ) -> Result<Option<u64>, Halt> {
        let begins = replay.begins();
        let stage = replay.position_after(begins, STAGE_OPS);
        let stage = stage.map_or(limit, |stage| stage.min(limit));
        let folded = replay.after_fold(stage, from)?;
        let after = self.spared(replay, device, folded, from)?;
        if ops_from_begin(replay, after) >= worth {
            return Ok(Some(after));
        }
        // Nobody has folded for long, or nobody can.
        let many = replay.ops_since_begin() as u64 > MAX_UNFORGOTTEN_OPS;
        let stage = match many {
            true => stage,
            false if replay.after_fold(limit, from)? > stage => {
                self.spared(replay, device, stage, from)?
            }
            false => begins,
        };
        Ok((ops_from_begin(replay, stage) >= worth).then_some(stage))
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

/// Ops that are kept one by one before a position.
fn ops_from_begin(replay: &Replay, position: u64) -> u64 {
    let before = replay.ops_before(position);
    before.saturating_sub(replay.ops_before(replay.begins())) as u64
}
