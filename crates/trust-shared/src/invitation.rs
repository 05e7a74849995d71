//! How a device is admitted (docs/formats/shared.md, *Invitation*).
//!
//! An [`Invitation`] is one line that carries the trust: volume, policy, prefix of the log, server, and a secret that
//! is used once. The server sees none of it. Then three messages go through the server:
//!
//! ```text
//! joiner → inviter    Request     device key, commitment to a random number, MAC
//! inviter → joiner    Challenge   random number, MAC
//! joiner → inviter    Opening     the joiner's random number
//! ```
//!
//! After that both have six words, which people compare. Each side's random number is fixed before it learns the
//! other's, so somebody who has read the line and sits in between cannot look for a key that gives the same words: he
//! has one guess of 2⁶⁶.

use std::fmt;

use zeroize::Zeroizing;

use super::entry::Prefix;
use trust::device::DeviceKey;
use trust::encode::{Decoder, Encoder};
use trust::error::Reject;
use trust::text::{self, BadText};
use trust::volume_id::VolumeId;
use trust::words::Words;

/// Longest location of a server, bytes.
pub const MAX_SERVER_BYTES: usize = 255;
const WHAT: &str = "invitation";
const FORMAT: u8 = 0;
/// What the line begins with, before a `1`.
const HRP: &str = "inv";

const MAC_CONTEXT: &str = "bulla 0 invitation mac";
const ID_CONTEXT: &str = "bulla 0 invitation id";
const COMMITMENT_CONTEXT: &str = "bulla 0 invitation commitment";
const REQUEST_CONTEXT: &str = "bulla 0 invitation request";
const WORDS_CONTEXT: &str = "bulla 0 invitation words";
const REQUEST: u8 = 1;
const CHALLENGE: u8 = 2;

/// 128 random bits that are used for one admission. Wiped when dropped, never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<[u8; 16]>);

impl Secret {
    /// A secret of 16 random bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Secret(Zeroizing::new(bytes))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// What an inviter gives to a person on a way that the server does not see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invitation {
    /// The volume.
    pub volume: VolumeId,
    /// Hash of the newest policy that the inviter knows: the joiner takes no chain without it.
    pub policy: [u8; 32],
    /// Number of the log.
    pub epoch: u64,
    /// A prefix of the log: the joiner takes no log that does not begin so.
    pub prefix: Prefix,
    /// Where the server is; printable ASCII.
    pub server: String,
    /// The secret.
    pub secret: Secret,
}

impl Invitation {
    /// The line. Whoever reads it can ask for admission.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for a server that is not printable ASCII, empty, or too long.
    pub fn to_line(&self) -> Result<Zeroizing<String>, Reject> {
        check_server(self.server.as_bytes())?;
        let mut e = Encoder::new();
        e.u8(FORMAT).raw(self.volume.as_bytes()).raw(&self.policy);
        e.varint(self.epoch);
        self.prefix.encode(&mut e);
        e.bytes(self.server.as_bytes())
            .raw(self.secret.0.as_slice());
        let bytes = Zeroizing::new(e.finish());
        Ok(Zeroizing::new(text::write_long(HRP, &bytes)))
    }

    /// Reads a line.
    ///
    /// # Errors
    /// [`BadLine`] for a mistyped line, or one of a later bulla.
    pub fn from_line(line: &str) -> Result<Invitation, BadLine> {
        let bytes = Zeroizing::new(text::read_long(HRP, line)?);
        Ok(Invitation::decode(&bytes)?)
    }

    fn decode(bytes: &[u8]) -> Result<Invitation, Reject> {
        let mut d = Decoder::new(bytes, WHAT);
        d.format(FORMAT)?;
        let volume = VolumeId::from_bytes(d.array()?);
        let (policy, epoch) = (d.array()?, d.varint()?);
        let prefix = Prefix::decode(&mut d)?;
        let server = d.bytes(MAX_SERVER_BYTES)?;
        check_server(server)?;
        let server = String::from_utf8_lossy(server).into_owned();
        let secret = Secret::from_bytes(d.array()?);
        d.finish()?;
        Ok(Invitation {
            volume,
            policy,
            epoch,
            prefix,
            server,
            secret,
        })
    }

    /// A name of the invitation that tells nothing about its secret.
    pub fn id(&self) -> [u8; 16] {
        let [half @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] =
            blake3::derive_key(ID_CONTEXT, self.secret.0.as_slice());
        half
    }

    /// A MAC over the volume, the prefix, and a message of this kind.
    fn mac(&self, kind: u8, message: &[u8]) -> blake3::Hash {
        let key = Zeroizing::new(blake3::derive_key(MAC_CONTEXT, self.secret.0.as_slice()));
        let mut e = Encoder::new();
        e.u8(kind).raw(self.volume.as_bytes()).raw(&self.policy);
        self.prefix.in_epoch(self.epoch).encode(&mut e);
        e.raw(message);
        blake3::keyed_hash(&key, &e.finish())
    }
}

fn check_server(server: &[u8]) -> Result<(), Reject> {
    let printable = server.iter().all(u8::is_ascii_graphic);
    if server.is_empty() || server.len() > MAX_SERVER_BYTES || !printable {
        return Err(Reject::Malformed {
            what: WHAT,
            why: "the server's location is not printable ASCII, or too long",
        });
    }
    Ok(())
}

/// Why a line is no invitation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadLine {
    /// Mistyped, or not copied whole.
    #[error(transparent)]
    Text(#[from] BadText),
    /// A good checksum over something else.
    #[error(transparent)]
    Content(#[from] Reject),
}

/// A device that asks for admission.
#[derive(Debug)]
pub struct Joiner {
    invitation: Invitation,
    device: DeviceKey,
    random: [u8; 32],
}

impl Joiner {
    /// `random` is new random bytes for this request.
    pub fn new(invitation: Invitation, device: DeviceKey, random: [u8; 32]) -> Joiner {
        Joiner {
            invitation,
            device,
            random,
        }
    }

    /// The first message.
    pub fn request(&self) -> Request {
        let commitment = commitment(&self.device, &self.random);
        let id = self.invitation.id();
        let message = request_message(&id, &self.device, &commitment);
        Request {
            id,
            device: self.device,
            commitment,
            mac: self.invitation.mac(REQUEST, &message).into(),
        }
    }

    /// The answer to a challenge, and the words to show.
    ///
    /// # Errors
    /// [`Reject::NotSigned`] for a challenge that the inviter did not make for this request.
    pub fn open(&self, challenge: &Challenge) -> Result<(Opening, Words), Reject> {
        let request = self.request().hash();
        let mac = self.invitation.mac(CHALLENGE, &challenge.message());
        if challenge.request != request || mac != challenge.mac {
            return Err(Reject::NotSigned("a challenge by somebody else"));
        }
        let opening = Opening {
            request,
            random: self.random,
        };
        Ok((opening, words(challenge, &opening)))
    }
}

/// A device asks for admission: the joiner's first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    id: [u8; 16],
    device: DeviceKey,
    commitment: [u8; 32],
    mac: [u8; 32],
}

impl Request {
    /// Which invitation it answers.
    pub fn invitation(&self) -> &[u8; 16] {
        &self.id
    }

    /// The 113 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let message = request_message(&self.id, &self.device, &self.commitment);
        [&[FORMAT][..], &message, &self.mac].concat()
    }

    /// Reads what [`Request::encode`] wrote.
    ///
    /// # Errors
    /// [`Reject::Malformed`], and [`Reject::Unsupported`] for a later format.
    pub fn decode(bytes: &[u8]) -> Result<Request, Reject> {
        let mut d = message(bytes, "request for admission")?;
        let request = Request {
            id: d.array()?,
            device: DeviceKey::from_bytes(d.array()?),
            commitment: d.array()?,
            mac: d.array()?,
        };
        d.finish()?;
        Ok(request)
    }

    fn hash(&self) -> [u8; 32] {
        blake3::derive_key(REQUEST_CONTEXT, &self.encode())
    }

    /// Verifies that who asks has the invitation, and challenges it. `random` is new random bytes for this challenge.
    /// An inviter answers one request of an invitation and no other, so that nobody can try many.
    ///
    /// # Errors
    /// [`Reject::NotSigned`] for another invitation or a bad MAC; [`Reject::Malformed`] for a device key that is none.
    pub fn challenge(&self, invitation: &Invitation, random: [u8; 32]) -> Result<Pending, Reject> {
        let message = request_message(&self.id, &self.device, &self.commitment);
        if self.id != invitation.id() || invitation.mac(REQUEST, &message) != self.mac {
            return Err(Reject::NotSigned("a request without the invitation"));
        }
        self.device.key()?;
        let mut challenge = Challenge {
            request: self.hash(),
            random,
            mac: [0; 32],
        };
        challenge.mac = invitation.mac(CHALLENGE, &challenge.message()).into();
        Ok(Pending {
            request: *self,
            challenge,
        })
    }
}

/// A request that was challenged: what the inviter keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    request: Request,
    challenge: Challenge,
}

impl Pending {
    /// The message for the joiner.
    pub fn challenge(&self) -> &Challenge {
        &self.challenge
    }

    /// The device that may be admitted if `said`, which a person has from the joiner's screen, are the words. Gives
    /// `None` for other words: then somebody sits in between.
    ///
    /// # Errors
    /// [`Reject::NotSigned`] for an opening that does not fit the request.
    pub fn device(&self, opening: &Opening, said: &Words) -> Result<Option<DeviceKey>, Reject> {
        self.fits(opening)?;
        let device = self.request.device;
        Ok((words(&self.challenge, opening) == *said).then_some(device))
    }

    /// Whether an opening belongs to the request, whatever the words are.
    ///
    /// # Errors
    /// [`Reject::NotSigned`] for an opening that does not.
    pub fn fits(&self, opening: &Opening) -> Result<(), Reject> {
        let committed =
            commitment(&self.request.device, &opening.random) == self.request.commitment;
        if opening.request != self.challenge.request || !committed {
            return Err(Reject::NotSigned("an opening of another request"));
        }
        Ok(())
    }
}

/// The inviter's random number for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Challenge {
    request: [u8; 32],
    random: [u8; 32],
    mac: [u8; 32],
}

impl Challenge {
    fn message(&self) -> [u8; 64] {
        let mut message = [0; 64];
        let (request, random) = message.split_at_mut(32);
        request.copy_from_slice(&self.request);
        random.copy_from_slice(&self.random);
        message
    }

    /// The 97 bytes.
    pub fn encode(&self) -> Vec<u8> {
        [&[FORMAT][..], &self.message(), &self.mac].concat()
    }

    /// Reads what [`Challenge::encode`] wrote.
    ///
    /// # Errors
    /// As [`Request::decode`].
    pub fn decode(bytes: &[u8]) -> Result<Challenge, Reject> {
        let mut d = message(bytes, "challenge of a request for admission")?;
        let challenge = Challenge {
            request: d.array()?,
            random: d.array()?,
            mac: d.array()?,
        };
        d.finish()?;
        Ok(challenge)
    }
}

/// The joiner's random number, which its request committed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    request: [u8; 32],
    random: [u8; 32],
}

impl Opening {
    /// The 65 bytes.
    pub fn encode(&self) -> Vec<u8> {
        [&[FORMAT][..], &self.request, &self.random].concat()
    }

    /// Reads what [`Opening::encode`] wrote.
    ///
    /// # Errors
    /// As [`Request::decode`].
    pub fn decode(bytes: &[u8]) -> Result<Opening, Reject> {
        let mut d = message(bytes, "opening of a request for admission")?;
        let opening = Opening {
            request: d.array()?,
            random: d.array()?,
        };
        d.finish()?;
        Ok(opening)
    }
}

fn request_message(id: &[u8; 16], device: &DeviceKey, commitment: &[u8; 32]) -> Vec<u8> {
    [id.as_slice(), device.as_bytes(), commitment].concat()
}

fn commitment(device: &DeviceKey, random: &[u8; 32]) -> [u8; 32] {
    let committed = [device.as_bytes().as_slice(), random].concat();
    blake3::derive_key(COMMITMENT_CONTEXT, &committed)
}

/// The request's hash stands for the invitation's id, the device and the commitment.
fn words(challenge: &Challenge, opening: &Opening) -> Words {
    let said = [challenge.message().as_slice(), &opening.random].concat();
    Words::of(&blake3::derive_key(WORDS_CONTEXT, &said))
}

/// Begins to read a message of this format.
fn message<'a>(bytes: &'a [u8], what: &'static str) -> Result<Decoder<'a>, Reject> {
    let mut d = Decoder::new(bytes, what);
    d.format(FORMAT)?;
    Ok(d)
}

#[cfg(test)]
mod tests;
