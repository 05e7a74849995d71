//! What the journal's records say. An item is one step of the engine, cut into as many records as it needs.
//!
//! ```text
//! record = more u8 (1: the item goes on in the next record) | part of an item
//! item   = kind u8 | content
//! 1 base     first varint | leaves varint | bytes varint | root [32] | noted u8 | note [120] if noted     the first item
//! 2 floor    from varint | count varint | count × leaf | note [120]
//! 3 sent     bytes of the entry | has body u8 | body | count varint | count × bytes of a call
//! 4 settled
//! leaf   = bytes of the leaf | has body u8 | body
//! ```
//!
//! Bytes and bodies have a varint before them that says how many they are. A journal is written by one program for
//! itself. Still every length is bounded, because a disk may give back anything.

use bytes::Bytes;

use trust::Reject;
use trust::encode::{Decoder, Encoder};
use trust_shared::entry::{MAX_ENTRY_BYTES, MAX_OPS_BYTES, SignedEntry};
use trust_shared::leaf::Leaf as Bare;
use trust_shared::note::SignedNote;

use crate::files;
use ordering::prefixes::PAGE;
use ordering::scheme::Leaf;
use ordering::signed::{Codec, Entry, Marks, Signed};

/// Longest item, bytes: an entry, and the 512 calls that a client has at a time.
pub(super) const MAX_ITEM_BYTES: usize = 33 << 20;
/// Most calls of an entry: one for each operation.
const MAX_CALLS: u64 = 1 << 12;
/// Longest call, bytes.
const MAX_CALL_BYTES: usize = 256 << 10;
// The limits let a device read every record that it writes.
const _: () = assert!(files::MAX_CALL_BYTES <= MAX_CALL_BYTES);

const WHAT: &str = "journal of a shared volume";
const BASE: u8 = 1;
const FLOOR: u8 = 2;
const SENT: u8 = 3;
const SETTLED: u8 = 4;

/// What was moved to the file of leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Base {
    /// Position of the first leaf: that after the checkpoint with which the device began.
    pub(super) first: u64,
    /// Position after the last leaf of the file.
    pub(super) leaves: u64,
    /// Length of the file that counts.
    pub(super) bytes: u64,
    /// Root of these leaves.
    pub(super) root: [u8; 32],
    /// A note that names them, or more.
    pub(super) note: Option<SignedNote>,
}

/// One item.
pub(super) enum Item<C: Codec> {
    Base(Base),
    Floor {
        from: u64,
        leaves: Vec<Leaf<Signed<C>>>,
        note: SignedNote,
    },
    Sent {
        entry: Entry,
        calls: Vec<Bytes>,
    },
    Settled,
}

/// The bytes of [`Item::Floor`] with leaves that are encoded already.
pub(super) fn encode_floor<'a>(
    from: u64,
    leaves: impl ExactSizeIterator<Item = &'a [u8]>,
    note: &SignedNote,
) -> Vec<u8> {
    let mut e = Encoder::new();
    e.u8(FLOOR).varint(from).varint(leaves.len() as u64);
    for leaf in leaves {
        e.raw(leaf);
    }
    note.encode(&mut e);
    e.finish()
}

impl<C: Codec> Item<C> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        match self {
            Item::Base(base) => {
                e.u8(BASE).varint(base.first);
                e.varint(base.leaves).varint(base.bytes);
                e.raw(&base.root).u8(u8::from(base.note.is_some()));
                if let Some(note) = &base.note {
                    note.encode(&mut e);
                }
            }
            Item::Floor { from, leaves, note } => {
                let leaves = leaves.iter().map(|leaf| {
                    let mut e = Encoder::new();
                    encode_leaf(leaf, &mut e);
                    e.finish()
                });
                let leaves: Vec<Vec<u8>> = leaves.collect();
                return encode_floor(*from, leaves.iter().map(Vec::as_slice), note);
            }
            Item::Sent { entry, calls } => {
                e.u8(SENT).bytes(entry.signed().bytes());
                encode_body(entry.body(), &mut e);
                e.varint(calls.len() as u64);
                for call in calls {
                    e.bytes(call);
                }
            }
            Item::Settled => {
                e.u8(SETTLED);
            }
        }
        e.finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Reject> {
        let mut d = Decoder::new(bytes, WHAT);
        let item = match d.u8()? {
            BASE => Item::Base(Base {
                first: d.varint()?,
                leaves: d.varint()?,
                bytes: d.varint()?,
                root: d.array()?,
                note: match d.u8()? {
                    0 => None,
                    _ => Some(SignedNote::decode(&mut d)?),
                },
            }),
            FLOOR => {
                let from = d.varint()?;
                let count = d.bounded(2 * PAGE, "too many leaves")?;
                let leaves = (0..count).map(|_| decode_leaf(&mut d, Bytes::copy_from_slice));
                Item::Floor {
                    from,
                    leaves: leaves.collect::<Result<_, _>>()?,
                    note: SignedNote::decode(&mut d)?,
                }
            }
            SENT => {
                let entry = Bytes::copy_from_slice(d.bytes(MAX_ENTRY_BYTES)?);
                let entry = SignedEntry::decode(entry)?;
                let entry = Entry::known(entry, decode_body(&mut d, Bytes::copy_from_slice)?);
                let count = d.bounded(MAX_CALLS, "too many calls")?;
                let call = |_| Ok(Bytes::copy_from_slice(d.bytes(MAX_CALL_BYTES)?));
                let calls = (0..count).map(call).collect::<Result<_, Reject>>()?;
                Item::Sent { entry, calls }
            }
            SETTLED => Item::Settled,
            _ => return Err(d.bad("an item that this bulla does not know")),
        };
        d.finish()?;
        Ok(item)
    }
}

/// Appends a leaf, and the body that came with it.
pub(crate) fn encode_leaf<C: Codec>(leaf: &Leaf<Signed<C>>, e: &mut Encoder) {
    match leaf {
        Leaf::Entry(entry) => {
            e.bytes(entry.signed().bytes());
            encode_body(entry.body(), e);
        }
        Leaf::Marks(marks) => {
            e.bytes(&marks.leaf().encode());
            encode_body(None, e);
        }
    }
}

/// Reads what [`encode_leaf`] wrote. Nothing of it is verified again. `own` makes bytes of the decoder last: a leaf that
/// somebody keeps must not keep much more.
pub(crate) fn decode_leaf<C: Codec>(
    d: &mut Decoder<'_>,
    own: impl Fn(&[u8]) -> Bytes,
) -> Result<Leaf<Signed<C>>, Reject> {
    let bytes = own(d.bytes(MAX_ENTRY_BYTES)?);
    let body = decode_body(d, own)?;
    Ok(match Bare::decode(bytes)? {
        Bare::Entry(entry) => Leaf::Entry(Entry::known(*entry, body)),
        Bare::Marks(marks) => Leaf::Marks(Marks::new(marks, Vec::new())),
    })
}

fn encode_body(body: Option<&Bytes>, e: &mut Encoder) {
    e.u8(u8::from(body.is_some()));
    if let Some(body) = body {
        e.bytes(body);
    }
}

fn decode_body(d: &mut Decoder<'_>, own: impl Fn(&[u8]) -> Bytes) -> Result<Option<Bytes>, Reject> {
    match d.u8()? {
        0 => Ok(None),
        _ => Ok(Some(own(d.bytes(MAX_OPS_BYTES)?))),
    }
}

/// Cuts an item into records of at most `most` bytes.
pub(super) fn cut(item: &[u8], most: usize) -> impl Iterator<Item = Vec<u8>> {
    let parts = item.chunks(most.saturating_sub(1).max(1));
    let last = parts.len().saturating_sub(1);
    let record = move |(at, part): (usize, &[u8])| [&[u8::from(at < last)], part].concat();
    parts.enumerate().map(record)
}

/// Puts records together again.
#[derive(Debug, Default)]
pub(super) struct Join {
    part: Vec<u8>,
}

impl Join {
    /// Takes the next record. Gives the item that it ends.
    pub(super) fn take(&mut self, record: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
        let (more, part) = record.split_first().ok_or("an empty record")?;
        if self.part.len().saturating_add(part.len()) > MAX_ITEM_BYTES {
            return Err("an item that is too long");
        }
        self.part.extend_from_slice(part);
        match more {
            0 => Ok(Some(std::mem::take(&mut self.part))),
            1 => Ok(None),
            _ => Err("a record that is no part of an item"),
        }
    }

    /// An item has begun and not ended.
    pub(super) fn is_torn(&self) -> bool {
        !self.part.is_empty()
    }
}
