//! Tests of the map on devices of `sim`, and what they share.

mod adversary;
mod concurrent;
mod copies;
mod crash;
mod growth;
mod model;
mod vectors;

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sim::device::{Machine, SimDevice};
use wal::{Device, Digest, Key, VolumeId};

use super::layout::{Layout, PageId, Slot};
use super::page::{Entry, Page};
use super::{Map, Root, Value};

/// Two interior pages, 258 leaves, the last one short.
const BLOCKS: u64 = 65_536 + 300;
const CACHE: usize = 16 * 4096;

fn key() -> Key {
    Key::new([7; 32])
}

const VOLUME: VolumeId = VolumeId([9; 16]);

fn digest(number: u64) -> Value {
    let mut bytes = [0x5a; 16];
    bytes[8..].copy_from_slice(&number.to_le_bytes());
    Value::Digest(Digest(bytes))
}

type Work = Box<dyn FnOnce() + Send>;

/// A device that counts requests and refuses to write what a durable root names.
struct Watched {
    device: Arc<SimDevice>,
    forbidden: Mutex<BTreeSet<u64>>,
    /// Pages that are not what was written: a scrub may write them although a durable root names them.
    damaged: Mutex<BTreeSet<u64>>,
    /// Runs once, beside a read: before it, and after it.
    beside_read: Mutex<(Option<Work>, Option<Work>)>,
    reads: AtomicU64,
    pages_written: AtomicU64,
}

impl Device for Watched {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn align(&self) -> u32 {
        self.device.align()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let (before, after) = std::mem::take(&mut *self.beside_read.lock().unwrap());
        if let Some(work) = before {
            work();
        }
        self.device.read(offset, into)?;
        if let Some(work) = after {
            work();
        }
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let pages = offset..offset + from.len() as u64;
        self.pages_written
            .fetch_add(from.len() as u64 / 4096, Ordering::Relaxed);
        let forbidden = self.forbidden.lock().unwrap();
        let mut damaged = self.damaged.lock().unwrap();
        assert_eq!(
            forbidden
                .range(pages.clone())
                .find(|page| !damaged.contains(page)),
            None,
            "a page of a durable root is overwritten"
        );
        damaged.retain(|page| !pages.contains(page));
        drop((forbidden, damaged));
        self.device.write(offset, from)
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.device.zero(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.device.sync()
    }
}

/// The device `L` with a map, and the device `S` with the root in the place of a superblock.
struct World {
    machine: Machine,
    device: Arc<Watched>,
    blocks: u64,
    cache: usize,
}

impl World {
    fn new(blocks: u64, cache: usize) -> World {
        let bytes = 8192 + Map::area_bytes(blocks).unwrap();
        World::on(Machine::new(&[("L", bytes), ("S", 4096)]), blocks, cache)
    }

    fn on(machine: Machine, blocks: u64, cache: usize) -> World {
        World {
            device: Arc::new(Watched {
                device: machine.device("L"),
                forbidden: Mutex::default(),
                damaged: Mutex::default(),
                beside_read: Mutex::default(),
                reads: AtomicU64::new(0),
                pages_written: AtomicU64::new(0),
            }),
            machine,
            blocks,
            cache,
        }
    }

    fn disk(&self) -> &SimDevice {
        &self.device.device
    }

    fn reads(&self) -> u64 {
        self.device.reads.load(Ordering::Relaxed)
    }

    fn pages_written(&self) -> u64 {
        self.device.pages_written.load(Ordering::Relaxed)
    }

    /// The root that the superblock names.
    fn durable(&self) -> Root {
        let mut sector = [0; 4096];
        self.machine.device("S").read(0, &mut sector).unwrap();
        Root::from_bytes(sector[..16].try_into().unwrap())
    }

    fn open(&self) -> Map {
        self.open_root(self.durable())
    }

    fn open_root(&self, root: Root) -> Map {
        let area = 8192..self.device.bytes();
        *self.device.forbidden.lock().unwrap() = self.named(root).into_iter().collect();
        let device = self.device.clone();
        Map::open(device, area, &key(), VOLUME, self.blocks, root, self.cache).unwrap()
    }

    /// A checkpoint, as the log does it.
    fn commit(&self, map: &Map) -> io::Result<Root> {
        let root = map.write_back().map_err(io::Error::other)?;
        self.device.sync()?;
        let before = self.durable();
        let both = [self.named(before), self.named(root)].concat();
        *self.device.forbidden.lock().unwrap() = both.into_iter().collect();
        let mut sector = [0; 4096];
        sector[..16].copy_from_slice(&root.to_bytes());
        self.machine.device("S").write(0, &sector)?;
        self.machine.device("S").sync()?;
        *self.device.forbidden.lock().unwrap() = self.named(root).into_iter().collect();
        map.committed(root);
        Ok(root)
    }

    fn layout(&self) -> Layout {
        Layout::new(self.blocks, 8192).unwrap()
    }

    /// Where the pages of a root lie, found without the code under test that reads and caches pages.
    fn named(&self, root: Root) -> Vec<u64> {
        let (layout, pages) = (self.layout(), self.pages(root));
        let copies = |(id, slot, _)| layout.copies(id, slot);
        pages.into_iter().flat_map(copies).collect()
    }

    /// Where the copies of a page of the durable root lie.
    fn copies(&self, id: PageId) -> Vec<u64> {
        let pages = self.pages(self.durable());
        let (id, slot, _) = pages.into_iter().find(|page| page.0 == id).unwrap();
        self.layout().copies(id, slot).collect()
    }

    /// Flips a bit of the page there.
    fn damage(&self, offset: u64) {
        self.device.damaged.lock().unwrap().insert(offset);
        self.disk().flip(offset * 8 + 77);
    }

    fn pages(&self, root: Root) -> Vec<(PageId, Slot, u64)> {
        let layout = self.layout();
        let mut found = Vec::new();
        let mut open = vec![(layout.top(), root.to_bytes())];
        while let Some((id, cell)) = open.pop() {
            let Entry::Page(slot, _) = Entry::decode(cell) else {
                continue;
            };
            let offset = layout.offset(id, slot);
            found.push((id, slot, offset));
            if id.level > 0 {
                let mut bytes = vec![0; 4096];
                self.disk().read(offset, &mut bytes).unwrap();
                let page = Page::from_bytes(&bytes);
                let below = (0..).map(|n| id.child(n)).zip(*page.cells());
                open.extend(below.filter(|(id, _)| !layout.blocks_of(*id).is_empty()));
            }
        }
        found
    }

    fn values(&self, map: &Map) -> Vec<Value> {
        map.get_range(0..self.blocks).unwrap()
    }
}
