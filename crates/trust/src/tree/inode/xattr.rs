//! Extended attributes: lists of name and value, sorted by name. Short lists are stored in the inode, long
//! ones in an array tree. Relies on [`crate::tree::array`]. The bounds are Linux's.
//!
//! ```text
//! list = count varint | { name length varint | name | value length varint | value } * count
//! ```

use bytes::Bytes;

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::tree::array::ArrayRoot;

/// Longest list that is stored in the inode, bytes.
pub const MAX_INLINE_XATTR_BYTES: usize = 1024;
/// Longest list, bytes.
pub const MAX_XATTR_LIST_BYTES: usize = 1 << 20;
/// Longest value, bytes.
pub const MAX_XATTR_VALUE_BYTES: usize = 64 << 10;

const MAX_NAME_BYTES: usize = 255;
const WHAT: &str = "list of extended attributes";
/// Names that a mount answers itself; a publisher must not be able to forge them.
const RESERVED: &[u8] = b"user.bulla.";

/// Where the extended attributes of an inode are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Xattrs {
    /// There are none.
    None,
    /// Name and value, sorted by name; at most [`MAX_INLINE_XATTR_BYTES`] encoded.
    Inline(Vec<(Bytes, Bytes)>),
    /// A longer list, encoded by [`encode_xattrs`], as the content of an array tree.
    Stored(ArrayRoot),
}

/// Encodes a list, which must be sorted by name.
pub fn encode_xattrs(list: &[(Bytes, Bytes)]) -> Vec<u8> {
    let mut e = Encoder::new();
    e.varint(list.len() as u64);
    for (name, value) in list {
        e.bytes(name).bytes(value);
    }
    e.finish()
}

/// Reads a list.
///
/// # Errors
/// [`Reject::Malformed`] for an empty or unsorted list, a name that comes twice, a list beyond Linux's
/// bounds, a NUL in a name, and names that begin with `user.bulla.`.
pub fn decode_xattrs(bytes: &[u8]) -> Result<Vec<(Bytes, Bytes)>, Reject> {
    let mut d = Decoder::new(bytes, WHAT);
    if bytes.len() > MAX_XATTR_LIST_BYTES {
        return Err(d.bad("over 1 MiB"));
    }
    // An attribute takes at least three bytes.
    let count = d.bounded(bytes.len() as u64 / 3, "more attributes than bytes")?;
    if count == 0 {
        return Err(d.bad("empty"));
    }
    let mut list: Vec<(Bytes, Bytes)> = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let name = d.bytes(MAX_NAME_BYTES)?;
        if name.is_empty() || name.contains(&0) || name.starts_with(RESERVED) {
            return Err(d.bad("impossible name"));
        }
        if list
            .last()
            .is_some_and(|(before, _)| before.as_ref() >= name)
        {
            return Err(d.bad("names not sorted"));
        }
        let value = d.bytes(MAX_XATTR_VALUE_BYTES)?;
        list.push((Bytes::copy_from_slice(name), Bytes::copy_from_slice(value)));
    }
    d.finish()?;
    Ok(list)
}

/// Memory that a list takes, bytes.
pub(super) fn weight_bytes(list: &[(Bytes, Bytes)]) -> usize {
    list.iter().fold(0, |sum, (name, value)| {
        sum.saturating_add(size_of::<(Bytes, Bytes)>())
            .saturating_add(name.len())
            .saturating_add(value.len())
    })
}

pub(super) fn decode_inline(d: &mut Decoder<'_>) -> Result<Xattrs, Reject> {
    Ok(Xattrs::Inline(decode_xattrs(
        d.bytes(MAX_INLINE_XATTR_BYTES)?,
    )?))
}

pub(super) fn decode_stored(d: &mut Decoder<'_>) -> Result<Xattrs, Reject> {
    let root = ArrayRoot::decode(d)?;
    let possible = MAX_INLINE_XATTR_BYTES as u64 + 1..=MAX_XATTR_LIST_BYTES as u64;
    if !possible.contains(&root.len) {
        return Err(d.bad("stored attributes of impossible length"));
    }
    Ok(Xattrs::Stored(root))
}
