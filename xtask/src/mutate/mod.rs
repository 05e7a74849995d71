//! `cargo xtask mutate`: removes one client check at a time from a *copy* of the tree and requires
//! that the named test fails. A check whose removal no test notices is untested.
//!
//! Each crate has a table, `crates/X/mutations.toml`. The copy is in `target/mutate`, so the product itself has no
//! switch that skips a check. The names of checks whose removal was noticed are stored beside it: `--rest` continues
//! an interrupted run. [`choice`] says which rows a run of CI tries. Design: *Quality 4*, the mutation rule.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use self::choice::Slice;
use self::copy::{Copy, Verdict};
use self::rows::{Mutation, Table};

mod choice;
mod copy;
pub mod rows;

/// Which rows to try, and for how long.
#[derive(Debug, Default)]
struct Wish {
    list: bool,
    rest: bool,
    /// Rows of files that changed since this commit.
    changed: Option<String>,
    slice: Option<Slice>,
    /// No row begins after this time. Rows of changed files come first.
    limit: Option<Duration>,
    names: Vec<String>,
}

impl Wish {
    fn parse(args: &[String]) -> Result<Wish> {
        let mut wish = Wish::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} wants a value"));
            match arg.as_str() {
                "--list" => wish.list = true,
                "--rest" => wish.rest = true,
                "--changed" => wish.changed = Some(value()?.clone()),
                "--slice" => wish.slice = Some(value()?.parse()?),
                "--minutes" => {
                    wish.limit = Some(Duration::from_secs(60 * value()?.parse::<u64>()?))
                }
                flag if flag.starts_with("--") => bail!("unknown flag {flag}"),
                name => wish.names.push(name.to_owned()),
            }
        }
        Ok(wish)
    }

    /// The rows in the order in which they are tried. Without `--changed`, `--slice` and names: all.
    fn rows<'a>(&self, root: &Path, table: &'a Table) -> Result<Vec<&'a Mutation>> {
        for name in &self.names {
            let is_known = table.mutation.iter().any(|m| m.name == *name);
            ensure!(is_known, "no mutation is called {name}");
        }
        let changed = match &self.changed {
            Some(base) => choice::changed(root, base)?,
            None => BTreeSet::new(),
        };
        let is_all = self.changed.is_none() && self.slice.is_none() && self.names.is_empty();
        let (first, others): (Vec<_>, Vec<_>) = (table.mutation.iter().enumerate())
            .filter(|(at, m)| {
                is_all
                    || self.names.contains(&m.name)
                    || changed.contains(&m.file)
                    || self.slice.is_some_and(|slice| slice.has(*at))
            })
            .partition(|(_, m)| changed.contains(&m.file));
        Ok(first.into_iter().chain(others).map(|(_, m)| m).collect())
    }
}

/// Runs all rows, or those that are chosen; with `--rest` only those that no earlier run has noticed.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    let wish = Wish::parse(args)?;
    let table = Table::read(root)?;
    let noticed = Noticed::in_directory(&root.join("target/mutate"));
    let before = if wish.rest {
        noticed.read()
    } else {
        BTreeSet::new()
    };
    let mut chosen = wish.rows(root, &table)?;
    chosen.retain(|m| !before.contains(&m.name));
    if wish.list {
        for mutation in &chosen {
            println!("{}\t{}\t{}", mutation.name, mutation.file, mutation.test);
        }
        return Ok(());
    }
    let limit = wish.limit.unwrap_or(Duration::MAX);
    run_all(&Copy::of(root)?, &chosen, &noticed, limit)
}

/// The rows of a run of CI: those of files that changed, then a slice of all that moves with the date. Without a git
/// repository that has a base, only the slice.
pub fn ci(root: &Path, limit: Duration) -> Result<()> {
    let slice = Slice::of_today()?;
    let minutes = (limit.as_secs() / 60).max(1);
    let mut args = vec!["--slice".to_owned(), slice.to_string()];
    args.extend(["--minutes".to_owned(), minutes.to_string()]);
    match choice::base(root) {
        Some(base) => {
            eprintln!("mutate: rows of files that changed since {base}, and slice {slice}");
            args.extend(["--changed".to_owned(), base]);
        }
        None => eprintln!("mutate: no commit to compare with was found; slice {slice}"),
    }
    run(root, &args)
}

fn run_all(copy: &Copy, chosen: &[&Mutation], noticed: &Noticed, limit: Duration) -> Result<()> {
    let began = Instant::now();
    let mut survivors = Vec::new();
    let mut tried = 0;
    // The rows of one test binary together: cargo rebuilds little between them.
    for group in choice::groups(chosen) {
        if began.elapsed() >= limit {
            break;
        }
        control(copy, &group)?;
        for mutation in group {
            if began.elapsed() >= limit {
                break;
            }
            tried += 1;
            if !is_noticed(copy, mutation, noticed)? {
                survivors.push(mutation.name.as_str());
            }
        }
    }
    ensure!(
        survivors.is_empty(),
        "checks that no test holds, or mutations that do not compile: {}",
        survivors.join(", ")
    );
    let seconds = began.elapsed().as_secs();
    eprintln!("mutate: {tried} checks removed, each was noticed, {seconds} s in all");
    if tried < chosen.len() {
        let missed = chosen.len() - tried;
        eprintln!(
            "mutate: NOT TRIED for want of time: {missed} of {}",
            chosen.len()
        );
    }
    Ok(())
}

/// Removes one check and runs its test.
fn is_noticed(copy: &Copy, mutation: &Mutation, noticed: &Noticed) -> Result<bool> {
    let trial = Instant::now();
    let path = copy.tree.join(&mutation.file);
    let original = std::fs::read_to_string(&path)?;
    std::fs::write(&path, mutation.apply(&original)?)?;
    let verdict = copy.test(&mutation.package, &mutation.target, &[&mutation.test]);
    std::fs::write(&path, &original)?;
    let verdict = verdict?;
    let is_noticed = verdict == Verdict::Failed;
    noticed.keep(&mutation.name, is_noticed)?;
    let (name, seconds) = (&mutation.name, trial.elapsed().as_secs_f32());
    match verdict {
        Verdict::Failed => eprintln!("mutate: {name} is noticed ({seconds:.1} s)"),
        Verdict::Passed => eprintln!("mutate: {name} is NOT noticed by {}", mutation.test),
        Verdict::Broken(why) => eprintln!("mutate: {name}: {why}"),
    }
    Ok(is_noticed)
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
