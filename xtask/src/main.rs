//! The project's own checks: `tidy` finds broken house rules, `test` runs the tests in parallel, `mutate`
//! shows that a test fails when a check of the verifier is removed, `fuzz` fuzzes every decoder, `check` and
//! `ci` run several of these as steps with time budgets. Relies on cargo, git and timeout(1), and on no
//! crate of the product. Design: *The house*, *Quality 4 and 7*.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod cargo;
mod fuzz;
mod gate;
mod mutate;
mod suite;
mod tidy;
mod tree;

const USAGE: &str = "usage: cargo xtask check
       cargo xtask ci
       cargo xtask tidy
       cargo xtask test [--unit]
       cargo xtask mutate [--list] [--rest] [--changed COMMIT] [--slice K/N] [--minutes N] [NAME...]
       cargo xtask fuzz [--list] [--seconds N] [--seed N] [TARGET...]";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args.split_first() {
        Some((verb, [])) if verb == "tidy" => tidy::run(&workspace_root()),
        Some((verb, rest)) if verb == "check" => gate::check(&workspace_root(), rest),
        Some((verb, rest)) if verb == "ci" => gate::ci(&workspace_root(), rest),
        Some((verb, rest)) if verb == "test" => suite::run(&workspace_root(), rest),
        Some((verb, rest)) if verb == "mutate" => mutate::run(&workspace_root(), rest),
        Some((verb, rest)) if verb == "fuzz" => fuzz::run(&workspace_root(), rest),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The directory of the workspace's `Cargo.toml`: the parent of this crate's.
fn workspace_root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}

/// Whether long tests are wanted. Tests read the same variable.
fn is_long() -> bool {
    std::env::var_os("BULLA_LONG").is_some()
}
