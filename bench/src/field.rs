//! The setting of a run: directories, sizes, the builds of bulla that take part.
//!
//! Everything is below one work directory: `data/` and `results/` are kept between runs; `run/`
//! (repositories, mounts, keys, logs) is emptied at the start of every run.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::figure::Build;
use crate::{loops, mounts};

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
    before: Option<PathBuf>,
    gate: bool,
    rounds: Option<u32>,
    other_disk: Option<PathBuf>,
}

/// Rounds of a gate: one more than the fewest that can prove a difference ([`crate::stats::interval`]).
const GATE_ROUNDS: u32 = 7;

impl Field {
    /// Uses a work directory; creates it if it does not exist.
    pub fn new(work: &Path, scale: Scale, bulla: &Path) -> Result<Field> {
        fs::create_dir_all(work).with_context(|| format!("creating {}", work.display()))?;
        Ok(Field {
            work: work.canonicalize()?,
            scale,
            bulla: bulla.to_owned(),
            before: None,
            gate: false,
            rounds: None,
            other_disk: None,
        })
    }

    /// Locks the work directory and clears the leftovers of an earlier run.
    ///
    /// # Errors
    /// When another run holds the directory: two at once would measure each other.
    pub fn claim(&self) -> Result<Claim> {
        let path = self.work.join("lock");
        let lock = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("another bulla-bench runs in {}", self.work.display());
        }
        let run = self.work.join("run");
        let left = loops::below(&run)?;
        mounts::clear(&run)?;
        loops::clear(&left)?;
        if run.exists() {
            fs::remove_dir_all(&run).context("removing the files of an earlier run")?;
        }
        fs::create_dir_all(&run)?;
        fs::create_dir_all(self.data())?;
        Ok(Claim { _lock: lock })
    }

    /// The work directory; contestants write to the same disk.
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

    /// The log file of a daemon.
    pub fn log(&self, name: &str) -> PathBuf {
        self.work.join("run/logs").join(name)
    }

    /// The result of a figure. Results at the quick scale are kept separately, because they measure nothing,
    /// and so are those of a gate, because they have no peers.
    pub fn result_path(&self, figure: u8) -> PathBuf {
        let dir = match (self.gate, self.scale) {
            (false, Scale::Full) => "results",
            (false, Scale::Quick) => "results-quick",
            (true, Scale::Full) => "results-gate",
            (true, Scale::Quick) => "results-gate-quick",
        };
        self.work.join(dir).join(format!("figure-{figure:02}.json"))
    }

    /// The binary under test.
    ///
    /// # Errors
    /// If it has not been built.
    pub fn bulla(&self) -> Result<&Path> {
        if !self.bulla.is_file() {
            bail!(
                "no binary at {}: build it with `cargo build --release -p bulla`",
                self.bulla.display()
            );
        }
        Ok(&self.bulla)
    }

    /// The binary of a build.
    ///
    /// # Errors
    /// If the build under test is missing, or the run has no older build.
    pub fn binary(&self, build: Build) -> Result<&Path> {
        match build {
            Build::Now => self.bulla(),
            Build::Before => self.before().context("no older build was given"),
        }
    }

    /// The older build, if it takes part.
    pub fn before(&self) -> Option<&Path> {
        self.before.as_deref()
    }

    /// A directory on another disk, for the log of a protected device.
    pub fn other_disk(&self) -> Option<&Path> {
        self.other_disk.as_deref()
    }

    /// The same with a directory on another disk.
    pub fn with_other_disk(self, other_disk: Option<PathBuf>) -> Field {
        Field { other_disk, ..self }
    }

    /// The builds of bulla that take part.
    pub fn builds(&self) -> Vec<Build> {
        let before = self.before.as_ref().map(|_| Build::Before);
        [Build::Now].into_iter().chain(before).collect()
    }

    /// Whether this is a gate: only builds of bulla run, no peers.
    pub fn gate(&self) -> bool {
        self.gate
    }

    /// The first of a pair at full scale, the second at the quick one.
    pub fn pick<T>(&self, (full, quick): (T, T)) -> T {
        match self.scale {
            Scale::Full => full,
            Scale::Quick => quick,
        }
    }

    /// Rounds at full and at quick scale, unless the user has set a number. A gate has as many as it needs.
    pub fn rounds(&self, rounds: (u32, u32)) -> u32 {
        let least = if self.gate { GATE_ROUNDS } else { 1 };
        self.rounds.unwrap_or_else(|| self.pick(rounds).max(least))
    }

    /// The same with this number of rounds of every figure.
    pub fn with_rounds(self, rounds: Option<u32>) -> Field {
        Field { rounds, ..self }
    }

    /// The same with an older build as another contestant.
    ///
    /// # Errors
    /// If there is no file at its path.
    pub fn with_before(self, before: Option<PathBuf>) -> Result<Field> {
        if let Some(path) = before.as_ref().filter(|path| !path.is_file()) {
            bail!("no binary at {} (--before)", path.display());
        }
        // A daemon starts in another directory, where a relative path would be wrong.
        let before = before.map(|path| path.canonicalize()).transpose()?;
        Ok(Field { before, ..self })
    }

    /// The same for a gate.
    ///
    /// # Errors
    /// Without an older build, or with fewer rounds than can prove a difference.
    pub fn for_gate(self) -> Result<Field> {
        ensure!(self.before.is_some(), "a gate needs --before PATH");
        let rounds = self.rounds.unwrap_or(GATE_ROUNDS);
        ensure!(
            rounds >= GATE_ROUNDS - 1,
            "a gate needs at least {} rounds",
            GATE_ROUNDS - 1
        );
        Ok(Field { gate: true, ..self })
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
    fn second_run_is_refused_and_a_later_one_starts_clean() {
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
    fn gate_needs_an_older_build_and_enough_rounds() {
        let dir = tempfile::tempdir().unwrap();
        let older = dir.path().join("older");
        let field = || Field::new(dir.path(), Scale::Quick, Path::new("bulla")).unwrap();
        assert!(field().for_gate().is_err());
        assert!(field().with_before(Some(older.clone())).is_err());
        assert_eq!(field().builds(), [Build::Now]);
        assert!(field().binary(Build::Before).is_err());

        fs::write(&older, "").unwrap();
        let both = || field().with_before(Some(older.clone())).unwrap();
        assert_eq!(both().builds(), [Build::Now, Build::Before]);
        assert_eq!(both().rounds((20, 1)), 1);
        assert!(both().with_rounds(Some(5)).for_gate().is_err());
        let few = both().with_rounds(Some(6)).for_gate().unwrap();
        assert_eq!(few.rounds((20, 1)), 6);
        let gate = both().for_gate().unwrap();
        assert_eq!(gate.rounds((20, 1)), 7);
        assert_ne!(gate.result_path(1), both().result_path(1));
    }

    #[test]
    fn hole_uses_no_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let before = disk_bytes(dir.path()).unwrap();
        let file = File::create(dir.path().join("hole")).unwrap();
        file.set_len(1 << 30).unwrap();
        assert_eq!(disk_bytes(dir.path()).unwrap(), before);
        fs::write(dir.path().join("full"), vec![1; 100_000]).unwrap();
        assert!(disk_bytes(dir.path()).unwrap() >= before + 100_000 - 4096);
    }
}
