//! Promises and their tests: a document names a test as `crate/target::module::name`, and it must exist. Each promise
//! of the threat model names at least one, and so does each row of its table of what bad input gets.
//!
//! The target is `lib` or `bin` for unit tests, or the name of an integration test. The test is looked for in the file of its module, with
//! an attribute that makes it a test.

use std::path::{Path, PathBuf};

use super::Finding;

/// The document whose promises must have tests.
const FILE: &str = "docs/threat-model.md";
/// Each promise is an item of a numbered list below one of these headings.
const HEADINGS: [&str; 4] = [
    "## Promises to a reader",
    "## Promises to signers",
    "## Promises of a protected device",
    "## Promises to the members of a shared volume",
];
/// Each row of the tables below this heading names a test.
const BAD_INPUT: &str = "### What bad input to a shared volume gets";
/// The paragraph with the tests of a promise begins so.
const TESTS: &str = "Tests:";
/// Lines above a function in which its attributes are looked for.
const ATTRIBUTES: usize = 4;

/// Tests that a document names and that do not exist; in the threat model also promises without a test.
pub fn check(root: &Path, name: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for test in named(line) {
            if !exists(root, test) {
                let place = format!("{name}:{}", number + 1);
                findings.push(Finding::new(place, format!("there is no test `{test}`")));
            }
        }
    }
    if name == FILE {
        findings.extend(check_promises(text));
        findings.extend(check_rows(text));
    }
    findings
}

/// Promises without a test.
fn check_promises(text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for heading in HEADINGS {
        let promises = promises(text, heading);
        if promises.is_empty() {
            let rule = format!("`{heading}` has no numbered promises");
            findings.push(Finding::new(FILE, rule));
        }
        for (line, promise) in promises {
            let tests = promise.split_once(TESTS).map_or("", |(_, tests)| tests);
            if named(tests).next().is_none() {
                let rule = format!("a promise names no test after `{TESTS}`");
                findings.push(Finding::new(format!("{FILE}:{line}"), rule));
            }
        }
    }
    findings
}

/// Rows of the tables of bad input without a test.
fn check_rows(text: &str) -> Vec<Finding> {
    let below = text.lines().skip_while(|line| *line != BAD_INPUT);
    let skipped = text.lines().count() - below.clone().count();
    let section: Vec<&str> = below.collect();
    let mut rows = 0;
    let mut findings = Vec::new();
    for (at, line) in section.iter().enumerate().skip(1) {
        if line.starts_with('#') {
            break;
        }
        let rule = |line: &&str| line.starts_with("|---");
        let is_head = rule(line) || section.get(at + 1).is_some_and(rule);
        if !line.starts_with('|') || is_head {
            continue;
        }
        rows += 1;
        if named(line).next().is_none() {
            let place = format!("{FILE}:{}", skipped + at + 1);
            findings.push(Finding::new(place, "a row names no test"));
        }
    }
    if rows == 0 {
        let rule = format!("`{BAD_INPUT}` has no table");
        findings.push(Finding::new(FILE, rule));
    }
    findings
}

/// The numbered items below a heading, with the number of their first line.
fn promises(text: &str, heading: &str) -> Vec<(usize, String)> {
    let mut items: Vec<(usize, String)> = Vec::new();
    let mut lines = text
        .lines()
        .enumerate()
        .skip_while(|(_, line)| *line != heading);
    lines.next();
    for (number, line) in lines.take_while(|(_, line)| !line.starts_with("## ")) {
        let is_item = line
            .split_once(". ")
            .is_some_and(|(n, _)| n.parse::<u32>().is_ok());
        if is_item {
            items.push((number + 1, String::new()));
        } else if !line.is_empty() && !line.starts_with(' ') {
            // A paragraph after the list.
            items.push((0, String::new()));
        }
        if let Some((_, item)) = items.last_mut() {
            item.push_str(line);
            item.push('\n');
        }
    }
    items.retain(|(line, _)| *line > 0);
    items
}

/// Text in backticks that is written like the name of a test.
fn named(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2).filter(|code| {
        let word = |part: &str| {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            !part.is_empty() && part.chars().all(plain)
        };
        let Some((first, rest)) = code.split_once("::") else {
            return false;
        };
        let is_place = first
            .split_once('/')
            .is_some_and(|(package, target)| package.split('-').all(word) && word(target));
        is_place && rest.split("::").all(word)
    })
}

/// Whether the named test exists.
pub(super) fn exists(root: &Path, test: &str) -> bool {
    let mut parts = test.split("::");
    let place = parts.next().and_then(|place| place.split_once('/'));
    let Some((package, target)) = place else {
        return false;
    };
    let mut path: Vec<&str> = parts.collect();
    let Some(function) = path.pop() else {
        return false;
    };
    let package = match package {
        "xtask" => root.join(package),
        _ => root.join("crates").join(package),
    };
    let (base, first) = match target {
        "lib" => (package.join("src"), "lib.rs".to_owned()),
        "bin" => (package.join("src"), "main.rs".to_owned()),
        // The directory of the target, or its only file.
        _ if package.join("tests").join(target).is_dir() => {
            (package.join("tests").join(target), "main.rs".to_owned())
        }
        _ => (package.join("tests"), format!("{target}.rs")),
    };
    if !base.join(&first).is_file() {
        return false;
    }
    // The innermost module that has a file; those in it are inline.
    (0..=path.len()).rev().any(|own| {
        let (files, inline) = path.split_at(own);
        let Some(text) = module(&base, &first, files) else {
            return false;
        };
        let has_module = |name: &&str| text.contains(&format!("mod {name} {{"));
        inline.iter().all(has_module) && has_test(&text, function)
    })
}

/// The text of a module's file.
fn module(base: &Path, first: &str, path: &[&str]) -> Option<String> {
    let mut file: PathBuf = base.to_owned();
    file.extend(path);
    let files = match path.is_empty() {
        true => vec![base.join(first)],
        false => vec![file.with_extension("rs"), file.join("mod.rs")],
    };
    files
        .iter()
        .find_map(|file| std::fs::read_to_string(file).ok())
}

/// Whether a text has a test function with this name.
fn has_test(text: &str, function: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let head = format!("fn {function}(");
    let attribute = |line: &&str| line.starts_with("#[") && line.contains("test");
    lines.iter().enumerate().any(|(at, line)| {
        let above = lines
            .get(at.saturating_sub(ATTRIBUTES)..at)
            .unwrap_or_default();
        let own = above.iter().rev().take_while(|it| !it.starts_with('}'));
        let begins = line.starts_with(&head) || line.starts_with(&format!("async {head}"));
        begins && own.into_iter().any(attribute)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REAL: &str = "xtask/bin::tidy::promises::tests::test_that_does_not_exist_fires";

    /// A threat model whose second promise is `promise`.
    fn model(promise: &str) -> String {
        format!(
            "# Model\n\n## Promises to a reader\n\nThese hold.\n\n1. **One.** Words,\n   and more.\n   Tests: `{REAL}`\n\
             2. {promise}\n\nNot a promise.\n\n## Promises to signers\n\n1. Three. Tests: `{REAL}`\n\n\
             ## Promises of a protected device\n\n1. Four. Tests: `{REAL}`\n\n\
             ## Promises to the members of a shared volume\n\n1. Five. Tests: `{REAL}`\n\n{BAD_INPUT}\n\n\
             | what | tests |\n|---|---|\n| a lie | `{REAL}` |\n\n## Other\n\n1. No promise.\n"
        )
    }

    #[test]
    fn test_that_does_not_exist_fires() {
        let root = crate::workspace_root();
        let gone = [
            REAL.replace("test_that", "check_that"),
            REAL.replace("tidy", "untidy"),
            REAL.replace("bin", "nothing"),
            // A function that is no test.
            REAL.replace("test_that_does_not_exist_fires", "model"),
            "trust/statements::forks::no_such_fork".to_owned(),
        ];
        for gone in &gone {
            let findings = check(&root, "README.md", &format!("Words, and `{gone}`.\n"));
            assert_eq!(findings.len(), 1, "{gone}");
            assert_eq!(findings[0].place, "README.md:1");
        }
        for real in [
            REAL,
            "trust/statements::forks::order_of_mirrors_decides_nothing",
            "trust/lib::published::forks::tests::fork_has_one_encoding",
            "volume/volume::freshness::two_records_of_one_version_are_a_fork",
            "volume/volume::no_such_module",
        ] {
            let findings = check(
                &root,
                "README.md",
                &format!("`{real}` and `trust::judge`\n"),
            );
            let is_wrong = real.ends_with("no_such_module");
            assert_eq!(findings.len(), usize::from(is_wrong), "{real}");
        }
    }

    #[test]
    fn promise_without_a_test_fires() {
        let root = crate::workspace_root();
        let kept = model(&format!("Two. Tests: `{REAL}`"));
        assert_eq!(check(&root, FILE, &kept), []);
        for broken in ["Two.", "Two, as `trust::judge` has it.", "Two. Tests: none"] {
            let findings = check(&root, FILE, &model(broken));
            assert_eq!(findings.len(), 1, "{broken}");
            assert_eq!(findings[0].place, format!("{FILE}:10"));
        }
        let moved = kept.replace("## Promises to signers", "## Signers");
        assert_eq!(check(&root, FILE, &moved).len(), 1);
    }

    #[test]
    fn row_of_bad_input_without_a_test_fires() {
        let root = crate::workspace_root();
        let whole = model(&format!("Two. Tests: `{REAL}`"));
        let row = format!("| a lie | `{REAL}` |");
        let without = whole.replace(&row, "| a lie | nothing |");
        let findings = check(&root, FILE, &without);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].place, format!("{FILE}:30"));
        let empty = whole.replace(&row, "");
        assert_eq!(check(&root, FILE, &empty).len(), 1);
    }
}
