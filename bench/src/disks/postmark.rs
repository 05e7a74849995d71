//! PostMark: the load of a mail server (J. Katcher, 1997; section 6.2.1 of the PFS paper).
//!
//! A pool of small files is made. Each transaction then creates or deletes a file, and reads a whole file
//! or appends to one; at the end the pool is deleted. The choices come from a fixed seed, so each
//! contestant does exactly the same.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

/// Sizes of new files, bytes, as in the paper.
const SIZES: std::ops::RangeInclusive<u64> = 512..=16 << 10;
/// Bytes of one read or write, PostMark's default.
const BUFFER_BYTES: usize = 4096;
/// Directories of the pool.
const DIRECTORIES: u64 = 50;

/// How much is done.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Files in the pool.
    pub files: u64,
    /// Transactions.
    pub transactions: u64,
}

/// What was done, and how long it took.
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    /// Seconds of the transactions, until all of them are on the disk.
    pub transactions_s: f64,
    /// Files created, deleted, read and appended to.
    pub counts: [u64; 4],
}

/// Runs the load below an empty directory.
pub fn run(dir: &Path, load: Load) -> Result<Done> {
    let disk = File::open(dir).context("opening the directory")?;
    let mut pool = Pool::new(dir)?;
    for _ in 0..load.files {
        pool.create()?;
    }
    rustix::fs::syncfs(&disk).context("syncfs")?;
    pool.counts = [0; 4];
    let start = Instant::now();
    for _ in 0..load.transactions {
        match pool.dice.below(2) {
            0 => pool.create()?,
            _ => pool.delete()?,
        }
        match pool.dice.below(2) {
            0 => pool.read()?,
            _ => pool.append()?,
        }
    }
    rustix::fs::syncfs(&disk).context("syncfs")?;
    let transactions_s = start.elapsed().as_secs_f64();
    let counts = pool.counts;
    while !pool.names.is_empty() {
        pool.delete()?;
    }
    Ok(Done {
        transactions_s,
        counts,
    })
}

/// The files that exist.
struct Pool {
    dir: PathBuf,
    names: Vec<u64>,
    made: u64,
    dice: Dice,
    buffer: Vec<u8>,
    counts: [u64; 4],
}

impl Pool {
    fn new(dir: &Path) -> Result<Pool> {
        for directory in 0..DIRECTORIES {
            fs::create_dir(dir.join(directory.to_string()))?;
        }
        let mut buffer = vec![0; BUFFER_BYTES];
        blake3::Hasher::new().finalize_xof().fill(&mut buffer);
        Ok(Pool {
            dir: dir.to_owned(),
            names: Vec::new(),
            made: 0,
            dice: Dice::new(42),
            buffer,
            counts: [0; 4],
        })
    }

    fn path(&self, name: u64) -> PathBuf {
        let directory = (name % DIRECTORIES).to_string();
        self.dir.join(directory).join(name.to_string())
    }

    /// Any file, by its place in the list.
    fn any(&mut self) -> usize {
        self.dice.index(self.names.len())
    }

    fn create(&mut self) -> Result<()> {
        let name = self.made;
        self.made += 1;
        let span = SIZES.end() - SIZES.start() + 1;
        let bytes = SIZES.start() + self.dice.below(span);
        let file = File::create_new(self.path(name)).context("creating a file")?;
        self.write(file, bytes)?;
        self.names.push(name);
        self.count(0);
        Ok(())
    }

    fn delete(&mut self) -> Result<()> {
        if self.names.is_empty() {
            return Ok(());
        }
        let place = self.any();
        let name = self.names.swap_remove(place);
        fs::remove_file(self.path(name)).context("deleting a file")?;
        self.count(1);
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let place = self.any();
        let Some(name) = self.names.get(place) else {
            return Ok(());
        };
        let mut file = File::open(self.path(*name)).context("opening a file")?;
        let mut read = [0; BUFFER_BYTES];
        while file.read(&mut read)? > 0 {}
        self.count(2);
        Ok(())
    }

    fn append(&mut self) -> Result<()> {
        let place = self.any();
        let Some(name) = self.names.get(place) else {
            return Ok(());
        };
        let path = self.path(*name);
        let file = OpenOptions::new()
            .append(true)
            .open(path)
            .context("opening a file")?;
        let bytes = 1 + self.dice.below(*SIZES.end());
        self.write(file, bytes)?;
        self.count(3);
        Ok(())
    }

    fn write(&self, mut file: File, bytes: u64) -> Result<()> {
        let mut left = usize::try_from(bytes)?;
        while left > 0 {
            let part = left.min(BUFFER_BYTES);
            file.write_all(self.buffer.get(..part).unwrap_or_default())?;
            left -= part;
        }
        Ok(())
    }

    fn count(&mut self, what: usize) {
        if let Some(count) = self.counts.get_mut(what) {
            *count += 1;
        }
    }
}

/// A generator of choices: splitmix64.
pub struct Dice(u64);

impl Dice {
    /// The same seed gives the same choices.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// An index of a list of this length.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }

    /// A number below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // The remainder favours small numbers by less than one in 2^40 here.
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transaction_is_done_and_two_runs_are_the_same() {
        let load = Load {
            files: 50,
            transactions: 400,
        };
        let once = || {
            let dir = tempfile::tempdir().unwrap();
            let done = run(dir.path(), load).unwrap();
            let left = crate::dataset::files(dir.path()).unwrap();
            assert!(left.is_empty());
            done.counts
        };
        let counts = once();
        let [created, deleted, read, appended] = counts;
        assert_eq!((created + deleted, read + appended), (400, 400));
        assert!(counts.iter().all(|count| *count > 150), "{counts:?}");
        assert_eq!(once(), counts);
    }

    #[test]
    fn sizes_are_those_of_the_paper() {
        let dir = tempfile::tempdir().unwrap();
        let mut pool = Pool::new(dir.path()).unwrap();
        for _ in 0..300 {
            pool.create().unwrap();
        }
        let sizes = crate::dataset::files(dir.path()).unwrap();
        let sizes: Vec<u64> = sizes
            .iter()
            .map(|p| fs::metadata(p).unwrap().len())
            .collect();
        let mean = sizes.iter().sum::<u64>() / 300;
        assert!(sizes.iter().all(|size| SIZES.contains(size)));
        assert!((7_000..10_000).contains(&mean), "{mean}");
    }
}
