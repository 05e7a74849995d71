//! The messages between a reader and a mirror: three requests and their answers (SFSRO 4.2).
//!
//! A [`Request`] owns its bytes, because the server keeps it while it waits for a disk. The server
//! writes an answer piece by piece and the client decodes it in place, so this module only names
//! the types of answers. Byte-exact in `docs/formats/protocol.md`. Relies on [`crate::frame`] for
//! the header, on [`crate::refusal`] for errors and on `trust` for the decoder.

use bytes::{BufMut, BytesMut};
use store::object::{MAX_NAME_BYTES, ObjectName};
use trust::encode::Decoder;
use trust::inode::check_name;
use trust::statement::VolumeId;
use trust::{Handle, Reject};

use crate::frame::{Header, MAX_ANSWER_BYTES};
use crate::refusal::ErrorCode;

/// Most handles in one request.
pub const MAX_HANDLES: usize = 1024;
/// Largest read-around that a request may allow, bytes.
pub const MAX_AROUND_BYTES: usize = 1 << 20;
/// Largest range that one request may ask for, bytes.
pub const MAX_RANGE_BYTES: usize = MAX_ANSWER_BYTES;

/// The server does not have this volume.
pub const NO_VOLUME: ErrorCode = ErrorCode(2);
/// The repository does not have this object.
pub const NO_OBJECT: ErrorCode = ErrorCode(3);

/// Types of messages; an answer has the high bit.
pub mod kind {
    /// Request: the head of a volume.
    pub const GET_HEAD: u8 = 0x01;
    /// Request: records of many handles.
    pub const GET_DATA: u8 = 0x02;
    /// Request: a part of an immutable object.
    pub const GET_RANGE: u8 = 0x03;
    /// End of the answer to *get head*: the head's bytes.
    pub const HEAD: u8 = 0x81;
    /// Part of the answer to *get data*, or records before a head: whole records, back to back.
    pub const RECORDS: u8 = 0x82;
    /// End of the answer to *get data*: the server denies each handle whose record has not come. End
    /// of the answer to *get range*: a range that is shorter than asked ends at the object's end.
    pub const DONE: u8 = 0x83;
    /// Part of the answer to *get range*: the next bytes, at least one.
    pub const RANGE: u8 = 0x84;
    /// Answer to any request that the server refuses.
    pub use crate::refusal::ERROR;
}

/// Longest path that a request may name, bytes.
pub const MAX_PATH_BYTES: usize = 4096;

/// Largest body of a request of this type, bytes; `None` for a type that is not a request.
pub const fn max_body_bytes(kind: u8) -> Option<usize> {
    match kind {
        kind::GET_HEAD => Some(32 + 4 + 32 + MAX_PATH_BYTES),
        kind::GET_DATA => Some(32 + 4 + 32 * MAX_HANDLES),
        kind::GET_RANGE => Some(32 + 8 + 4 + MAX_NAME_BYTES),
        _ => None,
    }
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The head of a volume.
    Head {
        /// Which volume.
        volume: VolumeId,
        /// The server may add records that the head leads to, up to this many bytes.
        around_bytes: usize,
        /// Name of the head that the reader has ([`head_name`]). If it is still the newest, the server says only
        /// that.
        known: Option<[u8; 32]>,
        /// The path that the reader opens next, so that the server can send the records on it.
        /// Empty without a hint.
        toward: Vec<u8>,
    },
    /// Records by handle.
    Data {
        /// Which volume.
        volume: VolumeId,
        /// The server may add neighbouring records, up to this many bytes.
        around_bytes: usize,
        /// The wanted handles, 1..=1024.
        want: Vec<Handle>,
    },
    /// A part of an immutable object.
    Range {
        /// Which volume's repository.
        volume: VolumeId,
        /// Which object.
        object: ObjectName,
        /// First byte.
        offset: u64,
        /// Most bytes to send.
        len_bytes: usize,
    },
}

impl Request {
    /// The volume that the request is about.
    pub fn volume(&self) -> &VolumeId {
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
                known,
                toward,
            } => {
                Header::new(kind::GET_HEAD, id, 32 + 4 + 32 + toward.len()).put(out);
                out.put_slice(volume.as_bytes());
                out.put_u32_le((*around_bytes).min(MAX_AROUND_BYTES) as u32);
                out.put_slice(&known.unwrap_or_default());
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
                Header::new(kind::GET_RANGE, id, 32 + 8 + 4 + name.len()).put(out);
                out.put_slice(volume.as_bytes());
                out.put_u64_le(*offset);
                out.put_u32_le(*len_bytes as u32);
                out.put_slice(name.as_bytes());
            }
        }
    }

    /// Decodes the body of a request.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for an unknown type, a wrong length or an exceeded limit.
    pub fn decode(kind: u8, body: &[u8]) -> Result<Request, Reject> {
        let mut d = Decoder::new(body, "request");
        let request = match kind {
            kind::GET_HEAD => {
                let volume = VolumeId::from_bytes(d.array()?);
                let around_bytes = decode_around(&mut d)?;
                let known: [u8; 32] = d.array()?;
                if d.remaining() > MAX_PATH_BYTES {
                    return Err(d.bad("path too long"));
                }
                let toward = d.raw(d.remaining())?;
                check_path(toward)?;
                Request::Head {
                    volume,
                    around_bytes,
                    known: (known != [0; 32]).then_some(known),
                    toward: toward.to_vec(),
                }
            }
            kind::GET_DATA => decode_get_data(&mut d)?,
            kind::GET_RANGE => {
                let volume = VolumeId::from_bytes(d.array()?);
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

/// The name of a head in a *get head* request: BLAKE3 of its bytes.
pub fn head_name(head: &[u8]) -> [u8; 32] {
    *blake3::hash(head).as_bytes()
}

/// Appends a *get data* message without building a [`Request`] first.
pub fn put_get_data(
    out: &mut BytesMut,
    id: u32,
    volume: &VolumeId,
    around_bytes: usize,
    want: &[Handle],
) {
    out.reserve(64 + 32 * want.len());
    Header::new(kind::GET_DATA, id, 32 + 4 + 32 * want.len()).put(out);
    out.put_slice(volume.as_bytes());
    out.put_u32_le(around_bytes.min(MAX_AROUND_BYTES) as u32);
    for handle in want {
        out.put_slice(handle.as_bytes());
    }
}

/// Checks the path hint of a *get head* request: empty, or file names separated by `/`.
///
/// # Errors
/// [`Reject::Malformed`] for a path over [`MAX_PATH_BYTES`] or a component that is not a file name
/// (empty, `.`, `..`, over 255 bytes, with a NUL).
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
    let volume = VolumeId::from_bytes(d.array()?);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{HEADER_BYTES, MAX_REQUEST_BYTES, take};
    use proptest::prelude::*;

    fn any_request() -> impl Strategy<Value = Request> {
        let handle = any::<[u8; 32]>().prop_map(Handle::from_bytes);
        let volume = || any::<[u8; 32]>().prop_map(VolumeId::from_bytes);
        prop_oneof![
            (volume(), 0..=MAX_AROUND_BYTES, any_path()).prop_map(
                |(volume, around_bytes, toward)| Request::Head {
                    volume,
                    around_bytes,
                    known: None,
                    toward,
                }
            ),
            (
                volume(),
                0..=MAX_AROUND_BYTES,
                prop::collection::vec(handle, 1..40)
            )
                .prop_map(|(volume, around_bytes, want)| Request::Data {
                    volume,
                    around_bytes,
                    want
                }),
            (
                volume(),
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
        fn request_has_one_encoding(kind in 0u8..5, body in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(request) = Request::decode(kind, &body) {
                let mut again = BytesMut::new();
                request.put(7, &mut again);
                prop_assert_eq!(&again[HEADER_BYTES..], &body[..]);
            }
        }
    }

    #[test]
    fn requests_over_a_limit_are_refused() {
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
        for kind in 0..=255 {
            assert!(max_body_bytes(kind).is_none_or(|n| n <= MAX_REQUEST_BYTES));
        }
    }

    #[test]
    fn path_hint_is_names_separated_by_slashes() {
        let head = |path: &[u8]| {
            let body = [&[0; 68], path].concat();
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
}
