//! `cargo xtask mutate`: removes one client check at a time from a *copy* of the tree and requires
//! that the named test fails. A check whose removal no test notices is untested.
//!
//! The table is `xtask/mutations.toml`. The copy is in `target/mutate`, so the product itself has no switch
//! that skips a check. The names of checks whose removal was noticed are stored beside it: `--rest` continues
//! an interrupted run. Design: *Quality 4*, the mutation rule.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    mutation: Vec<Mutation>,
}

/// One check to remove.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutation {
    /// Name of the check, as `block-hash`.
    name: String,
    /// The file with the check.
    file: String,
    /// The exact text, which must occur once.
    find: String,
    /// The replacement.
    replace: String,
    /// The package whose test must fail.
    package: String,
    /// `lib`, or the name of an integration test.
    target: String,
    /// The full name of the test.
    test: String,
    /// Whether the short run (CI) includes it.
    #[serde(default)]
    ci: bool,
}

impl Mutation {
    fn apply(&self, text: &str) -> Result<String> {
        let times = text.matches(&self.find).count();
        ensure!(
            times == 1,
            "{}: the text to replace occurs {times} times in {}",
            self.name,
            self.file
        );
        Ok(text.replacen(&self.find, &self.replace, 1))
    }
}

/// Time limit for building and testing one mutant, seconds. If a test runs for ever without the check, it
/// counts as not failed.
const TRIAL_S: u32 = 300;

/// The result of a test.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    /// It did not compile, did not end, or does not exist.
    Broken(String),
}

/// Runs the whole table, the part marked `ci`, or the named mutations; with `--rest` only those that no
/// earlier run has noticed.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    let text = std::fs::read_to_string(root.join("xtask/mutations.toml"))?;
    let table: Table = toml::from_str(&text).context("reading xtask/mutations.toml")?;
    let (flags, names): (Vec<&String>, Vec<&String>) =
        args.iter().partition(|arg| arg.starts_with("--"));
    let flag = |name: &str| flags.iter().any(|flag| *flag == name);
    let known = ["--list", "--ci", "--rest"];
    if let Some(unknown) = flags.iter().find(|f| !known.contains(&f.as_str())) {
        bail!("unknown flag {unknown}");
    }
    for name in &names {
        ensure!(
            table.mutation.iter().any(|m| m.name == **name),
            "no mutation is called {name}"
        );
    }
    let noticed = Noticed::in_directory(&root.join("target/mutate"));
    let before = if flag("--rest") {
        noticed.read()
    } else {
        BTreeSet::new()
    };
    let chosen: Vec<&Mutation> = table
        .mutation
        .iter()
        .filter(|m| !flag("--ci") || m.ci)
        .filter(|m| names.is_empty() || names.iter().any(|name| **name == m.name))
        .filter(|m| !before.contains(&m.name))
        .collect();
    if flag("--list") {
        for mutation in &chosen {
            println!("{}\t{}\t{}", mutation.name, mutation.file, mutation.test);
        }
        return Ok(());
    }
    run_all(&Copy::of(root)?, &chosen, &noticed)
}

fn run_all(copy: &Copy, chosen: &[&Mutation], noticed: &Noticed) -> Result<()> {
    let began = Instant::now();
    control(copy, chosen)?;
    let mut survivors = Vec::new();
    for mutation in chosen {
        let trial = Instant::now();
        let path = copy.tree.join(&mutation.file);
        let original = std::fs::read_to_string(&path)?;
        std::fs::write(&path, mutation.apply(&original)?)?;
        let verdict = copy.test(&mutation.package, &mutation.target, &[&mutation.test]);
        std::fs::write(&path, &original)?;
        let verdict = verdict?;
        noticed.keep(&mutation.name, verdict == Verdict::Failed)?;
        let (name, seconds) = (&mutation.name, trial.elapsed().as_secs_f32());
        match verdict {
            Verdict::Failed => eprintln!("mutate: {name} is noticed ({seconds:.1} s)"),
            Verdict::Passed => {
                eprintln!("mutate: {name} is NOT noticed by {}", mutation.test);
                survivors.push(name.as_str());
            }
            Verdict::Broken(why) => {
                eprintln!("mutate: {name}: {why}");
                survivors.push(name.as_str());
            }
        }
    }
    ensure!(
        survivors.is_empty(),
        "checks that no test holds, or mutations that do not compile: {}",
        survivors.join(", ")
    );
    eprintln!(
        "mutate: {} checks removed, each was noticed, {} s in all",
        chosen.len(),
        began.elapsed().as_secs()
    );
    Ok(())
}

/// The control: every named test exists, and passes without a mutation.
fn control(copy: &Copy, chosen: &[&Mutation]) -> Result<()> {
    let mut tests: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for m in chosen {
        let of = tests.entry((&m.package, &m.target)).or_default();
        of.insert(&m.test);
    }
    for ((package, target), names) in tests {
        let names: Vec<&str> = names.into_iter().collect();
        if copy.test(package, target, &names)? == Verdict::Passed {
            continue;
        }
        for name in names {
            let verdict = copy.test(package, target, &[name])?;
            ensure!(
                verdict == Verdict::Passed,
                "with nothing removed, {package} {name}: {verdict:?}"
            );
        }
    }
    Ok(())
}

/// The names of checks whose removal was noticed in the last run, one per line.
struct Noticed {
    path: PathBuf,
}

impl Noticed {
    fn in_directory(directory: &Path) -> Noticed {
        Noticed {
            path: directory.join("noticed"),
        }
    }

    fn read(&self) -> BTreeSet<String> {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn keep(&self, name: &str, is_noticed: bool) -> Result<()> {
        let mut names = self.read();
        if is_noticed {
            names.insert(name.to_owned());
        } else {
            names.remove(name);
        }
        let names: Vec<String> = names.into_iter().collect();
        Ok(std::fs::write(&self.path, names.join("\n"))?)
    }
}

/// The version of the packages in the copy. Copy and real tree share a build directory, so that dependencies
/// are not compiled twice. Cargo distinguishes packages by name and version, but not by the path of their
/// workspace: without this version, a test of the real tree could use the code of a mutant.
const MUTANT_VERSION: &str = "0.0.0-mutant";

/// The copy of the tree.
struct Copy {
    tree: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// Updates the copy. Unchanged files keep their times, so that little is built again.
    fn of(root: &Path) -> Result<Copy> {
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
                std::fs::remove_file(copy.tree.join(stale))?;
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
    fn test(&self, package: &str, target: &str, tests: &[&str]) -> Result<Verdict> {
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
    fn a_mutation_fits_its_text_exactly_once() {
        let root = crate::workspace_root();
        let text = std::fs::read_to_string(root.join("xtask/mutations.toml")).unwrap();
        let table: Table = toml::from_str(&text).unwrap();
        let mut names = BTreeSet::new();
        for mutation in &table.mutation {
            let source = std::fs::read_to_string(root.join(&mutation.file)).unwrap();
            let mutated = mutation.apply(&source).unwrap();
            assert_ne!(mutated, source, "{} changes nothing", mutation.name);
            assert!(names.insert(&mutation.name), "{} twice", mutation.name);
        }
        assert!(table.mutation.iter().any(|m| m.ci), "CI runs none");
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

    #[test]
    fn noticed_mutations_are_stored_until_they_are_missed() {
        let directory = tempfile::tempdir().unwrap();
        let noticed = Noticed::in_directory(directory.path());
        assert!(noticed.read().is_empty());
        noticed.keep("a", true).unwrap();
        noticed.keep("b", true).unwrap();
        noticed.keep("a", false).unwrap();
        assert_eq!(noticed.read(), BTreeSet::from(["b".to_owned()]));
    }

    #[test]
    fn text_that_occurs_twice_is_refused() {
        let mutation = Mutation {
            name: "x".into(),
            file: "x".into(),
            find: "a".into(),
            replace: "b".into(),
            package: "x".into(),
            target: "lib".into(),
            test: "x".into(),
            ci: false,
        };
        assert!(mutation.apply("aa").is_err());
        assert!(mutation.apply("c").is_err());
        assert_eq!(mutation.apply("ca").unwrap(), "cb");
    }
}
