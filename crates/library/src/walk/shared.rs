//! A walk of a shared volume. Directories are listed ahead by calls that share round trips ([`super::listings`]), and
//! content is fetched ahead ([`reader::Ahead`]).

use bytes::Bytes;
use reader::Ahead;
use share::files::{Listed, Place};
use trust::inode::{Content, FileContent, Inode, Xattrs};
use trust_shared::principal::Name;

use super::listings::Listings;
use super::{Step, Unlisted};
use crate::error::Error;
use crate::shared::SharedVolume;
use crate::shared::places::path_of;
use crate::tree::Entry;

pub(super) struct Walk<'a> {
    shared: &'a SharedVolume,
    levels: Vec<Level>,
    hidden: u64,
    listings: Listings<'a>,
    /// Fetches content before the walk comes to it.
    ahead: Option<Ahead>,
}

/// A directory that is being walked through.
struct Level {
    entry: Entry,
    /// Where it is, or why its path is none.
    place: Result<Place, Option<Error>>,
    after: Option<Name>,
    page: std::vec::IntoIter<Listed>,
    more: bool,
}

impl<'a> Walk<'a> {
    /// A walk after a prefix of the log of this size. With `is_recursive` all directories are going to be entered.
    pub(super) fn of(
        shared: &'a SharedVolume,
        size: Option<u64>,
        is_recursive: bool,
        ahead: Option<Ahead>,
    ) -> Walk<'a> {
        Walk {
            shared,
            levels: Vec::new(),
            hidden: 0,
            listings: Listings::of(shared, size, is_recursive),
            ahead,
        }
    }

    pub(super) fn enter(&mut self, entry: Entry) {
        let place = self.shared.place(&entry.path);
        self.levels.push(Level {
            entry,
            place: place.map_err(Some),
            after: None,
            page: Vec::new().into_iter(),
            more: true,
        });
    }

    pub(super) fn depth(&self) -> usize {
        self.levels.len()
    }

    pub(super) fn hidden(&self) -> u64 {
        self.hidden
    }

    pub(super) async fn next(&mut self) -> Result<Option<Step>, Unlisted> {
        while let Some(level) = self.levels.last_mut() {
            let ahead = self.ahead.as_ref();
            let came = |place: &Place, names: &[Listed]| {
                if let Some(ahead) = ahead {
                    ahead.listed(&path_of(place), &stored(names));
                }
            };
            let Some(listed) = level.page.next() else {
                if !level.more {
                    let left = self.levels.pop();
                    return Ok(left.map(|left| Step::Left(left.entry)));
                }
                let page = match &mut level.place {
                    Ok(place) => self.listings.page(place, level.after.as_ref(), came).await,
                    Err(why) => Err(why.take().unwrap_or(Error::Defect)),
                };
                match page {
                    Ok(page) => {
                        level.more = page.next.is_some();
                        level.after = page.next;
                        level.page = page.names.into_iter();
                    }
                    Err(why) => {
                        level.more = false;
                        let path = level.entry.path.clone();
                        return Err(Unlisted { path, why });
                    }
                }
                continue;
            };
            self.listings.go_on(came);
            let Some(file) = listed.file else {
                self.hidden = self.hidden.saturating_add(1);
                continue;
            };
            let path = crate::path::join(&level.entry.path, listed.name.as_bytes());
            if let Some(ahead) = ahead {
                ahead.reached(&path);
            }
            return Ok(Some(Step::Entry(Entry::of_shared(path, file))));
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
