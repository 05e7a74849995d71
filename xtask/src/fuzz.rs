//! `cargo xtask fuzz`: builds the fuzz targets of `fuzz/` and lets each run for some seconds.
//!
//! The instrumentation is what cargo-fuzz asks of the compiler, without the address sanitizer, which
//! alone needs a nightly one: the code under test has no unsafe part of its own, and what is looked
//! for is panics, hangs and memory without bound. Design: *Quality 7*.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

/// Coverage feedback for libFuzzer (as in cargo-fuzz, `project.rs`), debug assertions and overflow
/// checks.
const FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "-Cdebug-assertions",
    "-Coverflow-checks",
    "--cfg",
    "fuzzing",
];

/// Largest resident set of a target, MiB: a decoder that believes a stated length passes this.
const MEMORY_MIB: u32 = 512;
/// Longest time for one input, seconds.
const INPUT_S: u32 = 5;

/// The target that must find something, and how long it may take, seconds.
const CONTROL: &str = "control";
const CONTROL_S: u32 = 30;

/// Runs the targets named, or all.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    let all = targets(root)?;
    let mut seconds: u32 = 5;
    let mut chosen = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--list" => {
                println!("{}", all.join("\n"));
                return Ok(());
            }
            "--seconds" => {
                let text = args.next().context("--seconds wants a number")?;
                seconds = text.parse().context("--seconds wants a number")?;
            }
            name if all.iter().any(|target| target == name) => chosen.push(name.to_owned()),
            other => bail!("no fuzz target is called {other}; --list tells which there are"),
        }
    }
    if chosen.is_empty() {
        chosen = all;
    }
    build(root)?;
    ensure!(
        feed(root, CONTROL, CONTROL_S)?.is_some(),
        "the control target has a mistake in it that was not found: the fuzzer does not work"
    );
    let began = Instant::now();
    // Two at a time: they wait for nothing but the processor, and some for the loopback device.
    let next = Mutex::new(chosen.iter());
    let worker = || -> Result<()> {
        loop {
            let Some(target) = next.lock().ok().and_then(|mut rest| rest.next()) else {
                return Ok(());
            };
            if let Some(report) = feed(root, target, seconds)? {
                eprintln!("{report}");
                bail!("{target} found something; the input lies in target/fuzz/runs/{target}");
            }
        }
    };
    std::thread::scope(|scope| {
        let workers = [scope.spawn(worker), scope.spawn(worker)];
        workers
            .into_iter()
            .try_for_each(|w| w.join().unwrap_or_else(|_| bail!("a worker panicked")))
    })?;
    eprintln!(
        "fuzz: {} targets, {seconds} s each, {} s in all, no finding",
        chosen.len(),
        began.elapsed().as_secs()
    );
    Ok(())
}

/// The targets: one file each.
fn targets(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.join("fuzz/targets"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            names.push(stem.context("a file name that is not UTF-8")?.to_owned());
        }
    }
    names.sort();
    ensure!(!names.is_empty(), "fuzz/targets is empty");
    Ok(names)
}

fn build(root: &Path) -> Result<()> {
    let host = crate::tidy::host_triple()?;
    let status = Command::new("cargo")
        .args(["build", "--quiet", "--release", "--bins", "--target", &host])
        .current_dir(root.join("fuzz"))
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}"))
        .env("CARGO_TARGET_DIR", root.join("target/fuzz"))
        .status()
        .context("running cargo build in fuzz/")?;
    ensure!(status.success(), "the fuzz targets do not build");
    Ok(())
}

/// Runs one target; gives back what libFuzzer printed if it found something. The target writes its
/// own seeds into the corpus before libFuzzer reads it (`fuzz/lib.rs`).
fn feed(root: &Path, target: &str, seconds: u32) -> Result<Option<String>> {
    let work = root.join("target/fuzz/runs").join(target);
    let corpus = work.join("corpus");
    std::fs::create_dir_all(&corpus)?;
    let host = crate::tidy::host_triple()?;
    let binary = root
        .join("target/fuzz")
        .join(host)
        .join("release")
        .join(target);
    let out = Command::new(binary)
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
        .arg(format!("-timeout={INPUT_S}"))
        .arg(format!("-artifact_prefix={}/", work.display()))
        .args(["-verbosity=0", "-print_final_stats=1"])
        .arg(&corpus)
        .env("BULLA_FUZZ_CORPUS", &corpus)
        .current_dir(&work)
        .output()?;
    let report = String::from_utf8_lossy(&out.stderr).into_owned();
    if !out.status.success() {
        return Ok(Some(report));
    }
    let stat = |name: &str| {
        let line = report.lines().find(|line| line.contains(name));
        line.and_then(|line| line.split_whitespace().last())
            .unwrap_or("?")
            .to_owned()
    };
    let (runs, rss) = (stat("number_of_executed_units"), stat("peak_rss_mb"));
    eprintln!("fuzz: {target}: {runs} inputs, {rss} MiB");
    ensure!(runs != "0" && runs != "?", "{target} ran nothing");
    Ok(None)
}
