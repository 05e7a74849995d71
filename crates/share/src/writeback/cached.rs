//! One file as the programs of a device see it: its newest version, their changes over it, and who waits for what.
//!
//! The changed bytes lie with the caller, at their own offsets ([`Kinds::Bytes`]). While work on them is under way (a
//! commit, or a move onto another version) nothing changes: who writes then waits for its end, and what it writes belongs to
//! the next commit.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use trust::inode::{Content, Inode, Time};
use trust_shared::calls::ctime_after;

use super::effect::{Effect, Kinds, Taken, Timer, Why, Work};
use super::overlay::{From, Overlay};

/// More local bytes than this move onto another version only when they are committed: others wait meanwhile.
const MAX_MOVED_BYTES: u64 = 16 << 20;

/// Changes of programs over a version of a file.
#[derive(Debug)]
pub struct Local<B> {
    /// The version that they lie over.
    pub base: Arc<Inode>,
    /// What changed.
    pub overlay: Overlay,
    /// The bytes.
    pub bytes: B,
    /// When a program wrote last.
    pub mtime: Time,
    /// When the oldest of the changes was made, by a clock of the caller, milliseconds.
    pub since_ms: u64,
    /// Handles that wrote.
    pub(super) writers: HashSet<u64>,
    /// Somebody has been told that these changes are lost.
    pub(super) is_lost: bool,
    /// The content of a commit whose outcome is not known.
    pub(super) sent: Option<Content>,
}

/// Where the bytes of a read are.
#[derive(Debug)]
pub struct Plan<B> {
    /// The version that shows where nothing is local.
    pub base: Arc<Inode>,
    /// The local bytes, if there are any.
    pub bytes: Option<B>,
    /// The stretches, in order.
    pub stretches: Vec<(Range<u64>, From)>,
}

/// What came of a change.
#[derive(Debug, PartialEq, Eq)]
pub enum Changed<T> {
    /// It is made.
    Made(T),
    /// Work is under way: try it again after [`Cached::settle`].
    Busy,
}

/// A file that this device knows.
#[derive(Debug)]
pub struct Cached<K: Kinds> {
    pub(super) inode: Arc<Inode>,
    /// Size of the prefix of the log after which it is.
    pub(super) at: u64,
    pub(super) local: Option<Local<K::Bytes>>,
    /// What is under way.
    pub(super) work: Option<Work>,
    /// Another try is planned.
    pub(super) is_planned: bool,
    /// What is local is so old that it is to be committed, once no other work is under way.
    pub(super) is_due: bool,
    pub(super) is_removed: bool,
    /// The server has refused blocks that travelled: they are stored before the next op.
    pub(super) stores_first: bool,
    /// Open handles.
    pub(super) opens: usize,
    /// Handles that must be told that bytes are lost, and why.
    owed: HashSet<u64>,
    loss: Option<K::Loss>,
    pub(super) waiters: BTreeMap<u64, Waits<K::Waiter>>,
    next_ticket: u64,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waits<W> {
    /// It waits until what is local is in the log. Else until no work is under way.
    pub(super) for_commit: bool,
    /// Who is told of lost bytes.
    pub(super) handle: Option<u64>,
    pub(super) waiter: W,
}

impl<K: Kinds> Cached<K> {
    /// A file as it is at the end of a prefix of the log.
    pub fn new(inode: Arc<Inode>, at: u64) -> Cached<K> {
        Cached {
            inode,
            at,
            local: None,
            work: None,
            is_planned: false,
            is_due: false,
            is_removed: false,
            stores_first: false,
            opens: 0,
            owed: HashSet::new(),
            loss: None,
            waiters: BTreeMap::new(),
            next_ticket: 0,
        }
    }

    /// The file has this inode at the end of a prefix of the log. An older one is left alone.
    pub fn see(&mut self, inode: &Arc<Inode>, at: u64) {
        if at >= self.at {
            (self.inode, self.at) = (inode.clone(), at);
        }
    }

    /// The newest inode, without local changes.
    pub fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    /// The inode as programs see it: with the length and the times of local changes.
    pub fn shown(&self) -> Inode {
        let mut shown = Inode::clone(&self.inode);
        if let Some(local) = &self.local {
            shown.size = local.overlay.len();
            shown.mtime = local.mtime;
            // The same that the commit gives it: git keeps the times that it sees before close.
            shown.ctime = Some(ctime_after(shown.ctime, local.mtime));
        }
        if self.is_removed {
            shown.links = 0;
        }
        shown
    }

    /// The last name is gone.
    pub fn removed(&mut self) {
        self.is_removed = true;
    }

    /// One more handle is open.
    pub fn opened(&mut self) {
        self.opens += 1;
    }

    /// A handle is closed. Gives whether local changes went with it: the file has no name, and nobody has it open.
    pub fn closed(&mut self, handle: u64) -> bool {
        self.opens = self.opens.saturating_sub(1);
        self.owed.remove(&handle);
        let is_over = self.opens == 0 && self.is_over() && self.work.is_none();
        is_over && self.local.take().is_some()
    }

    /// The local changes.
    pub fn local(&self) -> Option<&Local<K::Bytes>> {
        self.local.as_ref()
    }

    /// Whether what is local stays on its version whatever others write: somebody was told that it is lost, or the outcome of
    /// its commit is not known.
    pub fn is_held(&self) -> bool {
        let holds = |local: &Local<K::Bytes>| local.is_lost || local.sent.is_some();
        self.local.as_ref().is_some_and(holds)
    }

    /// Whether programs see what is local over an older version than the newest.
    pub fn is_behind(&self) -> bool {
        let is_older = |local: &Local<K::Bytes>| local.base.content != self.inode.content;
        !self.is_over() && self.local.as_ref().is_some_and(is_older)
    }

    /// Local bytes that the log should have, and since when there are some.
    pub fn dirty(&self) -> Option<(u64, u64)> {
        let local = self.local.as_ref().filter(|_| !self.is_over())?;
        Some((local.overlay.local_bytes(), local.since_ms))
    }

    /// Changes the content here, at a time of the clock of this device. `place` makes a place for local bytes.
    ///
    /// # Errors
    /// Those of `place` and `change`; then programs see what they saw before.
    pub fn change<T, E>(
        &mut self,
        (handle, now, now_ms): (Option<u64>, Time, u64),
        place: impl FnOnce() -> Result<K::Bytes, E>,
        change: impl FnOnce(&mut Local<K::Bytes>) -> Result<T, E>,
    ) -> Result<(Changed<T>, Vec<Effect<K>>), E> {
        if self.work.is_some() {
            return Ok((Changed::Busy, Vec::new()));
        }
        let is_first = self.local.is_none();
        if is_first {
            self.local = Some(Local {
                overlay: Overlay::over(self.inode.size),
                bytes: place()?,
                base: self.inode.clone(),
                mtime: now,
                since_ms: now_ms,
                writers: HashSet::new(),
                is_lost: false,
                sent: None,
            });
        }
        let Some(local) = &mut self.local else {
            return Ok((Changed::Busy, Vec::new()));
        };
        // What comes now is not in the commit whose outcome is unknown. Its writers were told that it is lost.
        local.sent = None;
        let changed = match change(local) {
            Ok(changed) => changed,
            Err(why) => {
                self.local = self.local.take().filter(|_| !is_first);
                return Err(why);
            }
        };
        local.mtime = now;
        local.writers.extend(handle);
        let effects = match is_first {
            true => vec![Effect::Dirty, Effect::Wait(Timer::Dirty)],
            false => Vec::new(),
        };
        Ok((Changed::Made(changed), effects))
    }

    /// Where the bytes of a read are.
    pub fn plan(&self, offset: u64, until: u64) -> Plan<K::Bytes> {
        let clean;
        let (overlay, base, bytes) = match &self.local {
            Some(local) => (&local.overlay, &local.base, Some(local.bytes.clone())),
            None => {
                clean = Overlay::over(self.inode.size);
                (&clean, &self.inode, None)
            }
        };
        let mut stretches = Vec::new();
        let mut at = offset;
        while let Some((range, from)) = overlay.stretch(at, until) {
            at = range.end;
            stretches.push((range, from));
        }
        Plan {
            base: base.clone(),
            bytes,
            stretches,
        }
    }

    /// The local changes that the log should have, also those that are on their way.
    pub fn taken(&self) -> Option<Taken<K::Bytes>> {
        self.every_change().filter(|_| !self.is_over())
    }

    /// The same of a file without a name, too.
    pub(super) fn every_change(&self) -> Option<Taken<K::Bytes>> {
        let local = self.local.as_ref()?;
        Some(Taken {
            base: local.base.clone(),
            overlay: local.overlay.clone(),
            bytes: local.bytes.clone(),
            mtime: local.mtime,
        })
    }

    /// A program opens the file, which has this inode: what is local moves onto it, so that the program sees both. Not what
    /// somebody was told is lost. Call it when no work is under way, and wait for the end of what it begins.
    pub fn show(&mut self, inode: &Arc<Inode>, at: u64) -> Vec<Effect<K>> {
        let is_newest = at >= self.at;
        self.see(inode, at);
        let is_short = |local: &Local<K::Bytes>| local.overlay.local_bytes() <= MAX_MOVED_BYTES;
        let may_move = !self.is_held() && self.local.as_ref().is_some_and(is_short);
        let moves = is_newest && self.work.is_none() && may_move;
        match moves {
            true => self.rebase(inode, Why::Shown),
            false => Vec::new(),
        }
    }

    /// Waits until no work is under way. Gives a ticket for [`Cached::expired`], or the waiter back: nothing is.
    ///
    /// # Errors
    /// The waiter: it need not wait.
    pub fn settle(&mut self, waiter: K::Waiter) -> Result<u64, K::Waiter> {
        match self.work {
            None => Err(waiter),
            Some(_) => Ok(self.wait(false, None, waiter)),
        }
    }

    /// Begins a commit, unless there is nothing or work is under way, and waits until all changes so far are in the log:
    /// programs change nothing while work is under way.
    /// `handle` is told of bytes that were lost before.
    pub fn commit(&mut self, handle: Option<u64>, waiter: K::Waiter) -> (u64, Vec<Effect<K>>) {
        let ticket = self.wait(true, handle, waiter);
        let mut effects = self.begin();
        effects.extend(self.wake(None));
        (ticket, effects)
    }

    /// Whether a handle must be told that bytes are lost.
    pub fn owes(&self, handle: u64) -> bool {
        self.owed.contains(&handle)
    }

    /// Whether a commit would have nothing to do, and nothing to tell a handle.
    pub fn is_clean_for(&self, handle: Option<u64>) -> bool {
        !handle.is_some_and(|handle| self.owes(handle)) && (self.local.is_none() || self.is_over())
    }

    /// A request waits no more. If it waited for a commit that is under way, all that is local counts as lost, and each
    /// handle that wrote some of it is told once: by this request, or by its next one.
    pub fn expired(&mut self, ticket: u64, loss: K::Loss) -> Vec<Effect<K>> {
        let Some(waits) = self.waiters.remove(&ticket) else {
            return Vec::new();
        };
        if waits.for_commit && self.work.is_some() {
            self.owe(loss.clone());
        }
        let loss = self.owed_loss(waits.handle).unwrap_or(loss);
        vec![Effect::Answer(waits.waiter, Err(loss))]
    }

    /// The program that waits is gone. What its handle must be told is told later.
    pub fn cancel(&mut self, ticket: u64) {
        self.waiters.remove(&ticket);
    }

    /// A handle was to be told of lost bytes, and its program was gone.
    pub fn not_told(&mut self, handle: Option<u64>) {
        self.owed.extend(handle.filter(|_| self.loss.is_some()));
    }

    fn wait(&mut self, for_commit: bool, handle: Option<u64>, waiter: K::Waiter) -> u64 {
        self.next_ticket += 1;
        let waits = Waits {
            for_commit,
            handle,
            waiter,
        };
        self.waiters.insert(self.next_ticket, waits);
        self.next_ticket
    }

    /// Answers those that need not wait any more; if a commit has failed, all that wait for it.
    pub(super) fn wake(&mut self, failed: Option<&K::Loss>) -> Vec<Effect<K>> {
        let is_clean = self.local.is_none() || self.is_over();
        let is_idle = self.work.is_none();
        let is_over = |waits: &Waits<K::Waiter>| match waits.for_commit {
            false => is_idle,
            true => is_clean || (is_idle && failed.is_some()),
        };
        let over = self.waiters.extract_if(.., |_, waits| is_over(waits));
        let over: Vec<Waits<K::Waiter>> = over.map(|(_, waits)| waits).collect();
        let answer = |waits: Waits<K::Waiter>| {
            let owed = self.owed_loss(waits.handle);
            let failed = failed.filter(|_| waits.for_commit);
            let answer = match owed.or_else(|| failed.cloned()) {
                Some(loss) => Err(loss),
                None => Ok(()),
            };
            Effect::Answer(waits.waiter, answer)
        };
        over.into_iter().map(answer).collect()
    }

    /// Whether somebody waits for a commit, or what is local is old enough for one.
    pub(super) fn wants_commit(&self) -> bool {
        self.is_due || self.waiters.values().any(|waits| waits.for_commit)
    }

    /// Why bytes of a handle are lost. It is told once.
    fn owed_loss(&mut self, handle: Option<u64>) -> Option<K::Loss> {
        match self.owed.remove(&handle?) {
            true => self.loss.clone(),
            false => None,
        }
    }

    /// Whether nobody wants what is local any more once it is closed: the file has no name. What somebody was told is lost
    /// becomes a conflict copy all the same.
    pub(super) fn is_over(&self) -> bool {
        self.is_removed && !self.local.as_ref().is_some_and(|local| local.is_lost)
    }

    /// All that is local counts as lost.
    pub(super) fn owe(&mut self, loss: K::Loss) {
        if let Some(local) = &mut self.local {
            local.is_lost = true;
            self.owed.extend(local.writers.drain());
        }
        self.loss = Some(loss);
    }
}

impl<B> Local<B> {
    /// A program makes a stretch zeros. With `keep` the file does not become longer.
    pub fn zero(&mut self, range: Range<u64>, keep: bool) {
        if !keep && range.end > self.overlay.len() {
            self.overlay.truncate(range.end);
        }
        self.overlay.zero(range);
    }

    /// A program makes the file at least this long.
    pub fn reach(&mut self, end: u64) {
        if self.overlay.len() < end {
            self.overlay.truncate(end);
        }
    }
}
