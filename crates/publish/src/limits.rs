//! What no reader takes is refused before anything is signed: `docs/formats/limits.md` has the table. The format
//! itself bounds names, targets, sizes and attributes (`trust::inode`); what readers bound beyond that is here.

use bytes::Bytes;
use trust::inode::{Entry, Inode};
use trust::reach::MAX_COMPONENTS;

use crate::publish_error::Unreadable;

/// Names in a path, at most: readers look up no more, and a proof of a path holds no more.
pub(crate) const MAX_PATH_NAMES: usize = MAX_COMPONENTS;
/// Longest path, bytes (Linux PATH_MAX without the NUL).
pub(crate) const MAX_PATH_BYTES: usize = 4095;
/// The names of all extended attributes of a file, each with a NUL, bytes: Linux lists 64 KiB, and a mount adds some.
const MAX_XATTR_NAMES_BYTES: usize = 63 << 10;

/// Refuses a path of so many bytes and names.
pub(crate) fn check_path(bytes: usize, names: usize) -> Result<(), Unreadable> {
    if names > MAX_PATH_NAMES {
        return Err(Unreadable::TooDeep);
    }
    if bytes > MAX_PATH_BYTES {
        return Err(Unreadable::LongPath);
    }
    Ok(())
}

/// Refuses a list of attributes that the system, or a reader, would not take.
pub(crate) fn check_xattrs(list: &[(Bytes, Bytes)]) -> Result<(), Unreadable> {
    if list.is_empty() {
        return Ok(());
    }
    if list.iter().map(|(name, _)| name.len() + 1).sum::<usize>() > MAX_XATTR_NAMES_BYTES {
        return Err(Unreadable::LongAttributeNames);
    }
    trust::inode::decode_xattrs(&trust::inode::encode_xattrs(list))?;
    Ok(())
}

/// Refuses an entry that readers would refuse: `value` in its directory, and the block of a large inode.
pub(crate) fn check_entry(value: &[u8], block: Option<&[u8]>) -> Result<(), Unreadable> {
    Entry::decode(value)?;
    block.map(Inode::decode).transpose()?;
    Ok(())
}
