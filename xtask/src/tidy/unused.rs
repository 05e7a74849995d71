//! No unused dependency: the crate's name must occur in the sources of the package that asks for it. A normal
//! dependency must occur outside `tests` and `benches`, a dependency of the build script in `build.rs`.

use std::path::Path;

use super::Finding;
use super::metadata::{Dependency, Metadata};

/// Dependencies of our packages that none of their sources names; `files` are paths and texts of the tree.
pub fn check(root: &Path, metadata: &Metadata, files: &[(&str, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in metadata.packages.iter().filter(|p| p.source.is_none()) {
        let manifest = package.manifest_path.strip_prefix(root);
        let Some(directory) = manifest.ok().and_then(Path::parent) else {
            continue; // a package of another workspace
        };
        let sources: Vec<(&Path, &str)> = files
            .iter()
            .filter(|(name, _)| name.ends_with(".rs"))
            .filter_map(|(name, text)| Some((Path::new(name).strip_prefix(directory).ok()?, *text)))
            .collect();
        for dependency in &package.dependencies {
            let crate_name = crate_name(dependency, metadata);
            let is_used = sources
                .iter()
                .filter(|(file, _)| may_use(file, dependency))
                .any(|(_, text)| names(text, &crate_name));
            if !is_used {
                let kind = dependency.kind.as_deref().unwrap_or("normal");
                findings.push(Finding::new(
                    &package.name,
                    format!("{kind} dependency `{}` is not used", dependency.name),
                ));
            }
        }
    }
    findings
}

/// The name in source text: the renamed one, or that of the library.
fn crate_name(dependency: &Dependency, metadata: &Metadata) -> String {
    let library = || {
        let package = metadata
            .packages
            .iter()
            .find(|p| p.name == dependency.name)?;
        let library = package.targets.iter().find(|target| {
            let is_library = |kind: &String| kind.contains("lib") || kind == "proc-macro";
            target.kind.iter().any(is_library)
        });
        library.map(|target| target.name.clone())
    };
    let name = dependency.rename.clone().or_else(library);
    name.unwrap_or_else(|| dependency.name.clone())
        .replace('-', "_")
}

/// Whether a source file (its path inside the package) may use dependencies of a kind.
fn may_use(file: &Path, dependency: &Dependency) -> bool {
    let is_test = file.starts_with("tests") || file.starts_with("benches");
    let is_build = file == Path::new("build.rs");
    match dependency.kind.as_deref() {
        Some("build") => is_build,
        Some(_) => !is_build,
        // An optional one may be for benches, because dependencies for tests cannot be optional.
        None => !is_build && (!is_test || dependency.optional),
    }
}

/// Whether code (not comments) contains the name as a word.
fn names(text: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let code = text.lines().filter_map(|line| line.split("//").next());
    code.into_iter().any(|line| {
        line.match_indices(name).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + name.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A package `x` with one dependency and the given source.
    fn unused(dependency: &str, file: &str, text: &str) -> Vec<String> {
        let json = format!(
            r#"{{"packages":[
                {{"id":"x","name":"x","version":"1.0.0","license":"MIT","source":null,"targets":[],
                  "manifest_path":"/w/crates/x/Cargo.toml","dependencies":[{dependency}]}},
                {{"id":"md-5","name":"md-5","version":"1.0.0","license":"MIT","source":"r","dependencies":[],
                  "manifest_path":"/r/Cargo.toml","targets":[{{"name":"md5","kind":["lib"]}}]}}]}}"#
        );
        let metadata: Metadata = serde_json::from_str(&json).unwrap();
        let files = [(file, text), ("crates/y/src/lib.rs", "use a_b; use md5;")];
        let findings = check(Path::new("/w"), &metadata, &files);
        findings.into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn an_unused_dependency_fires() {
        let normal = r#"{"name":"a-b"}"#;
        let lib = "crates/x/src/lib.rs";
        for text in ["", "use xa_b;", "use a_bc;", "// a_b::c"] {
            assert_eq!(
                unused(normal, lib, text),
                ["normal dependency `a-b` is not used"],
                "{text}"
            );
        }
        assert_eq!(
            unused(normal, "crates/x/tests/a.rs", "use a_b;").len(),
            1,
            "only in tests"
        );
        assert_eq!(
            unused(normal, "crates/x/build.rs", "a_b::f()").len(),
            1,
            "only in the build"
        );
        let build = r#"{"name":"a-b","kind":"build"}"#;
        assert_eq!(unused(build, lib, "use a_b;").len(), 1, "not in the build");
        assert_eq!(
            unused(r#"{"name":"md-5"}"#, lib, "use md_5;").len(),
            1,
            "not its name"
        );
    }

    #[test]
    fn a_used_dependency_passes() {
        let lib = "crates/x/src/deep/a.rs";
        let none = [""; 0];
        assert_eq!(unused(r#"{"name":"a-b"}"#, lib, "#[a_b::main]"), none);
        assert_eq!(
            unused(r#"{"name":"a-b"}"#, lib, "fn f() { a_b::g() } // a"),
            none
        );
        assert_eq!(unused(r#"{"name":"md-5"}"#, lib, "use md5::Md5;"), none);
        assert_eq!(
            unused(
                r#"{"name":"md-5","rename":"old-hash"}"#,
                lib,
                "use old_hash;"
            ),
            none
        );
        let dev = r#"{"name":"a-b","kind":"dev"}"#;
        assert_eq!(unused(dev, "crates/x/tests/a.rs", "use a_b;"), none);
        assert_eq!(unused(dev, lib, "#[cfg(test)] use a_b;"), none);
        let build = r#"{"name":"a-b","kind":"build"}"#;
        assert_eq!(unused(build, "crates/x/build.rs", "a_b::f()"), none);
    }
}
