//! Hosts of a simulation that share devices: threads of which one runs at a time, and a clock that all see.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sim::device::SimDevice;
use wal::claim::LEASE;
use wal::{Device, Host, Life, Process};

/// What each operation of a device takes.
const OPERATION: Duration = Duration::from_millis(1);
/// A write that is on its way for longer than this may come after the other host has begun.
const LATE: Duration = Duration::from_millis(1500);
/// The host that runs first.
pub const OWNER: usize = 0;
/// The other one.
pub const OTHER: usize = 1;

/// A host stops for so long before its operation with this number.
#[derive(Clone, Copy, Debug)]
pub struct Stall {
    pub host: usize,
    pub at: usize,
    pub time: Duration,
    /// A hypervisor stops it, and its clock does not count meanwhile.
    pub pauses: bool,
}

/// Lets one host run at a time, and moves the clock that both see.
pub struct Scheduler {
    state: Mutex<Turns>,
    changed: Condvar,
}

pub struct Turns {
    pub now: Duration,
    pub running: usize,
    pub wakes: [Duration; 2],
    pub ended: [bool; 2],
    pub operations: [usize; 2],
    stalls: Vec<Stall>,
    /// So long the clock of each host stood still.
    pub paused: [Duration; 2],
    /// Until then a host that was paused may believe that its lease lasts.
    deceived: [Duration; 2],
    /// Writes that came after their host may have lost the devices, where nothing but a time keeps them away.
    pub late_writes: usize,
}

impl Scheduler {
    pub fn new(stalls: &[Stall]) -> Arc<Scheduler> {
        Arc::new(Scheduler {
            state: Mutex::new(Turns {
                now: Duration::from_secs(1000),
                running: OWNER,
                wakes: [Duration::ZERO; 2],
                ended: [false; 2],
                operations: [0; 2],
                stalls: stalls.to_vec(),
                paused: [Duration::ZERO; 2],
                deceived: [Duration::ZERO; 2],
                late_writes: 0,
            }),
            changed: Condvar::new(),
        })
    }

    pub fn turns(&self) -> MutexGuard<'_, Turns> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the host's first turn.
    pub fn enter(&self, host: usize) {
        self.hand_over(self.turns(), host);
    }

    /// How long the host stopped before it.
    fn operation(&self, host: usize) -> Duration {
        let mut turns = self.turns();
        turns.now += OPERATION;
        turns.operations[host] += 1;
        let at = turns.operations[host];
        let stall = turns
            .stalls
            .iter()
            .find(|it| it.host == host && it.at == at);
        if let Some(Stall { time, pauses, .. }) = stall.copied() {
            let wakes = turns.now + time;
            turns.wakes[host] = wakes;
            if pauses {
                turns.paused[host] += time;
                turns.deceived[host] = wakes + LEASE;
            }
            self.hand_over(turns, host);
            return time;
        }
        Duration::ZERO
    }

    fn wait(&self, host: usize, time: Duration) {
        let mut turns = self.turns();
        turns.wakes[host] = turns.now + time;
        self.hand_over(turns, host);
    }

    /// The host that wakes first goes on. Returns when this one does.
    fn hand_over(&self, mut turns: MutexGuard<'_, Turns>, host: usize) {
        turns.choose();
        self.changed.notify_all();
        while turns.running != host {
            let woken = self.changed.wait(turns);
            turns = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn end(&self, host: usize) {
        let mut turns = self.turns();
        turns.ended[host] = true;
        turns.choose();
        self.changed.notify_all();
    }
}

impl Turns {
    fn choose(&mut self) {
        let alive = (0..2).filter(|host| !self.ended[*host]);
        if let Some(host) = alive.min_by_key(|host| (self.wakes[*host], *host)) {
            self.running = host;
            self.now = self.now.max(self.wakes[host]);
        }
    }
}

/// A host of the simulation.
#[derive(Clone)]
pub struct SimHost {
    pub scheduler: Arc<Scheduler>,
    pub number: usize,
}

impl Host for SimHost {
    fn name(&self) -> String {
        format!("host-{}", self.number)
    }

    fn system(&self) -> Vec<u8> {
        vec![self.number as u8 + 1]
    }

    fn process(&self) -> Process {
        Process {
            namespace: 1,
            pid: 1,
            started: 1,
        }
    }

    fn life(&self, _: &Process) -> Life {
        Life::Ended
    }

    fn now(&self) -> Duration {
        let turns = self.scheduler.turns();
        turns.now - turns.paused[self.number]
    }

    fn wait(&self, time: Duration) {
        self.scheduler.wait(self.number, time);
    }
}

/// A device as one host uses it.
pub struct Seen {
    pub device: Arc<SimDevice>,
    pub host: SimHost,
    /// Parts where a late write harms nothing: claims, and the ring, where a gap keeps it away.
    pub guarded: [Range<u64>; 2],
}

impl Seen {
    fn operation(&self) -> Duration {
        self.host.scheduler.operation(self.host.number)
    }

    fn write_operation(&self, offset: u64) {
        let is_late = self.operation() > LATE;
        let turns = self.host.scheduler.turns();
        let is_late = is_late || turns.now < turns.deceived[self.host.number];
        drop(turns);
        if is_late && !self.guarded.iter().any(|part| part.contains(&offset)) {
            self.host.scheduler.turns().late_writes += 1;
        }
    }
}

impl Device for Seen {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn align(&self) -> u32 {
        self.device.align()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.operation();
        self.device.read(offset, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.write_operation(offset);
        self.device.write(offset, from)
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.write_operation(offset);
        self.device.zero(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.operation();
        self.device.sync()
    }
}
