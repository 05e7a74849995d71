//! From test binaries to jobs, by the table `xtask/tests.toml`: which tests of a binary run alone, and how
//! long each process takes. A row that fits no binary or no test is an error.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Deserialize;

use super::Tests;
use super::job::{Job, Place};
use crate::cargo::Executable;

/// The table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    run: Vec<Row>,
}

/// One process.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// Directory of the package and target: `cli/cli`, `trust/lib`.
    binary: String,
    /// The module of tests that this row is about, as `network::`. Without it: all tests that no other row
    /// names.
    tests: Option<String>,
    /// Whether only what computes may run at the same time.
    #[serde(default)]
    alone: bool,
    /// Whether these tests only compute: no clock bounds them, and nothing else is disturbed by them.
    #[serde(default)]
    computes: bool,
    /// Whether only CI runs it: `make test` is for a newcomer, who waits.
    #[serde(default)]
    slow: bool,
    /// How long it takes on two idle processors.
    seconds: u32,
}

impl Table {
    /// Reads the table.
    pub fn parse(text: &str) -> Result<Table> {
        let table: Table = toml::from_str(text)?;
        for (at, row) in table.run.iter().enumerate() {
            let same = |other: &Row| other.binary == row.binary && other.tests == row.tests;
            ensure!(!table.run[..at].iter().any(same), "{} twice", row.name());
            let is_one = !(row.alone && row.computes);
            ensure!(is_one, "{} is alone, or computes", row.name());
        }
        Ok(table)
    }

    /// The names of the rows that only [`Tests::All`] runs.
    pub fn slow(&self) -> Vec<String> {
        let slow = self.run.iter().filter(|row| row.slow);
        slow.map(Row::name).collect()
    }

    /// The jobs for some binaries. Except for [`Tests::Unit`], each row must fit one of them.
    pub fn jobs(
        &self,
        built: &[Executable],
        logs: &Path,
        limit: Duration,
        which: Tests,
    ) -> Result<Vec<Job>> {
        let wanted = |row: &Row| !row.slow || which != Tests::Quick;
        for row in self.run.iter().filter(|_| which != Tests::Unit) {
            let fits = built.iter().any(|it| name(it) == row.binary);
            ensure!(fits, "xtask/tests.toml: there is no {}", row.binary);
        }
        let mut jobs = Vec::new();
        for executable in built {
            let name = name(executable);
            let rows = || self.run.iter().filter(|row| row.binary == name);
            let parts: Vec<&str> = rows().filter_map(|row| row.tests.as_deref()).collect();
            if !parts.is_empty() {
                check_parts(&name, &parts, &executable.tests()?)?;
            }
            let rest = rows().find(|row| row.tests.is_none());
            let job = |name: String, args: Vec<String>, row: Option<&Row>| Job {
                log: logs.join(format!("{}.txt", name.replace(['/', ' ', ':'], "-"))),
                name,
                program: executable.path.clone().into(),
                args,
                env: None,
                directory: executable.directory.clone(),
                limit,
                place: row.map_or(Place::Together, Row::place),
                expected_s: row.map_or(1, |row| row.seconds),
            };
            for row in rows().filter(|row| row.tests.is_some() && wanted(row)) {
                let part = row.tests.iter().cloned().collect();
                jobs.push(job(row.name(), part, Some(row)));
            }
            let skip = |part: &&str| ["--skip".to_owned(), (*part).to_owned()];
            if rest.is_none_or(wanted) {
                jobs.push(job(name, parts.iter().flat_map(skip).collect(), rest));
            }
        }
        Ok(jobs)
    }
}

impl Row {
    fn place(&self) -> Place {
        match (self.alone, self.computes) {
            (true, _) => Place::Alone,
            (false, true) => Place::Behind,
            (false, false) => Place::Together,
        }
    }

    fn name(&self) -> String {
        match &self.tests {
            None => self.binary.clone(),
            Some(tests) => format!("{} {tests}", self.binary),
        }
    }
}

/// `cli/cli`, `trust/lib`, `xtask/bin`.
fn name(executable: &Executable) -> String {
    let package = executable.directory.file_name().unwrap_or_default();
    let target = match executable.kind.as_str() {
        "test" => executable.target.as_str(),
        kind => kind,
    };
    format!("{}/{target}", package.to_string_lossy())
}

/// The harness finds a filter anywhere in a name. Each test must run exactly once, so a filter may match only
/// at the beginning of names.
fn check_parts(binary: &str, parts: &[&str], tests: &[String]) -> Result<()> {
    for part in parts {
        let mut fitting = tests.iter().filter(|test| test.contains(part)).peekable();
        ensure!(fitting.peek().is_some(), "{binary} has no tests {part}");
        for test in fitting {
            let others = parts.iter().filter(|other| test.contains(**other));
            ensure!(
                test.starts_with(part) && others.count() == 1,
                "{binary}: {part} does not name a module of tests: {test}"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn executable(package: &str, target: &str, kind: &str) -> Executable {
        Executable {
            directory: format!("/w/crates/{package}").into(),
            target: target.to_owned(),
            kind: kind.to_owned(),
            is_test: true,
            path: format!("/w/target/{package}-{target}").into(),
        }
    }

    fn jobs(table: &str, built: &[Executable], which: Tests) -> Result<Vec<Job>> {
        let limit = Duration::from_secs(1);
        Table::parse(table)?.jobs(built, Path::new("/logs"), limit, which)
    }

    #[test]
    fn a_binary_without_a_row_runs_with_others() {
        let built = [
            executable("trust", "trust", "lib"),
            executable("serve", "http", "test"),
        ];
        let table = "run = [{ binary = 'serve/http', alone = true, seconds = 7 }]";
        let jobs = jobs(table, &built, Tests::All).unwrap();
        let found: Vec<_> = jobs
            .iter()
            .map(|job| (job.name.as_str(), job.place))
            .collect();
        let expected = [("trust/lib", Place::Together), ("serve/http", Place::Alone)];
        assert_eq!(found, expected);
        assert_eq!(jobs[1].expected_s, 7);
        assert!(jobs.iter().all(|job| job.args.is_empty()));
    }

    #[test]
    fn a_slow_row_runs_in_ci_only() {
        let built = [executable("a", "b", "test"), executable("c", "d", "test")];
        let table = "run = [{ binary = 'a/b', slow = true, seconds = 7 }]";
        let names = |which| -> Vec<String> {
            let jobs = jobs(table, &built, which).unwrap();
            jobs.into_iter().map(|job| job.name).collect()
        };
        assert_eq!(names(Tests::All), ["a/b", "c/d"]);
        assert_eq!(names(Tests::Quick), ["c/d"]);
        assert_eq!(Table::parse(table).unwrap().slow(), ["a/b"]);
    }

    /// The module that is left out is not part of the rest of its binary either.
    #[test]
    fn a_slow_module_is_left_out_of_its_binary() {
        let own = Executable {
            path: std::env::current_exe().unwrap(),
            directory: crate::workspace_root().join("xtask"),
            ..executable("xtask", "xtask", "bin")
        };
        let table = "run = [{ binary = 'xtask/bin', tests = 'tree::', slow = true, seconds = 1 }]";
        let jobs = jobs(table, std::slice::from_ref(&own), Tests::Quick).unwrap();
        let [rest] = &jobs[..] else {
            panic!("{jobs:?}");
        };
        assert_eq!(rest.args, ["--skip", "tree::"]);
    }

    #[test]
    fn a_row_that_fits_no_binary_fires() {
        let built = [executable("trust", "trust", "lib")];
        let table = "run = [{ binary = 'serve/gone', seconds = 7 }]";
        assert!(jobs(table, &built, Tests::Quick).is_err());
        assert!(jobs(table, &built, Tests::Unit).is_ok());
    }

    #[test]
    fn a_row_that_occurs_twice_fires() {
        let row = "{ binary = 'a/b', tests = 'c::', seconds = 1 }";
        assert!(Table::parse(&format!("run = [{row}]")).is_ok());
        assert!(Table::parse(&format!("run = [{row}, {row}]")).is_err());
        let both = "{ binary = 'a/b', alone = true, computes = true, seconds = 1 }";
        assert!(Table::parse(&format!("run = [{both}]")).is_err());
    }

    #[test]
    fn parts_that_run_a_test_never_or_twice_fire() {
        let tests = ["network::a", "units::b", "units::network::c"].map(str::to_owned);
        assert!(check_parts("x", &["network::"], &tests[..2]).is_ok());
        assert!(check_parts("x", &["gone::"], &tests).is_err());
        assert!(check_parts("x", &["network::"], &tests).is_err());
        assert!(check_parts("x", &["units::", "units::network::"], &tests).is_err());
    }

    /// Divides this binary: each test runs once.
    #[test]
    fn parts_of_a_binary_have_all_its_tests() {
        let own = Executable {
            path: std::env::current_exe().unwrap(),
            directory: crate::workspace_root().join("xtask"),
            ..executable("xtask", "xtask", "bin")
        };
        let table = "run = [{ binary = 'xtask/bin', tests = 'suite::plan::', seconds = 1 }]";
        let jobs = jobs(table, std::slice::from_ref(&own), Tests::All).unwrap();
        let listed = |args: &[String]| {
            let out = Command::new(&own.path).args(args).arg("--list").output();
            String::from_utf8(out.unwrap().stdout)
                .unwrap()
                .matches(": test\n")
                .count()
        };
        let [part, rest] = &jobs[..] else {
            panic!("{jobs:?}");
        };
        assert!(listed(&part.args) > 0);
        assert_eq!(listed(&part.args) + listed(&rest.args), listed(&[]));
    }
}
