//! The part of `cargo metadata` that the rules read.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// All packages of the build.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    /// Our packages and those of others.
    pub packages: Vec<Package>,
    /// The resolved dependencies.
    #[serde(default)]
    resolve: Resolve,
}

/// One package.
#[derive(Debug, Deserialize)]
pub struct Package {
    /// Its id in `resolve`.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// SPDX expression, if it has one.
    pub license: Option<String>,
    /// `None` for packages of this workspace.
    pub source: Option<String>,
    /// Its dependencies.
    pub dependencies: Vec<Dependency>,
    /// The path of its manifest.
    pub manifest_path: PathBuf,
    /// Its libraries, programs and tests.
    pub targets: Vec<Target>,
}

/// A library, program or test.
#[derive(Debug, Deserialize)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// `lib`, `proc-macro`, `bin` and so on.
    pub kind: Vec<String>,
    /// Whether `cargo test` looks for documentation tests in it.
    #[serde(default)]
    pub doctest: bool,
}

/// One entry of a package's table of dependencies.
#[derive(Debug, Deserialize)]
pub struct Dependency {
    /// The package.
    pub name: String,
    /// The name in the dependent package, if it is renamed.
    pub rename: Option<String>,
    /// `None` for a normal dependency, else `dev` or `build`.
    pub kind: Option<String>,
    /// Whether it is optional.
    #[serde(default)]
    pub optional: bool,
    /// Set for packages of this workspace.
    pub path: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Link>,
}

#[derive(Debug, Deserialize)]
struct Link {
    pkg: String,
    dep_kinds: Vec<LinkKind>,
}

#[derive(Debug, Deserialize)]
struct LinkKind {
    kind: Option<String>,
}

impl Dependency {
    /// Whether it is for tests, examples and benches.
    pub fn is_for_tests(&self) -> bool {
        self.kind.as_deref() == Some("dev")
    }
}

impl Metadata {
    /// The names of all packages that a package is linked with: its normal dependencies, and theirs.
    pub fn reached(&self, id: &str) -> BTreeSet<&str> {
        let mut seen = BTreeSet::new();
        let mut pending = vec![id];
        while let Some(id) = pending.pop() {
            let node = self.resolve.nodes.iter().find(|node| node.id == id);
            for link in node.into_iter().flat_map(|node| &node.deps) {
                let is_normal = link.dep_kinds.iter().any(|kind| kind.kind.is_none());
                if is_normal && seen.insert(link.pkg.as_str()) {
                    pending.push(&link.pkg);
                }
            }
        }
        let packages = self.packages.iter();
        let reached = packages.filter(|package| seen.contains(package.id.as_str()));
        reached.map(|package| package.name.as_str()).collect()
    }
}

/// Runs cargo, for this platform only, so that packages of other platforms need not be downloaded.
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

/// The compiler's name of this platform.
fn host_triple() -> Result<String> {
    let out = Command::new("rustc").arg("-vV").output()?;
    let text = String::from_utf8(out.stdout)?;
    let triple = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(triple.context("rustc -vV names no host")?.to_owned())
}
