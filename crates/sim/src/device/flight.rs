//! A write in two halves: while it is in flight, reads see the part of it that the test chooses, a sync does not
//! cover it, and a crash leaves each of its sectors old or new.

use std::io;
use std::ops::Range;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::fault::Lie;
use super::sectors::Writing;
use super::{Disk, SimDevice, State, eio, stopped};

/// A held write gives up after this time, so that a failed test ends.
const HELD_AT_MOST: Duration = Duration::from_secs(60);

/// A write that has begun. Dropped without [`finish`](Flight::finish) it stays in flight.
pub struct Flight {
    device: SimDevice,
    operation: u64,
    lie: Option<Lie>,
}

/// Which calls a test holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// A read that has no bytes yet.
    Read,
    /// A write or a zeroing.
    Write,
    /// A sync that has made nothing durable yet.
    Sync,
}

/// The order to hold the next call that touches a range.
#[derive(Clone)]
pub(super) struct Hold {
    kind: Held,
    range: Range<u64>,
    shown: u64,
    held: bool,
}

impl SimDevice {
    /// Begins to write `from` at `offset`. Reads see none of it yet.
    ///
    /// # Errors
    /// As for a write.
    pub fn begin_write(&self, offset: u64, from: &[u8]) -> io::Result<Flight> {
        let content = Bytes::copy_from_slice(from);
        self.begin(offset, from.len() as u64, Some(content))
    }

    /// Holds the next call of this kind that touches `range`, by any thread: a write or a zeroing when this many of
    /// its sectors can be seen, a read and a sync when they have begun. The thread waits for
    /// [`release`](SimDevice::release), the next hold or the machine's stop, at most a minute.
    pub fn hold(&self, kind: Held, range: Range<u64>, shown: u64) {
        self.with(|disk| {
            disk.hold = Some(Hold {
                kind,
                range,
                shown,
                held: false,
            });
        });
        self.machine.0.changed.notify_all();
    }

    /// Waits until a call is held. False: none came in `timeout`.
    pub fn wait_held(&self, timeout: Duration) -> bool {
        let state = self.machine.state();
        let waiting = |state: &mut State| {
            let hold = &state.devices[self.index].hold;
            !hold.as_ref().is_some_and(|hold| hold.held)
        };
        let changed = &self.machine.0.changed;
        let waited = changed.wait_timeout_while(state, timeout, waiting);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Waits if the test holds this call. `show` makes the part visible that the test asked for.
    pub(super) fn hold_here(
        &self,
        mut state: MutexGuard<'_, State>,
        kind: Held,
        range: &Range<u64>,
        show: impl FnOnce(&mut Disk, usize),
    ) -> io::Result<()> {
        let disk = &mut state.devices[self.index];
        let due = |hold: &&mut Hold| {
            let touches = hold.range.start < range.end && range.start < hold.range.end;
            !hold.held && hold.kind == kind && touches
        };
        let Some(hold) = disk.hold.as_mut().filter(due) else {
            return Ok(());
        };
        hold.held = true;
        let shown = usize::try_from(hold.shown).unwrap_or(usize::MAX);
        show(disk, shown);
        self.machine.0.changed.notify_all();
        let held = |state: &mut State| {
            let hold = &state.devices[self.index].hold;
            !state.stopped && hold.as_ref().is_some_and(|hold| hold.held)
        };
        let changed = &self.machine.0.changed;
        let waited = changed.wait_timeout_while(state, HELD_AT_MOST, held);
        waited.unwrap_or_else(PoisonError::into_inner).0.running()
    }

    /// Lets the held call go on.
    pub fn release(&self) {
        self.with(|disk| disk.hold = None);
        self.machine.0.changed.notify_all();
    }

    pub(super) fn begin(
        &self,
        offset: u64,
        bytes: u64,
        content: Option<Bytes>,
    ) -> io::Result<Flight> {
        self.check(offset, bytes)?;
        let mut state = self.machine.state();
        let (operation, stops) = state.operation()?;
        let disk = &mut state.devices[self.index];
        let writes = content.is_some();
        let lie = disk.fault(Lie::is_of_write, offset, bytes);
        let offset = match lie {
            Some(Lie::WriteMisdirected { to }) => to,
            _ => offset,
        };
        let writing = Writing {
            offset,
            bytes: bytes.min(disk.bytes.saturating_sub(offset)),
            content,
            shown: Default::default(),
        };
        if writes && disk.full && !disk.has_space(&writing) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        disk.sectors.flights.insert(operation, writing);
        state.keep();
        if stops {
            self.machine.0.changed.notify_all();
            return Err(stopped());
        }
        Ok(Flight {
            device: self.clone(),
            operation,
            lie,
        })
    }
}

impl Disk {
    /// Whether all sectors of a write have space already.
    fn has_space(&self, writing: &Writing) -> bool {
        let mut sectors = writing.sectors();
        sectors.all(|sector| self.sectors.content(sector).is_some())
    }

    fn show(&mut self, operation: u64, sectors: impl Iterator<Item = u64>) {
        let Some(writing) = self.sectors.flights.get_mut(&operation) else {
            return;
        };
        let range = writing.sectors();
        let inside = sectors.filter(|sector| range.contains(sector));
        let new: Vec<u64> = inside
            .filter(|sector| writing.shown.insert(*sector))
            .collect();
        let writing = writing.clone();
        for sector in new {
            let content = writing.content(sector);
            self.sectors.write(sector, operation, content);
        }
    }
}

impl Flight {
    /// The operation's number.
    pub fn operation(&self) -> u64 {
        self.operation
    }

    /// Lets reads see this sector of the write, counted from its first.
    pub fn show(&self, sector: u64) {
        self.device.with(|disk| {
            let first = disk
                .sectors
                .flights
                .get(&self.operation)
                .map(Writing::sectors);
            let sector = first.map(|range| range.start + sector);
            disk.show(self.operation, sector.into_iter());
        });
    }

    /// The write returns, and reads see all of it, unless it fails or lies.
    ///
    /// # Errors
    /// The machine has stopped, or the fault that was injected.
    pub fn finish(self) -> io::Result<()> {
        let mut state = self.device.machine.state();
        state.running()?;
        let disk = &mut state.devices[self.device.index];
        let written = match self.lie {
            Some(Lie::WriteFails { written } | Lie::WriteTorn { written }) => written,
            Some(Lie::WriteDropped) => 0,
            _ => u64::MAX,
        };
        let sectors = disk
            .sectors
            .flights
            .get(&self.operation)
            .map(Writing::sectors);
        let part = sectors
            .into_iter()
            .flatten()
            .take(usize::try_from(written).unwrap_or(usize::MAX));
        disk.show(self.operation, part);
        disk.sectors.flights.remove(&self.operation);
        match self.lie {
            Some(Lie::WriteFails { .. }) => Err(eio()),
            _ => Ok(()),
        }
    }

    /// Waits if the test holds this write.
    pub(super) fn hold(&self) -> io::Result<()> {
        let state = self.device.machine.state();
        let disk = &state.devices[self.device.index];
        let Some(writing) = disk.sectors.flights.get(&self.operation).cloned() else {
            return Ok(());
        };
        let range = writing.offset..writing.offset + writing.bytes;
        self.device
            .hold_here(state, Held::Write, &range, |disk, shown| {
                disk.show(self.operation, writing.sectors().take(shown));
            })
    }
}
