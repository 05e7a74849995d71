//! A walk of a published version: its directories are map trees, which are fetched ahead like any block.

use bytes::Bytes;
use reader::Ahead;
use trust::inode::Inode;

use super::{Step, Unlisted};
use crate::path::join;
use crate::tree::{Entry, Tree};

/// Entries of a directory that are listed at a time.
const PAGE_ENTRIES: usize = 1024;

pub(super) struct Walk<'a> {
    tree: &'a Tree<'a>,
    ahead: Ahead,
    entered: Vec<Entered>,
}

/// A directory that is being listed.
struct Entered {
    entry: Entry,
    after: Option<Bytes>,
    page: std::vec::IntoIter<(Bytes, Inode)>,
    is_last_page: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn of(tree: &'a Tree<'_>, ahead: Ahead) -> Walk<'a> {
        Walk {
            tree,
            ahead,
            entered: Vec::new(),
        }
    }

    pub(super) fn enter(&mut self, entry: Entry) {
        self.entered.push(Entered {
            entry,
            after: None,
            page: Vec::new().into_iter(),
            is_last_page: false,
        });
    }

    pub(super) fn depth(&self) -> usize {
        self.entered.len()
    }

    pub(super) async fn next(&mut self) -> Result<Option<Step>, Unlisted> {
        loop {
            let Some(directory) = self.entered.last_mut() else {
                return Ok(None);
            };
            if let Some((name, inode)) = directory.page.next() {
                let path = join(&directory.entry.path, &name);
                self.ahead.reached(&path);
                let id = None;
                return Ok(Some(Step::Entry(Entry { path, inode, id })));
            }
            if directory.is_last_page {
                let left = self.entered.pop();
                return Ok(left.map(|left| Step::Left(left.entry)));
            }
            let after = directory.after.as_deref();
            let listed = &directory.entry.inode;
            let (contents, how) = (self.tree.contents(), self.tree.how());
            match contents.list(listed, after, PAGE_ENTRIES, how).await {
                Ok(page) => {
                    self.ahead.listed(&directory.entry.path, &page);
                    directory.is_last_page = page.len() < PAGE_ENTRIES;
                    directory.after = page.last().map(|(name, _)| name.clone());
                    directory.page = page.into_iter();
                }
                Err(why) => {
                    directory.is_last_page = true;
                    let (path, why) = (directory.entry.path.clone(), why.into());
                    return Err(Unlisted { path, why });
                }
            }
        }
    }
}
