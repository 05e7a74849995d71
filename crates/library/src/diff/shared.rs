//! Compares a shared volume after two prefixes of its log. It walks through both states, directory by directory, with one
//! page of names of each in memory for each level.

use std::cmp::Ordering;
use std::sync::Arc;

use share::files::{Listed, Place};
use trust::change::{Change, Difference, alike, path};
use trust::inode::{FileKind, Inode};
use trust_shared::principal::Name;

use crate::error::Error;
use crate::shared::SharedVolume;
use crate::shared::places::{below, path_of};
use crate::walk::MAX_DEPTH;

/// Reports how the volume after the second prefix differs from that after the first. Size None: the whole log.
pub(super) async fn difference<E: From<Error>>(
    shared: &SharedVolume,
    sizes: [Option<u64>; 2],
    tell: impl FnMut(Change) -> Result<(), E>,
) -> Result<(), E> {
    let mut comparing = Comparing {
        shared,
        sizes,
        levels: Vec::new(),
        tell,
    };
    comparing.all().await
}

/// A directory in both states, or in one.
struct Level<'a> {
    place: Place,
    old: Option<Listing<'a>>,
    new: Option<Listing<'a>>,
}

struct Comparing<'a, T> {
    shared: &'a SharedVolume,
    sizes: [Option<u64>; 2],
    levels: Vec<Level<'a>>,
    tell: T,
}

impl<E: From<Error>, T: FnMut(Change) -> Result<(), E>> Comparing<'_, T> {
    async fn all(&mut self) -> Result<(), E> {
        let top = self.shared.place(b"")?;
        self.enter(top, true, true)?;
        while let Some(level) = self.levels.last_mut() {
            let (before, after) = level.next().await?;
            match (before, after) {
                (None, None) => drop(self.levels.pop()),
                (before, after) => {
                    let place = self.levels.last().map(|level| level.place.clone());
                    if let Some(place) = place {
                        self.compare(&place, before, after)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn enter(&mut self, place: Place, old: bool, new: bool) -> Result<(), Error> {
        if self.levels.len() >= MAX_DEPTH {
            return Err(Error::too_deep(&path_of(&place)));
        }
        let names = |is_there: bool, size: Option<u64>| {
            is_there.then(|| Listing::of(self.shared, size, place.clone()))
        };
        let [old_size, new_size] = self.sizes;
        let (old, new) = (names(old, old_size), names(new, new_size));
        self.levels.push(Level { place, old, new });
        Ok(())
    }

    /// Compares what one name leads to. Files that this user may not read are left out.
    fn compare(
        &mut self,
        directory: &Place,
        before: Option<Listed>,
        after: Option<Listed>,
    ) -> Result<(), E> {
        let name = match (&before, &after) {
            (Some(listed), _) | (None, Some(listed)) => listed.name.clone(),
            (None, None) => return Ok(()),
        };
        let inode = |listed: Option<Listed>| listed.and_then(|it| it.file).map(|it| it.inode);
        let (before, after) = (inode(before), inode(after));
        let is_directory = |inode: &Option<Arc<_>>| {
            let kind = inode.as_deref().map(Inode::kind);
            kind == Some(FileKind::Directory)
        };
        let (old_is, new_is) = (is_directory(&before), is_directory(&after));
        let difference = match (&before, &after) {
            (None, None) => return Ok(()),
            (None, Some(_)) => Some(Difference::Added),
            (Some(_), None) => Some(Difference::Removed),
            (Some(before), Some(after)) => (!same(before, after)).then_some(Difference::Changed),
        };
        let place = below(directory, &name);
        if let Some(difference) = difference {
            let change = Change {
                path: path(&path_of(&place)),
                difference,
                is_directory: if after.is_some() { new_is } else { old_is },
            };
            (self.tell)(change)?;
        }
        // As of published volumes: what is below a removed directory is not listed.
        if new_is {
            self.enter(place, old_is, true)?;
        }
        Ok(())
    }
}

/// Whether two inodes are alike. The time of a directory changes with its names, which are told of themselves.
fn same(before: &Inode, after: &Inode) -> bool {
    if before.kind() != FileKind::Directory {
        return alike(before, after);
    }
    let mtime = before.mtime;
    let after = Inode {
        mtime,
        ..after.clone()
    };
    alike(before, &after)
}

impl Level<'_> {
    /// The next name, in one state or in both.
    async fn next(&mut self) -> Result<(Option<Listed>, Option<Listed>), Error> {
        let name = |listed: Option<&Listed>| listed.map(|listed| listed.name.clone());
        let old: Option<Name> = match &mut self.old {
            Some(names) => name(names.peek().await?),
            None => None,
        };
        let new: Option<Name> = match &mut self.new {
            Some(names) => name(names.peek().await?),
            None => None,
        };
        let order = match (&old, &new) {
            (Some(old), Some(new)) => old.cmp(new),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return Ok((None, None)),
        };
        let take = |names: &mut Option<Listing<'_>>, wanted: bool| {
            names.as_mut().filter(|_| wanted).and_then(Listing::take)
        };
        let before = take(&mut self.old, order != Ordering::Greater);
        let after = take(&mut self.new, order != Ordering::Less);
        Ok((before, after))
    }
}

/// The names of a directory after a prefix of the log, one after the other. Keeps one page of them in memory.
struct Listing<'a> {
    shared: &'a SharedVolume,
    size: Option<u64>,
    place: Place,
    after: Option<Name>,
    page: std::iter::Peekable<std::vec::IntoIter<Listed>>,
    more: bool,
}

impl<'a> Listing<'a> {
    /// The names of the directory at a place.
    fn of(shared: &'a SharedVolume, size: Option<u64>, place: Place) -> Listing<'a> {
        Listing {
            shared,
            size,
            place,
            after: None,
            page: Vec::new().into_iter().peekable(),
            more: true,
        }
    }

    /// The next name. It stays the next one.
    async fn peek(&mut self) -> Result<Option<&Listed>, Error> {
        while self.page.peek().is_none() && self.more {
            let page = self
                .shared
                .list_at(self.size, &self.place, self.after.take(), true);
            let page = page.await?;
            self.more = page.next.is_some();
            self.after = page.next;
            self.page = page.names.into_iter().peekable();
        }
        Ok(self.page.peek())
    }

    /// Takes the name that was looked at.
    fn take(&mut self) -> Option<Listed> {
        self.page.next()
    }
}
