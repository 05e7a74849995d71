//! Directory entries: the inode itself, or the handle of a block that holds it. Other forms of entry have
//! first bytes of their own; those of shared volumes are reserved and *unsupported* here.

use bytes::Bytes;

use super::content::{Content, FileContent, MAX_INLINE_BYTES};
use super::{Inode, WHAT, unsupported};
use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::handle::{Handle, Hasher, InodeBlock};
use crate::tree::map::MAX_ENTRY_BYTES;

/// First byte of an entry that names a block.
const BLOCK: u8 = 0xff;
/// First byte of an entry of a shared volume, which names a principal and an i-number.
const SHARED: u8 = 0xf0;
/// The last first byte that is reserved for other forms of entry.
const LAST_RESERVED: u8 = 0xfe;

/// The value of a directory entry.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "one at a time, while an entry is read"
)]
pub enum Entry {
    /// The inode itself.
    Inode(Inode),
    /// The block of an inode that is too large for the entry.
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
    /// As [`Inode::decode`]; [`Reject::Unsupported`] for another form of entry.
    pub fn decode(bytes: &[u8]) -> Result<Entry, Reject> {
        Entry::decode_within(bytes, MAX_INLINE_BYTES)
    }

    /// As [`Entry::decode`], with content of at most `max_inline_bytes` in the inode itself.
    pub fn decode_within(bytes: &[u8], max_inline_bytes: usize) -> Result<Entry, Reject> {
        match bytes.first() {
            Some(&BLOCK) => {}
            Some(&form @ SHARED..=LAST_RESERVED) => {
                return Err(unsupported("form of entry", form));
            }
            _ => return Inode::decode_within(bytes, max_inline_bytes).map(Entry::Inode),
        }
        let mut d = Decoder::new(bytes, WHAT);
        d.u8()?;
        let handle = Handle::from_bytes(d.array()?);
        d.finish()?;
        Ok(Entry::Block(handle))
    }

    /// The value of the directory entry for `inode` under `name`. When the inode or its content is
    /// too large for the entry, also the block that must be stored.
    pub fn place(
        name: &[u8],
        inode: &Inode,
        hasher: &Hasher,
    ) -> (Vec<u8>, Option<(Handle<InodeBlock>, Bytes)>) {
        Entry::place_within(name, inode, hasher, MAX_INLINE_BYTES)
    }

    /// As [`Entry::place`], with content of at most `max_inline_bytes` in the inode itself.
    pub fn place_within(
        key: &[u8],
        inode: &Inode,
        hasher: &Hasher,
        max_inline_bytes: usize,
    ) -> (Vec<u8>, Option<(Handle<InodeBlock>, Bytes)>) {
        let bytes = inode.encode();
        let is_long = matches!(&inode.content,
            Content::Regular(FileContent::Inline(content)) if content.len() > max_inline_bytes);
        // The entry also has two lengths of at most two bytes each.
        if !is_long && key.len() + bytes.len() + 4 <= MAX_ENTRY_BYTES {
            return (bytes, None);
        }
        let (handle, block) = hasher.seal::<InodeBlock>(Bytes::from(bytes));
        let value = Entry::Block(handle).encode();
        (value, Some((handle, block.into_bytes())))
    }
}
