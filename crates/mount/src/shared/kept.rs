//! What programs wrote and the log will not take: at the end of a mount it becomes files of this machine, each with the
//! whole content as its program saw it, so that nothing that was written is gone without a word.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use share::writeback::{From, Taken};

use super::core::Core;
use super::spool::Node;
use super::spool::Spool;

/// The directory in the home.
pub const UNSENT: &str = "unsent";
/// Bytes that are copied at a time.
const COPY_BYTES: u64 = 1 << 20;

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
        let Some(taken) = node.cached().taken() else {
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
                taken.bytes.keep_as(&at)?;
                let lacks = true;
                Ok(Some(Kept { path, at, lacks }))
            }
        }
    }

    /// Writes the whole content of a file: what is local first. Gives whether something of the rest could not be read.
    async fn write_whole(
        &self,
        taken: &Taken<Arc<Spool>>,
        file: &File,
        path: &str,
    ) -> io::Result<bool> {
        file.set_len(taken.overlay.len())?;
        for (range, from) in stretches(taken) {
            if from == From::Local {
                let mut bytes = vec![0; (range.end - range.start) as usize];
                taken.bytes.read(range.start, &mut bytes)?;
                file.write_all_at(&bytes, range.start)?;
            }
        }
        file.sync_all()?;
        // One deadline for all of it: the server may be away.
        let how = self.how();
        for (range, from) in stretches(taken) {
            if from != From::Base {
                continue;
            }
            let bytes = (range.end - range.start) as usize;
            let read = self.contents.read(&taken.base, range.start, bytes, how);
            match read.await {
                Ok(pieces) => {
                    let mut at = range.start;
                    for piece in pieces {
                        file.write_all_at(&piece, at)?;
                        at += piece.len() as u64;
                    }
                }
                Err(error) => {
                    tracing::warn!(path, %error, "a part of what is kept cannot be read");
                    return Ok(true);
                }
            }
        }
        file.sync_all()?;
        Ok(false)
    }
}

/// The content in stretches of bounded length.
fn stretches(taken: &Taken<Arc<Spool>>) -> impl Iterator<Item = (Range<u64>, From)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (range, from) = taken.overlay.stretch(at, u64::MAX)?;
        at = match from {
            From::Nowhere => range.end,
            _ => range.end.min(range.start.saturating_add(COPY_BYTES)),
        };
        Some((range.start..at, from))
    })
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
