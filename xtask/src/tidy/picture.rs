//! The picture of the crates in ARCHITECTURE.md shows the arrows that exist, no more and no fewer.
//!
//! The picture is the first mermaid block: one line `a --> b` for each crate `a` that uses crate `b`.

use std::collections::BTreeSet;

use super::Finding;
use super::metadata::Metadata;

/// The file with the picture.
pub const FILE: &str = "ARCHITECTURE.md";

/// Packages that are not part of the product. The picture does not show them.
const BESIDE: &[&str] = &["bulla-sim", "bulla-bench", "bulla-fuzz", "xtask"];

type Arrow = (String, String);

/// Arrows of the picture that no `Cargo.toml` has, and missing arrows.
pub fn check(text: &str, metadata: &Metadata) -> Vec<Finding> {
    let (drawn, built) = (drawn(text), built(metadata));
    let missing = built.difference(&drawn).map(|(from, to)| {
        let rule = format!("the picture of the crates lacks the arrow {from} --> {to}");
        Finding::new(FILE, rule)
    });
    let surplus = drawn.difference(&built).map(|(from, to)| {
        let rule = format!("the picture of the crates shows {from} --> {to}, which does not exist");
        Finding::new(FILE, rule)
    });
    missing.chain(surplus).collect()
}

fn drawn(text: &str) -> BTreeSet<Arrow> {
    let lines = text
        .lines()
        .skip_while(|line| !line.starts_with("```mermaid"));
    let block = lines.skip(1).take_while(|line| !line.starts_with("```"));
    let arrow = |line: &str| {
        let (from, to) = line.split_once("-->")?;
        Some((from.trim().to_owned(), to.trim().to_owned()))
    };
    block.filter_map(arrow).collect()
}

fn built(metadata: &Metadata) -> BTreeSet<Arrow> {
    let ours = metadata.packages.iter().filter(|p| p.source.is_none());
    let product = ours.filter(|p| !BESIDE.contains(&p.name.as_str()));
    let arrows = product.flat_map(|package| {
        let used = package
            .dependencies
            .iter()
            .filter(|wish| wish.path.is_some() && wish.kind.is_none());
        used.map(|wish| (short(&package.name), short(&wish.name)))
    });
    arrows.collect()
}

/// The short name of a package: `bulla-trust` is `trust`, `bulla` is `cli`.
fn short(package: &str) -> String {
    match package.strip_prefix("bulla-") {
        Some(name) => name.to_owned(),
        None => "cli".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::metadata;

    fn real() -> Metadata {
        metadata::read(&crate::workspace_root()).unwrap()
    }

    fn page() -> String {
        std::fs::read_to_string(crate::workspace_root().join(FILE)).unwrap()
    }

    #[test]
    fn picture_of_this_tree_is_true() {
        assert_eq!(check(&page(), &real()), []);
    }

    #[test]
    fn missing_arrow_fires() {
        let text = page().replace("    store --> trust\n", "");
        assert_eq!(check(&text, &real()).len(), 1);
    }

    #[test]
    fn surplus_arrow_fires() {
        let text = page().replace(
            "    store --> trust\n",
            "    store --> trust\n    trust --> cli\n",
        );
        assert_eq!(check(&text, &real()).len(), 1);
    }

    #[test]
    fn page_without_a_picture_fires() {
        assert!(check("# Architecture\n", &real()).len() > 20);
    }
}
