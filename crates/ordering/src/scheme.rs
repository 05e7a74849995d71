//! What the state machines leave open: hashes, signatures, randomness, the log's tree.
//!
//! The product fills it with SHA-256, Ed25519 and random bytes. The model in `tests/model` fills it with symbolic
//! hashes and signatures, so that an explorer can drive the same machines through millions of states.

use std::fmt::Debug;
use std::hash::Hash;

use crate::ablation::Rules;
use trust_shared::form::{Heading, Point};

/// Types of what is signed and hashed, and how it is verified. One value serves one log epoch of one volume.
pub trait Scheme: Clone {
    /// Name of a device.
    type Device: Copy + Ord + Hash + Debug;
    /// Hash of a leaf, an entry, a prefix.
    type Hash: Copy + Eq + Hash + Debug;
    /// Name of one run of a device's engine.
    type Incarnation: Copy + Eq + Hash + Debug;
    /// An entry as it was signed. Copying it is cheap.
    type Entry: Clone + Debug;
    /// A nonce that a device puts into the log, to learn what came before.
    type Mark: Copy + Eq + Hash + Debug;
    /// The leaf of the marks of one group commit, or the part of it that one device needs.
    type Marks: Clone + Debug;
    /// "I have seen this prefix, and my last entry is in it", signed by a device.
    type Attest: Clone + Debug;
    /// A prefix of the log, signed by the orderer.
    type Note: Clone + Debug;
    /// Roots of the log's prefixes.
    type Log: Log<Self>;
    /// Which rules a client follows.
    type Rules: Rules;

    /// The rules of this client.
    fn rules(&self) -> Self::Rules;
    /// Who wrote an entry, as it says.
    fn author(entry: &Self::Entry) -> Self::Device;
    /// What an entry says about itself.
    fn heading(entry: &Self::Entry) -> Heading<Self::Hash, Self::Incarnation>;
    /// The hash by which the author's next entry names an entry.
    fn id(entry: &Self::Entry) -> Self::Hash;
    /// Whether these marks have a mark.
    fn has_mark(marks: &Self::Marks, mark: &Self::Mark) -> bool;
    /// Who signed an Attest, as it says, and for which prefix.
    fn attested(attest: &Self::Attest) -> (Self::Device, Point<Self::Hash>);
    /// The prefix that a note names.
    fn noted(note: &Self::Note) -> Point<Self::Hash>;

    /// The prefix with which the log of this epoch begins: the owners have named it. The first epoch's is empty.
    fn start(&self) -> Option<Point<Self::Hash>>;
    /// Whether an entry says the epoch that a leaf at this position has: before the start of this epoch an earlier one,
    /// and this one from there on.
    fn has_epoch_of(&self, at: u64, entry: &Self::Entry) -> bool;
    /// Whether its author signed an entry for this volume, in whatever epoch.
    fn entry_is_signed(&self, entry: &Self::Entry) -> bool;
    /// Whether its device signed an Attest for this volume and epoch.
    fn attest_is_signed(&self, attest: &Self::Attest) -> bool;
    /// Whether the orderer signed a note for this volume and epoch.
    fn note_is_signed(&self, note: &Self::Note) -> bool;
}

/// A device's secrets.
pub trait DeviceScheme: Scheme {
    /// One operation of an entry.
    type Op: Clone + Debug;

    /// The device.
    fn me(&self) -> Self::Device;
    /// Signs an entry. None: it has no encoding, because the volume gave it more operations than there is room for.
    fn sign(
        &self,
        heading: Heading<Self::Hash, Self::Incarnation>,
        ops: Vec<Self::Op>,
    ) -> Option<Self::Entry>;
    /// Signs an Attest. None: it has no encoding.
    fn attest(&self, seen: Point<Self::Hash>) -> Option<Self::Attest>;
    /// `previous` of a device's first entry.
    fn no_entry(&self) -> Self::Hash;
    /// Draws an incarnation that was never drawn before.
    fn incarnation(&mut self) -> Self::Incarnation;
    /// Draws a mark that was never drawn before.
    fn mark(&mut self) -> Self::Mark;
}

/// The orderer's secrets.
pub trait Notary: Scheme {
    /// Signs a note.
    fn note(&mut self, point: Point<Self::Hash>) -> Self::Note;
    /// The leaf of the marks of one group commit. None: there are none.
    fn marks(&self, marks: &[Self::Mark]) -> Option<Self::Marks>;
}

/// One leaf of the log.
#[derive(Debug)]
pub enum Leaf<S: Scheme> {
    /// What a device wrote.
    Entry(S::Entry),
    /// Nonces, which nobody signed.
    Marks(S::Marks),
}

impl<S: Scheme> Clone for Leaf<S> {
    fn clone(&self) -> Self {
        match self {
            Leaf::Entry(entry) => Leaf::Entry(entry.clone()),
            Leaf::Marks(marks) => Leaf::Marks(marks.clone()),
        }
    }
}

/// Roots of the prefixes of a log that grows.
pub trait Log<S: Scheme>: Clone + Debug {
    /// Number of leaves.
    fn size(&self) -> u64;
    /// Root of all leaves.
    fn root(&self) -> S::Hash;
    /// Root of the first `size` leaves. None: there are not so many, or the prefix is too old to be named. Which
    /// prefixes are too old depends on sizes only, so that everybody judges an entry alike.
    fn root_at(&self, size: u64) -> Option<S::Hash>;
    /// Whether the leaf at a position is this one. None: too old to know, or beyond the end.
    fn is_at(&self, at: u64, leaf: &Leaf<S>) -> Option<bool>;
    /// Root of the first `from` leaves and these after them. None: that prefix is too old, or beyond the end.
    fn root_with(&self, from: u64, leaves: &[Leaf<S>]) -> Option<S::Hash>;
    /// Adds a leaf.
    fn push(&mut self, leaf: &Leaf<S>);
    /// The prefix that ends a page which begins at `from` and ends at `to` or before. Its root is known, however old.
    fn page(&self, from: u64, to: u64) -> Option<Point<S::Hash>>;

    /// A prefix of this log that will be asked for often.
    fn remember(&mut self, _point: Point<S::Hash>) {}

    /// Size of [`Log::page`], where that is cheaper to know than its root.
    fn page_end(&self, from: u64, to: u64) -> u64 {
        self.page(from, to).map_or(to, |end| end.size)
    }

    /// The whole log.
    fn point(&self) -> Point<S::Hash> {
        Point {
            size: self.size(),
            root: self.root(),
        }
    }
}
