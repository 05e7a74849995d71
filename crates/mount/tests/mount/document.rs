//! Tests check docs/semantics.md: each row of its tables names tests in a comment at its end. This file
//! checks that these exist and run, and that each call in the table of system calls occurs in one of its
//! tests. A row without a test, or with a test that was renamed, fails here.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The text of each test that runs, by the name that cargo prints.
fn tests() -> BTreeMap<String, String> {
    let mut tests = BTreeMap::new();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount");
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "rs") {
            let module = path.file_stem().unwrap().to_str().unwrap();
            tests.extend(tests_in(module, &fs::read_to_string(&path).unwrap()));
        }
    }
    tests
}

fn tests_in(module: &str, text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    // An attribute begins a test. A test that is ignored does not run and does not count.
    for part in text.split("\n#[").skip(1) {
        let is_test = part.starts_with("test]") || part.starts_with("tokio::test");
        let body = part.split("\n}\n").next().unwrap_or(part);
        let Some((attributes, rest)) = body.split_once("fn ") else {
            continue;
        };
        if is_test && !attributes.contains("#[ignore") {
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            found.push((format!("{module}::{name}"), body.to_owned()));
        }
    }
    found
}

/// The rows of `document` that `tests` do not cover, and why.
fn findings(document: &str, tests: &BTreeMap<String, String>) -> Vec<String> {
    let mut findings = Vec::new();
    let mut section = "";
    let mut rows = 0;
    for line in document.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title;
        }
        let is_row = line.starts_with('|') && !line.starts_with("|---");
        if !is_row || is_heading(document, line) {
            continue;
        }
        rows += 1;
        let first = line.split(" | ").next().unwrap_or(line);
        let Some((_, named)) = line.split_once("<!-- tests: ") else {
            findings.push(format!("no test is named: {first}"));
            continue;
        };
        let named = named.split(" -->").next().unwrap_or_default();
        let mut bodies = String::new();
        for name in named.split_whitespace() {
            match tests.get(name) {
                Some(body) => bodies.push_str(body),
                None => findings.push(format!("there is no test {name}: {first}")),
            }
        }
        if section == "System calls" {
            for call in first.split('`').skip(1).step_by(2) {
                if !has_word(&bodies, call) {
                    findings.push(format!("{call} does not occur in its tests"));
                }
            }
        }
    }
    if rows == 0 {
        findings.push("the document has no tables".to_owned());
    }
    findings
}

/// Whether a row is the one above the line that begins a table's body.
fn is_heading(document: &str, row: &str) -> bool {
    let mut lines = document.lines().skip_while(|line| *line != row);
    lines.nth(1).is_some_and(|next| next.starts_with("|---"))
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let found = text.match_indices(word);
    found.into_iter().any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[test]
fn every_row_of_the_document_has_a_test() {
    let document = include_str!("../../../../docs/semantics.md");
    let findings = findings(document, &tests());
    assert!(
        findings.is_empty(),
        "docs/semantics.md:\n{}",
        findings.join("\n")
    );
}

#[test]
fn a_row_without_a_test_is_found() {
    let source =
        "//! x\n#[test]\nfn reads() {\n    read(1);\n}\n\n#[test]\n#[ignore]\nfn rests() {\n}\n";
    let tests: BTreeMap<_, _> = tests_in("calls", source).into_iter().collect();
    assert_eq!(tests.keys().collect::<Vec<_>>(), ["calls::reads"]);
    let with_row =
        |row: &str| format!("## System calls\n\n| call | what |\n|---|---|\n{row}\n\nText.\n");
    let of = |row: &str| findings(&with_row(row), &tests);
    assert!(of("| `read` | Bytes. <!-- tests: calls::reads --> |").is_empty());
    let told = |row: &str, finding: &str| {
        let findings = of(row);
        assert!(findings.iter().any(|f| f.contains(finding)), "{findings:?}");
    };
    told("| `read` | Bytes. |", "no test is named");
    told(
        "| `read` | Bytes. <!-- tests: calls::gone --> |",
        "there is no test",
    );
    told(
        "| `read` | Bytes. <!-- tests: calls::rests --> |",
        "there is no test",
    );
    told(
        "| `pread` | Bytes. <!-- tests: calls::reads --> |",
        "pread does not occur",
    );
    assert!(!findings("no table", &tests).is_empty());
}
