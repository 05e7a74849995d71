//! The disk cache of earlier versions, which had one file for each block: `HH/HANDLE` (64 hexadecimal digits,
//! `HH` the first two), `new/PID.RANDOM.N`, `lock`. Such a directory is taken over, and its files are removed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const NEW: &str = "new";
const LOCK: &str = "lock";

/// Whether the directory is a cache of an earlier version and has nothing else in it.
pub(super) fn is_old(root: &Path) -> std::io::Result<bool> {
    if !is_directory(&root.join(NEW)) {
        return Ok(false);
    }
    for entry in fs::read_dir(root)? {
        let name = entry?.file_name();
        let known = is_part(&name) || [NEW, LOCK, "lost+found"].iter().any(|it| name == *it);
        if !known {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes its files. Others stay, and the directories that they are in. May take long.
fn clear(root: &Path) {
    if !is_directory(&root.join(NEW)) {
        return;
    }
    for part in (0..=255u8).map(|byte| format!("{byte:02x}")) {
        clear_directory(&root.join(&part), |name| is_block_of(&part, name));
    }
    let _ = fs::remove_file(root.join(LOCK));
    // Last: until it is gone, the next process goes on with this.
    clear_directory(&root.join(NEW), is_temporary);
}

/// The same in a thread of its own, if there is something to remove.
pub(super) fn clear_aside(root: &Path) {
    if is_directory(&root.join(NEW)) {
        let root = root.to_owned();
        let thread = std::thread::Builder::new().name("old-disk-cache".to_owned());
        // If this fails, the next process removes them.
        let _ = thread.spawn(move || clear(&root));
    }
}

/// Removes the files with a name of the cache, and the directory if nothing else is in it.
fn clear_directory(directory: &Path, is_ours: impl Fn(&OsStr) -> bool) {
    if !is_directory(directory) {
        return;
    }
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if is_ours(&entry.file_name()) {
            let _ = fs::remove_file(entry.path());
        }
    }
    let _ = fs::remove_dir(directory);
}

/// Whether `path` is a directory, and not a link to one.
fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

fn are_digits(name: &[u8]) -> bool {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.iter().all(is_digit)
}

fn is_part(name: &OsStr) -> bool {
    name.len() == 2 && are_digits(name.as_bytes())
}

fn is_block_of(part: &str, name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.len() == 64 && name.starts_with(part.as_bytes()) && are_digits(name)
}

fn is_temporary(name: &OsStr) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_random = |text: &str| text.len() == 16 && are_digits(text.as_bytes());
    let parts: Vec<&str> = name.to_str().unwrap_or_default().split('.').collect();
    matches!(parts[..], [process, random, number]
        if is_number(process) && is_random(random) && is_number(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_old_cache_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for part in [NEW, "ab", "cd", "ef"] {
            fs::create_dir(root.join(part)).unwrap();
        }
        let block = root.join("ab").join("ab".repeat(32));
        let partial = root.join(NEW).join("7.0123456789abcdef.0");
        fs::write(root.join(LOCK), b"").unwrap();
        assert!(is_old(root).unwrap());
        // An object of git, a block of another part, one in capitals, a mail.
        let foreign = [
            root.join("ab").join("ab".repeat(19)),
            root.join("ab").join("cd".repeat(32)),
            root.join("ab").join("aB".repeat(32)),
            root.join(NEW).join("1753000000.M7P3.host"),
        ];
        for path in foreign.iter().chain([&block, &partial]) {
            fs::write(path, b"dear").unwrap();
        }
        std::os::unix::fs::symlink(root.join("ab"), root.join("00")).unwrap();
        clear(root);
        assert!(!block.exists() && !partial.exists());
        assert!(!root.join("cd").exists() && !root.join(LOCK).exists());
        assert!(foreign.iter().all(|path| path.exists()));
    }

    #[test]
    fn directory_with_anything_else_is_not_an_old_cache() {
        for other in ["cur", "abc", "a", "file"] {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join(NEW)).unwrap();
            assert!(is_old(dir.path()).unwrap());
            fs::create_dir(dir.path().join(other)).unwrap();
            assert!(!is_old(dir.path()).unwrap(), "{other}");
        }
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_old(dir.path()).unwrap());
    }
}
