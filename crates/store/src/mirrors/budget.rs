//! Budget for extra requests (hedges and retries): one for each twenty needed requests, and a few
//! saved.

use std::sync::atomic::{AtomicU32, Ordering};

/// Maximum savings, in twentieths of a request.
const MOST: u32 = 20 * 4;
/// Price of an extra request, in twentieths.
const PRICE: u32 = 20;

/// Savings, in twentieths of a request.
#[derive(Debug)]
pub(super) struct Budget(AtomicU32);

impl Default for Budget {
    fn default() -> Self {
        Budget(AtomicU32::new(MOST))
    }
}

impl Budget {
    /// Records a needed request.
    pub(super) fn earn(&self) {
        let add = |old: u32| Some(old.saturating_add(1).min(MOST));
        // The closure never refuses.
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Pays for an extra request; returns false when the savings are too small.
    pub(super) fn spend(&self) -> bool {
        let take = |old: u32| old.checked_sub(PRICE);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }
}
