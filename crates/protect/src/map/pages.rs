//! Pages on the device: verified reads, and writes of neighbours in one request.

use std::ops::Range;
use std::sync::Arc;

use wal::{Buffer, Device, Key, PAGE_BYTES, VolumeId};
use zeroize::Zeroizing;

use super::error::MapError;
use super::layout::{Layout, PageId, Slot};
use super::page::{Mac, Page};

/// Pages in one request: 1 MiB.
pub(super) const BATCH: usize = 256;

/// The map's area of a device.
pub(super) struct Pages {
    device: Arc<dyn Device>,
    pub(super) layout: Layout,
    key: Zeroizing<[u8; 32]>,
}

/// A page that lies on the device and what its parent says about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stored {
    pub(super) id: PageId,
    pub(super) slot: Slot,
    pub(super) mac: Mac,
}

/// A page on its way to the device.
pub(super) struct Outgoing {
    pub(super) id: PageId,
    pub(super) slot: Slot,
    pub(super) page: Arc<Page>,
}

impl Pages {
    pub(super) fn new(
        device: Arc<dyn Device>,
        area: Range<u64>,
        key: &Key,
        volume: VolumeId,
        blocks: u64,
    ) -> Result<Pages, MapError> {
        let layout = Layout::new(blocks, area.start)?;
        let there = area.end.min(device.bytes()).saturating_sub(area.start);
        if layout.bytes() > there {
            return Err(MapError::Area {
                needed: layout.bytes(),
                area: there,
            });
        }
        if device.align() as usize > PAGE_BYTES {
            return Err(MapError::Align {
                align: device.align(),
            });
        }
        Ok(Pages {
            device,
            layout,
            key: key.derive("protect map", volume),
        })
    }

    pub(super) fn mac(&self, id: PageId, page: &Page) -> Mac {
        Mac::new(&self.key, id, page)
    }

    /// The page, if one of its copies is what its parent says.
    pub(super) fn read(&self, stored: Stored) -> Result<Arc<Page>, MapError> {
        let mut failure = None;
        for offset in self.layout.copies(stored.id, stored.slot) {
            match self.read_copy(stored, offset) {
                Ok(page) => return Ok(page),
                // What cannot be read now may be right: nobody calls the page wrong because of the other copy.
                Err(error @ MapError::Io { .. }) => failure = Some(error),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        Err(failure.unwrap_or_else(|| self.wrong(stored)))
    }

    /// The copy of the page at this offset, if it is what its parent says.
    pub(super) fn read_copy(&self, stored: Stored, offset: u64) -> Result<Arc<Page>, MapError> {
        let Stored { id, mac, .. } = stored;
        let mut bytes = Buffer::zeroed(PAGE_BYTES);
        self.device
            .read(offset, &mut bytes)
            .map_err(|source| MapError::Io {
                what: "read",
                offset,
                source,
            })?;
        let page = Page::from_bytes(&bytes);
        if self.mac(id, &page) == mac {
            return Ok(Arc::new(page));
        }
        Err(self.wrong(stored))
    }

    fn wrong(&self, stored: Stored) -> MapError {
        let Stored { id, slot, .. } = stored;
        MapError::Page {
            level: id.level,
            index: id.index,
            offset: self.layout.offset(id, slot),
            blocks: self.layout.blocks_of(id),
        }
    }

    /// Reads the first copies of pages that lie side by side. Says of each whether it is what its
    /// parent says. If the device fails, none is.
    pub(super) fn read_run(&self, run: &[Stored]) -> Vec<bool> {
        let Some(first) = run.first() else {
            return Vec::new();
        };
        let offset = self.layout.offset(first.id, first.slot);
        let mut bytes = Buffer::zeroed(run.len() * PAGE_BYTES);
        if self.device.read(offset, &mut bytes).is_err() {
            return vec![false; run.len()];
        }
        let pages = bytes.chunks(PAGE_BYTES).map(Page::from_bytes);
        let both = pages.zip(run);
        both.map(|(page, stored)| self.mac(stored.id, &page) == stored.mac)
            .collect()
    }

    /// Writes a copy of a page. Not durable before the caller syncs the device.
    pub(super) fn write_copy(&self, offset: u64, page: &Page) -> Result<(), MapError> {
        self.put(offset, &Buffer::copy(page.as_bytes()))
    }

    fn put(&self, offset: u64, bytes: &[u8]) -> Result<(), MapError> {
        let written = self.device.write(offset, bytes);
        written.map_err(|source| MapError::Io {
            what: "written",
            offset,
            source,
        })
    }

    /// Writes all copies of pages that are sorted by place. Nothing is durable before the caller syncs the device.
    pub(super) fn write(&self, pages: &[Outgoing]) -> Result<(), MapError> {
        let neighbours = |a: &Outgoing, b: &Outgoing| {
            a.slot == b.slot && a.id.level == b.id.level && a.id.index + 1 == b.id.index
        };
        for run in pages.chunk_by(neighbours).flat_map(|run| run.chunks(BATCH)) {
            let Some(first) = run.first() else { continue };
            let mut bytes = Buffer::zeroed(run.len() * PAGE_BYTES);
            for (place, page) in bytes.chunks_mut(PAGE_BYTES).zip(run) {
                place.copy_from_slice(page.page.as_bytes());
            }
            for offset in self.layout.copies(first.id, first.slot) {
                self.put(offset, &bytes)?;
            }
        }
        Ok(())
    }
}
