//! Checkpoints: what the entries of a log up to a position come to, signed by k checkpointers who replayed it
//! (docs/formats/shared.md, *Checkpoint*). A device that was away starts from one instead of replaying.
//!
//! The state is a map tree, so one row is proved without the others. Keys of rows are here. The values of members' rows
//! are in [`super::members`], those of files in [`super::effect`]; [`Parts`] puts all together.

use bytes::Bytes;

use super::device::{self, DeviceKey, Incarnation};
use super::entry::Author;
use super::principal::{Device, FileId, INumber, Principal};
use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::handle::{Handle, Hasher, MapNode};
use crate::history::LogPoint;
use crate::key::PublicKey;
use crate::statement::roles::Threshold;
use crate::statement::signatures::Signatures;
use crate::statement::{Body, Purpose, Signed, Statement};
use crate::tree::map::{self, MapRoot, Proof, Salt};
use crate::volume_id::VolumeId;

mod parts;
mod window;

pub use parts::{Parts, PolicyRow, Reader};
pub use window::{LEAVES_OF_ROW, PAGE, WINDOW, Window};

/// Longest name in a directory, bytes.
const MAX_NAME_BYTES: usize = 255;
const ROW: &str = "key of a checkpoint's row";

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

/// Names a file of a shared volume: its principal, and the i-number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct File {
    /// The user or group that owns it.
    pub principal: [u8; 32],
    /// Number of the device that made it.
    pub device: u32,
    /// The device's own count.
    pub counter: u64,
}

/// The key of a row. Keys are ordered as their bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Row {
    /// The policy that begins the epoch: `number u64 | hash [32]`.
    Policy,
    /// What the log says about a device ([`Author`]).
    Author(DeviceKey),
    /// A device's membership, by its number.
    Device(u32),
    /// A user or group.
    Principal([u8; 32]),
    /// The role of a user in a group: the group, then the user.
    Role([u8; 32], [u8; 32]),
    /// How far a silent device's entries count, by its number.
    Accepted(u32),
    /// The lock of a file.
    Lock(File),
    /// The last fold of a principal.
    Fold([u8; 32]),
    /// The inode of a file that changed since its principal's last fold.
    Inode(File),
    /// A name in a directory that changed since its principal's last fold.
    Entry(File, Bytes),
    /// By how much the entry at a position changed the number of entries of a directory, since the last fold of its
    /// principal.
    Added(File, u64),
    /// A decision that waits for its author's next entry: position and number of its op.
    Late(u64, u32),
    /// The log before the leaves whose hashes are here.
    Before,
    /// Hashes of leaves from a position on.
    Leaves(u64),
}

impl Row {
    /// The file of a row about one.
    pub(super) fn file(&self) -> Option<File> {
        match self {
            Row::Lock(file) | Row::Inode(file) | Row::Entry(file, _) | Row::Added(file, _) => {
                Some(*file)
            }
            _ => None,
        }
    }

    /// The key's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        match self {
            Row::Policy => e.u8(1),
            Row::Author(device) => e.u8(2).raw(device.as_bytes()),
            Row::Device(number) => e.u8(3).raw(&number.to_be_bytes()),
            Row::Principal(principal) => e.u8(4).raw(principal),
            Row::Role(group, user) => e.u8(5).raw(group).raw(user),
            Row::Accepted(number) => e.u8(6).raw(&number.to_be_bytes()),
            Row::Lock(file) => file.encode(e.u8(7)),
            Row::Fold(principal) => e.u8(8).raw(principal),
            Row::Inode(file) => file.encode(e.u8(9)),
            Row::Entry(file, name) => file.encode(e.u8(10)).raw(name),
            Row::Added(file, at) => file.encode(e.u8(11)).raw(&at.to_be_bytes()),
            Row::Late(at, op) => e.u8(12).raw(&at.to_be_bytes()).raw(&op.to_be_bytes()),
            Row::Before => e.u8(13),
            Row::Leaves(at) => e.u8(14).raw(&at.to_be_bytes()),
        };
        e.finish()
    }

    /// Reads a key.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything but the one encoding of a key.
    pub fn decode(bytes: &[u8]) -> Result<Row, Reject> {
        let mut d = Decoder::new(bytes, ROW);
        let row = match d.u8()? {
            1 => Row::Policy,
            2 => Row::Author(device::decode(&mut d)?),
            3 => Row::Device(u32::from_be_bytes(d.array()?)),
            4 => Row::Principal(d.array()?),
            5 => Row::Role(d.array()?, d.array()?),
            6 => Row::Accepted(u32::from_be_bytes(d.array()?)),
            7 => Row::Lock(File::decode(&mut d)?),
            8 => Row::Fold(d.array()?),
            9 => Row::Inode(File::decode(&mut d)?),
            10 => Row::Entry(File::decode(&mut d)?, name(&mut d)?),
            11 => Row::Added(File::decode(&mut d)?, u64::from_be_bytes(d.array()?)),
            12 => {
                let at = u64::from_be_bytes(d.array()?);
                Row::Late(at, u32::from_be_bytes(d.array()?))
            }
            13 => Row::Before,
            14 => Row::Leaves(u64::from_be_bytes(d.array()?)),
            _ => return Err(d.bad("an unknown kind of row")),
        };
        d.finish()?;
        Ok(row)
    }
}

/// The rest of a key: a name of 1 to 255 bytes.
fn name(d: &mut Decoder<'_>) -> Result<Bytes, Reject> {
    let bytes = d.raw(d.remaining())?;
    if bytes.is_empty() || bytes.len() > MAX_NAME_BYTES {
        return Err(d.bad("a name that is empty, or too long"));
    }
    Ok(Bytes::copy_from_slice(bytes))
}

impl From<FileId> for File {
    fn from(id: FileId) -> File {
        File {
            principal: *id.principal.as_bytes(),
            device: id.number.device.0,
            counter: id.number.counter,
        }
    }
}

impl From<File> for FileId {
    fn from(file: File) -> FileId {
        FileId {
            principal: Principal::from_bytes(file.principal),
            number: INumber {
                device: Device(file.device),
                counter: file.counter,
            },
        }
    }
}

impl File {
    /// Big-endian, so that keys are ordered as files.
    fn encode<'e>(&self, e: &'e mut Encoder) -> &'e mut Encoder {
        e.raw(&self.principal).raw(&self.device.to_be_bytes());
        e.raw(&self.counter.to_be_bytes())
    }

    fn decode(d: &mut Decoder<'_>) -> Result<File, Reject> {
        Ok(File {
            principal: d.array()?,
            device: u32::from_be_bytes(d.array()?),
            counter: u64::from_be_bytes(d.array()?),
        })
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
