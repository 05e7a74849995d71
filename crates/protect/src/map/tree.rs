//! The part of the tree that is in memory: interior pages, which stay once they are loaded, the cache of leaves,
//! and which slots must not be written. No I/O.
//!
//! Invariants:
//! - The pages above a page in memory are in memory. A page in memory counts, whatever its parent's entry says.
//! - A page below an [`Entry::Filled`] that is in memory has that fill in all its cells, or has been changed since.
//! - An interior page that is not in memory is the same in the durable tree and in the current one, so loading it
//!   tells which slots below it are durable.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::Root;
use super::cache::LeafCache;
use super::layout::{Layout, PageId, Slot};
use super::page::{Entry, Page};
use super::pages::{BATCH, Stored};
use super::value::{Cell, Fill};

/// For each slot, the children that a page names there, as bits.
#[derive(Clone, Copy, Default)]
struct Named([[u64; 4]; 2]);

impl Named {
    fn of(page: &Page) -> Named {
        let mut named = Named::default();
        for (child, cell) in page.cells().iter().enumerate() {
            if let Entry::Page(slot, _) = Entry::decode(*cell) {
                named.0[slot.number()][child / 64] |= 1 << (child % 64);
            }
        }
        named
    }

    fn has(&self, child: usize, slot: Slot) -> bool {
        self.0[slot.number()][child / 64] >> (child % 64) & 1 == 1
    }
}

/// An interior page in memory.
pub(super) struct Node {
    page: Arc<Page>,
    /// What the durable root's version of this page names.
    durable: Named,
    /// What the last written root's version names, if that one may be durable by now and differs.
    written: Option<Named>,
}

impl Node {
    fn loaded(page: Arc<Page>) -> Node {
        Node {
            durable: Named::of(&page),
            written: None,
            page,
        }
    }

    fn fresh(fill: Fill) -> Node {
        Node {
            page: Arc::new(Page::filled(fill.encode())),
            durable: Named::default(),
            written: None,
        }
    }

    fn entry(&self, child: PageId) -> Entry {
        self.page
            .cells()
            .get(child.cell())
            .map_or(Entry::Filled(Fill::Bad), |cell| Entry::decode(*cell))
    }

    fn is_taken(&self, child: usize, slot: Slot) -> bool {
        self.durable.has(child, slot) || self.written.is_some_and(|named| named.has(child, slot))
    }
}

/// Where to find a page.
pub(super) enum Found {
    /// It is in memory.
    Memory(Arc<Page>),
    /// There is none: all blocks below have this value.
    Filled(Fill),
    /// This page has to be read first: it, or one above it.
    Missing(Stored),
}

/// The tree in memory.
pub(super) struct Tree {
    /// Interior pages, and above the top page one that is never written: its first cell is the root.
    nodes: BTreeMap<PageId, Node>,
    pub(super) leaves: LeafCache,
    top: PageId,
    /// The root that is known to be durable.
    durable: Root,
    /// Interior pages that differ from what is on the device.
    dirty: BTreeSet<PageId>,
    /// Interior pages that name other slots than the last written root's versions of them.
    renamed: BTreeSet<PageId>,
    /// The last written root while nobody has said that it is durable, and the pages with `written`.
    uncommitted: Option<(Root, Vec<PageId>)>,
    /// Where eviction goes on.
    evicted: u64,
    /// Pages that some thread is reading.
    pub(super) loading: BTreeSet<PageId>,
}

impl Tree {
    pub(super) fn new(layout: &Layout, root: Root, leaves: LeafCache) -> Tree {
        let top = layout.top();
        let mut page = Page::filled(Fill::Zero.encode());
        page.cells_mut()[0] = root.0;
        Tree {
            nodes: BTreeMap::from([(top.parent(), Node::loaded(Arc::new(page)))]),
            leaves,
            top,
            durable: root,
            dirty: BTreeSet::new(),
            renamed: BTreeSet::new(),
            uncommitted: None,
            evicted: 0,
            loading: BTreeSet::new(),
        }
    }

    /// Bytes of the pages in memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.nodes.len() * (size_of::<Page>() + size_of::<(PageId, Node)>())
            + self.leaves.len() * (size_of::<Page>() + 64)
    }

    pub(super) fn find(&mut self, id: PageId) -> Found {
        if id.level == 0
            && let Some(page) = self.leaves.get(id.index)
        {
            return Found::Memory(page);
        }
        if let Some(node) = self.nodes.get(&id) {
            return Found::Memory(node.page.clone());
        }
        let mut child = id;
        while child.level <= self.top.level {
            if let Some(node) = self.nodes.get(&child.parent()) {
                return match node.entry(child) {
                    Entry::Filled(fill) => Found::Filled(fill),
                    Entry::Page(slot, mac) => Found::Missing(Stored {
                        id: child,
                        slot,
                        mac,
                    }),
                };
            }
            child = child.parent();
        }
        Found::Filled(Fill::Bad)
    }

    /// Takes in a page that was read, unless the tree has changed since. Returns whether it is still the right one.
    pub(super) fn adopt(&mut self, stored: Stored, page: &Arc<Page>) -> bool {
        if !matches!(self.find(stored.id), Found::Missing(now) if now == stored) {
            return false;
        }
        if stored.id.level == 0 {
            self.leaves.insert(stored.id.index, page.clone());
        } else {
            self.nodes.insert(stored.id, Node::loaded(page.clone()));
        }
        true
    }

    /// Creates the interior pages above `id` that are missing because a page above them is filled with `fill`.
    fn grow(&mut self, id: PageId, fill: Fill) {
        let mut page = id.parent();
        while page.level <= self.top.level && !self.nodes.contains_key(&page) {
            self.nodes.insert(page, Node::fresh(fill));
            page = page.parent();
        }
    }

    /// Sets cells of a leaf. All cells are set of a leaf that is not in memory, without reading it.
    pub(super) fn put(
        &mut self,
        leaf: u64,
        cells: Range<usize>,
        cell: Cell,
        whole: bool,
    ) -> Result<(), Stored> {
        match self.find(PageId::leaf(leaf)) {
            Found::Memory(page) => {
                let there = page.cells().get(cells.clone()).unwrap_or_default();
                if there.iter().all(|there| *there == cell) {
                    return Ok(());
                }
            }
            Found::Filled(fill) if fill.encode() == cell => return Ok(()),
            Found::Filled(fill) => {
                self.grow(PageId::leaf(leaf), fill);
                self.leaves
                    .insert(leaf, Arc::new(Page::filled(fill.encode())));
            }
            Found::Missing(stored) if whole && stored.id.level == 0 => {
                self.leaves
                    .insert(leaf, Arc::new(Page::filled(Fill::Bad.encode())));
            }
            Found::Missing(stored) => return Err(stored),
        }
        if let Some(page) = self.leaves.change(leaf)
            && let Some(range) = page.cells_mut().get_mut(cells)
        {
            range.fill(cell);
        }
        Ok(())
    }

    /// Fills everything below `id`. The interior pages below it that can be read are in memory.
    pub(super) fn replace(&mut self, id: PageId, fill: Fill) {
        if let Found::Filled(old) = self.find(id) {
            self.grow(id, old);
        }
        let leaves = id.below(0);
        self.leaves.remove(leaves.start.index..leaves.end.index);
        for level in 1..=id.level {
            for (id, node) in self.nodes.range_mut(id.below(level)) {
                node.page = Arc::new(Page::filled(fill.encode()));
                self.dirty.remove(id);
                self.renamed.insert(*id);
            }
        }
        self.set_entry(id, Entry::Filled(fill));
    }

    /// Sets what the parent of `id` says about it.
    pub(super) fn set_entry(&mut self, id: PageId, entry: Entry) {
        let parent = id.parent();
        if let Some(node) = self.nodes.get_mut(&parent)
            && let Some(cell) = Arc::make_mut(&mut node.page).cells_mut().get_mut(id.cell())
        {
            *cell = entry.encode();
            self.dirty.insert(parent);
            self.renamed.insert(parent);
        }
    }

    /// The slot in which a page may be written, if there is one: neither the durable root nor one that may be
    /// durable by now names it.
    pub(super) fn free_slot(&self, id: PageId) -> Option<Slot> {
        let parent = self.nodes.get(&id.parent())?;
        let first = match parent.entry(id) {
            Entry::Page(slot, _) => slot,
            Entry::Filled(_) => Slot::First,
        };
        [first, first.other()]
            .into_iter()
            .find(|slot| !parent.is_taken(id.cell(), *slot))
    }

    /// Up to `count` dirty pages of a level, in order.
    pub(super) fn dirty(&self, level: u8, count: usize) -> Vec<(PageId, Arc<Page>)> {
        let ids: Vec<PageId> = match level {
            0 => self.leaves.dirty().map(PageId::leaf).take(count).collect(),
            _ => {
                let level = self.dirty.range(self.top.below(level));
                level.copied().take(count).collect()
            }
        };
        let page = |id: PageId| match level {
            0 => self.leaves.peek(id.index),
            _ => self.nodes.get(&id).map(|node| node.page.clone()),
        };
        ids.into_iter()
            .filter_map(|id| Some((id, page(id)?)))
            .collect()
    }

    /// The next dirty leaves that can be written now: those that are filled or have a free slot. In the order of
    /// their places, around and around.
    pub(super) fn evictable(&mut self) -> Vec<(PageId, Arc<Page>)> {
        let (before, after): (Vec<u64>, Vec<u64>) =
            self.leaves.dirty().partition(|leaf| *leaf < self.evicted);
        let batch: Vec<_> = after
            .into_iter()
            .chain(before)
            .filter_map(|leaf| Some((PageId::leaf(leaf), self.leaves.peek(leaf)?)))
            .filter(|(id, page)| page.fill().is_some() || self.free_slot(*id).is_some())
            .take(BATCH)
            .collect();
        self.evicted = batch.last().map_or(0, |(id, _)| id.index + 1);
        batch
    }

    /// A dirty page is on the device now, or needs no page.
    pub(super) fn cleaned(&mut self, id: PageId, entry: Entry) {
        if id.level == 0 {
            self.leaves.cleaned(id.index);
        } else {
            self.dirty.remove(&id);
        }
        self.set_entry(id, entry);
    }

    /// The root that is written but not known to be durable.
    pub(super) fn uncommitted(&self) -> Option<Root> {
        self.uncommitted.as_ref().map(|(root, _)| *root)
    }

    /// The root that is known to be durable.
    pub(super) fn durable(&self) -> Root {
        self.durable
    }

    pub(super) fn is_clean(&self) -> bool {
        self.dirty.is_empty() && self.leaves.dirty().next().is_none()
    }

    /// All pages are on the device: the root of this tree, which the caller makes durable.
    pub(super) fn written(&mut self) -> Root {
        self.dirty.clear();
        let root = Root(match self.nodes.get(&self.top.parent()) {
            Some(node) => node.entry(self.top).encode(),
            None => Fill::Bad.encode(),
        });
        let renamed: Vec<PageId> = std::mem::take(&mut self.renamed).into_iter().collect();
        for id in &renamed {
            if let Some(node) = self.nodes.get_mut(id) {
                node.written = Some(Named::of(&node.page));
            }
        }
        if !renamed.is_empty() {
            self.uncommitted = Some((root, renamed));
        }
        root
    }

    /// The last written root is durable. Any other root is passed over.
    pub(super) fn committed(&mut self, root: Root) {
        if self.uncommitted() != Some(root) {
            return;
        }
        self.durable = root;
        for id in self
            .uncommitted
            .take()
            .map(|(_, ids)| ids)
            .unwrap_or_default()
        {
            if let Some(node) = self.nodes.get_mut(&id)
                && let Some(named) = node.written.take()
            {
                node.durable = named;
            }
        }
    }
}
