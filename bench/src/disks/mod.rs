//! Block devices under test (figures 40 to 47): how each is brought up, and what runs on it.
//!
//! A contestant of these figures is a [`Disk`]: a file on the work directory's disk that becomes a block
//! device, either as it is ([`crate::loops`]) or protected by bulla ([`protected`]). Each measurement starts
//! with a new file that was written once, so that no contestant pays for allocating space below it and
//! none keeps a state of the round before. Guards take everything down, also after an error.

pub mod ext4;
pub mod fio;
pub mod integrity;
pub mod postmark;
pub mod protected;
pub mod slow;
pub mod tree;
pub mod uml;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::loops::Loop;
use protected::{Attached, Protected};
use slow::Slow;

/// Bytes of one write to a new image.
const CHUNK_BYTES: usize = 1 << 20;

/// What the blocks of a new image hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Zeros, written and not holes: the state of a disk after a trim.
    Zeros,
    /// Bytes that are not zero and that repeat nowhere.
    Random,
    /// A hole, except for one random block of 4 KiB at the beginning of each mebibyte.
    Scattered,
    /// One hole.
    Hole,
}

/// A block device under test, not yet brought up.
pub enum Disk {
    /// A loop device over the file, with direct I/O.
    Plain(PathBuf),
    /// The file, protected.
    Protected(Protected),
}

impl Disk {
    /// The file that holds the data.
    pub fn image(&self) -> &Path {
        match self {
            Disk::Plain(image) => image,
            Disk::Protected(protected) => &protected.image,
        }
    }

    /// Makes the file anew; a protected one is enrolled.
    pub fn renew(&self, bytes: u64, content: Content) -> Result<()> {
        image(self.image(), bytes, content)?;
        match self {
            Disk::Plain(_) => Ok(()),
            Disk::Protected(protected) => protected.enrol(),
        }
    }

    /// Brings the device up. Nothing of an earlier time is cached.
    pub fn up(&self) -> Result<Up> {
        drop_pages(self.image())?;
        Ok(match self {
            Disk::Plain(image) => Up::Plain(Loop::over(image)?),
            Disk::Protected(protected) => Up::Protected(Box::new(protected.attach()?)),
        })
    }

    /// Brings it up with an anchor in its default mode, if it is protected.
    pub fn up_anchored(&self) -> Result<Up> {
        match self {
            Disk::Plain(_) => self.up(),
            Disk::Protected(protected) => {
                drop_pages(self.image())?;
                let attached = protected.with_anchor()?.attach()?;
                Ok(Up::Protected(Box::new(attached)))
            }
        }
    }

    /// Brings it up with files that are slow ([`Slow`]).
    pub fn up_slowly(&self) -> Result<SlowUp> {
        drop_pages(self.image())?;
        let show = |file: &Path, name: &str| Slow::over(file, &file.with_file_name(name));
        let image = show(self.image(), "slow-image")?;
        Ok(match self {
            Disk::Plain(_) => SlowUp {
                up: Up::Plain(Loop::over(image.file())?),
                files: vec![image],
            },
            Disk::Protected(protected) => {
                drop_pages(&protected.log)?;
                let log = show(&protected.log, "slow-log")?;
                let slow = protected.with_files(image.file(), log.file());
                SlowUp {
                    up: Up::Protected(Box::new(slow.attach()?)),
                    files: vec![image, log],
                }
            }
        })
    }
}

/// A device that is up until this is dropped.
pub enum Up {
    /// A loop device.
    Plain(Loop),
    /// A protected one.
    Protected(Box<Attached>),
}

impl Up {
    /// The block device.
    pub fn path(&self) -> &Path {
        match self {
            Up::Plain(device) => device.path(),
            Up::Protected(attached) => attached.path(),
        }
    }

    /// Takes it down: afterwards all that was written is in the file.
    ///
    /// # Errors
    /// If it cannot be taken down.
    pub fn down(self) -> Result<()> {
        match self {
            Up::Plain(device) => device.detach(),
            Up::Protected(attached) => attached.detach(),
        }
    }
}

/// A device that is up on slow files until this is dropped.
pub struct SlowUp {
    up: Up,
    // Dropped after the device.
    files: Vec<Slow>,
}

impl SlowUp {
    /// The block device.
    pub fn path(&self) -> &Path {
        self.up.path()
    }

    /// Takes it down.
    ///
    /// # Errors
    /// As [`Up::down`].
    pub fn down(self) -> Result<()> {
        self.up.down()?;
        drop(self.files);
        Ok(())
    }
}

/// Makes a file of this content. It is on the disk when this returns.
pub fn image(path: &Path, bytes: u64, content: Content) -> Result<()> {
    if path.exists() {
        fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
    }
    let mut file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    match content {
        Content::Zeros | Content::Random => {
            let mut source = blake3::Hasher::new().update(b"image").finalize_xof();
            let mut chunk = vec![0; CHUNK_BYTES];
            for _ in 0..bytes / u64::try_from(CHUNK_BYTES)? {
                if content == Content::Random {
                    source.fill(&mut chunk);
                }
                file.write_all(&chunk)?;
            }
        }
        Content::Scattered => {
            file.set_len(bytes)?;
            let mut source = blake3::Hasher::new().update(b"scattered").finalize_xof();
            let mut block = [0; 4096];
            for offset in (0..bytes).step_by(CHUNK_BYTES) {
                source.fill(&mut block);
                file.write_all_at(&block, offset)?;
            }
        }
        Content::Hole => file.set_len(bytes)?,
    }
    file.sync_all().context("syncing an image")?;
    drop_pages(path)
}

/// Drops a file's pages from the page cache.
pub fn drop_pages(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).context("fadvise")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn images_have_the_content_that_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let bytes = 3 << 20;
        let made = |content| {
            image(&path, bytes, content).unwrap();
            let held = fs::metadata(&path).unwrap().blocks() * 512;
            (fs::read(&path).unwrap(), held)
        };
        let zeros = vec![0; 3 << 20];

        let (read, held) = made(Content::Zeros);
        assert!(read == zeros && held >= bytes);
        let (read, held) = made(Content::Hole);
        assert!(read == zeros && held == 0, "{held}");
        let (read, _) = made(Content::Random);
        assert_eq!(read.len(), zeros.len());
        let blocks: std::collections::HashSet<_> = read.chunks(4096).collect();
        assert_eq!(blocks.len(), read.len() / 4096);
        let (read, held) = made(Content::Scattered);
        assert!(held < bytes, "{held}");
        for mebibyte in read.chunks(1 << 20) {
            let (block, hole) = mebibyte.split_at(4096);
            assert!(block != &zeros[..4096] && hole == &zeros[..hole.len()]);
        }
    }
}
