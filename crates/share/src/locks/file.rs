//! The locks of one file and family: who has and who waits, and what the device holds in the log.
//!
//! One call of the log is under way at a time. A call that waits for another device is given up when something else is to
//! be asked first; whether it had effect is then unknown until the next call says all that the device holds.

use trust_shared::hold::{Family, MAX_RANGES, Range, Ranges};

use super::table::{Owned, Table, covers};

/// So many locks are given out of what the device holds before other devices have their turn.
pub(super) const MAX_HANDED: u32 = 16;

/// What a program asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The lock that it wants.
    pub lock: Owned,
    /// It waits until it has the lock.
    pub waits: bool,
}

/// A program has a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// The newest version of the file must be shown first. Then [`Locks::shown`](super::Locks::shown) takes this number.
    pub shows: Option<u64>,
    /// What it had of the range before, for [`Locks::give_back`](super::Locks::give_back).
    pub had: Vec<Owned>,
}

/// Why a program does not get a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denied<L> {
    /// Another program or device has it, and this one does not wait: EAGAIN.
    Locked,
    /// More ranges or files than a device can hold: ENOLCK.
    TooMany,
    /// Programs of this device would wait for each other for ever: EDEADLK.
    Deadlock,
    /// The log does not answer.
    Failed(L),
}

/// A request waits no more.
pub type Answer<W, L> = (W, Result<Granted, Denied<L>>);

/// A call of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// The device holds these ranges and nothing else of the file.
    Hold {
        /// The ranges.
        ranges: Ranges,
        /// The call waits for other devices.
        waits: bool,
        /// The request that it is for.
        ticket: Option<u64>,
    },
    /// The device holds nothing of the file.
    Release,
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Came<L> {
    /// The device holds what it asked for, and has held something without a gap since this position.
    Held(u64),
    /// It holds nothing.
    Nothing,
    /// Another device holds what clashes.
    Locked,
    /// This device cannot lock the file for others: its locks stay here.
    Local,
    /// Nobody knows.
    Failed(L),
}

#[derive(Debug)]
struct Waiting<W> {
    ticket: u64,
    request: Request,
    waiter: W,
    /// Another device had it when it was asked for.
    was_refused: bool,
}

/// What the device holds in the log, at least.
#[derive(Debug)]
struct Held {
    ranges: Vec<Range>,
    since: u64,
}

/// The locks of one file and family.
#[derive(Debug)]
pub(super) struct FileLocks<W> {
    family: Family,
    pub(super) table: Table,
    queue: Vec<Waiting<W>>,
    held: Option<Held>,
    /// The device may hold more than `held`: a call was given up, or failed.
    is_unknown: bool,
    asking: Option<Ask>,
    renews: bool,
    /// The version that the newest locks show, and whether the kernel has dropped older pages.
    shows: u64,
    is_shown: bool,
    /// Locks stay on this machine.
    is_local: bool,
    /// The log has said nothing for so long that another device may have taken over.
    is_doubted: bool,
    /// Locks that were given out of what the device holds, since others had their turn.
    handed: u32,
    /// Locks that were lost, until their owners give them up.
    lost: Table,
    /// Somebody makes the calls of this file.
    pub(super) is_driven: bool,
}

impl<W> FileLocks<W> {
    pub(super) fn new(family: Family) -> FileLocks<W> {
        FileLocks {
            family,
            table: Table::default(),
            queue: Vec::new(),
            held: None,
            is_unknown: false,
            asking: None,
            renews: false,
            shows: 0,
            is_shown: true,
            is_local: false,
            is_doubted: false,
            handed: 0,
            lost: Table::default(),
            is_driven: false,
        }
    }

    /// An earlier run may have held something.
    pub(super) fn recall(&mut self) {
        self.is_unknown = true;
    }

    /// Whether nothing is to be remembered of it.
    pub(super) fn is_over(&self) -> bool {
        self.is_at_rest() && self.lost.is_empty()
    }

    /// Whether nothing is to be done for it.
    pub(super) fn is_at_rest(&self) -> bool {
        self.table.is_empty() && self.queue.is_empty() && !self.may_hold()
    }

    /// Whether the device may hold something of the file, or soon.
    pub(super) fn may_hold(&self) -> bool {
        self.held.is_some() || self.is_unknown || self.asking.is_some()
    }

    /// Position since which the device has held something of the file, if it does.
    pub(super) fn since(&self) -> Option<u64> {
        self.held.as_ref().map(|held| held.since)
    }

    /// What the device holds.
    pub(super) fn held(&self) -> &[Range] {
        self.held.as_ref().map_or(&[], |held| &held.ranges)
    }

    /// Whether a lock that was taken through an open file is lost, and its owner has not given it up since.
    pub(super) fn is_lost(&self, handle: u64) -> bool {
        self.lost.has_through(handle)
    }

    /// Whether an owner has some of these bytes, or had them when they were lost.
    pub(super) fn has(&self, owner: u64, range: &Range) -> bool {
        self.table.has(owner, range) || self.lost.has(owner, range)
    }

    /// Whether an open file has or had a lock.
    pub(super) fn has_through(&self, handle: u64) -> bool {
        self.table.has_through(handle) || self.lost.has_through(handle)
    }

    /// The requests that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Request> {
        self.queue.iter().map(|waits| &waits.request)
    }

    pub(super) fn lock<L>(
        &mut self,
        ticket: u64,
        request: Request,
        waiter: W,
    ) -> Vec<Answer<W, L>> {
        let lock = &request.lock;
        // flock(2) gives the old lock up before it waits for one of another kind.
        if self.family == Family::Flock {
            let is_other = |had: &Owned| {
                had.owner == lock.owner && had.range.exclusive != lock.range.exclusive
            };
            self.table.retain(|had| !is_other(had));
        }
        self.queue.push(Waiting {
            ticket,
            request,
            waiter,
            was_refused: false,
        });
        self.settle()
    }

    /// An owner gives bytes up.
    pub(super) fn unlock<L>(&mut self, owner: u64, range: &Range) -> Vec<Answer<W, L>> {
        self.lost.clear(owner, range);
        self.table.clear(owner, range);
        self.settle()
    }

    /// An owner has no locks any more.
    pub(super) fn drop_owner<L>(&mut self, owner: u64) -> Vec<Answer<W, L>> {
        self.lost.retain(|lock| lock.owner != owner);
        self.table.retain(|lock| lock.owner != owner);
        self.settle()
    }

    /// An open file is closed: a lock that was taken through it and is still there was one of the open file.
    pub(super) fn close<L>(&mut self, handle: u64) -> Vec<Answer<W, L>> {
        self.lost.retain(|lock| lock.handle != handle);
        self.table.retain(|lock| lock.handle != handle);
        self.settle()
    }

    /// An owner does not take the lock that it was given: it has what it had before. What cannot be had any more is lost.
    pub(super) fn give_back<L>(
        &mut self,
        owner: u64,
        range: &Range,
        had: &[Owned],
    ) -> Vec<Answer<W, L>> {
        self.table.clear(owner, range);
        for lock in had {
            let is_free = self.table.conflict(owner, &lock.range).is_none();
            match is_free && (self.is_local || covers(self.held(), &self.with(lock))) {
                true => self.table.set(*lock),
                false => self.lost.add(*lock),
            }
        }
        self.settle()
    }

    /// A request waits no more. Gives whether it did.
    pub(super) fn leave(&mut self, ticket: u64) -> bool {
        let before = self.queue.len();
        self.queue.retain(|waits| waits.ticket != ticket);
        self.queue.len() < before
    }

    /// The newest version is shown.
    pub(super) fn shown(&mut self, number: u64) {
        self.is_shown |= self.shows == number;
    }

    /// It is time to say again what the device holds.
    pub(super) fn renew(&mut self) {
        self.renews = self.held.is_some();
    }

    /// Nothing is given out of what the device holds before the log has said so again.
    pub(super) fn doubt(&mut self) {
        self.renew();
        self.is_doubted = self.held.is_some();
    }

    /// Requests behind the first one that waits for another device are tried again.
    pub(super) fn try_others(&mut self) {
        let mut waits = self.queue.iter_mut().filter(|waits| waits.was_refused);
        waits.next();
        waits.for_each(|waits| waits.was_refused = false);
    }

    /// Answers all that can be answered without the log.
    fn settle<L>(&mut self) -> Vec<Answer<W, L>> {
        let mut answers = Vec::new();
        for waits in std::mem::take(&mut self.queue) {
            let Request { lock, waits: stays } = waits.request;
            if self.table.conflict(lock.owner, &lock.range).is_some() {
                match stays {
                    true => self.queue.push(waits),
                    false => answers.push((waits.waiter, Err(Denied::Locked))),
                }
                continue;
            }
            let target = self.with(&lock);
            let is_full = self.table.is_full() || self.lost.is_full();
            if is_full || (!self.is_local && target.len() > MAX_RANGES) {
                answers.push((waits.waiter, Err(Denied::TooMany)));
            } else if self.is_local || self.gives(&target) {
                self.handed = self.handed.saturating_add(1);
                let had = self.table.of(lock.owner, &lock.range);
                self.table.set(lock);
                let shows = (!self.is_local && !self.is_shown).then_some(self.shows);
                answers.push((waits.waiter, Ok(Granted { shows, had })));
            } else {
                self.queue.push(waits);
            }
        }
        answers
    }

    /// Whether programs get these ranges without a call.
    fn gives(&self, target: &[Range]) -> bool {
        !self.is_doubted && self.handed < MAX_HANDED && covers(self.held(), target)
    }

    /// What all programs would have together with one more lock. Its owner keeps what it has until it is answered.
    fn with(&self, lock: &Owned) -> Vec<Range> {
        self.table.union(Some(lock.range))
    }

    /// What the device is to hold if nobody gets more. All that it holds if that cannot be said in so many ranges.
    fn wanted(&self) -> Vec<Range> {
        let union = self.table.union(None);
        match union.len() > MAX_RANGES {
            true => self.held().to_vec(),
            false => union,
        }
    }

    /// The call that is to be made now.
    pub(super) fn next(&self) -> Option<Ask> {
        let wanted = self.wanted();
        let exactly = || match Ranges::new(wanted.clone()) {
            Ok(ranges) => Ask::Hold {
                ranges,
                waits: false,
                ticket: None,
            },
            Err(_) => Ask::Release,
        };
        let holds = self.held.is_some() || self.is_unknown;
        if self.is_local {
            return holds.then_some(Ask::Release);
        }
        if self.renews {
            return Some(exactly());
        }
        let is_others_turn = self.handed >= MAX_HANDED && self.held.is_some();
        if is_others_turn && self.held() != wanted {
            return Some(exactly());
        }
        if let Some(ask) = self.ask(false) {
            return Some(ask);
        }
        if self.is_unknown || self.held() != wanted {
            return Some(exactly());
        }
        self.ask(true)
    }

    /// The call for the first request that no program of this device is in the way of, and that was refused by another
    /// device or not.
    fn ask(&self, was_refused: bool) -> Option<Ask> {
        let mut queue = self.queue.iter();
        let free = queue.find(|waits| {
            let lock = &waits.request.lock;
            let conflict = self.table.conflict(lock.owner, &lock.range);
            waits.was_refused == was_refused && conflict.is_none()
        })?;
        Some(Ask::Hold {
            ranges: Ranges::new(self.with(&free.request.lock)).ok()?,
            waits: was_refused,
            ticket: Some(free.ticket),
        })
    }

    /// A call is made. What it gives up is not given to programs any more.
    pub(super) fn asks(&mut self, ask: Ask) {
        let keeps: Vec<Range> = match &ask {
            Ask::Hold { ranges, .. } => ranges.iter().copied().collect(),
            Ask::Release => Vec::new(),
        };
        let wanted = self.wanted();
        if let Some(held) = &mut self.held
            && !covers(&keeps, &held.ranges)
        {
            held.ranges = wanted;
            self.is_unknown = true;
            self.handed = 0;
        }
        self.asking = Some(ask);
    }

    /// Whether the call that is under way waits for others, and something else is to be asked first.
    pub(super) fn is_outdated(&self) -> bool {
        let waits = matches!(self.asking, Some(Ask::Hold { waits: true, .. }));
        waits && self.next() != self.asking
    }

    /// The call that was under way is given up. It may have had effect.
    pub(super) fn given_up(&mut self) {
        self.is_unknown |= self.asking.take().is_some();
    }

    /// What came of the call that was under way.
    pub(super) fn came<L: Clone>(&mut self, came: Came<L>) -> Vec<Answer<W, L>> {
        let Some(asked) = self.asking.take() else {
            return Vec::new();
        };
        let ticket = match &asked {
            Ask::Hold { ticket, .. } => *ticket,
            Ask::Release => None,
        };
        // A renewal is no turn of others.
        if ticket.is_some() {
            self.handed = 0;
        }
        let mut answers = Vec::new();
        match (came, asked) {
            (Came::Held(since), Ask::Hold { ranges, .. }) => self.holds(ranges, since),
            (Came::Held(_) | Came::Nothing, _) => {
                (self.held, self.is_unknown, self.renews) = (None, false, false);
            }
            (Came::Local, _) => {
                (self.held, self.is_unknown, self.renews) = (None, false, false);
                self.is_local = true;
            }
            (Came::Locked, _) if ticket.is_none() => {
                // It only wanted what it held.
                self.lose();
                self.is_unknown = true;
            }
            (Came::Locked, _) => answers.extend(self.refused(ticket)),
            (Came::Failed(why), _) => {
                self.is_unknown = true;
                let failed = |waits: &mut Waiting<W>| Some(waits.ticket) == ticket;
                let failed = self.queue.extract_if(.., failed);
                answers
                    .extend(failed.map(|waits| (waits.waiter, Err(Denied::Failed(why.clone())))));
            }
        }
        answers.extend(self.settle());
        answers
    }

    fn refused<L>(&mut self, ticket: Option<u64>) -> Option<Answer<W, L>> {
        let at = self
            .queue
            .iter()
            .position(|waits| Some(waits.ticket) == ticket)?;
        let waits = self.queue.get_mut(at)?;
        if waits.request.waits {
            waits.was_refused = true;
            return None;
        }
        Some((self.queue.remove(at).waiter, Err(Denied::Locked)))
    }

    /// The device holds these ranges.
    fn holds(&mut self, ranges: Ranges, since: u64) {
        if self.held.as_ref().is_some_and(|held| held.since != since) {
            self.lose();
        }
        let ranges: Vec<Range> = ranges.iter().copied().collect();
        // What others wrote before is to be seen from now on.
        if !covers(self.held(), &ranges) {
            self.shows += 1;
            self.is_shown = false;
        }
        self.held = Some(Held { ranges, since });
        (self.is_unknown, self.renews, self.is_doubted) = (false, false, false);
    }

    /// Another device has taken over what this one held: its programs have no locks any more.
    pub(super) fn lose(&mut self) {
        for lock in std::mem::take(&mut self.table).iter() {
            self.lost.add(*lock);
        }
        (self.held, self.renews) = (None, false);
    }
}
