//! Inodes: the type, attributes and content of a file (SFSRO 3.2.1, extended for POSIX trees). A directory
//! entry holds one. Relies on [`crate::tree::array`] and [`crate::tree::map`] for the roots that an inode
//! names. There is no ctime: copies do not keep it, and one tree must have one root on any machine. Bytes in
//! docs/formats/inode.md.
//!
//! ```text
//! inode = format u8 (0) | kind u8 | mode u16 | mtime seconds zigzag varint | nanoseconds varint
//!       | content | { tag u8 | value }*            tags ascending
//! entry = inode, or 0xff | handle of an inode block [32]
//! ```

use bytes::Bytes;

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::handle::{Block, Handle, Hasher, InodeBlock, Kind};
use crate::tree::array::ArrayRoot;
use crate::tree::map::{MAX_ENTRY_BYTES, MapRoot};

mod xattr;

pub use xattr::{
    MAX_INLINE_XATTR_BYTES, MAX_XATTR_LIST_BYTES, MAX_XATTR_VALUE_BYTES, Xattrs, decode_xattrs,
    encode_xattrs,
};

/// Longest content that is stored in the inode itself, bytes.
pub const MAX_INLINE_BYTES: usize = 256;
/// Longest target of a symbolic link, bytes (Linux PATH_MAX without the NUL).
pub const MAX_TARGET_BYTES: usize = 4095;
/// Longest name in a directory, bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Longest encoded inode, bytes.
pub const MAX_INODE_BYTES: usize = 8 << 10;

const FORMAT: u8 = 0;
const BLOCK: u8 = 0xff;
const WHAT: &str = "inode";

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A file with content.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// Time of last modification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Mtime {
    /// Unix seconds; negative before 1970.
    pub seconds: i64,
    /// Below 10⁹.
    pub nanos: u32,
}

/// The owner of a file, where the publisher chose to state it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Numeric user.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
}

/// Content of a regular file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileContent {
    /// No bytes.
    Empty,
    /// 1 to [`MAX_INLINE_BYTES`] bytes, here.
    Inline(Bytes),
    /// More than [`MAX_INLINE_BYTES`] bytes, in an array tree.
    Array(ArrayRoot),
}

/// A file's type and content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A file with content.
    Regular(FileContent),
    /// A directory: name → [`Entry`].
    Directory {
        /// Its entries; `None` when it is empty.
        map: Option<MapRoot>,
        /// Opaque (SFSRO 3.2.3): names can be looked up, not listed.
        opaque: bool,
    },
    /// A symbolic link's target.
    Symlink(Bytes),
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device.
    CharDevice {
        /// Driver.
        major: u32,
        /// Unit.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// Driver.
        major: u32,
        /// Unit.
        minor: u32,
    },
}

impl Content {
    /// `st_size`: bytes of a file or target, entries of a directory, 0 otherwise.
    pub fn size(&self) -> u64 {
        match self {
            Content::Regular(FileContent::Inline(bytes)) | Content::Symlink(bytes) => {
                bytes.len() as u64
            }
            Content::Regular(FileContent::Array(root)) => root.len,
            Content::Directory { map: Some(map), .. } => map.entries,
            _ => 0,
        }
    }

    /// The type of the file.
    pub fn kind(&self) -> FileKind {
        match self {
            Content::Regular(_) => FileKind::Regular,
            Content::Directory { .. } => FileKind::Directory,
            Content::Symlink(_) => FileKind::Symlink,
            Content::Fifo => FileKind::Fifo,
            Content::Socket => FileKind::Socket,
            Content::CharDevice { .. } => FileKind::CharDevice,
            Content::BlockDevice { .. } => FileKind::BlockDevice,
        }
    }
}

/// Everything about a file except its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Permission bits, 07777.
    pub mode: u16,
    /// Always [`Content::size`]; follows from the content and is not stored.
    pub size: u64,
    /// Last modification.
    pub mtime: Mtime,
    /// Number of names of this file in the volume, at least 1.
    pub links: u32,
    /// The hard-link set that the file belongs to ([`link_group`]); needs `links` of 2 or more.
    pub link_group: Option<[u8; 16]>,
    /// Owner, where stated.
    pub owner: Option<Owner>,
    /// Extended attributes.
    pub xattrs: Xattrs,
    /// Type and content.
    pub content: Content,
}

/// The identity of a hard-link set: its first path in the publisher's order, hashed under the
/// volume's key.
pub fn link_group(hasher: &Hasher, first_path: &[u8]) -> [u8; 16] {
    // No inode's bytes begin with 0xfe, so this is never the hash of one.
    let mut input = Vec::with_capacity(first_path.len() + 1);
    input.push(0xfe);
    input.extend_from_slice(first_path);
    let name = hasher.name(Kind::Inode, &input);
    let [half @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = *name.as_bytes();
    half
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
    pub fn new(mode: u16, mtime: Mtime, content: Content) -> Inode {
        Inode {
            mode,
            size: content.size(),
            mtime,
            links: 1,
            link_group: None,
            owner: None,
            xattrs: Xattrs::None,
            content,
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
        e.u8(FORMAT).u8(kind_byte(&self.content)).u16(self.mode);
        e.varint(zigzag(self.mtime.seconds))
            .varint(u64::from(self.mtime.nanos));
        encode_content(&self.content, &mut e);
        self.encode_optional(&mut e);
        e.finish()
    }

    /// Reads canonical bytes.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything but the one encoding of an inode,
    /// [`Reject::Unsupported`] for a format, kind or tag that this build does not know.
    pub fn decode(bytes: &[u8]) -> Result<Inode, Reject> {
        let mut d = Decoder::new(bytes, WHAT);
        if bytes.len() > MAX_INODE_BYTES {
            return Err(d.bad("over 8 KiB"));
        }
        let format = d.u8()?;
        if format != FORMAT {
            return Err(unsupported("format", format));
        }
        let kind = d.u8()?;
        let mode = d.u16()?;
        if mode > 0o7777 {
            return Err(d.bad("mode over 07777"));
        }
        let seconds = unzigzag(d.varint()?);
        let nanos = d.bounded(999_999_999, "nanoseconds over a second")? as u32;
        let content = decode_content(kind, &mut d)?;
        let mut inode = Inode::new(mode, Mtime { seconds, nanos }, content);
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

const EMPTY_FILE: u8 = 0x01;
const INLINE_FILE: u8 = 0x11;
const ARRAY_FILE: u8 = 0x21;
const EMPTY_DIRECTORY: u8 = 0x02;
const DIRECTORY: u8 = 0x12;
const OPAQUE_EMPTY_DIRECTORY: u8 = 0x22;
const OPAQUE_DIRECTORY: u8 = 0x32;
const SYMLINK: u8 = 0x03;
const FIFO: u8 = 0x04;
const SOCKET: u8 = 0x05;
const CHAR_DEVICE: u8 = 0x06;
const BLOCK_DEVICE: u8 = 0x07;

fn kind_byte(content: &Content) -> u8 {
    match content {
        Content::Regular(FileContent::Empty) => EMPTY_FILE,
        Content::Regular(FileContent::Inline(_)) => INLINE_FILE,
        Content::Regular(FileContent::Array(_)) => ARRAY_FILE,
        Content::Directory { map, opaque } => match (map.is_some(), opaque) {
            (false, false) => EMPTY_DIRECTORY,
            (true, false) => DIRECTORY,
            (false, true) => OPAQUE_EMPTY_DIRECTORY,
            (true, true) => OPAQUE_DIRECTORY,
        },
        Content::Symlink(_) => SYMLINK,
        Content::Fifo => FIFO,
        Content::Socket => SOCKET,
        Content::CharDevice { .. } => CHAR_DEVICE,
        Content::BlockDevice { .. } => BLOCK_DEVICE,
    }
}

fn encode_content(content: &Content, e: &mut Encoder) {
    match content {
        Content::Regular(FileContent::Empty) | Content::Fifo | Content::Socket => {}
        Content::Regular(FileContent::Inline(bytes)) | Content::Symlink(bytes) => {
            e.bytes(bytes);
        }
        Content::Regular(FileContent::Array(root)) => root.encode(e),
        Content::Directory { map, .. } => {
            if let Some(map) = map {
                map.encode(e);
            }
        }
        Content::CharDevice { major, minor } | Content::BlockDevice { major, minor } => {
            e.varint(u64::from(*major)).varint(u64::from(*minor));
        }
    }
}

fn decode_content(kind: u8, d: &mut Decoder<'_>) -> Result<Content, Reject> {
    let device = |d: &mut Decoder<'_>| -> Result<(u32, u32), Reject> {
        let mut number = || d.bounded(u64::from(u32::MAX), "device number over 32 bits");
        Ok((number()? as u32, number()? as u32))
    };
    Ok(match kind {
        EMPTY_FILE => Content::Regular(FileContent::Empty),
        INLINE_FILE => {
            let bytes = d.bytes(MAX_INLINE_BYTES)?;
            if bytes.is_empty() {
                return Err(d.bad("inline content without bytes"));
            }
            Content::Regular(FileContent::Inline(Bytes::copy_from_slice(bytes)))
        }
        ARRAY_FILE => {
            let root = ArrayRoot::decode(d)?;
            if root.len <= MAX_INLINE_BYTES as u64 {
                return Err(d.bad("content this short belongs in the inode"));
            }
            Content::Regular(FileContent::Array(root))
        }
        EMPTY_DIRECTORY | OPAQUE_EMPTY_DIRECTORY => Content::Directory {
            map: None,
            opaque: kind == OPAQUE_EMPTY_DIRECTORY,
        },
        DIRECTORY | OPAQUE_DIRECTORY => Content::Directory {
            map: Some(MapRoot::decode(d)?),
            opaque: kind == OPAQUE_DIRECTORY,
        },
        SYMLINK => {
            let target = d.bytes(MAX_TARGET_BYTES)?;
            if target.is_empty() || target.contains(&0) {
                return Err(d.bad("link target empty or with a NUL"));
            }
            Content::Symlink(Bytes::copy_from_slice(target))
        }
        FIFO => Content::Fifo,
        SOCKET => Content::Socket,
        CHAR_DEVICE => {
            let (major, minor) = device(d)?;
            Content::CharDevice { major, minor }
        }
        BLOCK_DEVICE => {
            let (major, minor) = device(d)?;
            Content::BlockDevice { major, minor }
        }
        _ => return Err(unsupported("kind", kind)),
    })
}

/// The value of a directory entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// The inode itself.
    Inode(Inode),
    /// An inode too large for the entry.
    Block(Handle<InodeBlock>),
}

impl Entry {
    /// The canonical bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Entry::Inode(inode) => inode.encode(),
            Entry::Block(handle) => {
                let mut e = Encoder::new();
                e.u8(BLOCK).raw(handle.as_bytes());
                e.finish()
            }
        }
    }

    /// Reads canonical bytes.
    ///
    /// # Errors
    /// As [`Inode::decode`].
    pub fn decode(bytes: &[u8]) -> Result<Entry, Reject> {
        if bytes.first() != Some(&BLOCK) {
            return Inode::decode(bytes).map(Entry::Inode);
        }
        let mut d = Decoder::new(bytes, WHAT);
        d.u8()?;
        let handle = Handle::from_bytes(d.array()?);
        d.finish()?;
        Ok(Entry::Block(handle))
    }

    /// The value of the directory entry for `inode` under `name`. When the inode is too large for the entry,
    /// also the block that must be stored.
    pub fn place(
        name: &[u8],
        inode: &Inode,
        hasher: &Hasher,
    ) -> (Vec<u8>, Option<(Handle<InodeBlock>, Bytes)>) {
        let bytes = inode.encode();
        // The entry also has two lengths of at most two bytes each.
        if name.len() + bytes.len() + 4 <= MAX_ENTRY_BYTES {
            return (bytes, None);
        }
        let (handle, block) = hasher.seal::<InodeBlock>(Bytes::from(bytes));
        let value = Entry::Block(handle).encode();
        (value, Some((handle, block.into_bytes())))
    }
}

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
