//! `cargo xtask tidy`: house rules that a tool can check. Each rule is a function from texts to findings, and
//! has a test that shows that it can fire.

use std::path::Path;

use anyhow::{Context, Result, bail};

mod arrows;
mod auditing;
mod docs;
mod doctests;
mod hints;
mod licences;
mod metadata;
mod modules;
mod mutations;
mod picture;
mod promises;
mod sources;
mod test_only;
mod tokens;
mod unused;

#[cfg(test)]
pub use metadata::read as metadata;

/// A broken rule and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// `file:line`, or a package.
    place: String,
    /// The rule in words.
    rule: String,
}

impl Finding {
    fn new(place: impl Into<String>, rule: impl Into<String>) -> Self {
        Finding {
            place: place.into(),
            rule: rule.into(),
        }
    }
}

/// Checks the whole tree and prints what is wrong.
pub fn run(root: &Path) -> Result<()> {
    let mut findings = Vec::new();
    let files = crate::tree::files(root)?;
    let long = sources::LongFiles::read(&root.join("xtask/long-files.txt"))?;
    let mut texts = Vec::new();
    for path in &files {
        let Ok(text) = std::fs::read_to_string(root.join(path)) else {
            continue; // not text, so no rule applies
        };
        let name = path.to_str().context("a file name that is not UTF-8")?;
        texts.push((name, text));
    }
    let texts: Vec<(&str, &str)> = texts.iter().map(|(n, text)| (*n, text.as_str())).collect();
    for (name, text) in &texts {
        findings.extend(sources::check(name, text, &long));
        findings.extend(hints::check(name, text));
        if name.ends_with(".md") {
            findings.extend(docs::check(root, name, text));
            findings.extend(promises::check(root, name, text));
        }
    }
    findings.extend(modules::check(&texts, &modules::Known::read(root))?);
    findings.extend(mutations::check(root, &texts));
    let exceptions = std::fs::read_to_string(root.join(test_only::EXCEPTIONS))?;
    findings.extend(test_only::check(&texts, &exceptions));
    let names: Vec<&str> = files.iter().filter_map(|path| path.to_str()).collect();
    let summary = std::fs::read_to_string(root.join("docs/SUMMARY.md"))?;
    findings.extend(docs::check_contents(&summary, &names));
    findings.extend(long.unused(root));
    let metadata = metadata::read(root)?;
    findings.extend(arrows::check(&metadata, &texts));
    findings.extend(arrows::check_rows(&metadata));
    findings.extend(unused::check(root, &metadata, &texts));
    findings.extend(doctests::check(root, &metadata, &texts));
    findings.extend(licences::check(&metadata));
    let page = std::fs::read_to_string(root.join(picture::FILE))?;
    findings.extend(picture::check(&page, &metadata));
    let page = std::fs::read_to_string(root.join(auditing::FILE))?;
    findings.extend(auditing::check(&page, &texts));
    if findings.is_empty() {
        eprintln!(
            "tidy: {} files and {} packages are in order",
            files.len(),
            metadata.packages.len()
        );
        return Ok(());
    }
    for finding in &findings {
        eprintln!("{}: {}", finding.place, finding.rule);
    }
    bail!("{} house rules broken", findings.len());
}
