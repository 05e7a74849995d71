//! The settle actor: a sync of the data device, and what follows from it.

use std::ops::Range;

use super::{CLIENT, Engine, EngineError};
use crate::core::{Settled, Written};
use crate::map::{Map, Value};
use crate::records::Entry;

/// A sync of the data device.
pub struct Settling {
    written: Written,
}

/// What it settled.
pub struct SettledDone {
    settled: Settled,
}

impl Engine {
    /// Whether a sync of the data device would settle something.
    pub fn has_written(&self) -> bool {
        self.core().has_written()
    }

    /// Takes what was written to the data device. `None` if there is nothing to settle.
    pub fn settle_begin(&self) -> Option<Settling> {
        let written = self.core().settle_begin();
        (!written.is_empty()).then_some(Settling { written })
    }

    /// Syncs the data device, says so in the log if content is only there, and changes the map.
    ///
    /// # Errors
    /// A failed sync makes the device read-only for good: the system may have dropped what it could not write. Values of
    /// other blocks that are lost with a page of the map are no error.
    pub fn settle_run(&self, settling: &Settling) -> Result<SettledDone, EngineError> {
        self.data.sync().map_err(|source| EngineError::Data {
            action: "synced",
            source,
        })?;
        let settled = self.core().settled(&settling.written);
        if let Some(through) = settled.through {
            let record = Entry::Settled(through).record(Vec::new());
            let appended = self.log.append_reserved(&[(CLIENT, record)])?;
            self.log.flush(appended.end).wait()?;
        }
        let changes = |map: &Map| {
            for (_, trim) in &settled.trims {
                map.set_range(trim.clone(), Value::Zero)?;
            }
            let mut versions = settled.versions.iter();
            versions.try_for_each(|version| {
                let value = version.digest.map_or(Value::Bad, Value::Digest);
                map.set(version.block, value)
            })
        };
        let mut lost = |blocks: Range<u64>| self.watch.lost_blocks(blocks);
        self.map.change(&changes, &mut lost)?;
        Ok(SettledDone { settled })
    }

    /// What was settled leaves memory, and at the next checkpoint the log.
    pub fn settle_end(&self, done: &SettledDone) {
        self.core().settle_end(&done.settled);
    }
}
