//! Calls wait for beacons, or fail: what the server shows without them may be another log than theirs.

use std::time::Instant;

use super::{Calling, Driver};
use crate::client::Answered;
use crate::client::beacons::{Beacons, Verdict};
use crate::client::core::Ticket;
use crate::client::error::ClientError;
use crate::files::{Answer, Stamped};

/// What a call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// What this device has verified, whenever that was.
    Look,
    Read,
    Change,
}

impl Driver {
    /// The same with beacons.
    pub(in crate::client) fn with_beacons(mut self, beacons: Beacons) -> Driver {
        self.beacons = beacons;
        self.meet_beacons();
        self
    }

    pub(super) fn read_beacons(&mut self) {
        self.beacons.read_again(Instant::now());
        self.meet_beacons();
    }

    /// Looks for new entries of beacons.
    pub(super) fn meet_beacons(&mut self) {
        let Some(core) = self.core.clone() else {
            return;
        };
        if let Ok(core) = core.lock() {
            let now = Instant::now();
            self.beacons
                .meet(now, |device, known| core.newest_by(device, known));
        }
    }

    /// Takes a call, unless a beacon is overdue.
    pub(super) fn admit(&mut self, it: Calling) -> Option<(Ticket, Stamped)> {
        match self.beacons.verdict(Instant::now()) {
            Verdict::Fresh => {
                let kind = match it.call.call.only_reads() {
                    true => Kind::Read,
                    false => Kind::Change,
                };
                self.calls.insert(it.ticket, (it.answer, kind));
                self.outbox.keep(it.ticket, *it.flight);
                Some((it.ticket, it.call))
            }
            Verdict::Waits(_) => {
                self.held.push(it);
                None
            }
            Verdict::Overdue(why) => {
                // The caller may have gone.
                let _ = it.answer.send(Err(why));
                None
            }
        }
    }

    /// When calls that wait for a beacon are looked at again, at the latest.
    pub(super) fn held_until(&self) -> Option<Instant> {
        if self.held.is_empty() {
            return None;
        }
        match self.beacons.verdict(Instant::now()) {
            Verdict::Waits(until) => until,
            Verdict::Fresh | Verdict::Overdue(_) => Some(Instant::now()),
        }
    }

    /// Takes calls that have waited for a beacon, or answers them.
    pub(super) fn release(&mut self) {
        if self.held.is_empty() {
            return;
        }
        if let Verdict::Waits(_) = self.beacons.verdict(Instant::now())
            && self.stopped.is_none()
        {
            return;
        }
        let mut calls = Vec::new();
        for held in std::mem::take(&mut self.held) {
            match &self.stopped {
                Some(why) => drop(held.answer.send(Err(why.clone().into()))),
                None => calls.extend(self.admit(held)),
            }
        }
        if !calls.is_empty() {
            self.store();
            self.inputs.push_back(super::Input::Issue(calls));
        }
    }

    /// The answer, unless a beacon is overdue. A change that has had effect is answered all the same.
    pub(super) fn in_time(
        &self,
        kind: Kind,
        answer: Result<Answered, ClientError>,
    ) -> Result<Answered, ClientError> {
        let says = match (&answer, kind) {
            (_, Kind::Look) | (Err(_), _) => false,
            (Ok(answered), _) => !matches!(answered.answer, Answer::Done(_) | Answer::Settled),
        };
        match self.beacons.overdue(Instant::now()) {
            Some(why) if says && self.stopped.is_none() => Err(why),
            _ => answer,
        }
    }
}
