//! The map: a value for each block of the data device, in a tree of authenticated pages on the log's device
//! (PFS, section 4.1: the hash file). Settled values only; newer ones are in the log.
//!
//! Leaves have 256 values. Interior pages have 256 entries: the slot and the MAC of a page below, or one value for
//! all blocks below, so that a trim of everything writes a few pages. The log's superblock authenticates the
//! [`Root`], and with it everything. Each page has two slots. A page is only written to a slot that the durable root
//! does not name, so a crash at any point leaves the durable tree whole, and torn pages do no harm. A slot of an interior
//! page is written twice: a bit that flips there costs nothing.
//!
//! Interior pages stay in memory (16 MiB for 1 TiB of data). Leaves are in a cache of fixed size. Readers run beside
//! one writer; the lock on the tree is never held across I/O. Format: `docs/formats/protect.md`, *Map*.
//!
//! | module | what lives there |
//! |---|---|
//! | `value` | the values of blocks |
//! | `page` | bytes of pages, entries, MACs |
//! | `layout` | which page covers which blocks, and where it lies |
//! | `pages` | verified reads, writes of neighbours |
//! | `cache` | leaves in memory |
//! | `tree` | what is in memory, what is dirty, which slots are free |
//! | `write` | changes, early eviction, write-back |
//! | `losing` | changes that go on where a page is lost |
//! | `check` | a scrub of the durable tree |
//! | `build` | a new map from all values in order |
//! | `error` | [`MapError`] |

mod build;
mod cache;
mod check;
mod error;
mod layout;
mod losing;
mod page;
mod pages;
#[cfg(test)]
mod tests;
mod tree;
mod value;
mod write;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use wal::{Device, Key, VolumeId};

use cache::LeafCache;
use layout::{FAN_OUT, Layout, PageId};
use page::Page;
use pages::{Pages, Stored};
use tree::{Found, Tree};

pub use check::{Checked, PageDefect, Repair};
pub use error::MapError;
pub use value::Value;

/// Memory for leaves, if nobody says otherwise: enough for 16 GiB of data.
pub const DEFAULT_CACHE_BYTES: usize = 64 << 20;

/// Names a whole map: where its top page is and the MAC of it, or one value for all blocks. Whoever keeps it
/// authenticates it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Root([u8; 16]);

impl Root {
    /// All blocks are zero. No page has to be written for it.
    pub const ZERO: Root = Root([0; 16]);

    /// The root with these bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Root {
        Root(bytes)
    }

    /// The bytes, for the superblock.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Root({:032x})", u128::from_be_bytes(self.0))
    }
}

/// A map on a device.
pub struct Map {
    pages: Pages,
    tree: Mutex<Tree>,
    /// A page that was being read is there, or could not be read.
    loaded: Condvar,
    /// Held while the tree changes and pages are written. Taken before `tree`.
    writer: Mutex<()>,
}

impl Map {
    /// Bytes of the area that a map of so many blocks needs, or nothing if there can be no such map.
    pub fn area_bytes(blocks: u64) -> Option<u64> {
        Layout::new(blocks, 0).ok().map(|layout| layout.bytes())
    }

    /// The map of `blocks` blocks that `root` names. Reads nothing yet.
    ///
    /// # Errors
    /// [`MapError::Area`] if the area is too small, [`MapError::Shape`] or [`MapError::Align`] if no map can lie there.
    pub fn open(
        device: Arc<dyn Device>,
        area: Range<u64>,
        key: &Key,
        volume: VolumeId,
        blocks: u64,
        root: Root,
        cache_bytes: usize,
    ) -> Result<Map, MapError> {
        let pages = Pages::new(device, area, key, volume, blocks)?;
        let tree = Tree::new(&pages.layout, root, LeafCache::new(cache_bytes));
        Ok(Map {
            pages,
            tree: Mutex::new(tree),
            loaded: Condvar::new(),
            writer: Mutex::new(()),
        })
    }

    /// Blocks of the data device.
    pub fn blocks(&self) -> u64 {
        self.pages.layout.blocks()
    }

    /// Bytes of the pages in memory.
    pub fn memory_bytes(&self) -> usize {
        self.tree().memory_bytes()
    }

    /// The value of a block.
    ///
    /// # Errors
    /// [`MapError::Page`] if a page above the block is not what was written; never an unverified value.
    pub fn get(&self, block: u64) -> Result<Value, MapError> {
        self.pages.layout.check(&(block..block.saturating_add(1)))?;
        let view = self.leaf(block / FAN_OUT)?;
        Ok(view.value((block % FAN_OUT) as usize))
    }

    /// The values of a range of blocks; memory for each. All of them or an error.
    ///
    /// # Errors
    /// As for [`get`](Map::get).
    pub fn get_range(&self, range: Range<u64>) -> Result<Vec<Value>, MapError> {
        self.pages.layout.check(&range)?;
        collect(range, |leaf| self.leaf(leaf))
    }

    /// As [`get_range`](Map::get_range), if no page has to be read for it.
    pub fn get_range_at_once(&self, range: Range<u64>) -> Option<Vec<Value>> {
        self.pages.layout.check(&range).ok()?;
        let in_memory = |leaf| match self.tree().find(PageId::leaf(leaf)) {
            Found::Memory(page) => Ok(Leaf::Page(page)),
            Found::Filled(fill) => Ok(Leaf::Filled(fill.into())),
            Found::Missing(_) => Err(()),
        };
        collect(range, in_memory).ok()
    }

    fn leaf(&self, leaf: u64) -> Result<Leaf, MapError> {
        loop {
            let found = self.tree().find(PageId::leaf(leaf));
            let missing = match found {
                Found::Memory(page) => return Ok(Leaf::Page(page)),
                Found::Filled(fill) => return Ok(Leaf::Filled(fill.into())),
                Found::Missing(missing) => missing,
            };
            let page = match self.fetch(missing) {
                Err(MapError::Page { .. }) => self.fetch_beside_no_writer(missing)?,
                result => result?,
            };
            if missing.id.level == 0
                && let Some(page) = page
            {
                return Ok(Leaf::Page(page));
            }
        }
    }

    /// Reads a page into memory. Nothing if another thread has done it or the tree has changed meanwhile.
    fn fetch(&self, missing: Stored) -> Result<Option<Arc<Page>>, MapError> {
        let Some(_claim) = Claim::new(self, missing.id) else {
            return Ok(None);
        };
        // Another thread may have read it before this one claimed it.
        if !self.is_missing(missing) {
            return Ok(None);
        }
        let page = self.pages.read(missing)?;
        Ok(self.tree().adopt(missing, &page).then_some(page))
    }

    /// Reads a page again that did not verify. The writer may have written to its slot meanwhile, since that slot
    /// belonged to no durable root; it cannot do so now.
    fn fetch_beside_no_writer(&self, missing: Stored) -> Result<Option<Arc<Page>>, MapError> {
        let _writer = self.writer();
        self.fetch(missing)
    }

    fn is_missing(&self, page: Stored) -> bool {
        matches!(self.tree().find(page.id), Found::Missing(now) if now == page)
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> MutexGuard<'_, ()> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The values of a range, from its leaves.
fn collect<E>(range: Range<u64>, leaf: impl Fn(u64) -> Result<Leaf, E>) -> Result<Vec<Value>, E> {
    let mut values = Vec::new();
    let mut block = range.start;
    while block < range.end {
        let number = block / FAN_OUT;
        let end = range.end.min((number + 1) * FAN_OUT);
        let view = leaf(number)?;
        values.extend((block..end).map(|block| view.value((block % FAN_OUT) as usize)));
        block = end;
    }
    Ok(values)
}

/// The values of 256 blocks.
enum Leaf {
    Page(Arc<Page>),
    Filled(Value),
}

impl Leaf {
    fn value(&self, number: usize) -> Value {
        match self {
            Leaf::Page(page) => page
                .cells()
                .get(number)
                .map_or(Value::Bad, |cell| Value::decode(*cell)),
            Leaf::Filled(value) => *value,
        }
    }
}

/// One thread reads a page, others that need it wait.
struct Claim<'a> {
    map: &'a Map,
    id: PageId,
}

impl<'a> Claim<'a> {
    /// The right to read the page; nothing, after a wait, if another thread was reading it.
    fn new(map: &'a Map, id: PageId) -> Option<Claim<'a>> {
        let mut tree = map.tree();
        if tree.loading.insert(id) {
            return Some(Claim { map, id });
        }
        while tree.loading.contains(&id) {
            tree = map
                .loaded
                .wait(tree)
                .unwrap_or_else(PoisonError::into_inner);
        }
        None
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.map.tree().loading.remove(&self.id);
        self.map.loaded.notify_all();
    }
}
