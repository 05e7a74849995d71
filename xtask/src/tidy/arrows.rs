//! Direction of dependence: which crate may build on which. Design: *The house*.

use super::Finding;
use super::metadata::Metadata;

/// A crate and everything of ours that it may depend on. `sim` is for tests only and therefore in no
/// row; the tools at the end are no part of the product.
const MAY_USE: &[(&str, &[&str])] = &[
    ("bulla-trust", &[]),
    ("bulla-store", &["bulla-trust"]),
    ("bulla-wire", &["bulla-trust", "bulla-store"]),
    ("bulla-state", &["bulla-trust"]),
    ("bulla-reader", &["bulla-trust", "bulla-store"]),
    (
        "bulla-volume",
        &["bulla-trust", "bulla-store", "bulla-reader", "bulla-state"],
    ),
    (
        "bulla-replica",
        &[
            "bulla-trust",
            "bulla-store",
            "bulla-reader",
            "bulla-state",
            "bulla-volume",
        ],
    ),
    (
        "bulla-publish",
        &["bulla-trust", "bulla-store", "bulla-state"],
    ),
    ("bulla-serve", &["bulla-trust", "bulla-store", "bulla-wire"]),
    (
        "bulla-mount",
        &["bulla-trust", "bulla-store", "bulla-reader", "bulla-volume"],
    ),
    (
        "bulla",
        &[
            "bulla-trust",
            "bulla-store",
            "bulla-wire",
            "bulla-state",
            "bulla-reader",
            "bulla-volume",
            "bulla-replica",
            "bulla-publish",
            "bulla-serve",
            "bulla-mount",
        ],
    ),
    (
        "bulla-sim",
        &[
            "bulla-trust",
            "bulla-store",
            "bulla-wire",
            "bulla-publish",
            "bulla-serve",
            "bulla-mount",
        ],
    ),
    (
        "bulla-bench",
        &[
            "bulla-trust",
            "bulla-store",
            "bulla-wire",
            "bulla-reader",
            "bulla-volume",
            "bulla-publish",
            "bulla-serve",
            "bulla-mount",
        ],
    ),
    ("xtask", &[]),
];

/// Dependencies of our packages on one another that the table does not allow.
pub fn check(metadata: &Metadata) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in metadata.packages.iter().filter(|p| p.source.is_none()) {
        let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == package.name) else {
            findings.push(Finding::new(
                &package.name,
                "has no row in the table of arrows (xtask/src/tidy/arrows.rs)",
            ));
            continue;
        };
        let wrong = package
            .dependencies
            .iter()
            .filter(|wish| wish.path.is_some() && wish.kind.as_deref() != Some("dev"))
            .filter(|wish| !allowed.contains(&wish.name.as_str()));
        findings.extend(wrong.map(|wish| {
            Finding::new(
                &package.name,
                format!("must not depend on {}: wrong direction", wish.name),
            )
        }));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::metadata::{Dependency, Package};

    fn package(name: &str, uses: &str, kind: Option<&str>) -> Metadata {
        let dependencies = vec![Dependency {
            name: uses.to_owned(),
            kind: kind.map(str::to_owned),
            path: Some("somewhere".to_owned()),
        }];
        Metadata {
            packages: vec![Package {
                name: name.to_owned(),
                version: "0.1.0".to_owned(),
                license: None,
                source: None,
                dependencies,
            }],
        }
    }

    #[test]
    fn a_wrong_arrow_fires() {
        assert_eq!(check(&package("bulla-trust", "bulla-store", None)).len(), 1);
        assert_eq!(check(&package("bulla-store", "bulla-sim", None)).len(), 1);
        assert_eq!(
            check(&package("bulla-wire", "bulla-serve", Some("build"))).len(),
            1
        );
        assert_eq!(
            check(&package("bulla-serve", "bulla-publish", None)).len(),
            1
        );
        assert_eq!(
            check(&package("bulla-unheard-of", "bulla-trust", None)).len(),
            1
        );
    }

    #[test]
    fn a_right_arrow_and_a_dev_dependency_pass() {
        assert_eq!(check(&package("bulla-store", "bulla-trust", None)), []);
        assert_eq!(check(&package("bulla-store", "bulla-sim", Some("dev"))), []);
    }
}
