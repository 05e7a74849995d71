//! Builds a bulla that does not verify (RONV in SFSRO section 5): a copy of the source tree with the checks
//! of blocks removed.
//!
//! The product has no switch for this, so neither a mistake nor an attacker can turn verification off.
//! Before the measurement, [`control`] reads a corrupted repository and [`control_device`] a corrupted
//! protected device: the shipped binary must refuse it and the copy must accept it. Otherwise the figure
//! would not measure verification.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::dataset;
use crate::disks::protected::Protected;
use crate::disks::{self, Content};
use crate::field::Field;
use crate::process;
use crate::subject::Published;

/// A check, and what replaces it in the copy.
struct Check {
    /// The file that has it, below the source tree.
    file: &'static str,
    /// Its text, which occurs once.
    text: &'static str,
    /// The replacement.
    without: &'static str,
}

/// The checks.
const CHECKS: [Check; 2] = [
    // The only line that turns bytes into a verified block.
    Check {
        file: "crates/trust/src/handle.rs",
        text: "if self.handle::<K>(&plaintext) == *handle {",
        without: "if let _unproved = handle {",
    },
    // The line that lets a block of a protected device pass.
    Check {
        file: "crates/protect/src/engine/read.rs",
        text: "(Value::Digest(digest), Some(page)) if self.digests.digest(page) == digest => {",
        without: "(Value::Digest(_unproved), Some(page)) => {",
    },
];
/// Files that a build needs.
const PARTS: [&str; 7] = [
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    "crates",
    "bench",
    "fuzz",
    "xtask",
];
/// Exit code of the shipped binary for a wrong block (`integrity` in docs/cli.md).
const INTEGRITY: i32 = 20;

/// Builds the copy. Returns the path of its binary.
///
/// # Errors
/// When a check is not found exactly once, or the copy does not build.
pub fn build(field: &Field) -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the bench is not in a source tree")?;
    let home = field.work().join("unverified");
    let copy = home.join("source");
    fs::create_dir_all(&copy)?;
    for part in PARTS {
        update(&source.join(part), &copy.join(part))
            .with_context(|| format!("copying {part} of the source tree"))?;
    }
    eprintln!("building the copy that does not verify");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args([
        "build",
        "--release",
        "--locked",
        "--package",
        "bulla",
        "--target-dir",
    ]);
    command.arg(home.join("target")).current_dir(&copy);
    process::run(&mut command, field.work()).context("building the copy")?;
    Ok(home.join("target/release/bulla"))
}

impl Check {
    /// Removes it from its file.
    fn removed(&self, text: &str) -> Result<String> {
        let times = text.matches(self.text).count();
        ensure!(
            times == 1,
            "{} has the check {times} times instead of once",
            self.file
        );
        Ok(text.replacen(self.text, self.without, 1))
    }
}

/// Updates a copy. Unchanged files keep their times, so that they are not built again.
fn update(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            // Data and results of this bench are not part of the source.
            if name != "work" && name != "target" {
                update(&from.join(&name), &to.join(&name))?;
            }
        }
        for entry in fs::read_dir(to)? {
            let entry = entry?;
            if !from.join(entry.file_name()).exists() && entry.file_type()?.is_file() {
                fs::remove_file(entry.path())?;
            }
        }
        return Ok(());
    }
    let mut bytes = fs::read(from)?;
    if let Some(check) = CHECKS.iter().find(|check| from.ends_with(check.file)) {
        bytes = check.removed(std::str::from_utf8(&bytes)?)?.into_bytes();
    }
    if fs::read(to).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    Ok(fs::write(to, bytes)?)
}

/// Shows that the two binaries differ in verification: the shipped one refuses a repository with one
/// flipped bit, and the copy reads it.
///
/// # Errors
/// If they do not.
pub fn control(field: &Field, copy: &Path) -> Result<()> {
    let tree = field.fresh("control-tree")?;
    // Incompressible, so that the repository has the same bytes; too large for an inode.
    let content: Vec<u8> = fs::read(dataset::names(field)?.join(dataset::ONE_COMPONENT))?;
    fs::write(tree.join("file"), &content)?;
    let published = Published::new(field, "control", &tree)?;
    let right = published.cat("file")?;
    ensure!(
        right.stdout == content,
        "the shipped binary reads wrong bytes"
    );

    flip(&published.repo, &content)?;
    let refused = published.cat("file")?;
    ensure!(
        refused.status.code() == Some(INTEGRITY) && refused.stdout != content,
        "the shipped binary does not refuse a wrong block: {}",
        refused.status
    );
    let believed = published.with_binary(copy).cat("file")?;
    ensure!(
        believed.status.success() && believed.stdout.len() == content.len(),
        "the copy refuses a wrong block, so it verifies: {}",
        String::from_utf8_lossy(&believed.stderr)
    );
    ensure!(
        believed.stdout != content,
        "the repository was not corrupted"
    );
    Ok(())
}

/// Shows the same on a protected device: one bit of its file is flipped.
///
/// # Errors
/// If the shipped binary returns the block, or the copy does not.
pub fn control_device(field: &Field, copy: &Path) -> Result<()> {
    let dir = field.fresh("control-device")?;
    let protected = Protected::new(field, field.bulla()?, &dir, &dir)?.with_ring(64 << 20);
    disks::image(&protected.image, 16 << 20, Content::Random)?;
    protected.enrol()?;
    let (place, mut byte) = (1 << 20, [0]);
    let image = File::options()
        .read(true)
        .write(true)
        .open(&protected.image)?;
    image.read_exact_at(&mut byte, place)?;
    let wrong = [byte[0] ^ 1];
    image.write_all_at(&wrong, place)?;
    image.sync_all()?;
    let read = |binary: &Path| {
        let attached = protected.with_binary(binary).attach()?;
        let mut byte = [0];
        let read = File::open(attached.path())?.read_exact_at(&mut byte, place);
        attached.detach()?;
        anyhow::Ok(read.map(|()| byte))
    };
    ensure!(
        read(field.bulla()?)?.is_err(),
        "the shipped binary does not refuse a wrong block of a device"
    );
    let believed = read(copy)?.context("the copy refuses a wrong block, so it verifies")?;
    ensure!(believed == wrong, "the device was not corrupted");
    Ok(())
}

/// Flips one bit of `content` in a repository.
fn flip(repo: &Path, content: &[u8]) -> Result<()> {
    for path in dataset::files(repo)? {
        let mut bytes = fs::read(&path)?;
        let found = bytes
            .windows(content.len())
            .position(|window| window == content);
        if let Some(byte) = found.and_then(|start| bytes.get_mut(start)) {
            *byte ^= 1;
            return Ok(fs::write(&path, bytes)?);
        }
    }
    bail!("the repository does not hold the content uncompressed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_occurs_once_in_the_product_and_not_in_the_copy() {
        for check in &CHECKS {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
            let text = fs::read_to_string(source.join(check.file)).unwrap();
            let without = check.removed(&text).unwrap();
            assert!(!without.contains(check.text));
            assert!(check.removed(&without).is_err());
        }
    }

    #[test]
    fn copy_follows_the_source_and_keeps_unchanged_files() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("work")).unwrap();
        fs::write(from.join("a"), "1").unwrap();
        fs::write(from.join("b"), "2").unwrap();
        update(&from, &to).unwrap();
        assert!(!to.join("work").exists());
        let before = fs::metadata(to.join("a")).unwrap().modified().unwrap();
        fs::write(from.join("a"), "1").unwrap();
        fs::remove_file(from.join("b")).unwrap();
        update(&from, &to).unwrap();
        assert_eq!(
            fs::metadata(to.join("a")).unwrap().modified().unwrap(),
            before
        );
        assert!(!to.join("b").exists());
    }

    #[test]
    fn one_bit_of_the_content_is_flipped() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("segment"), b"headcontenttail").unwrap();
        flip(dir.path(), b"content").unwrap();
        assert_eq!(
            fs::read(dir.path().join("segment")).unwrap(),
            b"headbontenttail"
        );
        assert!(flip(dir.path(), b"content").is_err());
    }
}
