//! Attests: "I have seen this prefix, and my last entry is in it", signed by a device (docs/formats/shared.md,
//! *Attest*). They are not in the log. An attest is signed after the floor that it names is on disk.

use bytes::Bytes;

use super::entry::Prefix;
use trust::device::{self, DeviceKey, KnownDevice};
use trust::encode::{Decoder, Encoder};
use trust::error::Reject;
use trust::key::{SIGNATURE_BYTES, SecretKey};
use trust::volume_id::VolumeId;

/// Put before the volume and an attest's bytes when it is signed.
pub const SIGNING_DOMAIN: &[u8] = b"bulla attest signature 0\n";
const WHAT: &str = "attest";

/// What a device attests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Attest {
    /// Number of the log.
    pub epoch: u64,
    /// Who attests.
    pub device: DeviceKey,
    /// The prefix, of the size of a note.
    pub seen: Prefix,
}

impl Attest {
    /// Signs the attest.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for another device's key.
    pub fn sign(&self, volume: VolumeId, key: &SecretKey) -> Result<SignedAttest, Reject> {
        if DeviceKey::from(&key.public()) != self.device {
            return Err(Reject::Malformed {
                what: WHAT,
                why: "signed by another device",
            });
        }
        let mut e = Encoder::new();
        e.varint(self.epoch).raw(self.device.as_bytes());
        self.seen.encode(&mut e);
        let bytes = device::sign(SIGNING_DOMAIN, volume, e.finish(), key);
        SignedAttest::decode(bytes.into())
    }
}

/// An attest as its device signed it. The signature is not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedAttest {
    attest: Attest,
    bytes: Bytes,
}

impl SignedAttest {
    /// Takes bytes that claim to be an attest.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything but the one encoding of an attest.
    pub fn decode(bytes: Bytes) -> Result<Self, Reject> {
        let mut d = Decoder::new(&bytes, WHAT);
        let attest = Attest {
            epoch: d.varint()?,
            device: device::decode(&mut d)?,
            seen: Prefix::decode(&mut d)?,
        };
        d.raw(SIGNATURE_BYTES)?;
        d.finish()?;
        Ok(SignedAttest { attest, bytes })
    }

    /// What it says. Nobody has verified who says it.
    pub fn attest(&self) -> &Attest {
        &self.attest
    }

    /// The encoded attest with its signature.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Verifies that the device signed this attest for this volume.
    ///
    /// # Errors
    /// [`Reject::NotSigned`].
    pub fn verify(&self, volume: VolumeId) -> Result<VerifiedAttest, Reject> {
        device::verify(SIGNING_DOMAIN, volume, &self.bytes, &self.attest.device)?;
        Ok(VerifiedAttest(self.clone()))
    }

    /// The same for a device whose key is at hand.
    ///
    /// # Errors
    /// [`Reject::NotSigned`], also when another device is said to have signed.
    pub fn verify_by(&self, volume: VolumeId, by: &KnownDevice) -> Result<(), Reject> {
        by.verify(SIGNING_DOMAIN, volume, &self.bytes, &self.attest.device)
    }
}

/// An attest whose signature was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedAttest(SignedAttest);

impl VerifiedAttest {
    /// What its device attests.
    pub fn attest(&self) -> &Attest {
        &self.0.attest
    }

    /// The attest as it was signed.
    pub fn signed(&self) -> &SignedAttest {
        &self.0
    }
}

#[cfg(test)]
mod tests;
