//! Who is at the ends of a connection: TLS in which the server shows a raw public key ([`tls`]), and a device that
//! proves its key inside of it.
//!
//! A device signs the volume and the *exporter* of the TLS session (RFC 8446, 7.5): 32 bytes that only the two ends of
//! this session can compute. So a signature is of no use on another connection, to a server that passes it on for
//! example. Knows no service: each has a domain of its own.

pub mod tls;

use std::fmt;

use bytes::{BufMut, BytesMut};
use trust::Reject;
use trust::device::DeviceKey;
use trust::encode::Decoder;
use trust::key::{PublicKey, SIGNATURE_BYTES, SecretKey};
use trust::volume_id::VolumeId;

/// Label of the exporter, the same for every service. (It has the name of the first one.)
pub const EXPORTER_LABEL: &[u8] = b"EXPERIMENTAL-bulla-shared-session";
/// Bytes of a [`Claim`].
pub const CLAIM_BYTES: usize = 32 + SIGNATURE_BYTES;

/// What both ends of one TLS session know, and nobody else.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Exporter(pub [u8; 32]);

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exporter")
    }
}

/// A device's claim to be at the other end. Not verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    device: DeviceKey,
    signature: [u8; SIGNATURE_BYTES],
}

impl Claim {
    /// The claim of the device with this key, for one session. `domain` names the protocol: a claim counts for no other.
    pub fn new(domain: &[u8], volume: VolumeId, key: &SecretKey, exporter: &Exporter) -> Claim {
        Claim {
            device: DeviceKey::from(&key.public()),
            signature: key.sign(&message(domain, volume, exporter)),
        }
    }

    /// Appends the bytes: the device's key, and its signature.
    pub fn put(&self, out: &mut BytesMut) {
        out.put_slice(self.device.as_bytes());
        out.put_slice(&self.signature);
    }

    /// Reads the bytes. Nothing is verified.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when they are cut short.
    pub fn take(d: &mut Decoder<'_>) -> Result<Claim, Reject> {
        Ok(Claim {
            device: DeviceKey::from_bytes(d.array()?),
            signature: d.array()?,
        })
    }

    /// The device at the other end of the session with this exporter.
    ///
    /// # Errors
    /// [`Reject::NotSigned`] for a signature of another protocol, session, volume or key.
    pub fn verify(
        &self,
        domain: &[u8],
        volume: VolumeId,
        exporter: &Exporter,
    ) -> Result<DeviceKey, Reject> {
        let bad = Reject::NotSigned("the device's signature is not for this connection");
        let key = PublicKey::from_bytes(*self.device.as_bytes()).map_err(|_| bad.clone())?;
        match key.verify(&message(domain, volume, exporter), &self.signature) {
            true => Ok(self.device),
            false => Err(bad),
        }
    }
}

fn message(domain: &[u8], volume: VolumeId, exporter: &Exporter) -> Vec<u8> {
    [domain, volume.as_bytes(), &exporter.0].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: &[u8] = b"bulla test session\n";
    const VOLUME: VolumeId = VolumeId::from_bytes([7; 32]);

    fn key(seed: u8) -> SecretKey {
        SecretKey::from_seed(&[seed; 32])
    }

    #[test]
    fn claim_counts_for_one_session_and_volume() {
        let here = Exporter([1; 32]);
        let claim = Claim::new(DOMAIN, VOLUME, &key(3), &here);
        let device = DeviceKey::from(&key(3).public());
        assert_eq!(claim.verify(DOMAIN, VOLUME, &here), Ok(device));
        assert!(claim.verify(DOMAIN, VOLUME, &Exporter([2; 32])).is_err());
        assert!(
            claim
                .verify(DOMAIN, VolumeId::from_bytes([8; 32]), &here)
                .is_err()
        );
        assert!(claim.verify(b"another protocol", VOLUME, &here).is_err());
        let other = Claim {
            device: DeviceKey::from(&key(4).public()),
            ..claim
        };
        assert!(other.verify(DOMAIN, VOLUME, &here).is_err());
    }
}
