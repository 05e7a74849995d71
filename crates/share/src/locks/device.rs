//! The locks of all files of a mount.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use trust_shared::hold::{Family, Range};
use trust_shared::principal::FileId;

use super::file::{Answer, Ask, Came, Denied, FileLocks, Request};
use super::table::Owned;

/// A file, and one of the families of locks, which do not meet.
pub type Key = (FileId, Family);

/// Most files with locks, each family by itself. A program that wants a lock of one more gets ENOLCK.
pub const MAX_FILES: usize = 4096;

/// Most owners that a chain of waiting programs is followed over, as on Linux.
const MAX_CHAIN: usize = 10;

/// The locks of one file, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The file, and the family.
    pub key: Key,
    /// Locks of programs of this machine.
    pub locks: Vec<Owned>,
    /// Ranges that this device holds in the log.
    pub held: usize,
    /// Position since which it has held something of the file without a gap, as far as it knows.
    pub since: Option<u64>,
    /// Programs that wait, and the process here for which each waits. None: it waits for another device.
    pub waiting: Vec<(u32, Option<u32>)>,
}

/// The locks of a mount. `W`: a request that waits. `L`: why the log does not answer.
#[derive(Debug)]
pub struct Locks<W, L> {
    files: BTreeMap<Key, FileLocks<W>>,
    /// Locks under which the local changes of a file were made: families, and since when the device has held them.
    under: HashMap<FileId, BTreeSet<(Family, u64)>>,
    next_ticket: u64,
    _loss: std::marker::PhantomData<fn() -> L>,
}

impl<W, L> Default for Locks<W, L> {
    fn default() -> Self {
        Locks {
            files: BTreeMap::new(),
            under: HashMap::new(),
            next_ticket: 0,
            _loss: std::marker::PhantomData,
        }
    }
}

impl<W, L: Clone> Locks<W, L> {
    /// A program asks for a lock. Gives a ticket for [`Locks::leave`], and answers, perhaps this request's.
    pub fn lock(&mut self, key: Key, request: Request, waiter: W) -> (u64, Vec<Answer<W, L>>) {
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        if request.waits && self.is_deadlock(key, &request.lock) {
            return (ticket, vec![(waiter, Err(Denied::Deadlock))]);
        }
        if self.files.len() >= MAX_FILES && !self.files.contains_key(&key) {
            return (ticket, vec![(waiter, Err(Denied::TooMany))]);
        }
        let file = self.file(key);
        (ticket, file.lock(ticket, request, waiter))
    }

    fn file(&mut self, key: Key) -> &mut FileLocks<W> {
        let new = || FileLocks::new(key.1);
        self.files.entry(key).or_insert_with(new)
    }

    /// Whether a program of this device would wait for itself, over others that wait.
    fn is_deadlock(&self, key: Key, lock: &Owned) -> bool {
        if key.1 == Family::Flock {
            return false;
        }
        let (mut key, mut lock) = (key, *lock);
        let begin = lock.owner;
        for _ in 0..MAX_CHAIN {
            let file = self.files.get(&key);
            let Some(blocker) = file.and_then(|file| file.table.conflict(lock.owner, &lock.range))
            else {
                return false;
            };
            if blocker.owner == begin {
                return true;
            }
            let mut all = self.files.iter();
            let waits = all.find_map(|(key, file)| {
                let mut waiting = file.waiting().filter(|_| key.1 == Family::Fcntl);
                let waits = waiting.find(|waits| waits.lock.owner == blocker.owner);
                waits.map(|waits| (*key, waits.lock))
            });
            match waits {
                Some(waits) => (key, lock) = waits,
                None => return false,
            }
        }
        false
    }

    /// A request waits no more. Gives whether it did: else it is answered.
    pub fn leave(&mut self, key: Key, ticket: u64) -> bool {
        let file = self.files.get_mut(&key);
        file.is_some_and(|file| file.leave(ticket))
    }

    /// A program gives bytes up.
    pub fn unlock(&mut self, key: Key, owner: u64, range: &Range) -> Vec<Answer<W, L>> {
        let file = self.files.get_mut(&key);
        file.map_or_else(Vec::new, |file| file.unlock(owner, range))
    }

    /// A program is gone or has an error before it takes the lock that it was given. It has what it had of the range.
    pub fn give_back(
        &mut self,
        key: Key,
        (owner, range): (u64, &Range),
        had: &[Owned],
    ) -> Vec<Answer<W, L>> {
        let file = self.files.get_mut(&key);
        file.map_or_else(Vec::new, |file| file.give_back(owner, range, had))
    }

    /// A program has closed a descriptor: its locks on the file by fcntl are gone.
    pub fn flushed(&mut self, file: FileId, owner: u64) -> Vec<Answer<W, L>> {
        let file = self.files.get_mut(&(file, Family::Fcntl));
        file.map_or_else(Vec::new, |file| file.drop_owner(owner))
    }

    /// An open file is gone, and its locks with it.
    pub fn closed(&mut self, key: Key, handle: u64) -> Vec<Answer<W, L>> {
        let file = self.files.get_mut(&key);
        file.map_or_else(Vec::new, |file| file.close(handle))
    }

    /// Whether a program has some of these bytes, or had them when they were lost.
    pub fn has(&self, key: Key, owner: u64, range: &Range) -> bool {
        let file = self.files.get(&key);
        file.is_some_and(|file| file.has(owner, range))
    }

    /// Whether a lock would give up that its owner has bytes for itself alone: others read what it wrote under that.
    pub fn is_downgrade(&self, key: Key, lock: &Owned) -> bool {
        let file = self.files.get(&key).filter(|_| !lock.range.exclusive);
        file.is_some_and(|file| file.table.has_exclusive(lock.owner, &lock.range))
    }

    /// Whether an open file has or had a lock.
    pub fn has_any(&self, file: FileId, handle: u64) -> bool {
        let files = [Family::Flock, Family::Fcntl].map(|family| self.files.get(&(file, family)));
        files
            .into_iter()
            .flatten()
            .any(|file| file.has_through(handle))
    }

    /// A lock of another program of this device that a program cannot have beside its own.
    pub fn conflict(&self, key: Key, lock: &Owned) -> Option<Owned> {
        let file = self.files.get(&key)?;
        file.table.conflict(lock.owner, &lock.range).copied()
    }

    /// Whether a lock that was taken through an open file is lost: what it writes has no effect.
    pub fn is_lost(&self, file: FileId, handle: u64) -> bool {
        let files = [Family::Flock, Family::Fcntl].map(|family| self.files.get(&(file, family)));
        files.into_iter().flatten().any(|file| file.is_lost(handle))
    }

    /// The locks under which a program changes a file through an open file: what it changes has effect only while the
    /// device holds them. None: one of them is lost. [`Locks::wrote`] takes them when the change is made, so that a lock
    /// that is lost meanwhile counts.
    pub fn guards(&self, file: FileId, handle: u64) -> Option<Vec<(Family, u64)>> {
        let guard = |family| {
            let locks = self.files.get(&(file, family))?;
            let locks = locks.table.has_through(handle).then_some(locks)?;
            Some((family, locks.since()?))
        };
        let families = [Family::Flock, Family::Fcntl];
        let guards = || families.into_iter().filter_map(guard).collect();
        (!self.is_lost(file, handle)).then(guards)
    }

    /// A program has changed a file under these locks.
    pub fn wrote(&mut self, file: FileId, guards: Vec<(Family, u64)>) {
        if !guards.is_empty() {
            self.under.entry(file).or_default().extend(guards);
        }
    }

    /// The locks under which what is local of a file was written.
    pub fn under(&self, file: FileId) -> Vec<(Family, u64)> {
        let under = self.under.get(&file);
        under.into_iter().flatten().copied().collect()
    }

    /// Whether some of what is local of a file was written under a lock that the device had before. A commit with newer
    /// changes would have no effect.
    pub fn is_under_older(&self, file: FileId) -> bool {
        let since = |family| self.files.get(&(file, family)).and_then(FileLocks::since);
        let mut under = self.under.get(&file).into_iter().flatten();
        under.any(|(family, at)| since(*family) != Some(*at))
    }

    /// Nothing is local of a file any more.
    pub fn clean(&mut self, file: FileId) {
        self.under.remove(&file);
    }

    /// The log says that the device has not held a file all the time: its programs have no locks on it any more. If
    /// several locks were guards, the log does not say which is lost: the next renewal of each does.
    pub fn lost(&mut self, file: FileId) {
        let under = self.under(file);
        for (family, since) in &under {
            let Some(file) = self.files.get_mut(&(file, *family)) else {
                continue;
            };
            match under.len() {
                1 if file.since() == Some(*since) => {
                    file.lose();
                    file.recall();
                }
                _ => file.renew(),
            }
        }
    }

    /// An earlier run may have held something of a file.
    pub fn recall(&mut self, key: Key) {
        self.file(key).recall();
    }

    /// Somebody is to make the calls of a file from now on. False: somebody does so already, or nothing is to be done.
    pub fn is_to_be_driven(&mut self, key: Key) -> bool {
        let Some(file) = self.files.get_mut(&key) else {
            return false;
        };
        if !file.is_driven && file.is_over() {
            self.files.remove(&key);
            return false;
        }
        let begins = !file.is_driven && !file.is_at_rest();
        file.is_driven |= begins;
        begins
    }

    /// The next call for a file. [`Locks::came`] takes what came of it. The inner None: nothing is to be asked now. The
    /// outer one: nothing is to be done any more.
    pub fn next(&mut self, key: Key) -> Option<Option<Ask>> {
        let file = self.files.get_mut(&key)?;
        if let Some(ask) = file.next() {
            file.asks(ask.clone());
            return Some(Some(ask));
        }
        if !file.is_at_rest() {
            return Some(None);
        }
        file.is_driven = false;
        if file.is_over() {
            self.files.remove(&key);
        }
        None
    }

    /// Whether the call that is under way waits for others, and something else is to be asked first.
    pub fn is_outdated(&self, key: Key) -> bool {
        self.files.get(&key).is_some_and(FileLocks::is_outdated)
    }

    /// The call that was under way is given up.
    pub fn given_up(&mut self, key: Key) {
        if let Some(file) = self.files.get_mut(&key) {
            file.given_up();
        }
    }

    /// What came of the call that was under way.
    pub fn came(&mut self, key: Key, came: Came<L>) -> Vec<Answer<W, L>> {
        let file = self.files.get_mut(&key);
        file.map_or_else(Vec::new, |file| file.came(came))
    }

    /// The kernel has the newest version; the number is [`Granted::shows`](super::Granted::shows).
    pub fn shown(&mut self, key: Key, number: u64) {
        if let Some(file) = self.files.get_mut(&key) {
            file.shown(number);
        }
    }

    /// It is time to renew what the device holds.
    pub fn renew(&mut self, key: Key) {
        if let Some(file) = self.files.get_mut(&key) {
            file.renew();
        }
    }

    /// The log has said nothing of a file for [`LAPSES`](super::LAPSES): what is held is renewed before a program gets some
    /// of it.
    pub fn doubt(&mut self, key: Key) {
        if let Some(file) = self.files.get_mut(&key) {
            file.doubt();
        }
    }

    /// All that wait for other devices are tried again, but for the first one.
    pub fn try_others(&mut self, key: Key) {
        if let Some(file) = self.files.get_mut(&key) {
            file.try_others();
        }
    }

    /// The files of which the device may hold something.
    pub fn held(&self) -> Vec<Key> {
        let held = self.files.iter().filter(|(_, file)| file.may_hold());
        held.map(|(key, _)| *key).collect()
    }

    /// What is locked, for people.
    pub fn rows(&self) -> Vec<Row> {
        let rows = self.files.iter().map(|(key, file)| {
            let blocker = |lock: &Owned| file.table.conflict(lock.owner, &lock.range);
            let waiting = file.waiting().map(|waits| {
                let blocker = blocker(&waits.lock).map(|blocker| blocker.pid);
                (waits.lock.pid, blocker)
            });
            Row {
                key: *key,
                locks: file.table.iter().copied().collect(),
                held: file.held().len(),
                since: file.since(),
                waiting: waiting.collect(),
            }
        });
        rows.collect()
    }
}
