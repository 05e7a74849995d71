//! Locks of programs: what requests about them mean, and the calls of the log that [`share::locks`] wants.
//!
//! A task for each file that is locked makes one call at a time, and renews what is held. A lock is answered after the
//! newest version of the file is shown and the kernel has dropped older pages. An unlock, also by close, commits first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use share::client::{Answered, ClientError, Connection};
use share::files::{Answer, Call, FileRef, Refused};
use share::locks::{Ask, Came, Denied, Granted, Key, Locks, Owned, RENEWS, Request, clash};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::sleep_until;
use trust_shared::hold::{END, Family, Range};
use trust_shared::principal::FileId;

use super::core::{Core, defect, found, is_absent, place_of, used};
use super::failure::Failure;
use super::held_before::HeldBefore;
use super::lock_room::{Told, Waiter, since_boot};
use super::loss::Loss;
use super::spool::Node;
use crate::fuse::request::{Lock, LockKind, LockRequest};
use crate::fuse::{Error, INodeNo, LockOwner};

/// A call that failed is made again after this time.
const AGAIN: Duration = Duration::from_secs(1);
/// Requests that wait behind another one for other devices are tried again after this time.
const OTHERS: Duration = Duration::from_secs(2);
/// How often who waits for a lock looks whether the server is there.
const LOOK: Duration = Duration::from_millis(500);
/// How long the end of a mount waits until what it held is given up.
const GIVES_UP: Duration = Duration::from_secs(5);

/// A request that waits for a lock. If its program is gone before it is answered, it has no lock.
struct Waiting {
    core: Arc<Core>,
    key: Key,
    ticket: u64,
    lock: Owned,
    told: oneshot::Receiver<Told>,
    granted: Option<Granted>,
    is_done: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let Owned { owner, range, .. } = self.lock;
        let (key, ticket) = (self.key, self.ticket);
        let waited = self
            .core
            .locking(key, |locks| (locks.leave(key, ticket), Vec::new()));
        let told = || self.told.try_recv().ok()?.ok();
        let granted = self.granted.take().or_else(told);
        if let Some(granted) = granted.filter(|_| !waited) {
            self.core.locking(key, |locks| {
                ((), locks.give_back(key, (owner, &range), &granted.had))
            });
        }
    }
}

impl Core {
    /// Changes what is locked, tells those who need not wait any more, and sees to it that somebody makes the calls.
    fn locking<T>(
        self: &Arc<Self>,
        key: Key,
        change: impl FnOnce(&mut Locks<Waiter, Loss>) -> (T, Vec<(Waiter, Told)>),
    ) -> T {
        let mut state = self.locks.state();
        let (outcome, answers) = change(&mut state.locks);
        let begins = state.locks.is_to_be_driven(key);
        let driver = match begins {
            true => state
                .drivers
                .entry(key)
                .insert_entry(Arc::default())
                .get()
                .clone(),
            false => state.drivers.get(&key).cloned().unwrap_or_default(),
        };
        // What is granted is told at once: who does not wait any more gives it back.
        for (waiter, told) in answers {
            // A program that was killed waits no more.
            let _ = waiter.send(told);
        }
        drop(state);
        driver.notify_one();
        if begins {
            let ends = self.locks.ends.subscribe();
            self.runtime
                .spawn(self.clone().keep_locks(key, driver, ends));
        }
        outcome
    }

    /// F_SETLK, F_SETLKW, flock(2).
    ///
    /// # Errors
    /// EAGAIN, EDEADLK, ENOLCK; EIO if the server is away for the deadline.
    pub async fn set_lock(self: Arc<Self>, asked: LockRequest, waits: bool) -> Result<(), Failure> {
        let node = self.opened(asked.handle.0)?.node;
        let (key, lock) = about(&node, &asked);
        if asked.kind == LockKind::Unlock {
            return self.unlock(&node, key, lock).await;
        }
        if self.locks.state().locks.is_downgrade(key, &lock) {
            self.committed(&node, Some(lock.handle)).await?;
        }
        let (waiter, told) = oneshot::channel();
        let request = Request { lock, waits };
        self.locks.state().doubt_silence(key);
        let ticket = self.locking(key, |locks| locks.lock(key, request, waiter));
        let core = self.clone();
        let mut waiting = Waiting {
            core,
            key,
            ticket,
            lock,
            told,
            granted: None,
            is_done: false,
        };
        let told = tokio::select! {
            biased;
            told = &mut waiting.told => told,
            () = self.is_away(waits) => return Err(Error::TimedOut.into()),
        };
        let told = told.map_err(|_| Error::Io("a lock was forgotten".to_owned()))?;
        let shows = match told {
            Ok(granted) => waiting.granted.insert(granted).shows,
            Err(denied) => {
                waiting.is_done = true;
                return Err(refused(denied));
            }
        };
        // What is written under this lock needs a commit of its own.
        if self.locks.is_under_older(node.id()) {
            self.committed(&node, None).await?;
        }
        if let Some(number) = shows {
            self.show_newest(&node).await?;
            self.locks.state().locks.shown(key, number);
        }
        waiting.is_done = true;
        Ok(())
    }

    /// Returns when a request has waited for too long: one that waits for others, when the server has been away for the
    /// deadline.
    async fn is_away(&self, waits: bool) {
        if !waits {
            return sleep_until(self.until().into()).await;
        }
        let mut until = self.until();
        while Instant::now() < until {
            tokio::time::sleep(LOOK).await;
            let connection = self.volume.client().view().connection;
            if matches!(connection, Connection::Online) {
                until = self.until();
            }
        }
    }

    /// A program gives a lock up: what was written under it is in the log before.
    async fn unlock(
        self: Arc<Self>,
        node: &Arc<Node>,
        key: Key,
        lock: Owned,
    ) -> Result<(), Failure> {
        let by = lock.owner;
        if !self.locks.state().locks.has(key, by, &lock.range) {
            return Ok(());
        }
        self.commit_and(node, Some(lock.handle), move |core| {
            core.locking(key, |locks| ((), locks.unlock(key, by, &lock.range)));
        })
        .await
    }

    /// Commits what is local of a file, and does something afterwards: also if the program is killed meanwhile, and if there
    /// was no commit.
    async fn commit_and(
        self: &Arc<Self>,
        node: &Arc<Node>,
        handle: Option<u64>,
        then: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) -> Result<(), Failure> {
        let (core, node) = (self.clone(), node.clone());
        let committing = self.runtime.spawn(async move {
            let committed = core.committed(&node, handle).await;
            then(&core);
            committed
        });
        let panicked = |_| Failure::Plain(Error::Io("a commit has panicked".to_owned()));
        committing.await.map_err(panicked)?
    }

    /// A descriptor is closed: the locks by fcntl of its process on the file are gone.
    ///
    /// # Errors
    /// Those of a commit.
    pub async fn flush_locks(
        self: &Arc<Self>,
        handle: u64,
        owner: LockOwner,
    ) -> Result<(), Failure> {
        let node = self.opened(handle)?.node;
        let (file, by) = (node.id(), owner.0);
        let key = (file, Family::Fcntl);
        if !self.locks.state().locks.has(key, by, &WHOLE) {
            return Ok(());
        }
        self.commit_and(&node, Some(handle), move |core| {
            core.locking(key, |locks| ((), locks.flushed(file, by)));
        })
        .await
    }

    /// An open file is gone: its locks are gone, too. Nobody waits for that.
    pub fn release_locks(self: &Arc<Self>, node: &Arc<Node>, handle: u64) {
        let file = node.id();
        if !self.locks.state().locks.has_any(file, handle) {
            return;
        }
        let (core, node) = (self.clone(), node.clone());
        self.runtime.spawn(async move {
            let closing = core.commit_and(&node, None, move |core| {
                for family in [Family::Flock, Family::Fcntl] {
                    let key = (file, family);
                    core.locking(key, |locks| ((), locks.closed(key, handle)));
                }
            });
            if let Err(why) = closing.await {
                why.log("release", || node.shown());
            }
        });
    }

    /// F_GETLK.
    ///
    /// # Errors
    /// Those of a question.
    pub async fn get_lock(self: Arc<Self>, asked: LockRequest) -> Result<Lock, Failure> {
        let node = self.opened(asked.handle.0)?.node;
        let (key, lock) = about(&node, &asked);
        let found = self.locks.state().locks.conflict(key, &lock);
        // Processes of other devices have no number here.
        let found = match found {
            Some(found) => Some((found.range, found.pid)),
            None => self
                .of_others(key, &lock.range)
                .await?
                .map(|range| (range, 0)),
        };
        Ok(match found {
            Some((range, pid)) => Lock {
                range: range.start..=range.end.saturating_sub(1),
                kind: kind(&range),
                pid,
            },
            None => Lock {
                range: asked.range,
                kind: LockKind::Unlock,
                pid: 0,
            },
        })
    }

    /// What another device holds that clashes with a range: the first.
    async fn of_others(
        &self,
        (file, family): Key,
        range: &Range,
    ) -> Result<Option<Range>, Failure> {
        let file = FileRef::File(file);
        let holders = match self.ask(Call::Holders { file, family }).await {
            Ok((Answer::Holders(holders), _)) => holders,
            Ok(_) => return Err(defect()),
            Err(why) if is_absent(&why) => return Ok(None),
            Err(why) => return Err(why),
        };
        let others = holders
            .iter()
            .filter(|(device, _)| *device != self.device)
            .flat_map(|(_, ranges)| ranges.iter().copied());
        let clashing = others.filter(|other| clash(other, range));
        Ok(clashing.min_by_key(|other| other.start))
    }

    /// Shows the newest version of a file to programs that have it open, as OPEN does. The log is known as far as the lock.
    async fn show_newest(self: &Arc<Self>, node: &Arc<Node>) -> Result<(), Failure> {
        let until = self.until();
        while !self.shows_newest(node).await? {
            if Instant::now() >= until {
                return Err(Error::TimedOut.into());
            }
            self.committed(node, None).await?;
        }
        let Some(notifier) = self.notifier.get().cloned() else {
            return Ok(());
        };
        // It waits for reads of the file, so no thread may do it that answers requests.
        let number = INodeNo(node.number());
        let dropping = tokio::task::spawn_blocking(move || notifier.invalidate_data(number));
        match dropping.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Failure::Local(error)),
            Err(_) => Err(Error::Io("a notification has panicked".to_owned()).into()),
        }
    }

    /// Moves what is local of a file onto its newest version. False: it lies over an older one until it is committed, because
    /// it is too much, or somebody was told that it is lost.
    async fn shows_newest(self: &Arc<Self>, node: &Arc<Node>) -> Result<bool, Failure> {
        self.settled(node).await?;
        let place = place_of(node.id());
        let follow = false;
        let looked = self.look(Call::Lookup { place, follow }).await;
        match looked.and_then(found) {
            Ok((file, at)) => {
                self.drive(node, |cached| ((), cached.show(&file.inode, at)));
                self.settled(node).await?;
                Ok(!node.cached().is_behind())
            }
            // It lives on for who has it open.
            Err(why) if is_absent(&why) => Ok(true),
            Err(why) => Err(why),
        }
    }

    /// Makes the calls of a file, until nothing of it is locked or the mount ends.
    async fn keep_locks(
        self: Arc<Self>,
        key: Key,
        changed: Arc<Notify>,
        mut ends: watch::Receiver<bool>,
    ) {
        let ended = async {
            let _ = ends.wait_for(|ends| *ends).await;
        };
        tokio::select! {
            biased;
            () = ended => {}
            () = self.make_calls(key, &changed) => {}
        }
    }

    async fn make_calls(self: &Arc<Self>, key: Key, changed: &Notify) {
        let mut said = Instant::now();
        loop {
            let next = {
                let mut state = self.locks.state();
                // Also while a program waits that has to ask again and again.
                if said.elapsed() >= RENEWS {
                    said = Instant::now();
                    state.locks.renew(key);
                }
                let next = state.locks.next(key);
                if next.is_none() {
                    state.drivers.remove(&key);
                    state.heard.remove(&key);
                    if let Some(before) = &self.locks.before {
                        before.forget(key);
                    }
                }
                next
            };
            match next {
                None => return,
                Some(None) => rest(changed, said).await,
                Some(Some(ask)) => self.ask_for_lock(key, ask, changed, &mut said).await,
            }
        }
    }

    /// Makes a call. One that waits for others is given up when something else is to be asked first.
    async fn ask_for_lock(
        self: &Arc<Self>,
        key: Key,
        ask: Ask,
        changed: &Notify,
        said: &mut Instant,
    ) {
        let (began, began_boot) = (Instant::now(), since_boot());
        let wants_to_wait = matches!(ask, Ask::Hold { waits: true, .. });
        // Others' calls need places, too.
        let place = match wants_to_wait {
            true => self.locks.waiting.try_acquire().ok(),
            false => None,
        };
        let waits = place.is_some();
        let call = self.call_of(key, ask, waits);
        let client = self.volume.client().clone();
        let until = match waits {
            true => began + Duration::from_secs(365 * 24 * 3600),
            false => self.until(),
        };
        let asked = tokio::select! {
            biased;
            asked = self.here(client.call(call, until)) => asked,
            () = self.is_outdated(key, changed, *said), if waits => {
                self.locks.state().locks.given_up(key);
                return;
            }
        };
        let came = self.came_of(asked);
        let failed = match &came {
            Came::Failed(_) => true,
            Came::Locked => wants_to_wait,
            _ => false,
        };
        if matches!(came, Came::Held(_)) {
            *said = began;
            self.locks.state().heard.insert(key, began_boot);
        }
        self.locking(key, |locks| ((), locks.came(key, came)));
        if failed {
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Returns when something else is to be asked before the call that waits.
    async fn is_outdated(&self, key: Key, changed: &Notify, said: Instant) {
        let mut renews = false;
        loop {
            tokio::select! {
                () = changed.notified() => {}
                () = sleep_until((said + RENEWS).into()), if !renews => {
                    renews = true;
                    self.locks.state().locks.renew(key);
                }
                () = tokio::time::sleep(OTHERS) => self.locks.state().locks.try_others(key),
            }
            if self.locks.state().locks.is_outdated(key) {
                return;
            }
        }
    }

    fn call_of(&self, (file, family): Key, ask: Ask, waits: bool) -> Call {
        let Ask::Hold { ranges, .. } = ask else {
            let file = FileRef::File(file);
            return Call::Release { file, family };
        };
        // Before it can have effect: the next start gives it up.
        if let Some(before) = &self.locks.before {
            before.note((file, family));
        }
        let size = self.volume.client().view().size;
        let mut state = self.locks.state();
        state.known.note(self.clock_ms(), size);
        Call::Hold {
            file: FileRef::File(file),
            family,
            ranges,
            wait: waits,
            lapsed: state.known.lapsed(self.clock_ms()),
        }
    }

    fn came_of(&self, asked: Result<Answered, ClientError>) -> Came<Loss> {
        let used = match asked {
            Ok(asked) => used(asked),
            Err(why) => Err(why.into()),
        };
        match used {
            Ok((Answer::Held { since, .. }, _)) => Came::Held(since),
            Ok(_) | Err(Failure::Refused(Refused::NotLocked)) => Came::Nothing,
            Err(Failure::Refused(Refused::Locked)) => Came::Locked,
            // Who may only read the file's owner's files, a file without a name, a device that writes no more.
            Err(
                Failure::Stopped(_)
                | Failure::Refused(Refused::NotPermitted | Refused::NotFound | Refused::Stale),
            ) => Came::Local,
            Err(why) => Came::Failed(why.loss()),
        }
    }

    /// The log says that this device has not held a file all the time.
    pub fn lock_is_lost(self: &Arc<Self>, file: FileId) {
        for family in [Family::Flock, Family::Fcntl] {
            self.locking((file, family), |locks| (locks.lost(file), Vec::new()));
        }
    }

    /// Gives up what an earlier run held.
    pub fn give_up_held_before(self: &Arc<Self>) {
        let before = self.locks.before.as_ref();
        for key in before.map(HeldBefore::take).unwrap_or_default() {
            self.locking(key, |locks| (locks.recall(key), Vec::new()));
        }
    }

    /// The mount ends: gives up all that is held, so that other devices need not wait.
    pub async fn give_up_locks(&self) {
        // A call on its way would take a lock again after it is given up.
        self.locks.end().await;
        // Who still waits for a lock is told that there is none.
        let locks = std::mem::take(&mut self.locks.state().locks);
        let held = locks.held();
        drop(locks);
        let until = Instant::now() + GIVES_UP;
        let releasing = held.into_iter().map(|(file, family)| {
            let file = FileRef::File(file);
            self.volume
                .client()
                .call(Call::Release { file, family }, until)
        });
        let released = futures_util::future::join_all(releasing).await;
        if let Some(before) = &self.locks.before
            && released.iter().all(Result::is_ok)
        {
            before.end();
        }
    }
}

/// Waits until something is to be asked.
async fn rest(changed: &Notify, said: Instant) {
    tokio::select! {
        () = changed.notified() => {}
        () = sleep_until((said + RENEWS).into()) => {}
    }
}

const WHOLE: Range = Range {
    start: 0,
    end: END,
    exclusive: true,
};

fn about(node: &Node, asked: &LockRequest) -> (Key, Owned) {
    let family = match asked.flock {
        true => Family::Flock,
        false => Family::Fcntl,
    };
    let range = Range {
        start: *asked.range.start(),
        end: asked.range.end().saturating_add(1).min(END),
        exclusive: asked.kind == LockKind::Write,
    };
    let lock = Owned {
        owner: asked.owner.0,
        range,
        pid: asked.pid,
        handle: asked.handle.0,
    };
    ((node.id(), family), lock)
}

fn kind(range: &Range) -> LockKind {
    match range.exclusive {
        true => LockKind::Write,
        false => LockKind::Read,
    }
}

fn refused(denied: Denied<Loss>) -> Failure {
    match denied {
        Denied::Locked => Error::WouldBlock.into(),
        Denied::TooMany => Error::NoLock.into(),
        Denied::Deadlock => Error::Deadlock.into(),
        Denied::Failed(why) => Failure::NoLock(why),
    }
}
