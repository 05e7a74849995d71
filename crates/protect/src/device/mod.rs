//! A protected device in operation: the engine and the threads that run its actors.
//!
//! Readers, writers and flushes run in their callers' threads; a flush commits itself, so that one sync serves all
//! flushes that wait. Writers wait while too much is unsettled. One thread commits what nobody flushes, some write
//! home, one settles and checkpoints.

mod detach;
mod scrubbing;
#[cfg(test)]
mod tests;
mod threads;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::beside::Beside;
use crate::block::{Block, BlockError};
use crate::core::{BLOCK_BYTES, Seq};
use crate::engine::{Admission, Engine, EngineError};

pub use scrubbing::{Blocks, LogDefect, LogScrub, Part};

/// When the background work is done.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// What is accepted is durable after so long, without a flush.
    pub commit: Duration,
    /// What is on the data device is synced after so long.
    pub settle: Duration,
    /// Without writes for so long, the log's content is written home.
    pub idle: Duration,
    /// The log's content is written home while more of the ring than this is in use, in percent.
    pub full_percent: u64,
    /// Bytes written to the data device after which it is synced.
    pub settle_bytes: u64,
    /// Threads that write to the data device.
    pub home_threads: usize,
    /// How often to look whether another host has taken the log.
    pub session: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            commit: Duration::from_millis(100),
            settle: Duration::from_secs(1),
            idle: Duration::from_secs(2),
            full_percent: 50,
            settle_bytes: 16 << 20,
            home_threads: 3,
            session: Duration::from_secs(1),
        }
    }
}

/// A protected device in operation. Dropping it stops the threads as a crash would; [`detach`](Protected::detach) ends
/// the session in order.
pub struct Protected {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Counts since the device was attached.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Bytes that were read, by whoever uses the device.
    pub read_bytes: AtomicU64,
    /// Bytes that were written.
    pub written_bytes: AtomicU64,
    /// Flushes.
    pub flushes: AtomicU64,
    /// Bytes that were written to the data device.
    pub homed_bytes: AtomicU64,
    /// Syncs of the data device.
    pub settles: AtomicU64,
    /// Moves of the log's tail.
    pub checkpoints: AtomicU64,
}

struct Shared {
    engine: Engine,
    pace: Pace,
    traffic: Traffic,
    signals: Mutex<Signals>,
    /// Something happened that writers or flushes wait for.
    progress: Condvar,
    /// Work for the commit thread, the home threads, the settle thread.
    to_commit: Condvar,
    to_home: Condvar,
    to_settle: Condvar,
    /// Held by the one who commits.
    committing: Mutex<()>,
    /// Held during a sync of the data device and during a checkpoint.
    settling: Mutex<()>,
    /// Writes that wait for room, and trims.
    writes: Queue,
    trims: Queue,
    /// Bytes written home since the last sync of the data device.
    unsynced: AtomicU64,
    /// More is written in long runs than the log should hold: it goes home at once, as long as memory has it.
    streams: AtomicBool,
}

#[derive(Debug)]
struct Signals {
    stop: bool,
    /// Nothing is accepted any more.
    detached: bool,
    /// Everything goes home: somebody waits for room in the log, or the device is being detached.
    drain: bool,
    /// Somebody waits for a sync of the data device.
    settle_now: bool,
    /// Somebody waits for room in the log.
    checkpoint_now: bool,
    last_write: Instant,
    /// A frame was full before anybody flushed it.
    last_full_frame: Option<Instant>,
    /// Counts what is announced.
    progress: u64,
}

/// Requests that wait for the same. Only the one that has entered looks whether it can go on.
#[derive(Debug, Default)]
struct Queue {
    waiting: AtomicUsize,
    turn: Mutex<()>,
}

/// The right to go on first. Dropping it lets the next one enter.
struct Turn<'a> {
    waiting: &'a AtomicUsize,
    _turn: MutexGuard<'a, ()>,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    fn enter(&self) -> Turn<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Turn {
            waiting: &self.waiting,
            _turn: lock(&self.turn),
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits no longer than this, in case what it waits for happened unseen.
const WAIT: Duration = Duration::from_millis(200);

impl Protected {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system has no threads.
    pub fn start(engine: Engine, pace: Pace) -> std::io::Result<Protected> {
        engine.read_map_beside(Beside::start()?);
        let shared = Arc::new(Shared {
            engine,
            pace,
            traffic: Traffic::default(),
            signals: Mutex::new(Signals {
                stop: false,
                detached: false,
                drain: false,
                settle_now: false,
                checkpoint_now: false,
                last_write: Instant::now(),
                last_full_frame: None,
                progress: 0,
            }),
            progress: Condvar::new(),
            to_commit: Condvar::new(),
            to_home: Condvar::new(),
            to_settle: Condvar::new(),
            committing: Mutex::new(()),
            settling: Mutex::new(()),
            writes: Queue::default(),
            trims: Queue::default(),
            unsynced: AtomicU64::new(0),
            streams: AtomicBool::new(false),
        });
        let mut protected = Protected {
            shared,
            threads: Vec::new(),
        };
        protected.spawn("commit", Shared::commit_thread)?;
        protected.spawn("settle", Shared::settle_thread)?;
        for number in 0..pace.home_threads.max(1) {
            protected.spawn("home", move |shared| shared.home_thread(number))?;
        }
        Ok(protected)
    }

    fn spawn(
        &mut self,
        name: &str,
        run: impl FnOnce(&Shared) + Send + 'static,
    ) -> std::io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name(name.to_owned());
        self.threads.push(thread.spawn(move || run(&shared))?);
        Ok(())
    }

    /// The engine, for reports.
    pub fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// Counts since the device was attached.
    pub fn traffic(&self) -> &Traffic {
        &self.shared.traffic
    }

    fn stop(&mut self) {
        lock(&self.shared.signals).stop = true;
        self.shared.wake_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

impl Drop for Protected {
    fn drop(&mut self) {
        self.stop();
        // Nothing is on its way any more, so the next host need not wait, also where the device could not be detached.
        self.shared.engine.give_back();
    }
}

impl Block for Protected {
    fn bytes(&self) -> u64 {
        self.shared.engine.shape().bytes
    }

    fn sector_bytes(&self) -> u32 {
        self.shared.engine.shape().sector_bytes
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
        self.shared.engine.read(offset, into)?;
        add(&self.shared.traffic.read_bytes, into.len() as u64);
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), BlockError> {
        let step = self.shared.step_bytes();
        let mut done = 0;
        while done < from.len() {
            // Steps end at blocks, so that no block is merged twice.
            let at = offset + done as u64;
            let next = (at + step) / step * step;
            let bytes = (next - at).min((from.len() - done) as u64) as usize;
            let piece = &from[done..done + bytes];
            let shared = &self.shared;
            shared.admit(&shared.writes, |engine| engine.write(at, piece))?;
            done += bytes;
        }
        add(&self.shared.traffic.written_bytes, from.len() as u64);
        Ok(())
    }

    fn read_at_once(&self, offset: u64, into: &mut [u8]) -> Result<bool, BlockError> {
        let done = self.shared.engine.read_memory(offset, into)?;
        if done {
            add(&self.shared.traffic.read_bytes, into.len() as u64);
        }
        Ok(done)
    }

    fn write_at_once(&self, offset: u64, from: &[u8]) -> Result<bool, BlockError> {
        let shared = &self.shared;
        let is_whole = [offset, from.len() as u64]
            .iter()
            .all(|n| n.is_multiple_of(BLOCK_BYTES as u64));
        if !is_whole || !shared.writes.is_empty() {
            return Ok(false);
        }
        let done = shared.try_admit(|engine| engine.write(offset, from))?;
        if done {
            add(&shared.traffic.written_bytes, from.len() as u64);
        }
        Ok(done)
    }

    fn zero(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        let shared = &self.shared;
        shared.admit(&shared.trims, |engine| engine.zero(offset, bytes))
    }

    fn flush(&self) -> Result<(), BlockError> {
        add(&self.shared.traffic.flushes, 1);
        self.shared.flush()
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// What became of a frame that was to be committed.
enum Frame {
    Durable,
    /// There is nothing to commit.
    None,
    /// The log is full. So many checkpoints there were before that was found.
    Full(u64),
    Failed,
}

impl Shared {
    /// A write is accepted in steps of this size.
    fn step_bytes(&self) -> u64 {
        256 << 10
    }

    /// Accepts a request, after a wait if too much is unsettled. Requests that wait are accepted one after the other, and
    /// only the first of them looks whether it can go on.
    fn admit(
        &self,
        queue: &Queue,
        request: impl Fn(&Engine) -> Result<Admission, BlockError>,
    ) -> Result<(), BlockError> {
        if queue.is_empty() && self.try_admit(&request)? {
            return Ok(());
        }
        let _turn = queue.enter();
        loop {
            let seen = self.progress_so_far();
            if self.try_admit(&request)? {
                return Ok(());
            }
            let mut signals = lock(&self.signals);
            signals.settle_now |= self.engine.are_trims_many();
            self.to_commit.notify_one();
            self.to_settle.notify_one();
            self.wait_for_progress(signals, seen);
        }
    }

    /// Whether the request was accepted.
    fn try_admit(
        &self,
        request: impl Fn(&Engine) -> Result<Admission, BlockError>,
    ) -> Result<bool, BlockError> {
        if lock(&self.signals).detached {
            return Err(BlockError::Detached);
        }
        if request(&self.engine)? == Admission::Wait {
            return Ok(false);
        }
        lock(&self.signals).last_write = Instant::now();
        if self.engine.is_frame_staged() {
            self.to_commit.notify_one();
        }
        Ok(true)
    }

    fn progress_so_far(&self) -> u64 {
        lock(&self.signals).progress
    }

    /// Waits until something has happened since `seen`.
    fn wait_for_progress(&self, signals: MutexGuard<'_, Signals>, seen: u64) {
        if signals.progress == seen {
            let waited = self.progress.wait_timeout(signals, WAIT);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn flush(&self) -> Result<(), BlockError> {
        let seq = self.engine.newest();
        while !self.engine.is_durable(seq) {
            if let Some(why) = self.engine.failure() {
                return Err(BlockError::ReadOnly { why });
            }
            let seen = self.progress_so_far();
            self.commit(Some(seq));
            if self.engine.is_durable(seq) {
                break;
            }
            // What is left is too much to log again: it must be durable on the data device.
            let mut signals = lock(&self.signals);
            signals.settle_now = true;
            self.to_home.notify_all();
            self.to_settle.notify_one();
            self.wait_for_progress(signals, seen);
        }
        self.engine.anchor().map_err(|error| {
            self.engine.fail(&chain(&error));
            BlockError::ReadOnly { why: chain(&error) }
        })
    }

    /// Commits frames until `flush` is durable as far as the log can do it. If nobody waits, it leaves what does not fill
    /// a frame after the first one for the next.
    fn commit(&self, flush: Option<Seq>) {
        let _turn = lock(&self.committing);
        while self.engine.failure().is_none()
            && flush.is_none_or(|seq| !self.engine.is_durable(seq))
        {
            if flush.is_none() && (self.engine.must_settle_first() || self.must_home_first()) {
                return;
            }
            match self.commit_frame(flush) {
                Frame::Durable if flush.is_none() && !self.engine.is_frame_staged() => return,
                Frame::Durable | Frame::Failed => {}
                Frame::Full(before) if self.wait_for_checkpoint(before) => {}
                Frame::Full(_) | Frame::None => return,
            }
        }
    }

    fn commit_frame(&self, flush: Option<Seq>) -> Frame {
        let before = self.traffic.checkpoints.load(Ordering::Relaxed);
        if self.engine.is_frame_staged() {
            lock(&self.signals).last_full_frame = Some(Instant::now());
        }
        let Some(commit) = self.engine.commit_begin(flush) else {
            return Frame::None;
        };
        match self.engine.commit_run(&commit) {
            Ok(done) => {
                self.engine.commit_end(&done);
                if self.engine.has_home_work(self.redos_to_home(0)) {
                    self.to_home.notify_all();
                }
                self.announce();
                Frame::Durable
            }
            Err(EngineError::Full) => {
                self.engine.commit_abort(&commit);
                Frame::Full(before)
            }
            Err(error) => {
                self.engine.commit_abort(&commit);
                self.engine.fail(&chain(&error));
                self.announce();
                Frame::Failed
            }
        }
    }

    /// Waits until something went home; `settle`: asks for a sync of the data device too.
    fn wait_for_room_in_memory(&self, settle: bool) {
        let mut signals = lock(&self.signals);
        if !signals.stop {
            signals.settle_now |= settle;
            self.to_home.notify_all();
            self.to_settle.notify_one();
            let seen = signals.progress;
            self.wait_for_progress(signals, seen);
        }
    }

    /// Waits until there were more checkpoints than `before`, which was read before the log was found full: one may
    /// have moved the tail since, and none may follow. At most a second, because trying again does no harm. False if
    /// the device stops or fails before.
    fn wait_for_checkpoint(&self, before: u64) -> bool {
        let until = Instant::now() + Duration::from_secs(1);
        while self.traffic.checkpoints.load(Ordering::Relaxed) == before && Instant::now() < until {
            let mut signals = lock(&self.signals);
            if signals.stop || self.engine.failure().is_some() {
                return false;
            }
            signals.checkpoint_now = true;
            signals.drain = true;
            self.to_home.notify_all();
            self.to_settle.notify_one();
            let seen = signals.progress;
            self.wait_for_progress(signals, seen);
        }
        true
    }

    fn announce(&self) {
        lock(&self.signals).progress += 1;
        self.progress.notify_all();
    }

    fn wake_all(&self) {
        lock(&self.signals).progress += 1;
        self.progress.notify_all();
        self.to_commit.notify_all();
        self.to_home.notify_all();
        self.to_settle.notify_all();
    }
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
