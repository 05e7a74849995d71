//! Bytes that say where they belong: each sector holds the number of the write that made it and its own place.

use std::fmt;

pub const SECTOR: usize = 512;
pub const SECTORS: usize = 8;
pub const BLOCK: usize = SECTOR * SECTORS;

/// What a block holds: for each sector the number of the write that made it, 0 for zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Image(pub [u32; SECTORS]);

impl Image {
    /// The bytes of this image at `block`.
    pub fn bytes(&self, block: u64) -> Vec<u8> {
        let sectors = (0..).zip(self.0);
        sectors
            .flat_map(|(n, write)| sector(block * SECTORS as u64 + n, write))
            .collect()
    }

    /// The image of these bytes at `block`, if each sector is whole and belongs there.
    pub fn of(block: u64, bytes: &[u8]) -> Option<Image> {
        let mut image = Image::default();
        for (n, found) in bytes.chunks(SECTOR).enumerate() {
            let place = block * SECTORS as u64 + n as u64;
            let write = u32::from_le_bytes(found[8..12].try_into().unwrap());
            if found != sector(place, write) {
                return None;
            }
            image.0[n] = write;
        }
        Some(image)
    }
}

/// The bytes of one sector.
pub fn sector(place: u64, write: u32) -> Vec<u8> {
    if write == 0 {
        return vec![0; SECTOR];
    }
    let mut stamp = place.to_le_bytes().to_vec();
    stamp.extend(u64::from(write).to_le_bytes());
    stamp.repeat(SECTOR / 16)
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.iter().all(|write| *write == self.0[0]) {
            return write!(f, "{}", self.0[0]);
        }
        write!(f, "{:?}", self.0)
    }
}
