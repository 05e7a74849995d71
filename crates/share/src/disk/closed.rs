//! The memory of a device that no engine has open: whether something of it was not sent to its end.

use std::path::Path;
use std::time::Instant;

use state::Journal;

use super::item::{Item, Join};
use super::{DiskError, JOURNAL, Read, damaged};
use crate::roster::OpsCodec;
use crate::scheme::Leaf;

/// The files of a device, locked. No engine can open them while this lives.
#[derive(Debug)]
pub struct Closed {
    unsettled: usize,
    is_new: bool,
    _journal: Journal,
}

impl Closed {
    /// Locks the files, and reads the journal. Waits for a process that has them open, until the deadline.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn open(directory: &Path, deadline: Instant) -> Result<Closed, DiskError> {
        let path = directory.join(JOURNAL);
        let mut read = Read::<OpsCodec> {
            base: None,
            items: Vec::new(),
            join: Join::default(),
            wrong: None,
        };
        let (journal, _) = Journal::open(&path, deadline, |record| read.record(record))?;
        if let Some(why) = read.wrong {
            return Err(damaged(&path, why));
        }
        let mut sent: Vec<[u8; 32]> = Vec::new();
        for item in &read.items {
            match item {
                Item::Sent { entry, .. } => sent.push(entry.signed().hash()),
                Item::Settled => sent.clear(),
                Item::Floor { leaves, .. } => {
                    let entries = leaves.iter().filter_map(|leaf| match leaf {
                        Leaf::Entry(entry) => Some(entry.signed().hash()),
                        Leaf::Marks(_) => None,
                    });
                    let ordered: Vec<[u8; 32]> = entries.collect();
                    sent.retain(|hash| !ordered.contains(hash));
                }
                Item::Base(_) => {}
            }
        }
        Ok(Closed {
            is_new: read.base.is_none() && read.items.is_empty(),
            unsettled: sent.len(),
            _journal: journal,
        })
    }

    /// Whether the device has seen nothing of the log yet.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Entries that were sent, and of which this device does not know whether they have a place in the log.
    pub fn unsettled(&self) -> usize {
        self.unsettled
    }
}
