//! Functions for small files on a [`Disk`]: read a whole file with a bound, replace a file in one
//! durable step, and make errors that name the file.

use std::path::PathBuf;

use bytes::Bytes;

use super::Disk;
use crate::error::StoreError;

/// The error about a file.
pub fn io_error(disk: &dyn Disk, name: &str, source: std::io::Error) -> StoreError {
    let path: PathBuf = disk.path(name);
    StoreError::Io { path, source }
}

/// The error about a file that breaks a rule of its format.
pub fn damaged(disk: &dyn Disk, name: &str, why: &str) -> StoreError {
    StoreError::Damaged {
        path: disk.path(name),
        why: why.to_owned(),
    }
}

/// Reads a whole file. A file longer than `max_bytes` is damaged.
///
/// # Errors
/// [`StoreError::Io`], [`StoreError::Damaged`].
pub fn read_whole(disk: &dyn Disk, name: &str, max_bytes: usize) -> Result<Vec<u8>, StoreError> {
    let fail = |e| io_error(disk, name, e);
    let file = disk.open(name).map_err(fail)?;
    let len = file.len_bytes().map_err(fail)?;
    if len > max_bytes as u64 {
        return Err(damaged(disk, name, "longer than this file can be"));
    }
    let mut bytes = vec![0; len as usize];
    let read = file.read_at(&mut bytes, 0).map_err(fail)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Replaces the file `name` in one durable step: after a crash it is the old file or the new one.
///
/// # Errors
/// [`StoreError::Io`].
pub fn replace_file(
    disk: &dyn Disk,
    name: &str,
    temporary: &str,
    dir: &str,
    bytes: &[u8],
) -> Result<(), StoreError> {
    write_aside(disk, name, temporary, bytes)?;
    disk.sync_dir(dir).map_err(|e| io_error(disk, dir, e))
}

/// Like [`replace_file`], but the caller must sync the directory to make the new name durable.
pub(crate) fn write_aside(
    disk: &dyn Disk,
    name: &str,
    temporary: &str,
    bytes: &[u8],
) -> Result<(), StoreError> {
    let write = || {
        let file = disk.create(temporary)?;
        file.write_at(bytes, 0)?;
        file.sync()
    };
    write().map_err(|e| io_error(disk, temporary, e))?;
    disk.rename(temporary, name)
        .map_err(|e| io_error(disk, name, e))
}

/// Reads a file of at most `max_bytes`, if it is there.
///
/// # Errors
/// Those of [`read_whole`].
pub fn read_file(
    disk: &dyn Disk,
    name: &str,
    max_bytes: usize,
) -> Result<Option<Bytes>, StoreError> {
    match read_whole(disk, name, max_bytes) {
        Ok(bytes) => Ok(Some(bytes.into())),
        Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}
