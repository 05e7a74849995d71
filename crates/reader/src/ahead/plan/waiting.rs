//! Blocks that wait for a request: one list for each kind, in the order in which the reader wants them.

use std::collections::BTreeMap;

use super::{Place, Wanted};

/// Blocks that wait, at most.
pub(super) const MAX_BLOCKS: usize = 1 << 16;
/// Memory for their places, at most.
pub(super) const MAX_PLACES_BYTES: usize = 16 << 20;

/// What one request can bring: blocks of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    Directories,
    Inodes,
    Nodes,
    Data,
}

impl Group {
    pub(super) const ALL: [Group; 4] =
        [Group::Directories, Group::Inodes, Group::Nodes, Group::Data];

    /// Whether its blocks make others known.
    pub(super) fn leads_on(self) -> bool {
        self != Group::Data
    }
}

/// Blocks that wait for a request.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    lists: [BTreeMap<Place, Wanted>; Group::ALL.len()],
    places_bytes: usize,
}

impl Waiting {
    fn list(&self, group: Group) -> &BTreeMap<Place, Wanted> {
        let [directories, inodes, nodes, data] = &self.lists;
        match group {
            Group::Directories => directories,
            Group::Inodes => inodes,
            Group::Nodes => nodes,
            Group::Data => data,
        }
    }

    fn list_mut(&mut self, group: Group) -> &mut BTreeMap<Place, Wanted> {
        let [directories, inodes, nodes, data] = &mut self.lists;
        match group {
            Group::Directories => directories,
            Group::Inodes => inodes,
            Group::Nodes => nodes,
            Group::Data => data,
        }
    }

    pub(super) fn contains(&self, group: Group, place: &Place) -> bool {
        self.list(group).contains_key(place)
    }

    pub(super) fn len(&self) -> usize {
        self.lists.iter().map(BTreeMap::len).sum()
    }

    #[cfg(test)]
    pub(super) fn places_bytes(&self) -> usize {
        self.places_bytes
    }

    pub(super) fn is_empty(&self, group: Group) -> bool {
        self.list(group).is_empty()
    }

    pub(super) fn insert(&mut self, place: Place, wanted: Wanted) {
        self.places_bytes += place.names.len();
        self.list_mut(wanted.group()).insert(place, wanted);
    }

    pub(super) fn remove(&mut self, group: Group, place: &Place) -> Option<Wanted> {
        let wanted = self.list_mut(group).remove(place)?;
        self.places_bytes -= place.names.len();
        Some(wanted)
    }

    /// The blocks of a kind: those behind `at`, and then those before it.
    pub(super) fn nearest<'a>(
        &'a self,
        group: Group,
        at: &'a Place,
    ) -> impl Iterator<Item = (&'a Place, &'a Wanted)> {
        let list = self.list(group);
        list.range(at..).chain(list.range(..at))
    }

    /// Takes the block that the reader wants last, if there are too many.
    pub(super) fn pop_excess(&mut self) -> Option<Wanted> {
        if self.len() <= MAX_BLOCKS && self.places_bytes <= MAX_PLACES_BYTES {
            return None;
        }
        let last = self.lists.iter().filter_map(|list| list.last_key_value());
        let (place, wanted) = last.max_by_key(|(place, _)| *place)?;
        let (place, group) = (place.clone(), wanted.group());
        self.remove(group, &place)
    }

    /// Takes a block before `place`.
    pub(super) fn pop_before(&mut self, place: &Place) -> Option<Wanted> {
        let first = self.lists.iter().filter_map(|list| list.first_key_value());
        let (first, wanted) = first.min_by_key(|(first, _)| *first)?;
        if first >= place {
            return None;
        }
        let (first, group) = (first.clone(), wanted.group());
        self.remove(group, &first)
    }
}
