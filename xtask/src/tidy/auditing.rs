//! What an auditor reads: SECURITY.md lists it in order, with the number of lines of code. This keeps the list true.

use std::path::Path;

use super::Finding;

/// The page.
pub const FILE: &str = "SECURITY.md";
const TITLE: &str = "## What an auditor reads";
/// Of these every file must be listed.
const WHOLE: [&str; 2] = ["crates/trust/src/", "crates/trust-shared/src/"];
/// A number may be this much off, per cent, before it must be written again.
const TOLERANCE: usize = 5;
/// Parts of a row between its bars, those outside included: what is read, its lines, and what it decides.
const PARTS: usize = 5;

/// Checks the rows of the page; `files` are paths and texts of the tree.
pub fn check(page: &str, files: &[(&str, &str)]) -> Vec<Finding> {
    let section = page.split_once(TITLE).map_or("", |(_, after)| after);
    let section = section.split("\n## ").next().unwrap_or("");
    let mut findings = Vec::new();
    let mut rows = 0;
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        rows += 1;
        findings.extend(check_row(line, files));
    }
    findings.extend(unlisted(section, files));
    if rows == 0 {
        findings.push(Finding::new(FILE, format!("{TITLE}: there are no rows")));
    }
    findings
}

/// Files of the crates that decide what is believed that no row lists, unless the page says that they decide nothing.
fn unlisted(section: &str, files: &[(&str, &str)]) -> Vec<Finding> {
    let listed: Vec<&str> = section.split('`').skip(1).step_by(2).collect();
    let is_listed = |name: &str| {
        let is_in =
            |place: &&str| name == *place || place.ends_with('/') && name.starts_with(*place);
        listed.iter().any(is_in)
    };
    let names = files.iter().map(|(name, _)| *name);
    let names = names.filter(|name| name.ends_with(".rs"));
    names
        .filter(|name| WHOLE.iter().any(|place| name.starts_with(place)))
        .filter(|name| !name.ends_with("/src/lib.rs") && !is_listed(name))
        .map(|name| Finding::new(FILE, format!("no row lists {name}")))
        .collect()
}

/// `| `path`, `path` | lines | what |`.
fn check_row(line: &str, files: &[(&str, &str)]) -> Vec<Finding> {
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    let [_, read, stated, ..] = cells.as_slice() else {
        return vec![Finding::new(FILE, format!("not a row: {line}"))];
    };
    if cells.len() != PARTS {
        return vec![Finding::new(FILE, format!("not a row: {line}"))];
    }
    let mut findings = Vec::new();
    let mut lines = 0;
    for place in read.split('`').skip(1).step_by(2) {
        match lines_below(place, files) {
            0 => findings.push(Finding::new(FILE, format!("there is no code in {place}"))),
            some => lines += some,
        }
    }
    let stated: usize = stated.replace(',', "").parse().unwrap_or(0);
    if stated.abs_diff(lines) * 100 > lines * TOLERANCE {
        let rule = format!("{read} has {lines} lines of code, and the page says {stated}");
        findings.push(Finding::new(FILE, rule));
    }
    findings
}

/// Lines of code of a file, or of all files below a directory: without tests, comments and blank lines.
fn lines_below(place: &str, files: &[(&str, &str)]) -> usize {
    let is_in = |name: &str| {
        let rest = name.strip_prefix(place);
        rest.is_some_and(|rest| rest.is_empty() || place.ends_with('/'))
    };
    let is_test = |name: &str| {
        let parts = Path::new(name).components();
        let mut parts = parts.map(|part| part.as_os_str());
        parts.any(|part| part == "tests" || part == "tests.rs" || part == "samples.rs")
    };
    let code = files
        .iter()
        .filter(|(name, _)| name.ends_with(".rs") && is_in(name) && !is_test(name));
    code.map(|(_, text)| lines_of(text)).sum()
}

fn lines_of(text: &str) -> usize {
    // A module of tests is the last item of its file.
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [(&str, &str); 4] = [
        (
            "crates/a/src/one.rs",
            "//! Head.\n\nfn f() {\n}\n\n#[cfg(test)]\nmod tests {\n}\n",
        ),
        ("crates/a/src/two.rs", "fn g() {}\n"),
        ("crates/a/src/two/tests.rs", "fn h() {}\n"),
        ("crates/a/README.md", "words\n"),
    ];

    fn rules(row: &str) -> Vec<String> {
        let page = format!("# A\n\n{TITLE}\n\n| read | lines | what |\n|---|---|---|\n{row}\n");
        let findings = check(&page, &FILES);
        findings.into_iter().map(|it| it.rule).collect()
    }

    #[test]
    fn right_number_passes_and_a_wrong_one_fires() {
        assert_eq!(rules("| `crates/a/src/` | 3 | a |"), [""; 0]);
        assert_eq!(rules("| `crates/a/src/one.rs` | 2 | a |"), [""; 0]);
        let both = "| `crates/a/src/one.rs`, `crates/a/src/two.rs` | 3 | a |";
        assert_eq!(rules(both), [""; 0]);
        assert_eq!(rules("| `crates/a/src/` | 4 | a |").len(), 1);
        assert_eq!(rules("| `crates/a/src/` | many | a |").len(), 1);
    }

    #[test]
    fn file_that_decides_and_that_no_row_lists_fires() {
        let files = [("crates/trust/src/new.rs", "fn f() {}\n"), FILES[1]];
        let page = |row: &str| format!("{TITLE}\n\n| `crates/a/src/two.rs` | 1 | a |\n{row}");
        let rules = |row: &str| {
            let findings = check(&page(row), &files);
            findings.into_iter().map(|it| it.rule).collect::<Vec<_>>()
        };
        assert_eq!(rules(""), ["no row lists crates/trust/src/new.rs"]);
        assert_eq!(rules("| `crates/trust/src/` | 1 | b |\n"), [""; 0]);
    }

    #[test]
    fn file_that_is_gone_and_a_page_without_rows_fire() {
        let rules = rules("| `crates/a/src/one.rs`, `crates/b/src/` | 2 | a |");
        assert_eq!(rules, ["there is no code in crates/b/src/"]);
        assert_eq!(check("# A\n", &FILES).len(), 1);
    }
}
