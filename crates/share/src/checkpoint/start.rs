//! The file `start` of a device's memory that began with a checkpoint: the checkpoint, and all its rows. It is written once, whole,
//! before the device has seen anything of the log, and never changed; so a process that is killed leaves a home that
//! begins with a checkpoint, or one that begins with the first leaf.
//!
//! ```text
//! "bullast\n" | format u32 = 0 | flags u32 = 0 | volume [32] | epoch varint |
//! posted bytes | count varint | count × (bytes of the key | bytes of the value) | BLAKE3 [32] of all before
//! ```
//!
//! The device verified all of this before it wrote it. A start checks again that the hashes of leaves lead to the root,
//! and that a log can have each row. It does not verify signatures again.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use state::{StateError, private};
use trust::Reject;
use trust::history::LogPoint;
use trust::volume_id::VolumeId;
use trust_shared::checkpoint::{Checkpoint, Parts, Reader, Window};
use trust_shared::genesis::Policies;
use trust_shared::principal::Principal;

use super::rows::{MAX_ROWS, MAX_ROWS_BYTES};
use crate::files::{Files, Shelf};
use ordering::checked_file::FileKind;
use ordering::ledger::Ledger;
use ordering::roster::Product;
use trust_shared::checkpoint::{MAX_POSTED_BYTES, Posted};

const FILE: &str = "start";
const FORM: FileKind = FileKind {
    what: "start of a shared volume",
    magic: *b"bullast\n",
};
/// Longest key, and longest value.
const MAX_PART_BYTES: usize = 4096;
/// Longest file.
const MAX_BYTES: u64 = (MAX_ROWS_BYTES + MAX_POSTED_BYTES + 4096) as u64;

/// The start of a home cannot be read or written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StartError {
    /// The state directory cannot be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// The file does not hold what it should.
    #[error("{}: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which rule it breaks.
        why: String,
    },
}

/// A checkpoint that a device starts from, and its rows.
#[derive(Debug, Clone)]
pub struct Start {
    posted: Posted,
    rows: Vec<(Bytes, Bytes)>,
    log: LogPoint,
    parts: Parts,
}

impl Start {
    /// A checkpoint with all its rows.
    ///
    /// # Errors
    /// [`Reject`] for rows that no log has, or that are not those of its log.
    pub fn new(
        volume: VolumeId,
        posted: Posted,
        rows: Vec<(Bytes, Bytes)>,
    ) -> Result<Start, Reject> {
        let checkpoint: Checkpoint = posted.signed.statement().read(volume)?;
        let log = checkpoint.log;
        let mut reader = Reader::new(Principal::from_bytes(*volume.as_bytes()), log);
        for (key, value) in &rows {
            reader.take(key, value)?;
        }
        let parts = reader.finish()?;
        Ok(Start {
            posted,
            rows,
            log,
            parts,
        })
    }

    /// The log.
    pub fn log(&self) -> &LogPoint {
        &self.log
    }

    /// What the rows say.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// The log with its members and files, and its end, for proofs.
    pub fn ledger(
        self,
        policies: &Policies,
        shelf: Arc<Shelf>,
    ) -> (Ledger<Product, Files>, Window) {
        let window = self.parts.window.clone();
        let ledger = super::ledger(policies, shelf, self.parts, self.posted.note);
        (ledger, window)
    }

    /// Writes the file of a home, durably.
    ///
    /// # Errors
    /// [`StartError::State`]; then the home has none.
    pub fn write(&self, memory: &Path, volume: VolumeId) -> Result<(), StartError> {
        let mut out = FORM.begin(volume, self.log.epoch);
        out.bytes(&self.posted.encode());
        out.varint(self.rows.len() as u64);
        for (key, value) in &self.rows {
            out.bytes(key).bytes(value);
        }
        Ok(private::replace(&memory.join(FILE), &FileKind::end(out))?)
    }

    /// Whether a home begins with a checkpoint.
    pub fn is_in(memory: &Path) -> bool {
        memory.join(FILE).exists()
    }

    /// Reads the file of a home. None: the home begins with the first leaf.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn read(memory: &Path, volume: VolumeId, epoch: u64) -> Result<Option<Start>, StartError> {
        let path = memory.join(FILE);
        let damaged = |why: String| StartError::Damaged {
            path: path.clone(),
            why,
        };
        let mut bytes = Vec::new();
        match File::open(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(damaged(e.to_string())),
            Ok(file) => {
                let read = file.take(MAX_BYTES).read_to_end(&mut bytes);
                read.map_err(|e| damaged(e.to_string()))?
            }
        };
        let start = Start::decode(&bytes, volume, epoch);
        start.map(Some).map_err(|why| damaged(why.to_string()))
    }

    fn decode(bytes: &[u8], volume: VolumeId, epoch: u64) -> Result<Start, Reject> {
        let mut d = FORM.open(bytes, volume, epoch)?;
        let posted = Posted::decode(d.bytes(MAX_POSTED_BYTES)?)?;
        let count = d.bounded(MAX_ROWS, "too many rows")?;
        let mut rows = Vec::new();
        for _ in 0..count {
            let key = Bytes::copy_from_slice(d.bytes(MAX_PART_BYTES)?);
            let value = Bytes::copy_from_slice(d.bytes(MAX_PART_BYTES)?);
            rows.push((key, value));
        }
        d.finish()?;
        let start = Start::new(volume, posted, rows)?;
        match start.log.epoch == epoch {
            true => Ok(start),
            false => Err(Reject::Malformed {
                what: FORM.what,
                why: "of another epoch",
            }),
        }
    }
}

#[cfg(test)]
mod tests;
