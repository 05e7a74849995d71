//! Removes a new repository when the publication that made it fails. Otherwise a refused command would leave
//! a repository that blocks the next command, or that the next command publishes.
//!
//! Removes only what this run made, and only while it is empty: the two files that mark a repository, and
//! empty directories. So no data can be lost, even if another process works there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use store::disk::{Disk, Local};
use store::names;

/// The directories of a repository.
const PARTS: [&str; 3] = [names::INDEX_DIR, names::SEGMENT_DIR, names::LOG_DIR];

/// What existed before a publication.
pub(crate) struct CreationGuard {
    repository: PathBuf,
    /// Whether the directory was empty.
    was_empty: bool,
    /// The repository's directory and those above it that did not exist, the deepest first.
    missing: Vec<PathBuf>,
}

impl CreationGuard {
    /// Looks at the place of a repository before it is made.
    pub(crate) fn look(repository: &Path) -> CreationGuard {
        let mut missing: Vec<PathBuf> = Vec::new();
        for path in repository.ancestors() {
            let is_missing = |e: io::Error| e.kind() == io::ErrorKind::NotFound;
            if path.as_os_str().is_empty() || !fs::symlink_metadata(path).is_err_and(is_missing) {
                break;
            }
            missing.push(path.to_owned());
        }
        let listed = fs::read_dir(repository).map(|mut entries| entries.next().is_none());
        CreationGuard {
            was_empty: !missing.is_empty() || listed.unwrap_or(false),
            repository: repository.to_owned(),
            missing,
        }
    }

    /// Removes what was made since, unless something was committed to it or another process works in it.
    pub(crate) fn take_back(&self) {
        match self.remove() {
            Ok(()) => {}
            Err(error) => {
                let repository = self.repository.display();
                tracing::debug!(%repository, %error, "cannot remove the new repository");
            }
        }
    }

    fn remove(&self) -> io::Result<()> {
        let lock = self.repository.join(names::LOCK_FILE);
        if !self.was_empty || fs::symlink_metadata(&lock).is_err() {
            return Ok(());
        }
        // Held to the end: no other process writes here until the lock file itself is removed.
        let Some(_held) = Local::new(&self.repository).lock(names::LOCK_FILE)? else {
            return Ok(());
        };
        if !self.is_blank()? {
            return Ok(());
        }
        // The format file first: without it, the directory is not a repository.
        fs::remove_file(self.repository.join(names::FORMAT_FILE))?;
        for part in PARTS {
            fs::remove_dir(self.repository.join(part))?;
        }
        fs::remove_file(&lock)?;
        for directory in &self.missing {
            fs::remove_dir(directory)?;
        }
        Ok(())
    }

    /// Whether it is as it was created, without any data.
    fn is_blank(&self) -> io::Result<bool> {
        for entry in fs::read_dir(&self.repository)? {
            let name = entry?.file_name();
            let is = |known: &str| name == *known;
            if !is(names::FORMAT_FILE) && !is(names::LOCK_FILE) && !PARTS.into_iter().any(is) {
                return Ok(false);
            }
        }
        for part in PARTS {
            if fs::read_dir(self.repository.join(part))?.next().is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::repository::Repository;
    use store::writer::Writer;

    #[test]
    fn only_what_this_run_made_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b/repo");
        let before = CreationGuard::look(&deep);
        Repository::create(&deep).unwrap();
        before.take_back();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

        let empty = dir.path().join("empty");
        fs::create_dir(&empty).unwrap();
        let before = CreationGuard::look(&empty);
        Repository::create(&empty).unwrap();
        before.take_back();
        assert_eq!(fs::read_dir(&empty).unwrap().count(), 0);
    }

    #[test]
    fn a_repository_in_use_or_with_a_commit_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let repo = dir.path().join("repo");
        let before = CreationGuard::look(&repo);
        let repository = Repository::create(&repo).unwrap();
        let at_work = Writer::begin(&repository).unwrap();
        before.take_back();
        drop(at_work);
        assert!(
            Repository::open(&repo).is_ok(),
            "somebody was at work in it"
        );
        fs::write(repo.join("segments/of somebody"), "x").unwrap();
        before.take_back();
        assert!(repo.join("segments/of somebody").exists());
        assert!(Repository::open(&repo).is_ok());
        fs::remove_file(repo.join("segments/of somebody")).unwrap();
        // It existed before this run began.
        CreationGuard::look(&repo).take_back();
        assert!(Repository::open(&repo).is_ok());
        before.take_back();
        assert!(!repo.exists());
    }
}
