//! `cargo xtask mutate`: removes one client check at a time from a *copy* of the tree and requires
//! that the named test fails. A check whose removal no test notices is untested.
//!
//! The table is `xtask/mutations.toml`. The copy is in `target/mutate`, so the product itself has no switch
//! that skips a check. The names of checks whose removal was noticed are stored beside it: `--rest` continues
//! an interrupted run. Design: *Quality 4*, the mutation rule.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail, ensure};

use self::copy::{Copy, Verdict};
use self::rows::{Mutation, Table};

mod copy;
pub mod rows;

/// Runs the whole table, the part marked `ci`, or the named mutations; with `--rest` only those that no
/// earlier run has noticed.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    let table = Table::read(root)?;
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
