//! Devices for `wal` and `protect` that crash, lie and are put back (design `protect.md`, *Proof*).
//!
//! A [`Machine`] has several devices and numbers their operations together, so that they crash together. Every
//! version of every sector of 512 bytes is kept. At a chosen operation the machine stops: that operation is in
//! flight, all later calls fail. [`Machine::restart`] gives the machine that is found afterwards:
//! * after `kill -9` ([`Stop::Kill`]) all writes that returned are there, and each sector of a write that was in
//!   flight is old or new. Nothing becomes durable by that: a later power cut may still lose it.
//! * after a power cut ([`Stop::Power`]) each sector that was not synced is old, new, or any version in between.
//!
//! Faults are ordered by [`SimDevice::inject`], changes behind the owner's back are made at once
//! ([`SimDevice::put_back`] and its neighbours in `device/adversary.rs`).
//!
//! | file | what lives there |
//! |---|---|
//! | `device/sectors.rs` | the versions of each sector of one device |
//! | `device/crash.rs` | what a machine may find after it stopped |
//! | `device/fault.rs` | calls that fail or lie |
//! | `device/adversary.rs` | changes of what lies on a device |
//! | `device/flight.rs` | writes that are held or split while they are in flight |

mod adversary;
mod crash;
mod fault;
mod flight;
mod sectors;

use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

pub use crash::{Outcome, Outcomes, Stop};
pub use fault::{Fault, Lie};
pub use flight::{Flight, Held};
use sectors::{Mask, Sectors};

/// Bytes of a sector: a device writes it whole or not at all.
pub const SECTOR_BYTES: u64 = 512;

/// A computer with devices that stop together. Clones are the same machine; [`fork`](Machine::fork) copies it.
#[derive(Clone)]
pub struct Machine(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Signalled when a held write may go on and when a write is held.
    changed: Condvar,
}

#[derive(Clone, Default)]
struct State {
    devices: Vec<Disk>,
    operations: u64,
    stop_at: Option<u64>,
    stopped: bool,
    /// Copies at each operation.
    record: Option<Vec<State>>,
}

#[derive(Clone)]
struct Disk {
    name: String,
    bytes: u64,
    align: u32,
    atomic_bytes: u64,
    sectors: Sectors,
    faults: Vec<Fault>,
    full: bool,
    hold: Option<flight::Hold>,
    syncs: u64,
}

/// A device of a [`Machine`].
#[derive(Clone)]
pub struct SimDevice {
    machine: Machine,
    index: usize,
}

impl Machine {
    /// A machine with devices of these names and lengths in bytes. All are zero, and their physical block is 4 KiB.
    pub fn new(devices: &[(&str, u64)]) -> Machine {
        let machine = Machine::with(State::default());
        for (name, bytes) in devices {
            machine.add(name, *bytes, 4096);
        }
        machine
    }

    fn with(state: State) -> Machine {
        Machine(Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a device with a length in whole sectors and this physical block.
    pub fn add(&self, name: &str, bytes: u64, align: u32) -> Arc<SimDevice> {
        assert!(
            bytes.is_multiple_of(SECTOR_BYTES) && align.is_power_of_two() && align >= 512,
            "a device of {bytes} bytes with blocks of {align}"
        );
        let mut state = self.state();
        state.devices.push(Disk {
            name: name.to_owned(),
            bytes,
            align,
            atomic_bytes: SECTOR_BYTES,
            sectors: Sectors::default(),
            faults: Vec::new(),
            full: false,
            hold: None,
            syncs: 0,
        });
        Arc::new(SimDevice {
            machine: self.clone(),
            index: state.devices.len() - 1,
        })
    }

    /// The device of this name, which must exist.
    pub fn device(&self, name: &str) -> Arc<SimDevice> {
        let index = self.state().devices.iter().position(|d| d.name == name);
        assert!(index.is_some(), "no device {name}");
        Arc::new(SimDevice {
            machine: self.clone(),
            index: index.unwrap_or_default(),
        })
    }

    /// A copy that goes its own way. Contents are shared until one of the two writes.
    pub fn fork(&self) -> Machine {
        Machine::with(State {
            record: None,
            ..self.state().clone()
        })
    }

    /// Number of writes, zeroings and syncs of all devices so far. It is also the instant, for
    /// [`SimDevice::put_back`].
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Stops the machine while the operation with this number is in flight. The first one has number 1.
    pub fn stop_at(&self, operation: u64) {
        self.state().stop_at = Some(operation);
    }

    /// Stops the machine now. Writes that are in flight stay so.
    pub fn stop(&self) {
        self.state().stopped = true;
        self.0.changed.notify_all();
    }

    /// Whether it has stopped.
    pub fn stopped(&self) -> bool {
        self.state().stopped
    }

    /// Forgets what can no longer be found after a crash: nothing can be put back to an instant before this one, and
    /// zeros become holes. For long runs.
    pub fn forget(&self) {
        for disk in &mut self.state().devices {
            disk.sectors.forget();
        }
    }
}

impl State {
    /// Numbers an operation. Whether the machine stops at it is in the second value.
    fn operation(&mut self) -> io::Result<(u64, bool)> {
        self.running()?;
        self.operations += 1;
        self.stopped = self.stop_at == Some(self.operations);
        Ok((self.operations, self.stopped))
    }

    /// Keeps a copy, stopped with the operation in flight that has just begun.
    fn keep(&mut self) {
        if let Some(mut copies) = self.record.take() {
            let mut copy = self.clone();
            copy.stopped = true;
            copies.push(copy);
            self.record = Some(copies);
        }
    }

    fn running(&self) -> io::Result<()> {
        if self.stopped {
            return Err(stopped());
        }
        Ok(())
    }
}

fn stopped() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the machine has stopped")
}

impl SimDevice {
    /// The machine that it belongs to.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Writes never tear inside naturally aligned units of so many bytes, a power of two.
    pub fn set_atomic(&self, bytes: u64) {
        assert!(
            bytes.is_power_of_two() && bytes >= SECTOR_BYTES,
            "units of {bytes}"
        );
        self.with(|disk| disk.atomic_bytes = bytes);
    }

    /// Hides bytes from [`Machine::fingerprint`] that are random in each run and cover no others: `hidden`, inside a
    /// structure in `range`. It covers what is written from now on, and still sees which sectors of the structure were written together.
    pub fn mask(&self, range: Range<u64>, hidden: &[Range<u64>]) {
        let sectors = range.start / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES);
        let hidden = hidden.to_vec();
        self.with(|disk| disk.sectors.mask(Mask { sectors, hidden }));
    }

    /// Number of syncs that returned success.
    pub fn syncs(&self) -> u64 {
        self.with(|disk| disk.syncs)
    }

    /// All bytes as a read would see them now. It also works when the machine has stopped.
    pub fn contents(&self) -> Vec<u8> {
        self.with(|disk| {
            let mut bytes = vec![0; usize::try_from(disk.bytes).unwrap_or(usize::MAX)];
            disk.sectors.read(0, &mut bytes);
            bytes
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Disk) -> T) -> T {
        work(&mut self.machine.state().devices[self.index])
    }

    fn check(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.with(|disk| {
            let end = offset.saturating_add(bytes);
            if end > disk.bytes {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let align = u64::from(disk.align);
            let whole = end.is_multiple_of(align) || end == disk.bytes;
            if !offset.is_multiple_of(align) || !whole {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            Ok(())
        })
    }

    fn store(&self, offset: u64, bytes: u64, content: Option<Bytes>) -> io::Result<()> {
        let flight = self.begin(offset, bytes, content)?;
        flight.hold()?;
        flight.finish()
    }
}

impl wal::Device for SimDevice {
    fn bytes(&self) -> u64 {
        self.with(|disk| disk.bytes)
    }

    fn align(&self) -> u32 {
        self.with(|disk| disk.align)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.check(offset, into.len() as u64)?;
        let range = offset..offset + into.len() as u64;
        let state = self.machine.state();
        state.running()?;
        self.hold_here(state, Held::Read, &range, |_, _| {})?;
        let mut state = self.machine.state();
        let disk = &mut state.devices[self.index];
        let is_of_read = |lie| matches!(lie, Lie::ReadFails | Lie::ReadWrong);
        let lie = disk.fault(is_of_read, offset, into.len() as u64);
        if lie == Some(Lie::ReadFails) {
            return Err(eio());
        }
        disk.sectors.read(offset, into);
        if let (Some(_), Some(first)) = (lie, into.first_mut()) {
            *first ^= 1;
        }
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.store(
            offset,
            from.len() as u64,
            Some(Bytes::copy_from_slice(from)),
        )
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.store(offset, bytes, None)
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.machine.state();
        let (operation, stops) = state.operation()?;
        state.keep();
        if stops {
            self.machine.0.changed.notify_all();
            return Err(stopped());
        }
        let covered = state.devices[self.index].sectors.returned();
        drop(state);
        self.hold_here(self.machine.state(), Held::Sync, &(0..u64::MAX), |_, _| {})?;
        let mut state = self.machine.state();
        let disk = &mut state.devices[self.index];
        let bytes = disk.bytes;
        let lie = disk.fault(
            |lie| matches!(lie, Lie::SyncFails | Lie::SyncIgnored),
            0,
            bytes,
        );
        match lie {
            Some(Lie::SyncFails) => {
                disk.sectors.sync_failed(operation);
                return Err(eio());
            }
            Some(_) => {}
            None => disk.sectors.sync(&covered),
        }
        disk.syncs += 1;
        Ok(())
    }
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

#[cfg(test)]
mod tests;
