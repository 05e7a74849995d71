//! A fast hash of 128 bits that is the same in every run: for symbolic hashes and for states that were visited.

use std::hash::Hasher;

pub struct Wide {
    low: u64,
    high: u64,
}

impl Default for Wide {
    fn default() -> Wide {
        Wide {
            low: 0x243f_6a88_85a3_08d3,
            high: 0x1319_8a2e_0370_7344,
        }
    }
}

fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    (product as u64) ^ (product >> 64) as u64
}

impl Wide {
    fn take(&mut self, word: u64) {
        self.low = fold(self.low ^ word, 0x9e37_79b9_7f4a_7c15).rotate_left(23);
        self.high = fold(
            self.high.wrapping_add(word) ^ 0xa409_3822_299f_31d0,
            0xd6e8_feb8_6659_fd93,
        )
        .wrapping_add(self.low.rotate_left(32));
    }

    pub fn finish128(&self) -> u128 {
        let low = fold(self.low ^ self.high.rotate_left(17), 0xff51_afd7_ed55_8ccd);
        let high = fold(self.high ^ self.low.rotate_left(41), 0xc4ce_b9fe_1a85_ec53);
        u128::from(high) << 64 | u128::from(low)
    }
}

impl Hasher for Wide {
    fn finish(&self) -> u64 {
        self.finish128() as u64
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.take(u64::from_le_bytes(word) ^ (chunk.len() as u64) << 61);
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.take(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.take(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.take(word);
    }

    fn write_u128(&mut self, word: u128) {
        self.take(word as u64);
        self.take((word >> 64) as u64);
    }

    fn write_usize(&mut self, word: usize) {
        self.take(word as u64);
    }
}
