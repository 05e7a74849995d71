//! Small files beside the head, for whoever looks after a repository: what it holds of its volume, what
//! it followed, what was collected. Readers need none of them, and a repository without them is whole.

use bytes::Bytes;

use crate::disk::{Disk, read_whole, replace_file};
use crate::{StoreError, names};

/// Longest note, bytes.
pub const MAX_NOTE_BYTES: usize = 4 << 20;

/// The notes that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// Which version a replica was proved to hold, and how much of it.
    Replica,
    /// Which files of its sources a replica has seen. Losing it costs time.
    Followed,
    /// What was collected lately and lies here a while longer for readers of the index before.
    Collected,
}

impl Note {
    /// The name of its file.
    pub fn name(self) -> &'static str {
        match self {
            Note::Replica => "replica",
            Note::Followed => "followed",
            Note::Collected => "collected",
        }
    }
}

/// Replaces a note in one durable step.
pub(crate) fn replace(disk: &dyn Disk, note: Note, bytes: &[u8]) -> Result<(), StoreError> {
    let temporary = format!("{}{}", note.name(), names::TEMPORARY);
    replace_file(disk, note.name(), &temporary, "", bytes)
}

/// A note, if there is one.
pub(crate) fn read(disk: &dyn Disk, note: Note) -> Result<Option<Bytes>, StoreError> {
    match read_whole(disk, note.name(), MAX_NOTE_BYTES) {
        Ok(bytes) => Ok(Some(bytes.into())),
        Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}
