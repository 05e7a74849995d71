//! Where the contests are held: directories, sizes, the binary under test.
//!
//! Everything lies below one work directory: `data/` (kept between runs), `results/` (kept),
//! `run/` (emptied at the start of every run: repositories, mounts, keys, logs of this run).

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::mounts;

/// How large the workloads are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// The papers' and the sizes.
    Full,
    /// Small sizes and few rounds: shows in a minute that every part works, and nothing else.
    Quick,
}

/// The place and the scale of a run.
#[derive(Debug, Clone)]
pub struct Field {
    work: PathBuf,
    /// How large the workloads are.
    pub scale: Scale,
    bulla: PathBuf,
    rounds: Option<u32>,
}

impl Field {
    /// Takes a work directory, which is made if there is none.
    pub fn new(work: &Path, scale: Scale, bulla: &Path) -> Result<Field> {
        fs::create_dir_all(work).with_context(|| format!("creating {}", work.display()))?;
        Ok(Field {
            work: work.canonicalize()?,
            scale,
            bulla: bulla.to_owned(),
            rounds: None,
        })
    }

    /// Keeps other runs out and clears what an earlier one has left.
    ///
    /// # Errors
    /// When another run holds the directory: two at once would measure each other.
    pub fn claim(&self) -> Result<Claim> {
        let path = self.work.join("lock");
        let lock = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("another run is at work in {}", self.work.display());
        }
        let run = self.work.join("run");
        mounts::clear(&run)?;
        if run.exists() {
            fs::remove_dir_all(&run).context("clearing what an earlier run left")?;
        }
        fs::create_dir_all(&run)?;
        fs::create_dir_all(self.data())?;
        Ok(Claim { _lock: lock })
    }

    /// The work directory; whatever a contestant writes is on the same disk.
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// Data sets, kept between runs.
    pub fn data(&self) -> PathBuf {
        self.work.join("data")
    }

    /// A fresh empty directory of this run.
    pub fn fresh(&self, name: &str) -> Result<PathBuf> {
        let dir = self.work.join("run").join(name);
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
        }
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        Ok(dir)
    }

    /// Where a daemon's words go.
    pub fn log(&self, name: &str) -> PathBuf {
        self.work.join("run/logs").join(name)
    }

    /// The result of a figure. Quick ones lie apart: they are no measurements.
    pub fn result_path(&self, figure: u8) -> PathBuf {
        let dir = match self.scale {
            Scale::Full => "results",
            Scale::Quick => "results-quick",
        };
        self.work.join(dir).join(format!("figure-{figure:02}.json"))
    }

    /// The binary under test.
    ///
    /// # Errors
    /// Where it has not been built.
    pub fn bulla(&self) -> Result<&Path> {
        if !self.bulla.is_file() {
            bail!(
                "no binary at {}: build it with `cargo build --release -p bulla`",
                self.bulla.display()
            );
        }
        Ok(&self.bulla)
    }

    /// The first of a pair at full scale, the second at the quick one.
    pub fn pick<T>(&self, (full, quick): (T, T)) -> T {
        match self.scale {
            Scale::Full => full,
            Scale::Quick => quick,
        }
    }

    /// Rounds, likewise, unless the user has asked for a number of them.
    pub fn rounds(&self, rounds: (u32, u32)) -> u32 {
        self.rounds.unwrap_or_else(|| self.pick(rounds))
    }

    /// The same with so many rounds of every figure.
    pub fn with_rounds(self, rounds: Option<u32>) -> Field {
        Field { rounds, ..self }
    }
}

/// The right to run in a work directory, until it is dropped.
pub struct Claim {
    _lock: File,
}

/// Bytes that a directory takes on the disk, all files counted by their blocks.
pub fn disk_bytes(dir: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let meta = fs::symlink_metadata(dir).with_context(|| format!("{}", dir.display()))?;
    let mut total = meta.blocks().saturating_mul(512);
    if meta.is_dir() {
        for entry in fs::read_dir(dir)? {
            total = total.saturating_add(disk_bytes(&entry?.path())?);
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_run_is_kept_out_and_a_later_one_finds_a_clean_place() {
        let dir = tempfile::tempdir().unwrap();
        let field = Field::new(dir.path(), Scale::Quick, Path::new("bulla")).unwrap();
        let claim = field.claim().unwrap();
        fs::write(field.fresh("left").unwrap().join("over"), "x").unwrap();
        assert!(field.claim().is_err());
        drop(claim);
        let _claim = field.claim().unwrap();
        assert!(!dir.path().join("run/left").exists());
    }

    #[test]
    fn a_hole_takes_no_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let before = disk_bytes(dir.path()).unwrap();
        let file = File::create(dir.path().join("hole")).unwrap();
        file.set_len(1 << 30).unwrap();
        assert_eq!(disk_bytes(dir.path()).unwrap(), before);
        fs::write(dir.path().join("full"), vec![1; 100_000]).unwrap();
        assert!(disk_bytes(dir.path()).unwrap() >= before + 100_000 - 4096);
    }
}
