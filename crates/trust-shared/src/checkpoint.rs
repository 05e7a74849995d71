//! Checkpoints: what the entries of a log up to a position come to, signed by k checkpointers who replayed it
//! (docs/formats/shared.md, *Checkpoint*). A device that was away starts from one instead of replaying.
//!
//! The state is a map tree, so one row is proved without the others. Keys of rows are here. The values of members' rows
//! are in [`super::members`], those of files in [`super::effect`]; [`Parts`] puts all together.

use bytes::Bytes;

use super::entry::Author;
use trust::device::{DeviceKey, Incarnation};
use trust::encode::{Decoder, Encoder};
use trust::error::Reject;
use trust::handle::{Handle, Hasher, MapNode};
use trust::history::LogPoint;
use trust::key::PublicKey;
use trust::statement::roles::Threshold;
use trust::statement::signatures::Signatures;
use trust::statement::{Body, Purpose, Signed, Statement};
use trust::tree::map::{self, MapRoot, Proof, Salt};
use trust::volume_id::VolumeId;

mod parts;
mod posted;
mod window;

pub use super::row::{File, Row};
pub use parts::{Parts, PolicyRow, Reader};
pub use posted::{MAX_POSTED_BYTES, Posted};
pub use window::{LEAVES_OF_ROW, PAGE, WINDOW, Window};

/// A log, and the state after its last leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// The log: epoch, size, root.
    pub log: LogPoint,
    /// The map of all rows.
    pub state: MapRoot,
}

impl Checkpoint {
    /// The statement to sign.
    pub fn statement(&self, volume: VolumeId) -> Statement {
        Statement::new(volume, self)
    }
}

impl Body for Checkpoint {
    const PURPOSE: Purpose = Purpose::Checkpoint;

    fn encode(&self, out: &mut Encoder) {
        self.log.encode(out);
        self.state.encode(out);
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        Ok(Checkpoint {
            log: LogPoint::decode(d)?,
            state: MapRoot::decode(d)?,
        })
    }
}

/// A checkpoint that enough checkpointers signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifiedCheckpoint(Checkpoint);

impl VerifiedCheckpoint {
    /// Verifies that `own` signed the checkpoint, or enough of the checkpointers. A role in which one key is enough
    /// does not count for others: one device would decide what everybody sees.
    ///
    /// # Errors
    /// [`Reject::NotSigned`] for too few or bad signatures; those of [`Statement::read`].
    pub fn verify(
        signed: &Signed,
        volume: VolumeId,
        checkpointers: &Threshold,
        own: Option<&PublicKey>,
        signatures: &mut Signatures,
    ) -> Result<VerifiedCheckpoint, Reject> {
        let checkpoint = signed.statement().read(volume)?;
        if let Some(own) = own
            && signed.by(own).is_some()
        {
            signatures.require(signed, &Threshold::single(*own), "own checkpoint")?;
            return Ok(VerifiedCheckpoint(checkpoint));
        }
        if checkpointers.needed() < 2 {
            return Err(Reject::NotSigned("one checkpointer alone"));
        }
        signatures.require(signed, checkpointers, "checkpoint")?;
        Ok(VerifiedCheckpoint(checkpoint))
    }

    /// What was signed.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.0
    }

    /// The value of a row; `None` when it is proved that there is none.
    ///
    /// # Errors
    /// Those of [`Proof::verify`].
    pub fn row(&self, hasher: &Hasher, row: &Row, proof: &Proof) -> Result<Option<Bytes>, Reject> {
        proof.verify(hasher, &self.0.state, &row.encode())
    }

    /// What the log says about a device; `None` when it is proved that it has no entry.
    ///
    /// # Errors
    /// Those of [`VerifiedCheckpoint::row`]; [`Reject::Malformed`] for a row that is none.
    pub fn author(
        &self,
        hasher: &Hasher,
        device: &DeviceKey,
        proof: &Proof,
    ) -> Result<Option<Author>, Reject> {
        let row = self.row(hasher, &Row::Author(*device), proof)?;
        row.map(|row| Author::decode(&row)).transpose()
    }
}

impl Author {
    /// The value of its row.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.raw(self.incarnation.as_bytes())
            .varint(self.n)
            .raw(&self.last);
        e.varint(self.last_at)
            .varint(self.resume_at)
            .varint(self.attested);
        e.finish()
    }

    /// Reads the value of its row.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything but the one encoding of a row that a log can have.
    pub fn decode(bytes: &[u8]) -> Result<Author, Reject> {
        let mut d = Decoder::new(bytes, "row of an author");
        let author = Author {
            incarnation: Incarnation::from_bytes(d.array()?),
            n: d.varint()?,
            last: d.array()?,
            last_at: d.varint()?,
            resume_at: d.varint()?,
            attested: d.varint()?,
        };
        if author.resume_at > author.last_at || author.attested > author.last_at {
            return Err(d.bad("beyond the author's last entry"));
        }
        d.finish()?;
        Ok(author)
    }
}

/// Builds the state of a checkpoint from its rows, in the order of their keys.
pub struct Builder<F>(map::Builder<F>);

impl<F: FnMut(Handle<MapNode>, &Bytes)> Builder<F> {
    /// Starts with no rows. Each finished node goes to `sink`.
    pub fn new(hasher: &Hasher, sink: F) -> Self {
        Builder(map::Builder::new(hasher, Salt::default(), sink))
    }

    /// Appends rows.
    ///
    /// # Errors
    /// Those of [`Builder::push`].
    pub fn rows(&mut self, rows: impl IntoIterator<Item = (Row, Vec<u8>)>) -> Result<(), Reject> {
        let mut rows = rows.into_iter();
        rows.try_for_each(|(row, value)| self.push(&row, &value))
    }

    /// Appends the row of the policy that begins the epoch.
    ///
    /// # Errors
    /// Those of [`Builder::push`].
    pub fn policy(&mut self, number: u64, hash: &[u8; 32]) -> Result<(), Reject> {
        let mut e = Encoder::new();
        e.u64(number).raw(hash);
        self.push(&Row::Policy, &e.finish())
    }

    /// Appends the row of a device's entries.
    ///
    /// # Errors
    /// Those of [`Builder::push`].
    pub fn author(&mut self, device: &DeviceKey, author: &Author) -> Result<(), Reject> {
        self.push(&Row::Author(*device), &author.encode())
    }

    /// Appends a row.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for a row out of order, or over 4 KiB.
    pub fn push(&mut self, row: &Row, value: &[u8]) -> Result<(), Reject> {
        self.0.push(&row.encode(), value)
    }

    /// The root of the state.
    ///
    /// # Errors
    /// [`Reject::Malformed`] without rows: each state has a policy.
    pub fn finish(self) -> Result<MapRoot, Reject> {
        self.0.finish()?.ok_or(Reject::Malformed {
            what: "checkpoint",
            why: "no rows",
        })
    }
}

#[cfg(test)]
mod tests;
