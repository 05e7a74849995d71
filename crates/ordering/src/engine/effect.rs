//! Messages between an engine and the server, effects of an engine, and its journal.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::unverified::Unverified;
use crate::ledger::Ledger;
use crate::scheme::{DeviceScheme, Leaf, Scheme};
use crate::volume::Volume;
use trust_shared::form::Faults;

/// From a device to the server.
#[derive(Clone, Debug)]
pub enum Request<S: Scheme> {
    /// The beginning of a session: everything since this note, please.
    Open(Option<S::Note>),
    /// Order this entry.
    Entry(S::Entry),
    /// Put this mark into the log.
    Mark(S::Mark),
    /// For those who wait for this device.
    Attest(S::Attest),
    /// Ask a device for an Attest.
    Ask(S::Device),
}

/// From the server to a device.
#[derive(Clone, Debug)]
pub struct Reply<S: Scheme> {
    /// Position of the first leaf.
    pub from: u64,
    /// Leaves up to the note.
    pub leaves: Vec<Leaf<S>>,
    /// The prefix that these leaves end.
    pub note: S::Note,
    /// There are more leaves, and the server will send them.
    pub more: bool,
    /// Attests that are new to the device.
    pub attests: Vec<S::Attest>,
    /// Somebody wants an Attest.
    pub asked: bool,
    /// This entry cannot be ordered any more: its form is wrong.
    pub refused: Option<S::Hash>,
    /// This entry was not ordered, because blocks that were stored before it are missing. The same bytes can be ordered
    /// when they are there.
    pub unstored: Option<S::Hash>,
}

/// An action that the engine asks for. Effects are done one after the other: those after a [`Effect::Sync`] wait until
/// the journal is durable.
pub enum Effect<S: DeviceScheme, V: Volume<S>, T> {
    /// Append to the journal.
    Journal(Record<S, V>),
    /// Make the journal durable.
    Sync,
    /// Send, if there is a connection. Otherwise forget it.
    Send(Request<S>),
    /// Store these blocks at the server. The next entry names them: send it only after them, and store them again with
    /// it after a new connection, until the entry is in the log.
    Store(Vec<V::Block>),
    /// The server did not order this entry, because blocks before it are missing. Store the blocks of the last
    /// [`Effect::Store`] again, and then send the entry again.
    Again(S::Entry),
    /// Fetch what the volume misses, put it where the volume looks, and call [`Engine::supplied`](super::Engine::supplied).
    /// The same may be asked for again while it is on its way; it need not be fetched twice.
    Fetch(V::Missing),
    /// Answer a program.
    Answer {
        /// Which call.
        ticket: T,
        /// What the program is told.
        answer: V::Answer,
        /// Size of the prefix at whose end the call took place.
        at: u64,
        /// Entries that the answer rests on although nobody speaks for them (relaxed policy).
        marked: V::Basis,
    },
    /// There is no room for this call. It was not taken.
    Busy(T),
    /// This call is taken back, as [`Engine::withdraw`](super::Engine::withdraw) asked. The log does not have it.
    Withdrawn(T),
    /// The server's reply does not fit, and proves nothing. Close the connection.
    Unfit(&'static str),
    /// A device attests a prefix that is not this log's: one of the two was shown another log.
    Differs(S::Attest),
    /// The engine has stopped writing. What it has verified stays readable.
    Stopped(StopReason<S>),
}

/// Why an engine stopped.
#[derive(Clone, Debug)]
pub enum StopReason<S: Scheme> {
    /// The device's key runs elsewhere: a Resume that this engine did not send is in the log.
    Elsewhere,
    /// The volume made an entry that has no encoding.
    Unsigned,
    /// The server lied, and signed it.
    Evidence(Evidence<S>),
}

/// A proof that the orderer lied.
#[derive(Clone, Debug)]
pub enum Evidence<S: Scheme> {
    /// An entry of bad form in a log that the note names.
    Form {
        /// Names a log with the entry.
        note: S::Note,
        /// Position of the entry.
        at: u64,
        /// The entry.
        entry: S::Entry,
        /// Faults of form at this position.
        faults: Faults,
        /// A fault that the entry has at any position.
        malformed: Option<&'static str>,
    },
    /// A log that does not begin with the prefix that the owners have named for the epoch.
    Start {
        /// Names the log.
        note: S::Note,
        /// Position of the first of these leaves.
        from: u64,
        /// Leaves that lead from this log's prefix to the note. A proof is made of them.
        leaves: Vec<Leaf<S>>,
    },
    /// Two notes, neither of which continues the other.
    Notes {
        /// The newest note of this log.
        mine: S::Note,
        /// A note that names neither a prefix of it nor a continuation.
        theirs: S::Note,
        /// Position of the first of these leaves.
        from: u64,
        /// Leaves that lead from this log's prefix to `theirs`, if that is longer. A proof is made of them.
        leaves: Vec<Leaf<S>>,
    },
}

/// A record of the journal, from which a restart begins.
pub enum Record<S: DeviceScheme, V: Volume<S>> {
    /// The verified log has grown.
    Floor {
        /// The new leaves.
        leaves: Vec<Leaf<S>>,
        /// Its end.
        note: S::Note,
    },
    /// An entry is about to be sent.
    Sent(Sent<S, V>),
    /// Entries that were sent before will not be ordered.
    Settled,
}

/// An entry, and the calls that its operations are for, in their order.
pub struct Sent<S: DeviceScheme, V: Volume<S>> {
    /// The entry.
    pub entry: S::Entry,
    /// One call for each operation.
    pub calls: Vec<V::Call>,
}

impl<S: DeviceScheme, V: Volume<S>> Clone for Sent<S, V> {
    fn clone(&self) -> Self {
        Sent {
            entry: self.entry.clone(),
            calls: self.calls.clone(),
        }
    }
}

impl<S: DeviceScheme, V: Volume<S>> fmt::Debug for Sent<S, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} for {:?}", self.entry, self.calls)
    }
}

impl<S: DeviceScheme, V: Volume<S>> Clone for Record<S, V> {
    fn clone(&self) -> Self {
        match self {
            Record::Floor { leaves, note } => Record::Floor {
                leaves: leaves.clone(),
                note: note.clone(),
            },
            Record::Sent(sent) => Record::Sent(sent.clone()),
            Record::Settled => Record::Settled,
        }
    }
}

/// The journal of a device, read from its beginning: what a restart starts from.
pub struct Durable<S: DeviceScheme, V: Volume<S>> {
    /// The floor.
    pub ledger: Arc<Ledger<S, V>>,
    /// Entries that were sent and are not in the floor.
    pub sent: Vec<Sent<S, V>>,
    /// The last entry of each author. The floor does not say whether it was verified.
    pub(crate) unverified: Unverified<S>,
}

impl<S: DeviceScheme, V: Volume<S>> Clone for Durable<S, V> {
    fn clone(&self) -> Self {
        Durable {
            ledger: Arc::clone(&self.ledger),
            sent: self.sent.clone(),
            unverified: self.unverified.clone(),
        }
    }
}

impl<S: DeviceScheme, V: Volume<S>> fmt::Debug for Durable<S, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, sent {:?}", self.ledger, self.sent)
    }
}

impl<S: DeviceScheme, V: Volume<S>> Hash for Durable<S, V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.ledger.hash(state);
        self.sent.len().hash(state);
        for sent in &self.sent {
            (S::id(&sent.entry), &sent.calls).hash(state);
        }
        for (author, _) in self.unverified.iter() {
            author.hash(state);
        }
    }
}

impl<S: DeviceScheme, V: Volume<S>> Durable<S, V> {
    /// Adds the last entry of an author that nothing has vouched for yet.
    pub fn add_unverified(&mut self, at: u64, entry: &S::Entry) {
        self.unverified.insert(at, entry);
    }

    /// An empty journal, and a log that is known by other means: empty, or from a checkpoint.
    pub fn new(ledger: Ledger<S, V>) -> Self {
        Durable {
            ledger: Arc::new(ledger),
            sent: Vec::new(),
            unverified: Unverified::default(),
        }
    }

    /// Takes the next leaf of the floor, which was checked before it was written.
    pub fn extend(&mut self, leaf: &Leaf<S>) {
        let ledger = Arc::make_mut(&mut self.ledger);
        if let Leaf::Entry(entry) = leaf {
            self.unverified.insert(ledger.size(), entry);
        }
        ledger.extend(leaf);
    }

    /// The floor has met this note, which names its end or more.
    pub fn met(&mut self, note: &S::Note) {
        Arc::make_mut(&mut self.ledger).met(note);
    }

    /// Takes the next record. The engine verified it before it was written.
    pub fn apply(&mut self, record: &Record<S, V>) {
        match record {
            Record::Floor { leaves, note } => {
                for leaf in leaves {
                    self.extend(leaf);
                    if let Leaf::Entry(entry) = leaf {
                        let id = S::id(entry);
                        self.sent.retain(|sent| S::id(&sent.entry) != id);
                    }
                }
                self.met(note);
            }
            Record::Sent(sent) => self.sent.push(sent.clone()),
            Record::Settled => self.sent.clear(),
        }
    }
}
