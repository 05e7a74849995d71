//! The copy of the tree in which mutants are built and tested. Relies on cargo and timeout(1).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Time limit for building and testing one mutant, seconds. If a test runs for ever without the check, it
/// counts as not failed.
const TRIAL_S: u32 = 300;

/// The result of a test.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Failed,
    /// It did not compile, did not end, or does not exist.
    Broken(String),
}

/// The version of the packages in the copy. Copy and real tree share a build directory, so that dependencies
/// are not compiled twice. Cargo distinguishes packages by name and version, but not by the path of their
/// workspace: without this version, a test of the real tree could use the code of a mutant.
const MUTANT_VERSION: &str = "0.0.0-mutant";

/// The copy of the tree.
pub struct Copy {
    /// Its directory.
    pub tree: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// Updates the copy. Unchanged files keep their times, so that little is built again.
    pub fn of(root: &Path) -> Result<Copy> {
        let base = root.join("target/mutate");
        let copy = Copy {
            tree: base.join("tree"),
            target: root.join("target"),
        };
        let files = crate::tree::files(root)?;
        let wanted: BTreeSet<&PathBuf> = files.iter().collect();
        if copy.tree.exists() {
            for stale in crate::tree::walk(&copy.tree)?
                .iter()
                .filter(|path| !wanted.contains(path))
            {
                remove(&copy.tree, stale)?;
            }
        }
        for file in &files {
            let (from, to) = (root.join(file), copy.tree.join(file));
            let mut bytes = std::fs::read(&from)?;
            match file.to_str() {
                Some("Cargo.toml") => bytes = renamed(&bytes, in_manifest)?,
                Some("Cargo.lock") => bytes = renamed(&bytes, in_lock)?,
                _ => {}
            }
            if std::fs::read(&to).is_ok_and(|old| old == bytes) {
                continue;
            }
            if let Some(parent) = to.parent() {
                std::fs::create_dir_all(parent)?;
            }
            std::fs::write(&to, bytes)?;
        }
        Ok(copy)
    }

    /// Runs exactly these tests of one target.
    pub fn test(&self, package: &str, target: &str, tests: &[&str]) -> Result<Verdict> {
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", &TRIAL_S.to_string(), "cargo"])
            .args(["test", "--quiet", "--package", package])
            .args(crate::cargo::WITH_ALL_FEATURES)
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            // A mutant runs once, so it is built without optimization. Dependencies have settings of their
            // own, and are shared with the tests.
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
            .env("CARGO_PROFILE_DEV_DEBUG", "0");
        match target {
            "lib" => command.arg("--lib"),
            "bin" => command.arg("--bins"),
            name => command.args(["--test", name]),
        };
        let out = command
            .args(["--", "--exact"])
            .args(tests)
            .output()
            .context("running cargo test")?;
        // The exit code of `timeout` when it has ended the command.
        if matches!(out.status.code(), Some(124 | 137)) {
            return Ok(Verdict::Broken(format!("no end within {TRIAL_S} s")));
        }
        Ok(read_verdict(
            tests.len(),
            &String::from_utf8_lossy(&out.stdout),
            &String::from_utf8_lossy(&out.stderr),
        ))
    }
}

/// Removes a file, and the directories that are empty then: a directory in `crates` without a manifest is no crate.
fn remove(tree: &Path, file: &Path) -> Result<()> {
    std::fs::remove_file(tree.join(file))?;
    let above = file.ancestors().skip(1);
    for directory in above.take_while(|at| !at.as_os_str().is_empty()) {
        // The first one that is not empty ends it.
        if std::fs::remove_dir(tree.join(directory)).is_err() {
            break;
        }
    }
    Ok(())
}

/// A manifest or lock file in which our own packages have the version of mutants.
fn renamed(
    text: &[u8],
    versions: fn(&mut toml::Table) -> Vec<&mut toml::Value>,
) -> Result<Vec<u8>> {
    let mut table: toml::Table = std::str::from_utf8(text)?.parse()?;
    let versions = versions(&mut table);
    ensure!(!versions.is_empty(), "no version of a package of ours");
    for version in versions {
        *version = MUTANT_VERSION.into();
    }
    Ok(toml::to_string(&table)?.into_bytes())
}

fn in_manifest(table: &mut toml::Table) -> Vec<&mut toml::Value> {
    let workspace = table.get_mut("workspace");
    let version = workspace.and_then(|w| w.get_mut("package")?.get_mut("version"));
    version.into_iter().collect()
}

fn in_lock(table: &mut toml::Table) -> Vec<&mut toml::Value> {
    let packages = table.get_mut("package").and_then(|p| p.as_array_mut());
    let ours = packages
        .into_iter()
        .flatten()
        .filter(|package| package.get("source").is_none());
    ours.filter_map(|package| package.get_mut("version"))
        .collect()
}

/// Reads the output of `cargo test` for exactly this many tests.
fn read_verdict(tests: usize, stdout: &str, stderr: &str) -> Verdict {
    if stdout.contains(&format!("test result: ok. {tests} passed;")) {
        Verdict::Passed
    } else if stdout.contains("test result: FAILED.") {
        Verdict::Failed
    } else if stdout.contains("test result: ok.") {
        Verdict::Broken("there is no such test".to_owned())
    } else if stderr.contains("SIG") || stderr.contains("process didn't exit successfully") {
        // An abort also ends the harness. It counts as noticed.
        Verdict::Failed
    } else {
        Verdict::Broken(format!("does not compile:\n{stderr}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_goes_with_its_last_file() {
        let tree = tempfile::tempdir().unwrap();
        let at = |name: &str| tree.path().join(name);
        std::fs::create_dir_all(at("crates/old/src")).unwrap();
        for name in ["crates/new", "crates/old/src/lib.rs", "crates/old/src/a.rs"] {
            std::fs::write(at(name), "").unwrap();
        }
        remove(tree.path(), Path::new("crates/old/src/a.rs")).unwrap();
        assert!(at("crates/old/src/lib.rs").exists());
        remove(tree.path(), Path::new("crates/old/src/lib.rs")).unwrap();
        assert!(!at("crates/old").exists() && at("crates/new").exists());
    }

    #[test]
    fn verdicts_are_read_from_real_output() {
        let passed = "\nrunning 1 test\n.\ntest result: ok. 1 passed; 0 failed; 0 ignored;";
        let failed = "\nrunning 1 test\nx --- FAILED\ntest result: FAILED. 0 passed; 1 failed; 0";
        let none = "\nrunning 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored;";
        assert_eq!(read_verdict(1, passed, ""), Verdict::Passed);
        assert_eq!(read_verdict(1, failed, ""), Verdict::Failed);
        assert!(matches!(read_verdict(1, none, ""), Verdict::Broken(_)));
        // One of two names is not a test.
        assert!(matches!(read_verdict(2, passed, ""), Verdict::Broken(_)));
        assert!(matches!(
            read_verdict(1, "", "error[E0308]: mismatched types"),
            Verdict::Broken(_)
        ));
        assert_eq!(
            read_verdict(
                1,
                "running 1 test\n",
                "(signal: 6, SIGABRT: process abort signal)"
            ),
            Verdict::Failed
        );
    }

    #[test]
    fn mutant_has_another_version_than_the_product() {
        let root = crate::workspace_root();
        let read = |name: &str| std::fs::read(root.join(name)).unwrap();
        let table =
            |bytes: &[u8]| -> toml::Table { std::str::from_utf8(bytes).unwrap().parse().unwrap() };
        let (manifest, lock) = (read("Cargo.toml"), read("Cargo.lock"));
        let mutant = table(&renamed(&manifest, in_manifest).unwrap());
        assert_eq!(mutant["profile"], table(&manifest)["profile"]);
        assert!(mutant.to_string().contains(MUTANT_VERSION));
        let mutant = renamed(&lock, in_lock).unwrap();
        for package in table(&mutant)["package"].as_array().unwrap() {
            let is_mutant = package["version"].as_str() == Some(MUTANT_VERSION);
            assert_eq!(is_mutant, package.get("source").is_none());
        }
        assert!(renamed(b"[workspace]", in_manifest).is_err());
        for member in [
            "crates/trust",
            "crates/publish",
            "crates/wire",
            "crates/mount",
        ] {
            let own = std::fs::read_to_string(root.join(member).join("Cargo.toml")).unwrap();
            assert!(own.contains("version.workspace = true"), "{member}");
        }
    }
}
