//! Requests of a program, and what the process that runs the engine says.

use bytes::{Bytes, BytesMut};
use store::StoreError;
use trust::encode::{Decoder, Encoder};
use trust::{Handle, Record, Reject};
use trust_shared::note::SignedNote;

use super::answer::{answered, read_answered};
use super::engine::{
    compared, error, read_compared, read_error, read_status, read_store_error, read_view, status,
    store_error, view,
};
use super::field::{Read, list, read_list};
use super::{MAX_HANDLES, WHAT};
use crate::client::{Answered, ClientError, Compared, Status, View};
use crate::files::Call;

/// What a program asks. The number names the request in what comes back.
#[derive(Debug, Clone)]
pub enum Asked {
    /// A call.
    Call(u64, Call),
    /// What this device has verified.
    Look(u64, Call),
    /// The state of the engine.
    Status(u64),
    /// A comparison with another device's note.
    Compare(u64, SignedNote),
    /// Blocks of the server.
    Get(u64, Vec<Handle>),
    /// Blocks for the server. They are durable there when the answer comes.
    Put(u64, Vec<Record>),
    /// Blocks that the server is to keep. The answer names those that it does not have.
    Touch(u64, Vec<Handle>),
    /// Nobody waits for this request any more.
    Cancel(u64),
    /// The list of beacons in the home has changed.
    Beacons(u64),
}

/// What the process that runs the engine says.
#[derive(Debug)]
pub enum Told {
    /// What programs see without asking. The first message, and when it has changed.
    View(View),
    /// To `Call` and `Look`.
    Answer(u64, Box<Result<Answered, ClientError>>),
    /// To `Status`.
    Status(u64, Box<Status>),
    /// To `Compare`.
    Compared(u64, Compared),
    /// Some of the blocks of a `Get`. More may follow.
    Records(u64, Vec<Record>),
    /// To `Get`, `Put`, `Touch` and `Beacons`: it is done. The blocks that are absent, for `Touch`.
    Done(u64, Result<Vec<Handle>, StoreError>),
    /// The engine ends. So many requests were taken, those that were cancelled included; later ones were not and never
    /// will be. Changes among those that were taken are still answered.
    Leaving(u64),
}

impl Asked {
    /// The bytes after the length.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        match self {
            Asked::Call(id, call) => {
                e.u8(1).varint(*id).raw(&call.encode());
            }
            Asked::Look(id, call) => {
                e.u8(2).varint(*id).raw(&call.encode());
            }
            Asked::Status(id) => {
                e.u8(3).varint(*id);
            }
            Asked::Compare(id, note) => {
                e.u8(4).varint(*id);
                note.encode(&mut e);
            }
            Asked::Get(id, handles) => {
                e.u8(5).varint(*id);
                put_handles(&mut e, handles);
            }
            Asked::Put(id, records) => {
                e.u8(6).varint(*id);
                put_records(&mut e, records);
            }
            Asked::Touch(id, handles) => {
                e.u8(7).varint(*id);
                put_handles(&mut e, handles);
            }
            Asked::Cancel(id) => {
                e.u8(8).varint(*id);
            }
            Asked::Beacons(id) => {
                e.u8(9).varint(*id);
            }
        }
        e.finish()
    }

    /// Reads what [`Asked::encode`] wrote.
    ///
    /// # Errors
    /// [`Reject`].
    pub fn decode(bytes: &Bytes) -> Result<Asked, Reject> {
        let mut d = Decoder::new(bytes, WHAT);
        let (kind, id) = (d.u8()?, d.varint()?);
        let asked = match kind {
            1 => return Ok(Asked::Call(id, Call::decode(rest(&mut d)?)?)),
            2 => return Ok(Asked::Look(id, Call::decode(rest(&mut d)?)?)),
            3 => Asked::Status(id),
            4 => Asked::Compare(id, SignedNote::decode(&mut d)?),
            5 => Asked::Get(id, read_handles(&mut d)?),
            6 => return Ok(Asked::Put(id, read_records(bytes, &d)?)),
            7 => Asked::Touch(id, read_handles(&mut d)?),
            8 => Asked::Cancel(id),
            9 => Asked::Beacons(id),
            _ => return Err(d.bad("an unknown request")),
        };
        d.finish()?;
        Ok(asked)
    }
}

impl Told {
    /// The bytes after the length.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        match self {
            Told::View(shown) => {
                e.u8(1);
                view(&mut e, shown);
            }
            Told::Answer(id, answer) => {
                e.u8(2).varint(*id);
                match answer.as_ref() {
                    Ok(answer) => answered(e.u8(0), answer),
                    Err(why) => error(e.u8(1), why),
                }
            }
            Told::Status(id, told) => {
                e.u8(3).varint(*id);
                status(&mut e, told);
            }
            Told::Compared(id, told) => {
                e.u8(4).varint(*id);
                compared(&mut e, told);
            }
            Told::Records(id, records) => {
                e.u8(5).varint(*id);
                put_records(&mut e, records);
            }
            Told::Done(id, done) => {
                e.u8(6).varint(*id);
                match done {
                    Ok(absent) => put_handles(e.u8(0), absent),
                    Err(why) => store_error(e.u8(1), why),
                }
            }
            Told::Leaving(taken) => {
                e.u8(7).varint(*taken);
            }
        }
        e.finish()
    }

    /// Reads what [`Told::encode`] wrote.
    ///
    /// # Errors
    /// [`Reject`].
    pub fn decode(bytes: &Bytes) -> Result<Told, Reject> {
        let mut d = Decoder::new(bytes, WHAT);
        let told = match d.u8()? {
            1 => Told::View(read_view(&mut d)?),
            2 => {
                let id = d.varint()?;
                let answer = match d.u8()? {
                    0 => Ok(read_answered(&mut d)?),
                    1 => Err(read_error(&mut d)?),
                    _ => return Err(d.bad("an unknown result")),
                };
                Told::Answer(id, Box::new(answer))
            }
            3 => Told::Status(d.varint()?, Box::new(read_status(&mut d)?)),
            4 => Told::Compared(d.varint()?, read_compared(&mut d)?),
            5 => {
                let id = d.varint()?;
                return Ok(Told::Records(id, read_records(bytes, &d)?));
            }
            6 => {
                let id = d.varint()?;
                let done = match d.u8()? {
                    0 => Ok(read_handles(&mut d)?),
                    1 => Err(read_store_error(&mut d)?),
                    _ => return Err(d.bad("an unknown result")),
                };
                Told::Done(id, done)
            }
            7 => Told::Leaving(d.varint()?),
            _ => return Err(d.bad("an unknown message")),
        };
        d.finish()?;
        Ok(told)
    }
}

fn rest<'a>(d: &mut Decoder<'a>) -> Read<&'a [u8]> {
    d.raw(d.remaining())
}

fn put_handles(e: &mut Encoder, handles: &[Handle]) {
    list(e, handles, |e, handle| {
        e.raw(handle.as_bytes());
    });
}

fn read_handles(d: &mut Decoder<'_>) -> Read<Vec<Handle>> {
    read_list(d, MAX_HANDLES as u64, |d| {
        Ok(Handle::from_bytes(d.array()?))
    })
}

fn put_records(e: &mut Encoder, records: &[Record]) {
    let mut out = BytesMut::with_capacity(records.iter().map(Record::len).sum());
    records.iter().for_each(|record| record.put(&mut out));
    e.raw(&out);
}

/// The records at the end of a message, without copying them.
fn read_records(bytes: &Bytes, d: &Decoder<'_>) -> Read<Vec<Record>> {
    let mut rest = bytes.slice(bytes.len().saturating_sub(d.remaining())..);
    let mut records = Vec::new();
    while !rest.is_empty() {
        let record = Record::take(&mut rest)?;
        records.push(record.ok_or_else(|| d.bad("a record is cut off"))?);
    }
    Ok(records)
}
