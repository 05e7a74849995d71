//! How long the log keeps the orderer's entries: until the orderer releases them. While there are none, the log is
//! freed as blocks leave.

use wal::{Lsn, Recovery};

use super::record::ENTRIES;

/// The entries in the log.
pub(super) struct Entries {
    /// Not after the first frame with entries that are not released.
    pub oldest: Option<Lsn>,
    /// The end of the last frame with entries.
    pub end: Lsn,
    /// What the superblock says that the orderer needs.
    pub released: Lsn,
    /// What the orderer left for its next start.
    pub cookie: Vec<u8>,
}

impl Entries {
    /// What the log says of the orderer, without its entries.
    pub fn found(recovery: &Recovery) -> Entries {
        Entries {
            oldest: None,
            end: Lsn(0),
            released: recovery.oldest(ENTRIES),
            cookie: recovery.cookie(ENTRIES).to_vec(),
        }
    }

    /// Entries are about to go into a frame that begins at `start` or later.
    pub fn appending(&mut self, start: Lsn) {
        self.oldest.get_or_insert(start);
    }

    /// They are in a frame that ends here.
    pub fn appended(&mut self, end: Lsn) {
        self.end = end;
    }
}
