//! A file system exerciser after Apple's and Linux's `fsx`: random operations on one file, compared
//! with a model in memory after each. Everything follows from the seed, so a failure can be repeated.
//!
//! Works on any directory. Mapped reading and writing is done by a small program in C (`mapper.c`),
//! because a memory map needs `unsafe` in Rust; it is built with `gcc`.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::fs::{Advice, FallocateFlags, SeekFrom};

use crate::random::Random;

/// How many of the last operations are listed when one fails.
const REMEMBERED: usize = 24;
/// Operations between two comparisons of the whole file.
const WHOLE_EVERY: u64 = 64;

/// What a run does.
#[derive(Debug, Clone)]
pub struct FsxOptions {
    /// The seed of all random choices.
    pub seed: u64,
    /// How many operations.
    pub operations: u64,
    /// Largest size of the file, bytes.
    pub max_bytes: u64,
    /// Largest range of one operation, bytes.
    pub max_range_bytes: u64,
}

impl FsxOptions {
    /// A file of up to 512 KiB in pieces of up to 64 KiB.
    pub fn new(seed: u64, operations: u64) -> FsxOptions {
        FsxOptions {
            seed,
            operations,
            max_bytes: 512 << 10,
            max_range_bytes: 64 << 10,
        }
    }
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Operation {
    Read(u64, u64),
    Write(u64, u64, u8),
    MapRead(u64, u64),
    MapWrite(u64, u64, u8),
    Truncate(u64),
    Allocate(u64, u64, bool),
    PunchHole(u64, u64),
    ZeroRange(u64, u64, bool),
    Copy(u64, u64, u64),
    Holes,
    Sync,
    DropCache,
    Reopen,
}

/// Runs on the file `path`, which it makes. `before` is called with the number of each operation before it
/// runs: a test can damage the file there, to check that the damage is noticed.
///
/// # Errors
/// The first difference from the model or failed system call, with the seed and the last operations.
pub fn run(path: &Path, options: &FsxOptions, mut before: impl FnMut(u64)) -> Result<(), String> {
    let tell = |error: io::Error| format!("fsx: {error}");
    let mut fsx = Fsx::start(path, options).map_err(tell)?;
    let mut done = VecDeque::new();
    for number in 0..options.operations {
        before(number);
        let operation = fsx.choose();
        if done.len() == REMEMBERED {
            done.pop_front();
        }
        done.push_back((number, operation.clone()));
        fsx.apply(&operation)
            .and_then(|()| fsx.check_size())
            .and_then(|()| {
                if number % WHOLE_EVERY == 0 || number + 1 == options.operations {
                    fsx.read(0, fsx.model.len() as u64 + 1)?;
                }
                Ok(())
            })
            .map_err(|error| {
                let seed = options.seed;
                format!("fsx, seed {seed}, operation {number}: {error}; last: {done:#?}")
            })?;
    }
    Ok(())
}

struct Fsx {
    path: PathBuf,
    file: File,
    model: Vec<u8>,
    mapper: Mapper,
    random: Random,
    options: FsxOptions,
}

fn wrong(what: String) -> io::Error {
    io::Error::other(what)
}

impl Fsx {
    fn start(path: &Path, options: &FsxOptions) -> io::Result<Fsx> {
        File::create_new(path)?;
        Ok(Fsx {
            path: path.to_owned(),
            file: open(path)?,
            model: Vec::new(),
            mapper: Mapper::start(path)?,
            random: Random::new(options.seed),
            options: options.clone(),
        })
    }

    /// A range within `end`, not empty.
    fn range(&mut self, end: u64) -> (u64, u64) {
        let mut start = self.random.below(end);
        // Often at a page's or block's edge, where mistakes are.
        if self.random.below(4) == 0 {
            start &= !4095;
        }
        let longest = self.options.max_range_bytes.min(end - start);
        let mut len = 1 + self.random.below(longest);
        if self.random.below(4) == 0 {
            len = len.next_multiple_of(4096).min(end - start);
        }
        (start, len)
    }

    fn choose(&mut self) -> Operation {
        let max = self.options.max_bytes;
        let byte = 1 + self.random.below(255) as u8;
        let (start, len) = self.range(max);
        let choice = self.random.below(100);
        let flag = self.random.below(2) == 0;
        let size = self.model.len() as u64;
        match choice {
            0..20 => Operation::Write(start, len, byte),
            20..35 => Operation::Read(start, len),
            35..43 => Operation::Truncate(start),
            43..50 => Operation::Allocate(start, len, flag),
            50..57 => Operation::ZeroRange(start, len, flag),
            57..64 => Operation::PunchHole(start, len),
            64..67 => Operation::Sync,
            67..71 => Operation::DropCache,
            71..74 => Operation::Reopen,
            74..77 => Operation::Holes,
            _ if size == 0 => Operation::Write(start, len, byte),
            77..85 => {
                let (start, len) = self.range(size);
                Operation::MapRead(start, len)
            }
            85..93 => {
                let (start, len) = self.range(size);
                Operation::MapWrite(start, len, byte)
            }
            _ => {
                let (from, len) = self.range(size);
                let to = self.random.below(max - len);
                Operation::Copy(from, to, len)
            }
        }
    }

    fn apply(&mut self, operation: &Operation) -> io::Result<()> {
        match *operation {
            Operation::Read(start, len) => self.read(start, len),
            Operation::Write(start, len, byte) => {
                let data = pattern(byte, len);
                self.file.write_all_at(&data, start)?;
                self.put(start, &data);
                Ok(())
            }
            Operation::MapRead(start, len) => {
                let mapped = self.mapper.read(start, len)?;
                self.compare(start, &mapped, "mapped")
            }
            Operation::MapWrite(start, len, byte) => {
                let data = pattern(byte, len);
                self.mapper.write(start, &data)?;
                self.put(start, &data);
                Ok(())
            }
            Operation::Truncate(size) => {
                self.file.set_len(size)?;
                self.model.resize(size as usize, 0);
                Ok(())
            }
            Operation::Allocate(start, len, keep) => {
                rustix::fs::fallocate(&self.file, keep_size(keep), start, len)?;
                self.reach(start + len, keep);
                Ok(())
            }
            Operation::PunchHole(start, len) => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.file, flags, start, len)?;
                self.zero(start, len);
                Ok(())
            }
            Operation::ZeroRange(start, len, keep) => {
                let flags = FallocateFlags::ZERO_RANGE | keep_size(keep);
                rustix::fs::fallocate(&self.file, flags, start, len)?;
                self.reach(start + len, keep);
                self.zero(start, len);
                Ok(())
            }
            Operation::Copy(from, to, len) => self.copy(from, to, len),
            Operation::Holes => self.holes(),
            Operation::Sync => self.file.sync_data(),
            Operation::DropCache => {
                // Only clean pages can be dropped.
                self.file.sync_all()?;
                Ok(rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed)?)
            }
            Operation::Reopen => {
                self.file = open(&self.path)?;
                Ok(())
            }
        }
    }

    fn put(&mut self, start: u64, data: &[u8]) {
        self.reach(start + data.len() as u64, false);
        let start = start as usize;
        self.model[start..start + data.len()].copy_from_slice(data);
    }

    fn reach(&mut self, end: u64, keep_size: bool) {
        if !keep_size && self.model.len() < end as usize {
            self.model.resize(end as usize, 0);
        }
    }

    fn zero(&mut self, start: u64, len: u64) {
        let end = (start + len).min(self.model.len() as u64);
        if start < end {
            self.model[start as usize..end as usize].fill(0);
        }
    }

    fn read(&self, start: u64, len: u64) -> io::Result<()> {
        let mut bytes = vec![0xee; len as usize];
        let mut got = 0;
        while got < bytes.len() {
            match self.file.read_at(&mut bytes[got..], start + got as u64)? {
                0 => break,
                n => got += n,
            }
        }
        let expected = (self.model.len() as u64).saturating_sub(start).min(len);
        if got as u64 != expected {
            return Err(wrong(format!("{got} bytes at {start}, not {expected}")));
        }
        self.compare(start, &bytes[..got], "read")
    }

    fn compare(&self, start: u64, bytes: &[u8], how: &str) -> io::Result<()> {
        let expected = self.model.iter().skip(start as usize);
        let differing = expected.zip(bytes).position(|(a, b)| a != b);
        match differing {
            None => Ok(()),
            Some(at) => {
                let count = bytes.len();
                let place = start + at as u64;
                Err(wrong(format!(
                    "{how} {start}+{count}: byte {place} differs"
                )))
            }
        }
    }

    fn check_size(&self) -> io::Result<()> {
        let (size, expected) = (self.file.metadata()?.len(), self.model.len() as u64);
        if size != expected {
            return Err(wrong(format!("size {size}, not {expected}")));
        }
        Ok(())
    }

    fn copy(&mut self, from: u64, to: u64, len: u64) -> io::Result<()> {
        if from < to + len && to < from + len {
            // POSIX does not define a copy of a range onto itself.
            return Ok(());
        }
        let (mut source, mut target) = (from, to);
        let mut left = len as usize;
        while left > 0 {
            let offsets = (Some(&mut source), Some(&mut target));
            let count =
                rustix::fs::copy_file_range(&self.file, offsets.0, &self.file, offsets.1, left)?;
            if count == 0 {
                return Err(wrong(format!("{left} bytes of a copy are missing")));
            }
            left -= count;
        }
        let data = self.model[from as usize..(from + len) as usize].to_vec();
        self.put(to, &data);
        Ok(())
    }

    /// Checks that holes read as zeros, and that data and holes alternate up to the end.
    fn holes(&self) -> io::Result<()> {
        // The kernel asks a FUSE server for holes, and the server does not know about unwritten pages.
        self.file.sync_data()?;
        let size = self.model.len() as u64;
        let mut at = 0;
        while at < size {
            let data = match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(rustix::io::Errno::NXIO) => size,
                Err(error) => return Err(error.into()),
            };
            if data < at || data > size {
                return Err(wrong(format!("data at {data}, sought from {at}")));
            }
            let hole = &self.model[at as usize..data as usize];
            if hole.iter().any(|byte| *byte != 0) {
                return Err(wrong(format!("a hole {at}..{data} that holds data")));
            }
            if data == size {
                break;
            }
            at = rustix::fs::seek(&self.file, SeekFrom::Hole(data))?;
            if at <= data || at > size {
                return Err(wrong(format!("a hole at {at}, sought from {data}")));
            }
        }
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn keep_size(keep: bool) -> FallocateFlags {
    if keep {
        FallocateFlags::KEEP_SIZE
    } else {
        FallocateFlags::empty()
    }
}

fn pattern(byte: u8, len: u64) -> Vec<u8> {
    (0..len)
        .map(|i| byte.wrapping_add((i % 251) as u8))
        .collect()
}

/// A process that reads and writes one file through shared mappings.
pub struct Mapper {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    _built: tempfile::TempDir,
}

impl Mapper {
    /// Builds and starts the program for the file `path`, which must exist.
    ///
    /// # Errors
    /// The compiler's and the system's.
    pub fn start(path: &Path) -> io::Result<Mapper> {
        let built = tempfile::tempdir()?;
        let (source, program) = (built.path().join("mapper.c"), built.path().join("mapper"));
        std::fs::write(&source, include_str!("mapper.c"))?;
        let gcc = Command::new("gcc")
            .args(["-Wall", "-Werror", "-O1", "-o"])
            .args([&program, &source])
            .status()?;
        if !gcc.success() {
            return Err(wrong("gcc cannot build mapper.c".to_owned()));
        }
        let mut child = Command::new(program)
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (to, from) = pipes.ok_or_else(|| wrong("no pipes to the mapper".to_owned()))?;
        Ok(Mapper {
            child,
            to,
            from: BufReader::new(from),
            _built: built,
        })
    }

    /// Bytes as the mapping shows them.
    ///
    /// # Errors
    /// What the program says.
    pub fn read(&mut self, start: u64, len: u64) -> io::Result<Vec<u8>> {
        writeln!(self.to, "read {start} {len}")?;
        self.accept()?;
        let mut bytes = vec![0; len as usize];
        self.from.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes through the mapping, within the file; with an even `start` followed by `msync`.
    ///
    /// # Errors
    /// What the program says.
    pub fn write(&mut self, start: u64, data: &[u8]) -> io::Result<()> {
        writeln!(self.to, "write {start} {}", data.len())?;
        self.to.write_all(data)?;
        self.accept()
    }

    fn accept(&mut self) -> io::Result<()> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        match line.trim_end() {
            "ok" => Ok(()),
            other => Err(wrong(format!("the mapper says: {other:?}"))),
        }
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        // It ends by itself when its input ends; both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory beside this program. That of temporary files is a tmpfs on some machines, which cannot
    /// zero a range.
    fn on_disk() -> tempfile::TempDir {
        let program = std::env::current_exe().unwrap();
        tempfile::tempdir_in(program.parent().unwrap()).unwrap()
    }

    #[test]
    fn a_local_file_system_matches_the_model() {
        let directory = on_disk();
        let options = FsxOptions::new(11, 3000);
        run(&directory.path().join("file"), &options, |_| {}).unwrap();
    }

    #[test]
    fn one_wrong_byte_is_reported_with_the_seed() {
        let directory = on_disk();
        let path = directory.path().join("file");
        let flip = |number: u64| {
            if number == 200 {
                let file = open(&path).unwrap();
                let mut byte = [0];
                file.read_exact_at(&mut byte, 0).unwrap();
                file.write_all_at(&[byte[0] ^ 1], 0).unwrap();
            }
        };
        let told = run(&path, &FsxOptions::new(3, 3000), flip).unwrap_err();
        assert!(
            told.contains("seed 3") && told.contains("differs"),
            "{told}"
        );
    }
}
