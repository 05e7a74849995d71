//! Extensions of an inode: tags from 0x80 with a length, which a reader of another version can skip. A reader
//! keeps them as they are, so an inode that it encodes again has the same bytes. They name no blocks: replicas
//! would not keep those.
//!
//! ```text
//! extension = tag u8 (0x80 to 0xff) | length varint | value
//! ```

use bytes::Bytes;

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;

/// The lowest tag of an extension.
pub const FIRST_EXTENSION: u8 = 0x80;
/// Most extensions of one inode.
pub const MAX_EXTENSIONS: usize = 16;
/// Most bytes that all extensions of one inode take with their tags and lengths.
pub const MAX_EXTENSION_BYTES: usize = 2048;

/// A field of a later bulla that may be ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension {
    /// At least [`FIRST_EXTENSION`].
    pub tag: u8,
    /// Its meaning is not known here.
    pub value: Bytes,
}

pub(super) fn encode(extensions: &[Extension], e: &mut Encoder) {
    for extension in extensions {
        e.u8(extension.tag).bytes(&extension.value);
    }
}

/// Reads the extensions, which end the inode. The tag of the first was read before.
pub(super) fn decode(first: u8, d: &mut Decoder<'_>) -> Result<Vec<Extension>, Reject> {
    if d.remaining() >= MAX_EXTENSION_BYTES {
        return Err(d.bad("extensions over 2,048 bytes"));
    }
    let mut extensions = Vec::new();
    let mut tag = first;
    loop {
        if extensions.len() >= MAX_EXTENSIONS {
            return Err(d.bad("over 16 extensions"));
        }
        let value = Bytes::copy_from_slice(d.bytes(MAX_EXTENSION_BYTES)?);
        extensions.push(Extension { tag, value });
        if d.remaining() == 0 {
            return Ok(extensions);
        }
        let next = d.u8()?;
        if next <= tag {
            return Err(d.bad("tags out of order"));
        }
        tag = next;
    }
}

/// Memory that extensions take, bytes.
pub(super) fn weight_bytes(extensions: &[Extension]) -> usize {
    extensions.iter().fold(0, |sum, extension| {
        sum.saturating_add(size_of::<Extension>())
            .saturating_add(extension.value.len())
    })
}
