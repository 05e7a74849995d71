//! Walks a directory of a shared volume in the order of names; a directory comes before its entries. Keeps one page of
//! names in memory for each level.

use ::share::files::{File, Listed, Place};
use trust::inode::FileKind;
use trust::shared::principal::Name;

use super::places::{below, shown};
use super::session::Shared;
use crate::failure::{Failure, Kind, Outcome};

/// Limit of the depth of nested directories.
const MAX_DEPTH: usize = 2048;

/// A walk.
pub struct Walk<'a> {
    shared: &'a Shared,
    is_recursive: bool,
    levels: Vec<Level>,
    hidden: u64,
}

/// A directory that is being walked through.
struct Level {
    place: Place,
    after: Option<Name>,
    page: std::vec::IntoIter<Listed>,
    more: bool,
}

impl<'a> Walk<'a> {
    /// A walk through a directory, and with `is_recursive` through all below it.
    pub fn of(shared: &'a Shared, top: Place, is_recursive: bool) -> Walk<'a> {
        let mut walk = Walk {
            shared,
            is_recursive,
            levels: Vec::new(),
            hidden: 0,
        };
        walk.enter(top);
        walk
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
            let Some(listed) = level.page.next() else {
                if level.more {
                    let page = self.shared.list(&level.place, level.after.clone(), true);
                    let page = page.await?;
                    level.more = page.more;
                    level.after = page.names.last().map(|listed| listed.name.clone());
                    level.page = page.names.into_iter();
                } else {
                    self.levels.pop();
                }
                continue;
            };
            let place = below(&level.place, &listed.name);
            let Some(file) = listed.file else {
                self.hidden = self.hidden.saturating_add(1);
                continue;
            };
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
