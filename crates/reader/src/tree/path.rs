//! Paths: look-ups of several names, with and without symbolic links.

use std::sync::Arc;

use trust::inode::{Content, Inode};

use super::Tree;
use crate::blocks::Fetch;
use crate::error::ReadError;

/// Symbolic links followed in one path.
const MAX_LINKS: usize = 40;

impl Tree {
    /// The inode at `path` (components separated by `/`, relative to the root), not following a
    /// symbolic link at its end or on its above.
    ///
    /// # Errors
    /// [`ReadError::WrongKind`] when a name before the last is not a directory.
    pub async fn resolve(&self, path: &[u8], how: Fetch) -> Result<Option<Arc<Inode>>, ReadError> {
        let mut at = self.root().clone();
        for name in components(path) {
            match self.lookup(&at, name, how).await? {
                Some(inode) => at = Arc::new(inode),
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// Like [`Tree::resolve`], following symbolic links inside the volume (at most 40); `..` and
    /// absolute targets start at the volume's root and never leave it.
    ///
    /// # Errors
    /// [`ReadError::WrongKind`] on too many links, or when a name before the last is not a directory.
    pub async fn follow(&self, path: &[u8], how: Fetch) -> Result<Option<Arc<Inode>>, ReadError> {
        let mut above: Vec<Arc<Inode>> = vec![self.root().clone()];
        let mut todo: Vec<Vec<u8>> = components(path).rev().map(<[u8]>::to_vec).collect();
        let mut links = 0;
        while let Some(name) = todo.pop() {
            if name == b".." {
                if above.len() > 1 {
                    above.pop();
                }
                continue;
            }
            let at = above.last().unwrap_or(self.root()).clone();
            let Some(inode) = self.lookup(&at, &name, how).await? else {
                return Ok(None);
            };
            let Content::Symlink(target) = &inode.content else {
                above.push(Arc::new(inode));
                continue;
            };
            links += 1;
            if links > MAX_LINKS {
                return Err(ReadError::wrong_kind("too many symbolic links"));
            }
            if target.starts_with(b"/") {
                above.truncate(1);
            }
            todo.extend(components(target).rev().map(<[u8]>::to_vec));
        }
        Ok(above.pop())
    }
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|b| *b == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
}
