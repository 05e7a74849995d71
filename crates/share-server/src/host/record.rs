//! Leaves as the server stores them: a leaf of the log, and the body of its entry. Bytes:
//! `docs/formats/shared-server.md`.
//!
//! The temporary log holds them in records of several; the files of `leaves/` hold them one after the other.

use bytes::Bytes;
use trust::Reject;
use trust::encode::{Decoder, Encoder};
use trust_shared::entry::{MAX_ENTRY_BYTES, MAX_OPS_BYTES, SignedEntry};
use trust_shared::leaf;
use trust_shared::mark;
use trust_shared::outline::Outline;

use ordering::roster::Product;
use ordering::scheme::Leaf;
use ordering::signed::{Entry, Marks};

/// The kind of a record of leaves in the temporary log.
pub const LEAVES: u8 = 1;
/// Most bytes of a record's body; the log allows no more.
pub const MAX_RECORD_BYTES: usize = wal::MAX_BODY_BYTES;
/// Most bytes that a stored leaf takes.
pub const MAX_STORED_BYTES: usize = MAX_ENTRY_BYTES + MAX_OPS_BYTES + 16;
/// Bodies up to this length are delivered with their leaves.
pub const SHORT_BODY_BYTES: usize = 1 << 10;

const NO_BODY: u8 = 0;
const BODY: u8 = 1;
const DECIDING_BODY: u8 = 2;
const WHAT: &str = "stored leaf";

/// A leaf of the log, and the body of its entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLeaf {
    /// The leaf's bytes.
    pub leaf: Bytes,
    /// The body, if the leaf is an entry with one.
    pub body: Option<Bytes>,
    /// Whether every device must read the body: it changes who is a member.
    pub decides: bool,
}

impl StoredLeaf {
    /// What is stored of a leaf.
    pub fn of(leaf: &Leaf<Product>) -> StoredLeaf {
        match leaf {
            Leaf::Entry(entry) => {
                let outline = entry.signed().entry().ops().map(|ops| &ops.outline);
                let outline = outline.map(|outline| Outline::decode(outline));
                StoredLeaf {
                    leaf: entry.signed().bytes().clone(),
                    body: entry.body().cloned(),
                    decides: matches!(outline, Some(Ok(outline)) if outline.decides()),
                }
            }
            Leaf::Marks(marks) => StoredLeaf {
                leaf: Bytes::copy_from_slice(&marks.leaf().encode()),
                body: None,
                decides: false,
            },
        }
    }

    /// The leaf, for a ledger. Its signature is not verified again.
    ///
    /// # Errors
    /// [`Reject`] for bytes that are no leaf, or a body of another entry.
    pub fn decode(&self) -> Result<Leaf<Product>, Reject> {
        let malformed = |why| Reject::Malformed { what: WHAT, why };
        match leaf::Leaf::decode(self.leaf.clone())? {
            leaf::Leaf::Entry(signed) => {
                let signed: SignedEntry = *signed;
                Ok(Leaf::Entry(match &self.body {
                    Some(body) => Entry::with_body(signed, body.clone())?,
                    None if signed.entry().is_resume() => Entry::new(signed),
                    None => return Err(malformed("an entry without its body")),
                }))
            }
            leaf::Leaf::Marks(_) if self.body.is_some() => Err(malformed("marks with a body")),
            leaf::Leaf::Marks(marks) => Ok(Leaf::Marks(leaf_of(marks))),
        }
    }

    /// Bytes of memory and of a record.
    pub fn bytes(&self) -> usize {
        let body = self.body.as_ref().map_or(0, Bytes::len);
        self.leaf.len() + body + 16
    }

    /// Appends `leaf | flag u8 | body`.
    pub fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.leaf);
        match &self.body {
            None => out.u8(NO_BODY),
            Some(body) if self.decides => out.u8(DECIDING_BODY).bytes(body),
            Some(body) => out.u8(BODY).bytes(body),
        };
    }

    /// Reads what [`StoredLeaf::encode`] wrote into `all`.
    ///
    /// # Errors
    /// [`Reject::Malformed`].
    pub fn read(d: &mut Decoder<'_>, all: &Bytes) -> Result<StoredLeaf, Reject> {
        let leaf = all.slice_ref(d.bytes(MAX_ENTRY_BYTES)?);
        let flag = d.u8()?;
        let body = match flag {
            NO_BODY => None,
            BODY | DECIDING_BODY => Some(all.slice_ref(d.bytes(MAX_OPS_BYTES)?)),
            _ => return Err(d.bad("an unknown flag")),
        };
        Ok(StoredLeaf {
            leaf,
            body,
            decides: flag == DECIDING_BODY,
        })
    }
}

fn leaf_of(marks: mark::Marks) -> Marks {
    Marks::new(marks, Vec::new())
}

/// Leaves that follow each other, as records of the temporary log.
pub(super) struct Records {
    /// Bodies of the records, and the number of leaves in each.
    bodies: Vec<(Vec<u8>, u64)>,
    next: u64,
}

impl Records {
    /// Begins at this position.
    pub fn from(position: u64) -> Records {
        Records {
            bodies: Vec::new(),
            next: position,
        }
    }

    /// Adds the next leaf.
    pub fn add(&mut self, stored: &StoredLeaf) {
        let mut leaf = Encoder::new();
        stored.encode(&mut leaf);
        let leaf = leaf.finish();
        match self.bodies.last_mut() {
            Some((body, count)) if body.len() + leaf.len() <= MAX_RECORD_BYTES => {
                body.extend_from_slice(&leaf);
                *count += 1;
            }
            _ => {
                let mut body = Encoder::new();
                body.varint(self.next);
                let mut body = body.finish();
                body.extend_from_slice(&leaf);
                self.bodies.push((body, 1));
            }
        }
        self.next += 1;
    }

    /// The records, in batches of at most so many bytes.
    pub fn batches(self, most_bytes: u64) -> Vec<Vec<wal::Record>> {
        let mut batches: Vec<Vec<wal::Record>> = Vec::new();
        let mut room = 0;
        for (body, _) in self.bodies {
            let bytes = body.len() as u64 + 8;
            if bytes > room {
                batches.push(Vec::new());
                room = most_bytes;
            }
            room = room.saturating_sub(bytes);
            let record = wal::Record {
                kind: LEAVES,
                body: body.into(),
                payload: Vec::new(),
            };
            if let Some(batch) = batches.last_mut() {
                batch.push(record);
            }
        }
        batches
    }
}

/// Reads a record of the temporary log: the position of its first leaf, and its leaves.
pub(super) fn read_record(body: &Bytes) -> Result<(u64, Vec<StoredLeaf>), Reject> {
    let mut d = Decoder::new(body, "record of leaves");
    if body.len() > MAX_RECORD_BYTES {
        return Err(d.bad("too long"));
    }
    let first = d.varint()?;
    let mut leaves = Vec::new();
    while d.remaining() > 0 {
        leaves.push(StoredLeaf::read(&mut d, body)?);
    }
    if leaves.is_empty() || first.checked_add(leaves.len() as u64).is_none() {
        return Err(d.bad("no leaves, or too many"));
    }
    Ok((first, leaves))
}

const _: () = assert!(MAX_ENTRY_BYTES + 64 < MAX_RECORD_BYTES);
