//! Replies: whether one is right, and what its leaves mean for this device.
//!
//! The order is that of the design: the note, the frontier, whose root must be the note's, then each entry's form and
//! limits, then what it does. Signatures are verified before anything rests on them ([`super::verify`]). A reply that
//! does not fit proves nothing, because replies are not signed. Once its leaves lead to the note's root, the orderer
//! has signed them, and a bad entry convicts it.

use std::sync::Arc;

use super::verify::{FORGED, OTHER_EPOCH, Wrong};
use super::{Effect, Effects, Engine, Evidence, Record, Reply, Stage, Status, StopReason};
use crate::ablation::{Rule, Rules};
use crate::scheme::{DeviceScheme, Leaf, Log};
use crate::volume::{Outcome, Volume};

impl<S: DeviceScheme, V: Volume<S>, T: Copy> Engine<S, V, T> {
    /// Extends the verified log by a reply.
    pub(super) fn take(
        &mut self,
        reply: &Reply<S>,
        out: &mut Effects<S, V, T>,
    ) -> Result<(), Wrong<S>> {
        if !self.scheme.note_is_signed(&reply.note) {
            return Err(Wrong::Unfit("the note is not the orderer's"));
        }
        let new = self.news_of(reply)?;
        // Asked before any leaf is taken: of a reply that proves nothing, nothing may stay behind.
        if let Some(what) = self.lacks(new) {
            return Err(Wrong::Unfit(what));
        }
        let mut after = Vec::new();
        let mut news = Vec::with_capacity(new.len());
        for leaf in new {
            let sent = self.as_sent(leaf);
            self.take_leaf(&sent, reply, &mut after)?;
            news.push(sent);
        }
        if !reply.more {
            self.verify_all(&reply.note)?;
        }
        if new.is_empty() {
            return Ok(());
        }
        Arc::make_mut(&mut self.ledger).met(&reply.note);
        self.news.append(&mut news);
        if self.scheme.rules().has(Rule::FloorBeforeAnswer) {
            self.journal_floor(out);
        }
        out.append(&mut after);
        Ok(())
    }

    /// An entry of this device as it was sent, with its body, which a server may leave out. Both have the same hash, and
    /// it covers the signature. So the device need not fetch what it wrote itself, and its floor has that, whatever
    /// becomes of the server.
    fn as_sent(&self, leaf: &Leaf<S>) -> Leaf<S> {
        let mine = match leaf {
            Leaf::Entry(entry) => self.flight.iter().find(|sent| S::id(sent) == S::id(entry)),
            Leaf::Marks(_) => None,
        };
        mine.map_or_else(|| leaf.clone(), |sent| Leaf::Entry(sent.clone()))
    }

    /// The leaves that are new. All leaves of the reply must lead from this log to the note's root. If then one that
    /// this device has is another one, the orderer has signed two logs.
    fn news_of<'a>(&self, reply: &'a Reply<S>) -> Result<&'a [Leaf<S>], Wrong<S>> {
        let log = self.ledger.log();
        let noted = S::noted(&reply.note);
        let here = log.root_at(noted.size);
        if here.is_some_and(|root| root != noted.root) {
            return Err(self.two_logs(reply));
        }
        let known = log.size().checked_sub(reply.from);
        let known = known.ok_or(Wrong::Unfit("leaves are missing before the reply"))?;
        let ends = reply.from.checked_add(reply.leaves.len() as u64) == Some(noted.size);
        if !ends {
            return Err(Wrong::Unfit("the leaves do not end where the note does"));
        }
        let fresh = known == 0 && reply.leaves.is_empty();
        if !fresh && log.root_with(reply.from, &reply.leaves) != Some(noted.root) {
            return Err(Wrong::Unfit("the leaves do not lead to the note"));
        }
        self.begins(reply)?;
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        let (old, new) = reply
            .leaves
            .split_at_checked(known)
            .unwrap_or((&reply.leaves, &[]));
        let same = |(at, leaf)| log.is_at(at, leaf) == Some(true);
        if !(reply.from..).zip(old).all(same) {
            return Err(self.two_logs(reply));
        }
        Ok(new)
    }

    /// The log of an epoch begins with the prefix that its owners have named. Asked when the log reaches its size; a log
    /// that is shorter is not all that there is.
    fn begins(&self, reply: &Reply<S>) -> Result<(), Wrong<S>> {
        let log = self.ledger.log();
        let rules = self.scheme.rules();
        let start = self.scheme.start().filter(|it| it.size > log.size());
        let Some(start) = start.filter(|_| rules.has(Rule::BeginsWithStart)) else {
            return Ok(());
        };
        if S::noted(&reply.note).size < start.size {
            return match reply.more {
                true => Ok(()),
                false => Err(Wrong::Unfit(
                    "the log ends before the prefix that the owners have named",
                )),
            };
        }
        let place = start.size.saturating_sub(reply.from);
        let before = usize::try_from(place).ok();
        let before = before.and_then(|place| reply.leaves.get(..place));
        match before.and_then(|before| log.root_with(reply.from, before)) {
            Some(root) if root == start.root => Ok(()),
            _ => Err(Wrong::Evidence(Box::new(Evidence::Start {
                note: reply.note.clone(),
                from: reply.from,
                leaves: reply.leaves.clone(),
            }))),
        }
    }

    /// What must come with these leaves, and did not.
    fn lacks(&self, new: &[Leaf<S>]) -> Option<&'static str> {
        let volume = self.ledger.volume();
        new.iter().find_map(|leaf| match leaf {
            Leaf::Entry(entry) => volume.lacks(entry),
            Leaf::Marks(_) => None,
        })
    }

    /// The reply's note names no continuation and no prefix of this log.
    fn two_logs(&self, reply: &Reply<S>) -> Wrong<S> {
        match self.ledger.note() {
            Some(mine) => Wrong::Evidence(Box::new(Evidence::Notes {
                mine: mine.clone(),
                theirs: reply.note.clone(),
                from: reply.from,
                leaves: reply.leaves.clone(),
            })),
            None => Wrong::Unfit("the note names another log"),
        }
    }

    /// `after`: what is done once the floor is journaled.
    fn take_leaf(
        &mut self,
        leaf: &Leaf<S>,
        reply: &Reply<S>,
        after: &mut Effects<S, V, T>,
    ) -> Result<(), Wrong<S>> {
        if let Leaf::Entry(entry) = leaf {
            let verified = self.examine(entry, reply)?;
            self.note_verified(self.ledger.size(), entry, verified);
        }
        Arc::make_mut(&mut self.ledger).extend(leaf);
        match leaf {
            Leaf::Marks(marks) => self.reached(marks, after),
            Leaf::Entry(entry) if S::author(entry) == self.scheme.me() => {
                self.ordered(entry, after);
            }
            Leaf::Entry(_) => self.admitted(),
        }
        Ok(())
    }

    /// What a client checks of an entry at its place, whoever wrote it. Gives whether its signature is verified.
    fn examine(&mut self, entry: &S::Entry, reply: &Reply<S>) -> Result<bool, Wrong<S>> {
        let note = &reply.note;
        if S::heading(entry).resume {
            // It names no entry before it, so it vouches for none.
            self.verify_last_of(S::author(entry), note)?;
        }
        let rules = self.scheme.rules();
        let urgent = !reply.more || self.is_urgent(entry);
        let at = self.ledger.size();
        let malformed = match self.ledger.volume().malformed(entry) {
            _ if rules.has(Rule::EpochOfPosition) && !self.scheme.has_epoch_of(at, entry) => {
                Some(OTHER_EPOCH)
            }
            _ if urgent && self.is_forged(entry) => Some(FORGED),
            malformed => malformed,
        };
        let faults = self.ledger.faults(rules, entry);
        if faults.is_empty() && malformed.is_none() {
            return Ok(urgent);
        }
        // It may have none but for a forged entry before it.
        self.verify_all(note)?;
        Err(Wrong::Evidence(Box::new(Evidence::Form {
            note: note.clone(),
            at,
            entry: entry.clone(),
            faults,
            malformed,
        })))
    }

    pub(super) fn wrong(&mut self, wrong: Wrong<S>, out: &mut Effects<S, V, T>) {
        match wrong {
            Wrong::Unfit(what) => out.push(Effect::Unfit(what)),
            Wrong::Evidence(evidence) => {
                self.status = Status::Stopped;
                out.push(Effect::Stopped(StopReason::Evidence(*evidence)));
            }
        }
    }

    pub(super) fn journal_floor(&mut self, out: &mut Effects<S, V, T>) {
        let Some(note) = self.ledger.note().filter(|_| !self.news.is_empty()) else {
            return;
        };
        let note = note.clone();
        let leaves = std::mem::take(&mut self.news);
        self.unsynced = true;
        out.push(Effect::Journal(Record::Floor { leaves, note }));
    }

    /// Somebody's entry may have admitted this device.
    fn admitted(&mut self) {
        let active = self.ledger.volume().active(self.scheme.me());
        if matches!(self.status, Status::Outside) && active {
            self.status = Status::Resuming { sent: None };
        }
    }

    /// Marks are in the log: calls that wait for one of them look at the state here.
    fn reached(&mut self, marks: &S::Marks, after: &mut Effects<S, V, T>) {
        for at in 0..self.running.len() {
            let reached = match self.running.get(at).map(|running| &running.stage) {
                Some(Stage::Marked(mark)) => S::has_mark(marks, mark),
                _ => false,
            };
            if reached {
                self.look(at, after);
            }
        }
    }

    /// An entry of this device is in the log.
    fn ordered(&mut self, entry: &S::Entry, after: &mut Effects<S, V, T>) {
        let heading = S::heading(entry);
        if heading.resume {
            return self.resumed(entry, after);
        }
        let flown = self.flight.len();
        self.flight.retain(|mine| S::id(mine) != S::id(entry));
        if self.flight.len() == flown {
            return self.meets_forgotten(self.ledger.size().saturating_sub(1));
        }
        let here = self.ledger.size();
        for running in &mut self.running {
            if let Stage::Late { at, op, answer } = &running.stage {
                running.stage = Stage::Taken {
                    at: here,
                    answer: self.ledger.volume().settled(*at, *op, answer.clone()),
                    basis: V::Basis::default(),
                };
            }
        }
        let position = here.saturating_sub(1);
        for at in 0..self.running.len() {
            match self.running.get(at).map(|running| &running.stage) {
                Some(Stage::Sent { n, op }) if *n == heading.n => {
                    self.decided(at, position, *op, after);
                }
                _ => {}
            }
        }
    }

    /// What became of an operation of the entry at `at`, which is for the call at `place`.
    pub(super) fn decided(&mut self, place: usize, at: u64, op: usize, out: &mut Effects<S, V, T>) {
        let waits = self.scheme.rules().has(Rule::OutcomesWait);
        let Some(running) = self.running.get_mut(place) else {
            return;
        };
        let outcome = self.ledger.volume().outcome(at, op, &running.call);
        match &outcome {
            Outcome::Done(..) => {
                // Its first entry came too late, or it waited for its turn.
                self.contended = running.attempts > 1;
                self.wrote = at.saturating_add(1);
            }
            Outcome::Again => self.contended = true,
            Outcome::Late(_) | Outcome::Missing(_) => {}
        }
        match outcome {
            Outcome::Late(answer) => {
                self.confirm = true;
                running.stage = Stage::Late { at, op, answer };
            }
            Outcome::Done(answer, basis) => {
                running.stage = Stage::Taken {
                    at: at.saturating_add(1),
                    answer,
                    basis: if waits { basis } else { V::Basis::default() },
                };
            }
            Outcome::Missing(missing) => {
                running.stage = Stage::Ordered { at, op };
                out.push(Effect::Fetch(missing));
            }
            Outcome::Again => self.look(place, out),
        }
    }
}
