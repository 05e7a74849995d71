//! Links between documents: the files and headings of relative links must exist, and every document must be
//! in the book's table of contents.

use std::collections::BTreeSet;
use std::path::Path;

use super::Finding;

/// Relative links of a Markdown file without a target.
pub fn check(root: &Path, name: &str, text: &str) -> Vec<Finding> {
    let here = root.join(name);
    let here = here.parent().unwrap_or(root);
    let mut findings = Vec::new();
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for target in targets(line) {
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let exists = path.is_empty() || here.join(path).exists();
            let other = std::fs::read_to_string(here.join(path));
            let there = if path.is_empty() {
                Ok(text.to_owned())
            } else {
                other
            };
            // A file that is not text has no headings.
            let named =
                heading.is_empty() || there.map_or(true, |text| has_heading(&text, heading));
            if !exists || !named {
                findings.push(Finding::new(
                    format!("{name}:{}", number + 1),
                    format!("link to `{target}`, which does not exist"),
                ));
            }
        }
    }
    findings
}

/// Whether a document has a heading that is linked to as `anchor`.
fn has_heading(text: &str, anchor: &str) -> bool {
    text.lines().any(|line| {
        let title = line.trim_start_matches('#');
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let title = title.trim().to_lowercase();
        let slug: String = title.chars().filter(kept).collect();
        line.starts_with('#') && slug.replace(' ', "-") == anchor
    })
}

/// Documents of `docs/` that the table of contents does not name; `files` are all of the tree.
pub fn check_contents(summary: &str, files: &[&str]) -> Vec<Finding> {
    let named: BTreeSet<&str> = summary.lines().flat_map(targets).collect();
    let pages = files.iter().filter_map(|name| name.strip_prefix("docs/"));
    let pages = pages.filter(|name| name.ends_with(".md") && *name != "SUMMARY.md");
    let missing = pages.filter(|name| !named.contains(name));
    missing
        .map(|name| Finding::new(format!("docs/{name}"), "is not in docs/SUMMARY.md"))
        .collect()
}

/// The text between `](` and `)`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter(|target| !target.contains(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_link_fires_and_others_do_not() {
        let root = crate::workspace_root();
        let text = "## Part\n[a](Cargo.toml) [b](https://example.org/) [c](#part)\n\
                    ```\n[in code](nowhere.md)\n```\n[dead](nowhere.md#x)\n";
        let findings = check(&root, "README.md", text);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].place, "README.md:6");
    }

    #[test]
    fn a_link_to_a_heading_that_is_not_there_fires() {
        let root = crate::workspace_root();
        let text = "# A part, and `more`\n[a](#a-part-and-more) [b](#another)\n";
        let findings = check(&root, "README.md", text);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].place, "README.md:2");
    }

    #[test]
    fn a_document_that_is_not_in_the_book_fires() {
        let files = [
            "README.md",
            "docs/a.md",
            "docs/SUMMARY.md",
            "docs/b/c.md",
            "docs/d.toml",
        ];
        let findings = check_contents("- [A](a.md)\n    - [C](b/x.md)\n", &files);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].place, "docs/b/c.md");
        assert!(check_contents("- [A](a.md)\n- [C](b/c.md)\n", &files).is_empty());
    }
}
