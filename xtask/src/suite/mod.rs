//! `cargo xtask test`: builds all tests as `cargo test --workspace` does, and runs the test binaries four
//! at a time, longest first. Tests that measure time or use mounts and network namespaces run alone after
//! them, beside nothing but tests that only compute: `xtask/tests.toml` lists both. Decision:
//! docs/decisions/0026.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

mod job;
mod plan;
mod schedule;
mod sum;

pub use sum::Sum;

use crate::cargo::{self, Executable};
use job::{Job, Outcome, Place};

/// Number of test binaries that run at a time. They mostly wait for disks, sockets and deadlines, so this is
/// more than the number of processors.
const LANES: usize = 4;

/// The longest time for one test binary. The long suite runs single tests of many minutes.
const LIMIT: Duration = Duration::from_secs(300);
const LIMIT_LONG: Duration = Duration::from_secs(3600);

/// Environment under which cargo checks lints while it compiles.
const WITH_LINTS: [(&str, &str); 2] = [("RUSTC_WORKSPACE_WRAPPER", cargo::LINTER), cargo::LINTS];

/// Which tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Unit, integration and documentation tests.
    All,
    /// Unit tests of libraries and binaries.
    Unit,
}

/// `cargo xtask test [--unit]`.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    let which = match args {
        [] => Which::All,
        [flag] if flag == "--unit" => Which::Unit,
        _ => anyhow::bail!("the only argument is --unit"),
    };
    let built = build(root, which)?;
    let (sum, outcome) = run_built(root, which, &built)?;
    println!("\n{}", sum.line(outcome.is_ok()));
    outcome
}

/// Builds the tests. With [`Which::All`], lints are checked in the same pass, also in the programs that no
/// test runs.
pub fn build(root: &Path, which: Which) -> Result<Vec<Executable>> {
    // Fuzz targets are no tests and would be linked without instrumentation; they have a step of their own.
    let cargo = |verb: &str| {
        let mut cargo = Command::new("cargo");
        cargo
            .args([verb, "--workspace", "--exclude=bulla-fuzz", "--quiet"])
            .current_dir(root);
        cargo
    };
    let mut tests = cargo("test");
    tests.arg("--no-run");
    match which {
        Which::Unit => {
            tests.args(["--lib", "--bins"]);
        }
        Which::All => {
            tests.envs(WITH_LINTS);
            let status = cargo("build").arg("--bins").envs(WITH_LINTS).status()?;
            ensure!(status.success(), "building the programs failed");
        }
    }
    let mut built = cargo::executables(&mut tests)?;
    built.retain(|executable| executable.is_test);
    ensure!(!built.is_empty(), "there are no tests");
    Ok(built)
}

/// Runs what [`build`] built. Returns the sum also when tests failed.
pub fn run_built(root: &Path, which: Which, built: &[Executable]) -> Result<(Sum, Result<()>)> {
    let logs = root.join("target/test-logs");
    std::fs::create_dir_all(&logs)?;
    let limit = match crate::is_long() {
        true => LIMIT_LONG,
        false => LIMIT,
    };
    let text = std::fs::read_to_string(root.join("xtask/tests.toml"))?;
    let table = plan::Table::parse(&text).context("reading xtask/tests.toml")?;
    let mut jobs = table.jobs(built, &logs, limit, which == Which::All)?;
    if which == Which::All {
        jobs.push(documentation(root, &logs, limit));
    }
    let outcomes = schedule::run(jobs, LANES, |outcome| eprint!("{}", outcome.report()));
    let sum = outcomes.iter().map(|outcome| outcome.sum).sum();
    skipped(&outcomes);
    Ok((sum, verdict(&outcomes)))
}

/// Documentation tests: cargo builds and runs them by itself, on the libraries that [`build`] built.
fn documentation(root: &Path, logs: &Path, limit: Duration) -> Job {
    let lints = WITH_LINTS.map(|(name, value)| format!("{name}={value}"));
    let test = "cargo test --workspace --exclude=bulla-fuzz --doc --quiet";
    Job {
        name: "documentation".to_owned(),
        program: "env".into(),
        args: lints
            .into_iter()
            .chain(test.split(' ').map(str::to_owned))
            .collect(),
        directory: root.to_path_buf(),
        log: logs.join("documentation.txt"),
        limit,
        // Mostly the compiler.
        place: Place::Behind,
        expected_s: 90,
    }
}

/// Lists the tests that could not run on this machine.
fn skipped(outcomes: &[Outcome]) {
    let lines = outcomes.iter().flat_map(|outcome| outcome.output.lines());
    let mut lines: Vec<&str> = lines.filter(|line| line.contains("SKIPPED")).collect();
    lines.sort_unstable();
    lines.dedup();
    if !lines.is_empty() {
        eprintln!("\n== SKIPPED on this machine:\n{}", lines.join("\n"));
    }
}

fn verdict(outcomes: &[Outcome]) -> Result<()> {
    let failures: Vec<String> = outcomes.iter().filter_map(Outcome::failure).collect();
    ensure!(failures.is_empty(), "tests failed: {}", failures.join("; "));
    Ok(())
}
