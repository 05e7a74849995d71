//! Cycles in a graph of modules.

use std::collections::{BTreeMap, BTreeSet};

/// Maps a module to the modules that it uses, each with a file that uses it.
pub type Edges = BTreeMap<String, BTreeMap<String, String>>;

/// Groups of two or more modules in which each module reaches every other one, sorted.
pub fn components(edges: &Edges) -> Vec<Vec<String>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> = edges
        .keys()
        .map(|from| (from.as_str(), reachable(edges, from)))
        .collect();
    let mut found: Vec<Vec<String>> = Vec::new();
    for (from, there) in &reach {
        let is_back = |to: &&&str| reach.get(**to).is_some_and(|back| back.contains(from));
        let group: Vec<String> = there
            .iter()
            .filter(is_back)
            .map(|&m| m.to_owned())
            .collect();
        if group.len() > 1 && !found.contains(&group) {
            found.push(group);
        }
    }
    found
}

/// All modules to which a path of at least one edge leads.
fn reachable<'a>(edges: &'a Edges, from: &str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut pending = vec![from];
    while let Some(module) = pending.pop() {
        for to in edges.get(module).into_iter().flat_map(BTreeMap::keys) {
            if seen.insert(to.as_str()) {
                pending.push(to);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(pairs: &[(&str, &str)]) -> Edges {
        let mut edges = Edges::new();
        for (from, to) in pairs {
            let of = edges.entry((*from).to_owned()).or_default();
            of.insert((*to).to_owned(), String::new());
        }
        edges
    }

    #[test]
    fn circles_are_found_and_apart() {
        let edges = graph(&[
            ("a", "b"),
            ("b", "a"),
            ("b", "c"),
            ("c", "d"),
            ("d", "c"),
            ("e", "a"),
        ]);
        assert_eq!(components(&edges), [["a", "b"], ["c", "d"]]);
        let circle = graph(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]);
        assert_eq!(components(&circle), [["a", "b", "c"]]);
    }

    #[test]
    fn a_graph_without_a_circle_has_none() {
        let edges = graph(&[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]);
        assert!(components(&edges).is_empty());
    }
}
