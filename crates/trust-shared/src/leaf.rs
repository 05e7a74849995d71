//! Leaves of a shared volume's log: entries, and the marks of group commits.

use bytes::Bytes;

use super::entry::{OPS, RESUME, SignedEntry};
use super::mark::{MARKS, Marks};
use trust::error::Reject;

/// A leaf. Its signature is not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leaf {
    /// What a device wrote.
    Entry(Box<SignedEntry>),
    /// The marks of a group commit.
    Marks(Marks),
}

impl Leaf {
    /// Reads a leaf.
    ///
    /// # Errors
    /// [`Reject::Unsupported`] for a kind of a later bulla; [`Reject::Malformed`] for other bytes that are no leaf.
    pub fn decode(bytes: Bytes) -> Result<Leaf, Reject> {
        match bytes.first() {
            None => Err(Reject::Malformed {
                what: "leaf",
                why: "empty",
            }),
            Some(&(OPS | RESUME)) => SignedEntry::decode(bytes).map(|e| Leaf::Entry(Box::new(e))),
            Some(&MARKS) => Marks::decode(&bytes).map(Leaf::Marks),
            Some(kind) => Err(Reject::Unsupported {
                what: "leaf",
                why: format!("kind {kind}"),
            }),
        }
    }

    /// The entry, unless the leaf has marks.
    pub fn entry(&self) -> Option<&SignedEntry> {
        match self {
            Leaf::Entry(entry) => Some(entry),
            Leaf::Marks(_) => None,
        }
    }
}
