//! What the server pushes to a device: new leaves, the note that they lead to, Attests.
//!
//! A delivery comes in parts, because it may be long: any number of LEAVES_PART and ATTESTS, then a DELIVERY. [`Gather`]
//! puts it together again. Nothing here is verified.

use bytes::{BufMut, Bytes, BytesMut};
use trust::Reject;
use trust::encode::{Decoder, Encoder};
use trust_shared::attest::SignedAttest;
use trust_shared::entry::{MAX_ENTRY_BYTES, MAX_OPS_BYTES, SignedEntry};
use trust_shared::leaf::Leaf;
use trust_shared::mark::{MarkProof, Marks, Nonce};
use trust_shared::note::SignedNote;

use super::{MAX_DELIVERY_BYTES, MAX_LEAVES, kind};

/// Most proofs of marks with one leaf: a device's marks that wait for one group commit.
pub const MAX_PROOFS: usize = 256;
/// Longest Attest, bytes.
const MAX_ATTEST_BYTES: usize = 256;

const MORE: u8 = 1;
const ASKED: u8 = 2;
const REFUSED: u8 = 4;
const UNSTORED: u8 = 8;

/// A leaf as it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SentLeaf {
    /// An entry.
    Entry {
        /// As its author signed it.
        entry: Box<SignedEntry>,
        /// Its body, if the server sent it along. Compare it with the entry before use.
        body: Option<Bytes>,
    },
    /// The marks of a group commit.
    Marks {
        /// The leaf.
        marks: Marks,
        /// Proofs of the receiving device's marks.
        proofs: Vec<(Nonce, MarkProof)>,
    },
}

impl SentLeaf {
    /// Reads what [`LeavesPart::push`] wrote. Copies: a leaf that somebody keeps must not keep the whole part.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything else, [`Reject::Unsupported`] for a leaf of a later bulla.
    fn decode(d: &mut Decoder<'_>) -> Result<SentLeaf, Reject> {
        let bytes = d.bytes(MAX_ENTRY_BYTES)?;
        match Leaf::decode(Bytes::copy_from_slice(bytes))? {
            Leaf::Entry(entry) => {
                let body = match d.u8()? {
                    0 => None,
                    1 => Some(Bytes::copy_from_slice(d.bytes(MAX_OPS_BYTES)?)),
                    _ => return Err(d.bad("a flag is 0 or 1")),
                };
                if body.is_some() && entry.entry().is_resume() {
                    return Err(d.bad("a Resume with a body"));
                }
                Ok(SentLeaf::Entry { entry, body })
            }
            Leaf::Marks(marks) => {
                let count = d.bounded(MAX_PROOFS as u64, "too many proofs of marks")?;
                let mut proofs = Vec::new();
                for _ in 0..count {
                    let nonce = Nonce::from_bytes(d.array()?);
                    proofs.push((nonce, MarkProof::decode(d)?));
                }
                Ok(SentLeaf::Marks { marks, proofs })
            }
        }
    }
}

/// What a device is sent at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Position of the first leaf.
    pub from: u64,
    /// Leaves up to the note.
    pub leaves: Vec<SentLeaf>,
    /// The prefix that these leaves end.
    pub note: SignedNote,
    /// There are more leaves, and the server will send them.
    pub more: bool,
    /// Attests that are new to the device.
    pub attests: Vec<SignedAttest>,
    /// Somebody wants an Attest of this device.
    pub asked: bool,
    /// The entry of this device with this leaf hash cannot be ordered.
    pub refused: Option<[u8; 32]>,
    /// The entry of this device with this leaf hash was not ordered: blocks that came before it are missing.
    pub unstored: Option<[u8; 32]>,
}

/// The end of a delivery: all but its leaves and Attests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Position of the first leaf; where it would be if there is none.
    pub from: u64,
    /// As in [`Delivery`].
    pub note: SignedNote,
    /// As in [`Delivery`].
    pub more: bool,
    /// As in [`Delivery`].
    pub asked: bool,
    /// As in [`Delivery`].
    pub refused: Option<[u8; 32]>,
    /// As in [`Delivery`].
    pub unstored: Option<[u8; 32]>,
}

impl End {
    /// The body of a DELIVERY.
    pub fn encode(&self) -> Bytes {
        let mut e = Encoder::new();
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = flag(self.more, MORE)
            | flag(self.asked, ASKED)
            | flag(self.refused.is_some(), REFUSED)
            | flag(self.unstored.is_some(), UNSTORED);
        e.u64(self.from).u8(flags);
        self.note.encode(&mut e);
        for entry in [&self.refused, &self.unstored].into_iter().flatten() {
            e.raw(entry);
        }
        e.finish().into()
    }

    /// Reads what [`End::encode`] wrote.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything else.
    pub fn decode(body: &[u8]) -> Result<End, Reject> {
        let mut d = Decoder::new(body, "delivery");
        let from = d.u64()?;
        let flags = d.u8()?;
        if flags & !(MORE | ASKED | REFUSED | UNSTORED) != 0 {
            return Err(d.bad("unknown flag"));
        }
        let note = SignedNote::decode(&mut d)?;
        let mut entry = |flag: u8| match flags & flag {
            0 => Ok(None),
            _ => d.array().map(Some),
        };
        let (refused, unstored) = (entry(REFUSED)?, entry(UNSTORED)?);
        d.finish()?;
        Ok(End {
            from,
            note,
            more: flags & MORE != 0,
            asked: flags & ASKED != 0,
            refused,
            unstored,
        })
    }
}

/// The body of a LEAVES_PART: the position of the first leaf, then the leaves.
pub struct LeavesPart(Encoder);

impl LeavesPart {
    /// A part that begins at a position.
    pub fn new(from: u64) -> LeavesPart {
        let mut e = Encoder::new();
        e.u64(from);
        LeavesPart(e)
    }

    /// Appends the next leaf: its bytes, and what is sent with it. An entry may have its body, the marks of a group
    /// commit may have proofs.
    pub fn push(&mut self, leaf: &[u8], body: Option<&[u8]>, proofs: &[(Nonce, MarkProof)]) {
        let e = &mut self.0;
        e.bytes(leaf);
        if Marks::decode(leaf).is_ok() {
            let proofs = proofs.get(..MAX_PROOFS).unwrap_or(proofs);
            e.varint(proofs.len() as u64);
            for (nonce, proof) in proofs {
                e.raw(nonce.as_bytes());
                proof.encode(e);
            }
        } else if let Some(body) = body {
            e.u8(1).bytes(body);
        } else {
            e.u8(0);
        }
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no leaf.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 8
    }

    /// The body.
    pub fn finish(self) -> Bytes {
        self.0.finish().into()
    }
}

/// Reads the body of a LEAVES_PART: the position of the first leaf, and at least one leaf.
///
/// # Errors
/// [`Reject::Malformed`] for anything else, for no leaf or more than [`MAX_LEAVES`]; [`Reject::Unsupported`] for a leaf of
/// a later bulla.
pub fn decode_leaves(body: &[u8]) -> Result<(u64, Vec<SentLeaf>), Reject> {
    let mut d = Decoder::new(body, "leaves");
    let from = d.u64()?;
    let mut leaves = Vec::new();
    while d.remaining() > 0 {
        if leaves.len() >= MAX_LEAVES {
            return Err(d.bad("too many leaves"));
        }
        leaves.push(SentLeaf::decode(&mut d)?);
    }
    if leaves.is_empty() || from.checked_add(leaves.len() as u64).is_none() {
        return Err(d.bad("no leaves, or at no position"));
    }
    Ok((from, leaves))
}

/// Appends an Attest to the body of an ATTESTS.
pub fn put_attest(attest: &SignedAttest, out: &mut BytesMut) {
    let mut e = Encoder::new();
    e.bytes(attest.bytes());
    out.put_slice(&e.finish());
}

/// Reads the body of an ATTESTS.
///
/// # Errors
/// [`Reject::Malformed`] for anything but Attests, at least one.
pub fn decode_attests(body: &[u8]) -> Result<Vec<SignedAttest>, Reject> {
    let mut d = Decoder::new(body, "attests");
    let mut attests = Vec::new();
    while d.remaining() > 0 {
        let bytes = d.bytes(MAX_ATTEST_BYTES)?;
        attests.push(SignedAttest::decode(Bytes::copy_from_slice(bytes))?);
    }
    if attests.is_empty() {
        return Err(d.bad("no Attests"));
    }
    Ok(attests)
}

/// Puts the parts of a delivery together.
#[derive(Debug, Default)]
pub struct Gather {
    from: u64,
    leaves: Vec<SentLeaf>,
    attests: Vec<SignedAttest>,
    bytes: usize,
}

impl Gather {
    /// Whether a message of this type is part of a delivery.
    pub const fn is_part(kind: u8) -> bool {
        matches!(kind, kind::LEAVES_PART | kind::ATTESTS | kind::DELIVERY)
    }

    /// Whether a part with a body of this length may come.
    pub fn has_room(&self, body_bytes: usize) -> bool {
        body_bytes <= MAX_DELIVERY_BYTES.saturating_sub(self.bytes)
    }

    /// Bytes of the parts that were taken.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes a part; gives the delivery when it was the last.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for parts that do not fit together, and for more than an honest server sends.
    pub fn take(&mut self, kind: u8, body: &[u8]) -> Result<Option<Delivery>, Reject> {
        if !self.has_room(body.len()) {
            return Err(bad("too long"));
        }
        self.bytes = self.bytes.saturating_add(body.len());
        match kind {
            kind::LEAVES_PART => self.take_leaves(body)?,
            kind::ATTESTS => self.attests.append(&mut decode_attests(body)?),
            kind::DELIVERY => return self.end(&End::decode(body)?).map(Some),
            _ => return Err(bad("another message inside")),
        }
        Ok(None)
    }

    fn take_leaves(&mut self, body: &[u8]) -> Result<(), Reject> {
        let (from, mut leaves) = decode_leaves(body)?;
        if self.leaves.is_empty() {
            self.from = from;
        }
        let expected = self.from.checked_add(self.leaves.len() as u64);
        let count = self.leaves.len().saturating_add(leaves.len());
        if expected != Some(from) || count > MAX_LEAVES {
            return Err(bad("its leaves do not follow one another, or are too many"));
        }
        self.leaves.append(&mut leaves);
        Ok(())
    }

    fn end(&mut self, end: &End) -> Result<Delivery, Reject> {
        let Gather {
            from,
            leaves,
            attests,
            ..
        } = std::mem::take(self);
        if !leaves.is_empty() && from != end.from {
            return Err(bad("its leaves begin elsewhere"));
        }
        Ok(Delivery {
            from: end.from,
            leaves,
            note: end.note,
            more: end.more,
            attests,
            asked: end.asked,
            refused: end.refused,
            unstored: end.unstored,
        })
    }
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed {
        what: "delivery",
        why,
    }
}

#[cfg(test)]
mod tests;
