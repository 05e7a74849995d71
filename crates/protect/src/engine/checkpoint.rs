//! The checkpoint actor: the map is written back, and the log forgets what it contains (PFS 5.2).

use wal::Lsn;

use super::{CLIENT, Engine, EngineError};
use crate::records::Entry;
use crate::volume::Cookie;

impl Engine {
    /// Writes the map back and moves the log's tail to the oldest frame that recovery needs. Settle before.
    ///
    /// # Errors
    /// The tail is where it was; a failed write or sync of the log's device is final.
    pub fn checkpoint(&self) -> Result<(), EngineError> {
        // Before the map is written: what is settled later stays in the log.
        let oldest = self.core().oldest();
        // The core does not know of `checkpoint_all`.
        let before = self.log.oldest(CLIENT).unwrap_or_default();
        self.checkpoint_at(oldest.max(before))
    }

    /// Moves the log's tail to its end, if everything is settled: behind frames without content too. Does nothing
    /// otherwise.
    ///
    /// # Errors
    /// As [`checkpoint`](Engine::checkpoint).
    pub fn checkpoint_all(&self) -> Result<(), EngineError> {
        let end = {
            let core = self.core();
            // A frame that is on its way keeps the core from being settled.
            if !core.is_settled() {
                return Ok(());
            }
            self.log.durable().lsn
        };
        self.checkpoint_at(end)?;
        // A log without records is one that was detached.
        let settled = Entry::Settled(end).record(Vec::new());
        let appended = self.log.append_reserved(&[(CLIENT, settled)])?;
        self.log.flush(appended.end).wait()?;
        Ok(())
    }

    fn checkpoint_at(&self, oldest: Lsn) -> Result<(), EngineError> {
        // The tail never passes the anchor: it must find its mark in the log.
        self.anchor_now()?;
        let root = self.map.write_back()?;
        let cookie = Cookie {
            shape: self.shape,
            root,
        };
        self.log.checkpoint(CLIENT, oldest, &cookie.encode())?;
        self.map.committed(root);
        Ok(())
    }

    /// The last record of a session: everything is settled and the map is written.
    ///
    /// # Errors
    /// The log failed.
    pub fn say_detached(&self) -> Result<(), EngineError> {
        let appended = self
            .log
            .append_reserved(&[(CLIENT, Entry::Detached.record(Vec::new()))])?;
        self.log.flush(appended.end).wait()?;
        self.anchor_now()
    }
}
