//! An open directory: one version, listed in order, resumed at any position.
//!
//! The kernel asks "from position *n* on", and *n* must mean the same entry for as long as the
//! directory is open, also after `seekdir`, with 10⁶ entries and in bounded memory. A position is an
//! entry's index in the order of names (the version cannot change). The directory remembers the names
//! at some positions: one for each answer, thinned out when they become many. A jump starts at the
//! nearest remembered position before it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use trust::inode::Inode;
use volume::Fetch;

use crate::published::failure::Failure;
use crate::published::nodes::Node;
use crate::published::view::View;

/// Remembered positions, at most.
const MAX_PLACES: usize = 1024;
/// Entries taken from the reader at a time.
const BATCH_ENTRIES: usize = 256;

/// One `opendir`.
#[derive(Debug)]
pub struct OpenDirectory {
    /// The version that it shows.
    pub view: Arc<View>,
    /// Its node, for paths and numbers.
    pub node: Arc<Node>,
    /// Its inode in that version.
    pub inode: Arc<Inode>,
    /// The names that an opaque directory shows: those looked up before it was opened.
    opaque: Option<Vec<Bytes>>,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    /// Index of the first entry in `ahead`.
    next: u64,
    /// Entries read and not yet answered.
    ahead: VecDeque<(Bytes, Inode)>,
    /// The name before index `next`.
    before: Option<Bytes>,
    /// Index → the name before it.
    places: BTreeMap<u64, Bytes>,
    /// Remembered positions are at least this far apart.
    stride: u64,
}

impl OpenDirectory {
    /// Opens `inode`, found in `view` at `node`'s path. `opaque` holds the names to show of a directory
    /// that cannot be listed.
    pub fn new(
        view: Arc<View>,
        node: Arc<Node>,
        inode: Arc<Inode>,
        opaque: Option<Vec<Bytes>>,
    ) -> Self {
        OpenDirectory {
            view,
            node,
            inode,
            opaque,
            progress: Mutex::default(),
        }
    }

    /// Entries from index `index` on: none only at the end.
    ///
    /// # Errors
    /// As the reader's.
    pub async fn entries_from(
        &self,
        index: u64,
        how: Fetch,
    ) -> Result<Vec<(Bytes, Inode)>, Failure> {
        if let Some(names) = &self.opaque {
            return self.names_from(names, index, how).await;
        }
        let (mut at, mut before) = {
            let mut progress = lock(&self.progress);
            if progress.next == index && !progress.ahead.is_empty() {
                return Ok(progress.ahead.drain(..).collect());
            }
            progress.nearest(index)
        };
        loop {
            let snapshot = &self.view.snapshot;
            let entries = snapshot
                .list(&self.inode, before.as_deref(), BATCH_ENTRIES, how)
                .await?;
            snapshot.prefetcher().listed(&self.inode, &entries);
            let skip = usize::try_from(index - at).unwrap_or(usize::MAX);
            if entries.is_empty() || skip < entries.len() {
                return Ok(entries.into_iter().skip(skip).collect());
            }
            at += entries.len() as u64;
            before = entries.last().map(|(name, _)| name.clone());
        }
    }

    /// Keeps the entries that did not fit into the answer: `rest` begins at `index`, after `before`.
    pub fn keep(&self, index: u64, before: Option<Bytes>, rest: Vec<(Bytes, Inode)>) {
        let mut progress = lock(&self.progress);
        if let Some(before) = &before {
            progress.remember(index, before.clone());
        }
        progress.next = index;
        progress.before = before;
        progress.ahead = rest.into();
    }

    async fn names_from(
        &self,
        names: &[Bytes],
        index: u64,
        how: Fetch,
    ) -> Result<Vec<(Bytes, Inode)>, Failure> {
        let mut entries = Vec::new();
        let start = usize::try_from(index).unwrap_or(usize::MAX);
        for name in names.iter().skip(start).take(BATCH_ENTRIES) {
            // They were looked up and found in this version.
            if let Some(inode) = self.view.snapshot.lookup(&self.inode, name, how).await? {
                entries.push((name.clone(), inode));
            }
        }
        Ok(entries)
    }
}

impl Progress {
    /// The nearest remembered position at or before `index`, and the name before it.
    fn nearest(&self, index: u64) -> (u64, Option<Bytes>) {
        let place = self.places.range(..=index).next_back();
        let (at, before) = place.map_or((0, None), |(at, name)| (*at, Some(name.clone())));
        match &self.before {
            Some(name) if self.next <= index && self.next > at => (self.next, Some(name.clone())),
            _ => (at, before),
        }
    }

    fn remember(&mut self, index: u64, before: Bytes) {
        let stride = self.stride;
        let near = |(at, _): (&u64, &Bytes)| index - at < stride;
        if self.places.range(..=index).next_back().is_some_and(near) {
            return;
        }
        self.places.insert(index, before);
        while self.places.len() > MAX_PLACES {
            let stride = self.stride.max(1).saturating_mul(2);
            let mut last = None;
            self.places.retain(|at, _| {
                let keep = last.is_none_or(|last| *at - last >= stride);
                if keep {
                    last = Some(*at);
                }
                keep
            });
            self.stride = stride;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_stay_few_and_a_jump_starts_near() {
        let mut progress = Progress::default();
        for i in 1..=100_000u64 {
            progress.remember(i * 10, Bytes::from(format!("{i:08}")));
        }
        assert!(progress.places.len() <= MAX_PLACES);
        let (at, before) = progress.nearest(500_005);
        assert!(at <= 500_005 && 500_005 - at < 5_000, "{at}");
        assert_eq!(before, Some(Bytes::from(format!("{:08}", at / 10))));
        assert_eq!(progress.nearest(3), (0, None));
    }
}
