//! What no reader takes is refused before anything is signed: `docs/formats/limits.md` has the table. The format
//! itself bounds names, targets, sizes and attributes (`trust::inode`); what readers bound beyond that is here, and for names
//! of attributes in `content::attributes`.

use trust::inode::{Entry, Inode};
use trust::reach::MAX_COMPONENTS;

use crate::publish_error::Unreadable;

/// Names in a path, at most: readers look up no more, and a proof of a path holds no more.
pub(crate) const MAX_PATH_NAMES: usize = MAX_COMPONENTS;
/// Longest path, bytes (Linux PATH_MAX without the NUL).
pub(crate) const MAX_PATH_BYTES: usize = 4095;

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

/// Refuses an entry that readers would refuse: `value` in its directory, and the block of a large inode.
pub(crate) fn check_entry(value: &[u8], block: Option<&[u8]>) -> Result<(), Unreadable> {
    Entry::decode(value)?;
    block.map(Inode::decode).transpose()?;
    Ok(())
}
