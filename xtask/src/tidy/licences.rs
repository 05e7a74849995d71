//! Licences of everything that is linked or built: an allow-list over SPDX expressions.

use super::Finding;
use super::metadata::Metadata;

/// Licences that are compatible with the product's own (Apache-2.0 OR MIT).
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    // libFuzzer, which only the fuzz targets link.
    "NCSA",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Packages whose licence is missing or not allowed.
pub fn check(metadata: &Metadata) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let place = format!("{} {}", package.name, package.version);
        match package.license.as_deref() {
            None => findings.push(Finding::new(place, "states no licence")),
            Some(text) if !allowed(text) => findings.push(Finding::new(
                place,
                format!("licence `{text}` is not on the list (xtask/src/tidy/licences.rs)"),
            )),
            Some(_) => {}
        }
    }
    findings
}

/// Whether an SPDX expression can be satisfied from the list.
fn allowed(expression: &str) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let verdict = either(&mut rest);
    verdict && rest.is_empty()
}

fn either(words: &mut &[&str]) -> bool {
    let mut verdict = both(words);
    while let ["OR", rest @ ..] = *words {
        *words = rest;
        // Not short-circuited: the right side must be read either way.
        verdict |= both(words);
    }
    verdict
}

fn both(words: &mut &[&str]) -> bool {
    let mut verdict = one(words);
    while let ["AND", rest @ ..] = *words {
        *words = rest;
        verdict &= one(words);
    }
    verdict
}

fn one(words: &mut &[&str]) -> bool {
    match *words {
        ["(", rest @ ..] => {
            *words = rest;
            let verdict = either(words);
            match *words {
                [")", rest @ ..] => {
                    *words = rest;
                    verdict
                }
                _ => false,
            }
        }
        [name, "WITH", exception, rest @ ..] => {
            *words = rest;
            ALLOWED.contains(&format!("{name} WITH {exception}").as_str())
        }
        [name, rest @ ..] => {
            *words = rest;
            ALLOWED.contains(name)
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read_as_spdx_says() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(allowed(good), "{good}");
        }
        for bad in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT OR Apache-2.0) AND AGPL-3.0",
            "GPL-2.0 WITH Classpath-exception-2.0",
            "",
            "(MIT",
            "MIT )",
        ] {
            assert!(!allowed(bad), "{bad}");
        }
    }

    #[test]
    fn a_package_without_a_licence_fires() {
        let package = |name: &str, license: &str| {
            format!(
                r#"{{"id":"{name}","name":"{name}","version":"1.0.0","license":{license},"source":"r",
                    "manifest_path":"/r/Cargo.toml","targets":[],"dependencies":[]}}"#
            )
        };
        let (none, bad) = (package("x", "null"), package("y", "\"SSPL-1.0\""));
        let json = format!("{{\"packages\":[{none},{bad}]}}");
        let metadata: Metadata = serde_json::from_str(&json).unwrap();
        assert_eq!(check(&metadata).len(), 2);
    }

    #[test]
    fn cargo_deny_allows_the_same_licences() {
        let text = std::fs::read_to_string(crate::workspace_root().join("deny.toml")).unwrap();
        let table: toml::Table = text.parse().unwrap();
        let listed = table["licenses"]["allow"].as_array().unwrap();
        let listed: Vec<&str> = listed.iter().map(|name| name.as_str().unwrap()).collect();
        assert_eq!(listed, ALLOWED);
    }
}
