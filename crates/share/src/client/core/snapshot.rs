//! When a device writes what its floor comes to, so that its next start is short (decision 0062).

use std::path::{Path, PathBuf};

use super::Core;
use crate::snapshot::{self, State};

/// Ops that were forgotten since the last snapshot, after which a new one is worth its while: a start would have to judge
/// them again.
const FORGOTTEN: u64 = 1 << 16;

/// When snapshots are written.
#[derive(Debug)]
pub(in crate::client) struct Snapshots {
    memory: PathBuf,
    after: u64,
    /// Size of the floor when the last one was written or tried.
    size: u64,
    /// Most ops that were kept since then.
    ops: u64,
}

impl Snapshots {
    /// After so many leaves each.
    pub(in crate::client) fn new(after: u64) -> Snapshots {
        Snapshots {
            memory: PathBuf::new(),
            after: after.max(1),
            size: 0,
            ops: 0,
        }
    }

    /// For this memory, whose snapshot has so many leaves.
    pub(in crate::client) fn begin(&mut self, memory: &Path, size: Option<u64>) {
        self.memory = memory.to_owned();
        self.size = size.unwrap_or(0);
    }
}

impl Core {
    /// Writes a snapshot, if it is time. A full disk is no error: the leaves have everything.
    pub(super) fn snapshot(&mut self) {
        let ledger = self.engine.ledger();
        let (size, ops) = (ledger.size(), ledger.volume().kept_ops());
        self.snapshots.ops = self.snapshots.ops.max(ops);
        let grown = size.saturating_sub(self.snapshots.size) >= self.snapshots.after;
        let shrunk = self.snapshots.ops.saturating_sub(ops) >= FORGOTTEN;
        if self.stopped || !(grown || shrunk) {
            return;
        }
        let state = State {
            ledger,
            unverified: self.engine.unverified(),
        };
        let log = (self.court.volume, self.court.epoch.number);
        let written = snapshot::write(&self.snapshots.memory, log, &state, &mut self.disk);
        if let Err(error) = written {
            tracing::warn!(%error, "no snapshot of the floor was written");
        }
        (self.snapshots.size, self.snapshots.ops) = (size, ops);
    }
}
