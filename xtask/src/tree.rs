//! The files of the working tree that belong to the project: tracked ones and new ones that are not
//! ignored, from `git ls-files`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Paths relative to `root`, sorted, without files that are listed but deleted.
pub fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let out = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root)
        .output()
        .context("running git ls-files")?;
    if !out.status.success() {
        return walk(root);
    }
    let mut files: Vec<PathBuf> = out
        .stdout
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| PathBuf::from(String::from_utf8_lossy(name).into_owned()))
        .filter(|path| root.join(path).is_file())
        .collect();
    files.sort();
    files.dedup();
    ensure!(!files.is_empty(), "no files under {}", root.display());
    Ok(files)
}

/// Without a git repository (an unpacked source archive, a copy): everything except build output.
pub fn walk(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(root.join(&dir))? {
            let entry = entry?;
            let name = entry.file_name();
            if name == "target" || name == ".git" {
                continue;
            }
            let path = dir.join(name);
            if entry.file_type()?.is_dir() {
                pending.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_very_file_is_listed_both_ways() {
        let root = crate::workspace_root();
        let own = PathBuf::from("xtask/src/tree.rs");
        assert!(files(&root).unwrap().contains(&own));
        assert!(walk(&root).unwrap().contains(&own));
    }
}
