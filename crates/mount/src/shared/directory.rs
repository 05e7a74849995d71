//! An open directory: all pages of one listing come from one position of the log, so names that others make or remove
//! meanwhile neither appear nor leave a gap. Memory is bounded: one page, and the names at which pages began.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use share::files::Listed;
use trust_shared::principal::Name;

use super::spool::Node;
use share::writeback::lock;

/// Most remembered beginnings of pages. In a longer directory a jump back may list many names again.
const MAX_PLACES: usize = 4096;

/// One `opendir`.
#[derive(Debug)]
pub struct OpenDirectory {
    /// The directory.
    pub node: Arc<Node>,
    pages: Mutex<Pages>,
}

/// The pages of a listing, as far as they were read.
#[derive(Debug)]
pub struct Pages {
    /// Size of the prefix of the log at whose end it is listed.
    pub at: u64,
    /// The beginning was read.
    pub has_begun: bool,
    /// Index of the first name of a page → the name after which it begins.
    places: BTreeMap<u64, Option<Name>>,
    /// The page that was read last: index of its first name, names, and whether more follow after a name.
    pub last: (u64, Arc<Vec<Listed>>, Option<Name>),
}

impl OpenDirectory {
    /// A directory as it is at the end of a prefix of the log, with its first page: names, and the one after which more
    /// follow.
    pub fn new(
        node: Arc<Node>,
        at: u64,
        (names, next): (Vec<Listed>, Option<Name>),
    ) -> OpenDirectory {
        OpenDirectory {
            node,
            pages: Mutex::new(Pages {
                at,
                has_begun: false,
                places: BTreeMap::from([(0, None)]),
                last: (0, Arc::new(names), next),
            }),
        }
    }

    /// It is listed anew, at the end of another prefix.
    pub fn begin_again(&self, at: u64, (names, next): (Vec<Listed>, Option<Name>)) {
        *self.pages() = Pages {
            at,
            has_begun: true,
            places: BTreeMap::from([(0, None)]),
            last: (0, Arc::new(names), next),
        };
    }

    /// Whether its beginning is read another time: POSIX wants the names of now then.
    pub fn rewinds(&self) -> bool {
        std::mem::replace(&mut self.pages().has_begun, true)
    }

    /// The pages, as far as they were read.
    pub fn pages(&self) -> MutexGuard<'_, Pages> {
        lock(&self.pages)
    }
}

impl Pages {
    /// The nearest remembered beginning of a page at or before an index: its index, and the name before it.
    pub fn nearest(&self, index: u64) -> (u64, Option<Name>) {
        let place = self.places.range(..=index).next_back();
        place.map_or((0, None), |(at, name)| (*at, name.clone()))
    }

    /// Keeps a page that begins at an index, after a name.
    pub fn keep(
        &mut self,
        from: u64,
        after: Option<Name>,
        (names, next): (Vec<Listed>, Option<Name>),
    ) {
        if self.places.len() < MAX_PLACES {
            self.places.insert(from, after);
        }
        self.last = (from, Arc::new(names), next);
    }
}
