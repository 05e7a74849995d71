//! An append-only file whose records are fsynced at most a second later: the second class of durability
//! (design `README.md`, law 7). For floors that change too often for one fsync each.
//!
//! | what happens | what is kept |
//! |---|---|
//! | the process is killed | every record that was appended: each is written before `append` returns |
//! | the power fails | every record but those of the last second |
//! | the disk stops answering | no further record is accepted once one is a second late |
//! | an fsync fails | no further record is accepted; the journal must be opened again |
//!
//! The journal's own thread calls fsync, so it needs no runtime. `format` has the bytes of the file.

mod format;
mod syncer;
#[cfg(test)]
mod tests;

use std::collections::TryReserveError;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::blocking::{self, AbandonOnDrop, Claim};
use crate::error::{StateError, failed};
use crate::lock::{self, LockFile};
use crate::private;
use format::{Header, Record};
use syncer::Shared;

pub use format::MAX_RECORD_BYTES;

/// Maximum time from appending a record to its fsync.
pub const SYNC_WITHIN: Duration = Duration::from_secs(1);

/// Maximum length of a journal. [`Journal::rewrite`] makes it short again.
pub const MAX_JOURNAL_BYTES: u64 = 256 << 20;

/// An open journal. Only one process at a time can open it. Clones share it. When the last clone is dropped,
/// the remaining records are fsynced and the lock is released.
#[derive(Debug, Clone)]
pub struct Journal {
    open: Arc<Open>,
}

/// Ends the thread that calls fsync when the last clone of the journal is dropped.
#[derive(Debug)]
struct Open {
    path: PathBuf,
    shared: Arc<Shared>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// Result of opening a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replayed {
    /// Number of complete records.
    pub records: u64,
    /// Bytes after them that were cut off: a record that was being written when the process or the machine
    /// stopped.
    pub torn_bytes: u64,
}

impl Journal {
    /// Opens the journal at `path`, or creates it, and passes its records to `replay` in order. A torn tail
    /// is cut off. The replayed records are fsynced before this returns. Waits on this thread until
    /// `deadline`, also for another process that has the journal open.
    ///
    /// # Errors
    /// [`StateError::Locked`] when another process has it open. [`StateError::Failed`] when it is not a
    /// journal, or lacks records that had been fsynced; then it stays unchanged.
    pub fn open(
        path: &Path,
        deadline: Instant,
        replay: impl FnMut(&[u8]),
    ) -> Result<(Journal, Replayed), StateError> {
        Journal::open_with(path, deadline, replay, Box::new(|file| file.sync_data()))
    }

    /// Like [`Journal::open`], with another fsync: tests make it wait or fail.
    fn open_with(
        path: &Path,
        deadline: Instant,
        replay: impl FnMut(&[u8]),
        fsync: syncer::Fsync,
    ) -> Result<(Journal, Replayed), StateError> {
        if let Some(directory) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            private::create_directory(directory)?;
        }
        let lock = LockFile::take(lock::beside(path), deadline)?;
        if !path.try_exists().map_err(|e| failed(path, e))? {
            drop(make(path, &[])?);
        }
        private::tighten(path)?;
        let file = private::open_file(path)?;
        let (end, replayed) = recover(path, &file, replay)?;
        let shared = Shared::start(path, file, end, lock, fsync)?;
        let path = path.to_owned();
        Ok((
            Journal {
                open: Arc::new(Open { path, shared }),
            },
            replayed,
        ))
    }

    /// Appends a record on the pool of blocking threads. It is written when this returns, and fsynced at
    /// most [`SYNC_WITHIN`] later. Records are in the order in which calls return; a caller that needs an
    /// order waits for each.
    ///
    /// At the deadline the call returns. A record is never written if writing had not begun by then, or when
    /// the returned future is dropped.
    ///
    /// # Errors
    /// [`StateError::Failed`] for a record that is empty or longer than [`MAX_RECORD_BYTES`], for a full
    /// journal, and after a failed write or fsync; [`StateError::Stalled`] when the fsync of an earlier
    /// record is late and still not done at the deadline.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn append(&self, deadline: Instant, record: Vec<u8>) -> Result<(), StateError> {
        let claim = Claim::default();
        let _abandon = AbandonOnDrop(claim.clone());
        let (shared, begin) = (self.open.shared.clone(), claim.clone());
        let work = move || shared.append(deadline, &record, || begin.begin());
        blocking::run(&claim, &self.open.path, deadline, work).await?
    }

    /// As [`Journal::append`], on this thread.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn append_blocking(&self, deadline: Instant, record: &[u8]) -> Result<(), StateError> {
        self.open.shared.append(deadline, record, || true)
    }

    /// Waits until all records that were appended before are fsynced. The fsync starts at once.
    ///
    /// # Errors
    /// [`StateError::Stalled`] at the deadline; [`StateError::Failed`] when the fsync fails.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn sync(&self, deadline: Instant) -> Result<(), StateError> {
        let shared = self.open.shared.clone();
        let work = move || shared.sync(deadline);
        blocking::run(&Claim::default(), &self.open.path, deadline, work).await?
    }

    /// As [`Journal::sync`], on this thread.
    ///
    /// # Errors
    /// As [`Journal::sync`].
    pub fn sync_blocking(&self, deadline: Instant) -> Result<(), StateError> {
        self.open.shared.sync(deadline)
    }

    /// Replaces all records by `records`, durably. For a journal whose content can be written shorter. Waits
    /// on this thread; appends of other threads wait too.
    ///
    /// # Errors
    /// As [`Journal::append`]; then the journal is unchanged.
    pub fn rewrite(&self, deadline: Instant, records: &[&[u8]]) -> Result<(), StateError> {
        let path = &self.open.path;
        self.open.shared.replace(deadline, || make(path, records))
    }

    /// Length of the file, bytes.
    pub fn len_bytes(&self) -> u64 {
        self.open.shared.lengths().0
    }

    /// Length of the part of the file that is fsynced, bytes.
    pub fn synced_bytes(&self) -> u64 {
        self.open.shared.lengths().1
    }
}

/// Makes a journal of `records`, durably, and puts it in place of the one at `path`. Returns it with its
/// length.
fn make(path: &Path, records: &[&[u8]]) -> Result<(File, u64), StateError> {
    let too_large = |_: TryReserveError| failed(path, "the records do not fit in memory");
    let mut bytes = vec![0; format::HEADER_BYTES];
    for record in records {
        let at = bytes.len() as u64;
        let record = Record::new(at, record).map_err(|why| failed(path, why))?;
        bytes.try_reserve(record.len()).map_err(too_large)?;
        record.write(&mut bytes);
    }
    let end = bytes.len() as u64;
    if end > MAX_JOURNAL_BYTES {
        return Err(failed(path, "the journal would be too long"));
    }
    bytes[..format::HEADER_BYTES].copy_from_slice(&Header::bytes(end));
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let write = || -> std::io::Result<File> {
        let file = private::create_file(Path::new(&temporary))?;
        file.write_all_at(&bytes, 0)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        Ok(file)
    };
    let file = write().map_err(|e| failed(path, e))?;
    private::sync_parent(path)?;
    Ok((file, end))
}

/// Reads the records, cuts off a torn tail, and makes the rest durable. Returns its end.
fn recover(
    path: &Path,
    file: &File,
    replay: impl FnMut(&[u8]),
) -> Result<(u64, Replayed), StateError> {
    let io = |e: std::io::Error| failed(path, e);
    let len = file.metadata().map_err(io)?.len();
    if len > MAX_JOURNAL_BYTES {
        return Err(failed(path, "longer than any journal"));
    }
    let durable = Header::read(file).map_err(io)?;
    let Some(durable) = durable else {
        return Err(failed(path, "not a journal, or its header is damaged"));
    };
    let (end, records) = format::records(file, replay).map_err(io)?;
    if end < durable {
        let lost = durable - end;
        let words = format!("damaged: {lost} bytes that were fsynced are missing or changed");
        return Err(failed(path, words));
    }
    file.set_len(end).map_err(io)?;
    file.sync_all().map_err(io)?;
    let torn_bytes = len.saturating_sub(end);
    Ok((
        end,
        Replayed {
            records,
            torn_bytes,
        },
    ))
}
