//! Type and content of a file as an inode holds them: file, directory, symbolic link, device. Relies on
//! [`crate::tree::array`] and [`crate::tree::map`] for the roots that content names.

use bytes::Bytes;

use super::unsupported;
use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::tree::array::ArrayRoot;
use crate::tree::map::MapRoot;

/// Longest content in an inode that lies in a directory's entry, bytes. Publishers store longer content in an
/// array tree, wherever the inode lies.
pub const MAX_INLINE_BYTES: usize = 256;
/// Longest content in an inode that lies in a block of its own, bytes.
pub const MAX_BLOCK_INLINE_BYTES: usize = 4096;
/// Longest target of a symbolic link, bytes (Linux PATH_MAX without the NUL).
pub const MAX_TARGET_BYTES: usize = 4095;

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

/// Content of a regular file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileContent {
    /// No bytes.
    Empty,
    /// 1 to [`MAX_BLOCK_INLINE_BYTES`] bytes, here; in a directory's entry at most [`MAX_INLINE_BYTES`].
    Inline(Bytes),
    /// More than [`MAX_INLINE_BYTES`] bytes, in an array tree.
    Array(ArrayRoot),
}

/// A file's type and content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A file with content.
    Regular(FileContent),
    /// A directory: name → [`Entry`](super::Entry).
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

pub(super) fn kind_byte(content: &Content) -> u8 {
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

pub(super) fn encode(content: &Content, e: &mut Encoder) {
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

/// Reads the content of an inode of kind `kind`. Content of a file in the inode itself has at most
/// `max_inline_bytes`.
pub(super) fn decode(
    kind: u8,
    d: &mut Decoder<'_>,
    max_inline_bytes: usize,
) -> Result<Content, Reject> {
    let device = |d: &mut Decoder<'_>| -> Result<(u32, u32), Reject> {
        let mut number = || d.bounded(u64::from(u32::MAX), "device number over 32 bits");
        Ok((number()? as u32, number()? as u32))
    };
    Ok(match kind {
        EMPTY_FILE => Content::Regular(FileContent::Empty),
        INLINE_FILE => {
            let bytes = d.bytes(max_inline_bytes)?;
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
