//! Calls that fail or lie.

use std::ops::Range;

use super::{Disk, SimDevice};

/// What a device does instead of its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// A read returns EIO.
    ReadFails,
    /// A read returns success, and its first byte is wrong. What lies on the device does not change.
    ReadWrong,
    /// A write returns EIO after so many sectors.
    WriteFails {
        /// Sectors that hold new bytes.
        written: u64,
    },
    /// A sync returns EIO, and what was written since the last success never becomes durable by a sync.
    SyncFails,
    /// A sync returns success and makes nothing durable.
    SyncIgnored,
    /// A write returns success and changes nothing.
    WriteDropped,
    /// A write returns success and goes to another place.
    WriteMisdirected {
        /// Offset in bytes, a multiple of a sector.
        to: u64,
    },
    /// A write returns success and changes its first sectors only.
    WriteTorn {
        /// Sectors that hold new bytes.
        written: u64,
    },
}

impl Lie {
    /// Whether a write can meet it. Zeroing counts as a write.
    pub(super) fn is_of_write(self) -> bool {
        let others = [
            Lie::ReadFails,
            Lie::ReadWrong,
            Lie::SyncFails,
            Lie::SyncIgnored,
        ];
        !others.contains(&self)
    }
}

/// When a device lies.
#[derive(Debug, Clone)]
pub struct Fault {
    /// How.
    pub lie: Lie,
    /// Reads and writes that touch these bytes. Syncs touch all.
    pub range: Range<u64>,
    /// How many such calls are honest first.
    pub after: u64,
    /// How many calls then lie.
    pub times: u64,
}

impl Fault {
    /// The next call lies, wherever it is.
    pub fn once(lie: Lie) -> Fault {
        Fault {
            lie,
            range: 0..u64::MAX,
            after: 0,
            times: 1,
        }
    }

    /// Every call lies.
    pub fn always(lie: Lie) -> Fault {
        Fault {
            times: u64::MAX,
            ..Fault::once(lie)
        }
    }

    /// Only at these bytes.
    pub fn at(self, range: Range<u64>) -> Fault {
        Fault { range, ..self }
    }

    /// After so many honest calls.
    pub fn after(self, after: u64) -> Fault {
        Fault { after, ..self }
    }
}

impl SimDevice {
    /// Makes calls fail or lie from now on. Where several faults meet a call, the first injected one wins.
    pub fn inject(&self, fault: Fault) {
        self.with(|disk| disk.faults.push(fault));
    }

    /// The device is honest again.
    pub fn heal(&self) {
        self.with(|disk| {
            disk.faults.clear();
            disk.full = false;
        });
    }

    /// A sparse file on a full file system: a write to a hole returns ENOSPC; others go on.
    pub fn set_full(&self, full: bool) {
        self.with(|disk| disk.full = full);
    }
}

impl Disk {
    /// The lie for a call, if one is due.
    pub(super) fn fault(
        &mut self,
        concerns: impl Fn(Lie) -> bool,
        offset: u64,
        bytes: u64,
    ) -> Option<Lie> {
        let end = offset.saturating_add(bytes);
        let mut found = None;
        for fault in &mut self.faults {
            let touches = offset < fault.range.end && fault.range.start < end;
            if found.is_some() || !concerns(fault.lie) || !touches {
                continue;
            }
            if fault.after > 0 {
                fault.after -= 1;
            } else if fault.times > 0 {
                fault.times -= 1;
                found = Some(fault.lie);
            }
        }
        found
    }
}
