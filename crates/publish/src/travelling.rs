//! Files that travel between machines: requests, proposals, checkpoints. They appear whole or not at all, and are read within
//! bounds.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

use crate::publish_error::PublishError;

/// First bytes of a file of this program that say what it holds.
const MAGIC_BYTES: usize = 8;
/// The same of a checkpoint for witnesses, which is a text.
const CHECKPOINT_BYTES: usize = 4;

/// Writes a file that travels between machines. It appears whole or not at all. It replaces only a file of its own kind.
///
/// # Errors
/// [`PublishError::RequestFile`].
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<u64, PublishError> {
    write(path, bytes, MAGIC_BYTES)
}

/// The same for a checkpoint for witnesses.
///
/// # Errors
/// [`PublishError::RequestFile`].
pub fn write_checkpoint(path: &Path, text: &str) -> Result<u64, PublishError> {
    write(path, text.as_bytes(), CHECKPOINT_BYTES)
}

fn write(path: &Path, bytes: &[u8], kind_bytes: usize) -> Result<u64, PublishError> {
    let failed = |source| PublishError::RequestFile {
        path: path.to_owned(),
        source,
    };
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    let temporary = Path::new(&name);
    let write = || -> std::io::Result<()> {
        // The directory may be on a stick that a stranger has used: a link in place of the file is removed,
        // not followed.
        check_replaceable(path, bytes, kind_bytes)?;
        if fs::symlink_metadata(temporary).is_ok() {
            fs::remove_file(temporary)?;
        }
        let mut file = File::create_new(temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(temporary, path)
    };
    write().map_err(failed)?;
    Ok(bytes.len() as u64)
}

/// Refuses to replace a file of another kind, as the key that signs.
fn check_replaceable(path: &Path, bytes: &[u8], kind_bytes: usize) -> std::io::Result<()> {
    let file = match File::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    let mut begins = Vec::new();
    file.take(kind_bytes as u64).read_to_end(&mut begins)?;
    match begins.is_empty() || bytes.get(..kind_bytes) == Some(begins.as_slice()) {
        true => Ok(()),
        false => Err(ErrorKind::AlreadyExists.into()),
    }
}

/// Reads a file of at most `most_bytes`; of a longer one, one byte more, so that its decoder notices.
///
/// # Errors
/// [`PublishError::RequestFile`].
pub fn read_file(path: &Path, most_bytes: usize) -> Result<Vec<u8>, PublishError> {
    let failed = |source| PublishError::RequestFile {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    let mut file = file.take(most_bytes as u64 + 1);
    file.read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}
