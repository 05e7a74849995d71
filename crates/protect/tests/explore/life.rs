//! Long lives by seed: random requests, background work in random order, crashes at random operations and during
//! recoveries, a ring that wraps, a map of several pages with a cache of one; and devices that lie.

use std::ops::Range;

use sim::device::{Fault, Lie, Machine, SECTOR_BYTES, Stop};
use sim::random::Random;
use wal::Device;

use crate::explorer::Session;
use crate::model::{Model, Trust};
use crate::protected::{ProtectedDevice, machine_of};
use crate::subject::Attach;
use crate::trace::Action;

/// Three leaves of the map.
const BLOCKS: u64 = 600;
/// The last block is short.
const SECTORS_OF_DEVICE: u64 = BLOCKS * SECTORS - 3;
/// The shortest ring.
const RING_BYTES: u64 = 64 << 10;
const SECTORS: u64 = 8;
const BLOCK_BYTES: u64 = 4096;
/// Blocks that are written, around the edges of leaves.
const WATCHED: [Range<u64>; 3] = [0..6, 253..258, 595..600];

/// Who lies in a life, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adversary {
    Nobody,
    /// A fault of calls to a device, at random times.
    Calls(&'static str, Lie),
    /// Every sync of the device does nothing.
    NoSync(&'static str),
    /// Calls at one block of the device fail for ever.
    Dead(&'static str, Lie),
    /// Bits flip.
    Rot(&'static str),
    /// Some blocks are put back to a random earlier instant.
    PartPutBack(&'static str),
    /// A device is put back to a random earlier instant while it is not attached.
    PutBack(&'static str),
    /// Both are.
    BothPutBack,
    /// Content is copied to another place.
    Transplant(&'static str),
    /// The log loses a suffix of its ring.
    Cut,
    /// The data device is a sparse file, and its file system is full from a random time on.
    Full,
}

/// What happened in a life.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lived {
    pub sessions: u64,
    pub crashes: u64,
    /// Requests that failed, alarms, and refused attachments.
    pub noticed: u64,
    pub refused: u64,
    /// Bytes that went through the log.
    pub logged: u64,
}

struct Life<'a> {
    device: &'a ProtectedDevice,
    adversary: Adversary,
    trust: Trust,
    random: Random,
    machine: Machine,
    model: Model,
    lived: Lived,
    /// What was done, for the report of a failure.
    told: Vec<String>,
}

/// Lives `sessions` sessions.
pub fn live(
    device: &ProtectedDevice,
    adversary: Adversary,
    seed: u64,
    sessions: u64,
) -> Result<Lived, String> {
    let trust = match adversary {
        Adversary::Nobody => Trust::Honest,
        Adversary::Full => Trust::NoSpace,
        _ if device.anchored && !device.lags => Trust::Lies,
        _ => Trust::LiesAboutAge,
    };
    let mut life = Life {
        device,
        adversary,
        trust,
        random: Random::new(seed),
        machine: machine_of(SECTORS_OF_DEVICE * SECTOR_BYTES, RING_BYTES),
        model: Model::new(WATCHED.into_iter().flatten()).ending(SECTORS_OF_DEVICE),
        lived: Lived::default(),
        told: Vec::new(),
    };
    for _ in 0..sessions {
        match life.session() {
            Ok(true) => {}
            Ok(false) => break,
            Err(what) => return Err(format!("{what}\n{}", life.told.join(" "))),
        }
    }
    Ok(life.lived)
}

impl Life<'_> {
    /// One attachment. False: the device was refused, which ends the life.
    fn session(&mut self) -> Result<bool, String> {
        if self.lived.sessions > 0 {
            self.change_detached();
        }
        let Some(mut session) = self.attach()? else {
            return Ok(false);
        };
        self.lived.sessions += 1;
        self.told.push("| attached".to_owned());
        self.lie_in_calls();
        if self.random.below(4) > 0 {
            let operation = self.machine.operations() + 1 + self.random.below(60);
            self.machine.stop_at(operation);
        }
        for _ in 0..60 {
            if self.machine.stopped() {
                break;
            }
            self.change_attached();
            let action = self.action();
            self.told.push(action.to_string());
            session.act(&action, self.trust)?;
            let block = self.block();
            session.check_blocks(&[block, self.block()], self.trust)?;
        }
        self.end(session)
    }

    fn attach(&mut self) -> Result<Option<Session>, String> {
        for attempt in 0.. {
            if self.random.below(3) == 0 && attempt < 4 {
                let operation = self.machine.operations() + 1 + self.random.below(20);
                self.machine.stop_at(operation);
            }
            let attached = self.device.attach(&self.machine);
            if self.machine.stopped() {
                drop(attached);
                self.crash();
                continue;
            }
            let subject = match attached {
                Ok(subject) => subject,
                Err(why) if self.trust.is_honest() => return Err(format!("refused: {why}")),
                Err(_) => {
                    self.lived.noticed += 1;
                    self.lived.refused += 1;
                    return Ok(None);
                }
            };
            let machine = self.machine.clone();
            let mut session = Session::begin(machine, self.model.clone(), subject, self.trust)?;
            self.machine.stop_at(u64::MAX);
            let lost = session
                .model
                .blocks()
                .into_iter()
                .filter(|b| session.model.is_lost(*b));
            self.told
                .push(format!("lost {:?};", lost.collect::<Vec<_>>()));
            session.check(self.trust)?;
            return Ok(Some(session));
        }
        Ok(None)
    }

    fn end(&mut self, mut session: Session) -> Result<bool, String> {
        if !self.machine.stopped() && self.random.below(3) == 0 {
            self.told.push("f d".to_owned());
            session.act(&Action::Flush, self.trust)?;
            session.act(&Action::Drain, self.trust)?;
        }
        self.lived.logged = session.subject.log_end();
        self.lived.noticed += session.failed + session.subject.alarms().len() as u64;
        self.model = session.model.clone();
        let detaches = !self.machine.stopped() && self.random.below(3) == 0;
        if detaches {
            self.detach(session)?;
        } else {
            drop(session);
        }
        self.machine.stop();
        self.crash();
        Ok(true)
    }

    fn detach(&mut self, session: Session) -> Result<(), String> {
        let begun = self.model.flush_begins();
        let detached = session.subject.detach();
        self.told.push(format!("detached {detached:?}"));
        if self.machine.stopped() || (detached.is_err() && self.trust != Trust::Honest) {
            return Ok(());
        }
        detached.map_err(|why| format!("detaching failed: {why}"))?;
        self.model.flushed(&begun);
        if self.trust.is_honest() {
            let contents = self.machine.device("D").contents();
            for block in self.model.blocks() {
                let bytes = self.model.bytes(block);
                let found = &contents[(block * BLOCK_BYTES) as usize..][..bytes];
                if found != &self.model.newest(block).bytes(block)[..bytes] {
                    return Err(format!(
                        "after detaching, block {block} of the data device differs"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The machine has stopped; this is the next one.
    fn crash(&mut self) {
        self.lived.crashes += 1;
        let stop = [Stop::Kill, Stop::Power][self.random.below(2) as usize];
        let pieces = [1, 2, 8, usize::MAX][self.random.below(4) as usize];
        let outcomes = self
            .machine
            .outcomes(stop, pieces, 16, self.random.number());
        let outcomes: Vec<_> = outcomes.collect();
        self.told.push(format!("! {stop:?}"));
        let chosen = &outcomes[self.random.below(outcomes.len() as u64) as usize];
        self.machine = self.machine.restart(stop, pieces, chosen);
    }

    fn block(&mut self) -> u64 {
        let blocks: Vec<u64> = WATCHED.into_iter().flatten().collect();
        blocks[self.random.below(blocks.len() as u64) as usize]
    }

    fn action(&mut self) -> Action {
        let block = self.block();
        let first = block * SECTORS;
        let last = (first + SECTORS).min(SECTORS_OF_DEVICE);
        match self.random.below(20) {
            0..=5 => Action::Write(first..last),
            6 => {
                let end = WATCHED
                    .iter()
                    .find(|range| range.contains(&block))
                    .map_or(block, |r| r.end);
                let end = end.min(block + 3);
                Action::Write(first..(end * SECTORS).min(SECTORS_OF_DEVICE))
            }
            7..=8 => {
                let sectors = last - first;
                let from = self.random.below(sectors);
                let to = from + 1 + self.random.below(sectors - from);
                Action::Write(first + from..first + to)
            }
            9 => {
                let start = block.saturating_sub(self.random.below(4)).min(BLOCKS - 20);
                let end = (start + 16 + self.random.below(300)).min(BLOCKS);
                let end = (end * SECTORS).min(SECTORS_OF_DEVICE);
                Action::Zero(start * SECTORS + self.random.below(2)..end)
            }
            10 => Action::Zero(first..last),
            11..=12 => Action::Flush,
            _ => Action::Step(self.random.below(5) as usize),
        }
    }

    /// An offset on the device that is in use.
    fn place(&mut self, device: &'static str) -> u64 {
        if device == "D" {
            return self.block() * BLOCK_BYTES;
        }
        let pages = self.machine.device("L").bytes() / BLOCK_BYTES;
        let superblocks = [0, 16, 32, 48];
        match self.random.below(8) {
            0 => superblocks[self.random.below(4) as usize] * BLOCK_BYTES,
            _ => (256 + self.random.below(pages - 256)) * BLOCK_BYTES,
        }
    }

    /// Orders lies for the session that begins.
    fn lie_in_calls(&mut self) {
        let after = self.random.below(12);
        match self.adversary {
            Adversary::Calls(device, lie) => {
                let lie = match lie {
                    Lie::WriteMisdirected { .. } => Lie::WriteMisdirected {
                        to: self.place(device),
                    },
                    lie => lie,
                };
                self.machine
                    .device(device)
                    .inject(Fault::once(lie).after(after));
            }
            Adversary::NoSync(device) => {
                self.machine
                    .device(device)
                    .inject(Fault::always(Lie::SyncIgnored));
            }
            Adversary::Dead(device, lie) => {
                let at = self.place(device);
                let dead = Fault::always(lie).at(at..at + BLOCK_BYTES);
                self.machine.device(device).inject(dead);
            }
            _ => {}
        }
    }

    /// Changes while the device is attached.
    fn change_attached(&mut self) {
        if self.random.below(12) > 0 {
            return;
        }
        match self.adversary {
            Adversary::Rot(device) => {
                let at = self.place(device);
                let bit = self.random.below(BLOCK_BYTES * 8);
                self.machine.device(device).flip(at * 8 + bit);
            }
            Adversary::PartPutBack(device) => {
                let at = self.place(device);
                let instant = self.random.below(self.machine.operations() + 1);
                self.machine
                    .device(device)
                    .put_back(at..at + BLOCK_BYTES, instant);
            }
            Adversary::Transplant(device) => {
                let (from, to) = (self.place(device), self.place(device));
                self.machine
                    .device(device)
                    .transplant(from, to, BLOCK_BYTES);
            }
            Adversary::Full => {
                let full = self.random.below(3) > 0;
                self.machine.device("D").set_full(full);
            }
            _ => {}
        }
    }

    /// Changes between two sessions.
    fn change_detached(&mut self) {
        let instant = self.random.below(self.machine.operations() + 1);
        self.told
            .push(format!("({instant} of {})", self.machine.operations()));
        match self.adversary {
            Adversary::PutBack(device) => self.machine.device(device).put_back_all(instant),
            Adversary::BothPutBack => {
                self.machine.device("D").put_back_all(instant);
                self.machine.device("L").put_back_all(instant);
            }
            Adversary::Cut => {
                let end = self.machine.device("L").bytes();
                let start = end - self.random.below(RING_BYTES);
                self.machine.device("L").erase(start..end);
            }
            _ => {}
        }
    }
}

/// Says which life failed, also when it panicked.
struct Told(Adversary, u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the life with seed {} and {:?} failed", self.1, self.0);
        }
    }
}

/// `Nobody 17`: the life with this adversary, as it prints, and seed once more.
#[test]
fn life_in_the_environment_is_lived_again() {
    let Ok(text) = std::env::var("BULLA_LIFE") else {
        return;
    };
    let (name, seed) = text.rsplit_once(' ').unwrap();
    let mut known = vec![
        Adversary::Nobody,
        Adversary::BothPutBack,
        Adversary::Cut,
        Adversary::Full,
    ];
    for device in ["D", "L"] {
        known.extend([
            Adversary::NoSync(device),
            Adversary::Rot(device),
            Adversary::PartPutBack(device),
            Adversary::PutBack(device),
            Adversary::Transplant(device),
        ]);
    }
    let adversary = known
        .into_iter()
        .find(|adversary| format!("{adversary:?}") == name);
    let seed = seed.parse().unwrap();
    lives(
        &ProtectedDevice::small(),
        adversary.unwrap(),
        seed..seed + 1,
    );
}

/// Lives with these seeds.
pub fn lives(device: &ProtectedDevice, adversary: Adversary, seeds: Range<u64>) -> Lived {
    let mut all = Lived::default();
    for seed in seeds {
        let _told = Told(adversary, seed);
        let lived = live(device, adversary, seed, 12).unwrap_or_else(|what| panic!("{what}"));
        all.sessions += lived.sessions;
        all.crashes += lived.crashes;
        all.noticed += lived.noticed;
        all.refused += lived.refused;
        all.logged = all.logged.max(lived.logged);
    }
    all
}

/// How many seeds: `short`, or with BULLA_LONG a hundred times as many.
pub fn seeds(short: u64) -> Range<u64> {
    let long = std::env::var_os("BULLA_LONG").is_some();
    0..if long { short * 100 } else { short }
}
