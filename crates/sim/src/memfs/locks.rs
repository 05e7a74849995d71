//! Locks over ranges of bytes with the semantics of `fcntl`: an owner's locks replace each other, read
//! locks are shared, and a wait that would be a deadlock is refused. Those by `flock` do not meet them. The caller does the waiting.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::RangeInclusive;

use mount::fuse::request::{Lock, LockKind, LockRequest};

/// A lock that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    owner: u64,
    start: u64,
    end: u64,
    kind: LockKind,
    pid: u32,
    flock: bool,
}

/// All locks of a file system, by inode number.
#[derive(Debug, Default)]
pub struct LockTable {
    held: BTreeMap<u64, Vec<Held>>,
    /// Owners that wait, each for one lock.
    waiting: HashMap<u64, LockRequest>,
}

impl LockTable {
    /// A lock of another owner that conflicts with `request`.
    pub fn conflict(&self, request: &LockRequest) -> Option<Lock> {
        self.conflicts(request).next().map(|held| Lock {
            range: held.start..=held.end,
            kind: held.kind,
            pid: held.pid,
        })
    }

    /// Sets or removes a lock, unless another conflicts. Returns whether it did.
    pub fn set(&mut self, request: &LockRequest) -> bool {
        if self.conflicts(request).next().is_some() {
            return false;
        }
        let (start, end) = (*request.range.start(), *request.range.end());
        self.clear(request.inode.0, request.owner.0, start..=end);
        if request.kind != LockKind::Unlock {
            let locks = self.held.entry(request.inode.0).or_default();
            locks.push(Held {
                owner: request.owner.0,
                start,
                end,
                kind: request.kind,
                pid: request.pid,
                flock: request.flock,
            });
            merge(locks);
        }
        true
    }

    /// Removes all locks of `owner` on a file. Returns whether there were any.
    pub fn release(&mut self, inode: u64, owner: u64) -> bool {
        self.clear(inode, owner, 0..=u64::MAX)
    }

    /// Notes that the owner of `request` begins to wait, unless that would be a deadlock.
    pub fn begin_wait(&mut self, request: &LockRequest) -> bool {
        let mut seen = HashSet::new();
        let mut next: Vec<u64> = self.conflicts(request).map(|held| held.owner).collect();
        while let Some(owner) = next.pop() {
            if owner == request.owner.0 {
                return false;
            }
            if seen.insert(owner)
                && let Some(waits_for) = self.waiting.get(&owner)
            {
                next.extend(self.conflicts(waits_for).map(|held| held.owner));
            }
        }
        self.waiting.insert(request.owner.0, request.clone());
        true
    }

    /// The owner no longer waits.
    pub fn end_wait(&mut self, owner: u64) {
        self.waiting.remove(&owner);
    }

    /// Locks that are held, and owners that wait; for tests.
    pub fn counts(&self) -> (usize, usize) {
        (self.held.values().map(Vec::len).sum(), self.waiting.len())
    }

    fn conflicts<'a>(&'a self, request: &'a LockRequest) -> impl Iterator<Item = &'a Held> {
        let locks = self.held.get(&request.inode.0);
        locks.into_iter().flatten().filter(|held| {
            request.kind != LockKind::Unlock
                && held.flock == request.flock
                && held.owner != request.owner.0
                && held.start <= *request.range.end()
                && *request.range.start() <= held.end
                && (held.kind == LockKind::Write || request.kind == LockKind::Write)
        })
    }

    fn clear(&mut self, inode: u64, owner: u64, range: RangeInclusive<u64>) -> bool {
        let Some(locks) = self.held.get_mut(&inode) else {
            return false;
        };
        let (start, end) = (*range.start(), *range.end());
        let mut changed = false;
        for held in std::mem::take(locks) {
            if held.owner != owner || held.end < start || end < held.start {
                locks.push(held);
                continue;
            }
            changed = true;
            if held.start < start {
                locks.push(Held {
                    end: start - 1,
                    ..held.clone()
                });
            }
            if end < held.end {
                locks.push(Held {
                    start: end + 1,
                    ..held
                });
            }
        }
        if locks.is_empty() {
            self.held.remove(&inode);
        }
        changed
    }
}

/// Joins neighbours of one owner and kind.
fn merge(locks: &mut Vec<Held>) {
    locks.sort_by_key(|held| (held.owner, held.start));
    let mut merged: Vec<Held> = Vec::new();
    for held in locks.drain(..) {
        match merged.last_mut() {
            Some(last)
                if last.owner == held.owner
                    && last.kind == held.kind
                    && last.end.checked_add(1) == Some(held.start) =>
            {
                last.end = held.end;
            }
            _ => merged.push(held),
        }
    }
    *locks = merged;
}

#[cfg(test)]
mod tests {
    use super::*;
    use mount::fuse::{FileHandle, INodeNo, LockOwner};

    fn request(owner: u64, range: RangeInclusive<u64>, kind: LockKind) -> LockRequest {
        LockRequest {
            inode: INodeNo(5),
            handle: FileHandle(0),
            owner: LockOwner(owner),
            range,
            kind,
            pid: owner as u32,
            flock: false,
        }
    }

    #[test]
    fn a_lock_within_a_lock_splits_it_and_neighbours_join() {
        let mut table = LockTable::default();
        assert!(table.set(&request(1, 0..=99, LockKind::Write)));
        assert!(table.set(&request(1, 40..=59, LockKind::Unlock)));
        assert_eq!(table.counts().0, 2);
        assert!(table.set(&request(2, 40..=59, LockKind::Write)));
        assert!(!table.set(&request(2, 39..=40, LockKind::Read)));
        assert!(table.set(&request(2, 40..=59, LockKind::Unlock)));
        assert!(table.set(&request(1, 40..=59, LockKind::Write)));
        assert_eq!(table.counts().0, 1);
        let found = table
            .conflict(&request(2, 10..=10, LockKind::Read))
            .unwrap();
        assert_eq!((found.range, found.pid), (0..=99, 1));
    }

    #[test]
    fn readers_share_and_a_writer_waits_for_all() {
        let mut table = LockTable::default();
        assert!(table.set(&request(1, 0..=9, LockKind::Read)));
        assert!(table.set(&request(2, 0..=9, LockKind::Read)));
        let writer = request(3, 5..=5, LockKind::Write);
        assert!(!table.set(&writer));
        assert!(table.release(5, 1));
        assert!(!table.set(&writer));
        assert!(table.release(5, 2));
        assert!(table.set(&writer));
        assert!(!table.release(5, 2));
    }

    #[test]
    fn a_circular_wait_is_refused() {
        let mut table = LockTable::default();
        assert!(table.set(&request(1, 1..=1, LockKind::Write)));
        assert!(table.set(&request(2, 2..=2, LockKind::Write)));
        assert!(table.set(&request(3, 3..=3, LockKind::Write)));
        assert!(table.begin_wait(&request(1, 2..=2, LockKind::Write)));
        assert!(table.begin_wait(&request(2, 3..=3, LockKind::Read)));
        assert!(!table.begin_wait(&request(3, 1..=1, LockKind::Read)));
        table.end_wait(2);
        assert!(table.begin_wait(&request(3, 1..=1, LockKind::Read)));
    }
}
