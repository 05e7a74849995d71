//! Notes: small files beside the head for the programs that maintain a repository (pull, prune, the
//! writer). Readers do not need them, and a repository without them is complete.

use std::path::PathBuf;
use std::str::Split;

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

    /// The lines of a text note after the first two, `bulla NAME` and `format 0`. `path` is for errors.
    ///
    /// # Errors
    /// [`StoreError::Format`] when a later bulla wrote it; [`StoreError::Damaged`] when it is no such note.
    pub fn lines(self, bytes: &[u8], path: PathBuf) -> Result<Split<'_, char>, StoreError> {
        let lines = || {
            let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
            let mut lines = text.split('\n');
            let is_this = lines.next()?.strip_prefix("bulla ")? == self.name();
            let format = lines.next()?.strip_prefix("format ")?;
            is_this.then_some((format, lines))
        };
        match lines() {
            Some(("0", lines)) => Ok(lines),
            Some((format, _)) => {
                let found = format!("number {format}");
                Err(StoreError::Format { path, found })
            }
            None => Err(self.damaged(path)),
        }
    }

    /// The error for a note that breaks a rule of its format.
    pub fn damaged(self, path: PathBuf) -> StoreError {
        let why = format!("not a note of the kind `{}`", self.name());
        StoreError::Damaged { path, why }
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
