//! Records that a walk found, in the order in which a reader needs them.

use bytes::Bytes;

/// Records on a path, or near a head.
#[derive(Default)]
pub(crate) struct PathRecords {
    pub(super) records: Bytes,
    /// Where each record ends.
    pub(super) ends: Vec<usize>,
    /// The records prove the entry at the path, or that there is none.
    pub(super) whole: bool,
}

impl PathRecords {
    /// Whether a reader needs no more than this, and it fits into `around_bytes`.
    pub(crate) fn is_whole(&self, around_bytes: usize) -> bool {
        self.whole && self.records.len() <= around_bytes
    }

    /// The first records, of at most `around_bytes` in all.
    pub(crate) fn within(&self, around_bytes: usize) -> Bytes {
        let count = self.ends.partition_point(|end| *end <= around_bytes);
        let end = count.checked_sub(1).and_then(|last| self.ends.get(last));
        end.map_or_else(Bytes::new, |end| self.records.slice(..*end))
    }

    /// Memory that it takes, bytes.
    pub(crate) fn weight_bytes(&self) -> usize {
        self.records.len() + self.ends.len() * size_of::<usize>()
    }
}
