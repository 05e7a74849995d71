//! Rules about the text of a file: how it must begin, which words are forbidden, how long it may be. Design:
//! *Style*, *Security habits*.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use super::Finding;

/// A file longer than this needs a line in `xtask/long-files.txt` with its reason.
const LONG_LINES: usize = 600;

/// Words that are forbidden in code. Split, so that this file does not break its own rule.
const FORBIDDEN_IN_CODE: &[(&str, &str)] = &[
    (concat!("to", "do!("), "unfinished code"),
    (concat!("unimple", "mented!("), "unfinished code"),
    (concat!("db", "g!("), "debugging output"),
    (
        concat!("TO", "DO"),
        "work without an owner; write it down in docs/",
    ),
    (
        concat!("FIX", "ME"),
        "work without an owner; write it down in docs/",
    ),
];

/// Directories of one machine, which do not exist on others.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/")];

/// The list of files that may be long, with reasons.
#[derive(Debug, Default)]
pub struct LongFiles {
    reasons: BTreeMap<String, String>,
}

impl LongFiles {
    /// Reads `path: reason` lines.
    pub fn read(list: &Path) -> Result<LongFiles> {
        let text =
            std::fs::read_to_string(list).with_context(|| format!("reading {}", list.display()))?;
        Ok(LongFiles::parse(&text))
    }

    fn parse(text: &str) -> LongFiles {
        let reasons = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once(':'))
            .map(|(path, reason)| (path.trim().to_owned(), reason.trim().to_owned()))
            .filter(|(_, reason)| !reason.is_empty())
            .collect();
        LongFiles { reasons }
    }

    /// Entries that are not needed any more.
    pub fn unused(&self, root: &Path) -> Vec<Finding> {
        self.reasons
            .keys()
            .filter(|path| {
                std::fs::read_to_string(root.join(path))
                    .map_or(true, |text| text.lines().count() <= LONG_LINES)
            })
            .map(|path| Finding::new("xtask/long-files.txt", format!("`{path}` is not long")))
            .collect()
    }
}

/// Rules about one file.
pub fn check(name: &str, text: &str, long: &LongFiles) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let place = || format!("{name}:{}", number + 1);
        if MACHINE_PATHS.iter().any(|path| names_path(line, path)) {
            findings.push(Finding::new(place(), "names a directory of one machine"));
        }
        if !name.ends_with(".rs") {
            continue;
        }
        for (word, why) in FORBIDDEN_IN_CODE {
            if line.contains(word) {
                findings.push(Finding::new(place(), format!("`{word}`: {why}")));
            }
        }
        if has_hole(line) {
            findings.push(Finding::new(
                place(),
                "many spaces between two words: the end of a line has lost its backslash",
            ));
        }
        if says_unsafe(line) && !name.starts_with("crates/mount/") {
            findings.push(Finding::new(
                place(),
                "unsafe code outside crate mount, the one place where it may be",
            ));
        }
    }
    if name.ends_with(".rs") {
        if !text.starts_with("//!") {
            findings.push(Finding::new(name, "does not begin with //!"));
        }
        let lines = text.lines().count();
        if lines > LONG_LINES && !long.reasons.contains_key(name) {
            findings.push(Finding::new(
                name,
                format!("{lines} lines: split it, or explain it in xtask/long-files.txt"),
            ));
        }
    }
    if is_member(name) && !text.contains("[lints]") {
        findings.push(Finding::new(name, "does not take the workspace's lints"));
    }
    findings
}

/// Whether an absolute path begins with `path` in this line (`a/work/b` does not count).
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        line[..at]
            .chars()
            .next_back()
            .is_none_or(|c| !c.is_alphanumeric() && !matches!(c, '.' | '_' | '-' | '}' | '/' | ')'))
    })
}

/// Whether a line of code (not a comment, not an attribute about lints) contains the word.
fn says_unsafe(line: &str) -> bool {
    let word = concat!("uns", "afe");
    let code = line.split("//").next().unwrap_or_default();
    [" {", " fn", " impl", " trait", " extern", "(no_mangle"]
        .iter()
        .any(|next| code.contains(&format!("{word}{next}")))
}

/// Whether a line of code has a sentence with a hole: what was the indentation of its next line.
fn has_hole(line: &str) -> bool {
    let code = line.trim_start();
    let spaces = " ".repeat(12);
    let ends_word =
        |text: &str| text.ends_with(|c: char| c.is_alphanumeric() || ",.;:".contains(c));
    let begins_word = |text: &str| text.trim_start().starts_with(|c: char| c.is_alphanumeric());
    // The documentation of a table in a text begins with #.
    !code.starts_with(['/', '#'])
        && (code.split_once(&spaces))
            .is_some_and(|(before, after)| ends_word(before) && begins_word(after))
}

fn is_member(name: &str) -> bool {
    name.ends_with("/Cargo.toml") && !name.starts_with("fuzz/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fires(name: &str, text: &str) -> Vec<String> {
        let findings = check(name, text, &LongFiles::default());
        findings.into_iter().map(|f| f.rule).collect()
    }

    #[test]
    fn each_rule_fires() {
        let word = |parts: [&str; 2]| format!("//! Doc.\n{}\n", parts.concat());
        assert_eq!(fires("a.rs", "fn a() {}\n").len(), 1, "no module doc");
        assert_eq!(fires("a.rs", &word(["to", "do!()"])).len(), 1);
        assert_eq!(fires("a.rs", &word(["db", "g!(1)"])).len(), 1);
        assert_eq!(fires("a.rs", &word(["// TO", "DO later"])).len(), 1);
        assert_eq!(
            fires("crates/trust/a.rs", &word(["uns", "afe { x }"])).len(),
            1
        );
        assert_eq!(fires("README.md", &["see /wo", "rk/x"].concat()).len(), 1);
        assert_eq!(fires("a.sh", &["cd '/ro", "ot/x'"].concat()).len(), 1);
        let hole = [r#"say("one or"#, "another\");"].join(&" ".repeat(14));
        assert_eq!(fires("a.rs", &word([&hole, ""])).len(), 1);
        assert_eq!(
            fires("a.rs", &format!("//! Doc.\n{}", "\n".repeat(600))).len(),
            1
        );
        assert_eq!(fires("crates/x/Cargo.toml", "[package]\n").len(), 1);
    }

    #[test]
    fn what_is_allowed_passes() {
        let none: [String; 0] = [];
        let word = |parts: [&str; 2]| format!("//! Doc.\n{}\n", parts.concat());
        assert_eq!(
            fires("crates/mount/a.rs", &word(["uns", "afe { x }"])),
            none
        );
        assert_eq!(
            fires("crates/trust/a.rs", &word(["// no uns", "afe { } here"])),
            none
        );
        assert_eq!(fires("a.sh", &["cd target/wo", "rk/x"].concat()), none);
        assert_eq!(fires("Cargo.toml", "[workspace]\n"), none);
        let long = LongFiles::parse("# comment\na.rs: a table\nb.rs:\n");
        let text = format!("//! Doc.\n{}", "\n".repeat(600));
        assert_eq!(check("a.rs", &text, &long), []);
        assert_eq!(
            check("b.rs", &text, &long).len(),
            1,
            "an entry without a reason"
        );
    }

    #[test]
    fn unneeded_entry_fires() {
        let root = crate::workspace_root();
        let long = LongFiles::parse("xtask/src/main.rs: was long\nnowhere.rs: gone\n");
        assert_eq!(long.unused(&root).len(), 2);
    }
}
