//! How long the log keeps the orderer's entries: until the orderer releases them. While there are none, the log is
//! freed as blocks leave.

use log::{Lsn, Recovery};

use super::error::Error;
use super::record::ENTRIES;
use super::storage::{Storage, lock};

/// The entries in the log.
pub(super) struct Entries {
    /// Not after the first frame with entries that are not released.
    oldest: Option<Lsn>,
    /// The end of the last frame with entries.
    end: Lsn,
    /// What the superblock says that the orderer needs.
    released: Lsn,
    /// What the orderer left for its next start.
    cookie: Vec<u8>,
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

impl Storage {
    /// The orderer needs no entry before `oldest`, the end of a durable frame, and keeps `cookie` for its next start.
    ///
    /// # Errors
    /// [`Error::Log`], also for a position that is not durable.
    pub fn release_entries(&self, oldest: Lsn, cookie: &[u8]) -> Result<(), Error> {
        let mut entries = lock(&self.entries);
        // The log may have gone on without entries.
        let oldest = oldest.max(entries.released);
        self.log.checkpoint(ENTRIES, oldest, cookie)?;
        entries.released = oldest;
        cookie.clone_into(&mut entries.cookie);
        entries.oldest = match entries.end <= oldest {
            true => None,
            false => entries.oldest.map(|_| oldest),
        };
        Ok(())
    }

    /// What the orderer left by [`Storage::release_entries`].
    pub fn entries_cookie(&self) -> Vec<u8> {
        lock(&self.entries).cookie.clone()
    }

    /// The blocks need nothing before `oldest`. If there are no entries either, the log need not keep anything for
    /// them: up to what is durable, so that this is seldom necessary.
    pub(super) fn release_without_entries(&self, oldest: Lsn) -> Result<(), Error> {
        let mut entries = lock(&self.entries);
        if entries.oldest.is_some() || entries.released >= oldest {
            return Ok(());
        }
        // Entries that come now are in a frame that begins later.
        let durable = self.log.durable().lsn;
        self.log.checkpoint(ENTRIES, durable, &entries.cookie)?;
        entries.released = durable;
        Ok(())
    }
}
