//! What is known of one file here: its newest inode, and what programs changed of its content and no log has yet.
//!
//! Local bytes lie in a file of this machine (a [`Spool`]), at their own offsets, so memory is bounded whatever programs
//! write. While a commit is under way nothing changes: whoever writes then waits for its end, and what it writes belongs to
//! the next one.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bulla::edit::{From, Moved, Overlay};
use tokio::sync::watch;
use trust::inode::{Content as InodeContent, Inode, Mtime};

use super::failure::Failure;
use crate::fuse::Error;

/// Bytes that are moved at a time inside of a spool.
const MOVE_BYTES: u64 = 1 << 20;

/// Where local bytes lie.
#[derive(Debug)]
pub struct Spools {
    directory: PathBuf,
    next: AtomicU64,
}

impl Spools {
    /// In this directory, which is made if it is not there. Files that an earlier process left are removed: what they hold
    /// was never acknowledged.
    ///
    /// # Errors
    /// The system's.
    pub fn in_directory(directory: PathBuf) -> io::Result<Spools> {
        std::fs::create_dir_all(&directory)?;
        for entry in std::fs::read_dir(&directory)? {
            std::fs::remove_file(entry?.path())?;
        }
        Ok(Spools {
            directory,
            next: AtomicU64::new(0),
        })
    }

    fn make(&self) -> io::Result<Spool> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.directory.join(number.to_string());
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        Ok(Spool { file, path })
    }
}

/// Local bytes of one file. Dropping it removes them.
#[derive(Debug)]
pub struct Spool {
    file: File,
    path: PathBuf,
}

impl Spool {
    /// Fills a buffer from an offset on.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    /// Moves bytes to another offset. The two places may overlap.
    fn move_bytes(&self, moved: &Moved) -> io::Result<()> {
        let Range { start, end } = moved.from;
        let mut buffer = vec![0; MOVE_BYTES.min(end - start) as usize];
        let mut done = 0;
        let all = end - start;
        while done < all {
            let bytes = MOVE_BYTES.min(all - done);
            let at = match moved.to > start {
                true => all - done - bytes,
                false => done,
            };
            let buffer = &mut buffer[..bytes as usize];
            self.read(start + at, buffer)?;
            self.write(moved.to + at, buffer)?;
            done += bytes;
        }
        Ok(())
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        // It is removed at the next start then.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Local changes of a file.
#[derive(Debug)]
pub struct Local {
    /// The version that they lie over.
    pub base: Arc<Inode>,
    /// What changed.
    pub overlay: Overlay,
    /// The bytes.
    pub spool: Arc<Spool>,
    /// When a program wrote last.
    pub mtime: Mtime,
    /// When the oldest of the changes was made.
    pub since: Instant,
    /// Handles that wrote.
    writers: HashSet<u64>,
}

/// Local changes as a commit takes them.
#[derive(Debug, Clone)]
pub struct Taken {
    /// The version that they lie over.
    pub base: Arc<Inode>,
    /// What changed.
    pub overlay: Overlay,
    /// The bytes.
    pub spool: Arc<Spool>,
    /// When a program wrote last.
    pub mtime: Mtime,
}

/// Where the bytes of a read are.
pub struct Plan {
    /// The version that shows where nothing is local.
    pub base: Arc<Inode>,
    /// The local bytes, if there are any.
    pub spool: Option<Arc<Spool>>,
    /// The stretches, in order.
    pub stretches: Vec<(Range<u64>, From)>,
}

/// What became of a commit.
pub enum Ended {
    /// The file has this inode at the end of this prefix of the log.
    Committed(Arc<Inode>, u64),
    /// The file has no name any more. What is local stays until nothing has the file open.
    Removed,
    /// It is not in the log, and will not be. What is local stays.
    Failed(String),
}

/// The newest inode of a file, and its local changes.
#[derive(Debug)]
pub struct Content {
    state: Mutex<State>,
    /// Counts the commits that have ended.
    ended: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    inode: Arc<Inode>,
    /// Size of the prefix of the log after which it is.
    at: u64,
    local: Option<Local>,
    is_committing: bool,
    /// Somebody has been told that the commit under way fails.
    is_late: bool,
    is_removed: bool,
    /// Handles that must be told that bytes are lost, and why.
    owed: HashSet<u64>,
    why: String,
    /// Why the last commit failed.
    failed: Option<String>,
}

impl Content {
    /// A file as it is at the end of a prefix of the log.
    pub fn new(inode: Arc<Inode>, at: u64) -> Content {
        Content {
            state: Mutex::new(State {
                inode,
                at,
                local: None,
                is_committing: false,
                is_late: false,
                is_removed: false,
                owed: HashSet::new(),
                why: String::new(),
                failed: None,
            }),
            ended: watch::channel(0).0,
        }
    }

    /// The file has this inode at the end of a prefix of the log. An older one is left alone.
    pub fn see(&self, inode: Arc<Inode>, at: u64) {
        let mut state = lock(&self.state);
        if at >= state.at {
            (state.inode, state.at) = (inode, at);
        }
    }

    /// The newest inode, without local changes.
    pub fn inode(&self) -> Arc<Inode> {
        lock(&self.state).inode.clone()
    }

    /// The inode as programs see it: with the length and the time of local changes.
    pub fn shown(&self) -> Inode {
        let state = lock(&self.state);
        let mut shown = Inode::clone(&state.inode);
        if let Some(local) = &state.local {
            shown.size = local.overlay.len();
            shown.mtime = local.mtime;
        }
        if state.is_removed {
            shown.links = 0;
        }
        shown
    }

    /// The last name is gone.
    pub fn removed(&self) {
        lock(&self.state).is_removed = true;
    }

    /// Whether something is local.
    pub fn is_changed(&self) -> bool {
        lock(&self.state).local.is_some()
    }

    /// Local bytes, and since when there are some.
    pub fn dirty(&self) -> Option<(u64, Instant)> {
        let state = lock(&self.state);
        let local = state.local.as_ref().filter(|_| !state.is_removed)?;
        Some((local.overlay.local_bytes(), local.since))
    }

    /// Changes the content here. Gives whether these are the first local changes; None while a commit is under way.
    ///
    /// # Errors
    /// [`Failure::Local`]; EINVAL if it is no regular file; those of `change`.
    pub fn change<T>(
        &self,
        spools: &Spools,
        (handle, now): (Option<u64>, Mtime),
        change: impl FnOnce(&mut Local) -> Result<T, Failure>,
    ) -> Result<Option<(T, bool)>, Failure> {
        let mut state = lock(&self.state);
        if state.is_committing {
            return Ok(None);
        }
        let is_first = state.local.is_none();
        if is_first {
            let base = state.inode.clone();
            let InodeContent::Regular(_) = base.content else {
                return Err(Error::InvalidArgument.into());
            };
            state.local = Some(Local {
                overlay: Overlay::over(base.size),
                spool: Arc::new(spools.make().map_err(Failure::Local)?),
                base,
                mtime: now,
                since: Instant::now(),
                writers: HashSet::new(),
            });
        }
        let Some(local) = &mut state.local else {
            return Err(Error::InvalidArgument.into());
        };
        let changed = change(local);
        if changed.is_err() && is_first {
            state.local = None;
        } else if changed.is_ok() {
            local.mtime = now;
            local.writers.extend(handle);
        }
        Ok(Some((changed?, is_first)))
    }

    /// Where the bytes of a read are.
    pub fn plan(&self, offset: u64, until: u64) -> Plan {
        let state = lock(&self.state);
        let (base, spool, overlay) = match &state.local {
            Some(local) => {
                let spool = Some(local.spool.clone());
                (local.base.clone(), spool, local.overlay.clone())
            }
            None => {
                let base = state.inode.clone();
                let overlay = Overlay::over(base.size);
                (base, None, overlay)
            }
        };
        drop(state);
        let mut stretches = Vec::new();
        let mut at = offset;
        while let Some((range, from)) = overlay.stretch(at, until) {
            at = range.end;
            stretches.push((range, from));
        }
        Plan {
            base,
            spool,
            stretches,
        }
    }

    /// Takes the local changes for a commit, which [`Content::end`] ends. None: there are none that the log should have,
    /// or a commit is under way.
    pub fn take(&self) -> Option<Taken> {
        let mut state = lock(&self.state);
        if state.is_committing || state.is_removed {
            return None;
        }
        let taken = state.local.as_ref().map(Local::taken)?;
        state.is_committing = true;
        state.is_late = false;
        state.failed = None;
        Some(taken)
    }

    /// The local changes, also those that a commit under way has taken.
    pub fn last(&self) -> Option<Taken> {
        let state = lock(&self.state);
        let local = state.local.as_ref().filter(|_| !state.is_removed);
        local.map(Local::taken)
    }

    /// During a commit: the file has other content meanwhile, and the local changes move onto it.
    ///
    /// # Errors
    /// The local file's.
    pub fn rebase(&self, inode: Arc<Inode>, at: u64) -> io::Result<Option<Taken>> {
        let mut state = lock(&self.state);
        if at >= state.at {
            (state.inode, state.at) = (inode.clone(), at);
        }
        let Some(local) = &mut state.local else {
            return Ok(None);
        };
        if let Some(moved) = local.overlay.rebase(inode.size) {
            local.spool.move_bytes(&moved)?;
        }
        local.base = inode;
        Ok(Some(local.taken()))
    }

    /// Whether somebody has been told that the commit under way fails.
    pub fn is_late(&self) -> bool {
        lock(&self.state).is_late
    }

    /// Ends a commit.
    pub fn end(&self, ended: Ended) {
        let mut state = lock(&self.state);
        state.is_committing = false;
        match ended {
            Ended::Committed(inode, at) => {
                state.local = None;
                if at >= state.at {
                    (state.inode, state.at) = (inode, at);
                }
            }
            Ended::Removed => state.is_removed = true,
            Ended::Failed(why) => {
                state.failed = Some(why.clone());
                state.owe(why);
            }
        }
        drop(state);
        self.ended.send_modify(|count| *count += 1);
    }

    /// Who waited for the commit under way waits no more: all that is local counts as lost, and each handle that wrote some
    /// of it is told once.
    pub fn give_up(&self, why: &str) {
        let mut state = lock(&self.state);
        if state.is_committing && !state.is_late {
            state.is_late = true;
            state.owe(why.to_owned());
        }
    }

    /// Why the last commit failed, if it did and none has begun since.
    pub fn failed(&self) -> Option<String> {
        lock(&self.state).failed.clone()
    }

    /// Why bytes of a handle are lost. It is told once.
    pub fn told(&self, handle: u64) -> Option<String> {
        let mut state = lock(&self.state);
        state.owed.remove(&handle).then(|| state.why.clone())
    }

    /// Waits until no commit is under way.
    pub async fn settled(&self) {
        let mut ended = self.ended.subscribe();
        while lock(&self.state).is_committing {
            if ended.changed().await.is_err() {
                return;
            }
        }
    }
}

impl State {
    fn owe(&mut self, why: String) {
        if let Some(local) = &mut self.local {
            self.owed.extend(local.writers.drain());
        }
        self.why = why;
    }
}

impl Local {
    /// Writes at an offset, or at the end. Gives the offset.
    pub fn write(&mut self, offset: Option<u64>, data: &[u8]) -> Result<u64, Failure> {
        let at = offset.unwrap_or(self.overlay.len());
        let end = at.checked_add(data.len() as u64);
        let end = end.filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or(Error::FileTooLarge)?;
        self.spool.write(at, data).map_err(Failure::Local)?;
        match offset {
            Some(_) => self.overlay.write(at..end),
            None => {
                self.overlay.append(data.len() as u64);
            }
        }
        Ok(at)
    }

    /// Makes a stretch zeros. With `keep` the file does not become longer.
    pub fn zero(&mut self, range: Range<u64>, keep: bool) -> Result<(), Failure> {
        let end = match keep {
            true => range.end.min(self.overlay.len()),
            false => range.end,
        };
        let mut at = range.start;
        while at < end {
            let bytes = MOVE_BYTES.min(end - at) as usize;
            self.write(Some(at), &vec![0; bytes])?;
            at += bytes as u64;
        }
        Ok(())
    }

    fn taken(&self) -> Taken {
        Taken {
            base: self.base.clone(),
            overlay: self.overlay.clone(),
            spool: self.spool.clone(),
            mtime: self.mtime,
        }
    }
}

/// Locks, also after a thread has panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
