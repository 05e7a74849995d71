//! Ed25519 keys. RFC 8032 with strict verification (canonical scalars, no small-order points), so that every
//! machine gives the same verdict on a signature.
//!
//! A [`SecretKey`] wipes itself and never prints itself. A [`PublicKey`] is more than 32 bytes: parsing
//! checks that they are the canonical encoding of a point that is not of small order. To work out that point costs a
//! quarter of what a verification does, so a [`Verifier`] keeps it for many signatures.

use std::fmt;
use std::str::FromStr;

use ed25519_dalek::{Signer, SigningKey, VerifyingKey};
use zeroize::Zeroizing;

use crate::error::Reject;
use crate::text::{self, BadText, Noun};

/// Bytes of a signature.
pub const SIGNATURE_BYTES: usize = 64;

/// A key that signs; wiped from memory when dropped.
#[derive(Clone)]
pub struct SecretKey {
    inner: SigningKey,
}

impl SecretKey {
    /// The key of a 32-byte seed (RFC 8032's secret key).
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        SecretKey {
            inner: SigningKey::from_bytes(seed),
        }
    }

    /// The seed, for a key file.
    pub fn seed(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.inner.to_bytes())
    }

    /// The key that verifies what this one signs.
    pub fn public(&self) -> PublicKey {
        PublicKey {
            bytes: self.inner.verifying_key().to_bytes(),
        }
    }

    /// Signs `message` as it is; statements add their own domain before they call this.
    pub fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_BYTES] {
        self.inner.sign(message).to_bytes()
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey(of {})", self.public())
    }
}

/// A key that verifies. In text `key1…`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey {
    bytes: [u8; 32],
}

impl PublicKey {
    /// Takes 32 bytes that claim to be a key.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for bytes that are not a point, for a second encoding of a point, and for a
    /// small-order point (under which anybody could sign).
    pub fn from_bytes(bytes: [u8; 32]) -> Result<Self, Reject> {
        Verifier::from_bytes(bytes)?;
        Ok(PublicKey { bytes })
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// The key with its point, for many signatures.
    ///
    /// # Errors
    /// Never: the bytes were a key when they were read.
    pub fn verifier(&self) -> Result<Verifier, Reject> {
        Verifier::from_bytes(self.bytes)
    }

    /// Whether this key made `signature` over exactly `message`.
    pub fn verify(&self, message: &[u8], signature: &[u8; SIGNATURE_BYTES]) -> bool {
        let point = VerifyingKey::from_bytes(&self.bytes);
        point.is_ok_and(|point| Verifier { point }.verify(message, signature))
    }
}

/// A public key whose point is worked out, for many signatures of one key.
#[derive(Clone, Copy)]
pub struct Verifier {
    point: VerifyingKey,
}

impl Verifier {
    /// Takes 32 bytes that claim to be a key.
    ///
    /// # Errors
    /// As [`PublicKey::from_bytes`].
    pub fn from_bytes(bytes: [u8; 32]) -> Result<Self, Reject> {
        let bad = |why| Reject::Malformed {
            what: "public key",
            why,
        };
        let point = VerifyingKey::from_bytes(&bytes).map_err(|_| bad("not a point"))?;
        if point.is_weak() {
            return Err(bad("a point of small order"));
        }
        if !is_reduced(&bytes) {
            return Err(bad("not the canonical encoding"));
        }
        Ok(Verifier { point })
    }

    /// Whether this key made `signature` over exactly `message`.
    pub fn verify(&self, message: &[u8], signature: &[u8; SIGNATURE_BYTES]) -> bool {
        let signature = ed25519_dalek::Signature::from_bytes(signature);
        self.point.verify_strict(message, &signature).is_ok()
    }
}

/// Whether the y-coordinate of these 32 bytes (without the sign bit) is below p = 2²⁵⁵ − 19. A point has a second encoding
/// only with y + p, and with the sign of x = 0, which only points of small order have. This compares a few bytes; to
/// encode the point again would take as long as to decode it.
fn is_reduced(bytes: &[u8; 32]) -> bool {
    let [lowest, middle @ .., highest] = bytes;
    *lowest < 0xed || highest & 0x7f != 0x7f || middle.iter().any(|byte| *byte != 0xff)
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = *self.point.as_bytes();
        fmt::Debug::fmt(&PublicKey { bytes }, f)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text::write(Noun::Key, &self.bytes))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = BadText;

    fn from_str(s: &str) -> Result<Self, BadText> {
        PublicKey::from_bytes(text::read(Noun::Key, s)?).map_err(|_| BadText::NotAKey)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// p + `more`, with the sign bit of x.
    fn beyond_p(more: u8, sign: u8) -> [u8; 32] {
        let mut bytes = [0xff; 32];
        bytes[0] = 0xed + more;
        bytes[31] = 0x7f | sign;
        bytes
    }

    #[test]
    fn numbers_from_p_on_are_not_reduced() {
        for sign in [0, 0x80] {
            for more in 0..19 {
                assert!(!is_reduced(&beyond_p(more, sign)));
            }
            let mut below = beyond_p(0, sign);
            below[0] -= 1;
            assert!(is_reduced(&below));
        }
    }

    proptest! {
        /// Encoding the point again gives the same bytes for exactly those keys that are accepted.
        #[test]
        fn accepted_points_have_one_encoding(
            bytes: [u8; 32], more in 0..19_u8, sign in prop::sample::select(vec![0, 0x80_u8]),
        ) {
            for bytes in [bytes, beyond_p(more, sign)] {
                let Ok(point) = VerifyingKey::from_bytes(&bytes) else {
                    continue;
                };
                let again = point.to_edwards().compress().to_bytes();
                let is_good = !point.is_weak() && again == bytes;
                prop_assert_eq!(PublicKey::from_bytes(bytes).is_ok(), is_good);
            }
        }
    }
}
