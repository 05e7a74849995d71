//! Changes of what lies on a device, behind its owner's back. They are durable at once, and can be made while the
//! machine runs or has stopped.

use std::ops::Range;

use bytes::Bytes;

use super::sectors::Content;
use super::{SECTOR_BYTES, SimDevice};

impl SimDevice {
    /// Flips a bit. Bits are counted from the lowest of the first byte.
    pub fn flip(&self, bit: u64) {
        let sector = bit / 8 / SECTOR_BYTES;
        self.change(sector..sector + 1, |content, _| {
            let zeros = || vec![0; SECTOR_BYTES as usize];
            let mut bytes = content(sector).map_or_else(zeros, |content| content.to_vec());
            bytes[(bit / 8 % SECTOR_BYTES) as usize] ^= 1 << (bit % 8);
            Some(Bytes::from(bytes))
        });
    }

    /// Gives `range`, in whole sectors, the bytes that it had after an earlier operation
    /// ([`Machine::operations`](super::Machine::operations)).
    pub fn put_back(&self, range: Range<u64>, instant: u64) {
        let mut state = self.machine.state();
        let now = state.operations;
        let disk = &mut state.devices[self.index];
        for sector in disk.sectors.written(whole_sectors(range)) {
            let content = disk.sectors.content_at(sector, instant);
            if content != disk.sectors.content(sector) {
                disk.sectors.settle(sector, now, content);
            }
        }
    }

    /// Puts the whole device back.
    pub fn put_back_all(&self, instant: u64) {
        let bytes = wal::Device::bytes(self);
        self.put_back(0..bytes, instant);
    }

    /// Zeros in whole sectors: a suffix that is cut off, a lost extent.
    pub fn erase(&self, range: Range<u64>) {
        self.change(whole_sectors(range), |_, _| None);
    }

    /// Copies authentic bytes to another place, in whole sectors.
    pub fn transplant(&self, from: u64, to: u64, bytes: u64) {
        let first = from / SECTOR_BYTES;
        let target = whole_sectors(to..to + bytes);
        let start = target.start;
        self.change(target, |content, sector| content(first + (sector - start)));
    }

    /// Replaces bytes, in whole sectors.
    pub fn plant(&self, offset: u64, bytes: &[u8]) {
        let bytes = Bytes::copy_from_slice(bytes);
        let target = whole_sectors(offset..offset + bytes.len() as u64);
        let start = target.start;
        self.change(target, |_, sector| {
            let at = ((sector - start) * SECTOR_BYTES) as usize;
            Some(bytes.slice(at..at + SECTOR_BYTES as usize))
        });
    }

    fn change(&self, sectors: Range<u64>, new: impl Fn(&dyn Fn(u64) -> Content, u64) -> Content) {
        let mut state = self.machine.state();
        let now = state.operations;
        let disk = &mut state.devices[self.index];
        let old = disk.sectors.clone();
        for sector in sectors {
            let content = new(&|sector| old.content(sector), sector);
            disk.sectors.settle(sector, now, content);
        }
    }
}

fn whole_sectors(range: Range<u64>) -> Range<u64> {
    range.start / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES)
}
