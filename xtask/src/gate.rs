//! `cargo xtask check` and `cargo xtask ci`: the steps behind `make check` and `make test`, each with a time
//! budget. The time of each step is printed with its budget, and a step over its budget fails the run.
//! Decision: docs/decisions/0026.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};

use crate::suite::{self, Sum, Which};
use crate::{fuzz, mutate, tidy};

/// Steps and their budgets in seconds, from a fresh clone on two processors.
type Budgets = &'static [(&'static str, u32)];

/// Sixteen minutes from a fresh clone on two processors: twelve for the first system, and two more for each further one,
/// up to twenty (decision 0026). Tests that take longer belong into the long run. Lints are checked while tests and fuzz
/// targets are built.
const CI: Budgets = &[
    ("xtask", 25),
    ("format", 5),
    ("house rules", 5),
    ("lints and building tests", 260),
    ("running tests", 270),
    ("mutations", 250),
    ("fuzz", 120),
    ("mounts", 5),
];

/// Four minutes, with dependencies built.
const CHECK: Budgets = &[
    ("xtask", 20),
    ("format", 10),
    ("lints", 70),
    ("house rules", 10),
    ("building unit tests", 90),
    ("running unit tests", 40),
];

/// Multiplies every budget. The default has a reserve for machines that others use too.
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
    let mut gate = Gate::begin(CHECK, args)?;
    static_checks(&mut gate, root)?;
    lint(&mut gate, root, &["--workspace"])?;
    let built = gate.step("building unit tests", || suite::build(root, Which::Unit))?;
    let ran = gate.step("running unit tests", || {
        suite::run_built(root, Which::Unit, &built)
    });
    let (sum, outcome) = ran?;
    gate.end(sum, outcome.err().into_iter().collect())
}

/// `cargo xtask ci`: everything. With `BULLA_LONG` set, it includes the long tests and has no budgets. The
/// last line is the sum of all test runs, in the format of the test harness.
pub fn ci(root: &Path, args: &[String]) -> Result<()> {
    let is_long = crate::is_long();
    let mut gate = Gate::begin(if is_long { &[] } else { CI }, args)?;
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
        suite::build(root, Which::All)
    });
    let ran = built.and_then(|built| {
        mutate::rows::Table::read(root)?.check_tests(&built)?;
        let run = || suite::run_built(root, Which::All, &built);
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
    budgets: Budgets,
    factor: f64,
    taken: Vec<(&'static str, Duration)>,
}

impl Gate {
    /// Begins a run. `--began UNIX_SECONDS` is the start time of the script, which first built this program.
    fn begin(budgets: Budgets, args: &[String]) -> Result<Gate> {
        let text = std::env::var_os(FACTOR_VARIABLE);
        let factor = match text {
            None => DEFAULT_FACTOR,
            Some(text) => factor(&text.to_string_lossy())?,
        };
        let mut gate = Gate {
            budgets,
            factor,
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
        let late = self.late();
        if !late.is_empty() {
            errors.push(anyhow::anyhow!(
                "over the time budget: {} (where the machine is slow or shared, set {FACTOR_VARIABLE}, \
                 now {})",
                late.join(", "),
                self.factor
            ));
        }
        for error in &errors {
            eprintln!("error: {error:#}");
        }
        println!("\n{}", sum.line(errors.is_empty()));
        ensure!(errors.is_empty(), "{} of the steps failed", errors.len());
        Ok(())
    }

    fn budget_s(&self, name: &str) -> Option<u32> {
        let found = self.budgets.iter().find(|(step, _)| *step == name);
        found.map(|(_, seconds)| *seconds)
    }

    /// Steps that took longer than their budget times the factor.
    fn late(&self) -> Vec<&'static str> {
        let is_late = |(name, took): &&(&'static str, Duration)| {
            let budget_s = self.budget_s(name).map(f64::from);
            budget_s.is_some_and(|budget_s| took.as_secs_f64() > budget_s * self.factor)
        };
        self.taken
            .iter()
            .filter(is_late)
            .map(|(name, _)| *name)
            .collect()
    }

    fn table(&self) -> String {
        let mut text = format!("{:<22}{:>7}{:>9}\n", "step", "took", "budget");
        let mut line = |name: &str, took: Duration, budget_s: Option<u32>| {
            let budget = budget_s.map_or("none".to_owned(), |seconds| format!("{seconds} s"));
            text += &format!("{name:<22}{:>5.0} s{budget:>9}\n", took.as_secs_f64());
        };
        for (name, took) in &self.taken {
            line(name, *took, self.budget_s(name));
        }
        let budgets = self
            .taken
            .iter()
            .filter_map(|(name, _)| self.budget_s(name));
        let sum: u32 = budgets.sum();
        let took = self.taken.iter().map(|(_, took)| *took).sum();
        line("sum", took, (sum > 0).then_some(sum));
        text
    }
}

/// The factor for all budgets, from the variable.
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

    #[test]
    fn budgets_add_up_to_sixteen_and_four_minutes() {
        let sum = |budgets: Budgets| budgets.iter().map(|(_, seconds)| seconds).sum::<u32>();
        assert!(sum(CI) <= 16 * 60, "{}", sum(CI));
        assert!(sum(CHECK) <= 4 * 60, "{}", sum(CHECK));
    }

    fn gate(took_s: u64, factor: f64) -> Gate {
        let taken = vec![
            ("format", Duration::from_secs(took_s)),
            ("unheard of", Duration::MAX / 2),
        ];
        Gate {
            budgets: CI,
            factor,
            taken,
        }
    }

    fn one_passed() -> Sum {
        Sum {
            passed: 1,
            ..Sum::default()
        }
    }

    #[test]
    fn a_step_over_its_budget_fails_the_run() {
        let budget_s = u64::from(gate(0, 1.0).budget_s("format").unwrap());
        assert!(gate(budget_s, 1.0).end(one_passed(), vec![]).is_ok());
        let late = gate(budget_s + 1, 1.0);
        assert_eq!(late.late(), ["format"]);
        assert!(late.table().contains("format"));
        assert!(late.end(one_passed(), vec![]).is_err());
        assert!(gate(budget_s + 1, 1.5).end(one_passed(), vec![]).is_ok());
        assert!(gate(budget_s * 2, 1.5).end(one_passed(), vec![]).is_err());
    }

    #[test]
    fn a_step_that_fails_fails_the_run() {
        let failed = gate(0, 1.0).end(one_passed(), vec![anyhow::anyhow!("x")]);
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
