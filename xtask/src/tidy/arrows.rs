//! Direction of dependence: which crate may build on which, and which crates stay free of network and
//! asynchronous code. Design: *The house*.

use std::collections::BTreeSet;

use super::Finding;
use super::metadata::{Metadata, Package};

/// A crate, and all crates of ours that it may depend on. Dependencies for tests are free. Jobs (publish,
/// volume, share, guard, protect) never appear in one another's rows, except that `replica` follows a volume.
const MAY_USE: &[(&str, &[&str])] = &[
    ("trust", &[]),
    ("trust-shared", &["trust"]),
    ("wal", &["trust"]),
    ("store", &["trust"]),
    ("state", &["trust"]),
    ("keys", &["trust"]),
    ("content", &["store", "trust"]),
    ("wire", &["store", "trust", "trust-shared"]),
    ("reader", &["store", "trust"]),
    ("volume", &["reader", "state", "store", "trust"]),
    ("replica", &["reader", "state", "store", "trust", "volume"]),
    ("publish", &["content", "keys", "state", "store", "trust"]),
    // The state machines of a shared volume's log, which a device and the server have in common.
    ("ordering", &["trust", "trust-shared"]),
    (
        "share",
        &[
            "keys",
            "ordering",
            "reader",
            "state",
            "store",
            "trust",
            "trust-shared",
            "wire",
        ],
    ),
    (
        "share-server",
        &["ordering", "store", "trust", "trust-shared", "wal"],
    ),
    (
        "library",
        &[
            "content",
            "reader",
            "share",
            "store",
            "trust",
            "trust-shared",
            "volume",
            "wire",
        ],
    ),
    ("guard", &["keys", "state", "store", "trust", "wire"]),
    ("protect", &["wal", "trust"]),
    // A server looks up and sends. What it must check itself is in `share-server`.
    (
        "serve",
        &[
            "ordering",
            "share-server",
            "store",
            "trust",
            "trust-shared",
            "wire",
        ],
    ),
    (
        "mount",
        &[
            "wal",
            "library",
            "protect",
            "reader",
            "share",
            "state",
            "store",
            "trust",
            "trust-shared",
            "volume",
        ],
    ),
    (CLI, ALL),
    // For tests only, so only in the row of the fuzz targets.
    ("sim", ALL),
    ("bench", ALL),
    ("fuzz", &[ALL_LIBRARIES, "sim"]),
    ("xtask", &[]),
];

/// The program and its packages' common prefix.
const CLI: &str = "cli";
const ALL: &[&str] = &[ALL_LIBRARIES];
/// Means every crate of the product that is a library.
const ALL_LIBRARIES: &str = "*";
const NO_LIBRARIES: &[&str] = &[CLI, "sim", "bench", "fuzz", "xtask"];

/// Crates that have a row but do not exist yet. Remove a crate from the list when it is made.
const PLANNED: &[&str] = &["guard"];

/// Packages that a crate must not depend on, not even indirectly: other jobs can use trust, store, state and reader
/// without a network stack, publishing needs none, and no code of a server can rely on verification by accident.
const NEVER_REACHES: &[(&str, &[&str])] = &[
    ("trust", SANS_IO),
    ("trust-shared", SANS_IO),
    ("ordering", SANS_IO),
    ("share-server", VERIFIES),
    ("serve", VERIFIES),
    ("store", NETWORK),
    ("state", NETWORK),
    ("keys", NO_RUNTIME),
    ("reader", NETWORK),
    ("publish", NETWORK),
    ("content", NETWORK),
    ("wal", NO_RUNTIME),
    ("protect", NO_RUNTIME),
];
const SANS_IO: &[&str] = &["tokio", "rustix", "hyper", "reqwest"];
const VERIFIES: &[&str] = &["bulla-reader", "bulla-volume", "bulla-share", "bulla-state"];
const NO_RUNTIME: &[&str] = &["bulla-wire", "tokio", "hyper", "reqwest", "rustls"];
const NETWORK: &[&str] = &["bulla-wire", "hyper", "reqwest", "rustls"];

/// Packages that must not be a direct dependency of a crate. Publishing is synchronous.
const NEVER_NAMES: &[(&str, &[&str])] = &[("publish", &["tokio", "futures-util"])];

/// Crates without asynchronous code.
const SYNCHRONOUS: &[&str] = &[
    "trust",
    "trust-shared",
    "ordering",
    "share-server",
    "publish",
    "protect",
];

/// Checks the packages, and the sources (`files`: paths and texts of the tree) where the rule is about code.
pub fn check(metadata: &Metadata, files: &[(&str, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in ours(metadata) {
        let name = short(&package.name);
        findings.extend(wrong_arrows(name, package));
        findings.extend(wrong_reach(name, package, metadata));
    }
    findings.extend(asynchronous(files));
    findings
}

/// Rows without a crate, and crates that are listed as planned but exist.
pub fn check_rows(metadata: &Metadata) -> Vec<Finding> {
    let exist: BTreeSet<&str> = ours(metadata).map(|package| short(&package.name)).collect();
    let names = MAY_USE.iter().map(|(name, _)| *name);
    let wrong = names.filter(|name| exist.contains(name) == PLANNED.contains(name));
    wrong
        .map(|name| {
            let rule = format!("{name}: a row is for a crate that exists, or is in PLANNED");
            Finding::new("xtask/src/tidy/arrows.rs", rule)
        })
        .collect()
}

fn ours(metadata: &Metadata) -> impl Iterator<Item = &Package> {
    metadata.packages.iter().filter(|p| p.source.is_none())
}

/// `store` for `bulla-store`, `cli` for `bulla`.
fn short(package: &str) -> &str {
    match package {
        "bulla" => CLI,
        name => name.strip_prefix("bulla-").unwrap_or(name),
    }
}

fn wrong_arrows(name: &str, package: &Package) -> Vec<Finding> {
    let Some((_, allowed)) = MAY_USE.iter().find(|(row, _)| *row == name) else {
        let rule = "has no row in the table of arrows (xtask/src/tidy/arrows.rs)";
        return vec![Finding::new(name, rule)];
    };
    let is_allowed = |other: &str| {
        let is_library = !NO_LIBRARIES.contains(&other);
        allowed.contains(&other) || (allowed.contains(&ALL_LIBRARIES) && is_library)
    };
    let dependencies = package.dependencies.iter();
    dependencies
        .filter(|dependency| dependency.path.is_some() && !dependency.is_for_tests())
        .map(|dependency| short(&dependency.name))
        .filter(|other| !is_allowed(other))
        .map(|other| Finding::new(name, format!("must not depend on {other}: wrong direction")))
        .collect()
}

fn wrong_reach(name: &str, package: &Package, metadata: &Metadata) -> Vec<Finding> {
    let row = |table: &[(&str, &'static [&'static str])]| {
        let found = table.iter().find(|(row, _)| *row == name);
        found.map_or(&[][..], |(_, forbidden)| *forbidden)
    };
    let mut findings = Vec::new();
    let reached = metadata.reached(&package.id);
    for other in row(NEVER_REACHES)
        .iter()
        .filter(|other| reached.contains(**other))
    {
        let rule = format!("must not reach {other}, also not through other packages");
        findings.push(Finding::new(name, rule));
    }
    for other in row(NEVER_NAMES) {
        let names = |d: &super::metadata::Dependency| d.name == *other && !d.is_for_tests();
        if package.dependencies.iter().any(names) {
            findings.push(Finding::new(
                name,
                format!("must not name {other} as a dependency"),
            ));
        }
    }
    findings
}

/// Asynchronous code in synchronous crates: one finding for each crate, with its first occurrence.
fn asynchronous(files: &[(&str, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in SYNCHRONOUS {
        let directory = format!("crates/{name}/src/");
        let mut sources = files
            .iter()
            .filter(|(file, _)| file.starts_with(&directory));
        let place = sources.find_map(|(file, text)| {
            let mut lines = text
                .lines()
                .map(|line| line.split("//").next().unwrap_or(""));
            let at = lines.position(|code| {
                let words = ["async fn ", "async move ", "async {"];
                let awaits = code.split(".await").skip(1);
                words.iter().any(|word| code.contains(word))
                    || awaits
                        .into_iter()
                        .any(|rest| !rest.starts_with(char::is_alphanumeric))
            });
            at.map(|at| format!("{file}:{}", at + 1))
        });
        if let Some(place) = place {
            findings.push(Finding::new(
                *name,
                format!("must not be asynchronous: {place}"),
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace of one package with one dependency on another.
    fn metadata(name: &str, uses: &str, kind: &str, is_ours: bool) -> Metadata {
        let path = if is_ours { "\"somewhere\"" } else { "null" };
        let json = format!(
            r#"{{"packages":[{{"id":"1","name":"{name}","version":"0.1.0","license":null,"source":null,
                "manifest_path":"/w/Cargo.toml","targets":[],
                "dependencies":[{{"name":"{uses}","kind":{kind},"path":{path},"rename":null,
                    "optional":false}}]}},
              {{"id":"2","name":"between","version":"1.0.0","license":null,"source":"r",
                "manifest_path":"/r/Cargo.toml","targets":[],"dependencies":[]}},
              {{"id":"3","name":"{uses}","version":"1.0.0","license":null,"source":"r",
                "manifest_path":"/r/Cargo.toml","targets":[],"dependencies":[]}}],
              "resolve":{{"nodes":[
                {{"id":"1","deps":[{{"pkg":"2","dep_kinds":[{{"kind":{kind}}}]}}]}},
                {{"id":"2","deps":[{{"pkg":"3","dep_kinds":[{{"kind":null}}]}}]}},
                {{"id":"3","deps":[]}}]}}}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    fn rules(name: &str, uses: &str, kind: &str) -> Vec<String> {
        let metadata = metadata(name, uses, kind, uses.starts_with("bulla"));
        let findings = check(&metadata, &[]);
        findings.into_iter().map(|finding| finding.rule).collect()
    }

    const NORMAL: &str = "null";

    #[test]
    fn a_wrong_arrow_fires() {
        for (name, uses) in [
            ("bulla-trust", "bulla-store"),
            ("bulla-store", "bulla-sim"),
            ("bulla-store", "bulla-state"),
            ("bulla-store", "bulla-wal"),
            ("bulla-reader", "bulla-state"),
            ("bulla-volume", "bulla-wire"),
            ("bulla-volume", "bulla-publish"),
            ("bulla-volume", "bulla-replica"),
            ("bulla-publish", "bulla-volume"),
            ("bulla-share", "bulla-volume"),
            ("bulla-share", "bulla-share-server"),
            ("bulla-guard", "bulla-share"),
            ("bulla-protect", "bulla-store"),
            ("bulla-serve", "bulla-publish"),
            ("bulla-mount", "bulla"),
            ("bulla", "bulla-sim"),
            ("bulla-bench", "bulla"),
            ("bulla-unheard-of", "bulla-trust"),
        ] {
            assert_eq!(rules(name, uses, NORMAL).len(), 1, "{name} -> {uses}");
        }
        assert_eq!(rules("bulla-wire", "bulla-serve", "\"build\"").len(), 1);
    }

    #[test]
    fn a_right_arrow_and_a_dependency_for_tests_pass() {
        for (name, uses) in [
            ("bulla-store", "bulla-trust"),
            ("bulla-reader", "bulla-store"),
            ("bulla-replica", "bulla-volume"),
            ("bulla-share", "bulla-reader"),
            ("bulla", "bulla-volume"),
            ("bulla-sim", "bulla-serve"),
            ("bulla-fuzz", "bulla-sim"),
        ] {
            assert_eq!(rules(name, uses, NORMAL), [""; 0], "{name} -> {uses}");
        }
        assert_eq!(rules("bulla-store", "bulla-sim", "\"dev\""), [""; 0]);
    }

    #[test]
    fn a_forbidden_package_fires_also_through_others() {
        assert_eq!(rules("bulla-reader", "reqwest", NORMAL).len(), 1);
        assert_eq!(rules("bulla-trust", "tokio", NORMAL).len(), 1);
        assert_eq!(
            rules("bulla-publish", "tokio", NORMAL),
            ["must not name tokio as a dependency"]
        );
        assert_eq!(rules("bulla-publish", "tokio", "\"dev\""), [""; 0]);
        assert_eq!(rules("bulla-reader", "reqwest", "\"dev\""), [""; 0]);
        assert_eq!(rules("bulla-wire", "reqwest", NORMAL), [""; 0]);
    }

    #[test]
    fn server_that_reaches_code_that_verifies_through_others_fires() {
        for server in ["bulla-serve", "bulla-share-server"] {
            for uses in ["bulla-reader", "bulla-share"] {
                let findings = check(&metadata(server, uses, NORMAL, false), &[]);
                let rule = format!("must not reach {uses}, also not through other packages");
                let rules: Vec<&str> = findings.iter().map(|it| it.rule.as_str()).collect();
                assert_eq!(rules, [rule], "{server}");
                let for_tests = check(&metadata(server, uses, "\"dev\"", false), &[]);
                assert!(for_tests.is_empty(), "{server}");
            }
        }
    }

    #[test]
    fn asynchronous_code_in_a_synchronous_crate_fires() {
        let fires = |file: &str, text: &str| asynchronous(&[(file, text)]).len();
        assert_eq!(fires("crates/publish/src/a.rs", "pub async fn f() {}"), 1);
        assert_eq!(fires("crates/publish/src/a/b.rs", "x().await?"), 1);
        assert_eq!(fires("crates/publish/src/a.rs", "// x.await"), 0);
        assert_eq!(fires("crates/publish/src/a.rs", "self.awaited()"), 0);
        assert_eq!(fires("crates/publish/tests/a.rs", "pub async fn f() {}"), 0);
        assert_eq!(fires("crates/volume/src/a.rs", "pub async fn f() {}"), 0);
    }

    #[test]
    fn a_row_that_fits_no_crate_fires() {
        let one = metadata("bulla-trust", "bytes", NORMAL, false);
        let findings = check_rows(&one);
        let fires = |name: &str| findings.iter().any(|it| it.rule.starts_with(name));
        assert!(fires("store: a row is for a crate that exists"));
        assert!(!fires("guard:") && !fires("trust:"), "{findings:?}");
        let planned = metadata("bulla-guard", "bytes", NORMAL, false);
        let findings = check_rows(&planned);
        assert!(findings.iter().any(|it| it.rule.starts_with("guard:")));
    }
}
