//! Directories of mode 0700 and files of mode 0600, because other users must not see what a user reads or
//! which statements a publisher has signed. Files and directories that older versions made more open are
//! closed when they are used, if they belong to this user.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::error::{StateError, failed};

const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Makes `path` and its missing parents, durably.
///
/// # Errors
/// [`StateError::Failed`].
pub fn create_directory(path: &Path) -> Result<(), StateError> {
    let mut missing = Vec::new();
    let above = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    for directory in path.ancestors().take_while(above) {
        missing.push(directory);
    }
    for directory in missing.into_iter().rev() {
        match DirBuilder::new().mode(DIRECTORY_MODE).create(directory) {
            Ok(()) => {}
            // Another process made it first.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed(directory, e)),
        }
        // Otherwise a power failure could remove the directory, and the floor with it.
        sync_parent(directory)?;
    }
    Ok(())
}

/// Replaces a file as a whole: write, fsync, rename, fsync.
///
/// # Errors
/// [`StateError::Failed`]; the file has its old content or the new one.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    replace_with(path, |file| file.write_all(bytes))
}

/// As [`replace`], with what `content` writes.
///
/// # Errors
/// As [`replace`].
pub fn replace_with(
    path: &Path,
    content: impl FnOnce(&mut File) -> std::io::Result<()>,
) -> Result<(), StateError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let write = || -> std::io::Result<()> {
        let mut file = create_file(Path::new(&temporary))?;
        content(&mut file)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|e| failed(path, e))?;
    sync_parent(path)
}

/// Makes the entry of `path` in its directory durable.
///
/// # Errors
/// [`StateError::Failed`].
pub fn sync_parent(path: &Path) -> Result<(), StateError> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => return Ok(()),
    };
    let synced = File::open(parent).and_then(|parent| parent.sync_all());
    synced.map_err(|e| failed(parent, e))
}

/// Removes the rights of other users from `path`, if it exists and belongs to this user.
pub(crate) fn tighten(path: &Path) -> Result<(), StateError> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed(path, e)),
    };
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if !is_ours || metadata.mode() & 0o077 == 0 {
        return Ok(());
    }
    let mode = metadata.mode() & DIRECTORY_MODE;
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(|e| failed(path, e))
}

/// Opens a file for reading and writing, or creates it; keeps its content.
///
/// # Errors
/// [`StateError::Failed`].
pub fn open_file(path: &Path) -> Result<File, StateError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options
        .mode(FILE_MODE)
        .open(path)
        .map_err(|e| failed(path, e))
}

/// Creates a new file. Removes a file that an interrupted process left at this path, because its mode may be
/// wrong.
pub(crate) fn create_file(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create_new(true)
        .mode(FILE_MODE);
    match options.open(path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            options.open(path)
        }
        opened => opened,
    }
}
