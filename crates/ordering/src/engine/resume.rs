//! A new incarnation: at every start, at admission, and when an entry that was sent will never be ordered.
//!
//! Entries of the incarnation before may still be ordered until the Resume is in the log. So their calls wait for its
//! receipt. Those that had no effect by then run again, unless a later entry that a power cut took from the journal may
//! have been for them.

use super::{Effect, Effects, Engine, Record, Request, Running, Sent, Stage, Status, StopReason};
use crate::ablation::{Rule, Rules};
use crate::scheme::DeviceScheme;
use crate::volume::{Build, Volume};

impl<S: DeviceScheme, V: Volume<S>, T: Copy> Engine<S, V, T> {
    /// Entries that an earlier run has sent. Their programs are gone.
    pub(super) fn recover(&mut self, sent: Vec<Sent<S, V>>) {
        for Sent { entry, calls } in sent {
            let n = S::heading(&entry).n;
            for (op, call) in calls.into_iter().enumerate() {
                self.running.push(Running {
                    ticket: None,
                    call,
                    stage: Stage::Sent { n, op },
                    attempts: 0,
                    built: None,
                    withdrawn: false,
                });
            }
            self.flight.push(entry);
        }
    }

    /// No Resume was sent, or the one that was sent does not cover another one in the log.
    pub(super) fn must_resume(&self) -> bool {
        let Status::Resuming { sent } = &self.status else {
            return false;
        };
        if self.waits || !self.has_start() {
            return false;
        }
        let Some(sent) = sent else { return true };
        let row = self.ledger.author(self.scheme.me());
        row.is_some_and(|row| row.resume_at >= S::heading(sent).seen.size)
    }

    /// Whether the log has the prefix with which its epoch begins. Before that it may be any log of an earlier epoch, so
    /// the device signs nothing.
    pub fn has_start(&self) -> bool {
        let rule = self.scheme.rules().has(Rule::SignsFromStart);
        let start = self.scheme.start().filter(|_| rule);
        start.is_none_or(|start| self.ledger.size() >= start.size)
    }

    pub(super) fn resume(&mut self, out: &mut Effects<S, V, T>) {
        if !self.must_resume() || !self.is_verified(out) {
            return;
        }
        if matches!(self.status, Status::Resuming { sent: Some(_) }) {
            // An incarnation is begun once.
            self.incarnation = self.scheme.incarnation();
        }
        let rules = self.scheme.rules();
        let mut ops = Vec::new();
        if !rules.has(Rule::ResumeAlone) {
            ops = self.ops_again();
        }
        if !rules.has(Rule::RerunAfterReceipt) {
            self.queue_sent();
        }
        let Some(entry) = self.sign(0, true, ops) else {
            return self.unsigned(out);
        };
        self.status = Status::Resuming {
            sent: Some(entry.clone()),
        };
        out.push(Effect::Send(Request::Entry(entry)));
    }

    /// A Resume of this device is in the log. If it is the one that was sent, work goes on.
    pub(super) fn resumed(&mut self, entry: &S::Entry, after: &mut Effects<S, V, T>) {
        match &self.status {
            Status::Resuming { sent: Some(sent) } if S::id(sent) == S::id(entry) => {
                self.status = Status::Running;
                self.n = 0;
                self.flight.clear();
                self.queue_sent();
                let mut stages = self.running.iter().map(|running| &running.stage);
                self.confirm = stages.any(|stage| matches!(stage, Stage::Late { .. }));
                self.unsynced = true;
                after.push(Effect::Journal(Record::Settled));
            }
            Status::Running if S::heading(entry).incarnation != self.incarnation => {
                self.status = Status::Stopped;
                after.push(Effect::Stopped(StopReason::Elsewhere));
            }
            _ => {}
        }
    }

    /// An entry of this device is in the log, and the journal has forgotten it: the power was cut after it was sent, or
    /// a copy of the device wrote it. It may be another try of calls whose entries the journal has, because those had no effect, or were not ordered
    /// before a Resume that is forgotten too. So these calls do not run again. Their programs are gone.
    pub(super) fn meets_forgotten(&mut self, at: u64) {
        // Before the start of this epoch lies what the device wrote in an earlier one: the journal of that has it.
        if self.scheme.start().is_none_or(|start| at >= start.size) {
            self.forgotten.entries = self.forgotten.entries.saturating_add(1);
            self.forgotten.last_at = at;
        }
        if !self.scheme.rules().has(Rule::ForgottenRunOnce) {
            return;
        }
        self.running.retain(|running| {
            // What waits for the next entry is in the log for good.
            running.ticket.is_some() || matches!(running.stage, Stage::Late { .. })
        });
    }

    /// What was sent runs again.
    fn queue_sent(&mut self) {
        for running in &mut self.running {
            if let Stage::Sent { .. } = running.stage {
                running.stage = Stage::Queued;
            }
        }
    }

    /// What was sent as operations again, without knowing whether they were ordered.
    fn ops_again(&self) -> Vec<S::Op> {
        let sent = |running: &&Running<S, V, T>| matches!(running.stage, Stage::Sent { .. });
        let ops = self.running.iter().filter(sent);
        ops.filter_map(|running| match self.build(running) {
            Build::Op(op, _) => Some(op),
            _ => None,
        })
        .collect()
    }

    /// No entry may have these calls any more, because blocks that they name cannot be stored. The engine gives
    /// [`Effect::Withdrawn`] for each, unless the log has it. If the entry in flight has one of them, that entry cannot be
    /// sent again, and its number is used: the device resumes, and the other calls run again. A call without a ticket is
    /// one of an earlier run.
    pub fn withdraw(&mut self, calls: impl Fn(Option<T>, &V::Call) -> bool) -> Effects<S, V, T> {
        let mut out = Vec::new();
        let mut flies = false;
        for running in &mut self.running {
            if calls(running.ticket, &running.call) {
                running.withdrawn = true;
                flies |= matches!(running.stage, Stage::Sent { .. });
            }
        }
        if flies && matches!(self.status, Status::Running) {
            self.status = Status::Resuming { sent: None };
            self.incarnation = self.scheme.incarnation();
        }
        self.pump(&mut out);
        out
    }

    /// Takes back what no entry may have, once it is in none.
    pub(super) fn take_back(&mut self, out: &mut Effects<S, V, T>) {
        let is_free = |running: &Running<S, V, T>| {
            running.withdrawn && matches!(running.stage, Stage::Queued | Stage::Fetching)
        };
        let back = self.running.extract_if(.., |running| is_free(running));
        let tickets = back.filter_map(|running| running.ticket);
        out.extend(tickets.map(Effect::Withdrawn));
    }

    /// The device does not resume before [`Engine::may_resume`]: calls of an earlier run would run again after that, and
    /// nobody knows yet whether the server has the blocks that they name.
    pub fn wait_to_resume(&mut self) {
        self.waits = true;
    }

    /// See [`Engine::wait_to_resume`].
    pub fn may_resume(&mut self) {
        self.waits = false;
    }

    /// The server will not order this entry.
    pub(super) fn refused(&mut self, entry: S::Hash) {
        let mine = |sent: &S::Entry| S::id(sent) == entry;
        match &mut self.status {
            Status::Resuming { sent } if sent.as_ref().is_some_and(mine) => {
                *sent = None;
                self.incarnation = self.scheme.incarnation();
            }
            Status::Running if !self.ledger.volume().active(self.scheme.me()) => {
                self.status = Status::Outside;
            }
            Status::Running if self.flight.iter().any(mine) => {
                self.status = Status::Resuming { sent: None };
                self.incarnation = self.scheme.incarnation();
            }
            _ => {}
        }
    }
}
