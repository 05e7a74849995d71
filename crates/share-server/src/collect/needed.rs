//! What of a log's blocks is needed, without input or output: for every position of the window and for each pin, the last
//! fold with effect before it, and all that any entry since names, with or without effect (design `share.md`,
//! *Collection*).
//!
//! A device that begins with the log's first leaf judges entries as old as the log: those that a step of its forgetting
//! leaves, those that changed a directory of which it counts the entries, and those that came between a fold's position
//! and its entry. It reads nothing for that but bodies, and the names and attributes in folds with effect. So these are
//! needed of all folds ([`Folds::roots`]).
//!
//! Which folds have effect is judged by the evaluator of [`trust_shared::effect`], which is given nothing but members and
//! folds: a fold depends on nothing else. No other op is judged, but for the permission of its author.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use trust::Reject;
use trust::map::MapRoot;
use trust::reach::{Found, Wanted};
use trust_shared::change::Change;
use trust_shared::effect::replay::Sources;
use trust_shared::effect::{Blocks, Bodies, Replay, Volume};
use trust_shared::guard::Guard;
use trust_shared::itable::Fold;
use trust_shared::key::Key;
use trust_shared::members::Members;
use trust_shared::ops::{Body, Op};
use trust_shared::outcome::{Outcome, Written};
use trust_shared::principal::Principal;

/// Ops of folds that are kept for their values.
const KEPT_OPS: usize = 256;

/// A fold that cannot be judged. Nothing is collected then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the fold at {position} cannot be judged: {why}")]
pub struct Unjudged {
    /// Position of its entry.
    pub position: u64,
    /// Why not.
    pub why: String,
}

/// A fold with effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Folded {
    /// Position of its entry.
    pub at: u64,
    /// The fold.
    pub fold: Fold,
}

/// The folds of a log that have effect, and whose files its entries name.
pub struct Folds {
    replay: Replay,
    bodies: BTreeMap<u64, Arc<Body>>,
    by: BTreeMap<Principal, Vec<Folded>>,
    named: BTreeSet<Principal>,
}

impl Folds {
    /// Before the first entry.
    pub fn new(volume: Volume) -> Folds {
        Folds {
            replay: Replay::new(volume),
            bodies: BTreeMap::new(),
            by: BTreeMap::new(),
            named: BTreeSet::new(),
        }
    }

    /// Takes the ops of the next entry.
    ///
    /// # Errors
    /// [`Unjudged`].
    pub fn entry(
        &mut self,
        written: &Written,
        body: &Body,
        members: &Members,
    ) -> Result<(), Unjudged> {
        let position = written.position;
        let unjudged = |why: String| Unjudged { position, why };
        let mut folds = Vec::new();
        for op in body.ops() {
            if !is_permitted(members, written, op) {
                continue;
            }
            let files = op.changes.iter().filter_map(file_of);
            self.named.extend(files);
            // With others in one op, or beside another guard, a fold has no effect. It need not be in memory.
            let is_plain = |guard: &Guard| matches!(guard, Guard::FoldIs { .. });
            if matches!(op.changes.as_slice(), [Change::Fold { .. }])
                && op.guards.iter().all(is_plain)
            {
                folds.push(op.clone());
            }
        }
        if folds.is_empty() {
            return Ok(());
        }
        let body = Body::new(folds).map_err(|why| unjudged(why.to_string()))?;
        let outline = body.outline();
        let pushed = self.replay.push(written, &outline, members);
        pushed.map_err(|why| unjudged(why.to_string()))?;
        self.bodies.insert(position, Arc::new(body.clone()));
        for (number, op) in body.ops().iter().enumerate() {
            let from = Sources {
                members,
                stored: &OnlyBodies(&self.bodies),
            };
            let outcome = self.replay.outcome(position, number, from);
            let outcome = outcome.map_err(|why| unjudged(why.to_string()))?;
            if let (Outcome::Effect, [Change::Fold { principal, fold }]) =
                (outcome, op.changes.as_slice())
            {
                let at = position;
                let folded = Folded { at, fold: *fold };
                self.by.entry(*principal).or_default().push(folded);
            }
        }
        if self.replay.kept_ops() > KEPT_OPS {
            let from = Sources {
                members,
                stored: &OnlyBodies(&self.bodies),
            };
            let forgotten = self.replay.forget_before(position, from);
            forgotten.map_err(|why| unjudged(why.to_string()))?;
            self.bodies = self.bodies.split_off(&position);
        }
        Ok(())
    }

    /// The i-tables of all folds with effect, each with the position of its fold.
    pub fn roots(&self) -> impl Iterator<Item = (u64, MapRoot)> + '_ {
        let all = self.by.values().flatten();
        all.filter_map(|folded| Some((folded.at, folded.fold.root?)))
    }

    /// The last fold with effect before a position.
    pub fn before(&self, principal: &Principal, position: u64) -> Option<Folded> {
        let all = self.by.get(principal)?;
        let after = all.partition_point(|folded| folded.at < position);
        all.get(after.checked_sub(1)?).copied()
    }
}

/// Only bodies of folds. They name no block that their effect depends on.
struct OnlyBodies<'a>(&'a BTreeMap<u64, Arc<Body>>);

impl Blocks for OnlyBodies<'_> {
    fn block(&self, _: &Wanted) -> Result<Option<Found>, Reject> {
        Ok(None)
    }
}

impl Bodies for OnlyBodies<'_> {
    fn body(&self, position: u64) -> Result<Option<Arc<Body>>, Reject> {
        Ok(self.0.get(&position).cloned())
    }
}

/// Whether the author may make all changes of the op. If not, nobody looks at it.
pub fn is_permitted(members: &Members, written: &Written, op: &Op) -> bool {
    let may = |change: &Change| {
        let key = change.key();
        members.may_change(written.device, &key, written.position)
    };
    op.changes.iter().all(may)
}

/// The principal in whose i-table a change comes to lie.
fn file_of(change: &Change) -> Option<Principal> {
    match change.key() {
        Key::Inode(file) => Some(file.principal),
        _ => None,
    }
}

/// The positions that are needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Positions {
    /// The first position of the window.
    pub begin: u64,
    /// The last: the size of the log.
    pub end: u64,
    /// Positions that somebody has pinned, or of which there is a checkpoint.
    pub pins: BTreeSet<u64>,
}

/// Which entries and folds are needed for some positions. Bounded by the folds of the log: however many positions are
/// pinned between two of them, they are one span.
#[derive(Debug)]
pub struct Spans {
    roots: Vec<(u64, MapRoot)>,
    /// For principals with folds: positions of entries whose changes are in none of the folds that are needed, ascending,
    /// and apart from each other.
    spans: BTreeMap<Principal, Vec<(u64, u64)>>,
    /// The same for others.
    unfolded: u64,
    reads_from: u64,
}

impl Spans {
    /// What these positions need.
    pub fn new(folds: &Folds, positions: &Positions) -> Spans {
        let Positions { begin, end, pins } = positions;
        let (mut roots, mut spans) = (Vec::new(), BTreeMap::new());
        for (principal, all) in &folds.by {
            let mut of = Vec::new();
            let folded = std::iter::once(None).chain(all.iter().map(Some));
            for (number, folded) in folded.enumerate() {
                // The positions of which this is the last fold.
                let first = folded.map_or(0, |folded| folded.at.saturating_add(1));
                let last = all.get(number).map_or(u64::MAX, |next| next.at);
                let is_last = first <= last;
                let pinned = is_last.then(|| pins.range(first..=last).next_back().copied());
                let within = (first..=last).contains(begin).then_some(*end);
                let to = pinned.flatten().max(within);
                let from = folded.map_or(0, |folded| folded.fold.upto);
                of.extend(to.map(|to| (from, to)));
                let is_needed = |folded: &&Folded| to.is_some() || folded.at >= *begin;
                let root = |folded: &Folded| Some((folded.at, folded.fold.root?));
                roots.extend(folded.filter(is_needed).and_then(root));
            }
            spans.insert(*principal, joined(of));
        }
        let newest = pins.last().copied().unwrap_or(0).max(*end);
        let starts = folds.named.iter().map(|principal| {
            let of = spans.get(principal);
            of.and_then(|of| of.first()).map_or(0, |(from, _)| *from)
        });
        Spans {
            reads_from: starts.min().unwrap_or(newest),
            roots,
            spans,
            unfolded: newest,
        }
    }

    /// The i-tables that are needed with all files, each with the position of its fold.
    pub fn roots(&self) -> &[(u64, MapRoot)] {
        &self.roots
    }

    /// No entry before this position is needed.
    pub fn reads_from(&self) -> u64 {
        self.reads_from
    }

    /// Whether what an entry at this position names of a principal's files is needed.
    pub fn has(&self, principal: &Principal, position: u64) -> bool {
        let Some(spans) = self.spans.get(principal) else {
            return position < self.unfolded;
        };
        let after = spans.partition_point(|(from, _)| *from <= position);
        let last = after.checked_sub(1).and_then(|last| spans.get(last));
        last.is_some_and(|(_, to)| position < *to)
    }

    /// The inodes of an entry that are needed.
    pub fn inodes<'a>(
        &'a self,
        written: &'a Written,
        body: &'a Body,
        members: &'a Members,
    ) -> impl Iterator<Item = &'a trust::inode::Inode> {
        let permitted = body
            .ops()
            .iter()
            .filter(|op| is_permitted(members, written, op));
        let changes = permitted.flat_map(|op| &op.changes);
        changes.filter_map(|change| match change {
            Change::Set { file, inode } if self.has(&file.principal, written.position) => {
                Some(&**inode)
            }
            _ => None,
        })
    }
}

/// Spans with ascending beginnings, those joined that touch.
fn joined(spans: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (from, to) in spans {
        match joined.last_mut() {
            Some((_, end)) if from <= *end => *end = to.max(*end),
            _ => joined.push((from, to)),
        }
    }
    joined
}
