//! Whether a device has written something new, by a signature that this device has verified.

use trust::device::DeviceKey;

use super::Core;
use ordering::roster::Product;
use ordering::scheme::{Leaf, Scheme};

impl Core {
    /// Position of the newest entry that the device signed, if that is not `known`. None also when the entry cannot be
    /// read, is not signed, or begins an incarnation: that one need not cover the device's entry before it, so it may
    /// stand on a branch where the device is not.
    pub(in crate::client) fn newest_by(
        &self,
        device: DeviceKey,
        known: Option<u64>,
    ) -> Option<u64> {
        let mut authors = self.engine.ledger().authors();
        let (_, row) = authors.find(|(author, _)| *author == device)?;
        let at = row.last_at;
        if known == Some(at) {
            return None;
        }
        let Ok(Some(Leaf::Entry(entry))) = self.disk.leaf(at) else {
            return None;
        };
        let is_own = Product::author(&entry) == device;
        let is_own = is_own && !entry.signed().entry().is_resume();
        (is_own && self.engine.scheme().entry_is_signed(&entry)).then_some(at)
    }
}
