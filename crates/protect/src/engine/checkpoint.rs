//! The checkpoint actor: the map is written back, and the log forgets what it contains (PFS 5.2).

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
