//! The block server over real storage: a log on a device, a repository, a clock. Each step is a call on the caller's
//! thread: [`Storage::submit`] takes a batch, [`Storage::commit`] makes all batches that wait durable with one sync,
//! [`Storage::advance`] moves blocks to the segments. [`super::Server`] has a thread for each of the latter two.
//!
//! If the log fails, this server accepts nothing more: what is durable is not known without reading the log again.
//! One that is opened anew goes on. If the segments fail, a full disk for one, the log goes on until it is full.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use store::{Repository, Writer};
use trust::{Hasher, Record};
use wal::{Device as LogDevice, DigestKey, Key, Log, LogError, Lsn, PAGE_BYTES, VolumeId};

use super::batch::{Batch, Done};
use super::entries::Entries;
use super::error::Error;
use super::gather::{Direct, Job, Size, Straight, verify};
use super::queue::Queue;
use super::quota::Quota;
use super::record::{BLOCKS, Body, ENTRIES, MAX_TEMPORARY_BYTES, STORED};
use super::split::split;
use super::window::{Offer, Window};
use super::{Device, Session};
use crate::collect::book::Book;

/// The shortest ring of a temporary log: blocks of 128 KiB and more fit into a frame.
pub const MIN_RING_BYTES: u64 = 4 << 20;
const TICK: Duration = Duration::from_millis(100);
const DAY: Duration = Duration::from_hours(24);
pub(super) const PAGE: u64 = PAGE_BYTES as u64;
/// If a session stores more bytes of frames than this at a time, they go straight to the segments. Less is cheaper in the
/// log: one sync, and it may be dereferenced.
const MUCH_BYTES: u64 = 1 << 20;

/// Time since an instant that does not change, never going back.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// How a block server works.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How long a block may be dereferenced after it was stored, and how long it may come back after that.
    pub window: Duration,
    /// What each device may store.
    pub quota: Quota,
    /// At most so many bytes of blocks wait for the log, and so many for the segments.
    pub waiting_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            window: Duration::from_mins(1),
            quota: Quota::NONE,
            waiting_bytes: 64 << 20,
        }
    }
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing waits.
    Idle,
    /// Something was done; more may wait.
    Done,
    /// The log is full: nothing goes on before [`Storage::advance`] has freed space.
    Full,
}

/// See the head of this file.
pub struct Storage {
    pub(super) hasher: Hasher,
    clock: Clock,
    pub(super) log: Log,
    pub(super) digests: DigestKey,
    pub(super) repository: Repository,
    pub(super) window: Mutex<Window>,
    start: u32,
    waiting_bytes: u64,
    pub(super) queue: Mutex<Queue>,
    pub(super) entries: Mutex<Entries>,
    /// Held during a commit: batches become durable in the order in which they came.
    pub(super) committing: Mutex<()>,
    pub(super) direct: Mutex<Waiting<Direct>>,
    /// Held while blocks are written to segments.
    pub(super) writer: Mutex<Option<Writer>>,
    /// When the blocks of the segments were used last, if they are collected.
    pub(super) ages: OnceLock<Arc<Book>>,
}

/// What waits for a thread.
pub(super) struct Waiting<T> {
    pub items: VecDeque<T>,
    pub bytes: u64,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Waiting {
            items: VecDeque::new(),
            bytes: 0,
        }
    }
}

impl Storage {
    /// Makes an empty temporary log on a device. What was there is lost.
    ///
    /// # Errors
    /// [`Error::Log`]; [`Error::TooLarge`] never.
    pub fn format(
        device: &dyn LogDevice,
        key: &Key,
        volume: VolumeId,
        ring_bytes: u64,
    ) -> Result<(), Error> {
        if ring_bytes < MIN_RING_BYTES {
            let why = "a temporary log has 4 MiB or more";
            return Err(Error::Log(LogError::Invalid { why }));
        }
        let geometry = wal::Geometry {
            ring_bytes,
            areas: vec![(BLOCKS, 0), (ENTRIES, 0)],
        };
        wal::prepare(device, &geometry, &mut |_| {})?;
        Ok(wal::format(device, key, volume, &geometry, &[], &[])?)
    }

    /// Opens a block server. `entries` sees the orderer's records that the log holds, in order. Blocks that the log
    /// holds are kept: nobody can dereference them any more.
    ///
    /// # Errors
    /// [`Error::Log`] if the log cannot be opened or holds what this build does not know.
    pub fn open(
        device: Arc<dyn LogDevice>,
        key: &Key,
        repository: Repository,
        hasher: Hasher,
        clock: Clock,
        options: Options,
        entries: &mut dyn FnMut(wal::Entry),
    ) -> Result<Storage, Error> {
        let recovery = wal::open(device, key, None, wal::OpenOptions::default())?;
        let ticks = options.window.as_millis().div_ceil(TICK.as_millis());
        let ticks = u32::try_from(ticks).unwrap_or(u32::MAX).clamp(1, 1 << 24);
        let mut window = Window::new(ticks, options.quota);
        let wrong: HashSet<Lsn> = recovery.wrong_pages().iter().copied().collect();
        for entry in recovery.cursor(BLOCKS) {
            recover(&mut window, &entry?, &wrong)?;
        }
        let mut held = Entries::found(&recovery);
        for entry in recovery.cursor(ENTRIES) {
            let entry = entry?;
            held.appending(entry.frame);
            held.appended(entry.frame_end);
            entries(entry);
        }
        let digests = DigestKey::new(key, recovery.volume());
        Ok(Storage {
            log: recovery.finish(&[])?,
            start: window.start(),
            waiting_bytes: options.waiting_bytes,
            window: Mutex::new(window),
            hasher,
            clock,
            digests,
            repository,
            queue: Mutex::default(),
            entries: Mutex::new(held),
            committing: Mutex::default(),
            direct: Mutex::default(),
            writer: Mutex::default(),
            ages: OnceLock::new(),
        })
    }

    /// The temporary log, to look at. The orderer releases its entries by [`Storage::release_entries`].
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Most bytes of the orderer's records in a batch, counting eight more for each record.
    pub fn most_entry_bytes(&self) -> u64 {
        Size::most_header_bytes(self.log.max_frame_bytes())
    }

    /// Names blocks.
    pub fn hasher(&self) -> &Hasher {
        &self.hasher
    }

    /// The permanent store.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// Begins a session of a device.
    ///
    /// # Errors
    /// [`Error::TooManyDevices`].
    pub fn open_session(&self, device: Device) -> Result<Session, Error> {
        lock(&self.window).open(device)
    }

    /// Ends a session.
    pub fn close_session(&self, session: Session) {
        lock(&self.window).close(session);
    }

    /// Takes a batch; `done` is told when it is durable. If `done` is told an error, nothing of its entries was
    /// appended, but blocks may have been stored.
    ///
    /// Blocks go through the log, unless they are more than 1 MiB together with those of the session that wait for it: then
    /// the whole batch goes straight to the segments. So does a block that no frame of a short log holds.
    pub fn submit(&self, batch: Batch, done: Done) {
        let longest = self.longest_for(&batch);
        let most = self.log.max_frame_bytes();
        let most = (Size::most_bytes(most), Size::most_header_bytes(most));
        for (batch, done) in split(batch, done, longest, most) {
            if let Err((error, done)) = self.take(batch, done, longest) {
                done(Err(error));
            }
        }
    }

    /// The longest frame of this batch that goes through the log, bytes; 0: none does.
    fn longest_for(&self, batch: &Batch) -> usize {
        let frames = batch
            .blocks
            .iter()
            .map(|block| block.frame.as_bytes().len());
        let waiting = lock(&self.queue).bytes_of(batch.session);
        if frames.sum::<usize>() as u64 + waiting > MUCH_BYTES {
            return 0;
        }
        let fits = Size::most_block_bytes(self.log.max_frame_bytes());
        MAX_TEMPORARY_BYTES.min(fits as usize)
    }

    /// Takes batches of the orderer's records, which become durable in this order: a later one never without those
    /// before it. All of them wait, or none. However many blocks wait, they do: the orderer bounds what it gives.
    pub fn submit_entries(&self, session: Session, batches: Vec<(Vec<wal::Record>, Done)>) {
        let most = self.log.max_frame_bytes();
        let jobs = batches.into_iter();
        let jobs: Vec<Job> = jobs
            .map(|(entries, done)| Job::new(session, entries, done))
            .collect();
        if let Some(long) = jobs.iter().find(|job| !job.size().fits(most)) {
            let (bytes, most) = (long.size().bytes(), Size::most_bytes(most));
            let refuse = |job: Job| job.finish(Err(Error::TooLarge { bytes, most }));
            return jobs.into_iter().for_each(refuse);
        }
        let mut queue = lock(&self.queue);
        jobs.into_iter().for_each(|job| queue.push(job));
    }

    /// PSTORE: like a batch of one block that goes straight to the segments, however short it is.
    pub fn pstore(&self, session: Session, record: Record, done: Done) {
        let batch = Batch {
            session,
            blocks: vec![record],
            entries: Vec::new(),
        };
        if let Err((error, done)) = self.take(batch, done, 0) {
            done(Err(error));
        }
    }

    /// `longest`: frames of more bytes go straight to the segments.
    fn take(&self, batch: Batch, done: Done, longest: usize) -> Result<(), (Error, Done)> {
        let mut straight = Vec::new();
        let mut job = Job::new(batch.session, batch.entries, done);
        for (number, record) in batch.blocks.into_iter().enumerate() {
            if let Err(why) = verify(&self.hasher, &record) {
                let handle = record.handle;
                return Err((Error::WrongBlock { handle, why }, job.done));
            }
            let length = record.frame.as_bytes().len();
            if length > longest {
                straight.push(Straight {
                    number,
                    record,
                    is_new: false,
                });
                continue;
            }
            let offer = Offer {
                handle: record.handle,
                length: length as u32,
            };
            job.blocks.push((offer, record.frame.as_bytes().clone()));
            job.numbers.push(number);
        }
        if !job.size().fits(self.log.max_frame_bytes()) {
            let bytes = job.size().bytes();
            let most = Size::most_bytes(self.log.max_frame_bytes());
            return Err((Error::TooLarge { bytes, most }, job.done));
        }
        match straight.is_empty() {
            true => self.wait_for_log(job),
            false => self.wait_for_segments(job, straight),
        }
    }

    /// The batch waits for [`Storage::commit`].
    pub(super) fn wait_for_log(&self, job: Job) -> Result<(), (Error, Done)> {
        let mut queue = lock(&self.queue);
        if queue.bytes() + job.size().bytes() > self.waiting_bytes {
            return Err((too_busy(), job.done));
        }
        queue.push(job);
        Ok(())
    }

    fn wait_for_segments(&self, job: Job, blocks: Vec<Straight>) -> Result<(), (Error, Done)> {
        let bytes = blocks.iter().map(|block| block.record.len() as u64).sum();
        let mut direct = lock(&self.direct);
        if direct.bytes + bytes > self.waiting_bytes && !direct.items.is_empty() {
            return Err((too_busy(), job.done));
        }
        let charged = lock(&self.window).charge_direct(job.session, bytes, self.day());
        if let Err(error) = charged {
            return Err((error, job.done));
        }
        direct.bytes += bytes;
        direct.items.push_back(Direct { job, blocks });
        Ok(())
    }

    /// The time in ticks.
    pub(super) fn now(&self) -> u32 {
        let ticks = (self.clock)().as_millis() / TICK.as_millis();
        // 31 bits are six years.
        self.start
            .saturating_add(u32::try_from(ticks).unwrap_or(u32::MAX))
            & (u32::MAX >> 1)
    }

    pub(super) fn day(&self) -> u32 {
        u32::try_from((self.clock)().as_secs() / DAY.as_secs()).unwrap_or(u32::MAX)
    }

    /// Blocks in the temporary log.
    pub fn temporary_blocks(&self) -> usize {
        lock(&self.window).blocks()
    }

    /// Bytes of memory of the index of the temporary log.
    pub fn index_bytes(&self) -> usize {
        lock(&self.window).memory_bytes()
    }
}

/// Puts the blocks of a record that the log holds into the window. Blocks on damaged pages are lost, if no later record
/// has them.
fn recover(window: &mut Window, entry: &wal::Entry, wrong: &HashSet<Lsn>) -> Result<(), Error> {
    let lsn = entry.frame;
    let refused = |why| Error::Log(LogError::Integrity { lsn, why });
    if entry.kind != STORED {
        return Err(refused("a record of blocks is of a later kind"));
    }
    let bytes = entry.digests.len() * PAGE_BYTES;
    let body =
        Body::decode(&entry.body, bytes).map_err(|_| refused("a record of blocks is malformed"))?;
    let before = window.before();
    window.begin_group(0);
    for block in &body.blocks {
        let start = entry.payload.0 + u64::from(block.offset) / PAGE * PAGE;
        let end = entry.payload.0 + u64::from(block.offset) + u64::from(block.length);
        if (start..end)
            .step_by(PAGE_BYTES)
            .any(|page| wrong.contains(&Lsn(page)))
        {
            tracing::error!(handle = %block.handle, "the temporary log has lost a block: its page is damaged");
            continue;
        }
        let Some(device) = body.devices.get(block.device) else {
            return Err(refused("a record of blocks names no device"));
        };
        let offer = Offer {
            handle: block.handle,
            length: block.length,
        };
        window.recovered(*device, offer, block.offset)?;
    }
    window.appended(before, &[entry.payload], entry.frame_end);
    Ok(())
}

fn too_busy() -> Error {
    Error::Full {
        cause: "too many blocks wait".into(),
    }
}

/// Takes a lock. A thread that panicked holding it has left nothing half done that matters: clients are told when the
/// batches are dropped.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
