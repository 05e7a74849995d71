//! Devices of a shared volume and the runs of their engines. What a device signs has a compact form: a domain that
//! fits no other use of a key, the volume, and the bytes that the signature follows.

use std::fmt;

use crate::encode::Decoder;
use crate::error::Reject;
use crate::key::{PublicKey, SIGNATURE_BYTES, SecretKey, Verifier};
use crate::text::{Noun, write};
use crate::volume_id::VolumeId;

/// The 32 bytes of a device's key. Until a signature was verified they may be no key at all.
///
/// To read a key as a point of the curve costs microseconds, and who replays a log reads millions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceKey([u8; 32]);

impl DeviceKey {
    /// A device by its key's bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        DeviceKey(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Its key.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for bytes that are no key.
    pub fn key(&self) -> Result<PublicKey, Reject> {
        PublicKey::from_bytes(self.0)
    }
}

impl From<&PublicKey> for DeviceKey {
    fn from(key: &PublicKey) -> Self {
        DeviceKey(*key.as_bytes())
    }
}

impl fmt::Display for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&write(Noun::Key, &self.0))
    }
}

impl fmt::Debug for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One run of a device's engine: 16 random bytes, new at each start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation([u8; 16]);

impl Incarnation {
    /// An incarnation by its bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Incarnation(bytes)
    }

    /// The 16 bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Appends the signature of `key` to `bytes`.
pub fn sign(domain: &[u8], volume: VolumeId, bytes: Vec<u8>, key: &SecretKey) -> Vec<u8> {
    let signature = key.sign(&message(domain, volume, &bytes));
    [bytes.as_slice(), &signature].concat()
}

/// Verifies the signature of `device` at the end of `bytes`, singly and strictly.
pub fn verify(
    domain: &[u8],
    volume: VolumeId,
    bytes: &[u8],
    device: &DeviceKey,
) -> Result<(), Reject> {
    let known = KnownDevice::new(*device).map_err(|_| bad_signature())?;
    known.verify(domain, volume, bytes, device)
}

/// A device whose key is ready to verify many signatures.
#[derive(Debug, Clone, Copy)]
pub struct KnownDevice {
    device: DeviceKey,
    verifier: Verifier,
}

impl KnownDevice {
    /// Reads the device's key.
    ///
    /// # Errors
    /// As [`DeviceKey::key`].
    pub fn new(device: DeviceKey) -> Result<Self, Reject> {
        let verifier = Verifier::from_bytes(device.0)?;
        Ok(KnownDevice { device, verifier })
    }

    /// The device.
    pub fn device(&self) -> DeviceKey {
        self.device
    }

    /// Verifies the signature of `device`, which must be this one, at the end of `bytes`.
    pub fn verify(
        &self,
        domain: &[u8],
        volume: VolumeId,
        bytes: &[u8],
        device: &DeviceKey,
    ) -> Result<(), Reject> {
        let Some((signed, signature)) = bytes.split_last_chunk::<SIGNATURE_BYTES>() else {
            return Err(bad_signature());
        };
        let message = message(domain, volume, signed);
        match self.device == *device && self.verifier.verify(&message, signature) {
            true => Ok(()),
            false => Err(bad_signature()),
        }
    }
}

fn bad_signature() -> Reject {
    Reject::NotSigned("the device's signature is bad")
}

fn message(domain: &[u8], volume: VolumeId, bytes: &[u8]) -> Vec<u8> {
    [domain, volume.as_bytes(), bytes].concat()
}

/// Reads a device.
pub fn decode(d: &mut Decoder<'_>) -> Result<DeviceKey, Reject> {
    d.array().map(DeviceKey)
}
