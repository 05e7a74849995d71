//! Entries whose signatures nobody has verified yet: of each author the last one, which vouches for those before it.

use crate::rows::Rows;
use crate::scheme::Scheme;

/// The last entry of each author, with its position, where nothing has vouched for it yet.
pub struct Unverified<S: Scheme>(Rows<S::Device, (u64, S::Entry)>);

impl<S: Scheme> Default for Unverified<S> {
    fn default() -> Self {
        Unverified(Rows::default())
    }
}

impl<S: Scheme> Clone for Unverified<S> {
    fn clone(&self) -> Self {
        Unverified(self.0.clone())
    }
}

impl<S: Scheme> Unverified<S> {
    /// An entry is in the log that vouches for the author's entries before it, unless it begins an incarnation.
    pub(super) fn insert(&mut self, at: u64, entry: &S::Entry) {
        self.0.insert(S::author(entry), (at, entry.clone()));
    }

    pub(super) fn remove(&mut self, author: S::Device) {
        self.0.remove(author);
    }

    /// Whether nothing has vouched for the last entry of an author.
    pub(super) fn has(&self, author: S::Device) -> bool {
        self.0.get(author).is_some()
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The author, position and entry of each.
    pub fn iter(&self) -> impl Iterator<Item = (S::Device, &(u64, S::Entry))> {
        self.0.iter()
    }
}
