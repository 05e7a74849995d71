//! The thread that writes blocks and keeps the cache within its limits.
//!
//! Each process that shares the directory counts its blocks from time to time. One process at a time,
//! under a lock, removes the least recently used ones. Their age limit is estimated from a sample, so
//! that memory is bounded however many files there are.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant, SystemTime};

use super::{Shared, Task};

/// The blocks are counted again after this time, because other processes write too.
const COUNT_EVERY: Duration = Duration::from_secs(600);
/// They are also counted after writing this part (1/n) of the quota.
const COUNT_AFTER_PART: u64 = 32;
/// The free space is checked after writing this many bytes.
const LOOK_EVERY_BYTES: u64 = 16 << 20;
/// When there was too little space, it is checked again after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Making room frees this part (1/n) of the quota beyond the need, so that it is done seldom.
const SPARE_PART: u64 = 16;
/// Size of the sample of files from which the age limit is estimated.
const SAMPLE: usize = 1 << 16;

/// The state of the thread.
pub(super) struct Evictor {
    shared: Arc<Shared>,
    counted: Option<Instant>,
    written_since_count: u64,
    written_since_look: u64,
    /// Do not write before this time: there was no space.
    paused: Option<Instant>,
}

impl Evictor {
    pub(super) fn new(shared: Arc<Shared>) -> Evictor {
        Evictor {
            shared,
            counted: None,
            written_since_count: 0,
            written_since_look: u64::MAX,
            paused: None,
        }
    }

    /// Works until all senders are gone and all tasks are done.
    pub(super) fn run(mut self, tasks: &Receiver<Task>) {
        self.shared.files.clear_leftovers();
        for task in tasks {
            match task {
                Task::Put(record) => {
                    let kept = self.has_room() && self.put(&record);
                    let counters = &self.shared.counters;
                    if kept {
                        counters.written.fetch_add(1, Ordering::Relaxed);
                    } else {
                        counters.refused.fetch_add(1, Ordering::Relaxed);
                    }
                    self.shared.room.give(super::queued_bytes(&record.frame));
                }
                // If this fails, the block is only removed earlier.
                Task::Used(handle) => drop(self.shared.files.touch(&handle)),
                Task::Remove(handle) => {
                    if let Err(error) = self.shared.files.remove(&handle) {
                        tracing::warn!(place = self.shared.files.place(), %handle, %error, "cannot remove a damaged block");
                    }
                }
            }
        }
    }

    fn put(&mut self, record: &trust::Record) -> bool {
        match self.shared.files.write(record) {
            Ok(true) => {
                // The next count adds the space that the file takes beyond its length.
                let bytes = record.len() as u64;
                self.shared.used_bytes.fetch_add(bytes, Ordering::Relaxed);
                self.written_since_count = self.written_since_count.saturating_add(bytes);
                self.written_since_look = self.written_since_look.saturating_add(bytes);
                true
            }
            Ok(false) => true,
            Err(error) => {
                tracing::warn!(place = self.shared.files.place(), %error, "cannot write a block");
                self.pause();
                false
            }
        }
    }

    fn pause(&mut self) {
        self.shared.full.store(true, Ordering::Relaxed);
        self.paused = Some(Instant::now() + LOOK_AGAIN);
        self.written_since_look = u64::MAX;
    }

    /// Whether another block may be written; makes room first if needed.
    fn has_room(&mut self) -> bool {
        if self.paused.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        let quota = self.shared.limits.quota_bytes;
        let due = self.counted.is_none_or(|at| at.elapsed() >= COUNT_EVERY);
        if due || self.written_since_count > quota / COUNT_AFTER_PART {
            self.count();
        }
        let used = self.shared.used_bytes.load(Ordering::Relaxed);
        if used > quota {
            self.make_room(used - quota + quota / SPARE_PART);
        }
        if self.written_since_look >= LOOK_EVERY_BYTES {
            let keep = self.shared.limits.keep_free_bytes;
            let shared = self.shared.clone();
            let free = || shared.files.free_bytes().unwrap_or(0);
            let lacking = keep.saturating_sub(free());
            if lacking > 0 {
                self.make_room(lacking + LOOK_EVERY_BYTES);
            }
            if free() < keep {
                self.pause();
                return false;
            }
            self.written_since_look = 0;
        }
        self.paused = None;
        self.shared.full.store(false, Ordering::Relaxed);
        // If another process is making room, do not write far beyond the quota meanwhile.
        self.shared.used_bytes.load(Ordering::Relaxed) <= quota.saturating_add(quota / 8)
    }

    fn count(&mut self) {
        let mut used = 0u64;
        self.shared.files.walk(|entry| used += entry.bytes);
        self.shared.used_bytes.store(used, Ordering::Relaxed);
        self.counted = Some(Instant::now());
        self.written_since_count = 0;
    }

    /// Removes the least recently used blocks, `excess_bytes` in all.
    fn make_room(&mut self, excess_bytes: u64) {
        let files = &self.shared.files;
        let _lock = match files.lock() {
            Ok(Some(lock)) => lock,
            Ok(None) | Err(_) => return,
        };
        let mut sample: Vec<(SystemTime, u64)> = Vec::new();
        let (mut seen, mut total) = (0usize, 0u64);
        files.walk(|entry| {
            seen += 1;
            total += entry.bytes;
            if sample.len() < SAMPLE {
                sample.push((entry.used, entry.bytes));
            } else if let Some(slot) = sample.get_mut(spread(seen) % seen.max(1)) {
                *slot = (entry.used, entry.bytes);
            }
        });
        let oldest = old_until(&mut sample, excess_bytes, total);
        let (mut freed, mut removed) = (0u64, 0u64);
        files.walk(|entry| {
            let is_old = oldest.is_some_and(|oldest| entry.used <= oldest);
            if is_old && freed < excess_bytes && std::fs::remove_file(&entry.path).is_ok() {
                freed += entry.bytes;
                removed += 1;
            }
        });
        tracing::debug!(place = files.place(), freed, removed, "made room");
        self.shared
            .counters
            .evicted
            .fetch_add(removed, Ordering::Relaxed);
        let left = total.saturating_sub(freed);
        self.shared.used_bytes.store(left, Ordering::Relaxed);
        self.counted = Some(Instant::now());
        self.written_since_count = 0;
    }
}

/// A pseudo-random number for `n`: selects the slot of the sample to replace.
fn spread(n: usize) -> usize {
    (n as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29) as usize
}

/// Files last used before this time are to be removed, to free `excess` of `total` bytes.
fn old_until(sample: &mut [(SystemTime, u64)], excess: u64, total: u64) -> Option<SystemTime> {
    sample.sort_unstable_by_key(|(used, _)| *used);
    let sampled: u64 = sample.iter().map(|(_, bytes)| *bytes).sum();
    let share = u128::from(excess) * u128::from(sampled) / u128::from(total.max(1));
    let mut sum = 0u128;
    for (used, bytes) in sample.iter() {
        sum += u128::from(*bytes);
        if sum >= share {
            return Some(*used);
        }
    }
    sample.last().map(|(used, _)| *used)
}
