//! Inodes: the type, attributes and content of a file (SFSRO 3.2.1, extended for POSIX trees). A directory
//! entry holds one. Relies on [`crate::tree::array`] and [`crate::tree::map`] for the roots that an inode
//! names. Publishers write no ctime: copies do not keep it, and one tree must have one root on any machine. Bytes in
//! docs/formats/inode.md.
//!
//! ```text
//! inode = format u8 (0) | kind u8 | mode u16 | mtime seconds zigzag varint | nanoseconds varint
//!       | content | { tag u8 | value }*            tags ascending
//! entry = inode, or 0xff | handle of an inode block [32]
//! ```
//!
//! An unknown tag below 0x80 is *unsupported*. Tags from 0x80 are extensions, which a reader ignores and keeps.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::handle::{Block, Hasher, InodeBlock};

mod content;
mod entry;
mod extension;
mod xattr;

pub use content::{
    Content, FileContent, FileKind, MAX_BLOCK_INLINE_BYTES, MAX_INLINE_BYTES, MAX_TARGET_BYTES,
};
pub use entry::Entry;
pub use extension::{Extension, FIRST_EXTENSION, MAX_EXTENSION_BYTES, MAX_EXTENSIONS};
pub use xattr::{
    MAX_INLINE_XATTR_BYTES, MAX_XATTR_LIST_BYTES, MAX_XATTR_VALUE_BYTES, Xattrs, decode_xattrs,
    encode_xattrs,
};

/// Longest name in a directory, bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Longest encoded inode, bytes.
pub const MAX_INODE_BYTES: usize = 8 << 10;

const FORMAT: u8 = 0;
const WHAT: &str = "inode";

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Time {
    /// Unix seconds; negative before 1970.
    pub seconds: i64,
    /// Below 10⁹.
    pub nanos: u32,
}

impl Time {
    /// Writes `seconds zigzag varint | nanoseconds varint`.
    pub fn encode(&self, e: &mut Encoder) {
        e.varint(zigzag(self.seconds)).varint(u64::from(self.nanos));
    }

    /// Reads what [`Time::encode`] wrote.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for nanoseconds of a second or more, or bytes that are none.
    pub fn decode(d: &mut Decoder<'_>) -> Result<Time, Reject> {
        let seconds = unzigzag(d.varint()?);
        let nanos = d.bounded(999_999_999, "nanoseconds over a second")? as u32;
        Ok(Time { seconds, nanos })
    }

    /// The next point in time, 1 ns later; the last one has none.
    pub fn next(self) -> Option<Time> {
        match self.nanos < 999_999_999 {
            true => Some(Time {
                nanos: self.nanos.saturating_add(1),
                ..self
            }),
            false => Some(Time {
                seconds: self.seconds.checked_add(1)?,
                nanos: 0,
            }),
        }
    }
}

impl From<SystemTime> for Time {
    /// A time that a machine's clock or a program gives. Beyond 64 bits of seconds: the nearest one that has them.
    fn from(time: SystemTime) -> Time {
        let seconds = |since: Duration| i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Time {
                seconds: seconds(since),
                nanos: since.subsec_nanos(),
            },
            Err(before) => {
                let before = before.duration();
                let whole = seconds(before).saturating_neg();
                match before.subsec_nanos() {
                    0 => Time {
                        seconds: whole,
                        nanos: 0,
                    },
                    nanos => Time {
                        seconds: whole.saturating_sub(1),
                        nanos: 1_000_000_000_u32.saturating_sub(nanos),
                    },
                }
            }
        }
    }
}

/// The owner of a file, where the publisher chose to state it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Numeric user.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
}

/// Everything about a file except its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Permission bits, 07777.
    pub mode: u16,
    /// Always [`Content::size`]; follows from the content and is not stored.
    pub size: u64,
    /// Last modification.
    pub mtime: Time,
    /// Number of names of this file in the volume, at least 1.
    pub links: u32,
    /// The hard-link set that the file belongs to ([`link_group`]); needs `links` of 2 or more.
    pub link_group: Option<[u8; 16]>,
    /// Owner, where stated.
    pub owner: Option<Owner>,
    /// Extended attributes.
    pub xattrs: Xattrs,
    /// Last change of content or attributes. Devices of shared volumes write it, publishers do not.
    pub ctime: Option<Time>,
    /// Type and content.
    pub content: Content,
    /// Fields of a later bulla, sorted by tag. Ignored and kept; publishers of this build write none.
    pub extensions: Vec<Extension>,
}

/// The identity of a hard-link set: its first path in the publisher's order, hashed under the
/// volume's key.
pub fn link_group(hasher: &Hasher, first_path: &[u8]) -> [u8; 16] {
    hasher.link_group(first_path)
}

/// Refuses bytes that are not a valid name in a directory.
///
/// # Errors
/// [`Reject::Malformed`] for an empty or over-long name, `.`, `..`, a NUL or a slash.
pub fn check_name(name: &[u8]) -> Result<(), Reject> {
    let why = match name {
        b"" => "empty",
        b"." | b".." => "reserved by the file system",
        _ if name.len() > MAX_NAME_BYTES => "over 255 bytes",
        _ if name.iter().any(|b| matches!(b, 0 | b'/')) => "holds a NUL or a slash",
        _ => return Ok(()),
    };
    Err(Reject::Malformed { what: "name", why })
}

impl Inode {
    /// A file with one name and without optional fields.
    pub fn new(mode: u16, mtime: Time, content: Content) -> Inode {
        Inode {
            mode,
            size: content.size(),
            mtime,
            links: 1,
            link_group: None,
            owner: None,
            xattrs: Xattrs::None,
            ctime: None,
            content,
            extensions: Vec::new(),
        }
    }

    /// The type of the file.
    pub fn kind(&self) -> FileKind {
        self.content.kind()
    }

    /// The canonical bytes. An inode that breaks a rule of its fields encodes to bytes that
    /// [`Inode::decode`] refuses.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.u8(FORMAT)
            .u8(content::kind_byte(&self.content))
            .u16(self.mode);
        self.mtime.encode(&mut e);
        content::encode(&self.content, &mut e);
        self.encode_optional(&mut e);
        e.finish()
    }

    /// Reads the canonical bytes of an inode in a block of its own. For one in a directory's entry, see
    /// [`Entry::decode`].
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything but the one encoding of an inode,
    /// [`Reject::Unsupported`] for a format, kind or tag that this build does not know.
    pub fn decode(bytes: &[u8]) -> Result<Inode, Reject> {
        Inode::decode_within(bytes, MAX_BLOCK_INLINE_BYTES)
    }

    /// As [`Inode::decode`], with content of at most `max_inline_bytes` in the inode itself.
    pub fn decode_within(bytes: &[u8], max_inline_bytes: usize) -> Result<Inode, Reject> {
        let mut d = Decoder::new(bytes, WHAT);
        let format = d.u8()?;
        if format != FORMAT {
            return Err(unsupported("format", format));
        }
        if bytes.len() > MAX_INODE_BYTES {
            return Err(d.bad("over 8 KiB"));
        }
        let kind = d.u8()?;
        let mode = d.u16()?;
        if mode > 0o7777 {
            return Err(d.bad("mode over 07777"));
        }
        let mtime = Time::decode(&mut d)?;
        let content = content::decode(kind, &mut d, max_inline_bytes)?;
        let mut inode = Inode::new(mode, mtime, content);
        inode.decode_optional(&mut d)?;
        d.finish()?;
        Ok(inode)
    }

    /// Reads an inode from a block of its own.
    ///
    /// # Errors
    /// Those of [`Inode::decode`], as the publisher's fault.
    pub fn from_block(block: &Block<InodeBlock>) -> Result<Inode, Reject> {
        Inode::decode(block.bytes()).map_err(Reject::signed)
    }

    /// Memory that the inode takes, bytes, roughly.
    pub fn weight_bytes(&self) -> usize {
        let content = match &self.content {
            Content::Regular(FileContent::Inline(bytes)) | Content::Symlink(bytes) => bytes.len(),
            _ => 0,
        };
        let xattrs = match &self.xattrs {
            Xattrs::Inline(list) => xattr::weight_bytes(list),
            Xattrs::None | Xattrs::Stored(_) => 0,
        };
        [content, xattrs, extension::weight_bytes(&self.extensions)]
            .into_iter()
            .fold(size_of::<Inode>(), usize::saturating_add)
    }

    fn encode_optional(&self, e: &mut Encoder) {
        if self.links != 1 {
            e.u8(TAG_LINKS).varint(u64::from(self.links));
        }
        if let Some(group) = &self.link_group {
            e.u8(TAG_LINK_GROUP).raw(group);
        }
        if let Some(owner) = &self.owner {
            e.u8(TAG_OWNER)
                .varint(u64::from(owner.uid))
                .varint(u64::from(owner.gid));
        }
        match &self.xattrs {
            Xattrs::None => {}
            Xattrs::Inline(list) => {
                e.u8(TAG_XATTRS).bytes(&encode_xattrs(list));
            }
            Xattrs::Stored(root) => {
                e.u8(TAG_STORED_XATTRS);
                root.encode(e);
            }
        }
        if let Some(ctime) = &self.ctime {
            ctime.encode(e.u8(TAG_CTIME));
        }
        extension::encode(&self.extensions, e);
    }

    fn decode_optional(&mut self, d: &mut Decoder<'_>) -> Result<(), Reject> {
        let mut before = 0;
        while d.remaining() > 0 {
            let tag = d.u8()?;
            if tag <= before {
                return Err(d.bad("tags out of order"));
            }
            before = tag;
            match tag {
                TAG_LINKS => {
                    self.links = d.bounded(u64::from(u32::MAX), "link count over 32 bits")? as u32;
                    if self.links == 1 {
                        return Err(d.bad("a link count of 1 is not stated"));
                    }
                }
                TAG_LINK_GROUP => self.link_group = Some(d.array()?),
                TAG_OWNER => {
                    let uid = d.bounded(u64::from(u32::MAX), "uid over 32 bits")? as u32;
                    let gid = d.bounded(u64::from(u32::MAX), "gid over 32 bits")? as u32;
                    self.owner = Some(Owner { uid, gid });
                }
                TAG_XATTRS => self.xattrs = xattr::decode_inline(d)?,
                TAG_STORED_XATTRS => {
                    if self.xattrs != Xattrs::None {
                        return Err(d.bad("two lists of extended attributes"));
                    }
                    self.xattrs = xattr::decode_stored(d)?;
                }
                TAG_CTIME => self.ctime = Some(Time::decode(d)?),
                FIRST_EXTENSION.. => self.extensions = extension::decode(tag, d)?,
                _ => return Err(unsupported("tag", tag)),
            }
        }
        if self.links == 0 {
            return Err(d.bad("no links"));
        }
        if self.link_group.is_some() && (self.links < 2 || self.kind() == FileKind::Directory) {
            return Err(d.bad("a hard-link set of one, or of directories"));
        }
        Ok(())
    }
}

const TAG_LINKS: u8 = 1;
const TAG_LINK_GROUP: u8 = 2;
const TAG_OWNER: u8 = 3;
const TAG_XATTRS: u8 = 4;
const TAG_STORED_XATTRS: u8 = 5;
const TAG_CTIME: u8 = 6;

fn unsupported(field: &str, value: u8) -> Reject {
    Reject::Unsupported {
        what: WHAT,
        why: format!("{field} {value}"),
    }
}

fn zigzag(v: i64) -> u64 {
    ((v << 1) ^ (v >> 63)) as u64
}

fn unzigzag(v: u64) -> i64 {
    (v >> 1) as i64 ^ -((v & 1) as i64)
}

#[cfg(test)]
mod tests;
