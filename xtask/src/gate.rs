//! `cargo xtask check` and `cargo xtask ci`: the steps behind `make check` and `BULLA_ALL=1 make test`. The time of each
//! step is printed. CI has one budget for all steps, and fails when it takes longer. Decision: docs/decisions/0026.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};

use crate::suite::{self, Sum, Tests};
use crate::{fuzz, mutate, tidy};

/// The budget of CI from a fresh clone on two processors. Tests that take longer belong into the long run.
const CI: Duration = Duration::from_secs(30 * 60);

/// Multiplies the budget. The default has a reserve for machines that others use too.
const FACTOR_VARIABLE: &str = "BULLA_BUDGET_FACTOR";
const DEFAULT_FACTOR: f64 = 2.0;

/// The time for mutations in a run of CI. What a large change leaves of its rows is named and not tried.
const MUTATIONS: Duration = Duration::from_secs(10 * 60);

/// Seconds for which each fuzz target runs.
const FUZZ_S: &str = "3";
const FUZZ_LONG_S: &str = "60";
/// The short run draws the same numbers each time: it judges a change, and the long run searches (decision 0014).
const FUZZ_SEED: &str = "1";

/// `cargo xtask check`: format, lints, house rules and unit tests.
pub fn check(root: &Path, args: &[String]) -> Result<()> {
    let mut gate = Gate::begin(None, args)?;
    static_checks(&mut gate, root)?;
    lint(&mut gate, root, &["--workspace"])?;
    let built = gate.step("building unit tests", || suite::build(root, Tests::Unit))?;
    let ran = gate.step("running unit tests", || {
        suite::run_built(root, Tests::Unit, &built)
    });
    let (sum, outcome) = ran?;
    gate.end(sum, outcome.err().into_iter().collect())
}

/// `cargo xtask ci`: everything. With `BULLA_LONG` set, it includes the long tests and has no budget. The
/// last line is the sum of all test runs, in the format of the test harness.
pub fn ci(root: &Path, args: &[String]) -> Result<()> {
    let is_long = crate::is_long();
    let mut gate = Gate::begin((!is_long).then_some(CI), args)?;
    std::fs::create_dir_all(root.join("target"))?;
    std::fs::write(root.join(MOUNTS_BEFORE), mounts(root, &["list"])?)?;
    static_checks(&mut gate, root)?;
    if is_long {
        let with_benches = ["--package=bulla-bench", "--features=micro"];
        lint(&mut gate, root, &with_benches)?;
    }
    let mut errors = Vec::new();
    let mut sum = Sum::default();
    let built = gate.step("lints and building tests", || {
        suite::build(root, Tests::All)
    });
    let ran = built.and_then(|built| {
        mutate::rows::Table::read(root)?.check_tests(&built)?;
        let run = || suite::run_built(root, Tests::All, &built);
        let (counted, outcome) = gate.step("running tests", run)?;
        sum = counted;
        outcome
    });
    match ran {
        // If a test fails already, mutants show nothing.
        Err(error) => errors.push(error),
        Ok(()) => {
            let tried = gate.step("mutations", || match is_long {
                true => mutate::run(root, &[]),
                false => mutate::ci(root, MUTATIONS),
            });
            errors.extend(tried.err());
        }
    }
    // Runs also after a failed test, because broken fuzz targets should be found at once.
    let seconds = if is_long { FUZZ_LONG_S } else { FUZZ_S };
    let mut args = vec!["--seconds", seconds];
    if !is_long {
        args.extend(["--seed", FUZZ_SEED]);
    }
    let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
    let fuzzed = gate.step("fuzz", || fuzz::run(root, &args));
    errors.extend(fuzzed.err());
    let left = gate.step("mounts", || mounts(root, &["check", MOUNTS_BEFORE]));
    errors.extend(left.err());
    gate.end(sum, errors)
}

const MOUNTS_BEFORE: &str = "target/mounts-before.txt";

/// Lists the bulla mounts, or fails if there are new ones.
fn mounts(root: &Path, args: &[&str]) -> Result<Vec<u8>> {
    let out = Command::new("scripts/mounts-left.sh")
        .args(args)
        .current_dir(root)
        .output()
        .context("running scripts/mounts-left.sh")?;
    let error = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "{}", error.trim_end());
    Ok(out.stdout)
}

/// Format and house rules.
fn static_checks(gate: &mut Gate, root: &Path) -> Result<()> {
    gate.step("format", || cargo(root, &["fmt", "--all", "--check"]))?;
    gate.step("house rules", || tidy::run(root))
}

/// Lints as a step of their own.
fn lint(gate: &mut Gate, root: &Path, packages: &[&str]) -> Result<()> {
    let all = [&["clippy"], packages, &["--all-targets", "--quiet"]].concat();
    let denied = ["--", "-D", "warnings"];
    gate.step("lints", || cargo(root, &[&all[..], &denied].concat()))
}

fn cargo(root: &Path, args: &[&str]) -> Result<()> {
    let status = Command::new("cargo")
        .args(args)
        .current_dir(root)
        .status()?;
    ensure!(
        status.success(),
        "cargo {} failed",
        args.first().unwrap_or(&"")
    );
    Ok(())
}

/// The steps of a run, with their times.
struct Gate {
    budget: Option<Duration>,
    taken: Vec<(&'static str, Duration)>,
}

impl Gate {
    /// Begins a run. `--began UNIX_SECONDS` is the start time of the script, which first built this program.
    fn begin(budget: Option<Duration>, args: &[String]) -> Result<Gate> {
        let text = std::env::var_os(FACTOR_VARIABLE);
        let factor = match text {
            None => DEFAULT_FACTOR,
            Some(text) => factor(&text.to_string_lossy())?,
        };
        let mut gate = Gate {
            budget: budget.map(|budget| budget.mul_f64(factor)),
            taken: Vec::new(),
        };
        match args {
            [] => {}
            [flag, began] if flag == "--began" => {
                let began = Duration::from_secs(began.parse().context("--began wants seconds")?);
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
                gate.taken.push(("xtask", now.saturating_sub(began)));
            }
            _ => bail!("the only argument is --began UNIX_SECONDS"),
        }
        Ok(gate)
    }

    fn step<T>(&mut self, name: &'static str, act: impl FnOnce() -> Result<T>) -> Result<T> {
        eprintln!("\n== {name}");
        let began = Instant::now();
        let outcome = act();
        self.taken.push((name, began.elapsed()));
        if let Err(error) = &outcome {
            eprintln!("error: {name}: {error:#}");
        }
        outcome
    }

    fn end(self, sum: Sum, mut errors: Vec<anyhow::Error>) -> Result<()> {
        eprintln!("\n{}", self.table());
        if let Some(budget) = self.budget.filter(|budget| self.took() > *budget) {
            errors.push(anyhow::anyhow!(
                "over the time budget of {} s (where the machine is slow or shared, set {FACTOR_VARIABLE})",
                budget.as_secs()
            ));
        }
        for error in &errors {
            eprintln!("error: {error:#}");
        }
        println!("\n{}", sum.line(errors.is_empty()));
        ensure!(errors.is_empty(), "{} of the steps failed", errors.len());
        Ok(())
    }

    fn took(&self) -> Duration {
        self.taken.iter().map(|(_, took)| *took).sum()
    }

    fn table(&self) -> String {
        let line =
            |(name, took): &(&str, Duration)| format!("{name:<26}{:>5.0} s\n", took.as_secs_f64());
        let steps: String = self.taken.iter().map(line).collect();
        let budget = self.budget.map_or(String::new(), |budget| {
            format!(" (at most {} s)", budget.as_secs())
        });
        format!("{steps}{}", line(&("sum", self.took())).trim_end()) + &budget
    }
}

/// The factor for the budget, from the variable.
fn factor(text: &str) -> Result<f64> {
    let factor: f64 = text
        .parse()
        .ok()
        .filter(|f: &f64| f.is_finite() && *f > 0.0)
        .with_context(|| format!("{FACTOR_VARIABLE}={text}: must be a number above 0"))?;
    Ok(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(took_s: u64, budget_s: Option<u64>) -> Gate {
        let taken = vec![
            ("format", Duration::from_secs(took_s)),
            ("fuzz", Duration::from_secs(1)),
        ];
        let budget = budget_s.map(Duration::from_secs);
        Gate { budget, taken }
    }

    fn one_passed() -> Sum {
        Sum {
            passed: 1,
            ..Sum::default()
        }
    }

    #[test]
    fn a_run_over_its_budget_fails() {
        assert!(gate(9, Some(10)).end(one_passed(), vec![]).is_ok());
        let late = gate(10, Some(10));
        assert!(late.table().contains("format"), "{}", late.table());
        assert!(late.end(one_passed(), vec![]).is_err());
        assert!(gate(u64::MAX / 2, None).end(one_passed(), vec![]).is_ok());
    }

    #[test]
    fn a_step_that_fails_fails_the_run() {
        let failed = gate(0, None).end(one_passed(), vec![anyhow::anyhow!("x")]);
        assert!(failed.is_err());
    }

    #[test]
    fn factor_must_be_a_positive_number() {
        assert_eq!(factor("2.5").unwrap(), 2.5);
        for bad in ["", "0", "-1", "inf", "NaN", "off"] {
            assert!(factor(bad).is_err(), "{bad}");
        }
    }
}
