//! The envelope of everything that is signed (design `trees.md`, *Statements*).
//!
//! ```text
//! format u16 | purpose u8 | compatible flags u16 | incompatible flags u16 | volume [32] | body | extensions
//! ```
//!
//! A statement is kept as the exact bytes that were signed. Its hash covers those bytes and not the
//! signatures, so that more or renewed signatures do not make it another statement. The signed message is
//! [`SIGNING_DOMAIN`] followed by those bytes. A [`Signed`] adds the list of (algorithm, key, signature),
//! sorted, each key once. What this build does not know in that list does not count, and is kept.

pub mod algorithm;
pub mod chain;
pub mod policy;
pub mod roles;
pub mod signatures;

use bytes::Bytes;

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::key::{PublicKey, SIGNATURE_BYTES, SecretKey};
use crate::statement::algorithm::{ED25519, KeyBytes, MAX_SIGNATURE_BYTES, UnknownKey};
use crate::statement::roles::Threshold;

pub use crate::volume_id::VolumeId;

/// Put before a statement's bytes when it is signed, so that the signature fits no other use of the key.
pub const SIGNING_DOMAIN: &[u8] = b"bulla statement signature 0\n";
/// Largest statement without signatures, bytes. There is room for keys of post-quantum algorithms.
pub const MAX_STATEMENT_BYTES: usize = 128 << 10;
/// Most signatures under one statement.
pub const MAX_SIGNATURES: usize = 80;

/// Largest signed statement, bytes.
pub const MAX_SIGNED_BYTES: usize = 256 << 10;
/// Most extensions of one statement.
pub const MAX_EXTENSIONS: u64 = 64;

const FORMAT: u16 = 0;
const HEADER_BYTES: usize = 39;

/// The purpose of a statement. Signed bytes of one purpose are never accepted for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Purpose {
    /// Names the keys of the volume.
    Policy = 1,
    /// Names the volume's tree.
    Root = 2,
    /// States that a root is still current.
    Timestamp = 3,
}

impl Purpose {
    fn from_byte(byte: u8) -> Option<Purpose> {
        [Purpose::Policy, Purpose::Root, Purpose::Timestamp]
            .into_iter()
            .find(|p| *p as u8 == byte)
    }

    fn hash_domain(self) -> &'static str {
        match self {
            Purpose::Policy => "bulla 0 statement policy",
            Purpose::Root => "bulla 0 statement root",
            Purpose::Timestamp => "bulla 0 statement timestamp",
        }
    }
}

/// The content of a statement of one purpose, with exactly one encoding.
pub trait Body: Sized {
    /// The purpose under which it is signed.
    const PURPOSE: Purpose;
    /// Appends the body's bytes.
    fn encode(&self, out: &mut Encoder);
    /// Reads the body; the caller refuses trailing bytes.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything but the one encoding of a valid body.
    fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject>;
}

/// The exact bytes of a statement. Its header was read, its body not yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    bytes: Bytes,
    purpose: Purpose,
    volume: VolumeId,
}

impl Statement {
    /// Makes a statement of `body` about `volume`.
    pub fn new<B: Body>(volume: VolumeId, body: &B) -> Self {
        let mut e = Encoder::new();
        e.u16(FORMAT).u8(B::PURPOSE as u8).u16(0).u16(0);
        e.raw(volume.as_bytes());
        body.encode(&mut e);
        // No extensions.
        e.varint(0);
        Statement {
            bytes: e.finish().into(),
            purpose: B::PURPOSE,
            volume,
        }
    }

    /// Takes bytes that claim to be a statement.
    ///
    /// # Errors
    /// [`Reject::Unsupported`] for a format, a purpose or an incompatible flag of a later bulla,
    /// [`Reject::Malformed`] for any other bytes that are not a statement.
    pub fn decode(bytes: Bytes) -> Result<Self, Reject> {
        let mut d = Decoder::new(&bytes, "statement");
        if bytes.len() > MAX_STATEMENT_BYTES {
            return Err(d.bad("too long"));
        }
        let format = d.u16()?;
        if format != FORMAT {
            return Err(unsupported(format!("format {format}")));
        }
        let purpose = d.u8()?;
        let _compatible = d.u16()?;
        let incompatible = d.u16()?;
        if incompatible != 0 {
            return Err(unsupported(format!("flags {incompatible:#06x}")));
        }
        let volume = VolumeId::from_bytes(d.array()?);
        let purpose =
            Purpose::from_byte(purpose).ok_or_else(|| unsupported(format!("purpose {purpose}")))?;
        Ok(Statement {
            bytes,
            purpose,
            volume,
        })
    }

    /// The exact bytes that are hashed, signed and logged.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The purpose.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// The volume field: [`VolumeId::UNBORN`] in a genesis policy.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// The statement's hash: over its bytes without signatures, with a domain for each purpose.
    pub fn hash(&self) -> [u8; 32] {
        blake3::derive_key(self.purpose.hash_domain(), &self.bytes)
    }

    /// Reads the body of a statement about `volume`. Signatures are not checked.
    ///
    /// # Errors
    /// [`Reject::WrongVolume`]; [`Reject::Malformed`] for another purpose or a bad body;
    /// [`Reject::Unsupported`] for an extension of a later bulla that must not be ignored.
    pub fn read<B: Body>(&self, volume: VolumeId) -> Result<B, Reject> {
        let mut d = Decoder::new(&self.bytes, "statement");
        if self.volume != volume {
            return Err(Reject::WrongVolume);
        }
        if self.purpose != B::PURPOSE {
            return Err(d.bad("a statement of another purpose"));
        }
        d.raw(HEADER_BYTES)?;
        let body = B::decode(&mut d)?;
        read_extensions(&mut d)?;
        d.finish()?;
        Ok(body)
    }

    /// The message that a key signs.
    pub fn signed_message(&self) -> Vec<u8> {
        [SIGNING_DOMAIN, &self.bytes].concat()
    }

    /// Signs with each of `keys`.
    pub fn sign(&self, keys: &[&SecretKey]) -> Signed {
        let mut signed = Signed {
            statement: self.clone(),
            signatures: Vec::new(),
            unknown: Vec::new(),
        };
        for key in keys {
            signed.add(key);
        }
        signed
    }
}

/// Reads the extensions at the end of a body: tags ascending, each once. This build knows none. It ignores even
/// tags.
fn read_extensions(d: &mut Decoder<'_>) -> Result<(), Reject> {
    let count = d.bounded(MAX_EXTENSIONS, "too many extensions")?;
    let mut last = None;
    for _ in 0..count {
        let tag = d.varint()?;
        d.bytes(MAX_STATEMENT_BYTES)?;
        if last.is_some_and(|last| last >= tag) {
            return Err(d.bad("extensions not sorted, or one twice"));
        }
        if tag % 2 == 1 {
            return Err(unsupported(format!("extension {tag}")));
        }
        last = Some(tag);
    }
    Ok(())
}

fn unsupported(why: String) -> Reject {
    Reject::Unsupported {
        what: "statement",
        why,
    }
}

/// One Ed25519 signature and the key that claims it. Not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The key's 32 bytes. Compared with the keys of a policy, never used as a key itself.
    pub key: [u8; 32],
    /// The signature.
    pub signature: [u8; SIGNATURE_BYTES],
}

/// A signature of an algorithm that this build does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
struct UnknownSignature {
    key: UnknownKey,
    signature: Bytes,
}

/// A statement with its signatures. None of them was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    statement: Statement,
    signatures: Vec<Signature>,
    /// Those of unknown algorithms: they never count, and are kept.
    unknown: Vec<UnknownSignature>,
}

impl Signed {
    /// The statement.
    pub fn statement(&self) -> &Statement {
        &self.statement
    }

    /// The Ed25519 signatures, sorted by key, each key once.
    pub fn signatures(&self) -> &[Signature] {
        &self.signatures
    }

    /// The statement's hash, without the signatures.
    pub fn hash(&self) -> [u8; 32] {
        self.statement.hash()
    }

    /// The signature that claims to be by `key`.
    pub fn by(&self, key: &PublicKey) -> Option<&Signature> {
        self.signatures.iter().find(|s| s.key == *key.as_bytes())
    }

    /// The statement with the signatures of only these roles' keys, also those of unknown algorithms.
    pub(crate) fn reduced_to(&self, roles: &[&Threshold]) -> Signed {
        let is_kept = |key: KeyBytes<'_>| roles.iter().any(|role| role.has(key));
        let mut reduced = self.clone();
        let known = |s: &Signature| is_kept(KeyBytes::ed25519(&s.key));
        reduced.signatures.retain(known);
        reduced.unknown.retain(|s| is_kept(s.key.as_key()));
        reduced
    }

    /// Adds (or replaces) the signature of `key`. This is how k of n owners sign one after another.
    pub fn add(&mut self, key: &SecretKey) {
        let public = key.public();
        let signature = key.sign(&self.statement.signed_message());
        self.signatures.retain(|s| s.key != *public.as_bytes());
        self.signatures.push(Signature {
            key: *public.as_bytes(),
            signature,
        });
        self.signatures.sort_by_key(|s| s.key);
    }

    /// Appends the canonical bytes.
    pub fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.statement.bytes);
        let count = self.signatures.len().saturating_add(self.unknown.len());
        out.varint(count as u64);
        for s in &self.signatures {
            KeyBytes::ed25519(&s.key).encode(out);
            out.bytes(&s.signature);
        }
        for s in &self.unknown {
            s.key.as_key().encode(out);
            out.bytes(&s.signature);
        }
    }

    /// Reads a signed statement.
    ///
    /// # Errors
    /// Those of [`Statement::decode`]; also for too many signatures, signatures out of order, and two by one key.
    /// A signature of an unknown algorithm is no error.
    pub fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        let before = d.remaining();
        let bytes = d.bytes(MAX_STATEMENT_BYTES)?;
        let statement = Statement::decode(Bytes::copy_from_slice(bytes))?;
        let count = d.bounded(MAX_SIGNATURES as u64, "too many signatures")?;
        let (mut signatures, mut unknown) = (Vec::new(), Vec::new());
        let mut last = None;
        for _ in 0..count {
            let key = KeyBytes::decode_after(&mut last, d)?;
            let signature = d.bytes(MAX_SIGNATURE_BYTES)?;
            if key.algorithm != ED25519 {
                unknown.push(UnknownSignature {
                    key: UnknownKey::copy(key),
                    signature: Bytes::copy_from_slice(signature),
                });
                continue;
            }
            let (Ok(key), Ok(signature)) = (key.bytes.try_into(), signature.try_into()) else {
                return Err(d.bad("an Ed25519 key or signature of another length"));
            };
            signatures.push(Signature { key, signature });
        }
        if before.saturating_sub(d.remaining()) > MAX_SIGNED_BYTES {
            return Err(d.bad("too long with its signatures"));
        }
        Ok(Signed {
            statement,
            signatures,
            unknown,
        })
    }

    /// The canonical bytes, for a file of its own.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        self.encode(&mut e);
        e.finish()
    }

    /// Reads a file that holds one signed statement and nothing else.
    ///
    /// # Errors
    /// As [`Signed::decode`]; trailing bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Reject> {
        let mut d = Decoder::new(bytes, "signed statement");
        let signed = Signed::decode(&mut d)?;
        d.finish()?;
        Ok(signed)
    }
}
