//! What the operator of an attached device must know: blocks that are not what was written, and devices that fail.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use ::protect::Watch;

/// Distinct bad blocks that are remembered. More are only counted as many.
const MAX_BAD: usize = 100_000;
/// Bad blocks that are logged one by one.
const MAX_LOGGED: usize = 1000;

/// Remembers and logs.
#[derive(Debug, Default)]
pub struct Watcher {
    state: Mutex<Seen>,
}

/// What was seen.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    bad: BTreeSet<u64>,
    /// The last block that could not be read: its number, its offset on the data device, and when.
    pub last: Option<(u64, u64, SystemTime)>,
    /// Blocks that the data device had lost and that were written to it again.
    pub repaired_blocks: u64,
    /// Blocks that were lost with a page of the map. Some may have been written since.
    pub lost_blocks: u64,
    /// Errors of devices.
    pub device_errors: u64,
    /// The last of them.
    pub last_device_error: Option<String>,
}

impl Seen {
    /// Blocks that could not be read since the device was attached.
    pub fn bad_blocks(&self) -> u64 {
        self.bad.len() as u64
    }
}

impl Watcher {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was seen so far.
    pub fn seen(&self) -> Seen {
        self.lock().clone()
    }

    /// The number of blocks that could not be read.
    pub fn bad_blocks(&self) -> u64 {
        self.lock().bad_blocks()
    }
}

impl Watch for Watcher {
    fn bad_block(&self, block: u64, offset: u64) {
        let mut seen = self.lock();
        seen.last = Some((block, offset, SystemTime::now()));
        let is_new = seen.bad.len() < MAX_BAD && seen.bad.insert(block);
        if is_new && seen.bad.len() <= MAX_LOGGED {
            tracing::error!(
                block,
                offset,
                "a block of the device is not what was written to it; reads of it fail"
            );
        }
    }

    fn repaired_block(&self, block: u64, offset: u64) {
        self.lock().repaired_blocks += 1;
        tracing::warn!(
            block,
            offset,
            "a block of the device was not what was written to it; it was written again"
        );
    }

    fn lost_blocks(&self, blocks: Range<u64>) {
        self.lock().lost_blocks += blocks.end - blocks.start;
        tracing::error!(
            first = blocks.start,
            last = blocks.end.saturating_sub(1),
            "a part of the log that says what these blocks should be was changed or lost; reads of them fail until they \
             are written"
        );
    }

    fn device_failed(&self, device: &'static str, error: &io::Error) {
        let mut seen = self.lock();
        seen.device_errors += 1;
        seen.last_device_error = Some(format!("{device}: {error}"));
        tracing::error!(device, %error, "a device failed");
    }

    fn became_read_only(&self, why: &str) {
        tracing::error!(why, "the device is read-only from now on");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_block_is_counted_once_and_the_last_one_is_named() {
        let watcher = Watcher::default();
        for block in [7, 9, 7] {
            watcher.bad_block(block, block * 4096);
        }
        let seen = watcher.seen();
        assert_eq!(seen.bad_blocks(), 2);
        assert!(matches!(seen.last, Some((7, 28672, _))));
        watcher.lost_blocks(256..512);
        watcher.lost_blocks(512..600);
        assert_eq!(watcher.seen().lost_blocks, 344);
        for block in 0..MAX_BAD as u64 + 10 {
            watcher.bad_block(block, 0);
        }
        assert_eq!(watcher.bad_blocks(), MAX_BAD as u64);
    }
}
