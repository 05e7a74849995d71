//! The newest leaves: durable in the temporary log, and in memory until they are in a file of leaves.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use wal::Lsn;

use super::record::StoredLeaf;
use ordering::roster::Product;
use ordering::scheme::Leaf;

/// When so many bytes do not move to files, no entries are accepted any more.
pub const MAX_TAIL_BYTES: u64 = 64 << 20;

/// A leaf for the ledger, and as it is stored.
pub type Held = (Leaf<Product>, StoredLeaf);

/// See the head of this file.
pub struct Tail {
    first: u64,
    leaves: VecDeque<Held>,
    bytes: u64,
    /// Ends of commits: number of leaves, and the place in the temporary log after which only later leaves come.
    ends: VecDeque<(u64, Lsn)>,
    /// When the oldest of them came.
    since: Option<Instant>,
}

impl Tail {
    /// No leaves after the first `first`.
    pub fn new(first: u64) -> Tail {
        Tail {
            first,
            leaves: VecDeque::new(),
            bytes: 0,
            ends: VecDeque::new(),
            since: None,
        }
    }

    /// Position of its first leaf.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When the oldest of its leaves came.
    pub fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Number of leaves of the log.
    pub fn end(&self) -> u64 {
        self.first + self.leaves.len() as u64
    }

    /// Adds the leaves of a commit that is durable up to `lsn`.
    pub fn extend(&mut self, leaves: impl IntoIterator<Item = Held>, lsn: Lsn) {
        for (leaf, stored) in leaves {
            self.bytes += stored.bytes() as u64;
            self.leaves.push_back((leaf, stored));
        }
        if !self.leaves.is_empty() {
            self.since.get_or_insert_with(Instant::now);
        }
        self.ends.push_back((self.end(), lsn));
    }

    /// Leaves at these positions. None: the first of them is not here any more.
    pub fn get(&self, range: Range<u64>) -> Option<impl Iterator<Item = &StoredLeaf>> {
        let from = usize::try_from(range.start.checked_sub(self.first)?).ok()?;
        let most = usize::try_from(range.end.saturating_sub(range.start)).ok()?;
        let leaves = self.leaves.iter().skip(from).take(most);
        Some(leaves.map(|(_, stored)| stored))
    }

    /// All its leaves, and where the temporary log need not keep them any more. None: there are none.
    pub fn whole(&self) -> Option<(Vec<Held>, Lsn)> {
        let (end, lsn) = *self.ends.back()?;
        let all = !self.leaves.is_empty() && end == self.end();
        all.then(|| (self.leaves.iter().cloned().collect(), lsn))
    }

    /// The leaves before `until` are in a file.
    pub fn drop_until(&mut self, until: u64) {
        while self.first < until
            && let Some((_, stored)) = self.leaves.pop_front()
        {
            self.first += 1;
            self.bytes -= stored.bytes() as u64;
        }
        while self.ends.front().is_some_and(|(end, _)| *end <= until) {
            self.ends.pop_front();
        }
        self.since = (!self.leaves.is_empty()).then(Instant::now);
    }
}
