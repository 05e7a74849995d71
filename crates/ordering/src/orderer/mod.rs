//! The server: a state machine that puts entries and marks into one order, without input, output or clock of its own.
//!
//! Who runs it stores what [`Orderer::commit`] gives, syncs, and calls [`Orderer::committed`]. Entries and marks that
//! came meanwhile are the next commit: one sync and one note for all of them. What a device is sent is drawn with
//! [`Orderer::draw`] when its connection can take more. So a device that does not read costs a cursor and no queue,
//! and no leaf is kept here: a [`Delivery`] names positions of the stored log.
//!
//! It judges the form of entries and nothing else. Entries that are judged stand at their place in the ledger before
//! they are durable; no device hears of them before.

mod marks;
mod session;

use std::fmt;
use std::hash::{Hash, Hasher};

pub use session::{Delivery, Session};

use self::marks::Marks;
use crate::engine::Request;
use crate::ledger::Ledger;
use crate::rows::Rows;
use crate::scheme::{Leaf, Log, Notary};
use crate::volume::Roll;
use trust_shared::form::Point;

/// What a device may use.
pub trait Quotas<D> {
    /// Whether the device may write so many entries now; they are counted.
    fn allows(&mut self, device: D, entries: u64) -> bool;
}

/// No quotas.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unlimited;

impl<D> Quotas<D> for Unlimited {
    fn allows(&mut self, _: D, _: u64) -> bool {
        true
    }
}

/// Bounds of a server's memory.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Sessions at a time.
    pub sessions: usize,
    /// Entries and marks that wait for the next commit.
    pub waiting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            sessions: 1 << 16,
            waiting: 1 << 14,
        }
    }
}

/// Why a message was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    /// The device has no session: it must open one first.
    NoSession,
    /// There are too many sessions, or too much waits for the next commit. Read on later.
    Busy,
    /// The device's quota is used up. Read on later.
    Quota,
    /// The message says that it is another device's, or its signature is bad. Close the connection.
    Forged,
    /// The device's note names no prefix of this log, and is not signed by this orderer.
    OtherLog,
    /// The device's note is of another epoch of the log.
    OtherEpoch,
    /// The orderer has met a note of its own of more leaves than it has: it was restored from a copy.
    Restored,
}

/// The server of one volume.
pub struct Orderer<S: Notary, R, Q = Unlimited> {
    scheme: S,
    limits: Limits,
    quotas: Q,
    /// What is durable, what is being made durable, and `waiting`.
    ledger: Ledger<S, R>,
    /// Size of the log that is durable and noted.
    published: u64,
    note: S::Note,
    /// The log at the end of the commit that is under way.
    committing: Option<Point<S::Hash>>,
    waiting: Vec<Leaf<S>>,
    marks: Marks<S::Mark>,
    sessions: Rows<S::Device, Session<S>>,
    /// The newest Attest of each device, and its number.
    attests: Rows<S::Device, (u64, S::Attest)>,
    attest_number: u64,
    restored: bool,
}

impl<S: Notary, R: Clone, Q: Clone> Clone for Orderer<S, R, Q> {
    fn clone(&self) -> Self {
        Orderer {
            scheme: self.scheme.clone(),
            limits: self.limits,
            quotas: self.quotas.clone(),
            ledger: self.ledger.clone(),
            published: self.published,
            note: self.note.clone(),
            committing: self.committing,
            waiting: self.waiting.clone(),
            marks: self.marks.clone(),
            sessions: self.sessions.clone(),
            attests: self.attests.clone(),
            attest_number: self.attest_number,
            restored: self.restored,
        }
    }
}

impl<S: Notary, R: Roll<S>, Q> fmt::Debug for Orderer<S, R, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Orderer({:?}, {} published)",
            self.ledger, self.published
        )
    }
}

/// All that decides what it does next. What waits follows from the ledger, but for marks; of the numbers of Attests
/// only matters which sessions they are new to.
impl<S: Notary, R: Roll<S>, Q> Hash for Orderer<S, R, Q> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.ledger, self.published, self.committing).hash(state);
        (&self.marks, self.restored).hash(state);
        for (device, (_, attest)) in self.attests.iter() {
            (device, S::attested(attest)).hash(state);
        }
        for (device, session) in self.sessions.iter() {
            device.hash(state);
            session.hash(state);
            for (_, (number, _)) in self.attests.iter() {
                session.misses(*number).hash(state);
            }
        }
    }
}

impl<S: Notary, R: Roll<S>, Q: Quotas<S::Device>> Orderer<S, R, Q> {
    /// Starts with the log that is durable.
    pub fn start(mut scheme: S, limits: Limits, quotas: Q, ledger: Ledger<S, R>) -> Self {
        let note = scheme.note(ledger.point());
        Orderer {
            scheme,
            limits,
            quotas,
            published: ledger.size(),
            ledger,
            note,
            committing: None,
            waiting: Vec::new(),
            marks: Marks::default(),
            sessions: Rows::default(),
            attests: Rows::default(),
            attest_number: 0,
            restored: false,
        }
    }

    /// The log, with what waits for a commit.
    pub fn ledger(&self) -> &Ledger<S, R> {
        &self.ledger
    }

    /// The scheme, to set its time for the next note.
    pub fn scheme_mut(&mut self) -> &mut S {
        &mut self.scheme
    }

    /// Number of leaves that are durable.
    pub fn published(&self) -> u64 {
        self.published
    }

    /// Whether so much waits that messages are turned away.
    pub fn is_full(&self) -> bool {
        self.waiting() >= self.limits.waiting
    }

    /// A message of a device, over a connection that proves the device.
    ///
    /// # Errors
    /// It has no effect. [`Turned`] says what to do.
    pub fn receive(&mut self, from: S::Device, request: &Request<S>) -> Result<(), Turned> {
        if self.restored {
            return Err(Turned::Restored);
        }
        if let Request::Open(note) = request {
            return self.open(from, note.as_ref());
        }
        if self.sessions.get(from).is_none() {
            return Err(Turned::NoSession);
        }
        if self.is_full() {
            return Err(Turned::Busy);
        }
        if matches!(request, Request::Entry(_)) && !self.quotas.allows(from, 1) {
            return Err(Turned::Quota);
        }
        match request {
            Request::Open(_) => {}
            Request::Entry(entry) => return self.order(from, entry),
            Request::Mark(mark) => self.marks.insert(*mark),
            Request::Attest(attest) => return self.relay(from, attest),
            // A device that is not there will attest when it comes back.
            Request::Ask(device) => {
                if let Some(session) = self.sessions.get_mut(*device) {
                    session.ask();
                }
            }
        }
        Ok(())
    }

    /// Judges an entry, and gives it the next place in the log. The same bytes again have the place that they have.
    fn order(&mut self, from: S::Device, entry: &S::Entry) -> Result<(), Turned> {
        if S::author(entry) != from || !self.scheme.entry_is_signed(entry) {
            return Err(Turned::Forged);
        }
        let row = self.ledger.author(from);
        if row.is_some_and(|row| row.last == S::id(entry)) {
            return Ok(());
        }
        let right = self.scheme.has_epoch_of(self.ledger.size(), entry)
            && self.ledger.faults(self.scheme.rules(), entry).is_empty()
            && self.ledger.volume().malformed(entry).is_none();
        if right {
            let leaf = Leaf::Entry(entry.clone());
            self.ledger.extend(&leaf);
            self.waiting.push(leaf);
        } else if let Some(session) = self.sessions.get_mut(from) {
            session.refuse(S::id(entry));
        }
        Ok(())
    }

    /// Keeps an Attest for the others. The newest of each device is enough.
    fn relay(&mut self, from: S::Device, attest: &S::Attest) -> Result<(), Turned> {
        let (device, seen) = S::attested(attest);
        if device != from || !self.scheme.attest_is_signed(attest) {
            return Err(Turned::Forged);
        }
        let writes = self.ledger.author(from).is_some();
        let known = self.attests.get(from);
        let new = known.is_none_or(|(_, known)| S::attested(known).1.size < seen.size);
        if new && writes && self.ledger.log().root_at(seen.size) == Some(seen.root) {
            self.attest_number = self.attest_number.saturating_add(1);
            self.attests
                .insert(from, (self.attest_number, attest.clone()));
        }
        Ok(())
    }

    /// Takes an Attest that was kept over a restart. Of a prefix that is too old to be compared, others judge.
    pub fn remember(&mut self, attest: &S::Attest) {
        let (device, seen) = S::attested(attest);
        let writes = self.ledger.author(device).is_some();
        let root = self.ledger.log().root_at(seen.size);
        let is_here = seen.size <= self.ledger.size() && root.is_none_or(|root| root == seen.root);
        if writes && is_here && self.scheme.attest_is_signed(attest) {
            self.attest_number = self.attest_number.saturating_add(1);
            self.attests
                .insert(device, (self.attest_number, attest.clone()));
        }
    }

    /// The newest Attest of each device.
    pub fn attests(&self) -> impl Iterator<Item = &S::Attest> {
        self.attests.iter().map(|(_, (_, attest))| attest)
    }

    /// A number that grows with each new Attest.
    pub fn attest_number(&self) -> u64 {
        self.attest_number
    }

    /// Whether [`Orderer::commit`] has something to give, now or when the commit under way is done.
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty() || !self.marks.is_empty()
    }

    /// How many entries and marks wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len().saturating_add(self.marks.len())
    }

    /// What waits, as one commit: the position of its first leaf, and its leaves. None: nothing waits, or a commit is
    /// under way.
    pub fn commit(&mut self) -> Option<(u64, Vec<Leaf<S>>)> {
        if self.committing.is_some() || self.restored {
            return None;
        }
        let marks = self.marks.take();
        if let Some(marks) = self.scheme.marks(&marks) {
            let leaf = Leaf::Marks(marks);
            self.ledger.extend(&leaf);
            self.waiting.push(leaf);
        }
        if self.waiting.is_empty() {
            return None;
        }
        let leaves = std::mem::take(&mut self.waiting);
        let end = self.ledger.point();
        self.committing = Some(end);
        Some((end.size.saturating_sub(leaves.len() as u64), leaves))
    }

    /// The end of the commit that is under way: its note names this prefix.
    pub fn committing(&self) -> Option<Point<S::Hash>> {
        self.committing
    }

    /// The commit is durable: it gets its note.
    pub fn committed(&mut self) {
        if let Some(end) = self.committing {
            let note = self.scheme.note(end);
            self.noted(note);
        }
    }

    /// The commit is durable, and this is its note, which was signed while it became durable.
    pub fn noted(&mut self, note: S::Note) {
        let Some(end) = self.committing.take() else {
            return;
        };
        debug_assert!(S::noted(&note) == end, "a note of another prefix");
        // The entries that come now name it.
        self.ledger.remember(end);
        self.note = note;
        self.published = end.size;
    }
}
