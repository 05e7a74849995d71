//! Notes: small files beside the head for the programs that maintain a repository (pull, prune, the
//! writer). Readers do not need them, and a repository without them is complete.

use bytes::Bytes;

use crate::disk::{Disk, read_whole, replace_file};
use crate::{StoreError, names};

/// Maximum length of a note, bytes.
pub const MAX_NOTE_BYTES: usize = 4 << 20;

/// The kinds of notes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// Which version a replica provably holds, and which part of it.
    Replica,
    /// Which files of its sources a replica has seen. Losing it costs only time.
    Followed,
    /// Segments that were collected but stay for a grace, for readers of the old index.
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
