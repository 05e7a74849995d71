//! Files that travel between machines: requests, proposals, checkpoints. They appear whole or not at all, and are read within
//! bounds.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

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

/// Refuses to replace a file of another kind, as the key that signs. A link is replaced itself, whatever it leads to.
fn check_replaceable(path: &Path, bytes: &[u8], kind_bytes: usize) -> std::io::Result<()> {
    // Opening a named pipe would wait for its writer.
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path);
    let file = match opened {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) if e.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => return Ok(()),
        file => file?,
    };
    if !file.metadata()?.is_file() {
        return Err(ErrorKind::AlreadyExists.into());
    }
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_files_of_the_same_kind_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        for text in ["old 1\n", "old 2\n"] {
            write_checkpoint(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        fs::write(&path, "another file").unwrap();
        assert!(write_checkpoint(&path, "old 3\n").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "another file");
        // The link is replaced, and not what it leads to.
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        write_checkpoint(&link, "old 3\n").unwrap();
        assert_eq!(fs::read_to_string(&link).unwrap(), "old 3\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "another file");
    }

    #[test]
    fn named_pipe_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || tell.send(write_checkpoint(&path, "old 1\n").is_err()));
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(true));
    }
}
