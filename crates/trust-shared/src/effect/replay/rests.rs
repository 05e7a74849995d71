//! Which entries a value rests on: those that set it, those that would have set it and had no effect, and those that
//! the guards of all these look at. Whoever uses a value must know that the authors of these entries stand by them
//! (design `share.md`, *The read rule*). An op without permission is left out: nothing looks at its guards, and who
//! may write follows from decisions that their authors have attested. Else a member that may only read could hold up
//! the readers of every file. A Claim in vain and a Hold in vain are left out too, so nobody waits for those who
//! wait.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::{Made, Replay};
use crate::change::Change;
use crate::effect::{Bodies, Missing, Stop};
use crate::guard::Guard;
use crate::hold::Family;
use crate::key::Key;
use crate::ops::Op;
use crate::outcome::{NoEffect, Outcome};
use crate::principal::{Device, FileId};
use trust::error::Reject;

/// A value that a question is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum About {
    /// The value of a key.
    Key(Key),
    /// Which entries a directory has.
    Entries(FileId),
    /// What all devices hold of a file.
    Holds(FileId, Family),
}

impl About {
    /// The values that decide whether an op has effect.
    pub fn op(op: &Op) -> Vec<About> {
        let mut about = Vec::new();
        for guard in &op.guards {
            about.push(match guard {
                Guard::HashIs { file, .. } => About::Key(Key::Inode(*file)),
                Guard::EntryIs {
                    directory, name, ..
                }
                | Guard::Linked {
                    parent: directory,
                    name,
                    ..
                } => About::Key(Key::Entry(*directory, name.clone())),
                Guard::Empty { directory } => About::Entries(*directory),
                Guard::FoldIs { principal, .. } => About::Key(Key::Fold(*principal)),
                Guard::Unlocked { file }
                | Guard::Holds { file }
                | Guard::HolderLast { file, .. } => About::Key(Key::Lock(*file)),
                Guard::HoldLast {
                    file,
                    family,
                    device,
                    ..
                }
                | Guard::HeldSince {
                    file,
                    family,
                    device,
                    ..
                } => About::Key(Key::Hold(*file, *family, *device)),
            });
        }
        for change in &op.changes {
            match change {
                Change::Remove { file } => {
                    about.push(About::Key(Key::Inode(*file)));
                    about.push(About::Entries(*file));
                }
                // Of the times nothing depends. What a Touch needs is the directory.
                Change::Link { directory, .. } | Change::Touch { directory, .. } => {
                    about.push(About::Key(Key::Inode(*directory)));
                }
                Change::Hold { file, family, .. } => {
                    about.push(About::Key(Key::Inode(*file)));
                    about.push(About::Holds(*file, *family));
                }
                Change::Unlink { .. } | Change::Decide(_) => {}
                change => about.push(About::Key(change.key())),
            }
        }
        about
    }

    /// The principal whose fold the value lies in.
    fn folded(&self) -> Option<Key> {
        match self {
            About::Key(Key::Inode(file) | Key::Entry(file, _) | Key::Times(file))
            | About::Entries(file) => Some(Key::Fold(file.principal)),
            About::Key(_) | About::Holds(..) => None,
        }
    }
}

/// Another device has the lock.
const IN_VAIN: Option<Outcome> = Some(Outcome::None(NoEffect::Locked));

/// Whether an op only wants a lock: a claim, or a hold. One that fails changes no value, so nobody needs to wait for its
/// author. The value rests on the last op before it that set the lock.
fn only_waits(op: &Op) -> bool {
    let holds = |change: &Change| matches!(change, Change::Hold { .. } | Change::Release { .. });
    op.guards.is_empty() && matches!(op.changes.as_slice(), [Change::Claim { .. }])
        || op.changes.iter().all(holds)
}

/// What has been looked at: of the ops that name a value, those from the first on and before the second.
type Seen = HashMap<About, (u32, u32)>;

impl Replay {
    /// The entries from the position `since` on that values before the position `at` rest on, with their authors. The
    /// values have been asked for, so what they depend on is evaluated.
    ///
    /// # Errors
    /// [`Stop::Missing`] when bodies are missing.
    pub fn rests_on<S: Bodies>(
        &self,
        at: u64,
        about: Vec<About>,
        since: u64,
        stored: &S,
    ) -> Result<Vec<(u64, Device)>, Stop> {
        let before = self.first_op_at(at);
        let about = about.into_iter().map(|about| (about, before)).collect();
        self.follow(about, since, BTreeSet::new(), stored)
    }

    /// The entries from the position `since` on that the outcome of an op rests on, and its own.
    ///
    /// # Errors
    /// As [`Replay::rests_on`].
    pub fn outcome_rests_on<S: Bodies>(
        &self,
        position: u64,
        op: usize,
        since: u64,
        stored: &S,
    ) -> Result<Vec<(u64, Device)>, Stop> {
        let first = self.first_op_at(position);
        let op = first.saturating_add(u32::try_from(op).unwrap_or(u32::MAX));
        self.follow(Vec::new(), since, BTreeSet::from([op]), stored)
    }

    /// The first op at or after a position.
    pub(super) fn first_op_at(&self, at: u64) -> u32 {
        self.rows.first_op_at(at)
    }

    fn follow<S: Bodies>(
        &self,
        mut about: Vec<(About, u32)>,
        since: u64,
        mut waiting: BTreeSet<u32>,
        stored: &S,
    ) -> Result<Vec<(u64, Device)>, Stop> {
        // What came before the first position was attested when it was forgotten.
        let first = self.first_op_at(since.max(self.from));
        let (mut seen, mut ops) = (Seen::new(), HashSet::new());
        let (mut entries, mut missing) = (BTreeSet::new(), Missing::default());
        loop {
            while let Some((value, before)) = about.pop() {
                if let Some(fold) = value.folded() {
                    self.look(About::Key(fold), (first, before), &mut seen, &mut waiting);
                }
                self.look(value, (first, before), &mut seen, &mut waiting);
            }
            // The last one first: then what lies before it is mostly looked at once.
            let Some(op) = waiting.pop_last() else { break };
            let Some(row) = self.row(op).filter(|_| ops.insert(op)) else {
                continue;
            };
            let outcome = self.rows.outcome(op);
            if outcome == Some(Outcome::None(NoEffect::NotPermitted)) {
                continue;
            }
            let body = stored.body(row.written.position);
            let found = match &body {
                Ok(Some(body)) => body.ops().get(op.saturating_sub(row.first_op) as usize),
                _ => None,
            };
            if found.is_some_and(only_waits) && outcome == IN_VAIN {
                continue;
            }
            entries.insert((row.written.position, row.written.device));
            match body {
                Ok(Some(_)) => {
                    let rests = found.map(About::op).unwrap_or_default();
                    about.extend(rests.into_iter().map(|about| (about, op)));
                }
                Ok(None) if missing.is_long() => break,
                Ok(None) => missing.add_body(row.written.position),
                Err(why @ Reject::Unsupported { .. }) => return Err(why.into()),
                Err(_) => {}
            }
        }
        match missing.is_empty() {
            true => Ok(entries.into_iter().collect()),
            false => Err(Stop::Missing(missing)),
        }
    }

    /// Notes the ops that a value before an op rests on: all on a directory's entries; of a key, those back to the
    /// last one that set it.
    fn look(
        &self,
        about: About,
        (first, before): (u32, u32),
        seen: &mut Seen,
        waiting: &mut BTreeSet<u32>,
    ) {
        let known = seen.get(&about).copied();
        if known.is_some_and(|(low, high)| low < before && before <= high) {
            return;
        }
        let mut low = before;
        match &about {
            About::Entries(directory) => {
                let steps = self.directories.get(directory);
                let steps = steps.map(Vec::as_slice).unwrap_or_default();
                let begin = steps.partition_point(|step| step.op < first);
                let end = steps.partition_point(|step| step.op < before);
                let between = steps.get(begin..end).unwrap_or_default();
                waiting.extend(between.iter().map(|step| step.op));
                low = 0;
            }
            About::Holds(file, family) => {
                for device in self.holders(file, *family) {
                    let hold = Key::Hold(*file, *family, device);
                    self.look(About::Key(hold), (first, before), seen, waiting);
                }
                low = first;
            }
            About::Key(key) => {
                let versions = self.keys.get(key);
                let versions = versions.map(Vec::as_slice).unwrap_or_default();
                let begin = versions.partition_point(|version| version.op < first);
                let end = versions.partition_point(|version| version.op < before);
                for version in versions.get(begin..end).unwrap_or_default().iter().rev() {
                    waiting.insert(version.op);
                    low = version.op;
                    if version.made() != Made::Nothing {
                        break;
                    }
                }
            }
        }
        let joined = match known {
            Some((known, high)) if before >= known && low <= high => {
                (low.min(known), high.max(before))
            }
            _ => (low, before),
        };
        seen.insert(about, joined);
    }
}
