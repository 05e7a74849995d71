//! `cargo xtask test`: builds all tests as `cargo test --workspace` does, and runs the test binaries four
//! at a time, longest first. Tests that measure time or use mounts and network namespaces run alone after
//! them, beside nothing but tests that only compute: `xtask/tests.toml` lists both. Decision:
//! docs/decisions/0026.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

mod job;
mod plan;
mod schedule;
mod sum;

pub use sum::Sum;

use crate::cargo::{self, Executable};
use job::Outcome;

/// Number of test binaries that run at a time. They mostly wait for disks, sockets and deadlines, so this is
/// more than the number of processors.
const LANES: usize = 4;

/// The longest time for one test binary. What only computes has the lowest priority: beside a build, the model of the
/// ordering protocol takes more than five minutes. The long suite runs single tests of many minutes.
const LIMIT: Duration = Duration::from_secs(600);
const LIMIT_LONG: Duration = Duration::from_secs(3600);

/// The cases of a property in a quick run, unless the variable is set; proptest itself says 256.
const CASES_VARIABLE: &str = "PROPTEST_CASES";
const QUICK_CASES: &str = "32";

/// Environment under which cargo checks lints while it compiles.
const WITH_LINTS: [(&str, &str); 2] = [("RUSTC_WORKSPACE_WRAPPER", cargo::LINTER), cargo::LINTS];

/// Which tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tests {
    /// What `make test` runs: unit and integration tests that are not slow, and few cases of each property.
    Quick,
    /// What CI runs: all tests with all cases.
    All,
    /// Unit tests of libraries and binaries.
    Unit,
}

/// `cargo xtask test [--all | --unit]`.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    let which = match args {
        [] if crate::is_long() => Tests::All,
        [] => Tests::Quick,
        [flag] if flag == "--all" => Tests::All,
        [flag] if flag == "--unit" => Tests::Unit,
        _ => anyhow::bail!("the only arguments are --all and --unit"),
    };
    let began = Instant::now();
    let built = build(root, which)?;
    let took_s = began.elapsed().as_secs();
    eprintln!(
        "\n{took_s} s to build, now {} test binaries run",
        built.len()
    );
    let (sum, outcome) = run_built(root, which, &built)?;
    eprintln!("{} s in all", began.elapsed().as_secs());
    println!("\n{}", sum.line(outcome.is_ok()));
    outcome
}

/// Builds the tests. With [`Tests::All`], lints are checked in the same pass, also in the programs that no
/// test runs.
pub fn build(root: &Path, which: Tests) -> Result<Vec<Executable>> {
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
        Tests::Unit => {
            tests.args(["--lib", "--bins"]);
        }
        Tests::Quick => {}
        Tests::All => {
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
pub fn run_built(root: &Path, which: Tests, built: &[Executable]) -> Result<(Sum, Result<()>)> {
    let logs = root.join("target/test-logs");
    std::fs::create_dir_all(&logs)?;
    let limit = match crate::is_long() {
        true => LIMIT_LONG,
        false => LIMIT,
    };
    let text = std::fs::read_to_string(root.join("xtask/tests.toml"))?;
    let table = plan::Table::parse(&text).context("reading xtask/tests.toml")?;
    let mut jobs = table.jobs(built, &logs, limit, which)?;
    if which == Tests::Quick && std::env::var_os(CASES_VARIABLE).is_none() {
        for job in &mut jobs {
            job.env = Some((CASES_VARIABLE, QUICK_CASES));
        }
    }
    let outcomes = schedule::run(jobs, LANES, |outcome| eprint!("{}", outcome.report()));
    let sum = outcomes.iter().map(|outcome| outcome.sum).sum();
    skipped(&outcomes);
    if which == Tests::Quick {
        let slow = table.slow().join(", ");
        eprintln!("\n== Slow tests that did not run (BULLA_ALL=1 runs them): {slow}\n");
    }
    Ok((sum, verdict(&outcomes)))
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
