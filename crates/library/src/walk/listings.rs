//! Listings of a shared volume that are asked for before a depth-first walk comes to them, many at a time: calls that
//! are made together share a round trip. A listing that is known is a page of names; it names the directories below it,
//! and the page after it.
//!
//! Memory is bounded, whatever the tree: [`AHEAD`] pages and about [`AHEAD_NAMES`] names, and [`MAX_WAITING_NAMES`]
//! names in the paths of directories that wait. Of more than that the ones farthest away are forgotten; the walk asks for them when it comes to them.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use share::files::{Listed, Place};
use trust::inode::FileKind;
use trust_shared::principal::Name;

use crate::error::Error;
use crate::shared::places::below;
use crate::shared::{Names, SharedVolume};

/// Pages that are asked for or known, and that the walk has not come to.
const AHEAD: usize = 64;
/// Names that these pages have, about. The engine keeps few of the blocks that listings read: more long pages at once
/// would push out one another's.
const AHEAD_NAMES: usize = 4096;
/// Names of a page before any page has come.
const FIRST_NAMES: usize = 256;
/// Names in the paths of directories that wait until they are listed.
const MAX_WAITING_NAMES: usize = 1 << 16;

/// A page: the path of its directory, and of a later page the name before it. In the order in which a walk comes to
/// them, nearly: a later page stands before what is below the name before it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    path: Vec<Name>,
    /// Number of names of the directory's own path.
    depth: usize,
}

impl Key {
    fn of(place: &Place, after: Option<&Name>) -> Key {
        let path = place.path.iter().chain(after).cloned().collect();
        let depth = place.path.len();
        Key { path, depth }
    }
}

/// A page that was asked for, of the directory at a place.
type Answered = (Key, Place, Result<Names, Error>);

/// Listings of the directories below one.
pub struct Listings<'a> {
    shared: &'a SharedVolume,
    /// Size of the prefix of the log. None: the newest.
    size: Option<u64>,
    is_recursive: bool,
    waiting: BTreeMap<Key, (Place, Option<Name>)>,
    waiting_names: usize,
    asked: BTreeSet<Key>,
    under_way: FuturesUnordered<BoxFuture<'a, Answered>>,
    known: BTreeMap<Key, Result<Names, Error>>,
    /// Names of a page: a mean of those that have come, the last ones most.
    names: usize,
}

impl<'a> Listings<'a> {
    /// Listings for a walk, which enters directories if `is_recursive`.
    pub fn of(shared: &'a SharedVolume, size: Option<u64>, is_recursive: bool) -> Listings<'a> {
        Listings {
            shared,
            size,
            is_recursive,
            waiting: BTreeMap::new(),
            waiting_names: 0,
            asked: BTreeSet::new(),
            under_way: FuturesUnordered::new(),
            known: BTreeMap::new(),
            names: FIRST_NAMES,
        }
    }

    /// The page of names after `after`, to which the walk has come. `came` is told of each page that has come.
    pub async fn page(
        &mut self,
        place: &Place,
        after: Option<&Name>,
        came: impl Fn(&Place, &[Listed]),
    ) -> Result<Names, Error> {
        let key = Key::of(place, after);
        loop {
            if let Some(page) = self.known.remove(&key) {
                self.fill();
                return page;
            }
            if !self.asked.contains(&key) {
                self.forget(&key);
                self.ask(key.clone(), place.clone(), after.cloned());
            }
            self.fill();
            if let Some(page) = self.under_way.next().await {
                self.take(page, &came);
            }
        }
    }

    /// Takes the pages that have come, and asks for more.
    pub fn go_on(&mut self, came: impl Fn(&Place, &[Listed])) {
        let mut some = false;
        while let Some(Some(page)) = self.under_way.next().now_or_never() {
            self.take(page, &came);
            some = true;
        }
        if some {
            self.fill();
        }
    }

    fn take(&mut self, (key, place, page): Answered, came: impl Fn(&Place, &[Listed])) {
        self.asked.remove(&key);
        if let Ok(page) = &page {
            came(&place, &page.names);
            self.names = (3 * self.names + page.names.len()) / 4;
            if let Some(next) = &page.next {
                self.wait(place.clone(), Some(next.clone()));
            }
            let directories = page.names.iter().filter(|listed| {
                let kind = listed.file.as_ref().map(|file| file.inode.kind());
                self.is_recursive && kind == Some(FileKind::Directory)
            });
            let directories: Vec<Place> = directories
                .map(|listed| below(&place, &listed.name))
                .collect();
            for directory in directories {
                self.wait(directory, None);
            }
        }
        self.known.insert(key, page);
    }

    fn wait(&mut self, place: Place, after: Option<Name>) {
        let key = Key::of(&place, after.as_ref());
        self.waiting_names += key.path.len();
        self.waiting.insert(key, (place, after));
        while self.waiting_names > MAX_WAITING_NAMES
            && let Some((key, _)) = self.waiting.pop_last()
        {
            self.waiting_names -= key.path.len();
        }
    }

    /// The page waits no more.
    fn forget(&mut self, key: &Key) {
        if self.waiting.remove(key).is_some() {
            self.waiting_names -= key.path.len();
        }
    }

    /// Asks for the nearest pages, as long as there is room.
    fn fill(&mut self) {
        let most = AHEAD.min(AHEAD_NAMES / self.names.max(1));
        while self.asked.len() + self.known.len() < most
            && let Some((key, (place, after))) = self.waiting.pop_first()
        {
            self.waiting_names -= key.path.len();
            self.ask(key, place, after);
        }
    }

    fn ask(&mut self, key: Key, place: Place, after: Option<Name>) {
        self.asked.insert(key.clone());
        let (shared, size) = (self.shared, self.size);
        self.under_way.push(Box::pin(async move {
            let page = shared.list_at(size, &place, after, true).await;
            (key, place, page)
        }));
    }
}
