//! The one answer that every service shares: ERROR, a code and a text.
//!
//! Codes below 128 have one meaning for all services of the protocol; each service names the codes
//! that only it uses in its own message module. The text is for people, and untrusted. Relies on
//! [`crate::frame`] for the header and on `trust` for the decoder.

use bytes::BufMut;
use trust::Reject;
use trust::encode::Decoder;

use crate::frame::Header;

/// Type of an ERROR message.
pub const ERROR: u8 = 0xff;

/// Longest text of an error, bytes.
pub const MAX_ERROR_TEXT_BYTES: usize = 256;

/// Why a server refuses a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorCode(pub u8);

impl ErrorCode {
    /// The request is malformed; the server closes the connection.
    pub const MALFORMED: ErrorCode = ErrorCode(1);
    /// The server's disk failed, or the service could not answer.
    pub const STORAGE: ErrorCode = ErrorCode(4);
    /// Too many connections or too many answers in flight.
    pub const BUSY: ErrorCode = ErrorCode(5);
    /// The server stops.
    pub const STOPPING: ErrorCode = ErrorCode(6);
    /// The server does not know this type of request; the connection stays. With request id 0: it does
    /// not speak the client's protocol, or does not know an incompatible flag, and closes.
    pub const UNSUPPORTED: ErrorCode = ErrorCode(7);
}

/// The answer of a server that refuses a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The code; it may be one that this build does not know.
    pub code: ErrorCode,
    /// The text that the server sent: untrusted, printable ASCII only.
    pub text: String,
}

impl Refusal {
    /// Decodes the body of an ERROR message.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for an empty body or a text over [`MAX_ERROR_TEXT_BYTES`].
    pub fn decode(body: &[u8]) -> Result<Refusal, Reject> {
        let mut d = Decoder::new(body, "error answer");
        let code = d.u8()?;
        if d.remaining() > MAX_ERROR_TEXT_BYTES {
            return Err(d.bad("text too long"));
        }
        // Logs and terminals show the text: drop control bytes and escape sequences.
        let printable = |b: &u8| match b {
            0x20..=0x7e => char::from(*b),
            _ => '?',
        };
        Ok(Refusal {
            code: ErrorCode(code),
            text: d.raw(d.remaining())?.iter().map(printable).collect(),
        })
    }
}

/// Appends an ERROR message. Cuts a text over [`MAX_ERROR_TEXT_BYTES`].
pub fn put_error(out: &mut impl BufMut, id: u32, code: ErrorCode, text: &str) {
    let text = text.as_bytes();
    let text = text.get(..MAX_ERROR_TEXT_BYTES).unwrap_or(text);
    Header::new(ERROR, id, 1 + text.len()).put(out);
    out.put_u8(code.0);
    out.put_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::take;
    use bytes::BytesMut;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn text_of_an_error_is_printable(body in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(refusal) = Refusal::decode(&body) {
                prop_assert!(refusal.text.bytes().all(|b| (0x20..0x7f).contains(&b)));
                prop_assert!(refusal.text.len() <= MAX_ERROR_TEXT_BYTES);
            }
        }
    }

    #[test]
    fn text_of_an_error_is_cut_to_its_limit() {
        let mut out = BytesMut::new();
        put_error(&mut out, 3, ErrorCode::BUSY, &"x".repeat(1000));
        let (header, body) = take(&mut out, 4096).unwrap().unwrap();
        assert_eq!((header.kind, header.id), (ERROR, 3));
        let refusal = Refusal::decode(&body).unwrap();
        assert_eq!(refusal.code, ErrorCode::BUSY);
        assert_eq!(refusal.text.len(), MAX_ERROR_TEXT_BYTES);
    }
}
