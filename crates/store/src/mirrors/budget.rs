//! How many requests may be sent beyond the needed ones: one in twenty, and a few in hand.

use std::sync::atomic::{AtomicU32, Ordering};

/// Twentieths of a request that may be in hand.
const MOST: u32 = 20 * 4;
/// The price of a request, in twentieths.
const PRICE: u32 = 20;

/// Twentieths of a request in hand.
#[derive(Debug)]
pub(super) struct Budget(AtomicU32);

impl Default for Budget {
    fn default() -> Self {
        Budget(AtomicU32::new(MOST))
    }
}

impl Budget {
    /// A needed request was sent.
    pub(super) fn earn(&self) {
        let add = |old: u32| Some(old.saturating_add(1).min(MOST));
        // The closure never refuses.
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Takes what one more costs, if it is there.
    pub(super) fn spend(&self) -> bool {
        let take = |old: u32| old.checked_sub(PRICE);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }
}
