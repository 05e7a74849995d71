//! The tables of mutations can be used: they parse, each row has a name of its own, its text occurs once in its file, and
//! its test exists. Two branches that both add rows are merged line by line, and then a row can lose its first or last
//! lines; without this rule only the last step of a long run would notice.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Finding, promises};
use crate::mutate::rows::{self, Mutation, Table};

/// What is wrong with the tables. `texts`: all files, by name.
pub fn check(root: &Path, texts: &[(&str, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut names = BTreeSet::new();
    for (file, text) in texts {
        let Some(directory) = rows::directory(Path::new(file)) else {
            continue;
        };
        match Table::parse(text, &directory.to_string_lossy()) {
            Ok(table) => {
                for row in &table.mutation {
                    let mut wrong = faults(root, row, texts);
                    if !names.insert(row.name.clone()) {
                        wrong.push("another row has this name".to_owned());
                    }
                    let head = format!("name = \"{}\"", row.name);
                    let place = format!("{file}:{}", line(text, text.rfind(&head).unwrap_or(0)));
                    let finding =
                        |rule| Finding::new(place.clone(), format!("{}: {rule}", row.name));
                    findings.extend(wrong.into_iter().map(finding));
                }
            }
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                let rule = format!(
                    "{}; a row begins with [[mutation]], which a merge can lose",
                    error.message()
                );
                findings.push(Finding::new(format!("{file}:{}", line(text, at)), rule));
            }
        }
    }
    if names.is_empty() && findings.is_empty() {
        findings.push(Finding::new(rows::FILE, "no crate has a row"));
    }
    findings
}

/// What is wrong with one row, except its name.
fn faults(root: &Path, row: &Mutation, texts: &[(&str, &str)]) -> Vec<String> {
    let mut wrong = Vec::new();
    match texts.iter().find(|(file, _)| *file == row.file) {
        None => wrong.push(format!("there is no file {}", row.file)),
        Some((_, source)) => wrong.extend(misfit(row, source)),
    }
    if !promises::exists(root, &test(row)) {
        let (package, target, test) = (&row.package, &row.target, &row.test);
        wrong.push(format!("{package} has no test {test} in {target}"));
    }
    wrong
}

/// Why the row does not change this text at one place.
fn misfit(row: &Mutation, source: &str) -> Option<String> {
    match row.apply(source) {
        Ok(mutated) if mutated == source => Some("it changes nothing".to_owned()),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    }
}

/// The test of a row as documents name it.
fn test(row: &Mutation) -> String {
    let package = match row.package.as_str() {
        "bulla" => "cli",
        package => package.strip_prefix("bulla-").unwrap_or(package),
    };
    format!("{package}/{}::{}", row.target, row.test)
}

/// The number of the line at a byte.
fn line(text: &str, at: usize) -> usize {
    let before = text.get(..at).unwrap_or_default();
    before.matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = r#"[[mutation]]
name = "one"
file = "a.rs"
find = "if bad {"
replace = "if false {"
package = "xtask"
target = "bin"
test = "tidy::mutations::tests::row_that_cannot_be_tried_fires"
"#;
    const FILE: &str = "crates/x/mutations.toml";

    fn findings(table: &str, source: &str) -> Vec<Finding> {
        let texts = [(FILE, table), ("crates/x/a.rs", source)];
        check(&crate::workspace_root(), &texts)
    }

    #[test]
    fn row_that_cannot_be_tried_fires() {
        let source = "fn f() { if bad { refuse() } }";
        assert_eq!(findings(ROW, source), []);
        for (from, to) in [
            ("a.rs", "b.rs"),
            ("if bad", "if worse"),
            ("fires", "does_nothing"),
            ("bin", "lib"),
            ("if false", "if bad"),
        ] {
            let found = findings(&ROW.replace(from, to), source);
            assert_eq!(found.len(), 1, "{from}: {found:?}");
        }
        assert_eq!(findings(ROW, &source.repeat(2)).len(), 1);
        let twice = findings(&ROW.repeat(2), source);
        assert_eq!(twice.len(), 1);
        assert_eq!(twice[0].place, format!("{FILE}:10"));
        assert_eq!(check(&crate::workspace_root(), &[]).len(), 1);
    }

    #[test]
    fn rows_that_a_merge_has_glued_together_fire() {
        let second = ROW.replace("one", "two");
        let without_head = second.replace("[[mutation]]\n", "");
        let glued = ROW.trim_end().to_owned() + &second;
        let cut = ROW.replace("test = ", "[[mutation]]\ntest = ");
        for table in [format!("{ROW}{without_head}"), glued, cut] {
            let found = findings(&table, "if bad {");
            assert_eq!(found.len(), 1, "{table}");
            assert!(found[0].place.starts_with(FILE), "{found:?}");
            assert!(found[0].rule.contains("[[mutation]]"), "{found:?}");
        }
    }
}
