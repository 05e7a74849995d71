//! What a machine may find after it stopped.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::str::FromStr;

use super::sectors::Version;
use super::{Machine, SECTOR_BYTES, State};
use crate::random::Random;

/// How a machine stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stop {
    /// The process dies (`kill -9`); devices and kernel go on.
    Kill,
    /// Everything stops; what was not synced is in doubt.
    Power,
}

/// What a crash leaves: one digit for each part that is in doubt, 0 for its oldest version. It prints as `0.2.1`
/// and can be parsed again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Outcome(Vec<usize>);

/// Sectors that live or die together, and the versions that they may have.
struct Part {
    device: usize,
    sectors: Range<u64>,
    /// For each sector, its versions, oldest first; for all sectors of the part by the same operations.
    versions: Vec<Vec<Version>>,
    /// The operations of the versions.
    operations: Vec<u64>,
}

/// The outcomes of a crash: all of them, or a sample.
pub struct Outcomes {
    /// For each part, its device and the operations that wrote its versions.
    parts: Vec<(usize, Vec<u64>)>,
    next: u64,
    end: u64,
    all: bool,
    seed: u64,
}

impl Machine {
    /// From now on, keeps a copy of the machine at each operation, as if it had stopped there.
    pub fn record(&self) {
        self.state().record = Some(Vec::new());
    }

    /// The copies since [`record`](Machine::record), each stopped with one operation in flight.
    pub fn recorded(&self) -> Vec<Machine> {
        let copies = self.state().record.replace(Vec::new());
        copies.into_iter().flatten().map(Machine::with).collect()
    }

    /// A number that is the same for machines that differ in nothing that a read or a crash can find, or only in what
    /// [`SimDevice::mask`](super::SimDevice::mask) hides.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        for disk in &self.state().devices {
            disk.name.hash(&mut hash);
            disk.sectors.fingerprint(&mut hash);
        }
        hash.finish()
    }

    /// How many outcomes a stop now may have, when every write may tear into `pieces` parts
    /// (`usize::MAX`: into sectors).
    pub fn combinations(&self, stop: Stop, pieces: usize) -> u64 {
        let parts = self.state().parts(stop, pieces);
        let options = parts.iter().map(|part| part.operations.len() as u64);
        options.fold(1, u64::saturating_mul)
    }

    /// The outcomes that a stop now may have: all when they are no more than `most`; else all old, all new, each
    /// device new alone, and others by seed: what was written before an instant, whole writes, and parts alone.
    pub fn outcomes(&self, stop: Stop, pieces: usize, most: u64, seed: u64) -> Outcomes {
        let combinations = self.combinations(stop, pieces);
        let parts = self.state().parts(stop, pieces);
        Outcomes {
            parts: parts
                .into_iter()
                .map(|part| (part.device, part.operations))
                .collect(),
            next: 0,
            end: combinations.min(most),
            all: combinations <= most,
            seed,
        }
    }

    /// The machine after a stop now and a restart, with this outcome of [`outcomes`](Machine::outcomes) for the same
    /// `stop` and `pieces`. Faults stay; this machine is unchanged.
    pub fn restart(&self, stop: Stop, pieces: usize, outcome: &Outcome) -> Machine {
        let mut state = self.state().clone();
        let parts = state.parts(stop, pieces);
        assert_eq!(parts.len(), outcome.0.len(), "an outcome of another crash");
        state.operations += 1;
        let now = state.operations;
        for (part, &digit) in parts.iter().zip(&outcome.0) {
            let sectors = &mut state.devices[part.device].sectors;
            for (sector, versions) in part.sectors.clone().zip(&part.versions) {
                let version = &versions[digit];
                match stop {
                    Stop::Power => sectors.keep(sector, now, version),
                    Stop::Kill if digit > 0 => sectors.write(sector, now, version.content.clone()),
                    Stop::Kill => {}
                }
            }
        }
        for disk in &mut state.devices {
            disk.sectors.restarted(stop == Stop::Power);
            disk.hold = None;
        }
        state.stopped = false;
        state.stop_at = None;
        state.record = None;
        Machine::with(state)
    }
}

impl State {
    /// What is in doubt: runs of sectors that the same operations wrote, cut into `pieces`.
    fn parts(&self, stop: Stop, pieces: usize) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        for (device, disk) in self.devices.iter().enumerate() {
            let doubts = match stop {
                Stop::Kill => disk.sectors.after_kill(),
                Stop::Power => disk.sectors.after_power_cut(),
            };
            for (sector, versions) in doubts {
                let operations: Vec<u64> = versions.iter().map(|v| v.operation).collect();
                match parts.last_mut() {
                    Some(part) if part.continues(device, sector, &operations) => {
                        part.sectors.end += 1;
                        part.versions.push(versions);
                    }
                    _ => parts.push(Part {
                        device,
                        sectors: sector..sector + 1,
                        versions: vec![versions],
                        operations,
                    }),
                }
            }
        }
        let cut = parts.into_iter().flat_map(|part| {
            let unit = self.devices[part.device].atomic_bytes / SECTOR_BYTES;
            part.cut(pieces, unit)
        });
        cut.map(Part::distinct)
            .filter(|part| part.operations.len() > 1)
            .collect()
    }
}

impl Part {
    /// Whether this sector belongs to the same writes. The oldest version is the one before them, which may be of
    /// different operations.
    fn continues(&self, device: usize, sector: u64, operations: &[u64]) -> bool {
        self.device == device
            && self.sectors.end == sector
            && self.operations[1..] == operations[1..]
    }

    /// Cuts the part into `pieces`, but no naturally aligned unit of so many sectors.
    fn cut(mut self, pieces: usize, unit: u64) -> Vec<Part> {
        let length = (self.versions.len() as u64).div_ceil(pieces.max(1) as u64);
        let mut cut = Vec::new();
        loop {
            let middle = (self.sectors.start + length).next_multiple_of(unit);
            if middle >= self.sectors.end {
                break;
            }
            let rest = self
                .versions
                .split_off((middle - self.sectors.start) as usize);
            cut.push(Part {
                device: self.device,
                sectors: self.sectors.start..middle,
                versions: std::mem::replace(&mut self.versions, rest),
                operations: self.operations.clone(),
            });
            self.sectors.start = middle;
        }
        cut.push(self);
        cut
    }

    /// Drops versions that equal an earlier one.
    fn distinct(mut self) -> Part {
        let same = |a: usize, b: usize| self.versions.iter().all(|v| v[a].content == v[b].content);
        let kept: Vec<usize> = (0..self.operations.len())
            .filter(|&new| !(0..new).any(|old| same(old, new)))
            .collect();
        self.operations = kept.iter().map(|&n| self.operations[n]).collect();
        for versions in &mut self.versions {
            *versions = kept.iter().map(|&n| versions[n].clone()).collect();
        }
        self
    }
}

impl Iterator for Outcomes {
    type Item = Outcome;

    fn next(&mut self) -> Option<Outcome> {
        if self.next == self.end {
            return None;
        }
        let number = self.next;
        self.next += 1;
        Some(if self.all {
            self.enumerated(number)
        } else {
            self.sampled(number)
        })
    }
}

impl Outcomes {
    fn enumerated(&self, mut number: u64) -> Outcome {
        let digits = self.parts.iter().map(|(_, operations)| {
            let digit = number % operations.len() as u64;
            number /= operations.len() as u64;
            digit as usize
        });
        Outcome(digits.collect())
    }

    fn sampled(&self, number: u64) -> Outcome {
        let devices = self
            .parts
            .iter()
            .map(|(device, _)| device + 1)
            .max()
            .unwrap_or(0) as u64;
        let mut random = Random::new(self.seed ^ number.wrapping_mul(0x9e37_79b9));
        if number < 2 + devices {
            return self.each(|device, operations| match number {
                0 => 0,
                1 => operations.len() - 1,
                n if device as u64 == n - 2 => operations.len() - 1,
                _ => 0,
            });
        }
        match random.below(3) {
            0 => {
                let newest = self
                    .parts
                    .iter()
                    .flat_map(|(_, o)| o)
                    .max()
                    .copied()
                    .unwrap_or(0);
                let oldest = self.parts.iter().flat_map(|(_, o)| o.get(1)).min().copied();
                let oldest = oldest.unwrap_or(0).min(newest);
                let instant = oldest + random.below(newest - oldest + 1);
                self.each(|_, operations| latest(operations, |o| o <= instant))
            }
            1 => {
                let salt = random.number();
                let survives = |o| Random::new(salt ^ o).below(2) == 0;
                self.each(|_, operations| latest(operations, survives))
            }
            _ => self.each(|_, operations| random.below(operations.len() as u64) as usize),
        }
    }

    fn each(&self, mut digit: impl FnMut(usize, &[u64]) -> usize) -> Outcome {
        let digits = self
            .parts
            .iter()
            .map(|(device, operations)| digit(*device, operations));
        Outcome(digits.collect())
    }
}

/// The newest version whose operation is accepted, else the oldest.
fn latest(operations: &[u64], accepted: impl Fn(u64) -> bool) -> usize {
    operations.iter().rposition(|o| accepted(*o)).unwrap_or(0)
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&digits.join("."))
    }
}

impl FromStr for Outcome {
    type Err = std::num::ParseIntError;

    fn from_str(digits: &str) -> Result<Outcome, Self::Err> {
        let digits = digits.split('.').filter(|digit| !digit.is_empty());
        Ok(Outcome(digits.map(str::parse).collect::<Result<_, _>>()?))
    }
}
