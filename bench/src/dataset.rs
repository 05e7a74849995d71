//! The data sets of the workloads, made once and kept.
//!
//! Each set is made in a temporary directory and renamed when it is complete, so an interrupted run
//! leaves no incomplete set. Random content comes from the kernel, so that no contestant can compress or
//! deduplicate it.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::field::{Field, Scale};
use crate::process;

/// The kernel source as Debian's package installs it.
const LINUX_ARCHIVE: &str = "/usr/src/linux-source-6.1.tar.xz";

/// Bytes of one access in figure 7 (SFSRO 5, the Sprite large-file benchmark).
pub const ACCESS_BYTES: usize = 8 << 10;

/// Bytes of one object in figure 11.
pub const OBJECT_BYTES: usize = 8 << 10;

/// Makes all data sets.
pub fn all(field: &Field) -> Result<()> {
    let makers = [
        linux,
        package,
        large,
        small,
        blocks,
        names,
        objects,
        program,
        openssh,
        directories,
        many_files,
    ];
    for make in makers {
        eprintln!("{}", make(field)?.display());
    }
    Ok(())
}

/// The kernel source tree; at the quick scale one of its directories.
pub fn linux(field: &Field) -> Result<PathBuf> {
    let whole = linux_whole(field)?;
    Ok(field.pick((whole.clone(), whole.join("lib"))))
}

fn linux_whole(field: &Field) -> Result<PathBuf> {
    once(field, "linux", |dir| {
        if !Path::new(LINUX_ARCHIVE).is_file() {
            bail!("{LINUX_ARCHIVE} is missing: bench/peers.sh installs it");
        }
        let mut tar = Command::new("tar");
        tar.args(["--strip-components=1", "-xJf", LINUX_ARCHIVE, "-C"]);
        process::run(tar.arg(dir), field.work())?;
        Ok(())
    })
}

/// Figure 8: a package to compile, the kernel source tree; at the quick scale what its configuration and
/// its directory `init` need.
pub fn package(field: &Field) -> Result<PathBuf> {
    let whole = linux_whole(field)?;
    if field.scale == Scale::Full {
        return Ok(whole);
    }
    once(field, "package-quick", |dir| {
        let mut copy = Command::new("cp");
        copy.args(["-a", "--parents", "-t"]).arg(dir);
        copy.args(["Makefile", "Kbuild", "include", "init", "scripts"]);
        copy.args(["kernel/Makefile", "kernel/bounds.c", "kernel/configs"]);
        copy.args(["kernel/time/timeconst.bc", "lib/Makefile", "tools/include"]);
        copy.arg(format!("arch/{}", linux_architecture()));
        for file in files(&whole)? {
            let name = file.file_name().unwrap_or_default().as_encoded_bytes();
            if name.starts_with(b"Kconfig") {
                copy.arg(file.strip_prefix(&whole)?);
            }
        }
        process::run(copy.current_dir(&whole), field.work()).map(drop)
    })
}

/// Figure 40: the archive of OpenSSH's source, from Debian's source package.
///
/// # Errors
/// If the package cannot be fetched.
pub fn openssh(field: &Field) -> Result<PathBuf> {
    let dir = once(field, "openssh", |dir| {
        let mut fetch = Command::new("sh");
        fetch.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/source.sh"));
        process::run(fetch.arg("openssh").arg(dir), field.work())?;
        Ok(())
    })?;
    let archive = files(&dir)?.into_iter().find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".orig.tar.gz")
    });
    archive.context("the source package of openssh has no archive")
}

/// What the kernel source calls this machine's architecture.
fn linux_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        same => same,
    }
}

/// A directory with one file `random` of 1 GiB.
pub fn large(field: &Field) -> Result<PathBuf> {
    once(field, field.pick(("large", "large-quick")), |dir| {
        random_file(&dir.join("random"), field.pick((1 << 30, 1 << 24)))
    })
}

/// Figure 6: a set for each round, each of 1,000 files of 1 KB in ten directories.
pub fn small(field: &Field) -> Result<PathBuf> {
    let (sets, files) = field.pick(((20, 100), (7, 10)));
    once(field, field.pick(("small", "small-quick-7")), |dir| {
        for path in (0..sets).flat_map(|set| small_paths(set, files)) {
            let path = dir.join(path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            random_file(&path, 1 << 10)?;
        }
        Ok(())
    })
}

/// The paths of one set, in the order in which they are read.
pub fn small_set(field: &Field, set: u32) -> Vec<PathBuf> {
    small_paths(set, field.pick((100, 10))).collect()
}

fn small_paths(set: u32, files: u32) -> impl Iterator<Item = PathBuf> {
    (0..10).flat_map(move |directory| {
        (0..files).map(move |file| PathBuf::from(format!("{set:02}/{directory}/{file:03}")))
    })
}

/// The files of figure 7: content and manner of access; each of 40 MB.
pub const BLOCK_FILES: [&str; 4] = [
    "random-sequential",
    "random-random",
    "zeros-sequential",
    "zeros-random",
];

/// The directory of figure 7. Zeros are written, not left out.
pub fn blocks(field: &Field) -> Result<PathBuf> {
    let bytes = field.pick((40 << 20, 1 << 20));
    once(field, field.pick(("blocks", "blocks-quick")), |dir| {
        for name in BLOCK_FILES {
            if name.starts_with("random") {
                random_file(&dir.join(name), bytes)?;
            } else {
                fill(&dir.join(name), io::repeat(0), bytes)?;
            }
        }
        Ok(())
    })
}

/// Path of one component in [`names`].
pub const ONE_COMPONENT: &str = "0500";
/// Path of four components in [`names`], to a file of the same size.
pub const FOUR_COMPONENTS: &str = "org/example/www/0500";

/// Figure 10: a thousand files of the size of a certificate, flat, and as many four levels down.
pub fn names(field: &Field) -> Result<PathBuf> {
    once(field, "names", |dir| {
        let deep = dir.join("org/example/www");
        fs::create_dir_all(&deep)?;
        for name in 0..1000 {
            random_file(&dir.join(format!("{name:04}")), 1 << 10)?;
            random_file(&deep.join(format!("{name:04}")), 1 << 10)?;
        }
        Ok(())
    })
}

/// Figure 11: 4,096 files of 8 KB, `0000` to `4095`.
pub fn objects(field: &Field) -> Result<PathBuf> {
    once(field, "objects", |dir| {
        (0..OBJECTS)
            .try_for_each(|n| random_file(&dir.join(format!("{n:04}")), OBJECT_BYTES as u64))
    })
}

/// How many [`objects`] there are.
pub const OBJECTS: u32 = 4096;

/// Directories of [`program`], files in each, directories that a start visits, and files that it opens in
/// each.
const PROGRAM: ([usize; 4], [usize; 4]) = ([400, 50, 30, 20], [20, 10, 5, 4]);

/// Figure 12: 20,000 files in 400 directories two levels down, from 1 to 400 KiB, half of them smaller
/// than 25. Together 1 GB; a start opens 31 MB.
pub fn program(field: &Field) -> Result<PathBuf> {
    once(field, field.pick(("program", "program-quick")), |dir| {
        let [directories, files, ..] = field.pick(PROGRAM);
        let mut dice = Dice::new(12);
        for at in 0..directories {
            let dir = dir.join(program_directory(at));
            fs::create_dir_all(&dir)?;
            for file in 0..files {
                let most_kib = (4usize << dice.below(8)) * 4 / 5;
                let kib = 1 + dice.below(most_kib);
                random_file(&dir.join(format!("{file:02}")), (kib as u64) << 10)?;
            }
        }
        Ok(())
    })
}

fn program_directory(at: usize) -> String {
    format!("lib{}/part{at:03}", at / 20)
}

/// What the program of [`program`] opens when it starts, in its order: a part of the files of some
/// directories, mostly one directory after the other, like a loader that follows dependencies. One file
/// in four is in a directory that was used before.
pub fn program_start(field: &Field) -> Vec<PathBuf> {
    let [directories, files, visited, opened] = field.pick(PROGRAM);
    let mut dice = Dice::new(13);
    let mut places: Vec<usize> = (0..directories).collect();
    dice.shuffle(&mut places);
    let mut left: Vec<Vec<PathBuf>> = Vec::new();
    for at in places.into_iter().take(visited) {
        let mut names: Vec<usize> = (0..files).collect();
        dice.shuffle(&mut names);
        let name = |file: usize| PathBuf::from(format!("{}/{file:02}", program_directory(at)));
        left.push(names.into_iter().take(opened).map(name).collect());
    }
    let (mut order, mut begun) = (Vec::with_capacity(visited * opened), 1);
    loop {
        let newest = begun - 1;
        let any = dice.below(begun);
        let from = if dice.below(4) == 0 { any } else { newest };
        let pick = [from, newest, begun].into_iter().find(|at| {
            let files = left.get(*at);
            files.is_some_and(|files| !files.is_empty())
        });
        let pick = pick.or_else(|| left.iter().position(|files| !files.is_empty()));
        let Some(pick) = pick else { break };
        begun = begun.max(pick + 1);
        if let Some(path) = left.get_mut(pick).and_then(Vec::pop) {
            order.push(path);
        }
    }
    order
}

/// Figure 13: how many names each of [`directories`] has.
pub fn directory_sizes(field: &Field) -> [usize; 3] {
    field.pick(([1_000, 100_000, 1_000_000], [1_000, 3_000, 10_000]))
}

/// A directory of each of these sizes, named after it. One name in the middle is a file of 1 KiB; the
/// others are symbolic links, which the local file system keeps at a fraction of a file's cost and
/// whose entries in a volume are as large as those of files.
pub fn directories(field: &Field) -> Result<PathBuf> {
    let name = field.pick(("directories", "directories-quick"));
    once(field, name, |dir| {
        for size in directory_sizes(field) {
            let middle = in_the_middle(size);
            fs::create_dir(dir.join(size.to_string()))?;
            for at in 0..size {
                let path = in_a_directory(size, at);
                if path == middle {
                    random_file(&dir.join(path), 1 << 10)?;
                } else {
                    std::os::unix::fs::symlink(format!("{at:040x}"), dir.join(path))?;
                }
            }
        }
        Ok(())
    })
}

/// The one file in the directory of this size.
pub fn in_the_middle(size: usize) -> PathBuf {
    in_a_directory(size, size / 2)
}

fn in_a_directory(size: usize, at: usize) -> PathBuf {
    PathBuf::from(format!("{size}/{at:07}"))
}

/// Figure 13: how many files are published.
pub fn file_counts(field: &Field) -> [usize; 3] {
    field.pick(([10_000, 100_000, 1_000_000], [1_000, 2_000, 5_000]))
}

const FILES_IN_A_DIRECTORY: usize = 1_000;
/// The directory with the smaller trees.
const INNER: &str = "inner";

/// Files of 100 to 400 bytes in directories of a thousand, as many as the greatest of [`file_counts`].
/// The tree of each smaller count is inside the next larger one.
pub fn many_files(field: &Field) -> Result<PathBuf> {
    let name = field.pick(("many-files", "many-files-quick"));
    once(field, name, |dir| {
        let (mut source, mut dice) = (File::open("/dev/urandom")?, Dice::new(13));
        let mut content = [0; 400];
        let mut inside = 0;
        for count in file_counts(field) {
            let tree = dir.join(many_files_within(field, count));
            fs::create_dir_all(&tree)?;
            for at in 0..count - inside {
                let directory = tree.join(format!("{:03}", at / FILES_IN_A_DIRECTORY));
                let within = at % FILES_IN_A_DIRECTORY;
                if within == 0 {
                    fs::create_dir(&directory)?;
                }
                let content = &mut content[..100 + dice.below(301)];
                source.read_exact(content)?;
                fs::write(directory.join(format!("{within:03}")), content)?;
            }
            inside = count;
        }
        Ok(())
    })
}

/// Where in [`many_files`] the tree of this many files is.
pub fn many_files_within(field: &Field, count: usize) -> PathBuf {
    let larger = file_counts(field).into_iter().filter(|c| *c > count);
    larger.map(|_| INNER).collect()
}

/// Reads every file below a directory into the page cache.
pub fn warm(dir: &Path) -> Result<()> {
    if !dir.is_dir() {
        io::copy(&mut File::open(dir)?, &mut io::sink())?;
        return Ok(());
    }
    for entry in fs::read_dir(dir).with_context(|| format!("{}", dir.display()))? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() || kind.is_file() {
            warm(&entry.path())?;
        }
    }
    Ok(())
}

/// All regular files below a directory, sorted.
pub fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                left.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Numbers that look random and are the same in every run (xorshift64).
pub struct Dice(u64);

impl Dice {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let high = (self.0 >> 16) as usize;
        high.checked_rem(bound).unwrap_or(0)
    }

    /// Shuffles a list.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }
}

fn once(field: &Field, name: &str, make: impl Fn(&Path) -> Result<()>) -> Result<PathBuf> {
    let place = field.data().join(name);
    if place.is_dir() {
        return Ok(place);
    }
    eprintln!("making the data set {name}");
    let half = field.data().join(format!("{name}.half"));
    if half.exists() {
        fs::remove_dir_all(&half)?;
    }
    fs::create_dir_all(&half)?;
    make(&half).with_context(|| format!("making the data set {name}"))?;
    fs::rename(&half, &place)?;
    Ok(place)
}

fn random_file(path: &Path, bytes: u64) -> Result<()> {
    fill(path, File::open("/dev/urandom")?, bytes)
}

fn fill(path: &Path, source: impl Read, bytes: u64) -> Result<()> {
    let mut file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    io::copy(&mut source.take(bytes), &mut file)?;
    file.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_are_repeatable_and_a_shuffle_keeps_all_items() {
        let order = |seed| {
            let mut list: Vec<u32> = (0..100).collect();
            Dice::new(seed).shuffle(&mut list);
            list
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let mut sorted = order(3);
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..100));
    }

    #[test]
    fn a_start_opens_each_of_its_files_once() {
        let dir = tempfile::tempdir().unwrap();
        let field = Field::new(dir.path(), crate::field::Scale::Full, Path::new("none")).unwrap();
        let order = program_start(&field);
        assert_eq!(order, program_start(&field));
        let mut paths = order.clone();
        paths.sort();
        paths.dedup();
        assert_eq!((order.len(), paths.len()), (600, 600));
        let parents: std::collections::BTreeSet<_> = paths.iter().map(|p| p.parent()).collect();
        assert_eq!(parents.len(), 30);
    }

    #[test]
    fn trees_of_growing_size_have_their_number_of_files() {
        let dir = tempfile::tempdir().unwrap();
        let field = Field::new(dir.path(), crate::field::Scale::Quick, Path::new("none")).unwrap();
        let tree = many_files(&field).unwrap();
        for count in file_counts(&field) {
            let found = files(&tree.join(many_files_within(&field, count))).unwrap();
            assert_eq!(found.len(), count);
        }
        let tree = directories(&field).unwrap();
        for size in directory_sizes(&field) {
            let names = fs::read_dir(tree.join(size.to_string())).unwrap();
            assert_eq!(names.count(), size);
            assert!(tree.join(in_the_middle(size)).is_file());
        }
    }

    #[test]
    fn a_set_holds_its_files_in_ten_directories() {
        let paths: Vec<_> = small_paths(7, 100).collect();
        assert_eq!(paths.len(), 1000);
        let mut parents: Vec<_> = paths.iter().filter_map(|p| p.parent()).collect();
        parents.dedup();
        assert_eq!(parents.len(), 10);
    }
}
