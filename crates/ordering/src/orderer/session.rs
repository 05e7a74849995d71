//! Sessions: what each device has been sent, and what it is sent next.

use std::hash::{Hash, Hasher};

use trust_shared::form::Point;

use super::{Orderer, Quotas, Turned};
use crate::scheme::{Log, Notary, Scheme};
use crate::volume::Roll;

/// A device's connection: a cursor, and what happened since the device was last sent something.
#[derive(Debug)]
pub struct Session<S: Scheme> {
    /// Leaves that the device has been sent.
    cursor: u64,
    /// Number of the newest Attest that it has been sent.
    attests: u64,
    asked: bool,
    beat: bool,
    /// An entry of the device that cannot be ordered.
    refused: Option<S::Hash>,
    /// An entry of the device that was not ordered, because blocks before it are missing.
    unstored: Option<S::Hash>,
    /// The device has a note of this orderer for another log with as many leaves as the cursor says.
    forked: bool,
}

impl<S: Scheme> Clone for Session<S> {
    fn clone(&self) -> Self {
        Session {
            cursor: self.cursor,
            attests: self.attests,
            asked: self.asked,
            beat: self.beat,
            refused: self.refused,
            unstored: self.unstored,
            forked: self.forked,
        }
    }
}

/// Without the number of the newest Attest: [`Session::misses`] says what it comes to.
impl<S: Scheme> Hash for Session<S> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (
            self.cursor,
            self.asked,
            self.beat,
            self.refused,
            self.unstored,
            self.forked,
        )
            .hash(state);
    }
}

impl<S: Scheme> Session<S> {
    /// The Attest with this number was not sent.
    pub(super) fn misses(&self, number: u64) -> bool {
        number > self.attests
    }

    /// Somebody wants an Attest of the device.
    pub(super) fn ask(&mut self) {
        self.asked = true;
    }

    /// There is something beside leaves and Attests to be sent.
    fn is_called(&self) -> bool {
        self.asked || self.beat || self.refused.is_some() || self.unstored.is_some()
    }

    /// The device's entry cannot be ordered.
    pub(super) fn refuse(&mut self, entry: S::Hash) {
        self.refused = Some(entry);
    }
}

/// What a device is sent: a [`Reply`](crate::engine::Reply) without its leaves, which are in the stored log.
#[derive(Clone, Debug)]
pub struct Delivery<S: Scheme> {
    /// Position of the first leaf, and of the first leaf after.
    pub leaves: std::ops::Range<u64>,
    /// The prefix that these leaves end.
    pub note: S::Note,
    /// There are more leaves.
    pub more: bool,
    /// Attests that are new to the device.
    pub attests: Vec<S::Attest>,
    /// Somebody wants an Attest.
    pub asked: bool,
    /// This entry cannot be ordered.
    pub refused: Option<S::Hash>,
    /// This entry was not ordered: blocks that its author stored before it are missing.
    pub unstored: Option<S::Hash>,
}

impl<S: Notary, R: Roll<S>, Q: Quotas<S::Device>> Orderer<S, R, Q> {
    /// A device opens a session with its newest note. The session before it is over.
    pub(super) fn open(&mut self, from: S::Device, note: Option<&S::Note>) -> Result<(), Turned> {
        let full = self.sessions.len() >= self.limits.sessions;
        if full && self.sessions.get(from).is_none() {
            return Err(Turned::Busy);
        }
        let (cursor, forked) = match note {
            None => (0, false),
            Some(note) => self.resume_at(note)?,
        };
        self.sessions.insert(
            from,
            Session {
                cursor,
                attests: 0,
                asked: false,
                beat: true,
                refused: None,
                unstored: None,
                forked,
            },
        );
        Ok(())
    }

    /// The prefix that a device has, and whether this log contradicts it. If this orderer has signed more than it
    /// has, it has forgotten leaves that it answered for: then whatever it signs next would be a fork. If it has signed
    /// another log of that size, there is a fork already, and the device is shown it (decision 0090).
    fn resume_at(&mut self, note: &S::Note) -> Result<(u64, bool), Turned> {
        let seen = S::noted(note);
        let published = seen.size <= self.published;
        let log = self.ledger.log();
        let here = log.root_at(seen.size).filter(|_| published);
        let known = here.is_none_or(|root| root == seen.root);
        if published && known {
            return Ok((seen.size, false));
        }
        if !self.scheme.note_is_signed(note) {
            return Err(Turned::OtherLog);
        }
        if published {
            return Ok((seen.size, true));
        }
        self.restored = true;
        Err(Turned::Restored)
    }

    /// Whether the device is shown that this log contradicts its own.
    pub fn is_forked(&self, device: S::Device) -> bool {
        let session = self.sessions.get(device);
        session.is_some_and(|session| session.forked)
    }

    /// An entry comes before its blocks: some that its author stored or asked for before it are missing. It is not
    /// ordered, and its author is told. An entry that has its place keeps it, and nobody is told. Gives whether its
    /// author is told.
    ///
    /// # Errors
    /// [`Turned::NoSession`], [`Turned::Forged`] for another device's entry.
    pub fn unstored(&mut self, from: S::Device, entry: &S::Entry) -> Result<bool, Turned> {
        if S::author(entry) != from {
            return Err(Turned::Forged);
        }
        let is_here = self
            .ledger
            .author(from)
            .is_some_and(|row| row.last == S::id(entry));
        let session = self.sessions.get_mut(from).ok_or(Turned::NoSession)?;
        if !is_here {
            session.unstored = Some(S::id(entry));
        }
        Ok(!is_here)
    }

    /// The device's connection is closed.
    pub fn disconnect(&mut self, device: S::Device) {
        self.sessions.remove(device);
    }

    /// It is time for a heartbeat: each device is sent the newest note.
    pub fn beat(&mut self) {
        for (_, session) in self.sessions.iter_mut() {
            session.beat = true;
        }
    }

    /// It is time for a heartbeat of this device.
    pub fn beat_to(&mut self, device: S::Device) {
        if let Some(session) = self.sessions.get_mut(device) {
            session.beat = true;
        }
    }

    /// Devices with a session.
    pub fn sessions(&self) -> impl Iterator<Item = S::Device> {
        self.sessions.iter().map(|(device, _)| device)
    }

    /// Whether [`Orderer::draw`] may have something for a device.
    pub fn has_news(&self, device: S::Device) -> bool {
        self.sessions.get(device).is_some_and(|session| {
            let behind = session.cursor < self.published;
            behind || self.attest_number > session.attests || session.is_called()
        })
    }

    /// What a device is sent next, at most a page. None: it has everything, or no session.
    pub fn draw(&mut self, device: S::Device) -> Option<Delivery<S>> {
        if self.restored {
            return None;
        }
        let session = self.sessions.get(device)?;
        let behind = session.cursor < self.published;
        let news = self.attest_number > session.attests;
        let called = session.is_called();
        if !behind && !news && !called {
            return None;
        }
        let from = session.cursor;
        if session.forked {
            return self.contradiction(device, from);
        }
        let (to, note) = self.page(from)?;
        let more = to < self.published;
        let session = self.sessions.get_mut(device)?;
        session.cursor = to;
        let mut delivery = Delivery {
            leaves: from..to,
            note,
            more,
            attests: Vec::new(),
            asked: std::mem::take(&mut session.asked),
            refused: session.refused.take(),
            unstored: session.unstored.take(),
        };
        session.beat = false;
        if !more && news {
            // An Attest counts for a device only if the device has the prefix that it names.
            let known = session.attests;
            session.attests = self.attest_number;
            let new = self.attests.iter().filter(|(by, _)| *by != device);
            let new = new.filter(|(_, (number, _))| *number > known);
            delivery.attests = new.map(|(_, (_, attest))| attest.clone()).collect();
        }
        let empty = from == to && !called && delivery.attests.is_empty();
        (!empty).then_some(delivery)
    }

    /// The note of this log with as many leaves as the device has of another. Both notes together are evidence, and
    /// the device needs nothing else: its session is over.
    fn contradiction(&mut self, device: S::Device, size: u64) -> Option<Delivery<S>> {
        self.sessions.remove(device);
        let root = self.ledger.log().root_at(size)?;
        Some(Delivery {
            leaves: size..size,
            note: self.scheme.note(Point { size, root }),
            more: false,
            attests: Vec::new(),
            asked: false,
            refused: None,
            unstored: None,
        })
    }

    fn page(&mut self, from: u64) -> Option<(u64, S::Note)> {
        if self.ledger.log().page_end(from, self.published) == self.published {
            return Some((self.published, self.note.clone()));
        }
        let end = self.ledger.log().page(from, self.published)?;
        Some((end.size, self.scheme.note(end)))
    }
}
