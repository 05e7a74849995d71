//! Where the log may still have the content of settled blocks. It repairs what the data device lost since.

use std::collections::HashMap;

use wal::Lsn;

/// Blocks of one half; about a MiB of memory each.
const HALF: usize = 32 << 10;

/// The newest settled blocks and the position of their page.
#[derive(Debug, Default)]
pub(super) struct Retired {
    new: HashMap<u64, Lsn>,
    old: HashMap<u64, Lsn>,
}

impl Retired {
    /// The block is settled.
    pub fn add(&mut self, block: u64, payload: Lsn) {
        if self.new.len() >= HALF {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.insert(block, payload);
    }

    /// The position, which may be used for something else by now.
    pub fn get(&self, block: u64) -> Option<Lsn> {
        self.new
            .get(&block)
            .or_else(|| self.old.get(&block))
            .copied()
    }
}
