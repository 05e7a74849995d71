//! Builds a reader that does not verify (RONV in SFSRO section 5): a copy of the source tree with one
//! check removed.
//!
//! The product has no switch for this, so neither a mistake nor an attacker can turn verification off.
//! Before the measurement, [`control`] reads a corrupted repository: the shipped binary must refuse it
//! and the copy must accept it. Otherwise the figure would not measure verification.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::dataset;
use crate::field::Field;
use crate::process;
use crate::subject::Published;

/// The file with the check, below the source tree.
const FILE: &str = "crates/trust/src/handle.rs";
/// The check: the only line that turns bytes into a verified block.
const CHECK: &str = "if self.handle::<K>(&plaintext) == *handle {";
/// The replacement in the copy.
const NO_CHECK: &str = "if let _unproved = handle {";
/// Files that a build needs.
const PARTS: [&str; 6] = [
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    "crates",
    "bench",
    "xtask",
];
/// Exit code of the shipped binary for a wrong block (`integrity` in docs/cli.md).
const INTEGRITY: i32 = 20;

/// Builds the copy. Returns the path of its binary.
///
/// # Errors
/// When the check is not found exactly once, or the copy does not build.
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

/// Removes the check.
fn patched(text: &str) -> Result<String> {
    let times = text.matches(CHECK).count();
    ensure!(
        times == 1,
        "{FILE} has the check {times} times instead of once"
    );
    Ok(text.replacen(CHECK, NO_CHECK, 1))
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
    if from.ends_with(FILE) {
        bytes = patched(std::str::from_utf8(&bytes)?)?.into_bytes();
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
    fn check_occurs_once_in_the_product_and_not_in_the_copy() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(FILE);
        let text = fs::read_to_string(source).unwrap();
        let without = patched(&text).unwrap();
        assert!(!without.contains(CHECK));
        assert!(patched(&without).is_err());
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
