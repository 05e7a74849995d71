//! A depth-first walk of a directory whose names and content are fetched ahead: `extract`, `verify` and recursive
//! listings read a tree from far away in few round trips. Entries come in order of their names.
//!
//! The caller decides which directories it enters, and how deep. Memory: one page of entries for each directory between
//! the top and the current one, besides what [`reader::Ahead`] and the listings of a shared volume keep.
//!
//! | module | walks |
//! |---|---|
//! | `published` | a published version, whose directories are blocks |
//! | `shared` | a shared volume, whose names its engine knows; `listings`: what is listed ahead |

mod listings;
mod published;
mod shared;

use bytes::Bytes;
use reader::{Here, Reads};
use share::files::Refused;

use crate::error::Error;
use crate::tree::{Entry, Of, Tree};

/// Greatest depth of directories that is followed; only a tree made as an attack is deeper.
pub const MAX_DEPTH: usize = 2048;

/// A depth-first walk.
pub struct Walk<'a>(Kind<'a>);

enum Kind<'a> {
    Published(published::Walk<'a>),
    Shared(Box<shared::Walk<'a>>),
}

impl Tree<'_> {
    /// A depth-first walk of a directory, for a caller that reads of it what `reads` says. Everything is fetched before
    /// the walk comes to it: a caller that passes over many directories makes it slow. If the caller reads content, it
    /// reads it through [`Tree::read_once`].
    pub fn walk(&self, top: &Entry, reads: Reads) -> Walk<'_> {
        Walk::new(self, top, reads)
    }
}

/// One step of a walk.
#[derive(Debug)]
pub enum Step {
    /// An entry of the directory that was entered last. A directory is walked only if the caller enters it now.
    Entry(Entry),
    /// The directory that was entered last is done.
    Left(Entry),
}

/// A directory whose entries could not be listed, and why. The walk goes on behind it.
#[derive(Debug)]
pub struct Unlisted {
    /// Its path.
    pub path: Bytes,
    /// Why not.
    pub why: Error,
}

impl Unlisted {
    /// Whether somebody has removed the directory of a shared volume meanwhile, or this user may not read it: no damage.
    pub fn is_hidden(&self) -> bool {
        matches!(
            self.why,
            Error::Refused {
                why: Refused::NotFound
                    | Refused::NotADirectory
                    | Refused::NotPermitted
                    | Refused::Stale,
                ..
            }
        )
    }
}

impl<'a> Walk<'a> {
    fn new(tree: &'a Tree<'_>, top: &Entry, reads: Reads) -> Walk<'a> {
        let mut walk = Walk(match &tree.of {
            Of::Published { .. } => {
                let ahead = tree.contents().ahead(&top.path, &top.inode, reads);
                Kind::Published(published::Walk::of(tree, ahead))
            }
            Of::Shared { volume, size } => {
                let ahead = matches!(reads, Reads::Everything)
                    .then(|| tree.contents().ahead(&top.path, &top.inode, reads));
                let is_recursive = !matches!(reads, Reads::Directory);
                let walk = shared::Walk::of(volume, *size, is_recursive, ahead);
                Kind::Shared(Box::new(walk))
            }
        });
        walk.enter(top.clone());
        walk
    }

    /// A walk of which the caller is going to read everything except the content of files that it has, says `here`.
    pub(crate) fn rest(tree: &'a Tree<'_>, top: &Entry, here: Here) -> Walk<'a> {
        let ahead = tree.contents().rest_ahead(&top.path, &top.inode, here);
        let mut walk = Walk(match &tree.of {
            Of::Published { .. } => Kind::Published(published::Walk::of(tree, ahead)),
            Of::Shared { volume, size } => {
                let walk = shared::Walk::of(volume, *size, true, Some(ahead));
                Kind::Shared(Box::new(walk))
            }
        });
        walk.enter(top.clone());
        walk
    }

    /// Enters a directory: its entries are the next ones.
    pub fn enter(&mut self, directory: Entry) {
        match &mut self.0 {
            Kind::Published(walk) => walk.enter(directory),
            Kind::Shared(walk) => walk.enter(directory),
        }
    }

    /// Number of directories that are being walked, one inside the other.
    pub fn depth(&self) -> usize {
        match &self.0 {
            Kind::Published(walk) => walk.depth(),
            Kind::Shared(walk) => walk.depth(),
        }
    }

    /// Names that were left out so far, because this user may not read their files, or because they are gone.
    pub fn hidden(&self) -> u64 {
        match &self.0 {
            Kind::Published(_) => 0,
            Kind::Shared(walk) => walk.hidden(),
        }
    }

    /// The next step; `None` when the walk has ended.
    ///
    /// # Errors
    /// [`Unlisted`]. The next step is behind that directory.
    pub async fn next(&mut self) -> Result<Option<Step>, Unlisted> {
        match &mut self.0 {
            Kind::Published(walk) => walk.next().await,
            Kind::Shared(walk) => walk.next().await,
        }
    }
}
