//! What programs wrote and the log will not take: at the end of a mount it becomes files of this machine, each with the
//! whole content as its program saw it, so that nothing that was written is gone without a word.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use bulla::edit::Edit;

use super::core::Core;
use super::local::Taken;
use super::nodes::Node;

/// The directory in the home.
pub const UNSENT: &str = "unsent";
/// Bytes that are copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// Content that was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The file in the volume, for people.
    pub path: String,
    /// Where its content is.
    pub at: PathBuf,
    /// Stretches of it could not be read and are zeros there: the volume has them.
    pub lacks: bool,
}

impl Core {
    /// Keeps what is local of a file.
    ///
    /// # Errors
    /// The system's.
    pub async fn keep(&self, node: &Node) -> io::Result<Option<Kept>> {
        let Some(taken) = node.content.last() else {
            return Ok(None);
        };
        let directory = self.volume.home().directory().join(UNSENT);
        std::fs::create_dir_all(&directory)?;
        let path = node.shown();
        let (file, at) = free(&directory, &path)?;
        match self.write_whole(&taken, &file, &path).await {
            Ok(lacks) => Ok(Some(Kept { path, at, lacks })),
            // There is no room for a copy: the local bytes alone, at their offsets.
            Err(error) => {
                tracing::warn!(path, %error, "only what was written is kept, not the whole content");
                taken.spool.keep_as(&at)?;
                let lacks = true;
                Ok(Some(Kept { path, at, lacks }))
            }
        }
    }

    /// Writes the whole content of a file. Gives whether something of it could not be read.
    async fn write_whole(&self, taken: &Taken, file: &File, path: &str) -> io::Result<bool> {
        let local = |offset: u64, into: &mut [u8]| taken.spool.read(offset, into);
        let mut lacks = false;
        let mut offset = 0;
        while let Some((range, from)) = taken.overlay.stretch(offset, u64::MAX) {
            let end = range.end.min(range.start.saturating_add(COPY_BYTES as u64));
            if from != bulla::edit::From::Nowhere {
                let edit = Edit {
                    tree: &self.contents,
                    base: &taken.base,
                    overlay: &taken.overlay,
                    local: &local,
                    how: self.how(),
                };
                match edit.read(range.start, (end - range.start) as usize).await {
                    Ok(bytes) => file.write_all_at(&bytes, range.start)?,
                    Err(error) => {
                        tracing::warn!(path, %error, "a part of what is kept cannot be read");
                        lacks = true;
                    }
                }
                offset = end;
            } else {
                offset = range.end;
            }
        }
        file.set_len(taken.overlay.len())?;
        file.sync_all()?;
        Ok(lacks)
    }
}

/// A new file whose name tells the path.
fn free(directory: &std::path::Path, path: &str) -> io::Result<(File, PathBuf)> {
    let mut name = path.replace('/', "_");
    while name.len() > 200 {
        name.pop();
    }
    for number in 0u32.. {
        let name = match number {
            0 => name.clone(),
            _ => format!("{name}.{number}"),
        };
        let at = directory.join(name);
        match File::options().write(true).create_new(true).open(&at) {
            Ok(file) => return Ok((file, at)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
