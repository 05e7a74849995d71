//! Entries and marks: what is queued goes into the next entry, or waits for a mark. One entry is in flight.

use super::{Effect, Effects, Engine, Record, Request, Running, Sent, Stage, Status, StopReason};
use crate::ablation::{Rule, Rules};
use crate::scheme::DeviceScheme;
use crate::volume::{Attempt, Build, Leftover, Volume};
use trust_shared::form::Heading;

impl<S: DeviceScheme, V: Volume<S>, T: Copy> Engine<S, V, T> {
    /// What a call comes to at the end of the log.
    pub(super) fn build(&self, running: &Running<S, V, T>) -> Build<S, V> {
        let volume = self.ledger.volume();
        if running.ticket.is_none()
            && let Some(answer) = volume.forsaken(&running.call)
        {
            return Build::Says(answer, V::Basis::default());
        }
        let attempt = Attempt {
            device: self.scheme.me(),
            failed: running.attempts,
            foldable: self.foldable(),
            lapsed: self.lapsed,
        };
        volume.build(&running.call, &attempt)
    }

    /// Answers a call at the end of the log, or queues it.
    pub(super) fn look(&mut self, at: usize, out: &mut Effects<S, V, T>) {
        let Some(running) = self.running.get(at) else {
            return;
        };
        let stage = match self.build(running) {
            Build::Says(answer, basis) => Stage::Taken {
                at: self.ledger.size(),
                answer,
                basis,
            },
            Build::Op(..) | Build::Blocked(_) => Stage::Queued,
            Build::Missing(missing) => {
                out.push(Effect::Fetch(missing));
                Stage::Reading
            }
        };
        self.stage(at, stage);
    }

    fn stage(&mut self, at: usize, stage: Stage<S, V>) {
        if let Some(running) = self.running.get_mut(at) {
            running.stage = stage;
        }
    }

    /// Makes an entry and a mark of what is queued.
    pub(super) fn pump(&mut self, out: &mut Effects<S, V, T>) {
        self.take_back(out);
        if !matches!(self.status, Status::Running) || !self.is_verified(out) {
            return;
        }
        let rules = self.scheme.rules();
        let limit = if rules.has(Rule::OneInFlight) { 1 } else { 2 };
        let free = self.flight.len() < limit;
        let (mut ops, mut calls, mut reads) = (Vec::new(), Vec::new(), Vec::new());
        let (mut blocks, mut locked) = (Vec::new(), None);
        let (mut later, mut known) = (Vec::new(), true);
        for at in 0..self.running.len() {
            let Some(running) = self.running.get(at) else {
                continue;
            };
            known &= !running.stage.is_fetching();
            if !matches!(running.stage, Stage::Queued) {
                continue;
            }
            let here = Some(self.ledger.size());
            if !free && running.built == here {
                continue;
            }
            match self.build(running) {
                Build::Says(..) => reads.push(at),
                Build::Op(op, mut stored) if free && self.ledger.volume().has_room(&ops, &op) => {
                    self.contended |= self.ledger.volume().contends(&op);
                    blocks.append(&mut stored);
                    calls.push(running.call.clone());
                    self.sent(at, ops.len());
                    ops.push(op);
                }
                Build::Op(op, _) => {
                    self.note_built(at, here);
                    later.push(op);
                }
                Build::Blocked(last) => {
                    locked = Some(locked.map_or(last, |one: u64| one.min(last)))
                }
                Build::Missing(missing) => {
                    out.push(Effect::Fetch(missing));
                    self.stage(at, Stage::Fetching);
                    known = false;
                }
            }
        }
        if free && known {
            self.leave(&later, (&mut ops, &mut calls), out);
        }
        self.watch(locked);
        self.read(&reads, out);
        let confirms = self.confirm && self.flight.is_empty();
        let owes = self.owes && self.flight.is_empty();
        if confirms || (owes || self.hurries()) && !ops.is_empty() {
            self.confirm = false;
            self.sync(out);
        } else if owes && self.unattested() {
            self.attest(out);
        }
        self.owes &= !owes;
        if confirms || !ops.is_empty() {
            if !blocks.is_empty() {
                out.push(Effect::Store(blocks));
            }
            self.send(ops, calls, out);
        }
    }

    fn note_built(&mut self, at: usize, size: Option<u64>) {
        if let Some(running) = self.running.get_mut(at) {
            running.built = size;
        }
    }

    /// Gives back what was taken for calls that are gone. `later`: operations that wait for the next entry.
    fn leave(
        &mut self,
        later: &[S::Op],
        (ops, calls): (&mut Vec<S::Op>, &mut Vec<V::Call>),
        out: &mut Effects<S, V, T>,
    ) {
        let wanted: Vec<S::Op> = ops.iter().chain(later).cloned().collect();
        let call = match self.ledger.volume().leftover(self.scheme.me(), &wanted) {
            Leftover::Nothing => return,
            Leftover::Missing(missing) => {
                if !std::mem::replace(&mut self.looks, true) {
                    out.push(Effect::Fetch(missing));
                }
                return;
            }
            Leftover::Call(call) => call,
        };
        let running = Running {
            ticket: None,
            call,
            stage: Stage::Queued,
            attempts: 0,
            built: None,
            withdrawn: false,
        };
        let Build::Op(op, _) = self.build(&running) else {
            return;
        };
        if self.ledger.volume().has_room(ops, &op) {
            calls.push(running.call.clone());
            self.running.push(running);
            self.sent(self.running.len().saturating_sub(1), ops.len());
            ops.push(op);
        }
    }

    fn sent(&mut self, at: usize, op: usize) {
        let n = self.n.saturating_add(1);
        if let Some(running) = self.running.get_mut(at) {
            running.stage = Stage::Sent { n, op };
            running.attempts = running.attempts.saturating_add(1);
        }
    }

    /// Calls that change nothing wait for one mark, which is sent now: one that is in flight may come before an answer
    /// that a program already has.
    fn read(&mut self, reads: &[usize], out: &mut Effects<S, V, T>) {
        let rules = self.scheme.rules();
        if reads.is_empty() {
            return;
        }
        if !rules.has(Rule::MarkForReads) {
            return reads.iter().for_each(|at| self.look(*at, out));
        }
        let in_flight = self.running.iter().find_map(|other| match other.stage {
            Stage::Marked(mark) => Some(mark),
            _ => None,
        });
        let shared = in_flight.filter(|_| !rules.has(Rule::MarkNotInFlight));
        let mark = shared.unwrap_or_else(|| {
            let mark = self.scheme.mark();
            out.push(Effect::Send(Request::Mark(mark)));
            mark
        });
        for at in reads {
            self.stage(*at, Stage::Marked(mark));
        }
    }

    fn send(&mut self, ops: Vec<S::Op>, calls: Vec<V::Call>, out: &mut Effects<S, V, T>) {
        self.n = self.n.saturating_add(1);
        let Some(entry) = self.sign(self.n, false, ops) else {
            return self.unsigned(out);
        };
        self.flight.push(entry.clone());
        self.unsynced = true;
        out.push(Effect::Journal(Record::Sent(Sent {
            entry: entry.clone(),
            calls,
        })));
        out.push(Effect::Send(Request::Entry(entry)));
    }

    pub(super) fn sign(&self, n: u64, resume: bool, ops: Vec<S::Op>) -> Option<S::Entry> {
        let seen = self.ledger.point();
        let row = self.ledger.author(self.scheme.me());
        let last = row.map_or_else(|| self.scheme.no_entry(), |row| row.last);
        let own = self.flight.last().filter(|_| !resume);
        let heading = Heading {
            incarnation: self.incarnation,
            n,
            previous: own.map_or(last, S::id),
            seen,
            kept: if self.scheme.rules().has(Rule::Kept) {
                self.kept
            } else {
                seen.size
            },
            resume,
            alone: !resume || ops.is_empty(),
        };
        self.scheme.sign(heading, ops)
    }

    pub(super) fn unsigned(&mut self, out: &mut Effects<S, V, T>) {
        self.status = Status::Stopped;
        out.push(Effect::Stopped(StopReason::Unsigned));
    }

    /// The server has not ordered this entry, because blocks before it are missing: the same bytes again, after the
    /// blocks. Its number stays used, and nothing of the journal changes: the entry may still be ordered.
    pub(super) fn unstored(&mut self, entry: S::Hash, out: &mut Effects<S, V, T>) {
        let mine = |sent: &&S::Entry| S::id(sent) == entry;
        let sent = match &self.status {
            Status::Running => self.flight.iter().find(mine),
            Status::Resuming { sent } => sent.as_ref().filter(mine),
            Status::Outside | Status::Stopped => None,
        };
        out.extend(sent.cloned().map(Effect::Again));
    }

    /// There is a new connection: the same bytes again.
    pub(super) fn send_again(&mut self, out: &mut Effects<S, V, T>) {
        let note = self.ledger.note().cloned();
        out.push(Effect::Send(Request::Open(note)));
        let in_flight: Vec<_> = match &self.status {
            Status::Running => self.flight.clone(),
            Status::Resuming { sent } => sent.iter().cloned().collect(),
            Status::Outside | Status::Stopped => Vec::new(),
        };
        let entries = in_flight.into_iter().map(Request::Entry);
        out.extend(entries.map(Effect::Send));
        let mut marks = Vec::new();
        for running in &self.running {
            match running.stage {
                Stage::Marked(mark) if !marks.contains(&mark) => marks.push(mark),
                _ => {}
            }
        }
        out.extend(
            marks
                .into_iter()
                .map(|mark| Effect::Send(Request::Mark(mark))),
        );
        // The server may have lost the Attest, or somebody's question.
        if matches!(self.status, Status::Running) {
            self.asked(out);
        }
        self.ask(out);
    }
}
