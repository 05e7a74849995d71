//! A verified prefix of the log, and what it says: roots, one row for each author, the volume.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::ablation::Rules;
use crate::rows::Rows;
use crate::scheme::{Leaf, Log, Scheme};
use crate::volume::Roll;
use trust_shared::form::{Author, Faults, Point, Standing, faults};

/// What a device, or the orderer, knows of the log.
pub struct Ledger<S: Scheme, R> {
    log: S::Log,
    authors: Rows<S::Device, Author<S::Hash, S::Incarnation>>,
    volume: R,
    note: Option<S::Note>,
    /// Size of the log with which a checkpoint began.
    begins: u64,
}

impl<S: Scheme, R: Clone> Clone for Ledger<S, R> {
    fn clone(&self) -> Self {
        Ledger {
            log: self.log.clone(),
            authors: self.authors.clone(),
            volume: self.volume.clone(),
            note: self.note.clone(),
            begins: self.begins,
        }
    }
}

impl<S: Scheme, R> fmt::Debug for Ledger<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ledger({:?})", self.log.point())
    }
}

/// Everything in it follows from the log and from where it began, so size and root tell two of them apart.
impl<S: Scheme, R> Hash for Ledger<S, R> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.log.point(), self.begins).hash(state);
    }
}

impl<S: Scheme, R: Roll<S>> Ledger<S, R> {
    /// An empty log, and the volume as its genesis policy says.
    pub fn new(log: S::Log, volume: R) -> Self {
        Ledger {
            log,
            authors: Rows::default(),
            volume,
            note: None,
            begins: 0,
        }
    }

    /// Goes on after a log that is known by other means. `begins` is [`Ledger::begins`].
    pub fn resume(
        log: S::Log,
        authors: Rows<S::Device, Author<S::Hash, S::Incarnation>>,
        volume: R,
        begins: u64,
    ) -> Self {
        Ledger {
            log,
            authors,
            volume,
            note: None,
            begins,
        }
    }

    /// Begins with a checkpoint: a log whose end this note names, and in which every entry is attested or accepted.
    pub fn begin(
        log: S::Log,
        authors: Rows<S::Device, Author<S::Hash, S::Incarnation>>,
        volume: R,
        note: S::Note,
    ) -> Self {
        Ledger {
            begins: log.size(),
            log,
            authors,
            volume,
            note: Some(note),
        }
    }

    /// Size of the log with which a checkpoint began; 0 without one. Checkpointers speak for the entries before.
    pub fn begins(&self) -> u64 {
        self.begins
    }

    /// The log's roots.
    pub fn log(&self) -> &S::Log {
        &self.log
    }

    /// Number of leaves.
    pub fn size(&self) -> u64 {
        self.log.size()
    }

    /// The whole log.
    pub fn point(&self) -> Point<S::Hash> {
        self.log.point()
    }

    /// The volume at the end of the log.
    pub fn volume(&self) -> &R {
        &self.volume
    }

    /// The same log with what `change` makes of the volume.
    #[must_use]
    pub fn with_volume(self, change: impl FnOnce(R) -> R) -> Self {
        Ledger {
            volume: change(self.volume),
            ..self
        }
    }

    /// A prefix that many entries will name.
    pub(crate) fn remember(&mut self, point: Point<S::Hash>) {
        self.log.remember(point);
    }

    /// What the log says about a device.
    pub fn author(&self, device: S::Device) -> Option<&Author<S::Hash, S::Incarnation>> {
        self.authors.get(device)
    }

    /// What it says about every device that wrote.
    pub fn authors(&self) -> impl Iterator<Item = (S::Device, &Author<S::Hash, S::Incarnation>)> {
        self.authors.iter()
    }

    /// The newest note that this log has met.
    pub fn note(&self) -> Option<&S::Note> {
        self.note.as_ref()
    }

    /// The log has met this note, which names its end.
    pub fn met(&mut self, note: &S::Note) {
        self.note = Some(note.clone());
    }

    /// Faults of an entry as the next leaf.
    pub fn faults(&self, rules: S::Rules, entry: &S::Entry) -> Faults {
        let device = S::author(entry);
        let standing = Standing {
            author: self.author(device),
            active: self.volume.active(device),
            admitted: self.volume.admitted(device),
        };
        let root_at = |size| self.log.root_at(size);
        faults(&standing, &S::heading(entry), root_at).without(rules.ignored())
    }

    /// Adds a leaf that was found right.
    pub fn extend(&mut self, leaf: &Leaf<S>) {
        let at = self.size();
        if let Leaf::Entry(entry) = leaf {
            let device = S::author(entry);
            let row = Author::after(
                self.authors.get(device),
                &S::heading(entry),
                S::id(entry),
                at,
            );
            self.authors.insert(device, row);
            // Entries of one round name the same prefix.
            self.log.remember(S::heading(entry).seen);
            self.volume.extend(at, entry);
        }
        self.log.push(leaf);
    }
}
