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
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bulla::edit::{From, Moved, Overlay};
use tokio::sync::watch;
use trust::inode::{Content as InodeContent, Inode, Time};
use trust_shared::calls::ctime_after;

use super::failure::Failure;
use super::loss::Loss;
use crate::fuse::Error;

/// More local bytes than this move onto other content only when they are committed, because others wait meanwhile.
const MAX_MOVED_BYTES: u64 = 16 << 20;
/// Bytes that are copied at a time.
const COPY_BYTES: u64 = 1 << 20;

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

    /// Copies local bytes of another spool to the offsets at which they are after a rebase.
    fn copy(&self, from: &Spool, overlay: &Overlay, moved: &Moved) -> io::Result<()> {
        let mut buffer = vec![0; COPY_BYTES as usize];
        for range in overlay.local() {
            // A range may meet the appended bytes, which move.
            let stays = range.start..range.end.min(moved.from.start);
            let moves = range.start.max(moved.from.start)..range.end;
            let to = |at: u64| moved.to.saturating_add(at.saturating_sub(moved.from.start));
            for (range, is_moved) in [(stays, false), (moves, true)] {
                let mut at = range.start;
                while at < range.end {
                    let bytes = COPY_BYTES.min(range.end - at);
                    let buffer = &mut buffer[..bytes as usize];
                    from.read(at, buffer)?;
                    self.write(if is_moved { to(at) } else { at }, buffer)?;
                    at += bytes;
                }
            }
        }
        Ok(())
    }

    /// Gives the file another name, under which it stays.
    pub fn keep_as(&self, path: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, path)
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        // It is gone if it was kept. If it cannot be removed, the next start does it.
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
    pub mtime: Time,
    /// When the oldest of the changes was made.
    pub since: Instant,
    /// Handles that wrote.
    writers: HashSet<u64>,
    /// Somebody has been told that these changes are lost.
    is_lost: bool,
    /// The content of a commit whose outcome is not known.
    sent: Option<InodeContent>,
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
    pub mtime: Time,
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
    /// It has no effect. What is local stays.
    Failed(Loss),
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
    /// Another try is planned.
    is_planned: bool,
    /// Counts the changes; up to which of them is committed, or of no use any more.
    generation: u64,
    committed: u64,
    is_removed: bool,
    /// Open handles.
    opens: usize,
    /// Handles that must be told that bytes are lost, and why.
    owed: HashSet<u64>,
    loss: Option<Loss>,
    /// Why the last commit failed.
    failed: Option<Loss>,
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
                is_planned: false,
                generation: 0,
                committed: 0,
                is_removed: false,
                opens: 0,
                owed: HashSet::new(),
                loss: None,
                failed: None,
            }),
            ended: watch::channel(0).0,
        }
    }

    /// The file has this inode at the end of a prefix of the log. An older one is left alone.
    pub fn see(&self, inode: Arc<Inode>, at: u64) {
        lock(&self.state).see(&inode, at);
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
            // The same that the commit gives it: git keeps the times that it sees before close.
            shown.ctime = Some(ctime_after(shown.ctime, local.mtime));
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

    /// One more handle is open.
    pub fn opened(&self) {
        lock(&self.state).opens += 1;
    }

    /// A handle is closed. Gives whether local changes went with it: the file has no name, and nobody has it open.
    pub fn closed(&self, handle: u64) -> bool {
        let mut state = lock(&self.state);
        state.opens = state.opens.saturating_sub(1);
        state.owed.remove(&handle);
        let is_over = state.opens == 0 && state.is_over() && !state.is_committing;
        is_over && state.local.take().is_some()
    }

    /// Whether something is local.
    pub fn is_changed(&self) -> bool {
        lock(&self.state).local.is_some()
    }

    /// Local bytes, and since when there are some.
    pub fn dirty(&self) -> Option<(u64, Instant)> {
        let state = lock(&self.state);
        let local = state.local.as_ref().filter(|_| !state.is_over())?;
        Some((local.overlay.local_bytes(), local.since))
    }

    /// Changes the content here. Gives whether these are the first local changes; None while a commit is under way.
    ///
    /// # Errors
    /// [`Failure::Local`]; EINVAL if it is no regular file; those of `change`.
    pub fn change<T>(
        &self,
        spools: &Spools,
        (handle, now): (Option<u64>, Time),
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
                is_lost: false,
                sent: None,
            });
        }
        let Some(local) = &mut state.local else {
            return Err(Error::InvalidArgument.into());
        };
        // What comes now is not in the commit whose outcome is unknown.
        local.is_lost |= local.sent.take().is_some();
        let changed = change(local);
        if changed.is_err() && is_first {
            state.local = None;
        } else if changed.is_ok() {
            local.mtime = now;
            local.writers.extend(handle);
            state.generation += 1;
        }
        Ok(Some((changed?, is_first)))
    }

    /// Where the bytes of a read are.
    pub fn plan(&self, offset: u64, until: u64) -> Plan {
        let state = lock(&self.state);
        let mut stretches = Vec::new();
        let mut at = offset;
        let mut list = |overlay: &Overlay| {
            while let Some((range, from)) = overlay.stretch(at, until) {
                at = range.end;
                stretches.push((range, from));
            }
        };
        let (base, spool) = match &state.local {
            Some(local) => {
                list(&local.overlay);
                (local.base.clone(), Some(local.spool.clone()))
            }
            None => {
                list(&Overlay::over(state.inode.size));
                (state.inode.clone(), None)
            }
        };
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
        if state.is_committing || state.is_over() {
            return None;
        }
        let taken = state.taken()?;
        state.is_committing = true;
        state.failed = None;
        Some(taken)
    }

    /// The local changes, also those that a commit under way has taken.
    pub fn last(&self) -> Option<Taken> {
        let state = lock(&self.state);
        state.taken().filter(|_| !state.is_over())
    }

    /// During a commit: the file has other content meanwhile, and the local changes move onto it.
    ///
    /// # Errors
    /// The local file's. Nothing has moved then.
    pub fn rebase(&self, spools: &Spools, inode: Arc<Inode>, at: u64) -> io::Result<Option<Taken>> {
        let mut state = lock(&self.state);
        state.see(&inode, at);
        state.move_base(spools, inode)?;
        Ok(state.taken())
    }

    /// A program opens the file, which has this inode: what is local moves onto it, so that the program sees both. Not what
    /// somebody was told is lost.
    ///
    /// # Errors
    /// The local file's. Nothing has moved then.
    pub fn move_base(&self, spools: &Spools, inode: Arc<Inode>, at: u64) -> io::Result<()> {
        let mut state = lock(&self.state);
        let is_newest = at >= state.at;
        state.see(&inode, at);
        let may_move = |local: &Local| {
            let is_short = local.overlay.local_bytes() <= MAX_MOVED_BYTES;
            !local.is_lost && local.sent.is_none() && is_short
        };
        match state.local.as_ref().is_some_and(may_move) && is_newest && !state.is_committing {
            true => state.move_base(spools, inode),
            false => Ok(()),
        }
    }

    /// Whether what is local may only go onto the content that it was made of: somebody was told that it is lost.
    pub fn is_lost(&self) -> bool {
        lock(&self.state)
            .local
            .as_ref()
            .is_some_and(|local| local.is_lost)
    }

    /// Remembers the content of a commit whose outcome is not known.
    pub fn sent(&self, content: InodeContent) {
        if let Some(local) = &mut lock(&self.state).local {
            local.sent = Some(content);
        }
    }

    /// The content of the last commit whose outcome is not known.
    pub fn last_sent(&self) -> Option<InodeContent> {
        let state = lock(&self.state);
        state.local.as_ref()?.sent.clone()
    }

    /// Counts the changes so far.
    pub fn generation(&self) -> u64 {
        lock(&self.state).generation
    }

    /// Whether all changes up to this count are committed, or of no use any more.
    pub fn has_committed(&self, generation: u64) -> bool {
        let state = lock(&self.state);
        state.committed >= generation || state.local.is_none() || state.is_over()
    }

    /// Ends a commit. Gives whether nothing is local any more.
    pub fn end(&self, ended: Ended) -> bool {
        let mut state = lock(&self.state);
        state.is_committing = false;
        match ended {
            Ended::Committed(inode, at) => {
                state.local = None;
                state.committed = state.generation;
                state.see(&inode, at);
            }
            Ended::Removed => {
                state.is_removed = true;
                if state.opens == 0 {
                    state.local = None;
                }
            }
            Ended::Failed(loss) => {
                state.failed = Some(loss.clone());
                state.owe(loss);
            }
        }
        let is_clean = state.local.is_none();
        drop(state);
        self.ended.send_modify(|count| *count += 1);
        is_clean
    }

    /// Who waited for the commit under way waits no more: all that is local counts as lost, and each handle that wrote some
    /// of it is told once.
    pub fn give_up(&self, loss: Loss) {
        let mut state = lock(&self.state);
        if state.is_committing {
            state.owe(loss);
        }
    }

    /// Whether another try is to be planned: none is yet.
    pub fn plans_retry(&self) -> bool {
        !std::mem::replace(&mut lock(&self.state).is_planned, true)
    }

    /// The planned try begins.
    pub fn retries(&self) {
        lock(&self.state).is_planned = false;
    }

    /// Why the last commit failed, if it did and none has begun since.
    pub fn failed(&self) -> Option<Loss> {
        lock(&self.state).failed.clone()
    }

    /// Why bytes of a handle are lost. It is told once.
    pub fn told(&self, handle: u64) -> Option<Loss> {
        let mut state = lock(&self.state);
        match state.owed.remove(&handle) {
            true => state.loss.clone(),
            false => None,
        }
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
    /// Whether nobody wants what is local any more once it is closed: the file has no name. What somebody was told is lost
    /// becomes a conflict copy all the same.
    fn is_over(&self) -> bool {
        self.is_removed && !self.local.as_ref().is_some_and(|local| local.is_lost)
    }

    fn owe(&mut self, loss: Loss) {
        if let Some(local) = &mut self.local {
            local.is_lost = true;
            self.owed.extend(local.writers.drain());
        }
        self.loss = Some(loss);
    }

    fn see(&mut self, inode: &Arc<Inode>, at: u64) {
        if at >= self.at {
            (self.inode, self.at) = (inode.clone(), at);
        }
    }

    fn taken(&self) -> Option<Taken> {
        let local = self.local.as_ref()?;
        Some(Taken {
            base: local.base.clone(),
            overlay: local.overlay.clone(),
            spool: local.spool.clone(),
            mtime: local.mtime,
        })
    }

    /// Moves the local changes onto another version. Readers keep the bytes as they were.
    fn move_base(&mut self, spools: &Spools, inode: Arc<Inode>) -> io::Result<()> {
        let Some(local) = &mut self.local else {
            return Ok(());
        };
        if local.base.content == inode.content {
            local.base = inode;
            return Ok(());
        }
        let mut overlay = local.overlay.clone();
        if let Some(moved) = overlay.rebase(inode.size) {
            let spool = spools.make()?;
            spool.copy(&local.spool, &local.overlay, &moved)?;
            local.spool = Arc::new(spool);
        }
        (local.overlay, local.base) = (overlay, inode);
        Ok(())
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
    pub fn zero(&mut self, range: Range<u64>, keep: bool) {
        if !keep && range.end > self.overlay.len() {
            self.overlay.truncate(range.end);
        }
        self.overlay.zero(range);
    }
}

/// Locks, also after a thread has panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
