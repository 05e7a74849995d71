//! Shared by figures 4 to 8: the views of a tree, and the access patterns of their readers.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::fs::{Advice, fadvise};

use crate::dataset;
use crate::field::Field;
use crate::figure::{Build, OURS};
use crate::peers::view::Viewer;
use crate::process;

/// bulla without verification (`unverified`).
pub const UNVERIFIED: &str = "bulla, not verifying";

/// sshfs.
pub const SSHFS: &str = "sshfs";
/// A local squashfs image through FUSE.
pub const SQUASHFUSE: &str = "squashfuse";
/// A local encrypted directory through FUSE.
pub const GOCRYPTFS: &str = "gocryptfs";
/// The local disk itself.
pub const LOCAL: &str = "ext4";

/// A form of the tree that can be mounted, or the reason why not.
pub type Shown = (String, Result<Viewer>);

/// The builds of bulla and, unless this is a gate, the named peers, each with its form of the tree.
pub fn viewers(field: &Field, figure: &str, tree: &Path, peers: &[&'static str]) -> Vec<Shown> {
    let ours = |build: Build| (build.row(OURS), Viewer::bulla(field, build, figure, tree));
    let mut shown: Vec<Shown> = field.builds().into_iter().map(ours).collect();
    for peer in peers.iter().copied().filter(|_| !field.gate()) {
        shown.push((
            peer.to_owned(),
            match peer {
                SSHFS => Viewer::sshfs(field, figure, tree),
                SQUASHFUSE => Viewer::squashfuse(field, figure, tree),
                GOCRYPTFS => Viewer::gocryptfs(field, figure, tree),
                _ => copy(field, figure, tree),
            },
        ));
    }
    shown
}

/// A copy of the tree, so that evicting its pages does not affect a server.
fn copy(field: &Field, figure: &str, tree: &Path) -> Result<Viewer> {
    let dir = field.fresh(&format!("local-{figure}"))?;
    let mut command = Command::new("cp");
    command.arg("-a").arg(tree.join(".")).arg(&dir);
    process::run(&mut command, field.work())?;
    Ok(Viewer::Local(dir))
}

/// Drops the pages of a local file from the page cache; its name and inode stay.
pub fn evict(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("{}", path.display()))?;
    fadvise(&file, 0, None, Advice::DontNeed).context("fadvise")
}

/// Drops the pages of all files below a directory.
pub fn evict_all(dir: &Path) -> Result<()> {
    dataset::files(dir)?.iter().try_for_each(|file| evict(file))
}

/// Memory that a reader of the largest data set and the kernel may need at once.
const BACKED_BYTES: usize = 3 << 30;
const PAGE_BYTES: usize = 4096;

/// Touches the free memory of the machine. In a virtual machine, the first access to a page costs a page
/// fault of the host, also after the page was free for some seconds and went back to the host. After a pause
/// this took up to two thirds of the time of a read. So each contestant begins with free memory that was
/// touched just before.
pub fn back_free_memory() {
    let mut memory = vec![0_u8; BACKED_BYTES];
    for page in memory.chunks_mut(PAGE_BYTES) {
        if let Some(byte) = page.first_mut() {
            *byte = 1;
        }
    }
    std::hint::black_box(&memory);
}

/// Reads a file from its beginning to its end, 1 MiB at a time. Returns its length and the seconds.
pub fn whole(path: &Path) -> Result<(u64, f64)> {
    let mut buffer = vec![0; 1 << 20];
    let start = Instant::now();
    let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut total_bytes = 0;
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        total_bytes += u64::try_from(count)?;
    }
    Ok((total_bytes, start.elapsed().as_secs_f64()))
}

/// Opens, reads and closes each of these small files. Returns the seconds.
pub fn each<'a>(
    dir: &Path,
    paths: impl Iterator<Item = &'a Path>,
    file_bytes: usize,
) -> Result<f64> {
    let paths: Vec<_> = paths.map(|path| dir.join(path)).collect();
    let mut buffer = vec![0; file_bytes * 4];
    let start = Instant::now();
    for path in &paths {
        let count = File::open(path)
            .and_then(|mut file| file.read(&mut buffer))
            .with_context(|| format!("reading {}", path.display()))?;
        ensure!(count == file_bytes, "{}: {count} bytes", path.display());
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Reads a file at these offsets. Returns the seconds.
pub fn at(path: &Path, offsets: &[u64], access_bytes: usize) -> Result<f64> {
    let mut buffer = vec![0; access_bytes];
    let start = Instant::now();
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    for offset in offsets {
        file.read_exact_at(&mut buffer, *offset)
            .with_context(|| format!("{} at {offset}", path.display()))?;
    }
    Ok(start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_refuse_short_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![7; 10_000]).unwrap();
        assert_eq!(whole(&path).unwrap().0, 10_000);
        assert!(at(&path, &[0, 1808], 8192).is_ok());
        assert!(at(&path, &[1809], 8192).is_err());
        assert!(each(dir.path(), [Path::new("file")].into_iter(), 10_000).is_ok());
        assert!(each(dir.path(), [Path::new("file")].into_iter(), 9_999).is_err());
        evict(&path).unwrap();
    }
}
