//! Deadlines for the engine's timers. The engine itself knows no time; this keeps it for one engine.

use super::{Effect, Engine, Reply, Timer};
use crate::scheme::DeviceScheme;
use crate::volume::Volume;

/// How long things may take, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Delays {
    /// From a record in the journal until it is synced.
    pub sync_ms: u64,
    /// Idle time until a device attests.
    pub attest_ms: u64,
    /// How long a call waits for silent authors.
    pub silence_ms: u64,
    /// Time to live of locks: one whose holder has not renewed it for so long may be taken over.
    pub lock_ms: u64,
}

/// Idle time until a device attests for whose entries others wait: long enough for the next call of a program, whose entry
/// attests too.
const HURRY_MS: u64 = 1;

impl Default for Delays {
    fn default() -> Self {
        Delays {
            sync_ms: 1000,
            attest_ms: 5,
            silence_ms: 5000,
            lock_ms: 30_000,
        }
    }
}

/// When which timer of an engine rings. All times are milliseconds of one clock that never runs backwards.
#[derive(Clone, Debug)]
pub struct Alarm<T> {
    delays: Delays,
    sync: Option<u64>,
    attest: Option<u64>,
    /// Calls that wait for silent authors, and until when.
    silence: Vec<(T, u64)>,
    /// The log's size when the device began to wait out locks, and until when it waits.
    lapse: Option<(u64, u64)>,
    /// The server has sent all that it has.
    caught_up: bool,
}

impl<T: Copy + PartialEq> Alarm<T> {
    /// For an engine that has just started.
    pub fn new(delays: Delays) -> Self {
        Alarm {
            delays,
            sync: None,
            attest: None,
            silence: Vec::new(),
            lapse: None,
            caught_up: false,
        }
    }

    /// There is a new connection: nothing is known of how far the server is.
    pub fn connected(&mut self) {
        self.caught_up = false;
    }

    /// A reply was delivered.
    pub fn replied<S: DeviceScheme>(&mut self, reply: &Reply<S>) {
        self.caught_up = !reply.more;
    }

    /// Sets the timers after a step of the engine.
    pub fn set<S: DeviceScheme, V: Volume<S>>(&mut self, now_ms: u64, engine: &Engine<S, V, T>) {
        let until = |timer, known: Option<u64>, delay: u64| {
            let at = known.unwrap_or(now_ms.saturating_add(delay));
            engine.armed(timer).then_some(at)
        };
        self.sync = until(Timer::Sync, self.sync, self.delays.sync_ms);
        let attest = match engine.hurries() {
            true => self.delays.attest_ms.min(HURRY_MS),
            false => self.delays.attest_ms,
        };
        let known = self.attest.map(|at| at.min(now_ms.saturating_add(attest)));
        self.attest = until(Timer::Attest, known, attest);
        let watched = engine.watched().filter(|_| engine.armed(Timer::Lapse));
        self.lapse = watched.map(|size| {
            let known = self.lapse.filter(|(known, _)| *known == size);
            known.unwrap_or((size, now_ms.saturating_add(self.delays.lock_ms)))
        });
        let waiting: Vec<T> = engine.waiting().collect();
        self.silence.retain(|(call, _)| waiting.contains(call));
        for call in waiting {
            if !self.silence.iter().any(|(known, _)| *known == call) {
                let until = now_ms.saturating_add(self.delays.silence_ms);
                self.silence.push((call, until));
            }
        }
    }

    /// When [`Alarm::ring`] has something to do.
    pub fn next<S: DeviceScheme, V: Volume<S>>(&self, engine: &Engine<S, V, T>) -> Option<u64> {
        let resume = (self.caught_up && engine.armed(Timer::Resume)).then_some(0);
        let silence = self.silence.iter().map(|(_, until)| *until).min();
        let lapse = self.lapse.map(|(_, until)| until);
        [resume, self.sync, self.attest, silence, lapse]
            .into_iter()
            .flatten()
            .min()
    }

    /// Rings what is due. Call [`Alarm::set`] afterwards.
    pub fn ring<S: DeviceScheme, V: Volume<S>>(
        &mut self,
        now_ms: u64,
        engine: &mut Engine<S, V, T>,
    ) -> Vec<Effect<S, V, T>> {
        let due = |at: Option<u64>| at.is_some_and(|at| at <= now_ms);
        let mut out = Vec::new();
        if self.caught_up && engine.armed(Timer::Resume) {
            out.append(&mut engine.ring(Timer::Resume));
        }
        if due(self.sync) {
            self.sync = None;
            out.append(&mut engine.ring(Timer::Sync));
        }
        if due(self.attest) && engine.armed(Timer::Attest) {
            self.attest = None;
            out.append(&mut engine.ring(Timer::Attest));
        }
        let lapse = self
            .lapse
            .filter(|(size, _)| engine.watched() == Some(*size));
        if due(lapse.map(|(_, until)| until)) {
            self.lapse = None;
            out.append(&mut engine.ring(Timer::Lapse));
        }
        let silent = |call: T| {
            let mut waits = self.silence.iter();
            waits.any(|(waits, until)| *waits == call && *until <= now_ms)
        };
        if self.silence.iter().any(|(_, until)| *until <= now_ms) {
            out.append(&mut engine.give_up(silent));
        }
        out
    }
}
