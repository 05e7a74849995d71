//! Roots of a log's prefixes (RFC 6962, SHA-256), in little memory.
//!
//! An entry names a prefix that its author has verified, and whoever judges the entry needs that prefix's root. So the
//! hashes of the last [`WINDOW`] leaves are kept, with the perfect subtrees before each page of them. An entry that
//! names an older prefix has no good form: its author catches up first. Roots at the ends of pages are kept for ever,
//! 32 bytes for 256 leaves, so that a device that is far behind can be sent the log in pages.

use std::collections::VecDeque;

use trust::history::Frontier;
use trust_shared::checkpoint::Window;

use crate::scheme::{Leaf, Log, Scheme};
use trust_shared::form::Point;

/// Leaves in a page; leaves after which a prefix can be named no more: 2 MiB of hashes.
pub use trust_shared::checkpoint::{PAGE, WINDOW};

/// Prefixes that are remembered: 160 KiB.
const REMEMBERED: usize = 1 << 12;

/// A scheme whose log is a tree of RFC 6962.
pub trait Rfc6962: Scheme<Hash = [u8; 32]> {
    /// Hash of a leaf (RFC 6962, 2.1).
    fn leaf_hash(leaf: &Leaf<Self>) -> [u8; 32];
}

/// The tree of a log that grows.
#[derive(Clone, Debug)]
pub struct Recent {
    frontier: Frontier,
    /// Hashes of the last leaves, from the beginning of a page on.
    leaves: VecDeque<[u8; 32]>,
    /// The log before each page that has leaves above.
    pages: VecDeque<Frontier>,
    /// Root at the end of each full page, from the first page on that is known.
    roots: Vec<[u8; 32]>,
    /// Pages before that one: those before a checkpoint.
    unknown_pages: u64,
    /// Prefixes that are asked for often, ascending. To compute one costs up to [`PAGE`] hashes.
    remembered: VecDeque<(u64, [u8; 32])>,
}

impl Default for Recent {
    fn default() -> Self {
        Recent {
            frontier: Frontier::new(),
            leaves: VecDeque::new(),
            pages: VecDeque::from([Frontier::new()]),
            roots: Vec::new(),
            unknown_pages: 0,
            remembered: VecDeque::new(),
        }
    }
}

impl Recent {
    /// Goes on after a log whose size is a multiple of [`PAGE`], with the root at the end of each of its pages. Prefixes
    /// of it are too old to be named.
    pub fn resume(frontier: Frontier, roots: Vec<[u8; 32]>) -> Recent {
        Recent {
            pages: VecDeque::from([frontier.clone()]),
            frontier,
            leaves: VecDeque::new(),
            roots,
            unknown_pages: 0,
            remembered: VecDeque::new(),
        }
    }

    /// Goes on after a log of which a checkpoint gives the end. It judges all later entries as if it had begun with the
    /// first leaf.
    pub fn begin(window: &Window) -> Recent {
        let mut recent = Recent::resume(window.before.clone(), Vec::new());
        recent.unknown_pages = window.before.size() / PAGE;
        window.leaves.iter().for_each(|leaf| recent.append(*leaf));
        recent
    }

    /// The end of the log, as a checkpoint gives it.
    pub fn window(&self) -> Window {
        let first = Window::begins(self.frontier.size());
        let page = first.saturating_sub(self.first()) / PAGE;
        let page = usize::try_from(page).unwrap_or(usize::MAX);
        let skip = first.saturating_sub(self.first());
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        Window {
            // There is a page for each multiple of its length, back to the beginning of the window.
            before: self.pages.get(page).cloned().unwrap_or_default(),
            leaves: self.leaves.iter().skip(skip).copied().collect(),
        }
    }

    /// Position of the first leaf whose hash is kept.
    fn first(&self) -> u64 {
        let kept = self.leaves.len() as u64;
        self.frontier.size().saturating_sub(kept)
    }

    fn leaf_at(&self, at: u64) -> Option<&[u8; 32]> {
        let place = at.checked_sub(self.first())?;
        self.leaves.get(usize::try_from(place).ok()?)
    }

    /// Adds a leaf by its hash.
    pub fn append(&mut self, hash: [u8; 32]) {
        // A log of 2⁶⁴ leaves would take longer than anybody waits.
        if self.frontier.push_hash(hash).is_err() {
            return;
        }
        if self.leaves.len() == self.leaves.capacity() {
            // Doubling would take twice the memory of a full window.
            let room = (WINDOW + 2 * PAGE) as usize;
            let room = room.saturating_sub(self.leaves.len()).max(1);
            let more = (self.leaves.len() / 8).max(PAGE as usize);
            self.leaves.reserve_exact(more.min(room));
        }
        self.leaves.push_back(hash);
        if self.frontier.size().is_multiple_of(PAGE) {
            self.roots.push(self.frontier.root());
            self.pages.push_back(self.frontier.clone());
        }
        if self.leaves.len() as u64 >= WINDOW + 2 * PAGE {
            self.leaves.drain(..PAGE as usize);
            self.pages.pop_front();
        }
    }

    /// A prefix whose leaves since the beginning of its page are kept.
    fn prefix(&self, size: u64) -> Option<Frontier> {
        if size == self.frontier.size() {
            return Some(self.frontier.clone());
        }
        let page = size.checked_sub(self.first())? / PAGE;
        let mut frontier = self.pages.get(usize::try_from(page).ok()?)?.clone();
        for at in frontier.size()..size {
            frontier.push_hash(*self.leaf_at(at)?).ok()?;
        }
        Some(frontier)
    }

    fn compute(&self, size: u64) -> Option<[u8; 32]> {
        self.prefix(size).map(|prefix| prefix.root())
    }
}

impl<S: Rfc6962> Log<S> for Recent {
    fn size(&self) -> u64 {
        self.frontier.size()
    }

    fn root(&self) -> [u8; 32] {
        self.frontier.root()
    }

    fn root_at(&self, size: u64) -> Option<[u8; 32]> {
        let end = self.frontier.size();
        if size > end || end - size > WINDOW {
            return None;
        }
        let place = self.remembered.binary_search_by_key(&size, |(at, _)| *at);
        match place.ok().and_then(|place| self.remembered.get(place)) {
            Some((_, root)) => Some(*root),
            None => self.compute(size),
        }
    }

    fn remember(&mut self, point: Point<[u8; 32]>) {
        let place = self
            .remembered
            .partition_point(|(size, _)| *size < point.size);
        let known = self.remembered.get(place);
        if known.is_none_or(|(size, _)| *size != point.size) {
            self.remembered.insert(place, (point.size, point.root));
        }
        if self.remembered.len() > REMEMBERED {
            self.remembered.pop_front();
        }
    }

    fn is_at(&self, at: u64, leaf: &Leaf<S>) -> Option<bool> {
        Some(*self.leaf_at(at)? == S::leaf_hash(leaf))
    }

    fn root_with(&self, from: u64, leaves: &[Leaf<S>]) -> Option<[u8; 32]> {
        let mut frontier = self.prefix(from)?;
        for leaf in leaves {
            frontier.push_hash(S::leaf_hash(leaf)).ok()?;
        }
        Some(frontier.root())
    }

    fn push(&mut self, leaf: &Leaf<S>) {
        self.append(S::leaf_hash(leaf));
    }

    fn page(&self, from: u64, to: u64) -> Option<Point<[u8; 32]>> {
        let size = <Recent as Log<S>>::page_end(self, from, to);
        let root = match size < to {
            true => {
                let known = (from / PAGE).checked_sub(self.unknown_pages)?;
                *self.roots.get(usize::try_from(known).ok()?)?
            }
            false => self.compute(to)?,
        };
        Some(Point { size, root })
    }

    fn page_end(&self, from: u64, to: u64) -> u64 {
        let full = (from / PAGE).saturating_add(1);
        full.saturating_mul(PAGE).min(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(at: u64) -> [u8; 32] {
        trust::history::leaf_hash(&at.to_be_bytes())
    }

    fn log(size: u64) -> Recent {
        let mut log = Recent::default();
        (0..size).for_each(|at| log.append(leaf(at)));
        log
    }

    /// The root as RFC 6962 defines it.
    fn root(from: u64, to: u64) -> [u8; 32] {
        if to - from == 1 {
            return leaf(from);
        }
        let half = ((to - from).next_power_of_two() / 2).max(1);
        trust::history::node_hash(&root(from, from + half), &root(from + half, to))
    }

    #[test]
    fn roots_of_prefixes_are_those_of_the_definition() {
        let log = log(700);
        for size in [1, 2, 3, 255, 256, 257, 511, 512, 513, 699, 700] {
            assert_eq!(log.compute(size), Some(root(0, size)), "{size}");
        }
        assert_eq!(log.compute(701), None);
        assert_eq!(log.leaf_at(699), Some(&leaf(699)));
        assert_eq!(log.leaf_at(700), None);
    }

    #[test]
    fn remembered_prefix_has_its_root_until_it_is_too_old() {
        use crate::roster::Product;
        let mut log = log(700);
        for size in [10, 300, 300, 200, 600] {
            let root = root(0, size);
            Log::<Product>::remember(&mut log, Point { size, root });
        }
        assert_eq!(log.remembered.len(), 4);
        for size in [10, 11, 200, 300, 600, 700] {
            assert_eq!(Log::<Product>::root_at(&log, size), Some(root(0, size)));
        }
        (700..=10 + WINDOW).for_each(|at| log.append(leaf(at)));
        assert_eq!(Log::<Product>::root_at(&log, 10), None);
        assert!(Log::<Product>::root_at(&log, 11).is_some());
        for size in 1000..3000 + REMEMBERED as u64 {
            let root = [0; 32];
            Log::<Product>::remember(&mut log, Point { size, root });
        }
        assert_eq!(log.remembered.len(), REMEMBERED);
    }

    #[test]
    fn log_that_begins_with_a_checkpoint_knows_the_same_prefixes() {
        use crate::roster::Product;
        for begin in [
            0,
            1,
            256,
            700,
            WINDOW,
            WINDOW + 255,
            WINDOW + 256,
            WINDOW + 900,
        ] {
            let mut whole = log(begin);
            let window = whole.window();
            assert_eq!(window.before.size(), Window::begins(begin), "{begin}");
            let mut begun = Recent::begin(&window);
            for at in begin..begin + 600 {
                assert_eq!(begun.frontier, whole.frontier, "{begin}");
                assert_eq!(begun.window(), whole.window());
                let root = |log: &Recent, size| Log::<Product>::root_at(log, size);
                let oldest = at.saturating_sub(WINDOW);
                for size in [oldest, oldest + 1, oldest + 300, begin / 2, begin, at] {
                    assert_eq!(
                        root(&begun, size),
                        root(&whole, size),
                        "{begin} {at} {size}"
                    );
                }
                let (from, to) = (at - at % PAGE, at);
                let page = |log: &Recent| Log::<Product>::page(log, from, to);
                assert_eq!(page(&begun), page(&whole));
                begun.append(leaf(at));
                whole.append(leaf(at));
            }
            if begin > WINDOW + PAGE {
                assert_eq!(Log::<Product>::page(&begun, 0, begin), None);
            }
        }
    }

    #[test]
    fn memory_is_bounded_by_the_window_and_the_ends_of_pages() {
        let size = WINDOW + 5 * PAGE + 3;
        let log = log(size);
        assert!(log.leaves.len() as u64 <= WINDOW + 2 * PAGE);
        assert!(log.pages.len() as u64 <= WINDOW / PAGE + 3);
        assert_eq!(log.roots.len() as u64, size / PAGE);
        assert_eq!(log.compute(size - WINDOW), Some(root(0, size - WINDOW)));
        assert_eq!(log.roots[0], root(0, PAGE));
        assert_eq!(log.compute(PAGE), None);
    }
}
