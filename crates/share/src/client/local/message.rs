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
use crate::files::{Call, Stamped};

/// What a program asks. Its bytes begin with a number, which names the request in what comes back.
#[derive(Debug, Clone)]
pub enum Asked {
    /// A call. The response is [`Response::Answer`].
    Call(Stamped),
    /// What this device has verified. The response is [`Response::Answer`].
    Look(Call),
    /// Something about the engine.
    Query(Query),
    /// Something about blocks of the server.
    Blocks(Want),
    /// The program no longer waits for the request of this number.
    Cancel,
}

/// What any program of this device asks about its engine. Nothing of the volume changes: when the process that runs the
/// engine has ended, a query is asked again of the next one. Clients give queries to the driver in this form, too.
#[derive(Debug, Clone)]
pub enum Query {
    /// The state of the engine. The response is [`Response::Status`].
    Status,
    /// A comparison with another device's note. The response is [`Response::Compared`].
    Compare(SignedNote),
    /// The list of beacons in the home has changed. The response is [`Response::Done`], without blocks.
    Beacons,
}

/// What a program asks about blocks of the server. The last response is [`Response::Done`].
#[derive(Debug, Clone)]
pub enum Want {
    /// These blocks. They come in any number of [`Told::Records`].
    Get(Vec<Handle>),
    /// The server stores these blocks. They are durable there when the response comes.
    Put(Vec<Record>),
    /// The server keeps these blocks. The response names those that it does not have.
    Touch(Vec<Handle>),
}

/// What the process that runs the engine says.
#[derive(Debug)]
pub enum Told {
    /// What programs see without asking. The first message, and when it has changed.
    View(View),
    /// To the request of this number, and the last message about it.
    Response(u64, Response),
    /// Some of the blocks of a [`Want::Get`]. More may follow.
    Records(u64, Vec<Record>),
    /// The engine ends. So many requests were taken, those that were cancelled included; later ones were not and never
    /// will be. Changes among those that were taken are still answered.
    Leaving(u64),
}

/// What comes of a request.
#[derive(Debug)]
pub enum Response {
    /// The answer to a call or a look.
    Answer(Box<Result<Answered, ClientError>>),
    /// The state of the engine.
    Status(Box<Status>),
    /// What a comparison came to.
    Compared(Compared),
    /// It is done. The blocks that are absent, for [`Want::Touch`].
    Done(Result<Vec<Handle>, StoreError>),
}

impl Asked {
    /// The bytes after the length, with the number of the request.
    pub fn encode(&self, id: u64) -> Vec<u8> {
        let mut e = Encoder::new();
        match self {
            Asked::Call(call) => {
                e.u8(1).varint(id).raw(&call.encode());
            }
            Asked::Look(call) => {
                e.u8(2).varint(id).raw(&call.encode());
            }
            Asked::Query(Query::Status) => {
                e.u8(3).varint(id);
            }
            Asked::Query(Query::Compare(note)) => note.encode(e.u8(4).varint(id)),
            Asked::Blocks(Want::Get(handles)) => put_handles(e.u8(5).varint(id), handles),
            Asked::Blocks(Want::Put(records)) => put_records(e.u8(6).varint(id), records),
            Asked::Blocks(Want::Touch(handles)) => put_handles(e.u8(7).varint(id), handles),
            Asked::Cancel => {
                e.u8(8).varint(id);
            }
            Asked::Query(Query::Beacons) => {
                e.u8(9).varint(id);
            }
        }
        e.finish()
    }

    /// Reads what [`Asked::encode`] wrote: the number, and the request.
    ///
    /// # Errors
    /// [`Reject`].
    pub fn decode(bytes: &Bytes) -> Result<(u64, Asked), Reject> {
        let mut d = Decoder::new(bytes, WHAT);
        let (kind, id) = (d.u8()?, d.varint()?);
        let asked = match kind {
            1 => Asked::Call(Stamped::decode(rest(&mut d)?)?),
            2 => Asked::Look(Call::decode(rest(&mut d)?)?),
            3 => Asked::Query(Query::Status),
            4 => Asked::Query(Query::Compare(SignedNote::decode(&mut d)?)),
            5 => Asked::Blocks(Want::Get(read_handles(&mut d)?)),
            6 => Asked::Blocks(Want::Put(read_records(bytes, &mut d)?)),
            7 => Asked::Blocks(Want::Touch(read_handles(&mut d)?)),
            8 => Asked::Cancel,
            9 => Asked::Query(Query::Beacons),
            _ => return Err(d.bad("an unknown request")),
        };
        d.finish()?;
        Ok((id, asked))
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
            Told::Response(id, Response::Answer(answer)) => {
                e.u8(2).varint(*id);
                match answer.as_ref() {
                    Ok(answer) => answered(e.u8(0), answer),
                    Err(why) => error(e.u8(1), why),
                }
            }
            Told::Response(id, Response::Status(told)) => status(e.u8(3).varint(*id), told),
            Told::Response(id, Response::Compared(told)) => compared(e.u8(4).varint(*id), told),
            Told::Records(id, records) => put_records(e.u8(5).varint(*id), records),
            Told::Response(id, Response::Done(done)) => {
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
                Told::Response(id, Response::Answer(Box::new(answer)))
            }
            3 => {
                let id = d.varint()?;
                Told::Response(id, Response::Status(Box::new(read_status(&mut d)?)))
            }
            4 => Told::Response(d.varint()?, Response::Compared(read_compared(&mut d)?)),
            5 => Told::Records(d.varint()?, read_records(bytes, &mut d)?),
            6 => {
                let id = d.varint()?;
                let done = match d.u8()? {
                    0 => Ok(read_handles(&mut d)?),
                    1 => Err(read_store_error(&mut d)?),
                    _ => return Err(d.bad("an unknown result")),
                };
                Told::Response(id, Response::Done(done))
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
fn read_records(bytes: &Bytes, d: &mut Decoder<'_>) -> Read<Vec<Record>> {
    let mut rest = bytes.slice(bytes.len().saturating_sub(d.remaining())..);
    // These bytes are read.
    d.raw(d.remaining())?;
    let mut records = Vec::new();
    while !rest.is_empty() {
        let record = Record::take(&mut rest)?;
        records.push(record.ok_or_else(|| d.bad("a record is cut off"))?);
    }
    Ok(records)
}
