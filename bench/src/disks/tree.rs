//! A hierarchy of small files: create, write, read and delete (section 6.1 of the PFS paper).
//!
//! No directory has more than 50 files. Each phase ends when everything is on the disk.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

/// Most files of a directory.
const FILES_IN_DIRECTORY: u64 = 50;

/// Files of one size.
#[derive(Debug, Clone, Copy)]
pub struct Tree {
    /// Bytes of each file.
    pub file_bytes: u64,
    /// Number of files.
    pub files: u64,
}

impl Tree {
    /// As many files of this size as hold `total_bytes`.
    pub fn of(file_bytes: u64, total_bytes: u64) -> Tree {
        Tree {
            file_bytes,
            files: total_bytes / file_bytes,
        }
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files * self.file_bytes
    }

    /// Creates directories and files. Returns the seconds.
    pub fn create(&self, root: &Path) -> Result<f64> {
        let content = self.content(1)?;
        on_disk(root, || {
            self.each(root, |path, first| {
                if let (true, Some(dir)) = (first, path.parent()) {
                    fs::create_dir_all(dir)?;
                }
                Ok(File::create_new(path)?.write_all(&content)?)
            })
        })
    }

    /// Writes over the files. Returns the seconds.
    pub fn write(&self, root: &Path) -> Result<f64> {
        let content = self.content(2)?;
        on_disk(root, || {
            self.each(root, |path, _| {
                let mut file = OpenOptions::new().write(true).open(path)?;
                Ok(file.write_all(&content)?)
            })
        })
    }

    /// Reads the files whole. Returns the seconds.
    ///
    /// # Errors
    /// Also if a file does not have what was written last.
    pub fn read(&self, root: &Path) -> Result<f64> {
        let content = self.content(2)?;
        let mut read = Vec::with_capacity(content.len() + 1);
        on_disk(root, || {
            self.each(root, |path, _| {
                read.clear();
                File::open(path)?.read_to_end(&mut read)?;
                ensure!(read == content, "wrong content");
                Ok(())
            })
        })
    }

    /// Deletes the files. Returns the seconds.
    pub fn delete(&self, root: &Path) -> Result<f64> {
        on_disk(root, || {
            self.each(root, |path, _| Ok(fs::remove_file(path)?))
        })
    }

    /// Content that the device under test cannot take for zeros.
    fn content(&self, version: u8) -> Result<Vec<u8>> {
        let mut content = vec![0; usize::try_from(self.file_bytes)?];
        blake3::Hasher::new()
            .update(&[version])
            .finalize_xof()
            .fill(&mut content);
        Ok(content)
    }

    /// Calls `work` with each path, and whether it is the first of its directory.
    fn each(&self, root: &Path, mut work: impl FnMut(&Path, bool) -> Result<()>) -> Result<()> {
        for number in 0..self.files {
            let path = self.path(root, number);
            work(&path, number % FILES_IN_DIRECTORY == 0)
                .with_context(|| format!("{}", path.display()))?;
        }
        Ok(())
    }

    fn path(&self, root: &Path, number: u64) -> PathBuf {
        let dir = format!("{}-{}", self.file_bytes, number / FILES_IN_DIRECTORY);
        root.join(dir).join(number.to_string())
    }
}

/// The seconds until `work` is done and the file system has everything on the disk.
fn on_disk(root: &Path, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let disk = File::open(root).context("opening the root")?;
    let start = Instant::now();
    work()?;
    rustix::fs::syncfs(&disk).context("syncfs")?;
    Ok(start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_do_what_they_say() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::of(1 << 10, 120 << 10);
        assert_eq!((tree.files, tree.bytes()), (120, 120 << 10));
        assert!(tree.read(dir.path()).is_err());
        tree.create(dir.path()).unwrap();
        // The first content must not pass for the second.
        assert!(tree.read(dir.path()).is_err());
        tree.write(dir.path()).unwrap();
        assert!(tree.read(dir.path()).unwrap() > 0.0);
        let files = crate::dataset::files(dir.path()).unwrap();
        assert_eq!(files.len(), 120);
        for entry in fs::read_dir(dir.path()).unwrap() {
            let count = fs::read_dir(entry.unwrap().path()).unwrap().count();
            assert!(count <= 50, "{count}");
        }
        tree.delete(dir.path()).unwrap();
        assert!(crate::dataset::files(dir.path()).unwrap().is_empty());
    }
}
