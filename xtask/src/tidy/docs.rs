//! Links between documents: what a relative link names must exist.

use std::path::Path;

use super::Finding;

/// Relative links in a Markdown file that lead nowhere.
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
            let path = target.split('#').next().unwrap_or_default();
            let elsewhere = target.contains("://") || target.starts_with("mailto:");
            if elsewhere || path.is_empty() || here.join(path).exists() {
                continue;
            }
            findings.push(Finding::new(
                format!("{name}:{}", number + 1),
                format!("link to `{target}`, which does not exist"),
            ));
        }
    }
    findings
}

/// What stands between `](` and `)`.
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
        let text = "[a](Cargo.toml) [b](https://example.org/) [c](#part)\n\
                    ```\n[in code](nowhere.md)\n```\n[dead](nowhere.md#x)\n";
        let findings = check(&root, "README.md", text);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].place, "README.md:5");
    }
}
