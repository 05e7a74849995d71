//! Blocks that came wrong and have not come right since. It is noted when they come, so whoever waits for the fetch of
//! another reader, until the same deadline, tells the lie too and not an outage.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use trust::{Handle, Reject};

/// Blocks that are remembered. If there are more, all are forgotten, and those that come wrong again are noted again.
const MOST: usize = 256;

/// Which mirror gave a wrong block, and what is wrong.
pub(super) type Evidence = (String, Reject);

#[derive(Default)]
pub(super) struct WrongBlocks(Mutex<HashMap<Handle, Evidence>>);

impl WrongBlocks {
    fn blocks(&self) -> MutexGuard<'_, HashMap<Handle, Evidence>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn came_wrong(&self, handle: Handle, evidence: Evidence) {
        let mut blocks = self.blocks();
        if blocks.len() >= MOST {
            blocks.clear();
        }
        blocks.insert(handle, evidence);
    }

    pub(super) fn came_right(&self, handle: &Handle) {
        self.blocks().remove(handle);
    }

    /// What was wrong with the first of these.
    pub(super) fn among(&self, mut handles: impl Iterator<Item = Handle>) -> Option<Evidence> {
        let blocks = self.blocks();
        handles.find_map(|handle| blocks.get(&handle).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(number: u64) -> Handle {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        Handle::from_bytes(bytes)
    }

    fn evidence() -> Evidence {
        ("mirror".to_owned(), Reject::WrongBlock)
    }

    #[test]
    fn block_is_wrong_until_it_comes_right() {
        let wrong = WrongBlocks::default();
        wrong.came_wrong(handle(1), evidence());
        assert_eq!(
            wrong.among([handle(0), handle(1)].into_iter()),
            Some(evidence())
        );
        wrong.came_right(&handle(1));
        assert_eq!(wrong.among([handle(1)].into_iter()), None);
    }

    #[test]
    fn few_wrong_blocks_are_remembered() {
        let wrong = WrongBlocks::default();
        for number in 0..10 * MOST as u64 {
            wrong.came_wrong(handle(number), evidence());
            assert!(wrong.blocks().len() <= MOST);
            assert!(wrong.among([handle(number)].into_iter()).is_some());
        }
    }
}
