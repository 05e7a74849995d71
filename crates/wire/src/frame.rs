//! Framing: the hello and the message header (`docs/formats/protocol.md`), the same for every
//! service. Relies on `trust` for its errors only.
//!
//! ```text
//! hello    "bulla" | protocol u8 | flags u16 LE                      once each way
//! message  length u32 LE | type u8 | request id u32 LE | body        length = 5 + body
//! ```
//!
//! A client sends its hello and its first requests in one packet; neither end waits for the other's
//! hello.

use bytes::{BufMut, BytesMut};
use trust::Reject;

/// Number of the protocol between readers and mirrors.
pub const PROTOCOL: u8 = 0;
/// Length of a hello, bytes.
pub const HELLO_BYTES: usize = 8;
/// Bytes of a message before its body.
pub const HEADER_BYTES: usize = 9;
/// Largest body of a request of any service, bytes.
pub const MAX_REQUEST_BYTES: usize = 64 << 10;
/// Largest body of a request that is reserved for later services, bytes.
pub const MAX_RESERVED_REQUEST_BYTES: usize = 4 << 20;
/// Largest body of an answer of any service, bytes.
pub const MAX_ANSWER_BYTES: usize = 4 << 20;

const MAGIC: &[u8; 5] = b"bulla";

/// The hello of the protocol between readers and mirrors, without flags.
pub const HELLO: [u8; HELLO_BYTES] = hello(PROTOCOL);

/// Flags of the hello that mean an incompatible feature. A peer that does not know one of them must not
/// go on; the other flags announce features that may be ignored.
pub const INCOMPATIBLE_FLAGS: u16 = 0xff00;
/// The incompatible features that this build knows.
const KNOWN_INCOMPATIBLE_FLAGS: u16 = 0;

/// Largest body of a request of an unknown type, bytes; `None` for a type that is no request. A server
/// skips the body and goes on, so that a client can try a request of a later protocol.
pub const fn unknown_request_bytes(kind: u8) -> Option<usize> {
    match kind {
        0x10..=0x2f => Some(MAX_RESERVED_REQUEST_BYTES),
        0..0x80 => Some(MAX_REQUEST_BYTES),
        _ => None,
    }
}

/// The hello that both ends of a protocol send; no flags are defined yet.
pub const fn hello(protocol: u8) -> [u8; HELLO_BYTES] {
    [b'b', b'u', b'l', b'l', b'a', protocol, 0, 0]
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed {
        what: "message",
        why,
    }
}

/// Checks that the peer's hello is of `protocol`, and returns its flags.
///
/// The caller ignores compatible flags that it does not know.
///
/// # Errors
/// [`Reject::Malformed`] when the bytes are not a hello, [`Reject::Unsupported`] when the peer
/// speaks another bulla protocol, or sets an unknown flag of [`INCOMPATIBLE_FLAGS`].
pub fn check_hello(hello: &[u8; HELLO_BYTES], protocol: u8) -> Result<u16, Reject> {
    let [m @ .., peer, low, high] = hello;
    if m != MAGIC {
        return Err(Reject::Malformed {
            what: "hello",
            why: "the peer does not speak bulla",
        });
    }
    if *peer != protocol {
        return Err(Reject::Unsupported {
            what: "protocol",
            why: format!("the peer speaks protocol {peer}"),
        });
    }
    let flags = u16::from_le_bytes([*low, *high]);
    let unknown = flags & INCOMPATIBLE_FLAGS & !KNOWN_INCOMPATIBLE_FLAGS;
    if unknown != 0 {
        return Err(Reject::Unsupported {
            what: "protocol",
            why: format!("the peer demands features {unknown:#06x}"),
        });
    }
    Ok(flags)
}

/// The header before a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Type of the message; each service defines its own.
    pub kind: u8,
    /// The client's number for the request; 0 means the connection itself.
    pub id: u32,
    /// Length of the body that follows, bytes.
    pub body_bytes: usize,
}

impl Header {
    /// A header.
    pub const fn new(kind: u8, id: u32, body_bytes: usize) -> Header {
        Header {
            kind,
            id,
            body_bytes,
        }
    }

    /// Appends the header.
    pub fn put(&self, out: &mut impl BufMut) {
        out.put_u32_le((self.body_bytes + 5) as u32);
        out.put_u8(self.kind);
        out.put_u32_le(self.id);
    }

    /// Decodes the header at the front of `bytes`; `None` until it is complete.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when the body would be longer than `max_body_bytes`.
    pub fn peek(bytes: &[u8], max_body_bytes: usize) -> Result<Option<Header>, Reject> {
        let Some([l0, l1, l2, l3, kind, i0, i1, i2, i3]) = bytes.first_chunk::<HEADER_BYTES>()
        else {
            return Ok(None);
        };
        let len = u32::from_le_bytes([*l0, *l1, *l2, *l3]) as usize;
        let body_bytes = len.checked_sub(5).ok_or_else(|| bad("length too small"))?;
        if body_bytes > max_body_bytes {
            return Err(bad("length too large"));
        }
        Ok(Some(Header {
            kind: *kind,
            id: u32::from_le_bytes([*i0, *i1, *i2, *i3]),
            body_bytes,
        }))
    }
}

/// Cuts the first message off `bytes`; `None` until it is complete.
///
/// # Errors
/// As [`Header::peek`].
pub fn take(
    bytes: &mut BytesMut,
    max_body_bytes: usize,
) -> Result<Option<(Header, BytesMut)>, Reject> {
    let Some(header) = Header::peek(bytes, max_body_bytes)? else {
        return Ok(None);
    };
    let whole = HEADER_BYTES + header.body_bytes;
    if bytes.len() < whole {
        return Ok(None);
    }
    let mut message = bytes.split_to(whole);
    let body = message.split_off(HEADER_BYTES);
    Ok(Some((header, body)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hello_of_another_protocol_is_refused() {
        assert_eq!(check_hello(&HELLO, PROTOCOL), Ok(0));
        assert_eq!(check_hello(b"bulla\0\x81\x00", PROTOCOL), Ok(0x0081));
        for high in 0..8 {
            let demanding = [b'b', b'u', b'l', b'l', b'a', PROTOCOL, 1, 1 << high];
            let refused = check_hello(&demanding, PROTOCOL);
            assert!(matches!(refused, Err(Reject::Unsupported { .. })), "{high}");
        }
        assert!(matches!(
            check_hello(b"bulla\x01\0\0", PROTOCOL),
            Err(Reject::Unsupported { .. })
        ));
        assert_eq!(check_hello(&hello(7), 7), Ok(0));
        assert!(check_hello(&hello(7), PROTOCOL).is_err());
        assert!(check_hello(b"HTTP/1.1", PROTOCOL).is_err());
    }

    #[test]
    fn requests_of_later_services_have_limits_of_their_own() {
        for kind in 0..=255u8 {
            let expected = match kind {
                0x10..=0x2f => Some(4 << 20),
                0x80.. => None,
                _ => Some(64 << 10),
            };
            assert_eq!(unknown_request_bytes(kind), expected, "{kind:#x}");
        }
    }

    #[test]
    fn impossible_length_is_refused_before_the_body_comes() {
        for len in [0u32, 4, 6 + MAX_REQUEST_BYTES as u32, u32::MAX] {
            let mut bytes = len.to_le_bytes().to_vec();
            bytes.extend_from_slice(&[1, 0, 0, 0, 0]);
            assert!(Header::peek(&bytes, MAX_REQUEST_BYTES).is_err(), "{len}");
        }
    }

    proptest! {
        #[test]
        fn messages_survive_any_cutting(bodies in prop::collection::vec(
            (any::<u8>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..200)), 0..8),
            step in 1usize..50)
        {
            let mut sent = BytesMut::new();
            for (kind, id, body) in &bodies {
                Header { kind: *kind, id: *id, body_bytes: body.len() }.put(&mut sent);
                sent.extend_from_slice(body);
            }
            let (mut buffer, mut got) = (BytesMut::new(), Vec::new());
            for piece in sent.chunks(step) {
                buffer.extend_from_slice(piece);
                while let Some((h, body)) = take(&mut buffer, 200).unwrap() {
                    got.push((h.kind, h.id, body.to_vec()));
                }
            }
            prop_assert_eq!(got, bodies);
            prop_assert!(buffer.is_empty());
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = take(&mut buffer, 64) {}
        }
    }
}
