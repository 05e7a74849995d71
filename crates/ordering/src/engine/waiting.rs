//! Waiting for other devices: the read rule, Attests, answers, syncs of the floor, and locks (decision 0050).

use super::{Effect, Effects, Engine, Request, Running, Stage, Status};
use crate::ablation::{Rule, Rules};
use crate::read_rule::{Support, Verdict, judge};
use crate::scheme::{DeviceScheme, Log};
use crate::volume::{Basis, Volume};
use trust_shared::form::Point;

impl<S: DeviceScheme, V: Volume<S>, T: Copy> Engine<S, V, T> {
    /// What speaks for an entry of `author` at a position.
    fn support(&self, at: u64, author: S::Device) -> Support {
        if author == self.scheme.me() {
            return Support::Own;
        }
        if at < self.ledger.begins() {
            return Support::Attested;
        }
        let by_messages = if self.scheme.rules().has(Rule::AttestByAuthor) {
            self.attested.get(author).copied().unwrap_or(0)
        } else {
            let all = self.attested.iter().map(|(_, size)| *size);
            all.max().unwrap_or(0)
        };
        if by_messages.max(self.attested_by_entries(author)) > at {
            Support::Attested
        } else if self.begun() > at || self.ledger.volume().accepted(author) > at {
            Support::Accepted
        } else {
            Support::None
        }
    }

    /// Size of the prefix with which the log's epoch begins. The owners have signed it, so nobody need speak for its
    /// entries: every device of the epoch has them.
    fn begun(&self) -> u64 {
        self.scheme.start().map_or(0, |start| start.size)
    }

    /// Size of the prefix that a device attests, by messages or by its entries.
    pub fn attested(&self, device: S::Device) -> u64 {
        let by_messages = self.attested.get(device).copied().unwrap_or(0);
        by_messages.max(self.attested_by_entries(device))
    }

    /// What an entry says that nobody has verified counts for nothing.
    fn attested_by_entries(&self, author: S::Device) -> u64 {
        let rule = self.scheme.rules().has(Rule::VerifyBeforeUse);
        match rule && self.unverified.has(author) {
            true => 0,
            false => self.ledger.author(author).map_or(0, |row| row.attested),
        }
    }

    /// Whether something speaks for an entry of `author` at a position: then it may be used.
    pub fn is_supported(&self, author: S::Device, at: u64) -> bool {
        self.support(at, author) != Support::None
    }

    /// Whether this device attests its last entry.
    pub fn has_attested(&self) -> bool {
        let me = self.scheme.me();
        let row = self.ledger.author(me);
        row.is_none_or(|row| self.attested(me) > row.last_at)
    }

    /// Authors of entries that nothing speaks for, each with the position of its last entry.
    pub fn unsupported(&self) -> Vec<(S::Device, u64)> {
        let authors = self.ledger.authors();
        let unsupported =
            authors.filter(|(author, row)| self.support(row.last_at, *author) == Support::None);
        unsupported
            .map(|(author, row)| (author, row.last_at))
            .collect()
    }

    /// A prefix in which every entry is supported. A longer one may be so too.
    pub fn foldable(&self) -> u64 {
        let size = self.ledger.size();
        if !self.scheme.rules().has(Rule::FoldAttested) {
            return size;
        }
        let unsupported = self.ledger.authors().filter_map(|(author, row)| {
            if self.support(row.last_at, author) != Support::None {
                return None;
            }
            let by_messages = self.attested.get(author).copied().unwrap_or(0);
            let accepted = self.ledger.volume().accepted(author);
            let begun = self.begun();
            Some(row.attested.max(by_messages).max(accepted).max(begun))
        });
        let supported = unsupported.min().unwrap_or(size).min(size);
        supported.max(self.ledger.begins())
    }

    /// Waits out a lock that was renewed last at `locked`. A wait that began before the renewal does not count: the
    /// time to live runs from when this device has the renewal in its log.
    pub(super) fn watch(&mut self, locked: Option<u64>) {
        let began = self
            .watched
            .filter(|size| locked.is_some_and(|last| last < *size));
        self.watched = locked.map(|_| began.unwrap_or_else(|| self.ledger.size()));
    }

    /// The time to live of locks has passed.
    pub(super) fn lapse(&mut self) {
        let watched = self.watched.take().map(|size| {
            if self.scheme.rules().has(Rule::LapseFromWatch) {
                size
            } else {
                self.ledger.size()
            }
        });
        self.lapsed = self.lapsed.max(watched.unwrap_or(0));
    }

    /// Entries that an answer rests on, and that nothing speaks for yet.
    fn missing(&self, basis: &V::Basis) -> V::Basis {
        basis.filter(|at, author| self.support(at, author) == Support::None)
    }

    /// Answers what can be answered. `waited`: calls whose wait for silent authors is over.
    pub(super) fn settle(&mut self, waited: impl Fn(T) -> bool, out: &mut Effects<S, V, T>) {
        let taken = |stage: &Stage<S, V>| matches!(stage, Stage::Taken { .. });
        if !self.running.iter().any(|running| taken(&running.stage)) || !self.is_verified(out) {
            return;
        }
        let mut left = Vec::new();
        for running in std::mem::take(&mut self.running) {
            let waited = running.ticket.is_some_and(&waited);
            let answer = self.answer(&running.stage, waited);
            match (answer, running.ticket) {
                (Some((answer, at, marked)), Some(ticket)) => out.push(Effect::Answer {
                    ticket,
                    answer,
                    at,
                    marked,
                }),
                (None, None) if taken(&running.stage) => {}
                (None, _) => left.push(running),
                (Some(_), None) => {}
            }
        }
        self.running = left;
    }

    fn answer(&self, stage: &Stage<S, V>, waited: bool) -> Option<(V::Answer, u64, V::Basis)> {
        let Stage::Taken { at, answer, basis } = stage else {
            return None;
        };
        let missing = if self.scheme.rules().has(Rule::ReadsWait) {
            self.missing(basis)
        } else {
            V::Basis::default()
        };
        let support = if missing.is_empty() {
            Support::Attested
        } else {
            Support::None
        };
        match judge(self.setup.silence, support, waited) {
            Verdict::Use | Verdict::UseMarked => Some((answer.clone(), *at, missing)),
            Verdict::Ask => None,
            Verdict::Fail => Some((V::silent(&missing), *at, V::Basis::default())),
        }
    }

    /// Authors whom answers wait for.
    pub fn awaited(&self) -> Vec<S::Device> {
        let mut devices = Vec::new();
        for running in &self.running {
            if let Stage::Taken { basis, .. } = &running.stage {
                let _ = basis.filter(|at, author| {
                    let missing = self.support(at, author) == Support::None;
                    if missing && !devices.contains(&author) {
                        devices.push(author);
                    }
                    missing
                });
            }
        }
        devices
    }

    /// Calls that wait for silent authors.
    pub fn waiting(&self) -> impl Iterator<Item = T> {
        let waits = |running: &&Running<S, V, T>| match &running.stage {
            Stage::Taken { basis, .. } => !self.missing(basis).is_empty(),
            _ => false,
        };
        let waiting = self.running.iter().filter(waits);
        waiting.filter_map(|running| running.ticket)
    }

    /// These calls have waited long enough for silent authors. The volume's policy says what they get.
    pub fn give_up(&mut self, calls: impl Fn(T) -> bool) -> Effects<S, V, T> {
        let mut out = Vec::new();
        self.settle(calls, &mut out);
        self.pump(&mut out);
        out
    }

    /// Asks the authors whom answers wait for.
    pub(super) fn ask(&self, out: &mut Effects<S, V, T>) {
        let asks = self.awaited().into_iter().map(Request::Ask);
        out.extend(asks.map(Effect::Send));
    }

    /// An Attest of another device.
    pub(super) fn learn(&mut self, attest: &S::Attest, out: &mut Effects<S, V, T>) {
        let (device, seen) = S::attested(attest);
        let here = self.ledger.log().root_at(seen.size);
        // What says no more than is known costs no signature. One of another log says more.
        let says_more = seen.size > self.attested(device) || here != Some(seen.root);
        let known = self.ledger.author(device).is_some();
        if !known || !says_more || !self.scheme.attest_is_signed(attest) {
            return;
        }
        if self.scheme.rules().has(Rule::AttestOnChain) && here != Some(seen.root) {
            if here.is_some() {
                out.push(Effect::Differs(attest.clone()));
            }
            return;
        }
        let known = self.attested.get(device).copied().unwrap_or(0);
        self.attested.insert(device, seen.size.max(known));
    }

    /// An own entry is in the log that nothing attests, and none is on its way.
    pub(super) fn unattested(&self) -> bool {
        let me = self.scheme.me();
        let by_message = self.attested.get(me).copied().unwrap_or(0);
        let running = matches!(self.status, Status::Running) && self.flight.is_empty();
        let row = self.ledger.author(me);
        running && row.is_some_and(|row| row.last_at >= row.attested.max(by_message))
    }

    /// Makes the floor durable.
    pub(super) fn sync(&mut self, out: &mut Effects<S, V, T>) {
        self.journal_floor(out);
        if self.unsynced {
            out.push(Effect::Sync);
        }
        self.unsynced = false;
        self.kept = self.ledger.size();
    }

    pub(super) fn attest(&mut self, out: &mut Effects<S, V, T>) {
        if !self.is_verified(out) {
            return;
        }
        if self.scheme.rules().has(Rule::AttestAfterSync) {
            self.sync(out);
        }
        let seen = self.ledger.point();
        self.attested.insert(self.scheme.me(), seen.size);
        let attest = self.scheme.attest(seen).map(Request::Attest);
        out.extend(attest.map(Effect::Send));
    }

    /// Somebody wants an Attest: a new one, or the last one again, which may have been lost. While an entry is in flight
    /// there is no new one; the entry after it, or an Attest, follows as soon as it is in the log.
    pub(super) fn asked(&mut self, out: &mut Effects<S, V, T>) {
        if !self.is_verified(out) {
            return;
        }
        if self.unattested() {
            return self.attest(out);
        }
        self.owes |= !self.flight.is_empty();
        let size = self.attested.get(self.scheme.me()).copied().unwrap_or(0);
        let root = self.ledger.log().root_at(size).filter(|_| size > 0);
        let seen = root.map(|root| Point { size, root });
        let attest = seen.and_then(|seen| self.scheme.attest(seen));
        out.extend(attest.map(Request::Attest).map(Effect::Send));
    }
}
