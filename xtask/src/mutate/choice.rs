//! Which rows a run of CI tries: all rows of files that changed since the last commit on the main branch that it can
//! find, and a slice of the whole table that moves with the date. Relies on git. Decision: docs/decisions/0026.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};

use super::rows::Mutation;

/// The number of slices. A prime, so that runs every 1, 3, 8, 24 or 168 hours visit all of them.
const SLICES: usize = 19;
/// How long one slice stays, seconds.
const SLICE_S: u64 = 3600;

/// The package of the command line.
const PROGRAM: &str = "bulla";

/// What counts as one change where all commits are on the main branch already: the commits of this time, seconds.
const CHANGE_S: i64 = 4 * 3600;

/// Each `of`-th row from the row `number` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    number: usize,
    of: usize,
}

impl Slice {
    /// The slice of this moment.
    pub fn of_today() -> Result<Slice> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        Ok(Slice::at(now.as_secs()))
    }

    fn at(unix_s: u64) -> Slice {
        let number = (unix_s / SLICE_S) % SLICES as u64;
        Slice {
            number: number as usize,
            of: SLICES,
        }
    }

    /// Whether the row at this place of the table is in the slice.
    pub fn has(self, at: usize) -> bool {
        at % self.of == self.number
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl FromStr for Slice {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Slice> {
        let (number, of) = text.split_once('/').context("a slice is NUMBER/OF")?;
        let (number, of) = (number.parse()?, of.parse()?);
        ensure!(number < of, "there is no slice {text}: the first is 0/{of}");
        Ok(Slice { number, of })
    }
}

/// Rows of one package and target together, in the order of their first row. Those that need the whole program come last:
/// each of them takes some thirty seconds to build.
pub fn groups<'a>(rows: &[&'a Mutation]) -> Vec<Vec<&'a Mutation>> {
    let mut places = BTreeMap::new();
    let mut groups: Vec<Vec<&Mutation>> = Vec::new();
    for row in rows {
        let place = *places
            .entry((&row.package, &row.target))
            .or_insert_with(|| {
                groups.push(Vec::new());
                groups.len() - 1
            });
        groups[place].push(row);
    }
    groups.sort_by_key(|rows| rows.iter().any(|row| row.package == PROGRAM));
    groups
}

/// The commit with which a run of CI compares: where this branch left the main branch; on the main branch itself, the
/// newest commit that is older than the change that ends here.
pub fn base(root: &Path) -> Option<String> {
    let head = git(root, &["rev-parse", "HEAD"])?;
    for main in ["origin/main", "main"] {
        let base = git(root, &["merge-base", "HEAD", main]);
        if let Some(base) = base.filter(|base| *base != head) {
            return Some(base);
        }
    }
    let at: i64 = git(root, &["show", "--no-patch", "--format=%ct", "HEAD"])?
        .parse()
        .ok()?;
    let before = format!("--before={}", at - CHANGE_S);
    git(root, &["rev-list", "-1", "--first-parent", &before, "HEAD"])
}

/// The files that differ from those of a commit, also where the difference is not committed.
pub fn changed(root: &Path, base: &str) -> Result<BTreeSet<String>> {
    let names = git(root, &["diff", "--name-only", base, "--"]);
    let names = names.with_context(|| format!("git finds no difference from {base}"))?;
    Ok(names.lines().map(str::to_owned).collect())
}

/// The output of git, if it succeeds and says something.
fn git(root: &Path, args: &[&str]) -> Option<String> {
    let out = Command::new("git")
        .args(args)
        .current_dir(root)
        .output()
        .ok()?;
    let text = String::from_utf8(out.stdout).ok()?.trim().to_owned();
    (out.status.success() && (!text.is_empty() || args[0] == "diff")).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_in_a_slice_of_some_twenty_runs_at_any_rhythm() {
        for hours in [1, 3, 6, 8, 12, 24, 48, 7 * 24] {
            let runs = (0..SLICES as u64).map(|run| Slice::at(1_790_000_000 + run * hours * 3600));
            let slices: BTreeSet<usize> = runs.map(|slice| slice.number).collect();
            assert_eq!(slices.len(), SLICES, "every {hours} hours");
        }
        let slice: Slice = "2/5".parse().unwrap();
        let rows: Vec<usize> = (0..12).filter(|at| slice.has(*at)).collect();
        assert_eq!(rows, [2, 7]);
        assert!("5/5".parse::<Slice>().is_err() && "5".parse::<Slice>().is_err());
    }

    fn commit(root: &Path, file: &str, unix_s: i64) -> String {
        std::fs::write(root.join(file), unix_s.to_string()).unwrap();
        let date = format!("{unix_s} +0000");
        for args in [&["add", "."][..], &["commit", "--quiet", "-m", "x: y"]] {
            let status = Command::new("git")
                .args(["-c", "user.name=x", "-c", "user.email=x@invalid"])
                .args(args)
                .env("GIT_COMMITTER_DATE", &date)
                .current_dir(root)
                .status();
            assert!(status.unwrap().success());
        }
        git(root, &["rev-parse", "HEAD"]).unwrap()
    }

    #[test]
    fn base_is_the_main_branch_or_the_commit_before_this_change() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        assert_eq!(base(root), None);
        assert!(git(root, &["init", "--quiet", "--initial-branch=main"]).is_none());
        let at = 1_790_000_000;
        let old = commit(root, "old.rs", at);
        assert_eq!(base(root), None, "no commit is older");
        commit(root, "one.rs", at + CHANGE_S);
        let last = commit(root, "two.rs", at + CHANGE_S + 60);
        assert_eq!(base(root), Some(old.clone()));
        let names = ["one.rs", "two.rs"].map(str::to_owned);
        assert_eq!(changed(root, &old).unwrap(), BTreeSet::from(names));
        git(root, &["checkout", "--quiet", "-b", "branch"]);
        commit(root, "three.rs", at + CHANGE_S + 120);
        assert_eq!(base(root), Some(last));
        assert!(changed(root, "gone").is_err());
    }
}
