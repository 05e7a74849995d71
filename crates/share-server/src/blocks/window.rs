//! The rules of the temporary log, without input or output: who refers to a block, when it is dropped, when it moves.
//! Time comes from the caller in ticks. The explorer in `tests/blocks` drives this code through every order of calls,
//! time steps and crashes of a small scope.
//!
//! - A block has one *holder*, the session that stored it, until another session stores it, asks for it (CSTORE) or
//!   retrieves it. Then it has many, for ever.
//! - DECREF has effect only by the one holder, and only within a window after the block was stored or last asked for.
//!   When any session asks for the block again, the holder too, the dereference is undone.
//! - The oldest block is *dropped* when its dereference is older than a window. It *moves* to the segments when it was
//!   not asked for during a window, when it is older than two windows, or when space is needed. Else all blocks wait
//!   behind it, so that blocks move in the order in which they came.
//! - After a crash nobody knows who held what: all blocks have many holders.

use std::fmt;

use trust::Handle;
use wal::Lsn;

use super::error::Error;
use super::index::{Entry, Index, MANY, Position, Since};
use super::quota::{Accounts, Quota, Used};
use super::{Device, Session};

/// A block that is to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Its name, which was verified.
    pub handle: Handle,
    /// Bytes of its frame.
    pub length: u32,
}

/// Blocks that moved on.
#[derive(Debug, Default)]
pub struct Leaving {
    /// What must be in the segments before [`Window::left`], in order.
    pub moves: Vec<Moving>,
    /// Blocks that were dropped.
    pub dropped: u64,
    /// All blocks before this number are moved or dropped then.
    pub until: u64,
}

/// A block that moves to the segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moving {
    /// Its name.
    pub handle: Handle,
    /// Where it lies in the log.
    pub position: Position,
}

/// How much may leave at once.
#[derive(Debug, Clone, Copy)]
pub struct Most {
    /// Bytes of frames.
    pub bytes: u64,
    /// Blocks that are looked at.
    pub blocks: u64,
}

/// A point to which stored blocks can be undone.
#[derive(Debug, Clone, Copy)]
pub struct Before {
    end: u64,
    groups: usize,
}

/// The blocks in the temporary log, and who refers to them.
#[derive(Clone)]
pub struct Window {
    index: Index,
    accounts: Accounts,
    /// Length of the window in ticks.
    ticks: u32,
}

impl Window {
    /// An empty log. `ticks`: how long a block may be dereferenced, and how long a dereferenced one may come back.
    pub fn new(ticks: u32, quota: Quota) -> Window {
        Window {
            index: Index::default(),
            accounts: Accounts::new(quota),
            ticks,
        }
    }

    /// The tick at which time begins: what was found in the log is older than two windows.
    pub fn start(&self) -> u32 {
        2 * self.ticks + 1
    }

    /// Begins a session of a device.
    ///
    /// # Errors
    /// [`Error::TooManyDevices`].
    pub fn open(&mut self, device: Device) -> Result<Session, Error> {
        self.accounts.open(device)
    }

    /// Ends a session. The blocks that only it holds can never be dereferenced: they move to the segments.
    pub fn close(&mut self, session: Session) {
        self.accounts.close(session);
    }

    /// The device of a session.
    ///
    /// # Errors
    /// [`Error::NoSession`].
    pub fn device(&self, session: Session) -> Result<Device, Error> {
        let account = self.accounts.of(session)?;
        Ok(self.accounts.device(account))
    }

    /// Which of the offered blocks are new, if the session may store them. Nothing changes.
    ///
    /// # Errors
    /// [`Error::NoSession`], [`Error::Quota`].
    pub fn admit(
        &mut self,
        session: Session,
        offers: &[Offer],
        day: u32,
    ) -> Result<Vec<bool>, Error> {
        let account = self.accounts.of(session)?;
        let mut fresh = Vec::with_capacity(offers.len());
        let mut bytes = 0;
        let mut seen = std::collections::HashSet::new();
        for offer in offers {
            let is_new = self.index.find(&offer.handle).is_none() && seen.insert(offer.handle);
            fresh.push(is_new);
            bytes += u64::from(offer.length) * u64::from(is_new);
        }
        self.accounts.check(account, bytes, bytes, day)?;
        Ok(fresh)
    }

    /// Counts bytes that go straight to the segments.
    ///
    /// # Errors
    /// [`Error::NoSession`], [`Error::Quota`].
    pub fn charge_direct(&mut self, session: Session, bytes: u64, day: u32) -> Result<(), Error> {
        let account = self.accounts.of(session)?;
        self.accounts.check(account, 0, bytes, day)?;
        self.accounts.charge(account, 0, bytes);
        Ok(())
    }

    /// What the device of a session has used of its quota.
    ///
    /// # Errors
    /// [`Error::NoSession`].
    pub fn used(&self, session: Session, day: u32) -> Result<Used, Error> {
        self.accounts.used(self.accounts.of(session)?, day)
    }

    /// Where later calls of [`Window::undo`] return to.
    pub fn before(&self) -> Before {
        Before {
            end: self.index.end(),
            groups: self.index.groups(),
        }
    }

    /// The blocks that are stored next share a record of the log.
    pub fn begin_group(&mut self, now: u32) {
        self.index.begin_group(now);
    }

    /// STORE. True if the block is new: it is then part of the current group, at `offset`.
    ///
    /// # Errors
    /// [`Error::NoSession`].
    pub fn store(
        &mut self,
        now: u32,
        session: Session,
        offer: Offer,
        offset: u32,
    ) -> Result<bool, Error> {
        let account = self.accounts.of(session)?;
        if self.touch(now, session, &offer.handle).is_some() {
            return Ok(false);
        }
        let bytes = u64::from(offer.length);
        self.accounts.charge(account, bytes, bytes);
        let place = (offset, offer.length);
        let entry = Entry::new(offer.handle, place, account, session.0, now);
        self.index.push(entry);
        Ok(true)
    }

    /// The groups since `before` are in a frame: their places, in order, and the end of the frame.
    pub fn appended(&mut self, before: Before, payloads: &[Lsn], frame_end: Lsn) {
        for (group, payload) in (before.groups..).zip(payloads) {
            self.index.place(group, *payload, frame_end);
        }
    }

    /// The blocks since `before` were not appended.
    pub fn undo(&mut self, before: Before) {
        for entry in self.index.truncate(before.end, before.groups) {
            let bytes = u64::from(entry.length());
            self.accounts.release(entry.device, bytes, true);
        }
    }

    /// A block that was found in the log after a restart. Belongs to the current group.
    ///
    /// # Errors
    /// [`Error::TooManyDevices`].
    pub fn recovered(&mut self, device: Device, offer: Offer, offset: u32) -> Result<(), Error> {
        if self.index.find(&offer.handle).is_some() {
            return Ok(());
        }
        let account = self.accounts.number(device)?;
        self.accounts.charge(account, u64::from(offer.length), 0);
        let place = (offset, offer.length);
        let entry = Entry::new(offer.handle, place, account, MANY, 0);
        self.index.push(entry);
        Ok(())
    }

    /// CSTORE: whether the block is here. The session counts as a holder, and the block's age begins anew.
    ///
    /// # Errors
    /// [`Error::NoSession`].
    pub fn cstore(
        &mut self,
        now: u32,
        session: Session,
        handle: &Handle,
    ) -> Result<Option<Position>, Error> {
        self.accounts.of(session)?;
        let number = self.touch(now, session, handle);
        Ok(number.and_then(|number| self.index.position(number)))
    }

    /// RETRIEVE: where the block is. The session counts as a holder; the age goes on, unless the block was
    /// dereferenced.
    ///
    /// # Errors
    /// [`Error::NoSession`].
    pub fn retrieve(
        &mut self,
        now: u32,
        session: Session,
        handle: &Handle,
    ) -> Result<Option<Position>, Error> {
        self.accounts.of(session)?;
        let Some(number) = self.index.find(handle) else {
            return Ok(None);
        };
        if let Some(entry) = self.index.get_mut(number) {
            hold(entry, session);
            if let Since::Dereferenced(_) = entry.since() {
                entry.set(Since::Stored(now));
            }
        }
        Ok(self.index.position(number))
    }

    /// DECREF: whether the block will be dropped, unless somebody asks for it again.
    ///
    /// # Errors
    /// [`Error::NoSession`].
    pub fn decref(&mut self, now: u32, session: Session, handle: &Handle) -> Result<bool, Error> {
        self.accounts.of(session)?;
        let ticks = self.ticks;
        let number = self.index.find(handle);
        let Some(entry) = number.and_then(|number| self.index.get_mut(number)) else {
            return Ok(false);
        };
        if entry.holder != session.0 {
            return Ok(false);
        }
        match entry.since() {
            Since::Dereferenced(_) => Ok(true),
            Since::Stored(at) if now.saturating_sub(at) <= ticks => {
                entry.set(Since::Dereferenced(now));
                Ok(true)
            }
            Since::Stored(_) => Ok(false),
        }
    }

    /// The session stores or asks for a block: it holds it, and the age begins anew.
    fn touch(&mut self, now: u32, session: Session, handle: &Handle) -> Option<u64> {
        let number = self.index.find(handle)?;
        let held = self.index.get_mut(number)?;
        hold(held, session);
        held.set(Since::Stored(now));
        Some(number)
    }

    /// Whether the oldest block leaves now.
    pub fn is_ripe(&self, now: u32, pressed: bool) -> bool {
        let number = (self.index.head()..self.index.end())
            .find(|number| self.index.get(*number).is_some_and(|e| !e.is_gone()));
        match number {
            Some(number) => self.fate(number, now, pressed) != Fate::Waits,
            None => self.index.head() < self.index.end(),
        }
    }

    /// The oldest blocks that leave now, up to the first that waits. Those that are dropped are gone when this
    /// returns; those that move can be found until [`Window::left`].
    pub fn leaving(&mut self, now: u32, pressed: bool, most: Most) -> Leaving {
        let mut leaving = Leaving::default();
        let mut bytes = 0;
        let end = self.index.end().min(self.index.head() + most.blocks);
        leaving.until = self.index.head();
        while leaving.until < end && bytes < most.bytes {
            let number = leaving.until;
            match self.fate(number, now, pressed) {
                Fate::Waits => break,
                Fate::IsGone => {}
                Fate::IsDropped => {
                    leaving.dropped += 1;
                    self.forget(number);
                }
                Fate::Moves => {
                    let entry = self.index.get(number).copied();
                    let position = self.index.position(number);
                    if let (Some(entry), Some(position)) = (entry, position) {
                        bytes += u64::from(entry.length());
                        leaving.moves.push(Moving {
                            handle: entry.handle,
                            position,
                        });
                    }
                }
            }
            leaving.until += 1;
        }
        leaving
    }

    fn fate(&self, number: u64, now: u32, pressed: bool) -> Fate {
        let Some(entry) = self.index.get(number).filter(|entry| !entry.is_gone()) else {
            return Fate::IsGone;
        };
        let older = |at: u32, windows: u32| now.saturating_sub(at) > windows * self.ticks;
        let must = pressed || older(self.index.stored(number), 2);
        match entry.since() {
            Since::Dereferenced(at) if older(at, 1) => Fate::IsDropped,
            Since::Stored(at) if older(at, 1) => Fate::Moves,
            _ if must => Fate::Moves,
            _ => Fate::Waits,
        }
    }

    fn forget(&mut self, number: u64) {
        if let Some(entry) = self.index.remove(number) {
            let bytes = u64::from(entry.length());
            self.accounts.release(entry.device, bytes, false);
        }
    }

    /// The blocks of [`Leaving::moves`] are durable in the segments. Returns the position from which the log is still
    /// needed, if that has changed.
    pub fn left(&mut self, until: u64) -> Option<Lsn> {
        let (removed, released) = self.index.advance(until);
        for entry in removed {
            let bytes = u64::from(entry.length());
            self.accounts.release(entry.device, bytes, false);
        }
        released
    }

    /// Where a block is in the temporary log. Changes nothing.
    pub fn peek(&self, handle: &Handle) -> Option<Position> {
        self.index.position(self.index.find(handle)?)
    }

    /// Whether a block is in the temporary log. Changes nothing.
    pub fn contains(&self, handle: &Handle) -> bool {
        self.index.find(handle).is_some()
    }

    /// Whether the temporary log is kept for no block.
    pub fn is_empty(&self) -> bool {
        self.index.head() == self.index.end()
    }

    /// Blocks in the temporary log.
    pub fn blocks(&self) -> usize {
        self.index.len()
    }

    /// Bytes of memory of the index.
    pub fn memory_bytes(&self) -> usize {
        self.index.memory_bytes()
    }
}

/// Tells of every block: for small windows.
impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.index.head()..self.index.end();
        let block = |number| {
            let entry = self.index.get(number)?;
            let first = entry.handle.as_bytes().first();
            let stored = self.index.stored(number);
            Some((first, entry.holder, entry.since(), stored))
        };
        f.debug_list().entries(all.filter_map(block)).finish()
    }
}

/// The next step of a block.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    IsGone,
    IsDropped,
    Moves,
    Waits,
}

/// The session refers to the block from now on.
fn hold(entry: &mut Entry, session: Session) {
    let is_another = entry.holder != session.0;
    if is_another {
        entry.holder = MANY;
    }
}
