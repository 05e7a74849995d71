//! The bytes of a call: the journal keeps the calls of entries that were sent.
//!
//! ```text
//! call   = format u8 (0) | kind u8 | fields, in their order
//! stamped = seconds, zigzag varint | nanoseconds varint | call
//! file   = principal [32] | device varint | counter varint
//! name   = length varint | bytes
//! place  = file | count varint | name * count
//! which  = 0 | file, or 1 | place
//! inode  = length varint | inode                     a content is an inode of mode 0 and time 0
//! option = 0, or 1 | value
//! seen   = option of (file | content)
//! replace = 0 nothing, 1 any, 2 | seen
//! over   = 0 replace, 1 refuse, 2 exchange, 3 | seen
//! ```

mod locks;

use bytes::Bytes;
use trust::encode::{Decoder, Encoder};
use trust::error::Reject;
use trust::handle::Handle;
use trust::tree::inode::{
    Content, Inode, MAX_INODE_BYTES, MAX_NAME_BYTES, MAX_XATTR_VALUE_BYTES, Owner, Time,
};
use trust_shared::calls::decide;
use trust_shared::change::Change;
use trust_shared::decision::Decision;
use trust_shared::entry::MAX_OPS_BYTES;
use trust_shared::hold::Family;
use trust_shared::ops::Body;
use trust_shared::principal::{Device, FileId, INumber, Name, Principal};

use super::call::{
    Attributes, Call, FileRef, MAX_PLACE_NAMES, Over, Place, Replace, Seen, Stamped,
};
use super::feed::Cursor;

const FORMAT: u8 = 0;
const WHAT: &str = "call";
/// Most attributes that one call sets.
const MAX_XATTRS: u64 = 1024;

type Read<T> = Result<T, Reject>;

impl Call {
    /// The bytes of the call.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.u8(FORMAT).u8(self.kind());
        self.fields(&mut e);
        e.finish()
    }

    fn kind(&self) -> u8 {
        match self {
            Call::Lookup { .. } => 1,
            Call::List { .. } => 2,
            Call::Members => 3,
            Call::Create { .. } => 4,
            Call::SetContent { .. } => 5,
            Call::SetAttributes { .. } => 6,
            Call::Unlink { .. } => 7,
            Call::Rmdir { .. } => 8,
            Call::Rename { .. } => 9,
            Call::Link { .. } => 10,
            Call::Decide(_) => 11,
            Call::Fold(_) => 12,
            Call::Lock { .. } => 13,
            Call::Unlock { .. } => 14,
            Call::At { .. } => 15,
            Call::History { .. } => 16,
            Call::Root { .. } => 17,
            Call::Changed { .. } => 18,
            Call::Feed { .. } => 19,
            Call::Hold { .. } => 20,
            Call::Release { .. } => 21,
            Call::Under { .. } => 22,
            Call::Holders { .. } => 23,
        }
    }

    fn fields(&self, e: &mut Encoder) {
        match self {
            Call::Members => {}
            Call::Lookup { place, follow } => {
                place.encode(e);
                flag(e, *follow);
            }
            Call::List {
                directory,
                after,
                most,
                inodes,
            } => {
                directory.encode(e);
                option(e, after.as_ref(), |e, name| {
                    e.bytes(name.as_bytes());
                });
                e.varint(u64::from(*most));
                flag(e, *inodes);
            }
            Call::Create {
                place,
                number,
                inode,
                owner,
                replace,
            } => {
                place.encode(e);
                e.varint(*number).bytes(&inode.encode());
                option(e, owner.as_ref(), |e, owner| {
                    e.raw(owner.as_bytes());
                });
                replace.encode(e);
            }
            Call::SetContent {
                file,
                content,
                mtime,
                expect,
            } => {
                file.encode(e);
                encode_content(e, content, *mtime);
                option(e, expect.as_ref(), |e, content| {
                    encode_content(e, content, Time::default());
                });
            }
            Call::SetAttributes {
                file,
                attributes,
                expect,
            } => {
                file.encode(e);
                attributes.encode(e);
                option(e, expect.as_ref(), |e, inode| {
                    e.raw(inode.as_bytes());
                });
            }
            Call::Unlink { place } | Call::Rmdir { place } | Call::Changed { place } => {
                place.encode(e);
            }
            Call::Rename { from, to, over } => {
                from.encode(e);
                to.encode(e);
                over.encode(e);
            }
            Call::Link { file, to } => {
                file.encode(e);
                to.encode(e);
            }
            Call::Decide(decision) => encode_decision(e, decision),
            Call::Fold(principal) => {
                e.raw(principal.as_bytes());
            }
            Call::Lock { file, wait } => {
                file.encode(e);
                flag(e, *wait);
            }
            Call::Unlock { file } => file.encode(e),
            Call::Hold {
                file,
                family,
                ranges,
                wait,
                lapsed,
            } => {
                file.encode(e);
                e.u8(family.to_byte());
                ranges.encode(e);
                flag(e, *wait);
                e.varint(*lapsed);
            }
            Call::Release { file, family } | Call::Holders { file, family } => {
                file.encode(e);
                e.u8(family.to_byte());
            }
            Call::At { size, call } => {
                e.varint(*size).u8(call.kind());
                call.fields(e);
            }
            Call::Under { locks, call } => {
                e.varint(locks.len() as u64);
                for (family, since) in locks {
                    e.u8(family.to_byte()).varint(*since);
                }
                e.u8(call.kind());
                call.fields(e);
            }
            Call::Root { size } => {
                e.varint(*size);
            }
            Call::Feed {
                since,
                wait,
                hold_ms,
            } => {
                option(e, since.as_ref(), |e, since| since.encode(e));
                flag(e, *wait);
                e.varint(u64::from(*hold_ms));
            }
            Call::History { before, most } => {
                option(e, before.as_ref(), |e, before| {
                    e.varint(*before);
                });
                e.varint(u64::from(*most));
            }
        }
    }

    /// Reads what [`Call::encode`] wrote.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for other bytes; [`Reject::Unsupported`] for those of a later format.
    pub fn decode(bytes: &[u8]) -> Result<Call, Reject> {
        let mut d = Decoder::new(bytes, WHAT);
        let format = d.u8()?;
        if format != FORMAT {
            let why = format!("format {format}");
            return Err(Reject::Unsupported { what: WHAT, why });
        }
        let call = match d.u8()? {
            kind @ 1..=3 => decode_reading(kind, &mut d)?,
            kind @ 4..=6 => decode_setting(kind, &mut d)?,
            kind @ 7..=10 => decode_naming(kind, &mut d)?,
            11 => Call::Decide(decode_decision(&mut d)?),
            12 => Call::Fold(Principal::from_bytes(d.array()?)),
            13 => Call::Lock {
                file: FileRef::decode(&mut d)?,
                wait: read_flag(&mut d)?,
            },
            14 => Call::Unlock {
                file: FileRef::decode(&mut d)?,
            },
            15 => {
                let (size, kind) = (d.varint()?, d.u8()?);
                if !matches!(kind, 1 | 2) {
                    return Err(d.bad("a call that cannot be about an earlier prefix"));
                }
                let call = Box::new(decode_reading(kind, &mut d)?);
                Call::At { size, call }
            }
            16 => Call::History {
                before: read_option(&mut d, |d| d.varint())?,
                most: d.bounded(u64::from(u32::MAX), "a number over 32 bits")? as u32,
            },
            17 => Call::Root { size: d.varint()? },
            18 => Call::Changed {
                place: Place::decode(&mut d)?,
            },
            19 => Call::Feed {
                since: read_option(&mut d, Cursor::decode)?,
                wait: read_flag(&mut d)?,
                hold_ms: d.bounded(u64::from(u32::MAX), "a number over 32 bits")? as u32,
            },
            kind @ 20..=23 => locks::decode(kind, &mut d)?,
            _ => return Err(d.bad("an unknown kind")),
        };
        d.finish()?;
        // Fields of an inode that a call does not have.
        match call.encode() == bytes {
            true => Ok(call),
            false => Err(Decoder::new(&[], WHAT).bad("another encoding of a call")),
        }
    }
}

impl Stamped {
    /// The bytes of the time and the call.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        self.time.encode(&mut e);
        e.raw(&self.call.encode());
        e.finish()
    }

    /// Reads what [`Stamped::encode`] wrote.
    ///
    /// # Errors
    /// Those of [`Call::decode`].
    pub fn decode(bytes: &[u8]) -> Result<Stamped, Reject> {
        let mut d = Decoder::new(bytes, WHAT);
        let time = Time::decode(&mut d)?;
        let call = Call::decode(d.raw(d.remaining())?)?;
        Ok(Stamped { time, call })
    }
}

fn decode_reading(kind: u8, d: &mut Decoder<'_>) -> Read<Call> {
    Ok(match kind {
        1 => Call::Lookup {
            place: Place::decode(d)?,
            follow: read_flag(d)?,
        },
        2 => Call::List {
            directory: FileRef::decode(d)?,
            after: read_option(d, read_name)?,
            most: d.bounded(u64::from(u32::MAX), "a number over 32 bits")? as u32,
            inodes: read_flag(d)?,
        },
        _ => Call::Members,
    })
}

fn decode_setting(kind: u8, d: &mut Decoder<'_>) -> Read<Call> {
    Ok(match kind {
        4 => Call::Create {
            place: Place::decode(d)?,
            number: d.varint()?,
            inode: Box::new(read_inode(d)?),
            owner: read_option(d, |d| Ok(Principal::from_bytes(d.array()?)))?,
            replace: Replace::decode(d)?,
        },
        5 => {
            let file = FileRef::decode(d)?;
            let inode = read_inode(d)?;
            let expect = read_option(d, read_inode)?;
            Call::SetContent {
                file,
                content: inode.content,
                mtime: inode.mtime,
                expect: expect.map(|inode| inode.content),
            }
        }
        _ => Call::SetAttributes {
            file: FileRef::decode(d)?,
            attributes: Attributes::decode(d)?,
            expect: read_option(d, |d| Ok(Handle::from_bytes(d.array()?)))?,
        },
    })
}

fn decode_naming(kind: u8, d: &mut Decoder<'_>) -> Read<Call> {
    Ok(match kind {
        7 => Call::Unlink {
            place: Place::decode(d)?,
        },
        8 => Call::Rmdir {
            place: Place::decode(d)?,
        },
        9 => Call::Rename {
            from: Place::decode(d)?,
            to: Place::decode(d)?,
            over: Over::decode(d)?,
        },
        _ => Call::Link {
            file: FileRef::decode(d)?,
            to: Place::decode(d)?,
        },
    })
}

impl Place {
    fn encode(&self, e: &mut Encoder) {
        encode_file(e, &self.start);
        e.varint(self.path.len() as u64);
        for name in &self.path {
            e.bytes(name.as_bytes());
        }
    }

    fn decode(d: &mut Decoder<'_>) -> Read<Place> {
        let start = read_file(d)?;
        let count = d.bounded(MAX_PLACE_NAMES as u64, "over 4096 names")?;
        let path: Read<Vec<Name>> = (0..count).map(|_| read_name(d)).collect();
        Ok(Place { start, path: path? })
    }
}

impl FileRef {
    fn encode(&self, e: &mut Encoder) {
        match self {
            FileRef::File(file) => {
                e.u8(0);
                encode_file(e, file);
            }
            FileRef::Place(place) => {
                e.u8(1);
                place.encode(e);
            }
        }
    }

    fn decode(d: &mut Decoder<'_>) -> Read<FileRef> {
        Ok(match read_flag(d)? {
            false => FileRef::File(read_file(d)?),
            true => FileRef::Place(Place::decode(d)?),
        })
    }
}

impl Over {
    fn encode(&self, e: &mut Encoder) {
        match self {
            Over::Replace => e.u8(0),
            Over::Refuse => e.u8(1),
            Over::Exchange => e.u8(2),
            Over::Seen(seen) => {
                seen.encode(e.u8(3));
                e
            }
        };
    }

    fn decode(d: &mut Decoder<'_>) -> Read<Over> {
        Ok(match d.u8()? {
            0 => Over::Replace,
            1 => Over::Refuse,
            2 => Over::Exchange,
            3 => Over::Seen(Seen::decode(d)?),
            _ => return Err(d.bad("an unknown kind of rename")),
        })
    }
}

impl Replace {
    fn encode(&self, e: &mut Encoder) {
        match self {
            Replace::Nothing => e.u8(0),
            Replace::Any => e.u8(1),
            Replace::Seen(seen) => {
                seen.encode(e.u8(2));
                e
            }
        };
    }

    fn decode(d: &mut Decoder<'_>) -> Read<Replace> {
        Ok(match d.u8()? {
            0 => Replace::Nothing,
            1 => Replace::Any,
            2 => Replace::Seen(Seen::decode(d)?),
            _ => return Err(d.bad("an unknown way to replace")),
        })
    }
}

impl Seen {
    fn encode(&self, e: &mut Encoder) {
        option(e, self.0.as_ref(), |e, (file, content)| {
            encode_file(e, file);
            encode_content(e, content, Time::default());
        });
    }

    fn decode(d: &mut Decoder<'_>) -> Read<Seen> {
        let seen = read_option(d, |d| Ok((read_file(d)?, read_inode(d)?.content)))?;
        Ok(Seen(seen))
    }
}

impl Attributes {
    fn encode(&self, e: &mut Encoder) {
        option(e, self.mode.as_ref(), |e, mode| {
            e.u16(*mode);
        });
        option(e, self.mtime.as_ref(), |e, mtime| {
            mtime.encode(e);
        });
        option(e, self.owner.as_ref(), |e, owner| {
            e.u32(owner.uid).u32(owner.gid);
        });
        e.varint(self.xattrs.len() as u64);
        for (name, value) in &self.xattrs {
            e.bytes(name);
            option(e, value.as_ref(), |e, value| {
                e.bytes(value);
            });
        }
    }

    fn decode(d: &mut Decoder<'_>) -> Read<Attributes> {
        let mode = read_option(d, |d| d.u16())?;
        let mtime = read_option(d, Time::decode)?;
        let owner = read_option(d, |d| {
            let (uid, gid) = (d.u32()?, d.u32()?);
            Ok(Owner { uid, gid })
        })?;
        let count = d.bounded(MAX_XATTRS, "over 1024 attributes")?;
        let mut xattrs = Vec::new();
        for _ in 0..count {
            let name = Bytes::copy_from_slice(d.bytes(MAX_NAME_BYTES)?);
            let value = read_option(d, |d| {
                Ok(Bytes::copy_from_slice(d.bytes(MAX_XATTR_VALUE_BYTES)?))
            })?;
            xattrs.push((name, value));
        }
        Ok(Attributes {
            mode,
            mtime,
            owner,
            xattrs,
        })
    }
}

fn flag(e: &mut Encoder, value: bool) {
    e.u8(u8::from(value));
}

fn read_family(d: &mut Decoder<'_>) -> Read<Family> {
    let family = Family::from_byte(d.u8()?);
    family.ok_or_else(|| d.bad("an unknown family of locks"))
}

fn read_flag(d: &mut Decoder<'_>) -> Read<bool> {
    match d.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(d.bad("a flag is 0 or 1")),
    }
}

fn option<T>(e: &mut Encoder, value: Option<&T>, encode: impl FnOnce(&mut Encoder, &T)) {
    flag(e, value.is_some());
    if let Some(value) = value {
        encode(e, value);
    }
}

fn read_option<'a, T>(
    d: &mut Decoder<'a>,
    decode: impl FnOnce(&mut Decoder<'a>) -> Read<T>,
) -> Read<Option<T>> {
    match read_flag(d)? {
        true => decode(d).map(Some),
        false => Ok(None),
    }
}

pub(super) fn encode_file(e: &mut Encoder, file: &FileId) {
    e.raw(file.principal.as_bytes());
    e.varint(u64::from(file.number.device.0));
    e.varint(file.number.counter);
}

pub(super) fn read_file(d: &mut Decoder<'_>) -> Read<FileId> {
    let principal = Principal::from_bytes(d.array()?);
    let device = d.bounded(u64::from(u32::MAX), "a device over 32 bits")?;
    let number = INumber {
        device: Device(device as u32),
        counter: d.varint()?,
    };
    Ok(FileId { principal, number })
}

pub(super) fn read_name(d: &mut Decoder<'_>) -> Read<Name> {
    Name::new(d.bytes(MAX_NAME_BYTES)?)
}

fn encode_content(e: &mut Encoder, content: &Content, mtime: Time) {
    e.bytes(&Inode::new(0, mtime, content.clone()).encode());
}

fn read_inode(d: &mut Decoder<'_>) -> Read<Inode> {
    Inode::decode(d.bytes(MAX_INODE_BYTES)?)
}

/// A decision is written as the body of an entry that only decides.
fn encode_decision(e: &mut Encoder, decision: &Decision) {
    // Bodies of one decision are within all bounds. Empty bytes would be refused by a reader.
    let body = Body::new(vec![decide(decision.clone())]);
    e.bytes(&body.map_or_else(|_| Vec::new(), |body| body.encode()));
}

fn read_decision(body: Body) -> Option<Decision> {
    let mut ops = body.ops().iter();
    let (op, None) = (ops.next()?, ops.next()) else {
        return None;
    };
    match op.changes.as_slice() {
        [Change::Decide(decision)] if op.guards.is_empty() => Some(decision.clone()),
        _ => None,
    }
}

fn decode_decision(d: &mut Decoder<'_>) -> Read<Decision> {
    let body = Body::decode(d.bytes(MAX_OPS_BYTES)?)?;
    read_decision(body).ok_or(d.bad("not one decision"))
}
