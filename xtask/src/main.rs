//! House rules as a tool, not as a reviewer: `cargo xtask tidy` refuses what the house refuses,
//! `cargo xtask mutate` proves that each check of the verifier is held by a test, `cargo xtask fuzz`
//! feeds every decoder. Relies on `cargo metadata`, and on nothing of the product.
//! Design: *The house*, *Quality 4 and 7*.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod fuzz;
mod mutate;
mod tidy;
mod tree;

const USAGE: &str = "usage: cargo xtask tidy
       cargo xtask mutate [--list] [--ci] [--rest] [NAME...]
       cargo xtask fuzz [--list] [--seconds N] [TARGET...]";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args.split_first() {
        Some((verb, [])) if verb == "tidy" => tidy::run(&workspace_root()),
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
