//! No module cycles inside a crate: modules of one directory, each with its submodules, depend on one another
//! in one direction. `xtask/known-cycles.txt` lists tolerated cycles. Code for tests does not count. Design:
//! *The house*.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Finding;
use paths::{Module, ModulePath};

mod cycle;
mod paths;

use cycle::{Edges, components};

/// Finds the cycles of all crates among `files`, paths and texts of the whole tree.
pub fn check(files: &[(&str, &str)], known: &Known) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut used = BTreeSet::new();
    for (directory, sources) in crates(files) {
        let modules =
            read(&sources).with_context(|| format!("reading the modules of {directory}"))?;
        for (level, edges) in edges(&modules) {
            for component in components(&edges) {
                let place = [&[directory.to_owned()], &level[..]].concat().join("/");
                let line = format!("{place}: {}", component.join(" "));
                if !known.lines.contains(&line) {
                    let why = describe(&component, &edges);
                    let rule = format!("modules depend on one another in a circle: {why}");
                    findings.push(Finding::new(&line, rule));
                }
                used.insert(line);
            }
        }
    }
    let gone = known.lines.iter().filter(|line| !used.contains(*line));
    findings.extend(gone.map(|line| {
        Finding::new(
            KNOWN,
            format!("`{line}` is no cycle any more: remove the line"),
        )
    }));
    Ok(findings)
}

/// The list of known cycles.
pub const KNOWN: &str = "xtask/known-cycles.txt";

/// Cycles that are tolerated for now.
#[derive(Debug, Default)]
pub struct Known {
    lines: BTreeSet<String>,
}

impl Known {
    /// Reads the list; a missing file is an empty one.
    pub fn read(root: &Path) -> Known {
        Known::parse(&std::fs::read_to_string(root.join(KNOWN)).unwrap_or_default())
    }

    fn parse(text: &str) -> Known {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        Known {
            lines: lines.map(str::to_owned).collect(),
        }
    }
}

/// The sources of each crate, by its directory of sources (`crates/store/src`): paths within it, and texts.
fn crates<'a>(files: &[(&'a str, &'a str)]) -> BTreeMap<&'a str, Vec<(&'a str, &'a str)>> {
    let mut crates: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for (name, text) in files.iter().filter(|(name, _)| name.ends_with(".rs")) {
        if let Some(at) = name.find("/src/") {
            let (directory, file) = name.split_at(at + "/src".len());
            let sources = crates.entry(directory).or_default();
            sources.push((file.trim_start_matches('/'), text));
        }
    }
    crates
}

/// All modules of a crate that are part of the product, by their path.
fn read(sources: &[(&str, &str)]) -> Result<BTreeMap<ModulePath, Module>> {
    let mut modules: BTreeMap<ModulePath, Module> = BTreeMap::new();
    for (file, text) in sources {
        let module = paths::read(file, text)?;
        for (path, module) in module {
            let twice = modules.insert(path, module);
            ensure!(twice.is_none(), "{file} is a module that exists twice");
        }
    }
    let tests: Vec<ModulePath> = modules.values().flat_map(|m| m.tests.clone()).collect();
    modules.retain(|path, _| !tests.iter().any(|test| path.starts_with(test)));
    Ok(modules)
}

/// For each module with submodules: the dependencies between these.
fn edges(modules: &BTreeMap<ModulePath, Module>) -> BTreeMap<ModulePath, Edges> {
    let mut levels: BTreeMap<ModulePath, Edges> = BTreeMap::new();
    for (from, module) in modules {
        for path in &module.uses {
            let to = resolve(modules, path, 0);
            let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if let (Some(a), Some(b)) = (from.get(common), to.get(common)) {
                let edges = levels.entry(from[..common].to_vec()).or_default();
                let place = module.file.clone();
                edges
                    .entry(a.clone())
                    .or_default()
                    .entry(b.clone())
                    .or_insert(place);
            }
        }
    }
    levels
}

/// The module of a path, found through imported and re-exported names.
fn resolve(modules: &BTreeMap<ModulePath, Module>, path: &[String], depth: usize) -> ModulePath {
    let mut at = ModulePath::new();
    for (index, name) in path.iter().enumerate() {
        let mut next = at.clone();
        next.push(name.clone());
        if modules.contains_key(&next) {
            at = next;
            continue;
        }
        let alias = modules.get(&at).and_then(|module| module.names.get(name));
        return match alias {
            // Bounded, because re-exports may form a cycle.
            Some(other) if depth < 8 => {
                let rest = [&other[..], &path[index + 1..]].concat();
                resolve(modules, &rest, depth + 1)
            }
            _ => at,
        };
    }
    at
}

/// `a -> b (file), b -> a (file)`: the dependencies within a cycle.
fn describe(component: &[String], edges: &Edges) -> String {
    let mut parts = Vec::new();
    for from in component {
        for (to, file) in edges.get(from).into_iter().flatten() {
            if component.contains(to) {
                parts.push(format!("{from} -> {to} ({file})"));
            }
        }
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(files: &[(&str, &str)], known: &str) -> Vec<String> {
        let files: Vec<(String, &str)> = files
            .iter()
            .map(|(name, text)| (format!("crates/x/src/{name}"), *text))
            .collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(n, t)| (n.as_str(), *t)).collect();
        let findings = check(&files, &Known::parse(known)).unwrap();
        findings.into_iter().map(|finding| finding.place).collect()
    }

    const NONE: [&str; 0] = [];

    #[test]
    fn a_circle_of_two_and_of_three_fires() {
        let two = [
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "fn f() { crate::a::g() }"),
        ];
        assert_eq!(cycles(&two, ""), ["crates/x/src: a b"]);
        let three = [
            ("a.rs", "use crate::{x, b::{self, B}};"),
            ("b.rs", "use super::c;"),
            ("c/mod.rs", ""),
            ("c/d.rs", "use super::super::a::A;"),
        ];
        assert_eq!(cycles(&three, ""), ["crates/x/src: a b c"]);
    }

    #[test]
    fn one_direction_passes() {
        let files = [
            ("lib.rs", "pub mod a; mod b; use a::A; fn f() { b::g() }"),
            ("a.rs", "use crate::b::B; use std::b; use other::a;"),
            (
                "b.rs",
                "//! See [`crate::a`].\nconst TEXT: &str = \"crate::a\"; // crate::a\n",
            ),
        ];
        assert_eq!(cycles(&files, ""), NONE);
    }

    #[test]
    fn a_circle_inside_a_directory_fires() {
        let files = [
            ("a/mod.rs", "mod b; mod c; pub use b::B;"),
            ("a/b.rs", "use super::c::C;"),
            ("a/c.rs", "use crate::a::b::B;"),
        ];
        assert_eq!(cycles(&files, ""), ["crates/x/src/a: b c"]);
    }

    #[test]
    fn a_submodule_counts_as_its_module_and_may_use_its_parent() {
        let files = [
            (
                "a.rs",
                "mod b; pub struct A; use self::b::B; use crate::c::d::D;",
            ),
            ("a/b.rs", "use super::A; use crate::a::A as Again;"),
            ("c/mod.rs", "pub mod d;"),
            ("c/d.rs", ""),
        ];
        assert_eq!(cycles(&files, ""), NONE);
    }

    #[test]
    fn a_circle_through_a_name_exported_again_fires() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use a::{A, Other as Renamed};"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::Renamed;"),
        ];
        assert_eq!(cycles(&files, ""), ["crates/x/src: a b"]);
        let circle = [("lib.rs", "use a::X; mod a;"), ("a.rs", "use crate::X;")];
        assert_eq!(cycles(&circle, ""), NONE, "it ends");
    }

    #[test]
    fn code_for_tests_does_not_count() {
        let files = [
            ("a.rs", "use crate::b::B;"),
            (
                "b.rs",
                "#[cfg(test)]\nmod inline { use crate::a::A; fn f() { if x { } } }\n\
                 #[cfg(test)]\nuse crate::a::A;\n#[cfg(test)]\nmod tests;\n\
                 #[cfg(test)]\nfn f() -> crate::a::A { x }\n",
            ),
            ("b/tests.rs", "use crate::a::A;"),
        ];
        assert_eq!(cycles(&files, ""), NONE);
        let after = [
            ("a.rs", "use crate::b::B;"),
            (
                "b.rs",
                "#[cfg(test)]\nmod tests { fn f() { '{' ; \"}\" } }\nuse crate::a::A;",
            ),
        ];
        assert_eq!(cycles(&after, ""), ["crates/x/src: a b"]);
    }

    #[test]
    fn an_inline_module_is_a_module() {
        let files = [
            ("lib.rs", "mod a { use super::b::B; }"),
            ("b.rs", "use crate::a::A;"),
        ];
        assert_eq!(cycles(&files, ""), ["crates/x/src: a b"]);
    }

    #[test]
    fn a_known_circle_passes_until_it_is_gone() {
        let two = [("a.rs", "use crate::b::B;"), ("b.rs", "use crate::a::A;")];
        let known = "# Known.\ncrates/x/src: a b\n";
        assert_eq!(cycles(&two, known), NONE);
        assert_eq!(cycles(&two[..1], known), [KNOWN]);
        assert_eq!(cycles(&[], "crates/gone/src: a b"), [KNOWN]);
    }
}
