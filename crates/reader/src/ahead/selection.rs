//! Which parts of a tree somebody needs: paths, and ranges of their contents.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};

use trust::map::Interval;

use super::plan::Place;

/// Everything of a file or a directory.
const WHOLE: Range<u64> = 0..u64::MAX;

/// Files and directories of a tree, and what is needed of each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// By the names of the path, each with a zero behind it: what is below a directory stands together.
    places: BTreeMap<Vec<u8>, Vec<Range<u64>>>,
}

impl Selection {
    /// Nothing.
    pub fn new() -> Selection {
        Selection::default()
    }

    /// Adds the inode at a path (names with `/` between them), and all of its content: the data of a file, the names of a
    /// directory.
    pub fn add_whole(&mut self, path: &[u8]) {
        self.add(path, WHOLE);
    }

    /// Adds the inode at a path, and this range of its content, in bytes. An empty range adds the inode alone.
    pub fn add(&mut self, path: &[u8], range: Range<u64>) {
        let ranges = self.places.entry(Place::of_path(path).into_names());
        let ranges = ranges.or_default();
        if !range.is_empty() {
            ranges.push(range);
        }
    }

    /// Number of paths.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether it has no path.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether it has this path, or one below it.
    pub(super) fn leads_to(&self, place: &Place) -> bool {
        let from = (Bound::Included(place.names()), Bound::Unbounded);
        let first = self.places.range::<[u8], _>(from).next();
        first.is_some_and(|(found, _)| found.starts_with(place.names()))
    }

    /// Whether a node of the directory at this place is needed, which has the names of this interval.
    pub(super) fn needs_names(&self, directory: &Place, interval: &Interval) -> bool {
        let above = directory.names();
        if self.overlaps(directory, &WHOLE) {
            return true;
        }
        let mut from = above.to_vec();
        from.extend_from_slice(interval.lower.as_deref().unwrap_or_default());
        // The directory itself stands before what is in it.
        let found = self.places.range(from..).find(|(key, _)| *key != above);
        let name =
            found.and_then(|(key, _)| key.strip_prefix(above)?.split(|byte| *byte == 0).next());
        name.is_some_and(|name| interval.contains(name))
    }

    /// Whether something of this range of the content at a place is needed.
    pub(super) fn needs(&self, place: &Place, range: &Range<u64>) -> bool {
        self.overlaps(place, range)
    }

    fn overlaps(&self, place: &Place, range: &Range<u64>) -> bool {
        let mut ranges = self.places.get(place.names()).into_iter().flatten();
        ranges.any(|own| own.start < range.end && range.start < own.end)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn place(path: &str) -> Place {
        Place::of_path(path.as_bytes())
    }

    fn interval(lower: &str, upper: &str) -> Interval {
        let bound =
            |name: &str| (!name.is_empty()).then(|| Bytes::copy_from_slice(name.as_bytes()));
        Interval {
            lower: bound(lower),
            upper: bound(upper),
        }
    }

    #[test]
    fn names_that_only_begin_alike_are_others() {
        let mut selection = Selection::new();
        selection.add_whole(b"usr/lib/a");
        assert!(selection.leads_to(&place("")));
        assert!(selection.leads_to(&place("usr")) && selection.leads_to(&place("usr/lib/a")));
        assert!(!selection.leads_to(&place("us")) && !selection.leads_to(&place("usr/lib/a/b")));
        assert!(!selection.leads_to(&place("usr/li")));
        assert_eq!(selection.len(), 1);
    }

    #[test]
    fn ranges_are_needed_where_they_overlap() {
        let mut selection = Selection::new();
        selection.add(b"f", 10..20);
        selection.add(b"f", 30..40);
        selection.add(b"stat", 0..0);
        let needs = |range| selection.needs(&place("f"), &range);
        assert!(needs(0..11) && needs(19..25) && needs(39..100) && needs(0..u64::MAX));
        assert!(!needs(0..10) && !needs(20..30) && !needs(40..u64::MAX));
        assert!(!selection.needs(&place("stat"), &WHOLE) && selection.leads_to(&place("stat")));
    }

    #[test]
    fn directory_that_is_needed_whole_needs_all_of_its_nodes() {
        let mut selection = Selection::new();
        selection.add_whole(b"etc");
        assert!(selection.needs_names(&place("etc"), &interval("x", "y")));
        // Of its parent only the node that has its name.
        assert!(selection.needs_names(&place(""), &interval("", "f")));
        assert!(!selection.needs_names(&place(""), &interval("f", "")));
    }

    proptest! {
        #[test]
        fn node_is_needed_if_it_has_a_name_that_leads_on(
            paths: Vec<[u8; 3]>,
            directory: [u8; 2],
            depth in 0..3_usize,
            lower: u8,
            upper: u8,
        ) {
            let names = |bytes: &[u8]| bytes.iter().map(|byte| format!("{:02}", byte % 4)).collect::<Vec<_>>();
            let mut selection = Selection::new();
            let paths: Vec<Vec<String>> = paths.iter().map(|path| names(path)).collect();
            for path in &paths {
                selection.add(path.join("/").as_bytes(), 0..0);
            }
            let directory = &names(&directory)[..depth];
            let interval = interval(&format!("{:02}", lower % 5), &format!("{:02}", upper % 5));
            let below = paths.iter().filter_map(|path| path.strip_prefix(directory)?.first());
            let expected = below.clone().any(|name| interval.contains(name.as_bytes()));
            let place = place(&directory.join("/"));
            prop_assert_eq!(selection.needs_names(&place, &interval), expected);
            prop_assert_eq!(selection.leads_to(&place), below.count() > 0);
        }
    }
}
