//! The part of `cargo metadata` that the rules read.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// All packages of the build.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    /// Ours and others'.
    pub packages: Vec<Package>,
}

/// One package.
#[derive(Debug, Deserialize)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// SPDX expression, if it has one.
    pub license: Option<String>,
    /// `None` for packages of this workspace.
    pub source: Option<String>,
    /// What it asks for.
    pub dependencies: Vec<Dependency>,
}

/// One wish of a package.
#[derive(Debug, Deserialize)]
pub struct Dependency {
    /// The package wished for.
    pub name: String,
    /// `None` for a normal dependency, else `dev` or `build`.
    pub kind: Option<String>,
    /// Set for packages of this workspace.
    pub path: Option<String>,
}

/// Asks cargo, for this platform only (others' packages need not even be downloaded).
pub fn read(root: &Path) -> Result<Metadata> {
    let triple = host_triple()?;
    let out = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(["--filter-platform", &triple])
        .current_dir(root)
        .output()
        .context("running cargo metadata")?;
    ensure!(
        out.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    serde_json::from_slice(&out.stdout).context("reading cargo metadata")
}

/// This machine as the compiler calls it.
pub fn host_triple() -> Result<String> {
    let out = Command::new("rustc").arg("-vV").output()?;
    let text = String::from_utf8(out.stdout)?;
    let triple = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(triple.context("rustc -vV names no host")?.to_owned())
}
