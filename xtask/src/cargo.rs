//! Calls of cargo: a selection of packages that has the features of the whole workspace, and what a build
//! produced.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Packages to select in addition to the wanted one. Cargo resolves features for the selected packages
/// only; with these three, which use all the others, the features are those of `--workspace`, and no
/// dependency is compiled a second time. None of them has a library, so `--lib` selects nothing of them.
pub const WITH_ALL_FEATURES: &[&str] = &[
    "--package=bulla",
    "--package=bulla-bench",
    "--package=xtask",
];

/// Clippy's compiler driver. As the wrapper of the compiler for packages of the workspace it checks lints in
/// the same pass. It does not optimise what it compiles as rustc does; the profile of the tests does not
/// optimise our packages anyway (decision 0026).
pub const LINTER: &str = "clippy-driver";
/// Makes each lint an error, in the form in which `cargo clippy -- -D warnings` tells the driver.
pub const LINTS: (&str, &str) = (
    "CLIPPY_ARGS",
    "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__",
);

/// An executable that cargo built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executable {
    /// The directory of its package.
    pub directory: PathBuf,
    /// The target: of a library, a binary, an integration test.
    pub target: String,
    /// `lib`, `bin`, `test` and so on.
    pub kind: String,
    /// Whether it contains the test harness.
    pub is_test: bool,
    /// The file.
    pub path: PathBuf,
}

impl Executable {
    /// The names of all tests in it.
    pub fn tests(&self) -> Result<Vec<String>> {
        let out = Command::new(&self.path)
            .args(["--list", "--format=terse"])
            .current_dir(&self.directory)
            .output()
            .with_context(|| format!("running {}", self.path.display()))?;
        let text = String::from_utf8(out.stdout)?;
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.map(str::to_owned).collect())
    }
}

#[derive(Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Runs a build (`cargo build`, `cargo test --no-run`) and returns its executables. Cargo's own messages
/// go to stderr.
pub fn executables(build: &mut Command) -> Result<Vec<Executable>> {
    build
        .arg("--message-format=json-render-diagnostics")
        .stdout(Stdio::piped());
    let mut child = build.spawn().context("running cargo")?;
    let stdout = child.stdout.take().context("cargo has no stdout")?;
    let mut built = Vec::new();
    for line in std::io::BufReader::new(stdout).lines() {
        built.extend(executable(&line?)?);
    }
    ensure!(child.wait()?.success(), "the build failed");
    Ok(built)
}

/// The executable that one line of cargo's output reports, if it reports one.
fn executable(line: &str) -> Result<Option<Executable>> {
    let message: Message = serde_json::from_str(line).context("reading cargo's messages")?;
    let found = match message {
        Message {
            reason,
            manifest_path: Some(manifest),
            target: Some(target),
            profile: Some(profile),
            executable: Some(path),
        } if reason == "compiler-artifact" => Executable {
            directory: manifest.parent().unwrap_or(Path::new("/")).to_path_buf(),
            target: target.name,
            kind: target.kind.into_iter().next().unwrap_or_default(),
            is_test: profile.test,
            path,
        },
        _ => return Ok(None),
    };
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn executables_are_read_from_cargo_messages() {
        let line = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/x#0.1.0",
            "manifest_path":"/w/crates/x/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],
            "name":"cli","src_path":"/w/crates/x/tests/cli.rs"},"profile":{"opt_level":"1","test":true},
            "features":[],"filenames":["/t/cli-1"],"executable":"/t/cli-1","fresh":false}"#;
        let found = executable(&line.replace('\n', "")).unwrap().unwrap();
        assert_eq!(found.directory, Path::new("/w/crates/x"));
        assert_eq!(
            (found.target.as_str(), found.kind.as_str()),
            ("cli", "test")
        );
        assert!(found.is_test);
        let library = line.replace("\"executable\":\"/t/cli-1\"", "\"executable\":null");
        assert_eq!(executable(&library).unwrap(), None);
        let end = r#"{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(end).unwrap(), None);
        assert!(executable("warning: text").is_err());
    }

    /// Every package that a selection links, with its features. Without those of macros, which `cargo tree`
    /// does not show as they are built.
    fn features(selection: &[&str]) -> BTreeSet<String> {
        let out = Command::new("cargo")
            .args(["tree", "--locked", "--edges=normal,dev,no-proc-macro"])
            .args(["--prefix=none", "--format={p}|{f}"])
            .args(selection)
            .current_dir(crate::workspace_root())
            .output()
            .unwrap();
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        let text = String::from_utf8(out.stdout).unwrap();
        text.lines()
            .map(|line| line.trim_end_matches(" (*)").to_owned())
            // Our own packages are shown with their directories, and take only seconds to build.
            .filter(|line| !line.is_empty() && !line.contains(" (/"))
            .collect()
    }

    #[test]
    fn lint_is_an_error_in_the_pass_that_compiles() {
        let directory = tempfile::tempdir().unwrap();
        let compiles = |text: &str| {
            std::fs::write(directory.path().join("x.rs"), text).unwrap();
            let out = Command::new(LINTER)
                .args(["rustc", "--crate-type=lib", "--emit=metadata", "x.rs"])
                .env(LINTS.0, LINTS.1)
                .current_dir(directory.path())
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&out.stderr).into_owned();
            (out.status.success(), text)
        };
        assert_eq!(
            compiles("pub fn one() -> u8 { 1 }\n"),
            (true, String::new())
        );
        let (is_ok, text) = compiles("pub fn one() -> u8 { return 1; }\n");
        assert!(!is_ok && text.contains("needless_return"), "{text}");
    }

    #[test]
    fn selected_packages_have_the_features_of_the_workspace() {
        let all = features(&["--workspace"]);
        let metadata = crate::tidy::metadata(&crate::workspace_root()).unwrap();
        for package in metadata.packages.iter().filter(|p| p.source.is_none()) {
            let wanted = format!("--package={}", package.name);
            let selection = [&[wanted.as_str()], WITH_ALL_FEATURES].concat();
            let more: Vec<String> = features(&selection).difference(&all).cloned().collect();
            assert_eq!(
                more, [""; 0],
                "{} is built with other features",
                package.name
            );
        }
        // Control: the features of a package that is selected alone differ.
        assert!(!features(&["--package=bulla-trust"]).is_subset(&all));
    }
}
