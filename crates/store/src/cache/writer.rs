//! The thread that writes blocks and keeps the cache within its limits.
//!
//! A process appends to one segment, which it has locked. It goes on with a segment that another process left
//! before it was full, so that many short commands do not leave many small files. First come records, then their
//! keys: who reads a key finds its record. Nothing is synced.
//!
//! Room is made by removing the oldest segments. A block that is read from a segment that is about to be removed
//! is written again, so what is used stays (`DiskCache::used`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use trust::{Handle, Record};

use super::directory::{Listed, Writable};
use super::format::{HEADER_BYTES, KEY_BYTES, Key, MAX_KEYS};
use super::{Shared, Task};

/// The directory is listed again after this time, because other processes write too.
const LOOK_EVERY: Duration = Duration::from_secs(600);
/// It is also listed after writing this many bytes, or this part (1/n) of the quota if that is less.
const LOOK_EVERY_BYTES: u64 = 16 << 20;
const LOOK_EVERY_PART: u64 = 64;
/// When there was too little space, it is listed again after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// A segment ends at this part (1/n) of the quota, within these bounds, bytes.
const SEGMENT_PART: u64 = 64;
const SEGMENT_BYTES: std::ops::RangeInclusive<u64> = (64 << 10)..=(64 << 20);
/// Records that are written together, bytes.
const BATCH_BYTES: usize = 1 << 20;
/// Room in the queue that one batch gives back, bytes.
const MAX_BATCH_ROOM: usize = 8 << 20;
/// Segments are looked at for one to go on with from the newest on.
const GO_ON_AMONG: usize = 8;
/// Blocks of the oldest part (1/n) of the quota are written again when they are used.
const OLD_PART: u64 = 4;

/// The state of the thread.
pub(super) struct Writer {
    shared: Arc<Shared>,
    /// The segment that is being written.
    active: Option<Writable>,
    batch: Batch,
    looked: Option<Instant>,
    written_since_look: u64,
    /// Do not write before this time: there was no space.
    paused: Option<Instant>,
    /// Go on only with segments above this number: one with it has damage, and what heals it must rank higher.
    damaged: Option<u64>,
    /// Number of the first segment that this process wrote.
    first: Option<u64>,
}

/// Records that are to be written together.
#[derive(Default)]
struct Batch {
    records: BytesMut,
    /// Offsets are from the beginning of `records`.
    keys: Vec<Key>,
    room: usize,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>) -> Writer {
        Writer {
            shared,
            active: None,
            batch: Batch::default(),
            looked: None,
            written_since_look: 0,
            paused: None,
            damaged: None,
            first: None,
        }
    }

    /// Works until all senders are gone and all tasks are done.
    pub(super) fn run(mut self, tasks: &Receiver<Task>) {
        match self.shared.segments.refresh() {
            Ok(listed) => {
                let used = listed.iter().map(|it| it.disk_bytes).sum();
                self.shared.used_bytes.store(used, Ordering::Relaxed);
            }
            Err(error) => {
                tracing::warn!(place = self.shared.place(), %error, "cannot list the cache");
            }
        }
        self.shared.loaded();
        while let Ok(task) = tasks.recv() {
            self.take(task);
            while self.batch.records.len() < self.batch_bytes()
                && self.batch.room < MAX_BATCH_ROOM
                && let Ok(task) = tasks.try_recv()
            {
                self.take(task);
            }
            self.write();
        }
    }

    fn take(&mut self, task: Task) {
        match task {
            Task::Put(record) => {
                self.batch.room += super::queued_bytes(&record.frame);
                if self.is_wanted(&record.handle) {
                    self.batch.add(&record);
                }
            }
            Task::Sync(answer) => {
                self.write();
                // The caller may have gone.
                let _ = answer.send(self.sync());
            }
            Task::Damaged(segment) => {
                self.damaged = self.damaged.max(Some(segment.number));
                if self
                    .active
                    .as_ref()
                    .is_some_and(|active| active.name.number <= segment.number)
                {
                    self.write();
                    self.active = None;
                }
            }
        }
    }

    /// Whether a block is not in the cache, or only in a segment that will be removed soon.
    fn is_wanted(&self, handle: &Handle) -> bool {
        let place = self.shared.segments.find(handle);
        let waits = self.batch.keys.iter().any(|key| key.handle == *handle);
        !waits && place.is_none_or(|place| self.shared.is_old(place.segment))
    }

    /// Writes the batch.
    fn write(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        if !batch.keys.is_empty() {
            let kept = match self.has_room(batch.records.len() as u64) {
                true => self.append_what_fits(&batch),
                false => 0,
            };
            let refused = batch.keys.len() - kept;
            let counters = &self.shared.counters;
            counters.written.fetch_add(kept as u64, Ordering::Relaxed);
            counters
                .refused
                .fetch_add(refused as u64, Ordering::Relaxed);
        }
        self.shared.room.give(std::mem::take(&mut batch.room));
        // Its memory is used again.
        batch.records.clear();
        batch.keys.clear();
        self.batch = batch;
    }

    /// Appends the records of a batch, all or as many as the disk has space for. Gives their number.
    fn append_what_fits(&mut self, batch: &Batch) -> usize {
        if self.append(&batch.keys, &batch.records).is_ok() {
            return batch.keys.len();
        }
        for (number, key) in batch.keys.iter().enumerate() {
            let record = key.offset as usize..(key.offset + key.len) as usize;
            let record = batch.records.get(record).unwrap_or_default();
            if let Err(error) = self.append(std::slice::from_ref(key), record) {
                tracing::warn!(place = self.shared.place(), %error, "cannot write a block");
                self.active = None;
                self.pause();
                return number;
            }
        }
        batch.keys.len()
    }

    /// Appends records to the segment of this process. What does not fit takes no space.
    fn append(&mut self, keys: &[Key], records: &[u8]) -> std::io::Result<()> {
        if self.is_active_full(keys.len()) {
            self.active = None;
        }
        let file = match &mut self.active {
            Some(file) => file,
            none => {
                let file = self.shared.begin(self.damaged)?;
                self.first.get_or_insert(file.name.number);
                none.insert(file)
            }
        };
        let first = keys.first().map_or(0, |key| key.offset);
        // A segment is far shorter than 4 GiB.
        let begin = file.blocks_len as u32;
        let moved = keys.iter().map(|key| Key {
            offset: begin.saturating_add(key.offset - first),
            ..*key
        });
        let moved: Vec<Key> = moved.collect();
        let mut bytes = Vec::with_capacity(keys.len() * KEY_BYTES);
        moved.iter().for_each(|key| key.put(&mut bytes));
        file.append(records, &bytes)?;
        let mut index = self.shared.segments.change();
        let slot = index.slot(file.name, true);
        for key in &moved {
            index.insert(slot, key);
        }
        index.read_until(slot, file.keys_len);
        drop(index);
        let written = (records.len() + bytes.len()) as u64;
        self.shared.used_bytes.fetch_add(written, Ordering::Relaxed);
        self.written_since_look = self.written_since_look.saturating_add(written);
        Ok(())
    }

    /// Makes the segments durable that this process may have written.
    fn sync(&self) -> std::io::Result<u64> {
        let (Some(first), mut synced) = (self.first, 0) else {
            return Ok(0);
        };
        let directory = &self.shared.segments.directory;
        for listed in directory.list()? {
            if listed.name.number >= first && listed.is_own {
                directory.sync(listed.name)?;
                synced += 1;
            }
        }
        directory.sync_names()?;
        Ok(synced)
    }

    /// When a batch is written, bytes.
    fn batch_bytes(&self) -> usize {
        BATCH_BYTES.min(self.shared.segment_bytes() as usize)
    }

    fn is_active_full(&self, more_keys: usize) -> bool {
        let most_keys = (HEADER_BYTES + MAX_KEYS * KEY_BYTES) as u64;
        self.active.as_ref().is_some_and(|file| {
            file.blocks_len >= self.shared.segment_bytes()
                || file.keys_len + (more_keys * KEY_BYTES) as u64 > most_keys
        })
    }

    fn pause(&mut self) {
        self.shared.full.store(true, Ordering::Relaxed);
        self.paused = Some(Instant::now() + LOOK_AGAIN);
        self.looked = None;
    }

    /// Whether `bytes` more may be written; makes room first if needed.
    fn has_room(&mut self, bytes: u64) -> bool {
        if self.paused.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        let quota = self.shared.limits.quota_bytes;
        let every = look_every_bytes(quota);
        let due = self.looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY);
        if (due || self.written_since_look.saturating_add(bytes) > every)
            && !self.look(bytes.max(every))
        {
            self.pause();
            return false;
        }
        self.paused = None;
        self.shared.full.store(false, Ordering::Relaxed);
        // If another process is making room, do not write far beyond the quota meanwhile.
        let used = self.shared.used_bytes.load(Ordering::Relaxed);
        used.saturating_add(bytes) <= quota.saturating_add(quota / 8)
    }

    /// Counts what the cache takes, and makes room for `bytes` more. False if the disk has no space for them.
    fn look(&mut self, bytes: u64) -> bool {
        let quota = self.shared.limits.quota_bytes;
        let keep = self.shared.limits.keep_free_bytes;
        let shared = self.shared.clone();
        let directory = &shared.segments.directory;
        let Ok(listed) = self.shared.segments.refresh() else {
            return false;
        };
        let name = self.active.as_ref().map(|active| active.name);
        if name.is_some_and(|name| listed.iter().all(|it| it.name != name)) {
            // Somebody removed it.
            self.active = None;
        }
        let used: u64 = listed.iter().map(|it| it.disk_bytes).sum();
        let lacking = keep.saturating_sub(directory.free_bytes().unwrap_or(0));
        let lacking = match lacking {
            0 => 0,
            lacking => lacking.saturating_add(bytes),
        };
        let excess = used.saturating_add(bytes).saturating_sub(quota);
        let excess = excess.max(lacking);
        self.shared.used_bytes.store(used, Ordering::Relaxed);
        if excess > 0 || self.shared.segments.index().is_full() {
            self.make_room(&listed, excess);
        }
        let is_tight = excess > 0 || used > quota - quota / OLD_PART;
        self.shared.old_below.store(
            if is_tight {
                old_below(&listed, used / OLD_PART)
            } else {
                0
            },
            Ordering::Relaxed,
        );
        self.looked = Some(Instant::now());
        self.written_since_look = 0;
        directory.free_bytes().unwrap_or(0) >= keep
    }

    /// Removes the oldest segments: `excess_bytes` in all, and one at least.
    fn make_room(&mut self, listed: &[Listed], excess_bytes: u64) {
        let began = Instant::now();
        let segments = &self.shared.segments;
        let _lock = match segments.directory.lock() {
            Ok(Some(lock)) => lock,
            Ok(None) | Err(_) => return,
        };
        let (mut freed, mut removed, mut lost) = (0u64, 0u64, 0u64);
        for segment in listed {
            if removed > 0 && freed >= excess_bytes {
                break;
            }
            if self
                .active
                .as_ref()
                .is_some_and(|it| it.name == segment.name)
            {
                // It is the oldest of this process and locked by it.
                self.active = None;
            }
            // If this fails, another process writes it, or another user owns it.
            if segments.directory.remove(segment.name).is_ok() {
                freed = freed.saturating_add(segment.disk_bytes);
                let blocks = segments.forget(segment.name) as u64;
                removed += blocks;
                if self.first.is_some_and(|first| segment.name.number >= first) {
                    lost += blocks;
                }
            }
        }
        let took = began.elapsed();
        tracing::debug!(
            place = self.shared.place(),
            freed,
            removed,
            ?took,
            "made room"
        );
        let counters = &self.shared.counters;
        counters.evicted.fetch_add(removed, Ordering::Relaxed);
        counters.lost.fetch_add(lost, Ordering::Relaxed);
        self.shared
            .used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                Some(used.saturating_sub(freed))
            })
            .ok();
        segments.change().purge();
    }
}

impl Shared {
    /// When a segment is full, bytes.
    fn segment_bytes(&self) -> u64 {
        let part = self.limits.quota_bytes / SEGMENT_PART;
        part.clamp(*SEGMENT_BYTES.start(), *SEGMENT_BYTES.end())
    }

    /// Goes on with a segment that is not full, or begins one: above this number, if there is one.
    fn begin(&self, damaged: Option<u64>) -> std::io::Result<Writable> {
        let segments = &self.segments;
        let listed = segments.refresh()?;
        let most_bytes = self.segment_bytes() / 2;
        let most_keys = (MAX_KEYS * KEY_BYTES) as u64 / 2;
        let newest = listed.iter().rev().take(GO_ON_AMONG);
        let rest = newest.filter(|it| {
            it.is_own
                && it.blocks_len <= most_bytes
                && it.keys_len <= most_keys
                && damaged.is_none_or(|damaged| it.name.number > damaged)
        });
        for listed in rest {
            // If this fails, another process writes it, or it is no segment.
            if let Ok(file) = segments.directory.go_on(listed.name) {
                // Another process may have written on it since.
                segments.read_new_keys(&Listed {
                    keys_len: file.keys_len,
                    ..*listed
                });
                return Ok(file);
            }
        }
        let number = listed.iter().map(|it| it.name.number).max();
        let number = number
            .max(damaged)
            .map_or(0, |number| number.saturating_add(1));
        segments.directory.begin(segments.directory.name(number))
    }
}

impl Batch {
    fn add(&mut self, record: &Record) {
        let offset = self.records.len() as u32;
        record.put(&mut self.records);
        self.keys.push(Key {
            handle: record.handle,
            offset,
            len: record.len() as u32,
        });
    }
}

fn look_every_bytes(quota_bytes: u64) -> u64 {
    (quota_bytes / LOOK_EVERY_PART).min(LOOK_EVERY_BYTES)
}

/// The number below which segments are old: together they take `old_bytes`.
fn old_below(listed: &[Listed], old_bytes: u64) -> u64 {
    let mut sum = 0u64;
    for segment in listed {
        sum = sum.saturating_add(segment.disk_bytes);
        if sum > old_bytes {
            return segment.name.number;
        }
    }
    0
}
