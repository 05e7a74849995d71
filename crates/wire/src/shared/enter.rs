//! The first message of a connection, ENTER: which volume, and which device ([`crate::session`]). A client without a
//! device is a *guest*: it may fetch policies and use the mailbox.

use bytes::{BufMut, BytesMut};
use trust::Reject;
use trust::encode::{Decoder, Encoder};
use trust::volume_id::VolumeId;

use super::kind;
use crate::frame::Header;
use crate::session::{CLAIM_BYTES, Claim};

/// Put before the volume and the exporter when a device signs.
pub const SIGNING_DOMAIN: &[u8] = b"bulla shared session 0\n";
/// Longest body of an ENTER.
pub const MAX_ENTER_BYTES: usize = 32 + 1 + CLAIM_BYTES;

const GUEST: u8 = 0;
const DEVICE: u8 = 1;

/// The first message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enter {
    /// The volume.
    pub volume: VolumeId,
    /// The device, and its signature; `None` for a guest.
    pub device: Option<Claim>,
}

impl Enter {
    /// Appends the whole message.
    pub fn put(&self, id: u32, out: &mut BytesMut) {
        let body_bytes = match self.device {
            Some(_) => MAX_ENTER_BYTES,
            None => 33,
        };
        Header::new(kind::ENTER, id, body_bytes).put(out);
        out.put_slice(self.volume.as_bytes());
        match &self.device {
            None => out.put_u8(GUEST),
            Some(claim) => {
                out.put_u8(DEVICE);
                claim.put(out);
            }
        }
    }

    /// Decodes the body.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything but the one encoding.
    pub fn decode(body: &[u8]) -> Result<Enter, Reject> {
        let mut d = Decoder::new(body, "enter");
        let volume = VolumeId::from_bytes(d.array()?);
        let device = match d.u8()? {
            GUEST => None,
            DEVICE => Some(Claim::take(&mut d)?),
            _ => return Err(d.bad("neither a guest nor a device")),
        };
        d.finish()?;
        Ok(Enter { volume, device })
    }
}

/// The answer to ENTER.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// Number of the newest policy that the server has. A client that knows an older one fetches policies.
    pub newest_policy: u64,
}

impl Welcome {
    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.varint(self.newest_policy);
        e.finish()
    }

    /// Decodes the body.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything but the one encoding.
    pub fn decode(body: &[u8]) -> Result<Welcome, Reject> {
        let mut d = Decoder::new(body, "welcome");
        let welcome = Welcome {
            newest_policy: d.varint()?,
        };
        d.finish()?;
        Ok(welcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::take;
    use crate::session::Exporter;
    use trust::key::SecretKey;

    const VOLUME: VolumeId = VolumeId::from_bytes([7; 32]);

    fn key(seed: u8) -> SecretKey {
        SecretKey::from_seed(&[seed; 32])
    }

    #[test]
    fn enter_has_one_encoding() {
        let claim = Claim::new(SIGNING_DOMAIN, VOLUME, &key(3), &Exporter([1; 32]));
        for device in [None, Some(claim)] {
            let enter = Enter {
                volume: VOLUME,
                device,
            };
            let mut bytes = BytesMut::new();
            enter.put(9, &mut bytes);
            let (header, body) = take(&mut bytes, MAX_ENTER_BYTES).unwrap().unwrap();
            assert_eq!((header.kind, header.id), (kind::ENTER, 9));
            assert_eq!(Enter::decode(&body), Ok(enter));
            for cut in 0..body.len() {
                assert!(Enter::decode(&body[..cut]).is_err());
            }
            assert!(Enter::decode(&[&body[..], &[0]].concat()).is_err());
        }
        let mut odd = [0; 33];
        odd[32] = 2;
        assert!(Enter::decode(&odd).is_err());
    }

    #[test]
    fn welcome_has_one_encoding() {
        let welcome = Welcome { newest_policy: 300 };
        let bytes = welcome.encode();
        assert_eq!(Welcome::decode(&bytes), Ok(welcome));
        assert!(Welcome::decode(&[&bytes[..], &[0]].concat()).is_err());
        assert!(Welcome::decode(&[0x80, 0]).is_err());
    }
}
