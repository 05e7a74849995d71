//! A depth-first walk of a tree whose blocks are fetched ahead: `extract`, `verify` and recursive listings read a tree
//! from far away in few round trips. Entries come in order of their names.
//!
//! The caller decides which directories it enters, and how deep. Memory: one page of entries for each directory
//! between the top and the current one, besides what [`reader::Ahead`] keeps.

use bytes::Bytes;
use reader::{Ahead, Fetch, Here, ReadError, Reads, Tree};
use trust::tree::inode::Inode;

/// Entries of a directory that are listed at a time.
const PAGE_ENTRIES: usize = 1024;

/// A depth-first walk.
pub struct Walk<'a> {
    tree: &'a Tree,
    ahead: Ahead,
    entered: Vec<Entered>,
}

/// One step of a walk.
#[derive(Debug)]
pub enum Step {
    /// An entry of the directory that was entered last. A directory is walked only if the caller enters it now.
    Entry {
        /// Its path below the root, names with `/` between them.
        path: Bytes,
        /// Its name.
        name: Bytes,
        /// Its inode.
        inode: Inode,
    },
    /// The directory that was entered last is done.
    Left {
        /// Its path.
        path: Bytes,
        /// Its inode.
        inode: Inode,
    },
}

/// A directory whose entries could not be listed, and why. The walk goes on behind it.
#[derive(Debug)]
pub struct Unlisted {
    /// Its path.
    pub path: Bytes,
    /// Why not.
    pub why: ReadError,
}

/// A directory that is being listed.
struct Entered {
    path: Bytes,
    inode: Inode,
    after: Option<Bytes>,
    page: std::vec::IntoIter<(Bytes, Inode)>,
    is_last_page: bool,
}

impl<'a> Walk<'a> {
    /// A walk of the directory `top` at `path`, of which the caller is going to read what `reads` says.
    pub fn new(tree: &'a Tree, path: Bytes, top: Inode, reads: Reads) -> Walk<'a> {
        let ahead = tree.ahead(&path, &top, reads);
        Walk::with(tree, path, top, ahead)
    }

    /// A walk of which the caller is going to read everything except the content of files that it has, says `here`.
    pub fn rest(tree: &'a Tree, path: Bytes, top: Inode, here: Here) -> Walk<'a> {
        let ahead = tree.rest_ahead(&path, &top, here);
        Walk::with(tree, path, top, ahead)
    }

    fn with(tree: &'a Tree, path: Bytes, top: Inode, ahead: Ahead) -> Walk<'a> {
        let mut walk = Walk {
            tree,
            ahead,
            entered: Vec::new(),
        };
        walk.enter(path, top);
        walk
    }

    /// Enters a directory: its entries are the next ones.
    pub fn enter(&mut self, path: Bytes, inode: Inode) {
        self.entered.push(Entered {
            path,
            inode,
            after: None,
            page: Vec::new().into_iter(),
            is_last_page: false,
        });
    }

    /// Number of directories that are being walked, one inside the other.
    pub fn depth(&self) -> usize {
        self.entered.len()
    }

    /// The next step; `None` when the walk has ended. `how` is the deadline of one listing.
    ///
    /// # Errors
    /// [`Unlisted`]. The next step is behind that directory.
    pub async fn next(&mut self, how: impl Fn() -> Fetch) -> Result<Option<Step>, Unlisted> {
        loop {
            let Some(directory) = self.entered.last_mut() else {
                return Ok(None);
            };
            if let Some((name, inode)) = directory.page.next() {
                let path = join(&directory.path, &name);
                self.ahead.reached(&path);
                return Ok(Some(Step::Entry { path, name, inode }));
            }
            if directory.is_last_page {
                let left = self.entered.pop();
                return Ok(left.map(|Entered { path, inode, .. }| Step::Left { path, inode }));
            }
            let after = directory.after.as_deref();
            let page = self
                .tree
                .list(&directory.inode, after, PAGE_ENTRIES, how())
                .await;
            match page {
                Ok(page) => {
                    self.ahead.listed(&directory.path, &page);
                    directory.is_last_page = page.len() < PAGE_ENTRIES;
                    directory.after = page.last().map(|(name, _)| name.clone());
                    directory.page = page.into_iter();
                }
                Err(why) => {
                    directory.is_last_page = true;
                    let path = directory.path.clone();
                    return Err(Unlisted { path, why });
                }
            }
        }
    }
}

/// The path of an entry of a directory.
pub fn join(directory: &[u8], name: &[u8]) -> Bytes {
    if directory.is_empty() {
        return Bytes::copy_from_slice(name);
    }
    [directory, b"/", name].concat().into()
}
