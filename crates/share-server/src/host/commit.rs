//! What waits at the orderer becomes durable with one sync, beside the blocks that clients store, and gets its note.
//!
//! One commit is under way at a time; what comes meanwhile is the next. A commit that the temporary log has no room for
//! is given to it again: its leaves stand in the ledger, so nothing else may take their place.
//!
//! The note is signed while the leaves become durable, by the thread that began the commit or by the one that waits for
//! such work. Nobody sees it before they are durable. The thread of the temporary log that has made them durable goes
//! on at once: it wakes the sessions, and begins the next commit.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use trust_shared::mark::{MarkProof, Nonce};
use trust_shared::note::SignedNote;
use wal::Lsn;

use super::record::{Records, StoredLeaf};
use super::session::Bell;
use super::{Core, HostError, State};
use crate::blocks::storage::lock;
use crate::blocks::{self, Done, Receipt};
use ordering::roster::Product;
use ordering::scheme::Leaf;

/// How long a full log rests before a commit is given to it again.
const REST: Duration = Duration::from_secs(1);

/// A commit that is under way.
pub(super) struct Commit {
    leaves: Vec<(Leaf<Product>, StoredLeaf)>,
    proofs: Vec<(u64, Nonce, MarkProof)>,
    /// Batches of the temporary log that are not durable.
    batches: Vec<Option<Vec<wal::Record>>>,
    /// Batches that the temporary log has not answered for.
    unanswered: usize,
    /// Where the last of its batches ends, or later.
    durable: Lsn,
    /// When what failed is given to the log again.
    again: Option<Instant>,
    began: Instant,
    /// Somebody signs the note.
    signing: bool,
    note: Option<SignedNote>,
}

/// What the threads of a server wait for.
#[derive(Default)]
pub(super) struct Signals {
    waiting: Mutex<Waiting>,
    to_commit: Condvar,
    to_move: Condvar,
}

#[derive(Default)]
struct Waiting {
    deadlines: bool,
    note: bool,
    moving: bool,
    stop: bool,
}

/// What a thread was woken for.
pub(super) enum Woken {
    /// A note is to be signed.
    Sign,
    /// A deadline has come, or the deadlines have changed.
    Look,
    /// The server stops.
    Stop,
}

impl Signals {
    /// A commit has begun whose note nobody signs.
    fn sign(&self) {
        lock(&self.waiting).note = true;
        self.to_commit.notify_one();
    }

    /// The time of the next deadline has changed.
    pub fn look_at_deadlines(&self) {
        lock(&self.waiting).deadlines = true;
        self.to_commit.notify_one();
    }

    /// There may be leaves to move.
    pub fn look_at_tail(&self) {
        lock(&self.waiting).moving = true;
        self.to_move.notify_one();
    }

    pub fn is_stopped(&self) -> bool {
        lock(&self.waiting).stop
    }

    pub fn stop(&self) {
        lock(&self.waiting).stop = true;
        self.to_commit.notify_all();
        self.to_move.notify_all();
    }

    /// Waits until there is something to do, or until `until`.
    pub fn wait_to_commit(&self, until: Instant) -> Woken {
        let mut waiting = lock(&self.waiting);
        loop {
            if waiting.stop {
                return Woken::Stop;
            }
            if std::mem::take(&mut waiting.note) {
                return Woken::Sign;
            }
            let left = until.saturating_duration_since(Instant::now());
            if std::mem::take(&mut waiting.deadlines) || left.is_zero() {
                return Woken::Look;
            }
            let woken = self.to_commit.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits so long. False when the server stops.
    pub fn rest(&self, longest: Duration) -> bool {
        let until = Instant::now() + longest;
        let mut waiting = lock(&self.waiting);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if waiting.stop || left.is_zero() {
                return !waiting.stop;
            }
            let woken = self.to_move.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until there may be leaves to move, at most so long. False when the server stops.
    pub fn wait_to_move(&self, longest: Duration) -> bool {
        let until = Instant::now() + longest;
        let mut waiting = lock(&self.waiting);
        while !waiting.stop && !std::mem::take(&mut waiting.moving) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let woken = self.to_move.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        !waiting.stop
    }
}

impl Core {
    /// Gives what waits to the temporary log, unless a commit is under way or is to wait for more. Whether it did: then
    /// the caller sees to it that the note is signed.
    pub(super) fn begin_commit(self: &Arc<Self>) -> bool {
        let (from, leaves) = {
            let mut state = lock(&self.state);
            if state.stopped.is_some() {
                return false;
            }
            if state.gathers(Instant::now()).is_some() {
                if state.gather.is_new_wait() {
                    self.signals.look_at_deadlines();
                }
                return false;
            }
            let Some(taken) = state.orderer.commit() else {
                return false;
            };
            state.waiting_bytes = 0;
            taken
        };
        // No other commit begins before this one has its note.
        let mut records = Records::from(from);
        let mut proofs = Vec::new();
        let leaves: Vec<(Leaf<Product>, StoredLeaf)> = (from..)
            .zip(leaves)
            .map(|(at, leaf)| {
                let stored = StoredLeaf::of(&leaf);
                records.add(&stored);
                if let Leaf::Marks(marks) = &leaf {
                    let all = marks.proofs().iter();
                    proofs.extend(all.map(|(nonce, proof)| (at, *nonce, proof.clone())));
                }
                (leaf, stored)
            })
            .collect();
        let most = self.blocks.storage().most_entry_bytes();
        let batches: Vec<_> = records.batches(most).into_iter().map(Some).collect();
        lock(&self.state).commit = Some(Commit {
            leaves,
            proofs,
            batches,
            unanswered: 0,
            durable: Lsn(0),
            again: None,
            began: Instant::now(),
            signing: false,
            note: None,
        });
        self.submit_commit();
        true
    }

    /// Gives the batches of the commit that are not durable to the temporary log.
    fn submit_commit(self: &Arc<Self>) {
        let batches: Vec<(usize, Vec<wal::Record>)> = {
            let mut state = lock(&self.state);
            let Some(commit) = &mut state.commit else {
                return;
            };
            let left = commit.batches.iter().cloned().enumerate();
            let left: Vec<_> = left
                .filter_map(|(number, batch)| Some((number, batch?)))
                .collect();
            commit.unanswered = left.len();
            commit.again = None;
            left
        };
        let batches = batches.into_iter().map(|(number, entries)| {
            let core = Arc::downgrade(self);
            let done: Done = Box::new(move |answer| {
                if let Some(core) = core.upgrade() {
                    core.take_answer(number, answer);
                }
            });
            (entries, done)
        });
        // Together: a start finds the leaves in the order in which the batches became durable.
        self.blocks.submit_entries(self.own, batches.collect());
    }

    /// Takes the temporary log's answer to a batch of the commit.
    fn take_answer(self: &Arc<Self>, batch: usize, answer: Result<Receipt, blocks::Error>) {
        let failed = {
            let mut state = lock(&self.state);
            let commit = state.commit.as_mut();
            commit.and_then(|commit| commit.answered(batch, answer))
        };
        if let Some(error) = failed {
            self.commit_failed(error);
        }
        self.go_on();
    }

    /// Signs the note of the commit that is under way, unless somebody has begun to.
    pub(super) fn sign_note(self: &Arc<Self>) {
        let end = {
            let mut state = lock(&self.state);
            let end = state.orderer.committing();
            let commit = state.commit.as_mut().filter(|commit| !commit.signing);
            let (Some(commit), Some(end)) = (commit, end) else {
                return;
            };
            commit.signing = true;
            end
        };
        let note = self.notary.note_at(end, now_ms());
        if let Some(commit) = &mut lock(&self.state).commit {
            commit.note = Some(note);
        }
        self.go_on();
    }

    /// When all of a commit is durable and it has its note, the sessions are woken, and the next commit begins.
    fn go_on(self: &Arc<Self>) {
        let finished = {
            let mut state = lock(&self.state);
            let whole = |commit: &mut Commit| commit.is_durable() && commit.note.is_some();
            state.commit.take_if(whole)
        };
        let Some((commit, note)) = finished.and_then(|mut commit| {
            let note = commit.note.take()?;
            Some((commit, note))
        }) else {
            return;
        };
        *lock(&self.failure) = None;
        let entries = commit.entries();
        let (marks, time) = (commit.proofs.len() as u64, commit.began.elapsed());
        lock(&self.tail).extend(commit.leaves, commit.durable);
        let bells = {
            let mut state = lock(&self.state);
            state.counts.committed(entries, marks, time);
            state.committed(note, commit.proofs);
            state.bells(|state, device| state.orderer.has_news(device))
        };
        bells.iter().for_each(|bell| bell.ring());
        if self.begin_commit() {
            self.signals.sign();
        }
        if self.must_move() {
            self.signals.look_at_tail();
        }
    }

    /// Gives a commit that failed to the temporary log again, if it is time. Returns when it will be.
    pub(super) fn try_again(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        let again = lock(&self.state).commit.as_ref()?.again?;
        if again > now {
            return Some(again);
        }
        self.submit_commit();
        None
    }

    /// Begins the commit that waits for more entries, if it is time. Returns when it will be.
    pub(super) fn gathered(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        let until = lock(&self.state).gathers(now);
        if until.is_none() && self.begin_commit() {
            self.sign_note();
        }
        until
    }

    fn commit_failed(&self, error: blocks::Error) {
        match &error {
            // There may be room later.
            blocks::Error::Full { .. } => {
                tracing::warn!(%error, "the log cannot grow");
                *lock(&self.failure) = Some(error.into());
                self.signals.look_at_tail();
                self.signals.look_at_deadlines();
            }
            _ => self.stop(error.into()),
        }
    }

    /// The orderer takes nothing more.
    pub(super) fn stop(&self, why: HostError) {
        let bells: Vec<Arc<Bell>> = {
            let mut state = lock(&self.state);
            if state.stopped.is_some() {
                return;
            }
            state.stopped = Some(why.clone());
            state.bells(|_, _| true)
        };
        if !matches!(why, HostError::Stopped) {
            tracing::error!(error = %why, "the orderer has stopped");
        }
        bells.iter().for_each(|bell| bell.ring());
    }

    /// A note of this orderer's own names a log that the one here does not lead to.
    pub(super) fn found_restored(&self, note: &SignedNote) -> HostError {
        let written = self.place.write_restored(note, self.volume, &self.orderer);
        let why = written.unwrap_or_else(|error| {
            tracing::error!(%error, "the next start will not know that the log was restored");
            let why = format!("a device has its note of {} leaves", note.note().log.size);
            HostError::Restored { why: why.into() }
        });
        self.stop(why.clone());
        why
    }

    /// Bells of the sessions that have something to draw.
    #[cfg(test)]
    pub(super) fn bells_of_news(&self) -> Vec<Arc<Bell>> {
        let state = lock(&self.state);
        state.bells(|state, device| state.orderer.has_news(device))
    }
}

impl Commit {
    /// An answer of the temporary log. Gives the error, if it is one.
    fn answered(
        &mut self,
        batch: usize,
        answer: Result<Receipt, blocks::Error>,
    ) -> Option<blocks::Error> {
        self.unanswered = self.unanswered.saturating_sub(1);
        let failed = match answer {
            Ok(receipt) => {
                self.durable = self.durable.max(receipt.durable.lsn);
                if let Some(batch) = self.batches.get_mut(batch) {
                    *batch = None;
                }
                None
            }
            Err(error) => Some(error),
        };
        if self.unanswered == 0 && !self.is_durable() {
            self.again = Some(Instant::now() + REST);
        }
        failed
    }

    fn entries(&self) -> u64 {
        let entries = self.leaves.iter();
        let entries = entries.filter(|(leaf, _)| matches!(leaf, Leaf::Entry(_)));
        entries.count() as u64
    }

    fn is_durable(&self) -> bool {
        self.unanswered == 0 && self.batches.iter().all(Option::is_none)
    }
}

impl State {
    /// The commit is durable: it gets its note, and its marks their proofs.
    fn committed(&mut self, note: SignedNote, proofs: Vec<(u64, Nonce, MarkProof)>) {
        self.orderer.scheme_mut().set_time(note.note().time_ms);
        self.orderer.noted(note);
        self.gather.done(Instant::now());
        for (at, nonce, proof) in proofs {
            let owner = self.owners.remove(&nonce);
            let slot = owner.and_then(|owner| self.slots.get_mut(&owner));
            if let Some(slot) = slot {
                slot.proofs.push((at, nonce, proof));
            }
        }
    }

    /// Until when what waits is to wait for more entries.
    fn gathers(&mut self, now: Instant) -> Option<Instant> {
        let waiting = self.orderer.waiting();
        let idle = waiting > 0 && self.commit.is_none();
        idle.then(|| self.gather.until(waiting, now)).flatten()
    }

    fn bells(&self, choose: impl Fn(&State, trust::device::DeviceKey) -> bool) -> Vec<Arc<Bell>> {
        let chosen = self
            .slots
            .iter()
            .filter(|(device, _)| choose(self, **device));
        chosen.map(|(_, slot)| Arc::clone(&slot.bell)).collect()
    }
}

/// The wall clock, unix milliseconds.
fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}
