//! Signature algorithms by number, and keys of algorithms that this build does not know. Such a key keeps its place
//! in a role and its signature under a statement, so that both are passed on unchanged. It never counts.

use bytes::Bytes;

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;

/// Ed25519, the only algorithm of this build.
pub const ED25519: u64 = 1;
/// Longest key of any algorithm, bytes.
pub const MAX_KEY_BYTES: usize = 4 << 10;
/// Longest signature of any algorithm, bytes.
pub const MAX_SIGNATURE_BYTES: usize = 16 << 10;

/// The algorithm and bytes of a key, as they are encoded. They sort as they must in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyBytes<'a> {
    pub algorithm: u64,
    pub bytes: &'a [u8],
}

impl<'a> KeyBytes<'a> {
    pub(crate) fn ed25519(bytes: &'a [u8; 32]) -> Self {
        KeyBytes {
            algorithm: ED25519,
            bytes,
        }
    }

    pub(crate) fn encode(&self, out: &mut Encoder) {
        out.varint(self.algorithm).bytes(self.bytes);
    }

    /// Reads a key that follows `last` in a list.
    pub(crate) fn decode_after(
        last: &mut Option<KeyBytes<'a>>,
        d: &mut Decoder<'a>,
    ) -> Result<Self, Reject> {
        let algorithm = d.varint()?;
        if algorithm == 0 {
            return Err(d.bad("signature algorithm 0"));
        }
        let bytes = d.bytes(MAX_KEY_BYTES)?;
        let key = KeyBytes { algorithm, bytes };
        if last.is_some_and(|last| last >= key) {
            return Err(d.bad("keys not sorted, or one twice"));
        }
        *last = Some(key);
        Ok(key)
    }
}

/// A key of an algorithm that this build does not know.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnknownKey {
    algorithm: u64,
    bytes: Bytes,
}

impl UnknownKey {
    /// A key of `algorithm`.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for algorithm 0, for Ed25519, and for more than [`MAX_KEY_BYTES`].
    pub fn new(algorithm: u64, bytes: Bytes) -> Result<Self, Reject> {
        if algorithm <= ED25519 || bytes.len() > MAX_KEY_BYTES {
            return Err(Reject::Malformed {
                what: "key of an unknown algorithm",
                why: "a known algorithm, or too long",
            });
        }
        Ok(UnknownKey { algorithm, bytes })
    }

    pub(crate) fn copy(key: KeyBytes<'_>) -> Self {
        UnknownKey {
            algorithm: key.algorithm,
            bytes: Bytes::copy_from_slice(key.bytes),
        }
    }

    pub(crate) fn as_key(&self) -> KeyBytes<'_> {
        KeyBytes {
            algorithm: self.algorithm,
            bytes: &self.bytes,
        }
    }

    /// The algorithm's number.
    pub fn algorithm(&self) -> u64 {
        self.algorithm
    }

    /// The key's bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}
