//! No public item of a library that only tests use: a function, type, trait or constant that the product never
//! names is deleted, or moved into the tests. `xtask/test-only.txt` lists the exceptions with their reasons.
//!
//! The rule reads text, without a compiler. It misses an item whose name the product uses for something else.

use std::collections::{BTreeSet, HashSet};

use super::Finding;
use names::{Names, Use, UseKind};

mod names;

/// The list of exceptions.
pub const EXCEPTIONS: &str = "xtask/test-only.txt";

/// Packages without a public interface: a program, and simulations for tests.
const NO_LIBRARY: [&str; 2] = ["crates/cli/", "crates/sim/"];

/// Finds public items that only tests name. `files` are paths and texts of the tree, `exceptions` the text of the
/// list: lines `path name...: reason`.
pub fn check(files: &[(&str, &str)], exceptions: &str) -> Vec<Finding> {
    let unused = unused(&product(files));
    let exceptions = Exceptions::parse(exceptions);
    let mut findings = exceptions.without_reason;
    for (file, name) in unused.difference(&exceptions.items) {
        let rule = format!(
            "only tests use `{name}`: delete it, move it into the tests, or explain it in {EXCEPTIONS}"
        );
        findings.push(Finding::new(*file, rule));
    }
    for (file, name) in exceptions.items.difference(&unused) {
        let rule = format!("`{file} {name}` is no exception any more: remove the line");
        findings.push(Finding::new(EXCEPTIONS, rule));
    }
    findings
}

/// A source file of the product.
struct Source<'a> {
    file: &'a str,
    text: &'a str,
    names: Names<'a>,
}

/// The sources of the product: those of crates without tests, benchmarks and examples.
fn product<'a>(files: &[(&'a str, &'a str)]) -> Vec<Source<'a>> {
    let may_be = |file: &str| {
        file.ends_with(".rs")
            && file.starts_with("crates/")
            && !file.starts_with("crates/sim/")
            && file.contains("/src/")
    };
    let files = files.iter().filter(|(file, _)| may_be(file));
    let read = |(file, text): &(&'a str, &'a str)| Source {
        file,
        text,
        names: names::read(text),
    };
    let mut sources: Vec<Source<'_>> = files.map(read).collect();
    let tests: HashSet<String> = sources
        .iter()
        .flat_map(|it| {
            it.names
                .test_modules
                .iter()
                .map(|name| submodule(it.file, name))
        })
        .collect();
    let is_test = |file: &str| {
        let ends = file.match_indices(['.', '/']);
        ends.into_iter()
            .any(|(end, _)| tests.contains(&file[..end]))
    };
    sources.retain(|it| !is_test(it.file));
    sources
}

/// Files and names of the public items of libraries that no source names.
fn unused<'a>(sources: &[Source<'a>]) -> BTreeSet<(&'a str, &'a str)> {
    let is_library = |it: &&Source<'_>| !NO_LIBRARY.iter().any(|of| it.file.starts_with(of));
    let libraries = || sources.iter().filter(is_library);
    let public: HashSet<&str> = libraries()
        .flat_map(|it| it.names.public.iter().map(|item| item.name))
        .collect();
    // Functions, and other items: where a file defines the name itself, it means that.
    let (mut called, mut meant) = (HashSet::new(), HashSet::new());
    let mut at_home: HashSet<(&str, &str)> = HashSet::new();
    for Source { file, names, .. } in sources {
        for Use { name, kind } in names.used.iter().filter(|it| public.contains(it.name)) {
            if *kind == UseKind::Any || *kind == UseKind::Alone && names.values.contains(name) {
                called.insert(*name);
            }
            match names.defined.contains(name) {
                true => drop(at_home.insert((*file, *name))),
                false => drop(meant.insert(*name)),
            }
        }
    }
    let mut unused = BTreeSet::new();
    for Source { file, names, .. } in libraries() {
        for item in &names.public {
            let is_used = match item.is_function {
                true => called.contains(item.name),
                false => meant.contains(item.name) || at_home.contains(&(*file, item.name)),
            };
            let in_literals = || sources.iter().any(|it| in_literal(it.text, item.name));
            if !is_used && !in_literals() {
                unused.insert((*file, item.name));
            }
        }
    }
    unused
}

/// The path of a submodule without `.rs` or `/mod.rs`.
fn submodule(file: &str, name: &str) -> String {
    let (directory, stem) = file.rsplit_once('/').unwrap_or(("", file));
    match stem {
        "mod.rs" | "lib.rs" | "main.rs" => format!("{directory}/{name}"),
        _ => format!("{}/{name}", file.trim_end_matches(".rs")),
    }
}

/// Whether a literal of the text names the item: `"{NAME}"` prints it, `with = "name"` has a macro call it.
fn in_literal(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + name.len()..]);
        (before.ends_with('{') && after.starts_with(['}', ':']))
            || ((before.ends_with("= \"") || before.ends_with("::")) && after.starts_with("\")"))
    })
}

/// Items that may be for tests only.
struct Exceptions<'a> {
    /// Their files and names.
    items: BTreeSet<(&'a str, &'a str)>,
    without_reason: Vec<Finding>,
}

impl<'a> Exceptions<'a> {
    fn parse(text: &'a str) -> Exceptions<'a> {
        let (mut items, mut without_reason) = (BTreeSet::new(), Vec::new());
        let lines = text.lines();
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let parts = line
                .split_once(": ")
                .filter(|(_, why)| !why.trim().is_empty());
            match parts.and_then(|(item, _)| item.split_once(' ')) {
                Some((file, names)) => {
                    items.extend(names.split_whitespace().map(|name| (file, name)))
                }
                None => {
                    let rule = format!("`{line}` is not `path name...: reason`");
                    without_reason.push(Finding::new(EXCEPTIONS, rule));
                }
            }
        }
        Exceptions {
            items,
            without_reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [&str; 0] = [];

    /// The names for which the rule fires, in these files and the product's other one.
    fn unused(files: &[(&str, &str)]) -> Vec<String> {
        let findings = check(files, "");
        let name = |finding: Finding| finding.rule.split('`').nth(1).map(str::to_owned);
        findings.into_iter().filter_map(name).collect()
    }

    /// An item in `crates/x/src/a.rs` and what another file of the product says.
    fn beside(item: &str, other: &str) -> Vec<String> {
        unused(&[("crates/x/src/a.rs", item), ("crates/y/src/b.rs", other)])
    }

    #[test]
    fn each_kind_of_item_that_nobody_names_fires() {
        for item in [
            "pub fn it() {}",
            "pub const fn it() {}",
            "pub async fn it() { it().await }",
            "pub struct it { pub a: [u8; 2] }",
            "pub enum it { A }",
            "pub trait it {}",
            "pub const it: u8 = 1;",
            "pub static it: u8 = 1;",
            "pub type it = u8;",
            "struct A; impl A { #[must_use] pub fn it(&self) { self.it(); Self::it(self) } }",
            "pub(crate) struct A; impl<T> A<T> where T: Copy { pub const it: u8 = 1; }",
        ] {
            assert_eq!(beside(item, ""), ["it"], "{item}");
        }
        let of_trait = "pub trait A { fn it(&self); } struct B; impl A for B { fn it(&self) {} }";
        assert_eq!(beside(of_trait, "fn f(a: impl A) {}"), ["it"]);
    }

    #[test]
    fn what_is_no_use_does_not_count() {
        let item = "/// A thing.\npub struct It; impl It { fn new() -> It { It } }\n\
                    impl Clone for It { fn clone(&self) -> It { It } }";
        for other in [
            "pub use x::It;",
            "pub(crate) use x::{It, Other};",
            "// It\n/// [`It`]\nconst A: &str = \"It\";",
            "#[cfg(test)]\nmod tests { fn f() { It } }",
            "#[cfg(test)]\nuse x::It;\n#[cfg(test)]\nfn f(a: It) {}",
            "#[cfg(feature = \"a\")]\nfn f(a: It) {}",
            "#[cfg(any(test, feature = \"a\"))]\n#[allow(b)]\npub(super) fn f() { It }",
            "struct A { #[cfg(test)] a: It, b: u8 }",
            "mod It;",
            "struct It; fn f() -> It { It }",
        ] {
            assert_eq!(beside(item, other), ["It"], "{other}");
        }
        for file in [
            "crates/x/tests/b.rs",
            "crates/x/benches/b.rs",
            "crates/x/examples/b.rs",
            "crates/sim/src/b.rs",
            "bench/src/b.rs",
            "fuzz/b.rs",
            "xtask/src/b.rs",
        ] {
            let files = [("crates/x/src/a.rs", item), (file, "fn f(a: x::It) {}")];
            assert_eq!(unused(&files), ["It"], "{file}");
        }
        let function = "pub fn size() {}";
        for other in [
            "fn f(size: u8) { let size = size + 1; g(size); a.size = a.size; A { size } }",
            "fn size() {}",
        ] {
            assert_eq!(beside(function, other), ["size"], "{other}");
        }
    }

    #[test]
    fn modules_for_tests_do_not_count_wherever_their_file_is() {
        let item = ("crates/x/src/a.rs", "pub struct It;");
        for (parent, child) in [
            ("crates/x/src/lib.rs", "crates/x/src/tests.rs"),
            ("crates/x/src/lib.rs", "crates/x/src/tests/mod.rs"),
            ("crates/x/src/b.rs", "crates/x/src/b/tests.rs"),
            ("crates/x/src/b/mod.rs", "crates/x/src/b/tests/deep.rs"),
        ] {
            let text = "#[cfg(test)]\nmod tests;";
            let child = (child, "fn f(a: It) {} pub fn helper() {}");
            assert_eq!(unused(&[item, (parent, text), child]), ["It"], "{parent}");
            assert_eq!(unused(&[item, (parent, ""), child]), ["helper"], "{parent}");
        }
    }

    #[test]
    fn what_is_used_passes() {
        let item = "pub struct It;";
        for other in [
            "fn f(a: It) {}",
            "fn f() -> Vec<x::It> {}",
            "use x::It as Other;",
            "use x::It; fn f() { It }",
            "impl From<It> for Other {}",
            "impl Other { fn f() -> It { It } }",
            "#[cfg(not(test))]\nfn f(a: It) {}",
            "#[cfg(unix)]\nfn f(a: It) {}",
            "macro_rules! a { () => { It } }",
            "#[cfg(test)]\nmod tests { fn f() { '{' ; \"}\" } }\nfn f(a: It) {}",
        ] {
            assert_eq!(beside(item, other), NONE, "{other}");
        }
        let function = "pub fn it() {}";
        for other in [
            "fn f() { x.it() }",
            "fn f() { x::it::<u8>() }",
            "fn f() { a.map(X::it) }",
            "use x::it; fn f() { a.map(it) }",
            "impl A { fn it(&self) { self.inner.it() } }",
            "fn it() { x::it() }",
            "#[serde(default = \"it\")] struct A;",
        ] {
            assert_eq!(beside(function, other), NONE, "{other}");
        }
        assert_eq!(beside("pub trait It {}", "use x::It; fn f() {}"), NONE);
        assert_eq!(
            beside("pub const IT: u8 = 1;", "fn f() { format!(\"{IT}\") }"),
            NONE
        );
    }

    #[test]
    fn what_is_not_public_or_in_no_library_is_not_looked_at() {
        for item in [
            "fn it() {}",
            "pub(crate) fn it() {}",
            "pub mod it {}",
            "const _: () = ();",
        ] {
            assert_eq!(beside(item, ""), NONE, "{item}");
        }
        for file in [
            "crates/cli/src/a.rs",
            "crates/sim/src/a.rs",
            "bench/src/a.rs",
        ] {
            assert_eq!(unused(&[(file, "pub fn it() {}")]), NONE, "{file}");
        }
    }

    #[test]
    fn exceptions_pass_until_they_are_none() {
        let files = [("crates/x/src/a.rs", "pub fn one() {} pub fn two() {}")];
        let places = |list: &str| -> Vec<String> {
            let findings = check(&files, list);
            findings.into_iter().map(|finding| finding.place).collect()
        };
        let both = "# Exceptions.\ncrates/x/src/a.rs one two: writes vectors\n";
        assert_eq!(places(both), NONE);
        let one = "crates/x/src/a.rs one: writes vectors\n";
        assert_eq!(places(one), ["crates/x/src/a.rs"]);
        for gone in [
            "crates/x/src/a.rs three: gone",
            "crates/y/src/a.rs one: moved",
        ] {
            assert_eq!(places(&format!("{both}{gone}")), [EXCEPTIONS], "{gone}");
        }
        let without_reason = "crates/x/src/a.rs one two:\n";
        assert_eq!(places(without_reason).len(), 3);
    }
}
