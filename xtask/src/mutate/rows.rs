//! The table `xtask/mutations.toml`: which checks are removed, and which test must notice it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::cargo::Executable;

/// The whole table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// The rows, in the order of the file.
    pub mutation: Vec<Mutation>,
}

/// One check to remove.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutation {
    /// Name of the check, as `block-hash`.
    pub name: String,
    /// The file with the check.
    pub file: String,
    /// The exact text, which must occur once.
    pub find: String,
    /// The replacement.
    pub replace: String,
    /// The package whose test must fail.
    pub package: String,
    /// `lib`, or the name of an integration test.
    pub target: String,
    /// The full name of the test.
    pub test: String,
    /// Whether the short run (CI) includes it.
    #[serde(default)]
    pub ci: bool,
}

impl Mutation {
    /// The text of the file without the check.
    pub fn apply(&self, text: &str) -> Result<String> {
        let times = text.matches(&self.find).count();
        ensure!(
            times == 1,
            "{}: the text to replace occurs {times} times in {}",
            self.name,
            self.file
        );
        Ok(text.replacen(&self.find, &self.replace, 1))
    }
}

impl Table {
    /// Reads the table of the tree at `root`.
    pub fn read(root: &Path) -> Result<Table> {
        let text = std::fs::read_to_string(root.join("xtask/mutations.toml"))?;
        Table::parse(&text).context("reading xtask/mutations.toml")
    }

    /// Reads a table. `cargo xtask tidy` checks its rows.
    pub fn parse(text: &str) -> Result<Table, toml::de::Error> {
        toml::from_str(text)
    }

    /// Refuses rows whose test is in none of these binaries. The short run tries few rows, so a renamed test
    /// would otherwise remain unnoticed until somebody tries them all.
    pub fn check_tests(&self, built: &[Executable]) -> Result<()> {
        let mut tests: BTreeMap<(String, &str), BTreeSet<String>> = BTreeMap::new();
        for executable in built {
            let target = match executable.kind.as_str() {
                "test" => executable.target.as_str(),
                kind => kind,
            };
            let of = tests.entry((package(executable)?, target)).or_default();
            of.extend(executable.tests()?);
        }
        for row in &self.mutation {
            let of = tests.get(&(row.package.clone(), row.target.as_str()));
            ensure!(
                of.is_some_and(|names| names.contains(&row.test)),
                "xtask/mutations.toml: {}: {} has no test {} in {}",
                row.name,
                row.package,
                row.test,
                row.target
            );
        }
        Ok(())
    }
}

/// The name of the package of a binary, from its manifest.
fn package(executable: &Executable) -> Result<String> {
    let text = std::fs::read_to_string(executable.directory.join("Cargo.toml"))?;
    let manifest: toml::Table = text.parse()?;
    let name = manifest.get("package").and_then(|it| it.get("name"));
    let name = name.and_then(toml::Value::as_str);
    Ok(name
        .context("a manifest without a package name")?
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(test: &str) -> Mutation {
        Mutation {
            name: "x".into(),
            file: "x".into(),
            find: "a".into(),
            replace: "b".into(),
            package: "xtask".into(),
            target: "bin".into(),
            test: test.into(),
            ci: false,
        }
    }

    #[test]
    fn text_that_occurs_twice_is_refused() {
        let mutation = row("x");
        assert!(mutation.apply("aa").is_err());
        assert!(mutation.apply("c").is_err());
        assert_eq!(mutation.apply("ca").unwrap(), "cb");
    }

    #[test]
    fn row_without_a_test_is_refused() {
        let own = Executable {
            directory: crate::workspace_root().join("xtask"),
            target: "xtask".into(),
            kind: "bin".into(),
            is_test: true,
            path: std::env::current_exe().unwrap(),
        };
        let check = |row: Mutation| {
            let mutation = vec![row];
            Table { mutation }.check_tests(std::slice::from_ref(&own))
        };
        let name = "mutate::rows::tests::row_without_a_test_is_refused";
        check(row(name)).unwrap();
        assert!(check(row("mutate::rows::tests::gone")).is_err());
        let elsewhere = Mutation {
            target: "lib".into(),
            ..row(name)
        };
        assert!(check(elsewhere).is_err());
    }
}
