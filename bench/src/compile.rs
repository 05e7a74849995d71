//! The order in which a compiler reads a source tree: the trace of figure 9.
//!
//! The order is derived from the sources. A unit is read line by line; at each `#include` the header
//! follows with everything that it includes. Headers are searched where the compiler searches them.
//! Headers outside the tree (generated ones, the compiler's own) are left out, and all conditions are
//! taken as true. Each file is listed once, because a reader has it in its cache afterwards.

use std::collections::HashSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Directories of headers in a kernel tree for x86, in the order of its makefile.
const HEADERS: [&str; 4] = [
    "arch/x86/include",
    "include",
    "arch/x86/include/uapi",
    "include/uapi",
];

/// The files that are read to compile all units of one directory, below `tree`.
pub fn order(tree: &Path, directory: &Path) -> Result<Vec<PathBuf>> {
    let mut units = Vec::new();
    for entry in fs::read_dir(tree.join(directory))? {
        let path = directory.join(entry?.file_name());
        if path.extension().is_some_and(|extension| extension == "c") {
            units.push(path);
        }
    }
    units.sort();
    ensure!(
        !units.is_empty(),
        "nothing to compile in {}",
        directory.display()
    );
    let (mut order, mut seen) = (Vec::new(), HashSet::new());
    for unit in units {
        // In reverse order, so that the first include is on top of the stack.
        let mut left = vec![unit];
        while let Some(path) = left.pop() {
            if !seen.insert(path.clone()) {
                continue;
            }
            let whole = tree.join(&path);
            let text = fs::read(&whole).with_context(|| format!("reading {}", whole.display()))?;
            let text = String::from_utf8_lossy(&text);
            let included: Vec<_> = includes(&text)
                .filter_map(|include| find(tree, &path, include))
                .collect();
            left.extend(included.into_iter().rev());
            order.push(path);
        }
    }
    Ok(order)
}

/// What a line includes: its name, and whether the including file's directory comes first.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Include<'a> {
    name: &'a str,
    near: bool,
}

fn includes(text: &str) -> impl Iterator<Item = Include<'_>> {
    text.lines().filter_map(|line| {
        let line = line.trim_start().strip_prefix('#')?.trim_start();
        let line = line.strip_prefix("include")?.trim_start();
        let near = line.starts_with('"');
        let end = if near { '"' } else { '>' };
        let (name, _) = line.strip_prefix(['"', '<'])?.split_once(end)?;
        Some(Include { name, near })
    })
}

fn find(tree: &Path, from: &Path, include: Include<'_>) -> Option<PathBuf> {
    let own = include.near.then(|| from.parent()).flatten();
    own.into_iter()
        .chain(HEADERS.map(Path::new))
        .filter_map(|directory| flat(&directory.join(include.name)))
        .find(|path| tree.join(path).is_file())
}

/// The path without `.` and `..`; none if it leads out of the tree.
fn flat(path: &Path) -> Option<PathBuf> {
    let mut flat = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => flat.push(name),
            Component::CurDir => {}
            Component::ParentDir if flat.pop() => {}
            _ => return None,
        }
    }
    Some(flat)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_where_they_are_included_and_once() {
        let dir = tempfile::tempdir().unwrap();
        let files = [
            (
                "lib/b.c",
                "#include <one.h>\n #  include \"../lib/own.h\" /* ours */\n",
            ),
            (
                "lib/a.c",
                "#include <two.h>\n#include <gone.h>\n#include \"two.h\"\nint a;\n",
            ),
            ("lib/own.h", "#include <one.h>\n"),
            ("lib/two.h", "#include \"../../outside.h\"\n"),
            ("include/one.h", "#pragma once\n"),
            ("include/two.h", "#include <one.h>\n#include <three.h>\n"),
            ("include/uapi/three.h", "#include <two.h>\n"),
        ];
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let order = order(dir.path(), Path::new("lib")).unwrap();
        let order: Vec<_> = order.iter().map(|p| p.to_str().unwrap()).collect();
        let right = [
            "lib/a.c",
            "include/two.h",
            "include/one.h",
            "include/uapi/three.h",
            "lib/two.h",
            "lib/b.c",
            "lib/own.h",
        ];
        assert_eq!(order, right);
        assert!(super::order(dir.path(), Path::new("include")).is_err());
    }
}
