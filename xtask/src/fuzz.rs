//! `cargo xtask fuzz`: builds the fuzz targets of `fuzz/` and runs each for some seconds.
//!
//! The instrumentation is that of cargo-fuzz without the address sanitizer, which needs a nightly compiler.
//! The code under test forbids `unsafe`; the targets look for panics, hangs and unbounded memory. Only
//! packages of the workspace are instrumented. Decisions: docs/decisions/0014, 0026. Design: *Quality 7*.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo;

/// Coverage feedback for libFuzzer, as in `project.rs` of cargo-fuzz. Debug assertions and overflow checks
/// are on in the profile.
const FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
];

/// Memory limit of a target, MiB. A decoder that allocates an unchecked length exceeds it.
const MEMORY_MIB: u32 = 512;
/// Longest time for one input, seconds.
const INPUT_S: u32 = 5;

/// The control target, which must find its planted defect, and its time limit, seconds.
const CONTROL: &str = "control";
const CONTROL_S: u32 = 30;

/// Runs the targets named, or all.
pub fn run(root: &Path, args: &[String]) -> Result<()> {
    let all = targets(root)?;
    let mut seconds: u32 = 5;
    let mut seed = None;
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
            "--seed" => {
                let text = args.next().context("--seed wants a number")?;
                seed = Some(text.parse().context("--seed wants a number")?);
            }
            name if all.iter().any(|target| target == name) => chosen.push(name.to_owned()),
            other => bail!("there is no fuzz target {other}; --list prints all"),
        }
    }
    if chosen.is_empty() {
        chosen = all;
    }
    let built = build(root, &chosen)?;
    let feed = |target: &str, seconds: u32, seed: Option<u32>| {
        let binary = built.get(target);
        let binary = binary.with_context(|| format!("{target} was not built"))?;
        feed(
            &root.join("target/fuzz/runs").join(target),
            target,
            binary,
            (seconds, seed),
        )
    };
    ensure!(
        feed(CONTROL, CONTROL_S, None)?.is_some(),
        "the defect planted in the control target was not found: the fuzzer does not work"
    );
    let began = Instant::now();
    // Two at a time: most need only the processor, some wait for the loopback device.
    let next = Mutex::new(chosen.iter());
    let worker = || -> Result<()> {
        loop {
            let Some(target) = next.lock().ok().and_then(|mut rest| rest.next()) else {
                return Ok(());
            };
            if let Some(report) = feed(target, seconds, seed)? {
                eprintln!("{report}");
                bail!("{target} found a failure; the input is in target/fuzz/runs/{target}");
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

/// Builds the targets and the control; returns their executables by name.
fn build(root: &Path, targets: &[String]) -> Result<BTreeMap<String, PathBuf>> {
    let mut build = Command::new("cargo");
    build
        .args(["build", "--quiet", "--package=bulla-fuzz"])
        .args(cargo::WITH_ALL_FEATURES)
        .args(targets.iter().map(|target| format!("--bin={target}")))
        .arg(format!("--bin={CONTROL}"))
        .current_dir(root)
        .env("CARGO_INCREMENTAL", "0")
        .env(cargo::LINTS.0, cargo::LINTS.1)
        // More inputs a second. Dependencies have a level of their own, so they are not built again.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        .env(
            "RUSTC_WORKSPACE_WRAPPER",
            wrapper(&root.join("target/fuzz"))?,
        );
    let built = cargo::executables(&mut build).context("building the fuzz targets")?;
    Ok(built.into_iter().map(|it| (it.target, it.path)).collect())
}

/// Writes the compiler wrapper, which adds the flags and checks lints. Cargo calls it for packages of the workspace only, so
/// dependencies are shared with the tests. Cargo keeps builds with different wrappers apart by the path of
/// the wrapper, so the path changes with the flags.
fn wrapper(directory: &Path) -> Result<PathBuf> {
    let text = format!(
        "#!/bin/sh\nexec {} \"$@\" {}\n",
        cargo::LINTER,
        FLAGS.join(" ")
    );
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let path = directory.join(format!("rustc-{:016x}.sh", hasher.finish()));
    if !path.exists() {
        std::fs::create_dir_all(directory)?;
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o755))?;
    }
    Ok(path)
}

/// Runs one target in the directory `work`; returns what libFuzzer printed if it found something. The target
/// writes its own seeds into the corpus before libFuzzer reads it (`fuzz/lib.rs`).
fn feed(
    work: &Path,
    target: &str,
    binary: &Path,
    (seconds, seed): (u32, Option<u32>),
) -> Result<Option<String>> {
    let corpus = work.join("corpus");
    std::fs::create_dir_all(&corpus)?;
    let out = Command::new(binary)
        // Without a seed libFuzzer draws one.
        .args(seed.map(|seed| format!("-seed={seed}")))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
        .arg(format!("-timeout={INPUT_S}"))
        .arg(format!("-artifact_prefix={}/", work.display()))
        .args(["-verbosity=0", "-print_final_stats=1"])
        .arg(&corpus)
        .env("BULLA_FUZZ_CORPUS", &corpus)
        .current_dir(work)
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
