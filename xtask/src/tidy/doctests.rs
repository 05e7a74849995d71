//! No documentation tests: rustdoc analyses each library again for them (90 s for the six that there were). A library says
//! `doctest = false`, and has no example in its documentation, since nothing would run it: examples are unit tests, or
//! files in `examples/`.

use std::path::Path;

use super::Finding;
use super::metadata::Metadata;

/// The libraries that would be analysed, and the examples that nothing would run.
pub fn check(root: &Path, metadata: &Metadata, texts: &[(&str, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in metadata.packages.iter().filter(|p| p.source.is_none()) {
        let manifest = package.manifest_path.strip_prefix(root);
        let Some(directory) = manifest.ok().and_then(Path::parent) else {
            continue; // of another workspace
        };
        let is_library = |kinds: &[String]| kinds.iter().any(|kind| kind == "lib");
        let mut libraries = package.targets.iter().filter(|t| is_library(&t.kind));
        if libraries.any(|library| library.doctest) {
            let rule = "is analysed for documentation tests: set `doctest = false` below `[lib]`";
            findings.push(Finding::new(&package.name, rule));
        }
        let sources = directory.join("src");
        for (name, text) in texts {
            if Path::new(name).starts_with(&sources) && has_example(text) {
                let rule = "has an example that nothing runs: make it a unit test, or a file in `examples/`";
                findings.push(Finding::new(*name, rule));
            }
        }
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
    fn only_blocks_of_rust_are_examples() {
        let text = "//! ```text\n//! a | b\n//! ```\nfn a() {}\n";
        assert!(!has_example(text));
        assert!(!has_example("let s = \"```\";\n"));
        for language in ["", "no_run", "rust", "should_panic"] {
            let rust = format!("{text}    /// ```{language}\n    /// a();\n    /// ```\n");
            assert!(has_example(&rust), "{language}");
        }
    }

    #[test]
    fn library_that_is_analysed_and_example_that_nothing_runs_fire() {
        let root = crate::workspace_root();
        let mut metadata = crate::tidy::metadata(&root).unwrap();
        let fence = ["//! ``", "`\n//! a();\n//! ``", "`\n"].concat();
        let texts = [("crates/trust/src/lib.rs", fence.as_str())];
        let places = |metadata: &Metadata, texts: &[(&str, &str)]| {
            let findings = check(&root, metadata, texts).into_iter();
            findings.map(|f| f.place).collect::<Vec<_>>()
        };
        assert_eq!(places(&metadata, &[]), [""; 0]);
        assert_eq!(places(&metadata, &texts), ["crates/trust/src/lib.rs"]);
        let packages = metadata.packages.iter_mut();
        for package in packages.filter(|p| p.name == "bulla-trust") {
            package.targets.iter_mut().for_each(|t| t.doctest = true);
        }
        assert_eq!(places(&metadata, &[]), ["bulla-trust"]);
    }
}
