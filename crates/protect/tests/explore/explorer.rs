//! Runs schedules of a few actions, and stops copies of the machine at every operation, with every outcome, and again
//! while the next session recovers.

use std::collections::HashMap;
use std::fmt;

use sim::device::{Machine, Stop};
use wal::Device;

use crate::content::{BLOCK, SECTOR};
use crate::model::{Found, Model, Trust};
use crate::subject::{Attach, Subject};
use crate::trace::{Action, Crash, Trace};

/// What is tried.
#[derive(Clone, Debug)]
pub struct Scope {
    pub trust: Trust,
    pub stops: Vec<Stop>,
    /// Into how many parts a write tears.
    pub pieces: usize,
    /// Outcomes of one crash that are tried, and of a crash after a crash.
    pub outcomes: [u64; 2],
    /// How many crashes follow each other.
    pub crashes: usize,
}

impl Scope {
    /// Honest devices, both stops, and two crashes.
    pub fn honest() -> Scope {
        Scope {
            trust: Trust::Honest,
            stops: vec![Stop::Kill, Stop::Power],
            pieces: 2,
            outcomes: [64, 8],
            crashes: 2,
        }
    }
}

/// A broken invariant and how to break it again.
#[derive(Debug)]
pub struct Failure {
    pub what: String,
    pub trace: Trace,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nagain: BULLA_TRACE='{}'", self.what, self.trace)
    }
}

/// How much was tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tried {
    pub schedules: u64,
    pub crashes: u64,
    pub sessions: u64,
    pub refused: u64,
}

pub struct Explorer<'a> {
    device: &'a dyn Attach,
    scope: Scope,
    /// Crashes that were tried, and how many crashes came before them.
    seen: HashMap<(u64, u64), usize>,
    pub tried: Tried,
}

/// A machine in the middle of a session, and what its device must still have.
struct Point {
    machine: Machine,
    model: Model,
}

/// The end of a schedule: a session that goes on.
pub struct Session {
    pub machine: Machine,
    pub model: Model,
    pub subject: Box<dyn Subject>,
    /// Requests that failed on devices that lie.
    pub failed: u64,
}

impl<'a> Explorer<'a> {
    pub fn new(device: &'a dyn Attach, scope: Scope) -> Explorer<'a> {
        Explorer {
            device,
            scope,
            seen: HashMap::new(),
            tried: Tried::default(),
        }
    }

    /// Runs `schedule` on a copy of `start`, whose blocks are as `model` says, and every crash of it.
    pub fn explore(
        &mut self,
        start: &Machine,
        model: &Model,
        schedule: &[Action],
    ) -> Result<(), Failure> {
        let trace = Trace {
            schedule: schedule.to_vec(),
            crashes: Vec::new(),
        };
        self.tried.schedules += 1;
        let failed = |what| Failure {
            what,
            trace: trace.clone(),
        };
        let (session, points) = self.run(start, model, schedule).map_err(failed)?;
        for (operation, point) in points.iter().enumerate() {
            self.crash(point, operation, &trace)?;
        }
        self.finish(session).map_err(failed)
    }

    /// Does again what a trace says.
    pub fn replay(&mut self, start: &Machine, model: &Model, trace: &Trace) -> Result<(), Failure> {
        let failed = |what| Failure {
            what,
            trace: trace.clone(),
        };
        let (session, mut points) = self.run(start, model, &trace.schedule).map_err(failed)?;
        if trace.crashes.is_empty() {
            return self.finish(session).map_err(failed);
        }
        for crash in &trace.crashes {
            let Some(point) = points.get(crash.operation) else {
                return Err(failed(format!("no operation {}", crash.operation)));
            };
            points = self.again(point, crash).map_err(failed)?;
        }
        Ok(())
    }

    fn again(&mut self, point: &Point, crash: &Crash) -> Result<Vec<Point>, String> {
        let machine = point
            .machine
            .restart(crash.stop, self.scope.pieces, &crash.outcome);
        self.recover(&machine, &point.model)
            .map(|recovered| recovered.1)
    }

    fn run(
        &mut self,
        start: &Machine,
        model: &Model,
        schedule: &[Action],
    ) -> Result<(Session, Vec<Point>), String> {
        let machine = start.fork();
        machine.record();
        let subject = self.device.attach(&machine)?;
        let mut points = recorded(&machine, model);
        let mut session = Session {
            machine,
            model: model.clone(),
            subject,
            failed: 0,
        };
        for action in schedule {
            let before = session.act(action, self.scope.trust)?;
            points.extend(recorded(&session.machine, &before));
            session.check(self.scope.trust)?;
        }
        points.push(session.now());
        Ok((session, points))
    }

    /// All outcomes of a crash at `point`, and of crashes while they are recovered from.
    fn crash(&mut self, point: &Point, operation: usize, trace: &Trace) -> Result<(), Failure> {
        let scope = self.scope.clone();
        let depth = trace.crashes.len();
        let outcomes = scope.outcomes[depth.min(1)];
        for &stop in &scope.stops {
            self.tried.crashes += 1;
            for outcome in point
                .machine
                .outcomes(stop, scope.pieces, outcomes, operation as u64)
            {
                let machine = point.machine.restart(stop, scope.pieces, &outcome);
                let key = (machine.fingerprint(), point.model.fingerprint(scope.trust));
                if self.seen.get(&key).is_some_and(|before| *before <= depth) {
                    continue;
                }
                self.seen.insert(key, depth);
                let trace = trace.then(operation, stop, &outcome);
                let failed = |what| Failure {
                    what,
                    trace: trace.clone(),
                };
                let (session, points) = self.recover(&machine, &point.model).map_err(failed)?;
                if depth + 1 < scope.crashes {
                    for (operation, point) in points.iter().enumerate() {
                        self.crash(point, operation, &trace)?;
                    }
                    session
                        .map_or(Ok(()), |session| self.finish(session))
                        .map_err(failed)?;
                }
            }
        }
        Ok(())
    }

    /// A new session on a restarted machine. `None`: the device was refused, as it may be if it lies.
    fn recover(
        &mut self,
        machine: &Machine,
        model: &Model,
    ) -> Result<(Option<Session>, Vec<Point>), String> {
        let trust = self.scope.trust;
        self.tried.sessions += 1;
        machine.record();
        let subject = match self.device.attach(machine) {
            Ok(subject) => subject,
            Err(refused) if matches!(trust, Trust::Honest | Trust::Rots) => {
                return Err(format!("the device is refused after the crash: {refused}"));
            }
            Err(_) => {
                self.tried.refused += 1;
                return Ok((None, recorded(machine, model)));
            }
        };
        let mut points = recorded(machine, model);
        let mut session = Session::begin(machine.clone(), model.clone(), subject, trust)?;
        session.check(trust)?;
        points.push(session.now());
        Ok((Some(session), points))
    }

    /// Invariants 8 and 9: what is accepted drains, and after detaching the data device is what a raw disk would be.
    fn finish(&self, mut session: Session) -> Result<(), String> {
        session.act(&Action::Flush, self.scope.trust)?;
        session.act(&Action::Drain, self.scope.trust)?;
        session.check(self.scope.trust)?;
        let lost = session.lost();
        let detached = session.subject.detach();
        if !matches!(self.scope.trust, Trust::Honest | Trust::Rots) {
            return Ok(());
        }
        detached.map_err(|error| format!("detaching failed: {error}"))?;
        // Durably so: also if the power is cut now.
        let pieces = self.scope.pieces;
        for outcome in session.machine.outcomes(Stop::Power, pieces, 4, 0) {
            let machine = session.machine.restart(Stop::Power, pieces, &outcome);
            let contents = machine.device("D").contents();
            let blocks = session.model.blocks().into_iter();
            for block in blocks.filter(|block| !lost.contains(block)) {
                let found = &contents[block as usize * BLOCK..][..BLOCK];
                if found != session.model.newest(block).bytes(block) {
                    return Err(format!(
                        "after detaching, block {block} of the data device differs"
                    ));
                }
            }
        }
        Ok(())
    }
}

fn recorded(machine: &Machine, model: &Model) -> Vec<Point> {
    let copies = machine.recorded().into_iter();
    let point = |machine| Point {
        machine,
        model: model.clone(),
    };
    copies.map(point).collect()
}

impl Session {
    /// A session after a crash: what its first reads return is what the device has.
    pub fn begin(
        machine: Machine,
        model: Model,
        subject: Box<dyn Subject>,
        trust: Trust,
    ) -> Result<Session, String> {
        let mut session = Session {
            machine,
            model,
            subject,
            failed: 0,
        };
        for block in session.model.blocks() {
            let found = session.read(block);
            session.model.recovered(block, &found, trust)?;
        }
        Ok(session)
    }

    fn now(&self) -> Point {
        let machine = self.machine.fork();
        machine.stop();
        Point {
            machine,
            model: self.model.clone(),
        }
    }

    fn read(&mut self, block: u64) -> Found {
        let mut bytes = vec![0; self.model.bytes(block)];
        let read = self.subject.read(block * BLOCK as u64, &mut bytes);
        read.map(|()| bytes).map_err(|error| error.to_string())
    }

    /// Reads all watched blocks.
    pub fn check(&mut self, trust: Trust) -> Result<(), String> {
        self.check_blocks(&self.model.blocks(), trust)
    }

    /// Reads these blocks.
    pub fn check_blocks(&mut self, blocks: &[u64], trust: Trust) -> Result<(), String> {
        for block in blocks {
            if self.machine.stopped() {
                return Ok(());
            }
            let found = self.read(*block);
            self.model.check(*block, &found, trust)?;
        }
        let alarms = self.subject.alarms();
        let is_false = |alarm: &&String| match trust {
            Trust::Honest => true,
            Trust::Rots => alarm.starts_with("read-only"),
            Trust::NoSpace | Trust::Lies | Trust::LiesAboutAge => false,
        };
        match alarms.iter().find(is_false) {
            Some(alarm) if !self.machine.stopped() => Err(format!("a false alarm: {alarm}")),
            _ => Ok(()),
        }
    }

    /// Watched blocks that cannot be read.
    pub fn lost(&mut self) -> Vec<u64> {
        let blocks = self.model.blocks().into_iter();
        blocks.filter(|block| self.read(*block).is_err()).collect()
    }

    /// A part of a block of which nobody knows the rest is not written.
    fn may_merge(&mut self, sectors: &std::ops::Range<u64>, trust: Trust) -> Result<bool, String> {
        for block in self.model.merged(sectors) {
            if self.model.is_lost(block) {
                let found = self.read(block);
                self.model.recovered(block, &found, trust)?;
            }
            if self.model.is_lost(block) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Does it. Returns what the device must have if it stops meanwhile.
    pub fn act(&mut self, action: &Action, trust: Trust) -> Result<Model, String> {
        if let Action::Write(sectors) | Action::Zero(sectors) = action
            && !self.may_merge(sectors, trust)?
        {
            return Ok(self.model.clone());
        }
        let mut after = self.model.clone();
        let place = |sectors: &std::ops::Range<u64>| {
            (
                sectors.start * SECTOR as u64,
                (sectors.end - sectors.start) * SECTOR as u64,
            )
        };
        let (before, done) = match action {
            Action::Write(sectors) => {
                let bytes = after.write(sectors.clone());
                (after.clone(), self.subject.write(place(sectors).0, &bytes))
            }
            Action::Zero(sectors) => {
                after.zero(sectors);
                let (offset, bytes) = place(sectors);
                (after.clone(), self.subject.zero(offset, bytes))
            }
            Action::Flush => {
                let begun = after.flush_begins();
                let done = self.subject.flush();
                after.flushed(&begun);
                (self.model.clone(), done)
            }
            Action::Step(actor) => {
                self.subject.step(*actor);
                (self.model.clone(), Ok(()))
            }
            Action::Drain => {
                self.drain()?;
                (self.model.clone(), Ok(()))
            }
            Action::Rot(page) => {
                let device = self.machine.device("L");
                let at = device.bytes() - (page + 1) * BLOCK as u64 + 100;
                device.flip(at * 8);
                (self.model.clone(), Ok(()))
            }
        };
        match done {
            _ if self.machine.stopped() => self.model = before.clone(),
            Ok(()) => self.model = after,
            Err(error)
                if trust == Trust::Honest || trust == Trust::Rots && *action == Action::Flush =>
            {
                return Err(format!("{action} failed: {error}"));
            }
            Err(_) => {
                self.failed += 1;
                self.model.refuse(&after);
            }
        }
        Ok(before)
    }

    fn drain(&mut self) -> Result<(), String> {
        for _ in 0..10_000 {
            let actors = 0..self.subject.actors();
            let worked = actors.filter(|actor| self.subject.step(*actor)).count() > 0;
            if !worked {
                return Ok(());
            }
        }
        Err("the background work does not end".to_owned())
    }
}
