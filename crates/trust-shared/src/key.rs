//! The keys of a shared volume's state: what changes set, what guards look at, what outlines list. Relies on
//! [`super::principal`].

use super::hold::Family;
use super::principal::{Device, FileId, Label, Name, Principal, Reader, Writer};
use trust::error::Reject;

/// A value that entries change and guards look at. The order of keys is that of their encodings.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// The inode of a file; of a directory, its attributes.
    Inode(FileId),
    /// The name of a directory.
    Entry(FileId, Name),
    /// The lock of a file.
    Lock(FileId),
    /// The last fold of a principal.
    Fold(Principal),
    /// The row of a device.
    Device(Device),
    /// The row of a user or group.
    Principal(Principal),
    /// The role of a user in a group: the group, then the user.
    Role(Principal, Principal),
    /// How far a silent device's entries count.
    Accepted(Device),
    /// The times of a directory.
    Times(FileId),
    /// What a device holds of a file for its programs.
    Hold(FileId, Family, Device),
    /// The snapshot with a name.
    Pin(Label),
    /// For how long the server keeps what was replaced.
    Retention,
}

impl Key {
    /// The principals that the key names.
    pub(super) fn principals(&self) -> impl Iterator<Item = Principal> + use<> {
        let (first, second) = match self {
            Key::Inode(file)
            | Key::Entry(file, _)
            | Key::Lock(file)
            | Key::Times(file)
            | Key::Hold(file, ..) => (Some(file.principal), None),
            Key::Fold(principal) | Key::Principal(principal) => (Some(*principal), None),
            Key::Role(group, user) => (Some(*group), Some(*user)),
            Key::Device(_) | Key::Accepted(_) | Key::Pin(_) | Key::Retention => (None, None),
        };
        first.into_iter().chain(second)
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        match self {
            Key::Inode(file) => {
                w.out.u8(1);
                w.file(file);
            }
            Key::Entry(directory, name) => {
                w.out.u8(2);
                w.file(directory);
                name.encode(&mut w.out);
            }
            Key::Lock(file) => {
                w.out.u8(3);
                w.file(file);
            }
            Key::Fold(principal) => {
                w.out.u8(4);
                w.principal(principal);
            }
            Key::Device(device) => {
                w.out.u8(5);
                device.encode(&mut w.out);
            }
            Key::Principal(principal) => {
                w.out.u8(6);
                w.principal(principal);
            }
            Key::Role(group, user) => {
                w.out.u8(7);
                w.principal(group);
                w.principal(user);
            }
            Key::Accepted(device) => {
                w.out.u8(8);
                device.encode(&mut w.out);
            }
            Key::Times(directory) => {
                w.out.u8(9);
                w.file(directory);
            }
            Key::Hold(file, family, device) => {
                w.out.u8(10);
                w.held((file, *family), *device);
            }
            Key::Pin(label) => {
                w.out.u8(11).bytes(label.as_str().as_bytes());
            }
            Key::Retention => {
                w.out.u8(12);
            }
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Key, Reject> {
        Ok(match r.rest.u8()? {
            1 => Key::Inode(r.file()?),
            2 => Key::Entry(r.file()?, Name::decode(&mut r.rest)?),
            3 => Key::Lock(r.file()?),
            4 => Key::Fold(r.principal()?),
            5 => Key::Device(Device::decode(&mut r.rest)?),
            6 => Key::Principal(r.principal()?),
            7 => Key::Role(r.principal()?, r.principal()?),
            8 => Key::Accepted(Device::decode(&mut r.rest)?),
            9 => Key::Times(r.file()?),
            10 => {
                let ((file, family), device) = r.held()?;
                Key::Hold(file, family, device)
            }
            11 => Key::Pin(Label::decode(r)?),
            12 => Key::Retention,
            _ => return Err(r.rest.bad("an unknown kind of key")),
        })
    }
}
