//! The keys of a checkpoint's rows (docs/formats/shared.md, *Checkpoint*). Their values belong to the rules of what they
//! are about.

use bytes::Bytes;

use super::principal::{Device, FileId, INumber, Principal};
use trust::device::{self, DeviceKey};
use trust::encode::{Decoder, Encoder};
use trust::error::Reject;

/// Longest name in a directory, bytes.
const MAX_NAME_BYTES: usize = 255;
const ROW: &str = "key of a checkpoint's row";

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
    /// What the log says about a device ([`Author`](super::entry::Author)).
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
    /// The times of a directory whose times changed since its principal's last fold.
    Times(File),
    /// What a device holds of a file: the file, the family of locks, and the number of the device.
    Hold(File, u8, u32),
    /// A snapshot, by its name.
    Pin(Bytes),
    /// For how long the server keeps what was replaced.
    Retention,
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
            Row::Lock(file)
            | Row::Inode(file)
            | Row::Entry(file, _)
            | Row::Added(file, _)
            | Row::Times(file)
            | Row::Hold(file, ..) => Some(*file),
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
            Row::Times(file) => file.encode(e.u8(12)),
            Row::Hold(file, family, device) => {
                file.encode(e.u8(13)).u8(*family).raw(&device.to_be_bytes())
            }
            Row::Pin(name) => e.u8(14).raw(name),
            Row::Retention => e.u8(15),
            Row::Late(at, op) => e.u8(16).raw(&at.to_be_bytes()).raw(&op.to_be_bytes()),
            Row::Before => e.u8(17),
            Row::Leaves(at) => e.u8(18).raw(&at.to_be_bytes()),
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
            12 => Row::Times(File::decode(&mut d)?),
            13 => {
                let (file, family) = (File::decode(&mut d)?, d.u8()?);
                Row::Hold(file, family, u32::from_be_bytes(d.array()?))
            }
            14 => Row::Pin(name(&mut d)?),
            15 => Row::Retention,
            16 => {
                let at = u64::from_be_bytes(d.array()?);
                Row::Late(at, u32::from_be_bytes(d.array()?))
            }
            17 => Row::Before,
            18 => Row::Leaves(u64::from_be_bytes(d.array()?)),
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
