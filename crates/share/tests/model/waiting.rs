//! The model of a device's engine, second part: what waits for time. The read rule, attests, syncs, crashes, resumes.

use share::reading::{Support, Verdict, judge};

use crate::client::{Client, Journal, Running, Stage, Status};
use crate::engine::{Crash, Output, Timer};
use crate::protocol::{Answer, Attest, Incarnation, Point, Request};
use crate::rules::Rule;
use crate::state::{DEVICES, Positions};

impl Client {
    /// What speaks for the entry at a position.
    fn support(&self, at: u64) -> Support {
        let Some(author) = self.state.wrote(at) else {
            return Support::Own;
        };
        let by_messages = if self.rules().has(Rule::AttestByAuthor) {
            self.attested[usize::from(author)]
        } else {
            self.attested.into_iter().max().unwrap_or(0)
        };
        let by_entries = self.state.author(author).map_or(0, |row| row.attested);
        if author == self.me {
            Support::Own
        } else if by_messages.max(by_entries) > at {
            Support::Attested
        } else if self.state.accepted(author) > at {
            Support::Accepted
        } else {
            Support::None
        }
    }

    /// The longest prefix in which every entry is supported.
    pub(crate) fn foldable(&self) -> u64 {
        if !self.rules().has(Rule::FoldAttested) {
            return self.chain.size();
        }
        let size = self.chain.size();
        (0..size)
            .find(|at| self.support(*at) == Support::None)
            .unwrap_or(size)
    }

    /// Entries that an answer rests on, and that nothing speaks for yet.
    fn missing(&self, rests_on: Positions) -> Positions {
        let positions = (0..self.chain.size()).filter(|at| rests_on >> at & 1 == 1);
        let missing = positions.filter(|at| self.support(*at) == Support::None);
        missing.fold(0, |all, at| all | 1 << at)
    }

    /// Answers what can be answered. `waited`: the wait for silent authors is over.
    pub(crate) fn settle(&mut self, waited: bool, out: &mut Vec<Output>) {
        let mut left = Vec::new();
        for running in std::mem::take(&mut self.running) {
            match self.answer(&running, waited) {
                Some((answer, at, marked)) => {
                    if !running.orphan {
                        out.push(Output::Answer {
                            call: running.call,
                            answer,
                            at,
                            marked,
                        });
                    }
                }
                None => left.push(running),
            }
        }
        self.running = left;
    }

    fn answer(&self, running: &Running, waited: bool) -> Option<(Answer, Point, Positions)> {
        let Stage::Taken {
            size,
            answer,
            rests_on,
        } = running.stage
        else {
            return None;
        };
        let at = self.chain.prefix(size)?.point();
        let missing = if self.rules().has(Rule::ReadsWait) {
            self.missing(rests_on)
        } else {
            0
        };
        if missing == 0 {
            return Some((answer, at, 0));
        }
        match judge(self.setup.silence, Support::None, waited) {
            Verdict::Use | Verdict::UseMarked => Some((answer, at, missing)),
            Verdict::Ask => None,
            Verdict::Fail => Some((Answer::Io, at, 0)),
        }
    }

    /// Somebody's answer waits for these authors.
    pub(crate) fn awaited(&self) -> [bool; DEVICES] {
        let mut devices = [false; DEVICES];
        for running in &self.running {
            if let Stage::Taken { rests_on, .. } = running.stage {
                let missing = self.missing(rests_on);
                for at in (0..self.chain.size()).filter(|at| missing >> at & 1 == 1) {
                    if let Some(author) = self.state.wrote(at) {
                        devices[usize::from(author)] = true;
                    }
                }
            }
        }
        devices
    }

    pub(crate) fn timer_armed(&self, timer: Timer) -> bool {
        let works = !matches!(self.status, Status::Outside | Status::Stopped);
        works
            && match timer {
                Timer::Sync => self.chain.size() > self.kept || self.differs(),
                Timer::Attest => self.unattested(),
                Timer::Timeout => self.awaited().contains(&true),
                Timer::Resume => self.must_resume(),
                Timer::Resend => true,
            }
    }

    fn differs(&self) -> bool {
        let ids = |journal: &Journal| {
            journal
                .entries
                .iter()
                .map(|entry| entry.id)
                .collect::<Vec<_>>()
        };
        ids(&self.journal) != ids(&self.synced) || self.journal.calls != self.synced.calls
    }

    /// An own entry is in the log that nothing attests, and none is on its way.
    fn unattested(&self) -> bool {
        let by_message = self.attested[usize::from(self.me)];
        let running = matches!(self.status, Status::Running) && self.flight.is_empty();
        let row = self.state.author(self.me);
        running && row.is_some_and(|row| row.last_at >= row.attested.max(by_message))
    }

    pub(crate) fn sync(&mut self) {
        self.kept = self.chain.size();
        self.synced = self.journal.clone();
    }

    pub(crate) fn attest(&mut self, out: &mut Vec<Output>) {
        if self.rules().has(Rule::AttestAfterSync) {
            self.sync();
        }
        let Point { size, root } = self.chain.point();
        self.attested[usize::from(self.me)] = size;
        out.push(Output::Send(Request::Attest(Attest {
            device: self.me,
            size,
            root,
        })));
    }

    /// Somebody wants an Attest: a new one, or the last one again, which may have been lost.
    pub(crate) fn asked(&mut self, out: &mut Vec<Output>) {
        let size = self.attested[usize::from(self.me)];
        if self.unattested() {
            self.attest(out);
        } else if let Some(root) = self.chain.root_at(size).filter(|_| size > 0) {
            out.push(Output::Send(Request::Attest(Attest {
                device: self.me,
                size,
                root,
            })));
        }
    }

    /// No Resume was sent, or the one that was sent does not cover another one in the log.
    fn must_resume(&self) -> bool {
        let Status::Resuming { sent, .. } = &self.status else {
            return false;
        };
        let Some(sent) = sent else { return true };
        let row = self.state.author(self.me);
        row.is_some_and(|row| row.resume_at >= sent.body.heading.seen.size)
    }

    pub(crate) fn resume(&mut self, out: &mut Vec<Output>) {
        if !self.must_resume() {
            return;
        }
        let Status::Resuming { sent, again } = &self.status else {
            return;
        };
        let mut again = again.clone();
        if sent.is_some() {
            // An incarnation is begun once.
            self.incarnation += 1;
        }
        if !self.rules().has(Rule::RerunAfterReceipt) {
            again.retain(|(call, _)| self.state.executed & call.bit() == 0);
        }
        let mut ops = Vec::new();
        if !self.rules().has(Rule::ResumeAlone) {
            ops = self.ops_again(&again);
        }
        let entry = self.sign(0, true, ops);
        self.status = Status::Resuming {
            sent: Some(entry.clone()),
            again,
        };
        out.push(Output::Send(Request::Entry(entry)));
    }

    /// The server will not order the entry in flight.
    pub(crate) fn refused(&mut self) {
        if let Status::Resuming { sent, .. } = &mut self.status {
            if sent.take().is_some() {
                self.incarnation += 1;
            }
        } else if !self.state.active(self.me) {
            self.status = Status::Outside;
        }
    }

    pub(crate) fn resend(&mut self, out: &mut Vec<Output>) {
        out.push(Output::Send(Request::Fetch(self.chain.point())));
        let entries = self
            .flight
            .iter()
            .map(|entry| Request::Entry(entry.clone()));
        out.extend(entries.map(Output::Send));
        if let Status::Resuming {
            sent: Some(entry), ..
        } = &self.status
        {
            out.push(Output::Send(Request::Entry(entry.clone())));
        }
        let marks = self
            .running
            .iter()
            .filter_map(|running| match running.stage {
                Stage::Marked(mark) => Some(Output::Send(Request::Mark(mark))),
                _ => None,
            });
        out.extend(marks);
        // The server may have lost the Attest, or somebody's question.
        if matches!(self.status, Status::Running) {
            self.asked(out);
        }
        self.ask(out);
    }

    /// Asks the authors whom answers wait for.
    pub(crate) fn ask(&self, out: &mut Vec<Output>) {
        let awaited = self.awaited();
        let devices = (0..DEVICES).filter(|device| awaited[*device]);
        out.extend(devices.map(|device| Output::Send(Request::Ask(device as u8))));
    }

    pub(crate) fn stop(&mut self, how: Crash) {
        let power = how == Crash::Power;
        if power || !self.rules().has(Rule::FloorBeforeAnswer) {
            let kept = self.chain.prefix(self.kept).cloned().unwrap_or_default();
            self.replay(&kept);
            self.attested = [0; DEVICES];
        }
        if power {
            self.journal = self.synced.clone();
        }
        self.flight.clear();
        self.running.clear();
    }

    pub(crate) fn start(&mut self, fresh: Incarnation) -> Vec<Output> {
        let again = self.journal.calls.clone();
        if matches!(self.status, Status::Stopped) {
            return Vec::new();
        }
        let begins = self.rules().has(Rule::FreshIncarnation);
        if begins {
            self.incarnation = fresh;
        }
        if !self.state.active(self.me) {
            self.status = Status::Outside;
            return Vec::new();
        }
        if begins {
            self.status = Status::Resuming { sent: None, again };
            return vec![Output::Send(Request::Fetch(self.chain.point()))];
        }
        self.status = Status::Running;
        self.n = self.state.author(self.me).map_or(0, |row| row.n);
        let orphan = |(call, what)| Running {
            call,
            what,
            stage: Stage::Queued,
            attempts: 0,
            orphan: true,
        };
        self.running = again.into_iter().map(orphan).collect();
        self.journal = Journal::default();
        Vec::new()
    }
}
