//! The protocol's messages: three requests and their answers (SFSRO 4.2, design `publish.md`).
//!
//! Requests are owned values, because the server keeps them while a disk is slow. Answers are
//! written piece by piece by the server and decoded in place by the client, so only their types
//! and bodies are named here.

use bytes::{BufMut, BytesMut};
use store::object::{MAX_NAME_BYTES, ObjectName};
use trust::encode::Decoder;
use trust::inode::check_name;
use trust::{Handle, Reject};

use crate::frame::{Header, MAX_AROUND_BYTES, MAX_HANDLES, MAX_RANGE_BYTES};

/// Types of messages; an answer has the high bit.
pub mod kind {
    /// Request: the head of a volume.
    pub const GET_HEAD: u8 = 0x01;
    /// Request: records of many handles.
    pub const GET_DATA: u8 = 0x02;
    /// Request: a piece of an immutable object.
    pub const GET_RANGE: u8 = 0x03;
    /// End of the answer to *get head*: the head's bytes.
    pub const HEAD: u8 = 0x81;
    /// Part of the answer to *get data*, or what comes before a head: whole records, back to back.
    pub const RECORDS: u8 = 0x82;
    /// End of the answer to *get data*: what has not come is denied.
    pub const DONE: u8 = 0x83;
    /// Answer to *get range*: the bytes; fewer than asked at the object's end.
    pub const RANGE: u8 = 0x84;
    /// No answer: a code and a text.
    pub const ERROR: u8 = 0xff;
}

/// Longest text of an error, bytes.
pub const MAX_ERROR_TEXT_BYTES: usize = 256;

/// Longest path that a request may name, bytes.
pub const MAX_PATH_BYTES: usize = 4096;

/// The 32 bytes of a volume id; the wire does not care how it was made.
pub type Volume = [u8; 32];

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The head of a volume.
    Head {
        /// Which volume.
        volume: Volume,
        /// Bytes of records to which the head leads that may come with it.
        around_bytes: usize,
        /// Where the reader is going: records on that way are of use to it. Empty when it does
        /// not say.
        toward: Vec<u8>,
    },
    /// Records by handle.
    Data {
        /// Which volume.
        volume: Volume,
        /// Bytes of neighbouring records that may come unasked.
        around_bytes: usize,
        /// What is wanted: 1..=1024 handles.
        want: Vec<Handle>,
    },
    /// A piece of an immutable object.
    Range {
        /// Which volume's repository.
        volume: Volume,
        /// Which object.
        object: ObjectName,
        /// First byte.
        offset: u64,
        /// Bytes wanted at most.
        len_bytes: usize,
    },
}

impl Request {
    /// The volume that it is about.
    pub fn volume(&self) -> &Volume {
        match self {
            Request::Head { volume, .. }
            | Request::Data { volume, .. }
            | Request::Range { volume, .. } => volume,
        }
    }

    /// Appends the whole message.
    pub fn put(&self, id: u32, out: &mut BytesMut) {
        match self {
            Request::Head {
                volume,
                around_bytes,
                toward,
            } => {
                header(kind::GET_HEAD, id, volume.len() + 4 + toward.len()).put(out);
                out.put_slice(volume);
                out.put_u32_le((*around_bytes).min(MAX_AROUND_BYTES) as u32);
                out.put_slice(toward);
            }
            Request::Data {
                volume,
                around_bytes,
                want,
            } => put_get_data(out, id, volume, *around_bytes, want),
            Request::Range {
                volume,
                object,
                offset,
                len_bytes,
            } => {
                let name = object.to_string();
                header(kind::GET_RANGE, id, 32 + 8 + 4 + name.len()).put(out);
                out.put_slice(volume);
                out.put_u64_le(*offset);
                out.put_u32_le(*len_bytes as u32);
                out.put_slice(name.as_bytes());
            }
        }
    }

    /// Reads a request's body.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for another type, a length that does not fit, a limit passed.
    pub fn decode(kind: u8, body: &[u8]) -> Result<Request, Reject> {
        let mut d = Decoder::new(body, "request");
        let request = match kind {
            kind::GET_HEAD => {
                let volume = d.array()?;
                let around_bytes = decode_around(&mut d)?;
                if d.remaining() > MAX_PATH_BYTES {
                    return Err(d.bad("path too long"));
                }
                let toward = d.raw(d.remaining())?;
                check_path(toward)?;
                Request::Head {
                    volume,
                    around_bytes,
                    toward: toward.to_vec(),
                }
            }
            kind::GET_DATA => decode_get_data(&mut d)?,
            kind::GET_RANGE => {
                let volume = d.array()?;
                let offset = d.u64()?;
                let len_bytes = d.u32()? as usize;
                if len_bytes > MAX_RANGE_BYTES {
                    return Err(d.bad("range too long"));
                }
                if d.remaining() > MAX_NAME_BYTES {
                    return Err(d.bad("object name too long"));
                }
                let object = ObjectName::from_bytes(d.raw(d.remaining())?)?;
                Request::Range {
                    volume,
                    object,
                    offset,
                    len_bytes,
                }
            }
            _ => return Err(d.bad("unknown type")),
        };
        d.finish()?;
        Ok(request)
    }
}

fn header(kind: u8, id: u32, body_bytes: usize) -> Header {
    Header {
        kind,
        id,
        body_bytes,
    }
}

/// Appends a *get data* message without building a [`Request`] first.
pub fn put_get_data(
    out: &mut BytesMut,
    id: u32,
    volume: &Volume,
    around_bytes: usize,
    want: &[Handle],
) {
    out.reserve(64 + 32 * want.len());
    header(kind::GET_DATA, id, 32 + 4 + 32 * want.len()).put(out);
    out.put_slice(volume);
    out.put_u32_le(around_bytes.min(MAX_AROUND_BYTES) as u32);
    for handle in want {
        out.put_slice(handle.as_bytes());
    }
}

/// Whether a reader may say that it goes there: nowhere in particular, or names with a `/` between
/// each two.
///
/// # Errors
/// [`Reject::Malformed`] for a path over [`MAX_PATH_BYTES`]; for a component that is no name of a
/// file (empty, `.`, `..`, over 255 bytes, with a NUL).
pub fn check_path(path: &[u8]) -> Result<(), Reject> {
    if path.is_empty() {
        return Ok(());
    }
    if path.len() > MAX_PATH_BYTES {
        return Err(Reject::Malformed {
            what: "request",
            why: "path too long",
        });
    }
    path.split(|b| *b == b'/').try_for_each(check_name)
}

fn decode_around(d: &mut Decoder<'_>) -> Result<usize, Reject> {
    let around_bytes = d.u32()? as usize;
    if around_bytes > MAX_AROUND_BYTES {
        return Err(d.bad("read-around too large"));
    }
    Ok(around_bytes)
}

fn decode_get_data(d: &mut Decoder<'_>) -> Result<Request, Reject> {
    let volume = d.array()?;
    let around_bytes = decode_around(d)?;
    let count = d.remaining() / 32;
    if count == 0 || count > MAX_HANDLES {
        return Err(d.bad("no handles or too many"));
    }
    let mut want = Vec::with_capacity(count);
    for _ in 0..count {
        want.push(Handle::from_bytes(d.array()?));
    }
    Ok(Request::Data {
        volume,
        around_bytes,
        want,
    })
}

/// Why a server did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ErrorCode {
    /// The request is malformed; the server closes the connection.
    Malformed = 1,
    /// The server does not have this volume.
    NoVolume = 2,
    /// The repository does not have this object.
    NoObject = 3,
    /// The server's disk failed it.
    Storage = 4,
    /// Too many connections or too much in flight.
    Busy = 5,
    /// The server is going down.
    Stopping = 6,
}

impl ErrorCode {
    const ALL: [ErrorCode; 6] = [
        ErrorCode::Malformed,
        ErrorCode::NoVolume,
        ErrorCode::NoObject,
        ErrorCode::Storage,
        ErrorCode::Busy,
        ErrorCode::Stopping,
    ];
}

/// A server's refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The code; `None` when it is one that this build does not know.
    pub code: Option<ErrorCode>,
    /// The server's words: untrusted, printable ASCII only.
    pub text: String,
}

impl Refusal {
    /// Reads the body of an ERROR.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when it is empty or longer than an error may be.
    pub fn decode(body: &[u8]) -> Result<Refusal, Reject> {
        let mut d = Decoder::new(body, "error answer");
        let code = d.u8()?;
        if d.remaining() > MAX_ERROR_TEXT_BYTES {
            return Err(d.bad("text too long"));
        }
        // The text ends in logs and on terminals: no control bytes, no escape sequences.
        let printable = |b: &u8| match b {
            0x20..=0x7e => char::from(*b),
            _ => '?',
        };
        Ok(Refusal {
            code: ErrorCode::ALL.into_iter().find(|c| *c as u8 == code),
            text: d.raw(d.remaining())?.iter().map(printable).collect(),
        })
    }
}

/// Appends an ERROR message; a text over its limit is cut.
pub fn put_error(out: &mut impl BufMut, id: u32, code: ErrorCode, text: &str) {
    let text = text.as_bytes();
    let text = text.get(..MAX_ERROR_TEXT_BYTES).unwrap_or(text);
    header(kind::ERROR, id, 1 + text.len()).put(out);
    out.put_u8(code as u8);
    out.put_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{HEADER_BYTES, MAX_REQUEST_BYTES, take};
    use proptest::prelude::*;

    fn any_request() -> impl Strategy<Value = Request> {
        let handle = any::<[u8; 32]>().prop_map(Handle::from_bytes);
        prop_oneof![
            (any::<[u8; 32]>(), 0..=MAX_AROUND_BYTES, any_path()).prop_map(
                |(volume, around_bytes, toward)| Request::Head {
                    volume,
                    around_bytes,
                    toward,
                }
            ),
            (
                any::<[u8; 32]>(),
                0..=MAX_AROUND_BYTES,
                prop::collection::vec(handle, 1..40)
            )
                .prop_map(|(volume, around_bytes, want)| Request::Data {
                    volume,
                    around_bytes,
                    want
                }),
            (
                any::<[u8; 32]>(),
                any::<[u8; 16]>(),
                any::<u64>(),
                0..=MAX_RANGE_BYTES
            )
                .prop_map(|(volume, id, offset, len_bytes)| Request::Range {
                    volume,
                    object: ObjectName::Segment(id),
                    offset,
                    len_bytes
                }),
        ]
    }

    fn any_path() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec("[a-z.]{3,20}", 0..5).prop_map(|names| names.join("/").into_bytes())
    }

    proptest! {
        #[test]
        fn requests_round_trip(request in any_request(), id in any::<u32>()) {
            let mut bytes = BytesMut::new();
            request.put(id, &mut bytes);
            let (header, body) = take(&mut bytes, MAX_REQUEST_BYTES).unwrap().unwrap();
            prop_assert_eq!(header.id, id);
            prop_assert_eq!(Request::decode(header.kind, &body), Ok(request));
            prop_assert!(bytes.is_empty());
        }

        #[test]
        fn a_request_has_one_encoding(kind in 0u8..5, body in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(request) = Request::decode(kind, &body) {
                let mut again = BytesMut::new();
                request.put(7, &mut again);
                prop_assert_eq!(&again[HEADER_BYTES..], &body[..]);
            }
        }

        #[test]
        fn errors_are_printable(body in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(refusal) = Refusal::decode(&body) {
                prop_assert!(refusal.text.bytes().all(|b| (0x20..0x7f).contains(&b)));
                prop_assert!(refusal.text.len() <= MAX_ERROR_TEXT_BYTES);
            }
        }
    }

    #[test]
    fn limits_are_kept() {
        let data = |around: u32, bytes: usize| {
            let mut body = vec![0u8; 32];
            body.extend_from_slice(&around.to_le_bytes());
            body.resize(36 + bytes, 1);
            Request::decode(kind::GET_DATA, &body)
        };
        assert!(data(0, 32).is_ok());
        assert!(data(MAX_AROUND_BYTES as u32, 32 * MAX_HANDLES).is_ok());
        assert!(data(0, 0).is_err());
        assert!(data(0, 33).is_err());
        assert!(data(0, 32 * (MAX_HANDLES + 1)).is_err());
        assert!(data(MAX_AROUND_BYTES as u32 + 1, 32).is_err());
        // The largest request fits into what a server reads.
        const { assert!(36 + 32 * MAX_HANDLES <= MAX_REQUEST_BYTES) };
    }

    #[test]
    fn a_path_is_names_with_slashes_between_them() {
        let head = |path: &[u8]| {
            let body = [&[0; 36], path].concat();
            Request::decode(kind::GET_HEAD, &body)
        };
        let long = [b'x'; 255];
        let deep = [b"xy/".repeat(1365), b"z".to_vec()].concat();
        assert_eq!(deep.len(), MAX_PATH_BYTES);
        for good in [&b""[..], b"a", b"a/b", b"...", b"\xff/\n", &long, &deep] {
            assert!(head(good).is_ok(), "{good:?}");
        }
        let longer = [b'x'; 256];
        let deeper = [&deep[..], b"y"].concat();
        for bad in [
            &b"/"[..],
            b"/a",
            b"a/",
            b"a//b",
            b".",
            b"a/./b",
            b"..",
            b"a/../b",
            b"a\0b",
            &longer,
            &deeper,
        ] {
            assert!(head(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_error_is_cut_to_its_limit() {
        let mut out = BytesMut::new();
        put_error(&mut out, 3, ErrorCode::Busy, &"x".repeat(1000));
        let (header, body) = take(&mut out, 4096).unwrap().unwrap();
        assert_eq!((header.kind, header.id), (kind::ERROR, 3));
        let refusal = Refusal::decode(&body).unwrap();
        assert_eq!(refusal.code, Some(ErrorCode::Busy));
        assert_eq!(refusal.text.len(), MAX_ERROR_TEXT_BYTES);
    }
}
