//! A library is built for documentation tests only if it has some: rustdoc analyses the whole library for
//! them. `doctest = false` stands in the manifest of every other library.

use std::path::Path;

use super::Finding;
use super::metadata::Metadata;

/// Compares the setting of each library of the workspace with its documentation.
pub fn check(root: &Path, metadata: &Metadata, texts: &[(&str, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in metadata.packages.iter().filter(|p| p.source.is_none()) {
        let manifest = package.manifest_path.strip_prefix(root);
        let Some(directory) = manifest.ok().and_then(Path::parent) else {
            continue; // of another workspace
        };
        let is_library = |kinds: &[String]| kinds.iter().any(|kind| kind == "lib");
        let Some(library) = package.targets.iter().find(|t| is_library(&t.kind)) else {
            continue;
        };
        let sources = directory.join("src");
        let has_examples = texts
            .iter()
            .any(|(name, text)| Path::new(name).starts_with(&sources) && has_example(text));
        let rule = match (library.doctest, has_examples) {
            (false, true) => "has documentation tests that never run: remove `doctest = false`",
            (true, false) => "has no documentation test: set `doctest = false` below `[lib]`",
            _ => continue,
        };
        findings.push(Finding::new(&package.name, rule));
    }
    findings
}

/// Whether rustdoc would compile a block of code of this file.
fn has_example(text: &str) -> bool {
    let mut is_inside = false;
    for line in text.lines() {
        let line = line.trim_start();
        let comment = line.strip_prefix("//!").or(line.strip_prefix("///"));
        let Some(language) = comment.and_then(|text| text.trim_start().strip_prefix("```")) else {
            continue;
        };
        if !is_inside && !language.starts_with("text") {
            return true;
        }
        is_inside = !is_inside;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_of_rust_are_tests() {
        let text = "//! ```text\n//! a | b\n//! ```\nfn a() {}\n";
        assert!(!has_example(text));
        assert!(!has_example("let s = \"```\";\n"));
        for language in ["", "no_run", "rust", "should_panic"] {
            let rust = format!("{text}    /// ```{language}\n    /// a();\n    /// ```\n");
            assert!(has_example(&rust), "{language}");
        }
    }

    #[test]
    fn setting_that_does_not_fit_the_documentation_fires() {
        let root = crate::workspace_root();
        let mut metadata = crate::tidy::metadata(&root).unwrap();
        let fence = ["//! ``", "`\n//! a();\n//! ``", "`\n"].concat();
        let texts = [("crates/trust/src/lib.rs", fence.as_str())];
        let places = |metadata: &Metadata| {
            let findings = check(&root, metadata, &texts).into_iter();
            findings.map(|f| f.place).collect::<Vec<_>>()
        };
        // Only trust has an example here; reader and volume are set to have some, too.
        assert_eq!(places(&metadata), ["bulla-reader", "bulla-volume"]);
        let packages = metadata.packages.iter_mut();
        for package in packages.filter(|p| p.name == "bulla-trust") {
            package.targets.iter_mut().for_each(|t| t.doctest = false);
        }
        assert!(places(&metadata).contains(&"bulla-trust".to_owned()));
    }
}
