//! Which program has which bytes of a file, as fcntl(2) splits and joins them. A lock by flock(2) has all bytes.

use trust_shared::hold::Range;

/// Most locks of one file. A program that wants more gets ENOLCK.
pub const MAX_LOCKS: usize = 4096;

/// A lock of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owned {
    /// The kernel's number for the process, or for the open file.
    pub owner: u64,
    /// The bytes.
    pub range: Range,
    /// The process, for F_GETLK.
    pub pid: u32,
    /// The open file through which it was taken.
    pub handle: u64,
}

/// The locks of one file and family.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// By owner, and ascending. Those of one owner and open file do not overlap.
    locks: Vec<Owned>,
}

impl Table {
    /// The locks.
    pub fn iter(&self) -> impl Iterator<Item = &Owned> {
        self.locks.iter()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Whether so many locks are there that no more are taken.
    pub fn is_full(&self) -> bool {
        self.locks.len() >= MAX_LOCKS
    }

    /// A lock that an owner cannot have beside its own: the first one.
    pub fn conflict(&self, owner: u64, range: &Range) -> Option<&Owned> {
        let conflicts = |lock: &&Owned| lock.owner != owner && clash(&lock.range, range);
        let conflicts = self.locks.iter().filter(conflicts);
        conflicts.min_by_key(|lock| lock.range.start)
    }

    /// Whether an owner has a lock on some of these bytes.
    pub fn has(&self, owner: u64, range: &Range) -> bool {
        let meets = |lock: &Owned| lock.owner == owner && overlap(&lock.range, range);
        self.locks.iter().any(meets)
    }

    /// What an owner has of these bytes.
    pub fn of(&self, owner: u64, range: &Range) -> Vec<Owned> {
        let meets = |lock: &&Owned| lock.owner == owner && overlap(&lock.range, range);
        let cut = |lock: &Owned| Owned {
            range: Range {
                start: lock.range.start.max(range.start),
                end: lock.range.end.min(range.end),
                ..lock.range
            },
            ..*lock
        };
        self.locks.iter().filter(meets).map(cut).collect()
    }

    /// Whether an owner has some of these bytes for itself alone.
    pub fn has_exclusive(&self, owner: u64, range: &Range) -> bool {
        let meets = |lock: &Owned| {
            lock.owner == owner && lock.range.exclusive && overlap(&lock.range, range)
        };
        self.locks.iter().any(meets)
    }

    /// An owner has these bytes from now on, in place of what it had of them.
    pub fn set(&mut self, lock: Owned) {
        self.clear(lock.owner, &lock.range);
        self.locks.push(lock);
        self.join();
    }

    /// The same, beside what the owner has through other open files.
    pub fn add(&mut self, lock: Owned) {
        let is_same = |had: &Owned| (had.owner, had.handle) == (lock.owner, lock.handle);
        self.cut(is_same, &lock.range);
        self.locks.push(lock);
        self.join();
    }

    /// An owner has none of these bytes any more.
    pub fn clear(&mut self, owner: u64, range: &Range) {
        self.cut(|lock| lock.owner == owner, range);
    }

    fn cut(&mut self, is_of: impl Fn(&Owned) -> bool, range: &Range) {
        let mut rest = Vec::with_capacity(self.locks.len() + 1);
        for lock in self.locks.drain(..) {
            if !is_of(&lock) || !overlap(&lock.range, range) {
                rest.push(lock);
                continue;
            }
            let cut = |start: u64, end: u64| {
                let range = Range {
                    start,
                    end,
                    ..lock.range
                };
                (start < end).then_some(Owned { range, ..lock })
            };
            rest.extend(cut(lock.range.start, range.start));
            rest.extend(cut(range.end, lock.range.end));
        }
        self.locks = rest;
    }

    /// Whether a lock was taken through an open file.
    pub fn has_through(&self, handle: u64) -> bool {
        self.locks.iter().any(|lock| lock.handle == handle)
    }

    /// Removes locks.
    pub fn retain(&mut self, keep: impl FnMut(&Owned) -> bool) {
        self.locks.retain(keep);
    }

    /// Joins locks of one owner that meet.
    fn join(&mut self) {
        self.locks
            .sort_by_key(|lock| (lock.owner, lock.range.start));
        let mut joined: Vec<Owned> = Vec::with_capacity(self.locks.len());
        for lock in self.locks.drain(..) {
            match joined.last_mut() {
                Some(last)
                    if (last.owner, last.handle, last.range.exclusive)
                        == (lock.owner, lock.handle, lock.range.exclusive)
                        && last.range.end == lock.range.start =>
                {
                    last.range.end = lock.range.end;
                }
                _ => joined.push(lock),
            }
        }
        self.locks = joined;
    }

    /// What all owners have together, and one more range: ascending, none over another, none that meets its neighbour
    /// of the same kind.
    pub fn union(&self, more: Option<Range>) -> Vec<Range> {
        let mut edges: Vec<(u64, bool, bool)> = Vec::new();
        let ranges = self.locks.iter().map(|lock| lock.range).chain(more);
        for range in ranges {
            edges.push((range.start, true, range.exclusive));
            edges.push((range.end, false, range.exclusive));
        }
        edges.sort_unstable();
        let (mut shared, mut exclusive, mut from) = (0_usize, 0_usize, 0);
        let mut union: Vec<Range> = Vec::new();
        for (at, begins, is_exclusive) in edges {
            if from < at && shared + exclusive > 0 {
                add(&mut union, (from, at), exclusive > 0);
            }
            from = at;
            let count = match is_exclusive {
                true => &mut exclusive,
                false => &mut shared,
            };
            *count = match begins {
                true => *count + 1,
                false => count.saturating_sub(1),
            };
        }
        union
    }
}

fn add(union: &mut Vec<Range>, (start, end): (u64, u64), exclusive: bool) {
    match union.last_mut() {
        Some(last) if last.end == start && last.exclusive == exclusive => last.end = end,
        _ => union.push(Range {
            start,
            end,
            exclusive,
        }),
    }
}

fn overlap(one: &Range, other: &Range) -> bool {
    one.start < other.end && other.start < one.end
}

/// Whether two owners cannot have these at a time.
pub fn clash(one: &Range, other: &Range) -> bool {
    overlap(one, other) && (one.exclusive || other.exclusive)
}

/// Whether who holds `held` holds all of `wanted`, each byte at least in the kind that is wanted. Both ascend.
pub(super) fn covers(held: &[Range], wanted: &[Range]) -> bool {
    wanted.iter().all(|wanted| {
        let mut at = wanted.start;
        for range in held {
            let suits = range.exclusive || !wanted.exclusive;
            if suits && range.start <= at && at < range.end {
                at = range.end;
            }
        }
        at >= wanted.end
    })
}
