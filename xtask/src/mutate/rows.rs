//! The tables `crates/X/mutations.toml`: which checks of a crate are removed, and which test must notice it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::cargo::Executable;

/// The name of a table in the directory of its crate.
pub const FILE: &str = "mutations.toml";

/// The table of one crate, or those of all crates as one.
#[derive(Debug, Default, Deserialize)]
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
    /// The file with the check. In a table: from the directory of the crate. In [`Table`]: from the root.
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
    /// Reads the tables of all crates of the tree at `root`.
    pub fn read(root: &Path) -> Result<Table> {
        let mut all = Table::default();
        for file in crate::tree::files(root)? {
            let Some(directory) = directory(&file) else {
                continue;
            };
            let text = std::fs::read_to_string(root.join(&file))?;
            let table = Table::parse(&text, &directory.to_string_lossy());
            let table = table.with_context(|| format!("reading {}", file.display()))?;
            all.mutation.extend(table.mutation);
        }
        ensure!(!all.mutation.is_empty(), "no crate has a {FILE}");
        Ok(all)
    }

    /// Reads the table of the crate in `directory`. `cargo xtask tidy` checks its rows.
    pub fn parse(text: &str, directory: &str) -> Result<Table, toml::de::Error> {
        let mut table: Table = toml::from_str(text)?;
        for row in &mut table.mutation {
            row.file = format!("{directory}/{}", row.file);
        }
        Ok(table)
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
                "mutations: {}: {} has no test {} in {}",
                row.name,
                row.package,
                row.test,
                row.target
            );
        }
        Ok(())
    }
}

/// The directory of the crate, if `file` is a table.
pub fn directory(file: &Path) -> Option<&Path> {
    let is_table = file.file_name().is_some_and(|name| name == FILE) && file.starts_with("crates");
    file.parent().filter(|_| is_table)
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
