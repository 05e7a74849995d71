//! Walks a directory of a shared volume in the order of names; a directory comes before its entries. Directories are
//! listed, and the content of files is fetched, before the walk comes to them ([`super::listings`], [`reader::Ahead`]).
//! So a tree far away comes in few round trips. Keeps one page of names in memory for each level besides.

use ::share::files::{File, Listed, Place};
use bytes::Bytes;
use reader::{Ahead, Reads, Tree};
use trust::inode::{Content, FileContent, FileKind, Inode, Xattrs};
use trust_shared::principal::Name;

use super::listings::Listings;
use super::places::{below, path_of, shown};
use super::session::SharedVolume;
use crate::failure::{Failure, Kind, Outcome};

/// Limit of the depth of nested directories.
const MAX_DEPTH: usize = 2048;

/// A walk.
pub struct Walk<'a> {
    is_recursive: bool,
    levels: Vec<Level>,
    hidden: u64,
    listings: Listings<'a>,
    /// Fetches content before the walk comes to it.
    ahead: Option<Ahead>,
}

/// A directory that is being walked through.
struct Level {
    place: Place,
    after: Option<Name>,
    page: std::vec::IntoIter<Listed>,
    more: bool,
}

impl<'a> Walk<'a> {
    /// A walk through a directory, and with `is_recursive` through all below it, for who reads no content.
    pub fn of(shared: &'a SharedVolume, top: Place, is_recursive: bool) -> Walk<'a> {
        let mut walk = Walk {
            is_recursive,
            levels: Vec::new(),
            hidden: 0,
            listings: Listings::of(shared, is_recursive),
            ahead: None,
        };
        walk.enter(top);
        walk
    }

    /// A walk through a directory and all below it, for who reads the content of each file once, with the tree that
    /// this gives too.
    pub fn with_contents(shared: &'a SharedVolume, top: Place, inode: &Inode) -> (Walk<'a>, Tree) {
        let all = shared.contents();
        let ahead = all.ahead(&path_of(&top), inode, Reads::Everything);
        let tree = all.read_once();
        let mut walk = Walk::of(shared, top, true);
        walk.ahead = Some(ahead);
        (walk, tree)
    }

    /// How many names were left out so far.
    pub fn hidden(&self) -> u64 {
        self.hidden
    }

    fn enter(&mut self, place: Place) {
        self.levels.push(Level {
            place,
            after: None,
            page: Vec::new().into_iter(),
            more: true,
        });
    }

    /// The next file. One that this user may not read, or that is gone since, is left out.
    pub async fn next(&mut self) -> Outcome<Option<(Place, File)>> {
        while let Some(level) = self.levels.last_mut() {
            let ahead = self.ahead.as_ref();
            let came = |place: &Place, names: &[Listed]| {
                if let Some(ahead) = ahead {
                    ahead.listed(&path_of(place), &stored(names));
                }
            };
            let Some(listed) = level.page.next() else {
                if level.more {
                    let page = self.listings.page(&level.place, level.after.as_ref(), came);
                    let page = page.await?;
                    level.more = page.next.is_some();
                    level.after = page.next;
                    level.page = page.names.into_iter();
                } else {
                    self.levels.pop();
                }
                continue;
            };
            self.listings.go_on(came);
            let place = below(&level.place, &listed.name);
            let Some(file) = listed.file else {
                self.hidden = self.hidden.saturating_add(1);
                continue;
            };
            if let Some(ahead) = ahead {
                ahead.reached(&path_of(&place));
            }
            if self.is_recursive && file.inode.kind() == FileKind::Directory {
                if self.levels.len() >= MAX_DEPTH {
                    let error = format!("{} is nested too deeply", shown(&place));
                    return Err(Failure::new(Kind::Malformed, error));
                }
                self.enter(place.clone());
            }
            return Ok(Some((place, file)));
        }
        Ok(None)
    }
}

/// The files of which something lies in blocks.
fn stored(names: &[Listed]) -> Vec<(Bytes, Inode)> {
    let stored = names.iter().filter_map(|listed| {
        let inode = &listed.file.as_ref()?.inode;
        let is_stored = matches!(inode.content, Content::Regular(FileContent::Array(_)))
            || matches!(inode.xattrs, Xattrs::Stored(_));
        let name = Bytes::copy_from_slice(listed.name.as_bytes());
        is_stored.then(|| (name, Inode::clone(inode)))
    });
    stored.collect()
}
