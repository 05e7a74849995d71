//! What a client sends after ENTER. A [`Request`] owns its bytes, because the server keeps it while it waits for a disk.
//!
//! Decoding checks form and limits only: no signature, and no hash of a body or a block.

use bytes::{BufMut, Bytes, BytesMut};
use trust::device::DeviceKey;
use trust::encode::{Decoder, Encoder};
use trust::key::SIGNATURE_BYTES;
use trust::{Handle, Record, Reject};
use trust_shared::attest::SignedAttest;
use trust_shared::entry::{MAX_ENTRY_BYTES, MAX_OPS_BYTES, SignedEntry};
use trust_shared::mark::Nonce;
use trust_shared::note::{NOTE_BYTES, SignedNote};

use super::{
    MAX_CHECKPOINT_BYTES, MAX_LEAVES, MAX_LETTER_BYTES, MAX_NAMES, MAX_STORE_BYTES, MAX_TAKE_MS,
    kind,
};
use crate::frame::Header;

const WHAT: &str = "request";
/// Longest Attest: two varints of ten bytes, device, root, signature.
const MAX_ATTEST_BYTES: usize = 10 + 32 + 10 + 32 + SIGNATURE_BYTES;
/// Longest entry with its body: outline and body share a limit.
const MAX_ENTRY_MESSAGE_BYTES: usize = 3 + MAX_ENTRY_BYTES + 3;

/// Where a message of an admission lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// The invitation's id.
    pub invitation: [u8; 16],
    /// Which of its messages.
    pub step: Step,
}

/// The messages of an admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Step {
    /// The joiner's request.
    Request = 1,
    /// The inviter's challenge.
    Challenge = 2,
    /// The joiner's opening.
    Opening = 3,
}

impl Slot {
    fn encode(&self, e: &mut Encoder) {
        e.raw(&self.invitation).u8(self.step as u8);
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Slot, Reject> {
        Ok(Slot {
            invitation: d.array()?,
            step: match d.u8()? {
                1 => Step::Request,
                2 => Step::Challenge,
                3 => Step::Opening,
                _ => return Err(d.bad("unknown message of an admission")),
            },
        })
    }
}

/// A message of a client. The first six belong to the session: OPEN is answered by the [`Terms`](super::Terms), the others
/// by nothing but an ERROR, which ends the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Begin deliveries.
    Open {
        /// A pause between deliveries without anything new that the client wishes for, milliseconds.
        heartbeat_ms: u32,
        /// They begin with what comes after this note, or with the first leaf.
        note: Option<SignedNote>,
    },
    /// Order this entry.
    Entry {
        /// The entry.
        entry: Box<SignedEntry>,
        /// Its body. `None` for a Resume, which has none.
        body: Option<Bytes>,
    },
    /// Put this mark into the log.
    Mark(Nonce),
    /// An Attest for the others.
    Attest(SignedAttest),
    /// Ask this device for an Attest.
    Ask(DeviceKey),
    /// The client has taken a delivery.
    Next,
    /// Leaves by position.
    Leaves {
        /// Position of the first.
        from: u64,
        /// How many, 1 to [`MAX_LEAVES`].
        count: u32,
    },
    /// Bodies of the entries at these positions, ascending, 1 to [`MAX_NAMES`].
    Bodies(Vec<u64>),
    /// Keep these blocks; they may be dereferenced soon.
    Store(Vec<Record>),
    /// Keep these blocks.
    Pstore(Vec<Record>),
    /// Blocks by handle, 1 to [`MAX_NAMES`].
    Retrieve(Vec<Handle>),
    /// Which of these blocks are there. They stay.
    Cstore(Vec<Handle>),
    /// The device refers to these blocks no more.
    Decref(Vec<Handle>),
    /// Policies from this number on.
    Policies(u64),
    /// Put a message into a mailbox.
    Post {
        /// Where.
        slot: Slot,
        /// The message, 1 to [`MAX_LETTER_BYTES`].
        letter: Bytes,
    },
    /// Wait for a message in a mailbox.
    Take {
        /// Where.
        slot: Slot,
        /// How long, at most [`MAX_TAKE_MS`].
        wait_ms: u32,
    },
    /// An answer, please.
    Ping,
    /// Keep this checkpoint, 1 to [`MAX_CHECKPOINT_BYTES`]: a note, and a signed statement about its log.
    Checkpoint(Bytes),
    /// The checkpoints that are kept.
    Checkpoints,
    /// What the device has used, and what is left.
    Usage,
}

/// Largest body of a message of this type, bytes; `None` for one that no client sends after ENTER.
pub const fn max_body_bytes(kind: u8) -> Option<usize> {
    match kind {
        kind::OPEN => Some(4 + NOTE_BYTES),
        kind::ENTRY => Some(MAX_ENTRY_MESSAGE_BYTES),
        kind::MARK | kind::ASK => Some(32),
        kind::ATTEST => Some(MAX_ATTEST_BYTES),
        kind::NEXT | kind::PING | kind::CHECKPOINTS | kind::USAGE => Some(0),
        kind::CHECKPOINT => Some(MAX_CHECKPOINT_BYTES),
        kind::LEAVES => Some(10 + 4),
        kind::BODIES => Some(8 * MAX_NAMES),
        kind::STORE | kind::PSTORE => Some(MAX_STORE_BYTES),
        kind::RETRIEVE | kind::CSTORE | kind::DECREF => Some(32 * MAX_NAMES),
        kind::POLICIES => Some(8),
        kind::POST => Some(17 + MAX_LETTER_BYTES),
        kind::TAKE => Some(17 + 4),
        _ => None,
    }
}

impl Request {
    /// Its type.
    pub const fn kind(&self) -> u8 {
        match self {
            Request::Open { .. } => kind::OPEN,
            Request::Entry { .. } => kind::ENTRY,
            Request::Mark(_) => kind::MARK,
            Request::Attest(_) => kind::ATTEST,
            Request::Ask(_) => kind::ASK,
            Request::Next => kind::NEXT,
            Request::Leaves { .. } => kind::LEAVES,
            Request::Bodies(_) => kind::BODIES,
            Request::Store(_) => kind::STORE,
            Request::Pstore(_) => kind::PSTORE,
            Request::Retrieve(_) => kind::RETRIEVE,
            Request::Cstore(_) => kind::CSTORE,
            Request::Decref(_) => kind::DECREF,
            Request::Policies(_) => kind::POLICIES,
            Request::Post { .. } => kind::POST,
            Request::Take { .. } => kind::TAKE,
            Request::Ping => kind::PING,
            Request::Checkpoint(_) => kind::CHECKPOINT,
            Request::Checkpoints => kind::CHECKPOINTS,
            Request::Usage => kind::USAGE,
        }
    }

    /// Appends the whole message.
    pub fn put(&self, id: u32, out: &mut BytesMut) {
        let kind = self.kind();
        match self {
            Request::Store(records) | Request::Pstore(records) => {
                put_records(kind, id, records, out);
            }
            Request::Retrieve(handles) | Request::Cstore(handles) | Request::Decref(handles) => {
                put_handles(kind, id, handles, out);
            }
            Request::Entry { entry, body } => put_entry(id, entry, body.as_deref(), out),
            _ => {
                let body = self.small_body();
                Header::new(kind, id, body.len()).put(out);
                out.put_slice(&body);
            }
        }
    }

    fn small_body(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        match self {
            Request::Open { heartbeat_ms, note } => {
                e.u32(*heartbeat_ms);
                if let Some(note) = note {
                    note.encode(&mut e);
                }
            }
            Request::Mark(nonce) => drop(e.raw(nonce.as_bytes())),
            Request::Attest(attest) => drop(e.raw(attest.bytes())),
            Request::Ask(device) => drop(e.raw(device.as_bytes())),
            Request::Leaves { from, count } => drop(e.u64(*from).u32(*count)),
            Request::Bodies(positions) => {
                for position in positions {
                    e.u64(*position);
                }
            }
            Request::Policies(from) => drop(e.u64(*from)),
            Request::Checkpoint(posted) => drop(e.raw(posted)),
            Request::Post { slot, letter } => {
                slot.encode(&mut e);
                e.raw(letter);
            }
            Request::Take { slot, wait_ms } => {
                slot.encode(&mut e);
                e.u32(*wait_ms);
            }
            _ => {}
        }
        e.finish()
    }

    /// Decodes the body of a message of this type.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for another type, a wrong length, an exceeded limit, or what is inside being malformed.
    pub fn decode(kind: u8, body: &[u8]) -> Result<Request, Reject> {
        let mut d = Decoder::new(body, WHAT);
        let request = match kind {
            kind::OPEN => Request::Open {
                heartbeat_ms: d.u32()?,
                note: match d.remaining() {
                    0 => None,
                    _ => Some(SignedNote::decode(&mut d)?),
                },
            },
            kind::ENTRY => decode_entry(&mut d)?,
            kind::MARK => Request::Mark(Nonce::from_bytes(d.array()?)),
            kind::ATTEST => return decode_attest(body),
            kind::ASK => Request::Ask(DeviceKey::from_bytes(d.array()?)),
            kind::NEXT => Request::Next,
            kind::LEAVES => decode_leaves(&mut d)?,
            kind::BODIES => Request::Bodies(decode_positions(&mut d)?),
            kind::STORE => return decode_records(body).map(Request::Store),
            kind::PSTORE => return decode_records(body).map(Request::Pstore),
            kind::RETRIEVE => Request::Retrieve(decode_handles(&mut d)?),
            kind::CSTORE => Request::Cstore(decode_handles(&mut d)?),
            kind::DECREF => Request::Decref(decode_handles(&mut d)?),
            kind::POLICIES => Request::Policies(d.u64()?),
            kind::POST => decode_post(&mut d)?,
            kind::TAKE => decode_take(&mut d)?,
            kind::PING => Request::Ping,
            kind::CHECKPOINT => decode_checkpoint(&mut d)?,
            kind::CHECKPOINTS => Request::Checkpoints,
            kind::USAGE => Request::Usage,
            _ => return Err(d.bad("unknown type")),
        };
        d.finish()?;
        Ok(request)
    }
}

/// Appends an ENTRY.
pub(crate) fn put_entry(id: u32, entry: &SignedEntry, body: Option<&[u8]>, out: &mut BytesMut) {
    let mut e = Encoder::new();
    e.bytes(entry.bytes()).raw(body.unwrap_or_default());
    let bytes = e.finish();
    Header::new(kind::ENTRY, id, bytes.len()).put(out);
    out.put_slice(&bytes);
}

/// Appends a STORE or PSTORE.
pub(crate) fn put_records(kind: u8, id: u32, records: &[Record], out: &mut BytesMut) {
    let bytes = records.iter().map(Record::len).sum();
    out.reserve(16 + bytes);
    Header::new(kind, id, bytes).put(out);
    for record in records {
        record.put(out);
    }
}

/// Appends a RETRIEVE, CSTORE or DECREF.
pub(crate) fn put_handles(kind: u8, id: u32, handles: &[Handle], out: &mut BytesMut) {
    out.reserve(16 + 32 * handles.len());
    Header::new(kind, id, 32 * handles.len()).put(out);
    for handle in handles {
        out.put_slice(handle.as_bytes());
    }
}

fn decode_entry(d: &mut Decoder<'_>) -> Result<Request, Reject> {
    let entry = d.bytes(MAX_ENTRY_BYTES)?;
    let entry = SignedEntry::decode(Bytes::copy_from_slice(entry))?;
    let body = d.raw(d.remaining())?;
    let outline = entry.entry().ops().map(|ops| ops.outline.len());
    let fits = match outline {
        None => body.is_empty(),
        Some(outline) => !body.is_empty() && body.len() <= MAX_OPS_BYTES.saturating_sub(outline),
    };
    if !fits {
        return Err(d.bad("an entry without its body, or with too long a one"));
    }
    Ok(Request::Entry {
        entry: Box::new(entry),
        body: outline.map(|_| Bytes::copy_from_slice(body)),
    })
}

fn decode_attest(body: &[u8]) -> Result<Request, Reject> {
    if body.len() > MAX_ATTEST_BYTES {
        return Err(Decoder::new(body, WHAT).bad("Attest too long"));
    }
    SignedAttest::decode(Bytes::copy_from_slice(body)).map(Request::Attest)
}

fn decode_leaves(d: &mut Decoder<'_>) -> Result<Request, Reject> {
    let from = d.u64()?;
    let count = d.u32()?;
    if count == 0 || count as usize > MAX_LEAVES || from.checked_add(count.into()).is_none() {
        return Err(d.bad("no leaves or too many"));
    }
    Ok(Request::Leaves { from, count })
}

fn decode_positions(d: &mut Decoder<'_>) -> Result<Vec<u64>, Reject> {
    let count = d.remaining() / 8;
    if count == 0 || count > MAX_NAMES {
        return Err(d.bad("no positions or too many"));
    }
    let mut positions: Vec<u64> = Vec::with_capacity(count);
    for _ in 0..count {
        let position = d.u64()?;
        if positions.last().is_some_and(|last| *last >= position) {
            return Err(d.bad("positions do not ascend"));
        }
        positions.push(position);
    }
    Ok(positions)
}

fn decode_records(body: &[u8]) -> Result<Vec<Record>, Reject> {
    let d = Decoder::new(body, WHAT);
    if body.is_empty() || body.len() > MAX_STORE_BYTES {
        return Err(d.bad("no blocks or too many"));
    }
    let mut bytes = Bytes::copy_from_slice(body);
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let record = Record::take(&mut bytes)?;
        records.push(record.ok_or_else(|| d.bad("ends inside a block"))?);
        if records.len() > MAX_NAMES {
            return Err(d.bad("no blocks or too many"));
        }
    }
    Ok(records)
}

fn decode_handles(d: &mut Decoder<'_>) -> Result<Vec<Handle>, Reject> {
    let count = d.remaining() / 32;
    if count == 0 || count > MAX_NAMES {
        return Err(d.bad("no handles or too many"));
    }
    (0..count)
        .map(|_| d.array().map(Handle::from_bytes))
        .collect()
}

fn decode_checkpoint(d: &mut Decoder<'_>) -> Result<Request, Reject> {
    if d.remaining() == 0 || d.remaining() > MAX_CHECKPOINT_BYTES {
        return Err(d.bad("no checkpoint or too long a one"));
    }
    let posted = d.raw(d.remaining())?;
    Ok(Request::Checkpoint(Bytes::copy_from_slice(posted)))
}

fn decode_post(d: &mut Decoder<'_>) -> Result<Request, Reject> {
    let slot = Slot::decode(d)?;
    if d.remaining() == 0 || d.remaining() > MAX_LETTER_BYTES {
        return Err(d.bad("an empty message or too long a one"));
    }
    let letter = Bytes::copy_from_slice(d.raw(d.remaining())?);
    Ok(Request::Post { slot, letter })
}

fn decode_take(d: &mut Decoder<'_>) -> Result<Request, Reject> {
    let slot = Slot::decode(d)?;
    let wait_ms = d.u32()?;
    if wait_ms > MAX_TAKE_MS {
        return Err(d.bad("too long a wait"));
    }
    Ok(Request::Take { slot, wait_ms })
}

#[cfg(test)]
mod tests;
