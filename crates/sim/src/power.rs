//! Devices of a [`Machine`] as block devices whose power a test cuts: shown as files (by `mount::device`), they are disks
//! for programs that run in other processes.
//!
//! While the power is off every request fails. After it the disks hold what a power cut may leave: what was synced, and of
//! everything else what the chosen outcome says, torn into pieces.

use std::sync::{Arc, Mutex, PoisonError};

use protect::{Block, BlockError};
use wal::Device;

use crate::device::{Machine, SECTOR_BYTES, SimDevice, Stop};

/// How many outcomes of a power cut are drawn from.
const OUTCOMES: u64 = 64;

/// Into how many pieces a write tears at most: each sector by itself would need much memory after a trim.
const PIECES: usize = 8;

/// A machine whose devices outlive it.
pub struct Power {
    machine: Mutex<Machine>,
}

impl Power {
    /// Disks of these names and lengths in bytes, all zero.
    pub fn new(disks: &[(&str, u64)]) -> Arc<Power> {
        let machine = Machine::new(&[]);
        for (name, bytes) in disks {
            machine.add(name, *bytes, SECTOR_BYTES as u32);
        }
        Arc::new(Power {
            machine: Mutex::new(machine),
        })
    }

    /// The disk as it is now, for formatting and for faults. After a power cut it is another one.
    pub fn now(&self, disk: &str) -> Arc<SimDevice> {
        let machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        machine.device(disk)
    }

    /// The disk as a block device, through every power cut.
    pub fn block(self: &Arc<Power>, disk: &'static str) -> Arc<PoweredDisk> {
        Arc::new(PoweredDisk {
            power: self.clone(),
            disk,
        })
    }

    /// Cuts the power: from now on every request fails.
    pub fn cut(&self) {
        let machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        machine.stop();
    }

    /// Power again. `number` chooses what is left of what was not synced: 0 nothing of it, 1 all of it, others mixtures;
    /// the first ones are all of one disk and nothing of another.
    pub fn restore(&self, number: u64) {
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        let mut outcomes = machine.outcomes(Stop::Power, PIECES, OUTCOMES, number);
        let chosen = outcomes.nth((number % OUTCOMES) as usize);
        let chosen = chosen.or_else(|| {
            let mut all = machine.outcomes(Stop::Power, PIECES, OUTCOMES, number);
            all.next()
        });
        if let Some(outcome) = chosen {
            *machine = machine.restart(Stop::Power, PIECES, &outcome);
        }
        machine.forget();
    }
}

/// A disk of a [`Power`].
pub struct PoweredDisk {
    power: Arc<Power>,
    disk: &'static str,
}

impl PoweredDisk {
    fn now(&self) -> Arc<SimDevice> {
        self.power.now(self.disk)
    }

    fn failed(&self, source: std::io::Error) -> BlockError {
        BlockError::Io {
            device: self.disk,
            source,
        }
    }
}

impl Block for PoweredDisk {
    fn bytes(&self) -> u64 {
        self.now().bytes()
    }

    fn sector_bytes(&self) -> u32 {
        SECTOR_BYTES as u32
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
        let done = self.now().read(offset, into);
        done.map_err(|error| self.failed(error))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), BlockError> {
        let done = self.now().write(offset, from);
        done.map_err(|error| self.failed(error))
    }

    fn zero(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        let done = self.now().zero(offset, bytes);
        done.map_err(|error| self.failed(error))
    }

    fn flush(&self) -> Result<(), BlockError> {
        let device = self.now();
        let done = device.sync();
        done.map_err(|error| self.failed(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(disk: &PoweredDisk) -> u8 {
        let mut sector = [0; 512];
        disk.read(0, &mut sector).unwrap();
        sector[0]
    }

    #[test]
    fn synced_bytes_survive_and_others_are_old_or_new() {
        let power = Power::new(&[("D", 1 << 20), ("L", 1 << 20)]);
        let (data, log) = (power.block("D"), power.block("L"));
        let mut found = std::collections::BTreeSet::new();
        for round in 0..40 {
            data.write(0, &[1; 512]).unwrap();
            log.write(0, &[1; 512]).unwrap();
            data.flush().unwrap();
            log.flush().unwrap();
            data.write(0, &[2; 512]).unwrap();
            log.write(0, &[3; 512]).unwrap();
            log.flush().unwrap();
            power.cut();
            assert!(data.read(0, &mut [0; 512]).is_err());
            assert!(log.flush().is_err());
            power.restore(round);
            assert_eq!(first(&log), 3);
            found.insert(first(&data));
        }
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [1, 2]);
    }
}
