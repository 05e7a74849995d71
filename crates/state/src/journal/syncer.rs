//! Appending, and the thread that calls fsync. It starts an fsync half a second after the first record that
//! is not fsynced. So the disk has the other half of the second.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::format::{Header, Record};
use super::{MAX_JOURNAL_BYTES, SYNC_WITHIN};
use crate::error::{StateError, failed, stalled};
use crate::lock::LockFile;

/// Time from the first record to the start of the fsync.
const SYNC_AFTER: Duration = Duration::from_millis(500);

/// How a file is made durable.
pub(super) type Fsync = Box<dyn Fn(&File) -> io::Result<()> + Send + Sync>;

/// State that appending callers and the thread share.
pub(super) struct Shared {
    path: PathBuf,
    fsync: Fsync,
    tail: Mutex<Tail>,
    changed: Condvar,
}

struct Tail {
    file: Arc<File>,
    end: u64,
    synced: u64,
    /// Time of the first append that no fsync covers.
    waiting_since: Option<Instant>,
    /// The same for the fsync that is under way.
    syncing_since: Option<Instant>,
    /// A caller waits for an fsync.
    is_urgent: bool,
    /// The file is being replaced.
    is_replaced: bool,
    is_closed: bool,
    /// A write or fsync failed, so the content of the disk is unknown.
    broken: Option<StateError>,
    _lock: Option<LockFile>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Tail {
    /// Time at which the oldest record that is not fsynced was appended.
    fn oldest(&self) -> Option<Instant> {
        self.syncing_since.or(self.waiting_since)
    }

    fn is_overdue(&self) -> bool {
        self.oldest()
            .is_some_and(|since| since.elapsed() >= SYNC_WITHIN)
    }
}

impl Shared {
    pub(super) fn start(
        path: &Path,
        file: File,
        end: u64,
        lock: LockFile,
        fsync: Fsync,
    ) -> Result<Arc<Shared>, StateError> {
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            fsync,
            tail: Mutex::new(Tail {
                file: Arc::new(file),
                end,
                synced: end,
                waiting_since: None,
                syncing_since: None,
                is_urgent: false,
                is_replaced: false,
                is_closed: false,
                broken: None,
                _lock: Some(lock),
            }),
            changed: Condvar::new(),
        });
        let syncs = shared.clone();
        std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || syncs.run())
            .map_err(|e| failed(path, e))?;
        Ok(shared)
    }

    /// End of the file, and end of its fsynced part.
    pub(super) fn lengths(&self) -> (u64, u64) {
        let tail = self.tail();
        (tail.end, tail.synced)
    }

    /// Tells the thread to fsync the rest and to end.
    pub(super) fn close(&self) {
        self.tail().is_closed = true;
        self.changed.notify_all();
    }

    /// Writes a record, unless `begin` says that the caller has left.
    pub(super) fn append(
        &self,
        deadline: Instant,
        record: &[u8],
        begin: impl FnOnce() -> bool,
    ) -> Result<(), StateError> {
        let blocked = |tail: &Tail| tail.is_replaced || tail.is_overdue();
        let mut tail = self.wait_while(deadline, blocked)?;
        let record = Record::new(tail.end, record).map_err(|why| failed(&self.path, why))?;
        let end = tail.end + record.len() as u64;
        if end > MAX_JOURNAL_BYTES {
            return Err(failed(&self.path, "the journal is full"));
        }
        if !begin() {
            return Err(stalled(&self.path, false));
        }
        let mut bytes = Vec::with_capacity(record.len());
        record.write(&mut bytes);
        if let Err(error) = tail.file.write_all_at(&bytes, tail.end) {
            // The written part of it must not remain after a later, shorter record.
            if let Err(error) = tail.file.set_len(tail.end) {
                tail.broken = Some(failed(&self.path, error));
            }
            return Err(failed(&self.path, error));
        }
        tail.end = end;
        if tail.waiting_since.is_none() {
            tail.waiting_since = Some(Instant::now());
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Waits until the records that were appended before are fsynced.
    pub(super) fn sync(&self, deadline: Instant) -> Result<(), StateError> {
        let end = {
            let mut tail = self.wait_while(deadline, |tail| tail.is_replaced)?;
            tail.is_urgent |= tail.synced < tail.end;
            tail.end
        };
        self.changed.notify_all();
        // If the journal was rewritten meanwhile, it is durable and may be shorter.
        let lacks = |tail: &Tail| tail.synced < end.min(tail.end);
        self.wait_while(deadline, lacks).map(drop)
    }

    /// Puts the file that `make` makes in place of this one.
    pub(super) fn replace(
        &self,
        deadline: Instant,
        make: impl FnOnce() -> Result<(File, u64), StateError>,
    ) -> Result<(), StateError> {
        let busy = |tail: &Tail| tail.is_replaced || tail.syncing_since.is_some();
        self.wait_while(deadline, busy)?.is_replaced = true;
        // Without the mutex, so that other callers wait no longer than their own deadlines.
        let made = make();
        let mut tail = self.tail();
        tail.is_replaced = false;
        let made = made.map(|(file, end)| {
            tail.file = Arc::new(file);
            (tail.end, tail.synced) = (end, end);
            tail.waiting_since = None;
        });
        if made.is_err() && !self.is_in_place(&tail.file) {
            let why = "replaced, but not durably: open it again";
            tail.broken = Some(failed(&self.path, why));
        }
        drop(tail);
        self.changed.notify_all();
        made
    }

    /// Whether the path still names `file`.
    fn is_in_place(&self, file: &File) -> bool {
        let there = std::fs::metadata(&self.path).ok();
        let here = file.metadata().ok();
        let same = |(a, b): (Metadata, Metadata)| (a.dev(), a.ino()) == (b.dev(), b.ino());
        there.zip(here).is_some_and(same)
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while `blocked`, until the deadline.
    fn wait_while(
        &self,
        deadline: Instant,
        blocked: impl Fn(&Tail) -> bool,
    ) -> Result<MutexGuard<'_, Tail>, StateError> {
        let mut tail = self.tail();
        loop {
            if let Some(broken) = &tail.broken {
                return Err(broken.clone());
            }
            if !blocked(&tail) {
                return Ok(tail);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(stalled(&self.path, false));
            }
            let waited = self.changed.wait_timeout(tail, left);
            tail = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The thread: fsyncs when records are due, until the journal is closed or broken.
    fn run(&self) {
        let mut turn = 0;
        while let Some((file, end)) = self.next_due() {
            let synced = (self.fsync)(&file).and_then(|()| {
                turn += 1;
                // Becomes durable with the next fsync. Until then the other slot counts.
                Header::note(&file, end, turn)
            });
            let mut tail = self.tail();
            tail.syncing_since = None;
            match synced {
                Ok(()) => tail.synced = end,
                // The kernel may have dropped the pages: a second fsync would prove nothing.
                Err(error) => tail.broken = Some(failed(&self.path, error)),
            }
            drop(tail);
            self.changed.notify_all();
        }
        // The thread releases the lock, after the last fsync.
        self.tail()._lock = None;
    }

    /// Waits until an fsync is due. `None` when there is nothing left to do.
    fn next_due(&self) -> Option<(Arc<File>, u64)> {
        let mut tail = self.tail();
        loop {
            if tail.broken.is_some() && tail.is_closed {
                return None;
            }
            let since = tail.waiting_since.filter(|_| tail.broken.is_none());
            let left = match since {
                None if tail.is_closed => return None,
                // Nothing to do until the next call.
                None => SYNC_WITHIN,
                Some(_) if tail.is_closed || tail.is_urgent => Duration::ZERO,
                Some(since) => SYNC_AFTER.saturating_sub(since.elapsed()),
            };
            if left.is_zero() && !tail.is_replaced {
                tail.syncing_since = tail.waiting_since.take();
                tail.is_urgent = false;
                return Some((tail.file.clone(), tail.end));
            }
            let pause = left.max(Duration::from_millis(1));
            tail = match since {
                None => self.changed.wait(tail),
                Some(_) => {
                    let waited = self.changed.wait_timeout(tail, pause);
                    waited.map(|(tail, _)| tail).map_err(|e| {
                        let (tail, _) = e.into_inner();
                        PoisonError::new(tail)
                    })
                }
            }
            .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
