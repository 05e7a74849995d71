//! Users, groups and devices of a shared volume, and the names of its files. Relies on [`trust::encode`]; bodies
//! and outlines state each principal once, in a table that their files refer to.

use std::fmt;

use bytes::Bytes;

use super::hold::Family;
use trust::encode::{Decoder, Encoder};
use trust::error::Reject;
use trust::tree::inode::{FileKind, MAX_NAME_BYTES, check_name};

/// A user or a group: 32 random bytes that its creator drew. Only principals own files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal([u8; 32]);

impl Principal {
    /// A principal from its 32 bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Principal(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "principal {a:02x}{b:02x}{c:02x}{d:02x}")
    }
}

/// The number that a device got when it was admitted. Numbers and keys of devices are never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device(pub u32);

impl Device {
    pub(crate) fn encode(self, e: &mut Encoder) {
        e.varint(u64::from(self.0));
    }

    pub(crate) fn decode(d: &mut Decoder<'_>) -> Result<Device, Reject> {
        let number = d.bounded(u64::from(u32::MAX), "a device over 32 bits")?;
        Ok(Device(number as u32))
    }
}

/// Names a file among those of its principal. The device that makes the file gives the number, so that devices
/// need not agree on numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct INumber {
    /// The device that made the file.
    pub device: Device,
    /// The device's own count. A device never uses one twice.
    pub counter: u64,
}

/// Names a file of a shared volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Its owner.
    pub principal: Principal,
    /// Its number.
    pub number: INumber,
}

impl FileId {
    /// The lowest file of a principal, in the order of files.
    pub(crate) fn first_of(principal: Principal) -> FileId {
        let device = Device(0);
        FileId {
            principal,
            number: INumber { device, counter: 0 },
        }
    }
}

/// A name in a directory that follows the rules of names.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Bytes);

impl Name {
    /// Takes the bytes of a name.
    ///
    /// # Errors
    /// [`Reject::Malformed`] as [`check_name`] says.
    pub fn new(bytes: &[u8]) -> Result<Name, Reject> {
        check_name(bytes)?;
        Ok(Name(Bytes::copy_from_slice(bytes)))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The lowest in the order of names; no file can have it.
    pub(crate) fn lowest() -> Name {
        Name(Bytes::new())
    }

    pub(crate) fn encode(&self, e: &mut Encoder) {
        e.bytes(&self.0);
    }

    pub(crate) fn decode(d: &mut Decoder<'_>) -> Result<Name, Reject> {
        Name::new(d.bytes(MAX_NAME_BYTES)?)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// Longest name of a user, group, device or snapshot, bytes.
pub const MAX_LABEL_BYTES: usize = 64;

/// A name of a user, group, device or snapshot for people: 1 to 64 bytes of UTF-8 without control characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Label(String);

impl Label {
    /// Takes a name.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for an empty or over-long name, or one with control characters.
    pub fn new(text: &str) -> Result<Label, Reject> {
        let why = match text {
            "" => "empty",
            _ if text.len() > MAX_LABEL_BYTES => "over 64 bytes",
            _ if text.chars().any(char::is_control) => "holds a control character",
            _ => return Ok(Label(text.to_owned())),
        };
        let what = "name of a user, group, device or snapshot";
        Err(Reject::Malformed { what, why })
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Label, Reject> {
        let bytes = r.rest.bytes(MAX_LABEL_BYTES)?;
        let text = std::str::from_utf8(bytes).map_err(|_| r.rest.bad("a name is not UTF-8"))?;
        Label::new(text)
    }
}

/// What a name in a directory leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Target {
    /// The file.
    pub file: FileId,
    /// Its type, so that a listing needs no inode.
    pub kind: FileKind,
}

const KINDS: [(FileKind, u8); 7] = [
    (FileKind::Regular, 1),
    (FileKind::Directory, 2),
    (FileKind::Symlink, 3),
    (FileKind::Fifo, 4),
    (FileKind::Socket, 5),
    (FileKind::CharDevice, 6),
    (FileKind::BlockDevice, 7),
];

pub(super) fn kind_byte(kind: FileKind) -> u8 {
    let found = KINDS.iter().find(|(known, _)| *known == kind);
    found.map_or(0, |(_, byte)| *byte)
}

pub(super) fn kind_of(byte: u8) -> Option<FileKind> {
    let found = KINDS.iter().find(|(_, known)| *known == byte);
    found.map(|(kind, _)| *kind)
}

/// Writes the principals of a body or an outline, and then files that refer to them.
pub(super) struct Writer {
    principals: Vec<Principal>,
    /// What has been written.
    pub out: Encoder,
}

impl Writer {
    /// Writes the table. `principals` are those that will be referred to, in any order.
    pub fn new(format: u8, mut principals: Vec<Principal>) -> Writer {
        principals.sort();
        principals.dedup();
        let mut out = Encoder::new();
        out.u8(format).varint(principals.len() as u64);
        for principal in &principals {
            out.raw(principal.as_bytes());
        }
        Writer { principals, out }
    }

    pub fn principal(&mut self, principal: &Principal) {
        // Every principal is in the table. The end of the table would be refused by a reader.
        let (Ok(index) | Err(index)) = self.principals.binary_search(principal);
        self.out.varint(index as u64);
    }

    pub fn file(&mut self, file: &FileId) {
        self.principal(&file.principal);
        file.number.device.encode(&mut self.out);
        self.out.varint(file.number.counter);
    }

    /// A file, a family of locks of it, and a device.
    pub fn held(&mut self, (file, family): (&FileId, Family), device: Device) {
        self.file(file);
        self.out.u8(family.to_byte());
        device.encode(&mut self.out);
    }

    pub fn target(&mut self, target: &Target) {
        self.file(&target.file);
        self.out.u8(kind_byte(target.kind));
    }
}

/// Reads what [`Writer`] wrote.
pub(super) struct Reader<'a> {
    principals: Vec<(Principal, bool)>,
    /// The rest of the bytes.
    pub rest: Decoder<'a>,
}

impl<'a> Reader<'a> {
    /// Reads format and table.
    pub fn new(bytes: &'a [u8], what: &'static str, format: u8) -> Result<Reader<'a>, Reject> {
        let mut rest = Decoder::new(bytes, what);
        rest.format(format)?;
        let count = rest.bounded(rest.remaining() as u64 / 32, "more principals than bytes")?;
        let mut principals: Vec<(Principal, bool)> = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let principal = Principal(rest.array()?);
            let last = principals.last().map(|(last, _)| *last);
            if last >= Some(principal) {
                return Err(rest.bad("principals not sorted"));
            }
            principals.push((principal, false));
        }
        Ok(Reader { principals, rest })
    }

    pub fn principal(&mut self) -> Result<Principal, Reject> {
        let index = self.rest.varint()? as usize;
        let Some((principal, used)) = self.principals.get_mut(index) else {
            return Err(self.rest.bad("a principal that is not in the table"));
        };
        *used = true;
        Ok(*principal)
    }

    pub fn file(&mut self) -> Result<FileId, Reject> {
        let principal = self.principal()?;
        let device = Device::decode(&mut self.rest)?;
        let counter = self.rest.varint()?;
        let number = INumber { device, counter };
        Ok(FileId { principal, number })
    }

    pub fn held(&mut self) -> Result<((FileId, Family), Device), Reject> {
        let file = self.file()?;
        let family = Family::from_byte(self.rest.u8()?);
        let family = family.ok_or_else(|| self.rest.bad("an unknown family of locks"))?;
        Ok(((file, family), Device::decode(&mut self.rest)?))
    }

    pub fn target(&mut self) -> Result<Target, Reject> {
        let file = self.file()?;
        let byte = self.rest.u8()?;
        let kind = kind_of(byte).ok_or_else(|| self.rest.bad("an unknown kind of file"))?;
        Ok(Target { file, kind })
    }

    /// Refuses bytes after the end, and a table with more than is used.
    pub fn finish(self) -> Result<(), Reject> {
        if self.principals.iter().any(|(_, used)| !used) {
            return Err(self.rest.bad("a principal that nothing refers to"));
        }
        self.rest.finish()
    }
}
