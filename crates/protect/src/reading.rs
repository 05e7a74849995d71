//! Reading the data device while it is attached: what is there, and what the map says that it should be.

use wal::{Buffer, Device, Digest, DigestKey};

use crate::core::BLOCK_BYTES;
use crate::map::{Map, MapError, Value};

/// The data device and what the map says of it.
pub(crate) struct Reading<'a> {
    pub data: &'a dyn Device,
    pub digests: &'a DigestKey,
    pub map: &'a Map,
    /// Length of the device.
    pub bytes: u64,
}

impl Reading<'_> {
    /// What the map says. A value that is lost with its page is as if nothing fitted.
    pub fn mapped(&self, block: u64) -> Result<Value, MapError> {
        match self.map.get(block) {
            Err(MapError::Page { blocks, .. }) if !self.map.depends_on(&blocks) => Ok(Value::Bad),
            value => value,
        }
    }

    /// The digest of what the data device has; `None` if it cannot be read.
    pub fn digest(&self, block: u64) -> Option<Digest> {
        self.page(block).map(|page| self.digests.digest(&page))
    }

    /// The content of a block of the data device; `None` if it cannot be read. Bytes beyond the device's end are zero.
    pub fn page(&self, block: u64) -> Option<Buffer> {
        let offset = block * BLOCK_BYTES as u64;
        let mut page = Buffer::zeroed(BLOCK_BYTES);
        let real = (self.bytes - offset).min(BLOCK_BYTES as u64) as usize;
        let read = (0..2).any(|_| self.data.read(offset, &mut page[..real]).is_ok());
        read.then_some(page)
    }
}
